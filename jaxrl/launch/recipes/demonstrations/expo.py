"""ExPO, on failed groups: the policy explains an answer that it is shown, and learns that.

Paper: Zhou et al. 2025, "ExPO: Unlocking Hard Reasoning with Self-Explanation-Guided Reinforcement
Learning"
Idea: an expert's solution is unlike anything the policy would write. Its own explanation of the
right answer is likely under the policy and leads to the answer: a positive sample for questions
where it has none.
Formula: `c ~ pi(. | q, a*)`; GRPO with `c` among the responses to `q`, where all of them failed
Claim: above training on experts' demonstrations, most on the hardest questions.
Reading: after ExP-GRPO, which by reviews leaves `c` out of the group and adds
`beta log pi(c, a* | q)` to GRPO, with beta 0.04. Here, where a group has failed, two explanations
stand in for two samples if they are right, with their group's advantage, and what is shown is the
task's solution. The ablation samples those rows again, shown nothing.
Source: none found (authors' repository is not to be had; two reviews with equations were read)
Fidelity: partial: in the group, where the paper adds a term of imitation
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(
    extensions={"guidance": GuidanceConfig("explain", {"rows": 2}, "{solution}={prompt}")},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart with explanations for failed groups."""
