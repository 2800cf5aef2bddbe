"""Terms of the routers of a mixture of experts: balance of their load, and size of their logits.

Arrays are `[L, R, T, ...]`: layers, rows and tokens. `weights` says how often a token counts: 0 for
padding, and a token that several packed sequences share counts once for each. Results are one a
layer; a model's loss is their sum over layers.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import as_float, constant
from jaxrl.losses.reduce.shapes import checked

KIND = "router"


@checked
def router_probabilities(logits: jax.Array, *, scoring: str = "softmax") -> jax.Array:
    """What share of a token each expert claims.

    Formula: `softmax(x)_e`, or `sigmoid(x_e) / sum_j sigmoid(x_j)`
    Paper: Fedus et al. 2021 (Switch Transformers); DeepSeek-AI 2024 (DeepSeek-V3, sigmoid)

    Args:
      logits: `[..., E]` of a router.
      scoring: `softmax` or `sigmoid`.

    Returns:
      `[..., E]`, which sums to 1 over E.
    """
    if scoring not in ("softmax", "sigmoid"):
        raise ValueError(f"scoring={scoring!r} is unknown; choose softmax or sigmoid")
    logits = as_float(logits)
    if scoring == "softmax":
        return jax.nn.softmax(logits, axis=-1)
    scores = jax.nn.sigmoid(logits)
    return scores / (jnp.sum(scores, axis=-1, keepdims=True) + 1e-20)


@checked
def expert_load(chosen: jax.Array, weights: jax.Array, *, num_experts: int) -> jax.Array:
    """How many tokens each expert receives.

    Formula: `n_e = sum_t w_t [e is chosen for t]`
    Paper: Shazeer et al. 2017, "Outrageously Large Neural Networks"

    Args:
      chosen: `[L, R, T, K]` int32, the experts of each token.
      weights: `[R, T]`, how often a token counts.
      num_experts: E.

    Returns:
      `[L, E]` float32, without a gradient.
    """
    return jnp.einsum("lrte,rt->le", _one_hot(chosen, num_experts), constant(weights))


@checked
def load_balancing(
    probabilities: jax.Array, load: jax.Array, weights: jax.Array, *, total: jax.Array | float
) -> jax.Array:
    """Load-balancing loss over a whole batch: 1 under a uniform load, and E at most.

    The load is a constant, so the gradient lowers the probabilities of the experts that have most.
    With `load` and `total` of the whole batch, the losses of micro-batches add up to the batch's.

    Formula: `E sum_e f_e P_e`, `f_e = n_e / sum_j n_j`, `P_e = sum_t w_t p_te / total`
    Paper: Fedus et al. 2021 (Switch Transformers, eq. 4); Lepikhin et al. 2020 (GShard)

    Args:
      probabilities: `[L, R, T, E]`, from `router_probabilities`.
      load: `[L, E]`, from `expert_load`, of the whole batch.
      weights: `[R, T]`, of the tokens at hand.
      total: the sum of the weights of the whole batch.

    Returns:
      `[L]`.
    """
    shares = constant(load) / jnp.maximum(jnp.sum(constant(load), axis=-1, keepdims=True), 1e-20)
    means = jnp.einsum("lrte,rt->le", as_float(probabilities), constant(weights)) / total
    return probabilities.shape[-1] * jnp.sum(shares * means, axis=-1)


@checked
def sequence_load_balancing(
    probabilities: jax.Array, chosen: jax.Array, member: jax.Array, *, total: jax.Array | float
) -> jax.Array:
    """Load-balancing loss within each sequence, as a mean over sequences.

    Formula: `sum_s E sum_e f_se P_se / total`, `f_se` and `P_se` of the tokens of sequence s
    Paper: DeepSeek-AI 2024 (DeepSeek-V3, eq. 17)

    Args:
      probabilities: `[L, R, T, E]`, from `router_probabilities`.
      chosen: `[L, R, T, K]` int32, the experts of each token.
      member: `[R, S, T]` bool, the tokens of each sequence that lies in a row; a sequence without
        tokens counts nothing.
      total: sequences of the whole batch.

    Returns:
      `[L]`.
    """
    experts, per_token = probabilities.shape[-1], chosen.shape[-1]
    member = as_float(member)
    tokens = jnp.maximum(jnp.sum(member, axis=-1), 1.0)[None, :, :, None]
    shares = jnp.einsum("lrte,rst->lrse", _one_hot(chosen, experts), member) / (per_token * tokens)
    means = jnp.einsum("lrte,rst->lrse", as_float(probabilities), member) / tokens
    return experts * jnp.sum(shares * means, axis=(1, 2, 3)) / total


@checked
def router_z_loss(logits: jax.Array, weights: jax.Array, *, total: jax.Array | float) -> jax.Array:
    """Keeps the logits of routers small, and so their rounding errors.

    Formula: `sum_t w_t (log sum_e exp x_te)^2 / total`
    Paper: Zoph et al. 2022 (ST-MoE, eq. 5)

    Args:
      logits: `[L, R, T, E]` of routers.
      weights: `[R, T]`, of the tokens at hand.
      total: the sum of the weights of the whole batch.

    Returns:
      `[L]`.
    """
    squares = jnp.square(jax.nn.logsumexp(as_float(logits), axis=-1))
    return jnp.einsum("lrt,rt->l", squares, constant(weights)) / total


@checked
def bias_step(load: jax.Array, *, speed: float) -> jax.Array:
    """What is added to the biases that steer the choice of experts: balance without a loss.

    Formula: `u sign(mean_j n_j - n_e)`
    Paper: Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts"

    Args:
      load: `[L, E]`, from `expert_load`, of the whole batch.
      speed: u.

    Returns:
      `[L, E]`.
    """
    load = constant(load)
    return speed * jnp.sign(jnp.mean(load, axis=-1, keepdims=True) - load)


def _one_hot(chosen: jax.Array, num_experts: int) -> jax.Array:
    """`[..., K]` int32 as `[..., E]` float32, 1 at each expert that is chosen."""
    return jnp.sum(jax.nn.one_hot(chosen, num_experts), axis=-2)
