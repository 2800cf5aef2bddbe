"""ViSurf for text: the label as one more response of the group, until the samples are as good.

Paper: Liu et al. 2025, "ViSurf: Visual Supervised-and-Reinforcement Fine-Tuning for Large
Vision-and-Language Models"
Idea: one stage in place of SFT-then-RL. The label's group-relative advantage is large where samples
fail, which is supervision, and small where they succeed, which is reinforcement. Controls of its
reward keep it from pulling at a policy that no longer needs it.
Formula: `A` over the samples and the label; `r_label := mean r` once a sample is as good
Claim: better than SFT, RLVR and SFT-then-RLVR.
Reading: the form for text. By a review the paper's controls are three: the label is written in the
format of a response, has no reward for thinking, and has the samples' mean reward once a sample is
as good, which is what remains here. The ablation learns nothing from the label.
Source: none found (authors' repository is not to be had; a review with equations was read)
Fidelity: partial: text in place of images, compared with a review
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(shaping="settled_label"),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart with the label in each group."""
