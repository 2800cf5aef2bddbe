"""ACE-RL: a checklist made for each instruction; the reward is the share of its items that are met.

Paper: Chen et al. 2025, "ACE-RL: Adaptive Constraint-Enhanced Reward for Long-form Generation
Reinforcement Learning"
Idea: one grade for a whole text says little of what it lacks, and a judge gives it unreliably. Take
the instruction apart into constraints that can be checked one by one, and reward each that is met.
Formula: `r = mean_k 1[y meets constraint k of x]`
Claim: 7.32% over RL with holistic rewards on WritingBench, and 20.70% over SFT.
Reading: constraints come with the instruction and are checked by rule, not found and judged by a
language model; none is met in part, and the paper's reward for length is left out. In the effect,
every verdict is wrong once in ten. The ablation has one verdict, on the whole.
Source: none found (ZNLP/ACE-RL was not to be had; abstracts and a note of the paper were read)
Fidelity: partial: constraints by rule in place of a judge; no reward for length
"""

from jaxrl.launch.method import Example, Method

ITEMS = 3
"""Constraints of an instruction: right symbols of a prompt."""

METHOD = Method(needs=("judge",))
EXAMPLE = Example(
    {
        "task": "format_following",
        "task_args": {"constraints": ITEMS},
        "rollout": {"max_prompt_tokens": 256, "max_new_tokens": 96},
        "packing": {"micro_batch_tokens": 4096, "row_length": 1024},
    }
)
"""The quickstart on texts under three constraints."""
