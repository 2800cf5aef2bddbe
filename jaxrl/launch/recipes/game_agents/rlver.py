"""RLVER with users that are programs: the reward is the mood that a simulated user ends in.

Paper: Wang et al. 2025, "RLVER: Reinforcement Learning with Verifiable Emotion Rewards for
Empathetic Agents"
Idea: a simulated user has a persona, a need that it does not say, and an emotion that each reply
moves by rules. The whole conversation is rewarded by the emotion at its end, which no reward model
judges. With thoughts, a turn without one earns nothing.
Formula: `R = e_T / 100`, `e_0 = 30`; the conversation ends at 100, below 10, or after 8 turns; GRPO
or PPO on the tokens of all turns
Claim: Qwen2.5-7B from 13 to 79 on the Sentient benchmark; GRPO gains steadily, PPO may end higher;
users of middling difficulty teach more than the hardest.
Reading: the emotion's changes by mood, its start and its limits are those of the authors' code, as
a fork has it, where a language model plays the user and says how it feels. Here the user is the
task `emotional_support`: a need is one of five, it is let slip in symbols, and difficulty says how
replies near to it are taken. GRPO without a KL penalty, from nothing; `--with critic
--critic.mixing 1` is PPO, and `--task-args.think true --rollout.turn-tokens 2` has thoughts.
Source: llsune/RLVER@a4305830bce7e80509a324dea6207592d83f450e
code/verl/workers/rollout/vllm_rollout/hard_player_simulator_dsv3.py:93
Fidelity: partial: users are programs, so that needs and moods are ours
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(entropy_coef=0.02), needs=("environment",))
EXAMPLE = Example(
    {
        "task": "emotional_support",
        "task_args": {"difficulty": "normal"},
        "rollout": {"prompts": 16, "max_new_tokens": 64},
        "sampler": {"slots": 128},
        "packing": {"row_length": 96},
    },
    base="retrieval",
)
"""GRPO on conversations of eight turns with users of normal difficulty."""
