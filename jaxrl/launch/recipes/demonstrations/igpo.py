"""IGPO with prefixes in place of inpainting: failed groups continue from parts of the solution.

Paper: Zhao et al. 2025, "Inpainting-Guided Policy Optimization for Diffusion Large Language Models"
Idea: a group without a success has no gradient. Some of its members are written again around given
pieces of the solution, and take their places if they come out right: an advantage on text that is
mostly the policy's own.
Formula: `y_i := inpaint(x, chunks of y*)` for some i of a group with all rewards 0, if `r(y_i) > 0`
Claim: state of the art among masked diffusion models on GSM8K, MATH500 and AMC.
Reading: the form for models that write from left to right: the given piece is a prefix of 0.2 to
0.8 of the solution, and is not trained on, so there are no given tokens to filter by entropy; two
of a group's members. The ablation writes them again with nothing given.
Source: none found (recalled from the paper; no code was searched)
Fidelity: partial: prefixes in place of inpainting
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(extensions={"guidance": GuidanceConfig("inpaint")}, needs=("solution",))
EXAMPLE = Example()
"""The quickstart with inpainted members in failed groups."""
