"""Networks of sequences: a decision transformer, and a gated recurrent unit.

The transformer is the language models' decoder over embedded returns, states and actions. The
decoder looks its input up in an embedding table. Here the table of a batch is the batch's own
embedded moments, and each token is its own index in it, so the decoder serves as it is.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.models.control import mlp
from jaxrl.models.control.mlp import Params
from jaxrl.models.linear import precision


def shape(width: int, layers: int, heads: int) -> DecoderConfig:
    """A small decoder; its vocabulary is the batch, see above."""
    return DecoderConfig(
        vocab_size=1,
        hidden_size=width,
        intermediate_size=4 * width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
    )


def init(config: DecoderConfig, key: jax.Array, observation: int, action: int) -> Params:
    """Fresh parameters: the decoder's, a linear embedding of each kind of token, and a head."""
    inner, *keys = jax.random.split(key, 5)
    sizes = {"return": 1, "observation": observation, "action": action}
    embed = {
        name: mlp.init(k, (size, config.hidden_size))
        for k, (name, size) in zip(keys, sizes.items(), strict=False)
    }
    head = mlp.init(keys[3], (config.hidden_size, action), last=0.01)
    return {"decoder": decoder.init(config, inner), "embed": embed, "head": head}


def actions(
    config: DecoderConfig,
    params: Params,
    returns_to_go: jax.Array,
    observations: jax.Array,
    past_actions: jax.Array,
    clock: jax.Array,
) -> jax.Array:
    """The action at each moment, from all moments up to its observation.

    Tokens are ordered return, observation, action; positions are rotary and count the episode's
    tokens (Chen et al. 2021 learn an embedding of the step instead).

    Args:
      config: from `shape`.
      params: from `init`.
      returns_to_go: [B, K], at a scale near 1.
      observations: [B, K, O].
      past_actions: [B, K, A]; a moment's own action does not reach its prediction.
      clock: [B, K] int32 step in the episode, -1 at moments that are none.

    Returns:
      [B, K, A] in (-1, 1).
    """
    batch, length = clock.shape
    parts = {
        "return": returns_to_go[..., None],
        "observation": observations,
        "action": past_actions,
    }
    embedded = [mlp.apply(params["embed"][name], x) for name, x in parts.items()]
    table = jnp.stack(embedded, axis=2).reshape(-1, config.hidden_size)
    tokens = jnp.arange(len(table)).reshape(batch, 3 * length)
    valid = jnp.repeat(clock >= 0, 3, axis=1)
    positions = (3 * jnp.maximum(clock, 0)[..., None] + jnp.arange(3)).reshape(batch, -1)
    visible_until = jnp.where(valid, 3 * length, 0)
    decoder_params = params["decoder"] | {"embed": table}
    hidden = decoder.hidden(config, decoder_params, tokens, positions, visible_until)
    return jnp.tanh(mlp.apply(params["head"], hidden[:, 1::3]))


def gru_init(key: jax.Array, inputs: int, size: int, *, orthogonal: bool) -> Params:
    """A gated recurrent unit (Cho et al. 2014), in the form of cuDNN and PyTorch.

    Formula: `r, z = sigmoid(x W_rz + b_rz + h U_rz)`, `n = tanh(x W_n + b_n + r (h U_n + c))`,
    `h' = (1 - z) n + z h`. The gates r, z and n lie side by side.

    Args:
      key: of the draw.
      inputs: I, of x.
      size: H, of h.
      orthogonal: the matrix of every gate orthogonal and biases 0; otherwise all is uniform in
        +-1 / sqrt(H), as PyTorch has it.

    Returns:
      fp32 `input` [I, 3 H], `bias` [3 H], `state` [H, 3 H] and `state_bias` [H], which is c.
    """
    keys, bound = jax.random.split(key, 8), size**-0.5
    shapes = {"input": (inputs, 3 * size), "bias": (3 * size,), "state": (size, 3 * size)}
    shapes["state_bias"] = (size,)
    if not orthogonal:
        return {
            name: jax.random.uniform(k, shape, minval=-bound, maxval=bound)
            for k, (name, shape) in zip(keys, shapes.items(), strict=False)
        }
    turn = jax.nn.initializers.orthogonal()
    gates = lambda keys, rows: jnp.concatenate([turn(k, (rows, size)) for k in keys], axis=1)  # noqa: E731
    biases = {name: jnp.zeros(shapes[name]) for name in ("bias", "state_bias")}
    return {"input": gates(keys[2:5], inputs), "state": gates(keys[5:], size), **biases}


def gru_inputs(params: Params, x: jax.Array) -> jax.Array:
    """What the gates read of `x` [..., I]: [..., 3 H]."""
    return jnp.matmul(x, params["input"], precision=precision(x.dtype)) + params["bias"]


def gru(params: Params, state: jax.Array, inputs: jax.Array) -> jax.Array:
    """The state [..., H] after one step, from the one before and `inputs` of `gru_inputs`."""
    past = jnp.matmul(state, params["state"], precision=precision(state.dtype))
    of_gates, of_new = jnp.split(inputs, [2 * state.shape[-1]], axis=-1)
    past_gates, past_new = jnp.split(past, [2 * state.shape[-1]], axis=-1)
    reset, update = jnp.split(jax.nn.sigmoid(of_gates + past_gates), 2, axis=-1)
    new = jnp.tanh(of_new + reset * (past_new + params["state_bias"]))
    return (1.0 - update) * new + update * state
