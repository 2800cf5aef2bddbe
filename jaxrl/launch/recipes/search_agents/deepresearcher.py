"""DeepResearcher without the web: GRPO with a search engine that fails and errs, as real ones do.

Paper: Zheng et al. 2025, "DeepResearcher: Scaling Deep Research via Reinforcement Learning in
Real-world Environments"
Idea: train where the agent will work: searches fail, are slow, and find what was not asked for, so
an agent that learned from a clean corpus is not prepared. It should notice and ask again.
Formula: `R = -1` if the format is wrong, else the F1 of the answer's words; GRPO without the tokens
that were found
Claim: up to 29 points above prompted agents and 7 above agents trained with a fixed corpus.
Reading: the reward, and a KL penalty of 0.001, are those of the authors' code; the small run has an
entropy bonus besides. The engine is that of the task `retrieval`, where three searches of ten fail
and one of ten finds another fact; there is no browser, and no second agent that reads pages.
Answers are single names, whose F1 is 0 or 1; half of the reward is for the facts found, without
which a model from nothing learns too slowly. Two searches more than needed leave room to ask again.
Source: GAIR-NLP/DeepResearcher@c93be8fd8637c1ac4a438ce730d118afd308f832
verl/utils/reward_score/format_and_f1.py:7
Fidelity: partial: half of the reward is for facts found, no browser; an unknown name is malformed
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(kl_coef=0.001), needs=("environment",))
EXAMPLE = Example(
    {
        "task_args": {
            "hops": 2,
            "credit": 0.5,
            "searches": 4,
            "failures": 0.3,
            "noise": 0.1,
            "malformed": -1.0,
        },
        "objective": {"entropy_coef": 0.03},
        "rollout": {"max_new_tokens": 48, "turn_tokens": 2},
    },
    base="retrieval",
)
"""Two hops, four searches."""
