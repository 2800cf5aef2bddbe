"""WebAgent-R1 on forms: GRPO on whole episodes that see one page, after behaviour cloning.

Paper: Wei et al. 2025, "WebAgent-R1: Training Web Agents via End-to-End Multi-Turn Reinforcement
Learning"
Idea: web pages are long, so a few words stand for each earlier page, while all actions stay; each
action is trained under the context that it was written in. Groups of episodes of a task are
compared by whether they succeed. Behaviour cloning comes first.
Formula: `-1/G sum_i 1/|tau_i| sum_j 1/|a_ij| sum_t min(r_t A_i, clip(r_t) A_i)`,
`A_i = (R_i - mean R) / std R`
Claim: WebArena-Lite success of Qwen2.5-3B from 6% to 34%; behaviour cloning is needed.
Reading: the authors have not published their training code. Pages are those of `html_form`, trees
of elements without a browser, and the policy begins from nothing, so the forms have one field. The
KL penalty, a mean over tokens here, has a weight of 0.001. Episodes are not sampled asynchronously.
"""

import dataclasses

from jaxrl.config import Config, EvalConfig, RolloutConfig, WarmStartConfig
from jaxrl.launch.recipes import quickstart
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig


def config() -> Config:
    """Forms of one field, in at most three turns."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="webagent_r1",
        task="html_form",
        task_args={"fields": 1, "distractors": 0, "turns": 3, "compress": True},
        warm_start=WarmStartConfig(steps=100, batch_size=16, learning_rate=1e-3),
        rollout=RolloutConfig(
            prompts=4, group_size=8, max_prompt_tokens=512, max_new_tokens=1536, turn_tokens=32
        ),
        objective=ObjectiveConfig(
            advantage="m_grpo", aggregation="seq-mean-token-mean", kl_coef=0.001
        ),
        sampler=SamplerConfig(slots=32, prefill_rows=8, bucket=128),
        packing=PackingConfig(micro_batch_tokens=4096, row_length=2048),
        eval=EvalConfig(problems=64),
    )
