"""What an update does for the routers of a mixture of experts, see `jaxrl.losses.router`.

A token counts as often as sequences that it belongs to would have it in rows of their own. So a
shared prompt counts once for each response, padding never, and the terms are the same however
sequences are packed. Sequences that the loss leaves out count nothing here either.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.losses import router
from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import Routing
from jaxrl.models.mixers import pattern
from jaxrl.types import Packed, Params


@dataclasses.dataclass(frozen=True)
class Terms:
    """What is done, each at its strength; 0 leaves it out."""

    balance: float
    """Weight of the load-balancing loss."""
    level: Literal["batch", "sequence"]
    """What is to be balanced."""
    z: float
    """Weight of the z-loss."""
    bias_speed: float
    """Change of a bias in one update."""


class Totals(NamedTuple):
    """Denominators of the whole batch, scalar float32, at least 1."""

    tokens: jax.Array
    sequences: jax.Array


def ends(packed: Packed, index: jax.Array, counted: jax.Array) -> jax.Array:
    """Where sequences end in the rows of a micro-batch: [R, A] int32, -1 where none does.

    Args:
      packed: all rows.
      index: of the micro-batch.
      counted: [N] bool, the sequences that count.
    """
    sequence, predictor, leaf = (
        jax.lax.dynamic_index_in_dim(a, index, keepdims=False)
        for a in (packed.sequence, packed.predictor, packed.leaf)
    )
    return jnp.where(leaf & counted[jnp.maximum(sequence, 0)], predictor, -1)


def token_weights(packed: Packed, index: jax.Array, ended: jax.Array) -> jax.Array:
    """How many sequences each token of a micro-batch belongs to: [R, L] float32.

    Args:
      packed: all rows.
      index: of the micro-batch.
      ended: [R, A], from `ends`.
    """
    until = jax.lax.dynamic_index_in_dim(packed.visible_until, index, keepdims=False)
    length = until.shape[1]
    at = jnp.where(ended < 0, length, ended)
    counts = jax.vmap(lambda at: jnp.zeros(length, jnp.float32).at[at].add(1.0, mode="drop"))(at)
    before = jnp.pad(jnp.cumsum(counts, axis=1), ((0, 0), (1, 0)))  # ends before a position
    sequence_counts = jnp.take_along_axis(before, until, axis=1) - before[:, :-1]
    return jnp.maximum(sequence_counts, 0.0)


def members(packed: Packed, index: jax.Array, ended: jax.Array) -> jax.Array:
    """The tokens of each sequence of a micro-batch: [R, A, L] bool, none where none ends.

    Args:
      packed: all rows.
      index: of the micro-batch.
      ended: [R, A], from `ends`.
    """
    until = jax.lax.dynamic_index_in_dim(packed.visible_until, index, keepdims=False)
    at = ended[:, :, None]
    return (jnp.arange(until.shape[1]) <= at) & (until[:, None, :] > at)


def totals(packed: Packed, counted: jax.Array) -> Totals:
    """Denominators of all micro-batches; those that hold no data add nothing."""

    def totals_of(index: jax.Array) -> tuple[jax.Array, jax.Array]:
        ended = ends(packed, index, counted)
        return jnp.sum(token_weights(packed, index, ended)), jnp.sum(ended >= 0)

    tokens, sequences = jax.lax.map(totals_of, jnp.arange(packed.tokens.shape[0]))
    return Totals(jnp.maximum(jnp.sum(tokens), 1.0), jnp.maximum(jnp.sum(sequences), 1.0))


def preferred(model: DecoderConfig, routing: Routing) -> tuple[jax.Array, jax.Array]:
    """Probabilities [L, R, T, E], and the experts [L, R, T, K] that count as chosen in a loss.

    Where a bias steers the choice, those are the most probable ones without it (DeepSeek-V3).
    """
    experts = model.experts
    assert experts is not None
    probabilities = router.router_probabilities(routing.logits, scoring=experts.scoring)
    if not experts.correction_bias:
        return probabilities, routing.chosen
    return probabilities, jax.lax.top_k(probabilities, experts.per_token)[1]


def share(
    terms: Terms,
    model: DecoderConfig,
    routing: Routing,
    packed: Packed,
    index: jax.Array,
    counted: jax.Array,
    totals: Totals,
    load: jax.Array | None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """A micro-batch's share of the routers' loss, and of their metrics.

    Args:
      terms: at their strengths.
      model: the decoder's shape.
      routing: of the micro-batch.
      packed, index, counted: see `ends`.
      totals: of the whole batch, from `totals`.
      load: [L, E] of the whole batch, by what `preferred` gives; None: this is all of the batch.

    Returns:
      A scalar, and `router/balance` and `router/z`, means over layers that are not multiplied by
      their weights, and `router/load` [L, E], the tokens that each expert received.
    """
    ended = ends(packed, index, counted)
    weights = token_weights(packed, index, ended)
    probabilities, chosen = preferred(model, routing)
    if terms.level == "sequence":
        member = members(packed, index, ended)
        balance = router.sequence_load_balancing(
            probabilities, chosen, member, total=totals.sequences
        )
    else:
        if load is None:
            load = router.expert_load(chosen, weights, num_experts=probabilities.shape[-1])
        balance = router.load_balancing(probabilities, load, weights, total=totals.tokens)
    z = router.router_z_loss(routing.logits, weights, total=totals.tokens)
    received = router.expert_load(routing.chosen, weights, num_experts=probabilities.shape[-1])
    return terms.balance * jnp.sum(balance) + terms.z * jnp.sum(z), {
        "router/balance": jnp.mean(balance),
        "router/z": jnp.mean(z),
        "router/load": received,
    }


def busiest(load: jax.Array) -> jax.Array:
    """Tokens of the busiest expert over the mean of all: 1 under a uniform load; mean over layers.

    Args:
      load: [L, E].
    """
    return jnp.mean(jnp.max(load, axis=-1) / jnp.maximum(jnp.mean(load, axis=-1), 1e-20))


def steered(params: Params, load: jax.Array, speed: float) -> Params:
    """Parameters with the biases of their routers moved towards a uniform load.

    Args:
      params: of a decoder whose experts have `correction_bias`.
      load: [L, E] of the whole batch.
      speed: see `Terms.bias_speed`.
    """
    steps = router.bias_step(load, speed=speed)
    stacked = pattern.names(params)
    names = [name for name in stacked if "correction" in params[name].get("mlp", ())]
    stacks = dict[str, Any]()
    for i, name in enumerate(names):  # a stack has every len(names)-th of the routed layers
        mlp = params[name]["mlp"]
        correction = mlp["correction"] + steps[i :: len(names)]
        stacks[name] = params[name] | {"mlp": mlp | {"correction": correction}}
    return params | stacks
