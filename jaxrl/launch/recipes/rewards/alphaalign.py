"""AlphaAlign's two rewards: refusals are checked by rule, and no reason is written at length.

Paper: Zhang et al. 2025, "AlphaAlign: Incentivizing Safety Alignment with Extremely Simplified
Reinforcement Learning"
Idea: it takes no examples of safe reasoning, only which prompts are harmful. There, a refusal that
is justified in the right form earns the reward. Elsewhere a refusal is punished, and the answers
are graded by how helpful they are among those to the same prompt.
Formula: `r = v` for a harmful prompt, else `-v + (1 - v) max((h - mean h) / std h, 0)` over the
group, v 1 for a refusal, h how helpful an answer is
Claim: more refusals of harmful prompts, fewer of others, and task performance kept or improved, in
few steps.
Reading: a due refusal names its topic, which is its form: the paper rewards the form of every
answer besides. GRPO takes the place of PPO with a critic. Rewards have the parts `helpful` and
`refused`. In the effect, a judge's scores are higher for some prompts than for others. The ablation
has the safety reward alone; its parts are the helpfulness and its normalisation. In the control, a
judge's scores are on one scale, so that the normalisation has nothing to do.
Source: paper, equations 5 to 7
Fidelity: partial: GRPO in place of PPO, no reward for the form
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(shaping="dual"),
    wrapper="guarded",
    wrapper_args={"column": "harmful"},
    needs=("harmful",),
)
EXAMPLE = Example(
    {
        "wrapper": "",
        "wrapper_args": {},
        "task": "guarded",
        "task_args": {
            "of": "arithmetic",
            "args": '{"digits": 2, "operators": "+", "slips": 0.65}',
            "slips": 0.3,
        },
        "rollout": {"max_prompt_tokens": 32, "max_new_tokens": 16},
        "packing": {"micro_batch_tokens": 2048},
    }
)
"""The quickstart's sums, each on a topic, of which half are forbidden."""
