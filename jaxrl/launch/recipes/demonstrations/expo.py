"""ExPO, on failed groups: the policy explains an answer that it is shown, and learns that.

Paper: Zhou et al. 2025, "ExPO: Unlocking Hard Reasoning with Self-Explanation-Guided Reinforcement
Learning"
Idea: an expert's solution is unlike anything the policy would write. Its own explanation of the
right answer is likely under the policy and leads to the answer: a positive sample for questions
where it has none.
Formula: `c ~ pi(. | q, a*)`; GRPO with `c` among the responses to `q`
Claim: above training on experts' demonstrations, most on the hardest questions.
Reading: ExP-GRPO: where a group has failed, two explanations stand in for two samples if they are
right, with their group's advantage. The ablation samples those rows again, shown nothing.
Source: none found (recalled from the paper; no code was searched)
Fidelity: partial: not compared with a source
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(
    extensions={"guidance": GuidanceConfig("explain", {"rows": 2}, "{solution}={prompt}")},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart with explanations for failed groups."""
