"""WiNGPT-3.0's last two stages, on sums: SFT, then RL on a rule's and a reward model's rewards.

Paper: Zhuang et al. 2025, "WiNGPT-3.0 Technical Report"
Idea: imitate chains of thought in several stages, then do RL on a few thousand problems. There, a
rule checks the answer, and a reward model marks the chain that leads from the evidence to it.
Formula: `r = w e + (1 - w) m`, e the answer is right, m the reward model's score of the chain
Claim: clinical reasoning from 58.1 to 62.5 by RL on limited data; MedCalc 66.6, MedQA 87.1.
Reading: the report's abstract names SFT, auxiliary reward models and a simulation of diagnostic
chains; the weighted sum, w of one half and GRPO are ours. The warm start is the SFT. In the toy,
the share of right steps stands for the reward model's score; on one's own rows, `--reward number
--reward RUN` adds a trained model's. In the effect, the model is a process reward model from
240 labelled solutions, and its score is the product over the steps. The ablation is the policy
after SFT.
Source: none found (the abstract was read; no code was searched)
Fidelity: partial: the weighted sum is ours
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
