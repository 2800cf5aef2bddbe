"""WiNGPT-3.0 with its RL in one stage, on sums: SFT, then a rule's and a model's rewards at once.

Paper: Zhuang et al. 2025, "WiNGPT-3.0 Technical Report"
Idea: imitate chains of thought, then do RL on a few thousand problems. Where a rule can check the
answer, it does; elsewhere a model that reads the reference answer judges, and in the last stage it
marks the chain that leads from the evidence to the diagnosis as well.
Formula: `r = w e + (1 - w) m`, e the answer is right, m the reward model's score of the chain; the
report has one of them in each stage: e, then a verdict of 0 or 1 against the reference
Claim: clinical reasoning from 58.1 to 62.5 by RL on limited data; MedCalc 66.6, MedQA 87.1.
Reading: the report has SFT and three stages of GRPO: by a rule, with a penalty of up to 0.5 above
8K tokens; by the model; and by the model on cases whose findings the policy asks for. The weighted
sum and w of one half are ours; the penalty and the asking are left out. The warm start is the SFT.
In the toy, the share of right steps stands for the reward model's score; on one's own rows,
`--reward number --reward RUN` adds a trained model's. In the effect, the model is a process reward
model from 240 labelled solutions, and its score is the product over the steps. The ablation is the
policy after SFT.
Source: paper, section 4.2
Fidelity: partial: one weighted sum in place of three stages, each with its own reward
"""

from jaxrl.launch.method import Example, Method

METHOD = Method(
    needs=(
        "judge",
        "rewards",
    )
)
EXAMPLE = Example(
    {
        "task_args": {
            **{"digits": 2, "terms": 3, "operators": "+"},
            **{"worked": True, "stepwise": True, "slips": 0.65},
        },
        "rollout": {"max_new_tokens": 16},
    }
)
"""The quickstart on sums of three numbers, rewarded for the answer and for the steps."""
