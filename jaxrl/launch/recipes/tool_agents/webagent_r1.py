"""WebAgent-R1 on forms: GRPO on whole episodes that see one page, after behaviour cloning.

Paper: Wei et al. 2025, "WebAgent-R1: Training Web Agents via End-to-End Multi-Turn Reinforcement
Learning"
Idea: web pages are long, so a few words stand for each earlier page, while all actions stay; each
action is trained under the context that it was written in. Groups of episodes of a task are
compared by whether they succeed. Behaviour cloning comes first.
Formula: `-1/G sum_i 1/|tau_i| sum_j 1/|a_ij| sum_t min(r_t A_i, clip(r_t) A_i)`,
`A_i = (R_i - mean R) / std R`
Claim: WebArena-Lite success of Qwen2.5-3B from 6% to 34%; behaviour cloning is needed.
Reading: the authors have not published their training code. Pages are those of `html_form` in
symbols, without a browser, as the policy begins from nothing. The KL penalty, a mean over tokens
here, has a weight of 0.001. Episodes are not sampled asynchronously. `--task-args.compress false`
keeps all pages.
"""

import dataclasses

from jaxrl.config import Config, WarmStartConfig
from jaxrl.launch.recipes.ready import retrieval
from jaxrl.training.objective import ObjectiveConfig


def config() -> Config:
    """Forms with two fields to fill in and two others, in at most six turns."""
    base = retrieval.config()
    return dataclasses.replace(
        base,
        recipe="webagent_r1",
        steps=40,
        task="html_form",
        task_args={"fields": 2, "distractors": 2, "turns": 6, "compress": True, "symbols": True},
        warm_start=WarmStartConfig(steps=45, batch_size=32, learning_rate=2e-3),
        rollout=dataclasses.replace(
            base.rollout, max_prompt_tokens=32, max_new_tokens=256, turn_tokens=2
        ),
        objective=ObjectiveConfig(
            advantage="m_grpo", aggregation="seq-mean-token-mean", kl_coef=0.001
        ),
        updates_per_batch=1,
        optimizer=dataclasses.replace(base.optimizer, learning_rate=3e-4),
        sampler=dataclasses.replace(base.sampler, slots=128),
        packing=dataclasses.replace(base.packing, row_length=288),
    )
