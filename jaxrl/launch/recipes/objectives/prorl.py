"""ProRL: long training, held by a KL to a reference that is moved up at a fixed interval.

Paper: Liu et al. 2025, "ProRL: Prolonged Reinforcement Learning Expands Reasoning Boundaries in
Large Language Models"
Idea: a KL term keeps long runs from collapse, and in the end from learning. So the reference is
replaced by the current policy now and again, and the optimizer starts anew; a higher upper clip, a
warm temperature and dynamic sampling keep exploration up.
Formula: `-min(r A, clip(r, 0.8, 1.4) A) + beta KL(pi, pi_ref)`; every N steps `pi_ref <- pi`
Claim: beats the base model over a wide range of pass@k, also where the base fails at any k.
Reading: clip, temperature and dynamic sampling are the paper's; beta is ours, and the KL is
estimated by k3. The reset comes at a fixed interval, in the paper when validation stalls or falls.
A batch has one update here and four there.
Source: paper, equations 3 and 4; paper, section 3.3
Fidelity: partial: resets at an interval; one update a batch
"""

from jaxrl.extensions.reference_refresh import RefreshConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(policy_args={"clip_low": 0.2, "clip_high": 0.4}, kl_coef=0.1),
    extensions={"reference_refresh": RefreshConfig(every=25, reset_optimizer=True)},
    rollout={"temperature": 1.2, "oversampling": 2.0},
)
EXAMPLE = Example()
"""The quickstart, held and released."""
