"""TRAM by the last step: sharpness-aware fine-tuning whose radius is a divergence of the policy.

Paper: Sherborne et al. 2024, "TRAM: Bridging Trust Regions and Sharpness Aware Minimization"
Idea: sharpness-aware minimisation takes the gradient where the loss is worst within a radius, which
has to be tuned. Let the radius be how far the policy moved in its last update, so that it is large
where the function is curved. What was learned before is then forgotten less.
Formula: `grad L(theta + d theta^2 g / |theta g|)`, `g = grad L(theta)`,
`d = mean KL(pi_(n-1) || pi_n)`
Claim: lower perplexity and higher accuracy on domains that fine-tuning has not seen, than Adam,
SAM, ASAM and penalties of trust regions; flatter minima.
Reading: of the paper's variants, the one by the policy before the last update; the paper's mean
over inputs is one over the tokens of the batch. In the authors' code (tomsherborne/tram_optimizer,
`tram.py`) the move is `d theta^2 / |theta g|`, in which the gradient is missing, and `d` is a mean
over the entries of the vocabulary too. What is fine-tuned on are solutions of the task. An update
costs two gradients, and steps are equal: plain fine-tuning has half as many. In the effect, an
answer has to be marked, which solutions of one domain teach; the other domain is held out.
`sharpness` is by how much ASAM's move of 0.05 raises the held-out loss. The ablation has that
radius throughout. In the control, all demonstrations have the mark, so that nothing is left to
learn of the other domain.
Source: paper, equations 6 and 7; paper, equation 4
Fidelity: verified against equations
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.extensions.sharpness import SharpnessConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig("chord", {"mu": 1.0}, advantage="sampled_advantages"),
    extensions={"guidance": GuidanceConfig("expert_rows"), "sharpness": SharpnessConfig()},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart's solutions, imitated."""
