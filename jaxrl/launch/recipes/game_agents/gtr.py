"""GTR with groups in place of a critic: actions by reinforcement, corrected thoughts by imitation.

Paper: Wei et al. 2025, "GTR: Guided Thought Reinforcement Prevents Thought Collapse in RL-based VLM
Agent Training"
Idea: an agent that thinks and is rewarded for the outcome of its actions alone soon thinks the same
everywhere, whatever it sees. So a corrector rewrites its thoughts, step by step, in the states that
it comes to, and the agent imitates these; its actions are trained by RL. Corrected thoughts of all
steps so far are drawn from (DAgger), as those of one step are too much alike.
Formula: `L = L_PPO(actions) + L_SFT(corrected thoughts)`, here with one half of each
Claim: three to five times the success of the best others on 24 points and ALFWorld, with a smaller
model.
Reading: a language model sees images and another corrects it in the paper; here the state is text,
and the corrector is a solver: it leaves a thought whose step can lead to 24, and puts such a step
in the place of any other. PPO's clipped objective has advantages of groups and turns (GiGPO) and no
critic. One thought of each episode is corrected. The game has three numbers, up to 10, and up to 13
where it is evaluated; a warm start shows solutions with thoughts. The code corrects every thought,
adds both losses with weight 1, and its actions' probability contains their thoughts'. No penalty
for repetition; a malformed turn costs one of two mistakes. `--corrector.no-aggregate` imitates the
thoughts of the same step alone, and `--corrector.reinforce --objective.policy-args.mu 0` trains
thoughts like actions, and imitates none.
Source: weit123/GTR@d6bfc81a27f3203bb798e20dc4f246252ef9e051
GTR_gymcards/a2c_ppo_acktr/algo/ppo.py:63-117
Fidelity: partial: advantages of groups and no critic, one thought of each episode is corrected
"""

import re
from fractions import Fraction

from jaxrl.data.environments.games import game24
from jaxrl.extensions.corrector import CorrectorConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

_NUMBERS = re.compile(r"numbers: ([-0-9/, ]+)")

METHOD = Method(
    objective=ObjectiveConfig(
        policy="chord", policy_args={"mu": 0.5}, advantage="gigpo", advantage_args={"discount": 0.9}
    ),
    extensions={"corrector": CorrectorConfig(f"{__name__}:corrected")},
    updates_per_batch=1,
    needs=("environment",),
)
EXAMPLE = Example(
    {
        "task": "game24",
        "task_args": {"numbers": 3, "instructions": False, "think": True, "mistakes": 1},
        "warm_start": {"steps": 300, "batch_size": 32, "learning_rate": 0.002},
        "rollout": {"max_new_tokens": 192, "turn_tokens": 48, "on_device": False},
        "optimizer": {"learning_rate": 0.0005},
        "packing": {"row_length": 256},
        "eval": {"split": "ood"},
    },
    base="keydoor",
)
"""The 24 game with three numbers and a thought before each step."""


def corrected(context: str, thought: str, target: float = 24) -> str:
    """The thought, if its step can lead to the target; else one that does, empty where none can.

    Args:
      context: text before the thought; its last line of numbers has those that are there.
      thought: of the policy.
      target: to be made.
    """
    lines = _NUMBERS.findall(context)
    numbers = [Fraction(number) for number in lines[-1].split(", ")] if lines else []
    if game24.promising(numbers, thought, int(target)):
        return thought
    return game24.thought(numbers, int(target))
