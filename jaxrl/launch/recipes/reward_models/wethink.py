"""WeThink's hybrid reward on text: no images, no questions made from them, no reward for format.

Paper: Yang et al. 2025, "WeThink: Toward General-purpose Vision-Language Reasoning via
Reinforcement Learning"
Idea: a rule checks numbers and choices without a fault and refuses right answers in open words; a
model judges both, at a price and with faults. Ask the rule where it can check, and the model
elsewhere, in one run over both kinds of questions.
Formula: `r = rule(y, y*)` where the answer can be checked, else `judge(x, y, y*)`
Claim: gains on 14 benchmarks from mathematics to general questions, with 120K pairs from 18
sources.
Reading: the abstract has the two rewards, and in the authors' data each question names its own of
them. How the judge scores is ours, and code for training was not published. In the toy, each domain
has its task's reward, and a comparison of values stands for the judge. On one's own rows, `--reward
'number if kind=math' --reward 'rubric:open.yaml if kind=open'` routes by a column. In the effect,
half of the questions want one form of a value and the other half any, and the judge is a classifier
that was trained on some pairs of forms. `judged` is the share of rewards that it is asked for. The
ablation is the rule alone; the baselines are the rule, the judge and the true reward. The control
has one form of each value, which the rule can check everywhere.
Source: none found (yangjie-cv/WeThink has no code for training; its README was read)
Fidelity: partial: how the judge scores is ours; no reward for format
"""

from jaxrl.config import Domain
from jaxrl.launch.method import Example, Method

METHOD = Method(
    needs=(
        "judge",
        "rewards",
    )
)
EXAMPLE = Example(
    {
        "domains": {
            "checked": Domain("arithmetic", {"digits": 2, "operators": "+", "slips": 0.65}),
            "open": Domain("fractions"),
        },
        "rollout": {"max_prompt_tokens": 32, "max_new_tokens": 16},
    }
)
"""The quickstart's sums, beside sums of fractions in any form."""
