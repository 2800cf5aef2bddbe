"""ARMed's renormalised score beside exact match: no images, no chains of thought to imitate.

Paper: Liu et al. 2025, "Breaking Reward Collapse: Adaptive Reinforcement for Open-ended Medical
Reasoning with Enhanced Semantic Discrimination"
Idea: a model that scores how close an open answer is to the reference gives very different answers
nearly the same score. Beside a reward of 0 or 1 for the text it hardly counts. Put the scores into
units of how they have spread so far.
Formula: `r = e + w clip((s - m) / (d + eps), -3, 3)`, e the exact match, s the judge's score, m and
d its running mean and deviation
Claim: 32.64% in-domain and 11.65% out of domain over six benchmarks of medical questions.
Reading: the abstract has the problem and the two rewards, and not the rule; the history is ours. In
`config()` the score is how probable a judge finds the answer better than the reference, and
`--judge.model RUN` names it; without one, the toy's policy judges, which it has not learned. In the
effect, the judge's scores are from 0.80 to 0.85 by the share of right symbols, and noisy by a fifth
of that. The ablation adds the score as it is.
Source: none found (repositories and pages were searched; abstracts of versions 1 and 3 were read)
Fidelity: partial: the rule is ours
"""

from jaxrl.extensions.judge import JudgeConfig
from jaxrl.extensions.renormalise import RenormaliseConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(
    extensions={
        "judge": JudgeConfig(pairwise=True, anchor="gold", task_weight=1.0, weight=0.0),
        "renormalise": RenormaliseConfig(part="judge", weight=0.5),
    },
    rollout={"prompts": 16},
)
EXAMPLE = Example(
    {
        "task": "fractions",
        "task_args": {"slips": 0.5},
        "rollout": {"max_prompt_tokens": 32, "max_new_tokens": 16},
    }
)
"""The quickstart on sums of fractions, whose solutions a judge compares answers with."""
