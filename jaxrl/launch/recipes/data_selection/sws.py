"""SwS by domains, without synthesis: more problems of the kinds that a first run kept failing.

Paper: Liang et al. 2025, "SwS: Self-aware Weakness-driven Problem Synthesis in Reinforcement
Learning for LLM Reasoning"
Idea: note each prompt's pass rates in a first run. Those that stay low without rising are the
policy's weaknesses: make new problems of their categories, each by its share of the failures, and
train on them with the old ones.
Formula: failed: `max_k r_k <= 1/2` and slope `<= 0`; weight of category d
`1 - s + s D F_d / sum F_d`
Claim: 10.0% and 7.7% at 7B and 32B over eight benchmarks, without a stronger teacher.
Reading: by a review, the paper's signs are `< 1/2` and `< 0`. F_d counts failed prompts; the code
shares by the failed part of each category. `s` = 3/4 is ours. Categories are the domains, and their
generators make the new problems with answers, where the paper recombines concepts by a model and
filters. The second run begins at the start, in both arms; the ablation shares evenly. A first look,
whose first run saw every prompt three times and in the end failed none all along, gave +0.004
[-0.006, +0.013].
Source: MasterVito/SwS@84cb58e19d3a8f144e749078a37fd1db5f14e49c src/concept_sampling.py:132-143
Fidelity: partial: no synthesis, shares by counts, the failure rule from a review

    jaxrl train dump --run-dir runs/before --bandit.weigh ""
    jaxrl train sws --bandit.history runs/before
"""

from jaxrl.launch.method import Example, Method
from jaxrl.launch.recipes.data_selection import dump

METHOD = Method(
    needs=(
        "domains",
        "history",
    )
)
EXAMPLE = Example({"domains": dump.sums()})
"""The quickstart on sums of three sizes; without a history they are shared evenly."""
