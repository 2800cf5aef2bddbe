"""IGPO with prefixes in place of inpainting: failed groups continue from parts of the solution.

Paper: Zhao et al. 2025, "Inpainting-Guided Policy Optimization for Diffusion Large Language Models"
Idea: a group without a success has no gradient. Some of its members are written again around given
pieces of the solution, and take their places if they come out right: an advantage on text that is
mostly the policy's own.
Formula: `y_i := inpaint(x, chunks of y*)` for some i of a group with all rewards 0, if `r(y_i) > 0`
Claim: state of the art among masked diffusion models on GSM8K, MATH500 and AMC.
Reading: the form for models that write from left to right: the given piece is a prefix of 0.2 to
0.8 of the solution, and is not trained on; two of a group's members. In the code a whole failed
group of 8 is written again around scattered chunks, 0.2 to 0.6 of the solution, up to 4 of the
right ones are taken, and given tokens are trained on where entropy is highest. The ablation writes
them again with nothing given.
Source: facebookresearch/igpo@e85eaea1508c9062991b44ca2e44d5d12ebc64be trainer_igpo.py:1420-1607
Fidelity: partial: prefixes in place of inpainting, two members, given tokens are not trained on
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(extensions={"guidance": GuidanceConfig("inpaint")}, needs=("solution",))
EXAMPLE = Example()
"""The quickstart with inpainted members in failed groups."""
