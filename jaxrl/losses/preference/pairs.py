"""Preference losses as objectives of a run: pairs are groups of two rows, best reward first.

Callable as policy objectives. A pair's loss is put on both of its rows, so `seq-mean-token-mean` is
the mean over pairs. Each is a loss of `jaxrl.losses.preference.direct` on the log-probabilities of
whole responses; the rows of a group must be in the same call. Metrics are means over pairs once
they are averaged over the tokens of the call.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.losses.policy.objectives import Objective
from jaxrl.losses.preference import direct
from jaxrl.losses.reduce.masking import as_float, constant, indicator, row_count, row_mean, row_sum
from jaxrl.losses.reduce.shapes import checked

KIND = "preference"


@checked
def pair_dpo(
    logp: jax.Array,
    ref_logp: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Objective:
    """DPO on the pairs of a batch.

    Formula: `dpo(y_w, y_l)` of sums over tokens, see `preference.dpo`
    Paper: Rafailov et al. 2023, "Direct Preference Optimization"

    Args:
      logp, ref_logp: `[B, T]`.
      rewards: `[B]`; the greater of a group is the chosen.
      mask: `[B, T]`; a row without action tokens is in no pair.
      group_ids: `[B]` int32.
      beta, label_smoothing: as in `preference.dpo`.

    Returns:
      Loss `[B, T]`, equal along a row; metrics `margin`, `accuracy` `[B, T]`.
    """

    def loss(chosen: jax.Array, rejected: jax.Array) -> direct.Loss:
        zeros = jnp.zeros_like(chosen)
        settings = {"beta": beta, "label_smoothing": label_smoothing}
        return direct.dpo(chosen, rejected, zeros, zeros, **settings)

    gap = as_float(logp) - constant(ref_logp)
    return _pairs(loss, row_sum(mask, gap), rewards, mask, group_ids)


@checked
def pair_ipo(
    logp: jax.Array,
    ref_logp: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    tau: float = 0.1,
) -> Objective:
    """IPO on the pairs of a batch, with means over tokens as the authors report and TRL computes.

    Formula: `ipo(y_w, y_l)` of means over tokens, see `preference.ipo`
    Paper: Azar et al. 2023, "A General Theoretical Paradigm to Understand Learning from Human
      Preferences"

    Args:
      logp, ref_logp: `[B, T]`.
      rewards: `[B]`; the greater of a group is the chosen.
      mask: `[B, T]`; a row without action tokens is in no pair.
      group_ids: `[B]` int32.
      tau: as in `preference.ipo`.

    Returns:
      As `pair_dpo`.
    """

    def loss(chosen: jax.Array, rejected: jax.Array) -> direct.Loss:
        zeros = jnp.zeros_like(chosen)
        return direct.ipo(chosen, rejected, zeros, zeros, tau=tau)

    gap = as_float(logp) - constant(ref_logp)
    return _pairs(loss, row_mean(mask, gap), rewards, mask, group_ids)


@checked
def pair_orpo(
    logp: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    beta: float = 0.1,
) -> Objective:
    """ORPO on the pairs of a batch; the likelihood is a mean over all tokens of the chosen rows.

    `preference.orpo` takes the mean of each row. TRL takes the mean over all tokens as well, but
    counts those of the prompts among them, which the paper's likelihood of `y` given `x` does not.

    Formula: `mean_(t of y_w) -log pi_t - beta log sigmoid(logit(P_w) - logit(P_l))`,
      `log P = mean_t log pi_t`
    Paper: Hong et al. 2024, "ORPO: Monolithic Preference Optimization without Reference Model"

    Args:
      logp: `[B, T]`.
      rewards: `[B]`; the greater of a group is the chosen.
      mask: `[B, T]`; a row without action tokens is in no pair.
      group_ids: `[B]` int32.
      beta: as in `preference.orpo`.

    Returns:
      As `pair_dpo`, with `likelihood` of the chosen rows' tokens in nats.
    """

    def loss(chosen: jax.Array, rejected: jax.Array) -> direct.Loss:
        loss, metrics = direct.orpo(chosen, rejected, beta=beta)
        return loss + chosen, metrics

    means = row_mean(mask, as_float(logp))
    objective = _pairs(loss, means, rewards, mask, group_ids)
    return _with_likelihood(objective, 1.0, logp, rewards, mask, group_ids)


@checked
def pair_simpo(
    logp: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    beta: float = 2.0,
    gamma: float = 0.5,
) -> Objective:
    """SimPO on the pairs of a batch.

    Formula: `simpo(y_w, y_l)` of means over tokens, see `preference.simpo`
    Paper: Meng et al. 2024, "SimPO: Simple Preference Optimization with a Reference-Free Reward"

    Args:
      logp: `[B, T]`.
      rewards: `[B]`; the greater of a group is the chosen.
      mask: `[B, T]`; a row without action tokens is in no pair.
      group_ids: `[B]` int32.
      beta, gamma: as in `preference.simpo`.

    Returns:
      As `pair_dpo`.
    """

    def loss(chosen: jax.Array, rejected: jax.Array) -> direct.Loss:
        return direct.simpo(chosen, rejected, beta=beta, gamma=gamma)

    return _pairs(loss, row_mean(mask, as_float(logp)), rewards, mask, group_ids)


@checked
def pair_cpo(
    logp: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    beta: float = 0.1,
    alpha: float = 1.0,
) -> Objective:
    """CPO on the pairs of a batch; the likelihood is a mean over all tokens of the chosen rows.

    So it is in TRL; `preference.cpo` takes the sum of each row.

    Formula: `alpha mean_(t of y_w) -log pi_t - log sigmoid(beta (log pi(y_w) - log pi(y_l)))`
    Paper: Xu et al. 2024, "Contrastive Preference Optimization"

    Args:
      logp: `[B, T]`.
      rewards: `[B]`; the greater of a group is the chosen.
      mask: `[B, T]`; a row without action tokens is in no pair.
      group_ids: `[B]` int32.
      beta, alpha: as in `preference.cpo`.

    Returns:
      As `pair_orpo`.
    """

    def loss(chosen: jax.Array, rejected: jax.Array) -> direct.Loss:
        return direct.cpo(chosen, rejected, beta=beta, alpha=0.0)

    objective = _pairs(loss, row_sum(mask, as_float(logp)), rewards, mask, group_ids)
    return _with_likelihood(objective, alpha, logp, rewards, mask, group_ids)


@checked
def ranked_reward(
    logp: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    center: float = 0.0,
) -> Objective:
    """Bradley-Terry on the pairs of a batch, and Plackett-Luce on its longer rankings.

    For a reward model, whose scores take the place of log-probabilities. Answers of equal rewards
    are not compared.

    Formula: `sum_k log(1 + sum_(j: r_j < r_k) exp(s_j - s_k + max(r_k - r_j - 1, 0)))
      + center (sum_k s_k)^2`, over the answers k of a group
    Paper: Bradley & Terry 1952; Plackett 1975; Touvron et al. 2023, "Llama 2" (margin); Eisenstein
      et al. 2023, "Helping or Herding?" (centring)

    Args:
      logp: `[B, T]`, the score of a row at its one action.
      rewards: `[B]`; what two of a group differ by beyond 1 is the margin between them.
      mask: `[B, T]`; a row without action tokens is not compared.
      group_ids: `[B]` int32.
      center: weight of the term that fixes the free constant of the scores.

    Returns:
      Loss `[B, T]`, that of the group on each of its rows; metrics `[B, T]`, equal everywhere, over
      all compared pairs: `accuracy`; `margin`, the mean difference of scores; `calibration_error`,
      expected, of the probability of the order, in 10 bins (Guo et al. 2017).
    """
    scores, rewards = row_sum(mask, as_float(logp)), constant(rewards)
    acts = jnp.any(jnp.asarray(mask, bool), axis=-1)
    together = (group_ids[:, None] == group_ids[None, :]) & acts[:, None] & acts[None, :]
    above = rewards[:, None] - rewards[None, :]
    ahead = together & (above > 0)
    gaps = scores[:, None] - scores[None, :]
    worse = jnp.where(ahead, jnp.maximum(above - 1.0, 0.0) - gaps, -1e30)
    row_losses = jnp.logaddexp(0.0, jax.nn.logsumexp(worse, axis=1))
    compared = jnp.any(ahead | ahead.T, axis=1)
    total = jnp.sum(jnp.where(together, row_losses[None, :], 0.0), axis=1)
    total += center * jnp.square(jnp.sum(jnp.where(together, scores[None, :], 0.0), axis=1))
    pairs = jnp.maximum(jnp.sum(ahead), 1)
    gaps = constant(gaps)
    metrics = {
        "accuracy": jnp.sum(ahead & (gaps > 0)) / pairs,
        "margin": jnp.sum(jnp.where(ahead, gaps, 0.0)) / pairs,
        "calibration_error": _calibration_error(jax.nn.sigmoid(gaps), ahead),
    }
    return _along(jnp.where(compared, total, 0.0), mask), {
        name: jnp.broadcast_to(value, jnp.shape(mask)) for name, value in metrics.items()
    }


def _calibration_error(chances: jax.Array, ahead: jax.Array, bins: int = 10) -> jax.Array:
    """Mean distance of confidence and accuracy over bins of confidence from 1/2 to 1.

    Args:
      chances: `[B, B]`, that a row is better than another.
      ahead: `[B, B]` bool, the pairs in which it is.
      bins: of equal width.
    """
    confidence = jnp.maximum(chances, 1.0 - chances)
    surplus = jnp.where(ahead, confidence - (chances > 0.5), 0.0)
    place = jnp.clip(((confidence - 0.5) * 2 * bins).astype(jnp.int32), 0, bins - 1)
    by_bin = jnp.zeros(bins).at[place].add(surplus)
    return jnp.sum(jnp.abs(by_bin)) / jnp.maximum(jnp.sum(ahead), 1)


@checked
def labelled_kto(
    logp: jax.Array,
    ref_logp: jax.Array,
    rewards: jax.Array,
    kl: jax.Array,
    *,
    mask: jax.Array,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Objective:
    """KTO on rows with a verdict each: a reward above 0 is desirable.

    Callable as a policy objective; `seq-mean-token-mean` is the mean over rows. The extension
    `mismatched` gives `kl`.

    Formula: `kto(y, z)` of sums over tokens, see `preference.kto`
    Paper: Ethayarajh et al. 2024, "KTO: Model Alignment as Prospect Theoretic Optimization"

    Args:
      logp, ref_logp: `[B, T]`.
      rewards: `[B]`.
      kl: `[B]`, the batch's reference point in every entry.
      mask: `[B, T]`.
      beta, desirable_weight, undesirable_weight: as in `preference.kto`.

    Returns:
      Loss `[B, T]`, equal along a row; metric `implicit_reward` `[B, T]`.
    """
    sums = row_sum(mask, as_float(logp)), row_sum(mask, constant(ref_logp))
    loss, metrics = direct.kto(
        *sums,
        constant(rewards) > 0,
        kl,
        beta=beta,
        desirable_weight=desirable_weight,
        undesirable_weight=undesirable_weight,
    )
    return _along(loss, mask), {"implicit_reward": _along(metrics["reward"], mask)}


@checked
def stepwise_reward(logp: jax.Array, turn_rewards: jax.Array) -> Objective:
    """A process reward model's verdict on each step: the cross-entropy of its label.

    Scores take the place of log-probabilities.

    Formula: `-y_k log sigmoid(s_k) - (1 - y_k) log sigmoid(-s_k)`
    Paper: Lightman et al. 2023, "Let's Verify Step by Step"; Uesato et al. 2022, "Solving math word
      problems with process- and outcome-based feedback"

    Args:
      logp: `[B, T]`, the score of the state at the end of each step.
      turn_rewards: `[B, T]`, the label of each step, 1 or 0.

    Returns:
      Loss `[B, T]`; metric `accuracy` `[B, T]`.
    """
    scores, labels = as_float(logp), constant(turn_rewards)
    loss = jax.nn.softplus(scores) - labels * scores
    return loss, {"accuracy": indicator((constant(scores) > 0) == (labels > 0.5))}


def _chosen(
    rewards: jax.Array, mask: jax.Array, group_ids: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Row of the best and of the worst of each row's group, and whether the row is one of them."""
    acts = jnp.any(jnp.asarray(mask, bool), axis=-1)
    together = (group_ids[:, None] == group_ids[None, :]) & acts[:, None] & acts[None, :]
    rewards = constant(rewards)
    best = jnp.argmax(jnp.where(together, rewards[None, :], -jnp.inf), axis=1)
    worst = jnp.argmin(jnp.where(together, rewards[None, :], jnp.inf), axis=1)
    rows = jnp.arange(len(rewards))
    unequal = rewards[best] > rewards[worst]
    return best, worst, acts & unequal & ((rows == best) | (rows == worst))


def _pairs(
    loss: Callable[[jax.Array, jax.Array], direct.Loss],
    rows: jax.Array,
    rewards: jax.Array,
    mask: jax.Array,
    group_ids: jax.Array,
) -> Objective:
    """A loss of the chosen and the rejected rows' values `rows [B]`, on both rows of each pair."""
    best, worst, paired = _chosen(rewards, mask, group_ids)
    per_row, metrics = loss(rows[best], rows[worst])
    means = {"margin": metrics["margin"], "accuracy": metrics["correct"]}
    means = {name: _by_row(jnp.where(paired, x, 0.0), mask, paired) for name, x in means.items()}
    return _along(jnp.where(paired, per_row, 0.0), mask), means


def _with_likelihood(
    objective: Objective,
    weight: float,
    logp: jax.Array,
    rewards: jax.Array,
    mask: jax.Array,
    group_ids: jax.Array,
) -> Objective:
    """With the mean negative log-likelihood of all tokens of the chosen rows added."""
    best, _, paired = _chosen(rewards, mask, group_ids)
    chosen_rows = paired & (best == jnp.arange(len(rewards)))
    tokens = jnp.sum(jnp.where(chosen_rows[:, None], jnp.asarray(mask, bool), False))
    total = jnp.sum(jnp.where(chosen_rows, row_sum(mask, as_float(logp)), 0.0))
    likelihood = -total / jnp.maximum(tokens, 1)
    loss, metrics = objective
    spread = jnp.broadcast_to(likelihood, loss.shape)
    return loss + weight * spread, metrics | {"likelihood": constant(spread)}


def _along(rows: jax.Array, mask: jax.Array) -> jax.Array:
    return jnp.broadcast_to(rows[:, None], jnp.shape(mask))


def _by_row(rows: jax.Array, mask: jax.Array, counted: jax.Array) -> jax.Array:
    """`[B, T]` whose mean over tokens is the mean of `rows [B]` over the `counted [B]`."""
    share = jnp.sum(mask) / (jnp.maximum(jnp.sum(counted), 1) * row_count(mask))
    return _along(constant(rows) * share, mask)
