"""NLPO's mask: the policy chooses among what an earlier copy of it finds likely, and nothing else.

Ramamurthy et al. 2023, "Is Reinforcement Learning (Not) for Natural Language Processing". The copy
is renewed every so many steps. It steers the sampler as a `logits.Guide`, and the update's
log-softmax leaves out the same tokens, so that ratios compare what was sampled from. Held-out
answers are sampled without it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.config import NucleusConfig
from jaxrl.logits import Guide, keep, nucleus_of
from jaxrl.trainable import Part
from jaxrl.types import Params, TrainState
from losses import mixed
from models.config import DecoderConfig


@struct.dataclass
class Nucleus:
    """What may be chosen: the smallest set of a policy's most likely tokens of this mass."""

    params: Params
    mass: float = struct.field(pytree_node=False)


def begun(config: NucleusConfig, part: Part, state: TrainState) -> TrainState:
    """A state at step 0, with the copy where the run has one."""
    return renewed(part, state) if config.mass else state


def renewed(part: Part, state: TrainState) -> TrainState:
    """The state with the policy as it is now for the copy."""
    return state.replace(nucleus=jax.tree.map(jnp.copy, part.split(state.params)[0]))


def of(config: NucleusConfig, part: Part, state: TrainState) -> Nucleus | None:
    """What the policy of a state may choose; None: everything."""
    if not config.mass:
        return None
    return Nucleus(part.join(state.nucleus, part.split(state.params)[1]), config.mass)


def guide(model: DecoderConfig, nucleus: Nucleus | None) -> Guide:
    """What steers the sampler; the nucleus' parameters in the form that the sampler reads."""
    if nucleus is None:
        return Guide(keep)
    return Guide(nucleus_of, nucleus.mass, (model,), (nucleus.params,))


def masked(logits: jax.Array, likely: jax.Array, targets: jax.Array, mass: float) -> jax.Array:
    """Logits with -inf outside the nucleus, but at the targets.

    A target was sampled, so it was inside. That it stays keeps it from falling out by rounding, and
    keeps tokens that the policy did not choose, or chose from an older nucleus, at a probability.

    Args:
      logits: [..., V], the policy's.
      likely: [..., V], the logits of the policy that says what is likely.
      targets: [...] int32.
      mass: of the nucleus.
    """
    chosen = jnp.arange(logits.shape[-1]) == targets[..., None]
    return jnp.where(chosen, logits, mixed.nlpo_logits(logits, likely, top_p=mass))
