"""VCPO, lengths for gradient norms: effective sample size sets the rate; least-variance baseline.

Paper: Huang et al. 2026, "Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs"
Idea: with age the importance weights of a batch concentrate on a few samples and the gradient's
variance explodes. Measure that by the effective sample size and scale the learning rate by its
square root; and take the baseline that minimises the variance of the weighted gradient.
Formula: `-min(w, 8) (R - b) / std log pi`, `w = pi / pi_b`, `b = sum w^2 g^2 R / sum w^2 g^2`;
learning rate times `ESS^(1/2)`, `ESS = (sum w)^2 / (N sum w^2)`
Claim: stable at 128 steps off-policy, 2.5 times faster than synchronous training.
Reading: as in the released scripts, but for the squared gradient norm `g^2` of each trajectory, for
which its number of tokens stands. The ablation is importance sampling alone. A first experiment, on
data 16 steps old and with an earlier form of the loss, gave -0.361 [-0.814, +0.092].
Source: mit-han-lab/vcpo@c7f030f0b77237cfb0e75e720669e2917a1bb56e
recipe/fully_async_policy/staleness_utils.py:272;
mit-han-lab/vcpo@c7f030f0b77237cfb0e75e720669e2917a1bb56e
recipe/fully_async_policy/staleness_utils.py:415
Fidelity: partial: lengths in place of squared gradient norms
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(policy="vcpo", aggregation="seq-mean-token-mean"), updates_per_batch=4
)
EXAMPLE = Example()
"""The quickstart with VCPO's objective, four updates on each batch."""
