"""Terms beside the objective: entropy, logit scale, length, calibration, sparsity of gates.

Entropies and the z-loss are per token, in nats; length and confidence terms are per sequence and
shape rewards.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import as_float, constant, expectation, where_valid
from jaxrl.losses.reduce.shapes import checked

KIND = "regulariser"


@checked
def entropy(logits: jax.Array) -> jax.Array:
    """Exact entropy of the next-token distribution.

    Formula: `-sum_v pi(v) log pi(v)`
    Paper: Williams & Peng 1991, "Function optimization using connectionist RL algorithms"

    Args:
      logits: `[..., V]`; tokens at -inf count nothing.

    Returns:
      `[...]` nats.
    """
    logp = jax.nn.log_softmax(as_float(logits), axis=-1)
    return -expectation(logp, logp)


@checked
def entropy_chunked(hidden: jax.Array, kernel: jax.Array, *, chunk_size: int = 256) -> jax.Array:
    """`entropy(hidden @ kernel)` with the logits of only `chunk_size` tokens alive at a time.

    The backward pass recomputes each chunk, so the memory is that of one chunk in both passes.

    Formula: `-sum_v pi(v) log pi(v)`, `pi = softmax(h W)`
    Paper: (an implementation of `entropy`)

    Args:
      hidden: `[..., D]`.
      kernel: `[D, V]`.
      chunk_size: tokens per chunk.

    Returns:
      `[...]` nats.
    """

    @jax.checkpoint
    def entropy_of(h: jax.Array) -> jax.Array:
        return entropy(jnp.dot(h, kernel, preferred_element_type=jnp.float32))

    flat = hidden.reshape(-1, hidden.shape[-1])
    return jax.lax.map(entropy_of, flat, batch_size=chunk_size).reshape(hidden.shape[:-1])


@checked
def high_entropy_mask(entropy: jax.Array, *, mask: jax.Array, fraction: float = 0.2) -> jax.Array:
    """Marks the tokens at which the policy hesitates most: the forks worth training on.

    Formula: `m_t and H_t >= quantile(H, 1 - fraction)` over the tokens of the call
    Paper: Wang et al. 2025, "Beyond the 80/20 Rule"

    Args:
      entropy: `[B, T]` nats.
      mask: `[B, T]`.
      fraction: share of the tokens kept.

    Returns:
      `[B, T]` bool.
    """
    entropy = where_valid(mask, constant(entropy), jnp.nan)
    return entropy >= jnp.nanquantile(entropy, 1.0 - fraction)


@checked
def z_loss(logits: jax.Array) -> jax.Array:
    """Keeps the softmax normaliser near 1, so that logits do not drift.

    Formula: `(log sum_v exp z_v)^2`
    Paper: Chowdhery et al. 2022, "PaLM: Scaling Language Modeling with Pathways"

    Args:
      logits: `[..., V]`.

    Returns:
      `[...]`.
    """
    return jnp.square(jax.nn.logsumexp(as_float(logits), axis=-1))


@checked
def overlong_penalty(lengths: jax.Array, *, max_length: int, buffer: int) -> jax.Array:
    """DAPO's soft overlong punishment, to be added to the reward.

    Formula: `0` up to `L - c`, `(L - c - n) / c` up to `L`, `-1` beyond
    Paper: Yu et al. 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"

    Args:
      lengths: `[N]` tokens.
      max_length: `L`.
      buffer: `c`, above 0.

    Returns:
      `[N]` in `[-1, 0]`.
    """
    return jnp.clip((max_length - buffer - as_float(lengths)) / buffer, -1.0, 0.0)


@checked
def relative_length_reward(
    rewards: jax.Array,
    lengths: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    valid: jax.Array | None = None,
    threshold: float = 0.5,
) -> jax.Array:
    """Kimi k1.5's length reward: among a prompt's samples, shorter is better if it is correct.

    Formula: `u = 1/2 - (n - n_min) / (n_max - n_min)`; `u` if correct, `min(0, u)` else; 0 if all
      lengths of the group are equal
    Paper: Kimi Team 2025, "Kimi k1.5: Scaling Reinforcement Learning with LLMs"

    Args:
      rewards: `[N]`; correct means at least `threshold`.
      lengths: `[N]` tokens.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      num_groups: static.
      valid: `[N]` bool; the others are compared with none and get 0. None: all are.
      threshold: least reward that counts as correct.

    Returns:
      `[N]` in `[-1/2, 1/2]`, to be weighted and added to the reward.
    """
    lengths = as_float(lengths)
    valid = jnp.ones(lengths.shape, bool) if valid is None else valid
    most = jnp.where(valid, lengths, -jnp.inf)
    least = jnp.where(valid, lengths, jnp.inf)
    longest = jax.ops.segment_max(most, group_ids, num_groups)[group_ids]
    shortest = jax.ops.segment_min(least, group_ids, num_groups)[group_ids]
    spread = longest - shortest
    differ = (spread > 0) & valid
    u = 0.5 - (lengths - shortest) / jnp.where(differ, spread, 1.0)
    u = jnp.where(rewards >= threshold, u, jnp.minimum(u, 0.0))
    return jnp.where(differ, u, 0.0)


@checked
def target_length_penalty(
    lengths: jax.Array, target: jax.Array, *, weight: float = 3e-4
) -> jax.Array:
    """L1's length control: the reward falls with the distance from the length asked for.

    Formula: `-weight |n - n_target|`
    Paper: Aggarwal & Welleck 2025, "L1: Controlling How Long A Reasoning Model Thinks" (LCPO)

    Args:
      lengths: `[N]` tokens.
      target: scalar or `[N]`, in tokens.
      weight: reward per token.

    Returns:
      `[N]`, nonpositive.
    """
    return -weight * jnp.abs(as_float(lengths) - target)


@checked
def loop_onset(
    tokens: jax.Array, mask: jax.Array, *, period: int = 4, repeats: int = 3
) -> jax.Array:
    """How early a response begins to go round in circles: 1 at once, 0 never.

    A loop is a block of up to `period` tokens written `repeats` times in a row; it begins where its
    first block does. That definition is our reading.

    Formula: `1 - onset / |o|`, 0 without a loop
    Paper: MiroMind 2025, "MiroMind-M1" (CAMPO's repetition score, equation 6)

    Args:
      tokens: `[N, T]` int32.
      mask: `[N, T]`, the response: one run of tokens a row.
      period: longest block.
      repeats: how often it must come, 2 or more.

    Returns:
      `[N]` in `[0, 1]`.
    """
    mask = jnp.asarray(mask, bool)
    place = jnp.arange(tokens.shape[1])
    first = jnp.min(jnp.where(mask, place, tokens.shape[1]), axis=1)
    onset = jnp.full(len(tokens), tokens.shape[1])
    for p in range(1, period + 1):
        same = (tokens[:, p:] == tokens[:, :-p]) & mask[:, p:] & mask[:, :-p]
        needed = p * (repeats - 1)
        total = jnp.pad(jnp.cumsum(same, axis=1), ((0, 0), (1, 0)))
        looped = total[:, needed:] - total[:, :-needed] == needed
        start = jnp.where(looped, place[: looped.shape[1]], tokens.shape[1])
        onset = jnp.minimum(onset, jnp.min(start, axis=1, initial=tokens.shape[1]))
    length = jnp.maximum(jnp.sum(mask, axis=1), 1)
    return jnp.where(onset < tokens.shape[1], 1.0 - (onset - first) / length, 0.0)


@checked
def brier(confidence: jax.Array, correct: jax.Array) -> jax.Array:
    """Brier score of a stated confidence: proper and bounded. Smaller is better.

    Formula: `(q - 1[correct])^2`
    Paper: Brier 1950, "Verification of forecasts expressed in terms of probability"

    Args:
      confidence: `[...]` in `[0, 1]`.
      correct: `[...]` 0/1.

    Returns:
      `[...]` in `[0, 1]`.
    """
    return jnp.square(as_float(confidence) - constant(correct))


@checked
def calibrated_reward(correct: jax.Array, confidence: jax.Array) -> jax.Array:
    """RLCR's reward: right answers, stated with the right confidence.

    Formula: `1[correct] - (q - 1[correct])^2`
    Paper: Damani et al. 2025, "Beyond Binary Rewards: Training LMs to Reason About Their
      Uncertainty" (RLCR)

    Args:
      correct: `[...]` 0/1.
      confidence: `[...]` in `[0, 1]`.

    Returns:
      `[...]` in `[-1, 1]`.
    """
    return as_float(correct) - brier(confidence, correct)


@checked
def adaptive_sparsity(gates: jax.Array, rewards: jax.Array, *, threshold: float = 0.5) -> jax.Array:
    """RLKV's penalty on gates: none while rewards are low, and the higher they are, the more.

    The rewards of a batch set its weight, through which no gradient flows.

    Formula: `1[r > tau] (exp(r) - 1) mean |alpha|`, `r` the mean reward
    Paper: Du et al. 2025, "Which Heads Matter for Reasoning? RL-Guided KV Cache Compression"

    Args:
      gates: `[...]`, alpha.
      rewards: `[B]` of the batch.
      threshold: tau.

    Returns:
      A scalar, to be weighted by a coefficient; the authors' is 1e-3.
    """
    reward = constant(jnp.mean(as_float(rewards)))
    weight = jnp.where(reward > threshold, jnp.expm1(reward), 0.0)
    return weight * jnp.mean(jnp.abs(as_float(gates)))
