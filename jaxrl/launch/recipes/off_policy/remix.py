"""ReMix without its last stage: fresh and replayed rollouts in every update.

Paper: Liang et al. 2025, "Squeeze the Soaked Sponge: Efficient Off-policy Reinforcement Finetuning
for Large Language Model"
Idea: a rollout costs more than an update. Train on each one several times, at once and again from a
replay buffer, by PPO's ratio to whichever policy wrote it; hold the policy to the base model and to
the one just before; after an early phase let the current policy be the base (reincarnation).
Formula: `L = L_clip(fresh and replayed) + c (lambda KL(pi || pi_base) + (1 - lambda) KL(pi ||
pi_prev))`
Claim: the accuracy of on-policy training with 30 to 450 times fewer rollouts.
Reading: a buffer of 8 steps, as many replayed groups as fresh ones; `pi_prev` is the policy before
the batch. Accounts of the paper differ from this in three points: the ratio to the policy that
wrote is clipped around `pi_k / pi_b`, here around 1; `lambda` falls from 1 to 0.5, here it is 0.5;
and 40% of the data are replayed, of the last two steps. Reincarnation renews base and optimizer;
the switch to on-policy data that goes with it is left out. The ablation takes one update on the
fresh rollouts alone.
Source: none found (authors' code was not to be had; the abstract, a note and reviews were read)
Fidelity: partial: clip around 1, fixed lambda, a longer buffer, by accounts of the paper
"""

from jaxrl.extensions.reference_refresh import RefreshConfig
from jaxrl.extensions.replay import ReplayConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(policy="remix"),
    extensions={
        "replay": ReplayConfig(groups=16, size=128),
        "reference_refresh": RefreshConfig(every=60, reset_optimizer=True),
    },
    updates_per_batch=2,
)
EXAMPLE = Example()
"""The quickstart with two updates a step, half of their data replayed."""
