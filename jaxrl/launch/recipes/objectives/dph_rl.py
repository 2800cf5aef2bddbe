"""DPH-RL: a mass-covering divergence to the initial policy in place of the reverse KL.

Paper: Li et al. 2025, "The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse
in Reinforcement Learning with Verifiable Reward"
Idea: the reverse KL lets the policy give up all modes but one. The forward KL makes every mode that
is lost costly: it rehearses what the initial policy could do. So sample the initial policy first,
keep its responses to the prompts that it solves, and hold the policy to their likelihood while it
learns from the others.
Formula: `L_PPO` on fresh samples, `beta (u - 1 - log u)`, `u = pi / pi_0`, on stored ones of `pi_0`
Claim: mends the fall of pass@k, raises pass@1 and pass@k in and out of the domain.
Reading: the first steps sample and do not learn, and a replay buffer stores the groups of which
every response is right, as in the authors' code. Later samples of such prompts train only as long
as they differ, by their advantages; the paper takes those prompts out. Jensen-Shannon's divergence
is not here. The ablation is the reverse KL to the initial policy on the policy's own samples, at
the same weight. The effect is the second experiment: half of its prompts are easy, and the initial
policy answers about seven tenths of those right 8 times of 8. In the first, no group was right as a
whole, so nothing was stored, and PPO alone was measured. There is no neutral task for that reason.
In the control, one answer to each symbol is right, and pass@1 is the statistic.
Source: seamoke/DPH-RL@139a9b22891db748a26a266b5e5409c8a0161dac verl/trainer/ppo/core_algos.py:889
Fidelity: partial: a token's divergence has a gradient above 10 too
"""

import numpy as np

from jaxrl.extensions.replay import ReplayConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

PRESAMPLE = 16
"""Steps that sample the initial policy: in the effect, each prompt once."""


def initially_solved(
    rewards: np.ndarray, lengths: np.ndarray, versions: np.ndarray, before: float
) -> np.ndarray:
    """[P, G] bool: all of a group that passed as a whole, and was sampled before this version."""
    solved = (np.nan_to_num(rewards) >= 0.5).all(axis=1) & (versions < before).all(axis=1)
    return np.broadcast_to(solved[:, None], rewards.shape)


METHOD = Method(
    objective=ObjectiveConfig(
        policy="dph", policy_args={"presample_steps": PRESAMPLE, "coefficient": 0.05}
    ),
    extensions={
        "replay": ReplayConfig(
            groups=4,
            size=1024,
            keep="jaxrl.launch.recipes.objectives.dph_rl:initially_solved",
            keep_args={"before": PRESAMPLE},
        )
    },
)
EXAMPLE = Example()
"""The quickstart with rehearsal of what the initial policy could do."""
