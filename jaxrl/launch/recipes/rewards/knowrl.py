"""KnowRL's reward on a world of its own: claims are sentences, looked up in a set of facts.

Paper: Ren et al. 2025, "KnowRL: Exploring Knowledgeable Reinforcement Learning for Factuality"
Idea: a reward for the answer alone pays for right answers that were drawn from false claims, and
teaches nothing where answers are wrong. Look up each claim of the thought. A wrong answer earns by
how many hold, and saying that one does not know is worth more than any wrong answer.
Formula: `r = (2 f - 1) + 2 c + u - (1 - c - u) (1 - s)`, c right, u refused, f in form, s the share
of claims that are supported
Claim: fewer hallucinations on three data sets, with reasoning kept on two.
Reading: values are those of the authors' code, where a refusal is worth one point more than a wrong
answer after true claims. Splitting by a language model, retrieval and entailment are left out, and
so is the penalty on few claims. The cold start is the toy's warm start. The ablation looks no claim
up. In the control, demonstrations claim nothing false.
Source: zjunlp/KnowRL@f75b0bb0c316668b2108bf97c96efbb5c8c4083b
train/reward_function/combined_reward.py:13
Fidelity: partial: a thought that ends is form enough
"""

from jaxrl.launch.method import Example, Method

METHOD = Method(wrapper="factual", wrapper_args={"column": "facts"}, needs=("facts",))
EXAMPLE = Example(
    {
        "wrapper": "",
        "wrapper_args": {},
        "task": "known_facts",
        "task_args": {"slips": 0.3, "refusals": 0.1},
        "rollout": {"max_prompt_tokens": 48, "max_new_tokens": 112},
        "packing": {"micro_batch_tokens": 4096, "row_length": 512},
    }
)
"""The quickstart on questions about a made-up world."""
