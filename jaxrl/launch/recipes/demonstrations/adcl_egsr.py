"""ADCL + EGSR, by last visits: an order from easy to hard, and reformulated solutions.

Paper: Zhang et al. 2025, "Learning Like Humans: Advancing LLM Reasoning Capabilities via Adaptive
Difficulty Curriculum Learning and Expert-Guided Self-Reformulation"
Idea: what is hard changes as the policy learns, so each part of the data is sorted anew by the
policy's own pass rates (ADCL). A problem that a group fails is shown with the expert's solution,
the policy says it in its own words, and if it is right that is a sample of the group (EGSR).
Formula: order by the latest pass rate; `c ~ pi(. | q, solution)` in place of one failed sample
Claim: 10% on AIME24 and 16.6% on AIME25 above zero-RL.
Reading: by a review, all problems are sorted once and cut into batches, and each batch is sorted
anew, by difficulties estimated again, when it is next. Here the pass rate is that of the last
visit, and the easiest come first; one member is replaced (recalled). The ablation draws prompts
evenly and samples that member again.
Source: none found (repositories by title and name; the abstract and a review were read in part)
Fidelity: partial: pass rates of the last visit, no batches, EGSR was not compared
"""

from jaxrl.config import CurriculumConfig
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(
    extensions={"guidance": GuidanceConfig("explain", shown="{solution}={prompt}")},
    curriculum=CurriculumConfig("easiest_first"),
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart in an order of its own, with reformulations for failed groups."""
