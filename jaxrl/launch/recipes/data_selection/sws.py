"""SwS by domains, without synthesis: more problems of the kinds that a first run kept failing.

Paper: Liang et al. 2025, "SwS: Self-aware Weakness-driven Problem Synthesis in Reinforcement
Learning for LLM Reasoning"
Idea: note each prompt's pass rates in a first run. Those that stay low without rising are the
policy's weaknesses: make new problems of their categories, each by its share of the failures, and
train on them with the old ones.
Formula: failed: `max_k r_k <= 1/2` and slope `<= 0`; weight of category d
`1 - s + s D F_d / sum F_d`
Claim: 10.0% and 7.7% at 7B and 32B over eight benchmarks, without a stronger teacher.
Reading: rule recalled, `s` = 3/4 ours. Categories are the domains, and their generators make the
new problems with answers, where the paper recombines concepts by a model and filters. The second
run begins at the start, in both arms; the ablation shares evenly. A first look, whose first run saw
every prompt three times and in the end failed none all along, gave +0.004 [-0.006, +0.013].
Source: none found (MasterVito/SwS was fetched, its rule for failed prompts not found)
Fidelity: partial: no synthesis; the rule was not compared

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
