"""Formulas as they were measured, where the recipe has been corrected since.

Plans and results are of these functions, under the names that they then had (`aliases.FORMER`). A
claim that names one says so in `Effect.former`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.data.selection import bandits
from jaxrl.data.selection.bandits import Domains, Ranks
from jaxrl.losses.divergence import f_divergence
from jaxrl.losses.policy import mixed
from jaxrl.losses.policy.objectives import Objective, ppo_clip
from jaxrl.losses.reduce.masking import (
    clean_rewards,
    constant,
    indicator,
    row_constant,
    row_sum,
    where_valid,
)

_LEAST = 0.05  # mean reward that others are measured by, at least


def forward_kl(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """SELF under a KL penalty: `KL(pi_ref || pi)` [N, T], estimated on the policy's own tokens."""
    return f_divergence.sampled(logp, ref_logp, kind="forward_kl")


def grao(
    logp: jax.Array,
    advantages: jax.Array,
    *,
    expert: jax.Array,
    mask: jax.Array,
    group_ids: jax.Array,
    imitation: float = 0.5,
    alignment: float = 0.5,
) -> Objective:
    """`jaxrl.losses.policy.mixed.grao` with an alignment of 1/2 where none is set."""
    rows = {"expert": expert, "mask": mask, "group_ids": group_ids}
    return mixed.grao(logp, advantages, imitation=imitation, alignment=alignment, **rows)


def oorl(
    logp: jax.Array,
    behavior_logp: jax.Array,
    ref_logp: jax.Array,
    advantages: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    weight: float = 1.0,
    beta: float = 0.1,
    equality: float = 1.0,
    threshold: float = 0.5,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """OORL with a preference of each pair of answers, in place of two means, and of weight 1."""
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    acts = jnp.any(jnp.asarray(mask, bool), axis=-1)
    passed = acts & (row_constant(rewards, logp) >= threshold)
    failed = acts & ~passed
    score = beta * row_sum(mask, logp.astype(jnp.float32) - constant(ref_logp))
    same = group_ids[:, None] == group_ids[None, :]

    def count(rows: jax.Array) -> jax.Array:
        return jnp.sum(same & rows[None, :], axis=1).astype(score.dtype)

    equals, others = jnp.maximum(count(passed), 1.0), jnp.maximum(count(failed), 1.0)
    against = same & failed[None, :]
    margins = jnp.where(against, score[:, None] - score[None, :], 0.0)
    losses = jnp.where(against, -jax.nn.log_sigmoid(margins), 0.0)
    preference = jnp.sum(losses, axis=1) / others
    mean = jnp.sum(jnp.where(same & passed[None, :], score[None, :], 0.0), axis=1) / equals
    spread = jnp.square(score - mean)
    loss = jnp.where(passed, count(acts) / equals * (preference + equality * spread), 0.0)
    own = {
        "implicit": constant(score),
        "spread": constant(jnp.where(passed, spread, 0.0)),
        "equivalent": indicator(row_constant(rewards, logp) >= threshold),
    }
    return policy + weight * jnp.broadcast_to(loss[:, None], logp.shape), metrics | own


def dual(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    valid: jax.Array | None = None,
) -> jax.Array:
    """AlphaAlign by the range: -1 [N] for a breach, else the place between least and largest."""
    rewards, valid = clean_rewards(rewards, valid)
    kept = valid & (rewards >= 0)
    least = jax.ops.segment_min(jnp.where(kept, rewards, jnp.inf), group_ids, num_groups)
    most = jax.ops.segment_max(jnp.where(kept, rewards, -jnp.inf), group_ids, num_groups)
    low, span = least[group_ids], (most - least)[group_ids]
    spread = kept & (span > 0)
    graded = jnp.where(spread, (rewards - low) / jnp.where(spread, span, 1.0), 1.0)
    return where_valid(valid, jnp.where(kept, graded, -1.0))


def recap(state: Domains, *, temperature: float = 1.0) -> np.ndarray:
    """RECAP of rewards: `softmax((|late - early| / early + std / mean) / temperature)` [D]."""
    urgency = np.full(len(state.value), np.nan)
    for d, row in enumerate(state.recent):
        seen = row[~np.isnan(row)]
        if len(seen) > 1:
            early, late = seen[: len(seen) // 2].mean(), seen[len(seen) // 2 :].mean()
            change = abs(late - early) / max(abs(early), _LEAST)
            urgency[d] = change + seen.std() / max(abs(seen.mean()), _LEAST)
    most = np.nanmax(urgency) if np.isfinite(urgency).any() else 0.0
    urgency = np.nan_to_num(urgency, nan=most) / temperature
    weights = np.exp(urgency - urgency.max())
    return weights / weights.sum()


def gain(
    ranks: Ranks,
    count: int,
    allowed: np.ndarray,
    accuracy: float,
    concentration: float,
    *,
    width: float,
    speed: float,
    target: float = 0.5,
) -> tuple[Ranks, np.ndarray]:
    """GAIN-RL whose centre follows the change of the angles, and moves back where accuracy falls.

    `centre += speed (tanh(2 (accuracy - target)) + tanh(concentration)) / 2`; see `bandits.gain`.
    """
    if not np.isnan(accuracy):
        change = (np.tanh(2 * (accuracy - target)) + np.tanh(concentration)) / 2
        centre = np.clip(ranks.centre + speed * change, 0, len(ranks.order) - 1)
        ranks = ranks._replace(centre=np.float64(centre))
    return bandits.gaussian(ranks, count, width=width, allowed=allowed)
