"""RLPT without a judge model: say how a raw text continues; the words that follow are the reward.

Paper: Li et al. 2025, "Reinforcement Learning on Pre-Training Data"
Idea: pre-training text has its own labels. The policy reasons and then predicts the next segment of
a text, or a middle one with what stands behind it, and a judge compares with the text. A prediction
may span several segments, so any beginning of what follows counts as right, from the segment on.
Formula: `r = 1[prediction is a prefix of s_(>= i)]`, GRPO without KL
Claim: Qwen3-4B gains 3.0 on MMLU, 8.1 on GPQA-Diamond and 6.6 on AIME24, and RLVR begins better.
Reading: words are compared after normalisation where the paper asks a judge model; half of the
problems are middle ones, whose weight the paper leaves open; its cold start is left out. The effect
asks for the segment at least. The run's texts continue for one segment, of which any first words
are enough, which is more relaxed than the paper. The ablation asks for the segment as it was cut.
In the task `longer segments`, these have 2 or 3 symbols, not 1 to 3.
Source: paper, equations 4 and 5
Fidelity: partial: words compared in place of a judge; no cold start
"""

from jaxrl.launch.method import Example, Method

METHOD = Method(rewards=("closeness?name=prefix",), needs=("answer",))
EXAMPLE = Example(
    {
        "task": "next_segment",
        "task_args": {"metric": "prefix", "middle": 0.5},
        "rollout": {"max_prompt_tokens": 256, "max_new_tokens": 48},
        "packing": {"micro_batch_tokens": 2048, "row_length": 512},
    }
)
"""The quickstart on stories, their next sentence or a middle one."""
