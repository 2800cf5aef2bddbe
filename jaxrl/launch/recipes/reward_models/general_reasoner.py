"""General-Reasoner's reward, on numbers alone: no questions of many fields, no thinking verifier.

Paper: Ma et al. 2025, "General-Reasoner: Advancing LLM Reasoning Across All Domains"
Idea: outside of mathematics an answer can be said in many ways, and rules for comparing it refuse
right ones. Let a small model that was trained to compare answers say yes or no, and do RL from the
base model on questions of all kinds.
Formula: `r = v (1 - 0.05 min(|l - l_ref|, 10)) - 0.5 (1 - e)`, v accepted, e an answer was found, l
lengths of answer and reference
Claim: above baselines on 12 benchmarks from MMLU-Pro to MATH, with mathematics kept.
Reading: the reward, the clip of 0.3, and the weights of KL and entropy are those of the authors'
code. The toy compares values by rule, in characters; `--reward verifier?url=...&model=...` asks a
language model, on one's own rows. In the effect, the verifier is a classifier trained on some pairs
of forms; forms have equal lengths there. The figures `refused` and `hacked` are its errors on
held-out answers. The ablation compares with the reference as written. The control has one form of
each value.
Source: TIGER-AI-Lab/General-Reasoner@007e44cb1e6a624845616dd5c1c7e044e5bfd3cd verifier.py:181;
TIGER-AI-Lab/General-Reasoner@007e44cb1e6a624845616dd5c1c7e044e5bfd3cd train_general_reasoner.sh:30
Fidelity: partial: values compared by rule; an answer is all after the thought, measured in words
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(
        policy_args={"clip_low": 0.3, "clip_high": 0.3}, kl_coef=0.0001, entropy_coef=0.001
    ),
    wrapper="length_checked",
    needs=("answer",),
)
EXAMPLE = Example(
    {
        "wrapper": "",
        "task": "fractions",
        "task_args": {"slips": 0.5, "varied": 1.0},
        "rollout": {"max_prompt_tokens": 32, "max_new_tokens": 16},
    }
)
"""The quickstart on sums of fractions."""
