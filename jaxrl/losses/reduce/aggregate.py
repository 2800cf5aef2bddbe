"""From per-token losses to one number, with the denominator of the whole batch made explicit.

`aggregate` of a micro-batch divides by the denominator of the *global* batch, so the sum over
micro-batches and devices is the loss of the whole batch, however the rows were split. One row is
one sequence; a row without an action token (padding, a dropped sample) counts nowhere. Where a
split also cuts sequences, take `weights` of the global batch and `weighted_sum` of each part.

| mode                    | loss                                     | denominator                 |
|-------------------------|------------------------------------------|-----------------------------|
| `token-mean`            | sum of all tokens                        | tokens                      |
| `token-sum`             | sum of all tokens                        | 1                           |
| `seq-mean-token-sum`    | sum over sequences of token sums         | sequences                   |
| `seq-mean-token-mean`   | sum over sequences of token means        | sequences                   |
| `seq-mean-token-sum-norm` | sum over sequences of token sums       | sequences x `max_length`    |
| `prompt-mean`           | sum over prompts of their token means    | prompts                     |

`source_weights` are those of `source-mean`, the token mean of the samples plus that of the experts.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import as_float, row_count, where_valid
from jaxrl.losses.reduce.shapes import checked

KIND = "aggregation"

MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
    "prompt-mean",
)


@checked
def denominator(
    mask: jax.Array,
    mode: str,
    *,
    max_length: int | None = None,
    group_ids: jax.Array | None = None,
    num_groups: int | None = None,
) -> jax.Array:
    """The global denominator of a mode; call it on the whole batch, never on a micro-batch.

    Formula: `tokens, 1, sequences, sequences * max_length or prompts`
    Paper: Yu et al. 2025 (DAPO, token-mean); Shao et al. 2024 (GRPO, seq-mean-token-mean);
      Liu et al. 2025 (Dr. GRPO, seq-mean-token-sum-norm); Khatri et al. 2025 (ScaleRL, prompt-mean)

    Args:
      mask: `[B, T]`, nonzero on action tokens, of the global batch.
      mode: one of `MODES`.
      max_length: the completion budget in tokens; needed by `seq-mean-token-sum-norm`.
      group_ids: `[B]` int32 in `[0, num_groups)`, one id a prompt; needed by `prompt-mean`.
      num_groups: static number of ids; needed by `prompt-mean`.

    Returns:
      A float32 scalar, at least 1 (an empty batch has loss 0, not NaN).
    """
    _check(mode, max_length, group_ids, num_groups)
    if mode == "token-sum":
        return jnp.float32(1.0)
    if mode == "token-mean":
        count = jnp.sum(_valid(mask))
    elif mode == "prompt-mean":
        assert group_ids is not None and num_groups is not None
        count = jnp.sum(prompt_tokens(mask, group_ids, num_groups) > 0)
    else:
        count = jnp.sum(jnp.any(_valid(mask), axis=-1))
    scale = max_length if max_length and mode == "seq-mean-token-sum-norm" else 1
    return jnp.maximum(count, 1).astype(float) * scale


@checked
def prompt_tokens(mask: jax.Array, group_ids: jax.Array, num_groups: int) -> jax.Array:
    """Action tokens of every prompt over the whole batch: the inner denominator of `prompt-mean`.

    Formula: `n_g = sum_(i in g) |o_i|`
    Paper: Khatri et al. 2025, "The Art of Scaling Reinforcement Learning Compute for LLMs"

    Args:
      mask: `[B, T]` of the global batch.
      group_ids: `[B]` int32.
      num_groups: static.

    Returns:
      `[num_groups]` float32.
    """
    tokens = jnp.sum(_valid(mask), axis=-1).astype(float)
    return jax.ops.segment_sum(tokens, group_ids, num_groups)


@checked
def aggregate(
    per_token: jax.Array,
    mask: jax.Array,
    mode: str,
    denominator: jax.Array,
    *,
    group_ids: jax.Array | None = None,
    prompt_tokens: jax.Array | None = None,
) -> jax.Array:
    """Sum of the weighted token losses over the global denominator; masked entries cannot leak.

    Formula: `sum_(i,t) w_i m_it l_it / D`, `w_i = 1, 1 / |o_i| or 1 / n_g(i)`
    Paper: Yu et al. 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"

    Args:
      per_token: `[B, T]` losses of whole sequences; masked entries may hold anything.
      mask: `[B, T]`, nonzero where the loss counts.
      mode: one of `MODES`.
      denominator: scalar from `denominator`, of the whole batch.
      group_ids: `[B]` int32; needed by `prompt-mean`.
      prompt_tokens: `[num_groups]` of the whole batch; needed by `prompt-mean`.

    Returns:
      A scalar; the scalars of any split of the rows add up to that of the whole.
    """
    return weighted_sum(per_token, mask, _inner(mask, mode, group_ids, prompt_tokens) / denominator)


@checked
def weights(
    mask: jax.Array,
    mode: str,
    *,
    max_length: int | None = None,
    group_ids: jax.Array | None = None,
    num_groups: int | None = None,
) -> jax.Array:
    """What each token of a sequence weighs in the loss: every mode is a weighted sum over tokens.

    Taken from the global batch, it holds for any part of its tokens, also where the parts cut
    sequences: the `weighted_sum`s of the parts add up to the loss of the whole.

    Formula: `w_i / D`, `w_i = 1, 1 / |o_i| or 1 / n_g(i)`
    Paper: Yu et al. 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"

    Args:
      mask: `[B, T]`, nonzero on action tokens, of the global batch.
      mode, max_length, num_groups: as in `denominator`.
      group_ids: `[B]` int32; needed by `prompt-mean`.

    Returns:
      `[B]` float32.
    """
    divisor = denominator(
        mask, mode, max_length=max_length, group_ids=group_ids, num_groups=num_groups
    )
    inner = None
    if mode == "prompt-mean":
        assert group_ids is not None and num_groups is not None
        inner = prompt_tokens(mask, group_ids, num_groups)
    return _inner(mask, mode, group_ids, inner) / divisor


@checked
def source_weights(mask: jax.Array, expert: jax.Array) -> jax.Array:
    """The weights of `source-mean`: the token mean of the samples plus that of the experts.

    So how much experts count does not depend on how many there are, nor on how long they are.

    Formula: `1 / n_s(i)`, n_s the action tokens of all samples, or of all experts
    Paper: Zhang et al. 2025, "On-Policy RL Meets Off-Policy Experts: Harmonizing Supervised
      Fine-Tuning and Reinforcement Learning via Dynamic Weighting" (CHORD)

    Args:
      mask: `[B, T]`, nonzero on action tokens, of the global batch.
      expert: `[B]` bool.

    Returns:
      `[B]` float32.
    """
    source = jnp.asarray(expert, jnp.int32)
    return _inner(mask, "prompt-mean", source, prompt_tokens(mask, source, 2))


@checked
def weighted_sum(per_token: jax.Array, mask: jax.Array, weights: jax.Array) -> jax.Array:
    """Sum of the token losses, each times its sequence's weight; masked entries cannot leak.

    Formula: `sum_(i,t) w_i m_it l_it`
    Paper: (a weighted sum)

    Args:
      per_token: `[B, T]` losses; masked entries may hold anything.
      mask: `[B, T]`, nonzero where the loss counts.
      weights: `[B]` from `weights`.

    Returns:
      A scalar.
    """
    return jnp.sum(jnp.sum(where_valid(mask, as_float(per_token)), axis=-1) * weights)


def masked_mean(x: jax.Array, mask: jax.Array, denominator: jax.Array | None = None) -> jax.Array:
    """Mean of the valid entries of any shape, or their sum over a given global denominator.

    Formula: `sum(m x) / D`, `D = sum(m)` unless given
    Paper: (a plain mean)

    Args:
      x: any shape.
      mask: same shape, nonzero where `x` counts.
      denominator: scalar; the number of valid entries (at least 1) when omitted.

    Returns:
      A scalar.
    """
    total = jnp.sum(where_valid(mask, as_float(x)))
    if denominator is None:
        denominator = jnp.maximum(jnp.sum(_valid(mask)), 1)
    return total / denominator


def _inner(
    mask: jax.Array, mode: str, group_ids: jax.Array | None, prompt_tokens: jax.Array | None
) -> jax.Array:
    """`[B]`: w_i of a sequence's tokens before the division by the denominator."""
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; choose one of {', '.join(MODES)}")
    if mode == "seq-mean-token-mean":
        return 1.0 / row_count(mask).astype(float)
    if mode == "prompt-mean":
        if group_ids is None or prompt_tokens is None:
            raise ValueError(
                "mode='prompt-mean' needs group_ids [B] and prompt_tokens [num_groups]"
            )
        return 1.0 / jnp.maximum(prompt_tokens, 1.0)[group_ids]
    return jnp.ones(jnp.shape(mask)[0], float)


def _valid(mask: jax.Array) -> jax.Array:
    return jnp.asarray(mask, bool)


def _check(
    mode: str, max_length: int | None, group_ids: jax.Array | None, num_groups: int | None
) -> None:
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; choose one of {', '.join(MODES)}")
    if mode == "seq-mean-token-sum-norm" and not max_length:
        raise ValueError(f"mode={mode!r} needs max_length > 0, got max_length={max_length}")
    if mode == "prompt-mean" and (group_ids is None or num_groups is None):
        raise ValueError(f"mode={mode!r} needs group_ids [B] and the static num_groups")
