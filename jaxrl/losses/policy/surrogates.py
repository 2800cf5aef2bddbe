"""Token objectives that reshape the ratio's influence: soft gates, weights, one-sided masks.

Calling convention and masking contract as in `jaxrl.losses.policy.objectives`. A `batch_mask`
marks the action tokens of the whole batch, of which a statistic is taken: the other arrays are
then of the whole batch, too.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.policy.objectives import Objective, clipped_surrogate, ppo_clip
from jaxrl.losses.reduce.masking import (
    as_float,
    constant,
    entropy_share,
    indicator,
    row_sum,
    token_constant,
    where_valid,
)
from jaxrl.losses.reduce.masking import ratio as importance_ratio
from jaxrl.losses.reduce.shapes import checked

KIND = "policy"


@checked
def cispo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
) -> Objective:
    """CISPO: clips the importance weight, never the token; every token keeps its gradient.

    Formula: `-sg(clip(r_t, 1 - clip_low, 1 + clip_high)) A_t log pi_t`
    Paper: MiniMax 2025, "MiniMax-M1"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_low: 1 leaves the weight without a lower bound, as in the paper's runs.
      clip_high: the weight is at most `1 + clip_high`, in CISPO and in ScaleRL.

    Returns:
      Loss `[B, T]`; metrics `ratio`, `clipped` `[B, T]`.
    """
    r = constant(importance_ratio(logp, behavior_logp))
    weight = jnp.clip(r, 1.0 - clip_low, 1.0 + clip_high)
    loss = -weight * token_constant(advantages, logp) * as_float(logp)
    return loss, {"ratio": r, "clipped": indicator(weight != r)}


@checked
def sapo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    temperature_positive: float = 1.0,
    temperature_negative: float = 1.05,
) -> Objective:
    """SAPO: a sigmoid gate in place of the clip, steeper for bad actions.

    Formula: `-4 / tau sigmoid(tau (r_t - 1)) A_t`, tau by the sign of `A_t`
    Paper: Gao et al. 2025, "Soft Adaptive Policy Optimization"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      temperature_positive: tau where `A > 0`.
      temperature_negative: tau elsewhere.

    Returns:
      Loss `[B, T]`; metrics `ratio` and `gate` (the gradient's factor on `r A grad log pi`).
    """
    r, advantages = importance_ratio(logp, behavior_logp), token_constant(advantages, logp)
    tau = jnp.where(advantages > 0, temperature_positive, temperature_negative)
    gate = jax.nn.sigmoid(tau * (r - 1.0))
    return -4.0 / tau * gate * advantages, {
        "ratio": constant(r),
        "gate": constant(4.0 * gate * (1.0 - gate)),
    }


@checked
def asymre(logp: jax.Array, advantages: jax.Array, *, delta_v: float = -0.1) -> Objective:
    """AsymRE: off-policy REINFORCE without ratios, the baseline moved below the mean reward.

    A `delta_v < 0` adds supervised learning on every sample, which keeps off-policy updates stable.

    Formula: `-(A_t - delta_v) log pi_t`, `A = r - mean r`
    Paper: Arnal et al. 2025, "Asymmetric REINFORCE for off-Policy Reinforcement Learning"

    Args:
      logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`, group-centred and unscaled.
      delta_v: shift of the baseline, below 0.

    Returns:
      Loss `[B, T]` and no metrics.
    """
    return -(token_constant(advantages, logp) - delta_v) * as_float(logp), {}


@checked
def rec(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    outer_low: float = 0.6,
    outer_high: float = 2.0,
    side: str = "one",
    importance: bool = False,
) -> Objective:
    """REC: REINFORCE with the clip as regulariser, the importance weight optional.

    The clip drops a token's gradient instead of freezing its ratio. `one` drops what PPO drops;
    `two` drops everything outside the interval; `ring` lets tokens beyond the outer bounds, on the
    side that pulls the ratio back, act again.

    Formula: `-w_t M_t A_t log pi_t`, `w = sg(r)` or 1, `M` = inside the clip range
    Paper: Yao et al. 2025, "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_low, clip_high: inner widths around 1.
      outer_low, outer_high: outer widths of `ring`.
      side: `one`, `two`, `ring` or `none`.
      importance: multiply by the ratio.

    Returns:
      Loss `[B, T]`; metrics `ratio`, `clipped` `[B, T]`.
    """
    r, advantages = (
        constant(importance_ratio(logp, behavior_logp)),
        token_constant(advantages, logp),
    )
    above, below = r > 1.0 + clip_high, r < 1.0 - clip_low
    match side:
        case "one":
            keep = ~(above & (advantages > 0)) & ~(below & (advantages < 0))
        case "two":
            keep = ~above & ~below
        case "ring":
            returning = (r <= 1.0 - outer_low) & (advantages >= 0)
            returning |= (r >= 1.0 + outer_high) & (advantages <= 0)
            keep = (~above & ~below) | returning
        case "none":
            keep = jnp.ones_like(above)
        case _:
            raise ValueError(f"side={side!r} is unknown; choose one of one, two, ring, none")
    weight = jnp.where(keep, r if importance else 1.0, 0.0)
    return -weight * advantages * as_float(logp), {"ratio": r, "clipped": indicator(~keep)}


@checked
def red_weight(logp: jax.Array, advantages: jax.Array, *, temperature: float = 1.0) -> Objective:
    """RED-Weight: REINFORCE that trusts good samples exponentially more than bad ones.

    Formula: `-exp(A_t / temperature) A_t log pi_t`
    Paper: Yao et al. 2025, "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm"

    Args:
      logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      temperature: larger is closer to plain REINFORCE.

    Returns:
      Loss `[B, T]`; metric `weight` (of the advantages' shape).
    """
    advantages = token_constant(advantages, logp)
    weight = jnp.exp(jnp.minimum(advantages / temperature, 20.0))
    return -weight * advantages * as_float(logp), {"weight": weight}


@checked
def red_drop(
    logp: jax.Array,
    advantages: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    max_ratio: float = 1.0,
    key: jax.Array | None = None,
) -> Objective:
    """RED-Drop: REINFORCE after dropping the surplus of bad samples in each group.

    A group keeps at most `max_ratio` times as many negative samples as it has positive ones. Which
    of them stay is drawn from `key`; without a key, the first in the batch do.

    Formula: `-K_i A_i log pi_t`, `K_i = 0` for dropped samples
    Paper: Yao et al. 2025, "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm"

    Args:
      logp: `[B, T]`; the rows of a group must be in the same call.
      advantages: `[B, 1]` or `[B, T]`; a sample's sign is that of its mean advantage.
      mask: `[B, T]`.
      group_ids: `[B]` int32.
      max_ratio: negatives kept for each positive.
      key: PRNG key of this update.

    Returns:
      Loss `[B, T]`; metric `kept` `[B]`.
    """
    advantages = jnp.broadcast_to(token_constant(advantages, logp), logp.shape)
    score = row_sum(mask, advantages)
    rows = score.shape[0]
    order = jnp.arange(rows) if key is None else jax.random.permutation(key, rows)
    same = group_ids[:, None] == group_ids[None, :]
    negative, positives = score < 0, jnp.sum(same & (score > 0)[None, :], axis=1)
    earlier = jnp.sum(same & negative[None, :] & (order[None, :] < order[:, None]), axis=1)
    kept_rows = ~negative | (earlier < max_ratio * positives)
    loss = jnp.where(kept_rows[:, None], -advantages * as_float(logp), 0.0)
    return loss, {"kept": indicator(kept_rows)}


@checked
def aepo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    entropy: jax.Array,
    mask: jax.Array,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    alpha: float = 0.4,
) -> Objective:
    """AEPO: past the upper clip a good token keeps a bounded gradient; unsure tokens weigh more.

    Entropies are normalised by the largest of the response, so that no advantage changes its sign.
    The constants and that normalisation are our reading.

    Formula: `-(1 + e_h) / sg(r) r A'` where `A > 0` and `r > 1 + e_h`, `ppo_clip` elsewhere,
      `A' = A (1 + alpha H_t / max_t H)`
    Paper: Dong et al. 2025, "Agentic Entropy-Balanced Policy Optimization" (the clip)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      entropy: `[B, T]` of the distribution each token was drawn from.
      mask: `[B, T]`.
      clip_low, clip_high: widths as in `ppo_clip`.
      alpha: what the least certain token adds to its advantage, as a share; 0 adds nothing.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`.
    """
    weight = 1.0 + alpha * entropy_share(entropy, mask)
    advantages = token_constant(advantages, logp) * weight
    r = importance_ratio(logp, behavior_logp)
    loss, metrics = clipped_surrogate(r, advantages, clip_low=clip_low, clip_high=clip_high)
    beyond = (advantages > 0) & (r > 1.0 + clip_high)
    scale = (1.0 + clip_high) / constant(jnp.where(beyond, r, 1.0))
    return jnp.where(beyond, -scale * r * advantages, loss), metrics


@checked
def clip_cov(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    batch_mask: jax.Array,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    fraction: float = 2e-4,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
    key: jax.Array | None = None,
) -> Objective:
    """Clip-Cov: PPO clip that silences a few tokens whose covariance would collapse the entropy.

    Of the unclipped tokens with covariance inside the band, `max(1, fraction * tokens)` lose their
    loss. They are drawn evenly by `key`; without a key, those of largest covariance do.

    Formula: `ppo_clip` with 0 where selected, `cov_t = (A_t - mean A) (log pi_t - mean log pi)`
    Paper: Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning LMs"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      batch_mask: `[B, T]`, action tokens of the whole batch, which means and share are of.
      clip_low, clip_high: widths as in `ppo_clip`.
      fraction: share of the tokens to silence.
      cov_low, cov_high: the band.
      key: PRNG key of this update.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`, `covariance` and `silenced` `[B, T]`.
    """
    r = importance_ratio(logp, behavior_logp)
    loss, metrics = clipped_surrogate(r, advantages, clip_low=clip_low, clip_high=clip_high)
    cov = token_covariance(logp, advantages, mask=batch_mask)
    clipped = (metrics["clipped_low"] + metrics["clipped_high"]) > 0
    eligible = jnp.asarray(batch_mask, bool) & ~clipped & (cov > cov_low) & (cov < cov_high)
    priority = cov if key is None else jax.random.uniform(key, cov.shape)
    silenced = eligible & _largest(jnp.where(eligible, priority, -jnp.inf), batch_mask, fraction)
    metrics |= {"covariance": cov, "silenced": indicator(silenced)}
    return jnp.where(silenced, 0.0, loss), metrics


@checked
def kl_cov(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    batch_mask: jax.Array,
    fraction: float = 2e-4,
    beta: float = 1.0,
) -> Objective:
    """KL-Cov: no clip; a drift penalty on the tokens of largest covariance.

    The penalty is `|log r|`, as in the authors' code, on `max(1, fraction * tokens)` tokens.

    Formula: `-r_t A_t + beta |log r_t|` where selected, `-r_t A_t` elsewhere
    Paper: Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning LMs"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      batch_mask: `[B, T]`, action tokens of the whole batch, which means and share are of.
      fraction: share of the tokens penalised.
      beta: weight of the penalty.

    Returns:
      Loss `[B, T]`; metrics `ratio`, `covariance`, `penalised` `[B, T]`.
    """
    r = importance_ratio(logp, behavior_logp)
    cov = token_covariance(logp, advantages, mask=batch_mask)
    chosen = _largest(where_valid(batch_mask, cov, -jnp.inf), batch_mask, fraction)
    chosen &= jnp.asarray(batch_mask, bool)
    drift = jnp.abs(as_float(logp) - constant(behavior_logp))
    loss = -r * token_constant(advantages, logp) + jnp.where(chosen, beta * drift, 0.0)
    return loss, {"ratio": constant(r), "covariance": cov, "penalised": indicator(chosen)}


@checked
def token_covariance(logp: jax.Array, advantages: jax.Array, *, mask: jax.Array) -> jax.Array:
    """Each token's share of the covariance of advantage and log-probability: what moves entropy.

    Formula: `(A_t - mean A) (log pi_t - mean log pi)`
    Paper: Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning LMs"

    Args:
      logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      mask: `[B, T]`.

    Returns:
      `[B, T]`, 0 at masked tokens, without gradient.
    """
    count = jnp.maximum(jnp.sum(jnp.asarray(mask, bool)), 1)

    def centred(x: jax.Array) -> jax.Array:
        return x - jnp.sum(where_valid(mask, x)) / count

    advantages = jnp.broadcast_to(token_constant(advantages, logp), logp.shape)
    return where_valid(mask, centred(advantages) * centred(constant(logp)))


@checked
def tea(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    entropy: jax.Array,
    *,
    batch_mask: jax.Array,
    expert: jax.Array | None = None,
    alpha: float = 10.0,
    bound: float = 5.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """TEA: PPO with an entropy bonus on the tokens whose update would cost most entropy.

    The coefficients of a response add up to alpha at most, so the share of a token falls with the
    length. They are constants here; the authors' code lets the gradient flow into them.

    Formula: `ppo_clip - min(alpha softmax_row(cov)_t, bound) H_t`,
      `cov_t = (A_t - mean A) (log pi_t - mean log pi)`
    Paper: Wang et al. 2025, "Light-IF: Endowing LLMs with Generalizable Reasoning via Preview and
      Self-Checking for Complex Instruction Following" (as in the authors' code)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      entropy: `[B, T]` of the distribution; a gradient flows into it.
      batch_mask: `[B, T]`, action tokens of the whole batch, which the means are of.
      expert: `[B]` bool, rows that an expert wrote: they have no bonus, and are in no mean.
      alpha: of the coefficients of a response, their sum.
      bound: of a coefficient.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` and `entropy_weight` `[B, T]`.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    batch_mask = jnp.asarray(batch_mask, bool)
    if expert is not None:
        batch_mask &= ~jnp.asarray(expert, bool)[:, None]
    covariance = token_covariance(logp, advantages, mask=batch_mask)
    share = jax.nn.softmax(where_valid(batch_mask, covariance, -1e30), axis=-1)
    weight = where_valid(batch_mask, jnp.minimum(alpha * share, bound))
    loss = policy - weight * as_float(entropy)
    return loss, metrics | {"entropy_weight": weight}


def _largest(x: jax.Array, mask: jax.Array, fraction: float) -> jax.Array:
    """Marks the `max(1, fraction * valid tokens)` largest entries of `x`."""
    count = jnp.maximum((fraction * jnp.sum(jnp.asarray(mask, bool))).astype(jnp.int32), 1)
    rank = jnp.argsort(jnp.argsort(-x, axis=None)).reshape(x.shape)
    return rank < count
