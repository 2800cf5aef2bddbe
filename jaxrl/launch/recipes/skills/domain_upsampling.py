"""Domain upsampling at the end of training, on sums: a small domain gets half of the last fifth.

Paper: Blakeney et al. 2024, "Does your data spark joy? Performance gains from domain upsampling at
the end of training"
Idea: train on much web text and a little of the domains that benchmarks ask for. Near the end,
raise the domains' weights. That costs the general ability little, and shows what a data set is
worth for a tenth of the price of a whole run.
Formula: `-log pi(text)`, text drawn by weights `w` until a share of the steps is done, then by `w'`
Claim: a 7B model gains 6.9 points on MMLU, 8.3 on GSM8K and 6.2 on HumanEval over its base mixture;
10 to 20% of training is the best length, for domains and general ability together.
Reading: texts are solutions of problems. The web's have errors, and the domain has few texts, which
come round again. The domain's weight is 0.05, and 0.5 in the last fifth; both are ours. The rate is
constant in the effect, and falls in the run. The ablation is the base mixture throughout, as in the
paper. pass@1 is the mean over held-out problems of the web and of the domain, half each. One length
of the last phase: that 10 to 20% is best is not shown, nor is a data set's worth by leaving it out.
In the task `many texts`, the domain has 512 and not 64.
Source: none found (repositories and pages were searched by title; the abstract was read)
Fidelity: partial: weights of the domains are ours
"""

from jaxrl.config import CurriculumConfig, Domain, WarmStartConfig
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch import domain_plans
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

RAISED = (0.5, 0.5)
"""Weights of the web and of the domain in the last fifth."""
LAST = 0.2

BASE = (0.95, 0.05)
"""Shares of the domains before the last stage."""

METHOD = Method(
    objective=ObjectiveConfig("chord", {"mu": 1.0}, advantage="sampled_advantages"),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    rollout={"prompts": 96, "group_size": 2},
    by_domain=domain_plans.raise_last(BASE[1], RAISED[1], 1 - LAST),
    needs=(
        "solution",
        "domains",
    ),
)
EXAMPLE = Example(
    {
        "stages": {176: {"domains.web.weight": 0.5, "domains.domain.weight": 0.5}},
        "domains": {
            "web": Domain(
                "arithmetic",
                {"digits": 2, "operators": "+", "slips": 0.1},
                dict(zip(("web", "domain"), BASE, strict=True))["web"],
            ),
            "domain": Domain(
                "arithmetic",
                {"digits": 2, "operators": "-"},
                dict(zip(("web", "domain"), BASE, strict=True))["domain"],
                curriculum=CurriculumConfig("jaxrl.data.selection.curriculum:uniform", prompts=100),
            ),
        },
        "warm_start": WarmStartConfig(),
    }
)
"""Sums that forget carries are the web, a hundred differences the domain."""
