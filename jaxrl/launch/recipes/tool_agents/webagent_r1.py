"""WebAgent-R1 on forms: GRPO on whole episodes that see one page, after behaviour cloning.

Paper: Wei et al. 2025, "WebAgent-R1: Training Web Agents via End-to-End Multi-Turn Reinforcement
Learning"
Idea: web pages are long, so a few words stand for each earlier page, while all actions stay; each
action is trained under the context that it was written in. Groups of episodes of a task are
compared by whether they succeed. Behaviour cloning comes first.
Formula: `-1/G sum_i 1/|tau_i| sum_j 1/|a_ij| sum_t min(r_t A_i, clip(r_t) A_i)`,
`A_i = (R_i - mean R) / std R`
Claim: WebArena-Lite success of Qwen2.5-3B from 6% to 34%; behaviour cloning is needed.
Reading: an account of the paper has the formula, with the KL penalty inside the means. The released
code does not weigh turns, and trains all actions of an episode in one text, in which a few words
stand for every page but the last. Advantages and the weight of 0.001 are as there. Pages are those
of `html_form` in symbols, without a browser, as the policy begins from nothing. The KL penalty is a
mean over tokens here. Episodes are not sampled asynchronously. `--task-args.compress false` keeps
all pages.
Source: weizhepei/WebAgent-R1@09f208f9039937871b3bffeaa6f6b4dcca6481f2
WebAgent-R1/Train/verifiers/verifiers/trainers/grpo_env_trainer.py:240-247;
weizhepei/WebAgent-R1@09f208f9039937871b3bffeaa6f6b4dcca6481f2
WebAgent-R1/Train/verifiers/verifiers/envs/webarena_env.py:702-755
Fidelity: partial: the released code weighs an episode's tokens, and not its turns, alike
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(advantage="m_grpo", aggregation="seq-mean-token-mean", kl_coef=0.001),
    updates_per_batch=1,
    needs=("environment",),
)
EXAMPLE = Example(
    {
        "steps": 40,
        "task": "html_form",
        "task_args": {"fields": 2, "distractors": 2, "turns": 6, "compress": True, "symbols": True},
        "warm_start": {"steps": 45, "batch_size": 32, "learning_rate": 0.002},
        "rollout": {"max_prompt_tokens": 32, "max_new_tokens": 256, "turn_tokens": 2},
        "optimizer": {"learning_rate": 0.0003},
        "sampler": {"slots": 128},
        "packing": {"row_length": 288},
    },
    base="retrieval",
)
"""Forms with two fields to fill in and two others, in at most six turns."""
