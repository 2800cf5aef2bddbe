"""ASearcher without its web and its synthesis of questions: search agents, asynchronously.

Paper: Gao et al. 2025, "Beyond Ten Turns: Unlocking Long-Horizon Agentic Search with Large-Scale
Asynchronous RL"
Idea: episodes of search differ in length by two orders of magnitude, so no batch waits for its
longest: finished groups are trained on, and the others go on under newer weights. Turns are then
limited by what a question needs, and not by what a batch can wait for.
Formula: `-w min(u A, clip(u) A)`, `u = pi / pi_prox`, `w = pi_prox / pi_b`, tokens with `w > 5`
left out; `A = (r - mean_g r) / std`, groups of equal rewards left out
Claim: Avg@4 of QwQ-32B rises by 46.7% on xBench and 20.8% on GAIA; over 40 searches and 150k tokens
in an episode of training.
Reading: objective, clip of 0.4, cap of 5, staleness of 4 and one update a batch are those of the
released configurations; `icepop` with `low` 0 is that cap. Their deviation is of advantages over
tokens, here of the batch's rewards. They sample on until a batch is full of groups that differ;
here those that do not differ are left out and not replaced. The world is `retrieval`, in symbols,
with three searches for each that is needed; the reward is the answer alone, as no answer has a form
to be wrong in. Lockstep makes the toy run deterministic. That it learns has not been seen: at a
rate of 1e-3 its reward fell from 0.20 to 0.02 in 20 steps, and at this one, 2e-4, it has not been
run. The lab's sampler is 8 steps old; the ablation is PPO, which clips around that sampler.
Source: inclusionAI/ASearcher@813e804fc3b24b661b4f5625c77343d5daa14a03
AReaL/ASearcher/configs/asearcher_web.yaml:58
Fidelity: verified against code
"""

from jaxrl.config import (
    AsynchronousConfig,
)
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(
        policy="icepop",
        policy_args={"low": 0.0, "high": 5.0, "clip_low": 0.4, "clip_high": 0.4},
        advantage_args={"scale": "batch"},
        rows="jaxrl.losses.advantages.groups:informative",
    ),
    updates_per_batch=1,
    asynchronous=AsynchronousConfig(staleness=4, schedule="lockstep:4", order="finished"),
    needs=("environment",),
)
EXAMPLE = Example(
    {
        "steps": 80,
        "task_args": {"hops": 2, "searches": 6},
        "warm_start": {"steps": 40, "batch_size": 64, "learning_rate": 0.002},
        "rollout": {"prompts": 16, "max_prompt_tokens": 32, "max_new_tokens": 96, "turn_tokens": 4},
        "optimizer": {"learning_rate": 0.0002},
        "sampler": {"slots": 128, "bucket": 64},
        "packing": {"micro_batch_tokens": 2048, "row_length": 128},
        "eval": {"problems": 64},
        "checkpoint": {"every": 20},
    },
    base="retrieval",
)
"""Questions of two hops, from a short warm start, with data of up to four steps of age."""
