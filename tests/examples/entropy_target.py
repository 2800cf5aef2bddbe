"""An extension in a file of its own: the entropy bonus is steered to a target entropy."""

import dataclasses

import jax.numpy as jnp

from jaxrl.run.extension import Extension


@dataclasses.dataclass(frozen=True)
class EntropyTarget:
    """Its flags: --entropy-target.target and --entropy-target.rate."""

    target: float = 0.3
    """Entropy of the policy to keep, in nats a token."""
    rate: float = 0.01
    """Change of the coefficient at each update, for each nat that is missing."""


def entropy_target(settings: EntropyTarget) -> Extension:
    """After each update, `coef <- max(0, coef + rate * (target - entropy))`."""

    def init(ctx, state):
        first = jnp.float32(ctx.config.objective.entropy_coef)
        return state.with_coefficients(entropy_coef=first)  # is saved with the train state

    def update(ctx, inner):
        def both(state, batch, packed, ref_logp):
            used = state.coefficients["entropy_coef"]
            state, metrics = inner(state, batch, packed, ref_logp)
            moved = used + settings.rate * (settings.target - metrics["entropy"])
            moved = jnp.where(jnp.isfinite(moved), jnp.maximum(moved, 0.0), used)
            return state.with_coefficients(entropy_coef=moved), metrics | {"entropy_coef": used}

        return both

    return Extension(init=init, update=update)
