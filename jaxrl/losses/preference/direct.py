"""Losses on comparisons: chosen against rejected responses, or single responses with a verdict.

Inputs are log-probabilities of whole responses, `[N]`: sums over action tokens
(`masking.row_sum`), or means (`masking.row_mean`) where a docstring says so. Reference
log-probabilities carry no gradient. Every function returns `(loss [N], metrics)`, unreduced.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import as_float, constant, indicator, row_constant, row_sum
from jaxrl.losses.reduce.shapes import checked

KIND = "preference"

Loss = tuple[jax.Array, dict[str, jax.Array]]


@checked
def dpo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Loss:
    """DPO: the policy is its own Bradley-Terry reward model; smoothing gives conservative DPO.

    Formula: `-(1 - eps) log sigmoid(beta h) - eps log sigmoid(-beta h)`,
      `h = log(pi(y_w) / pi_ref(y_w)) - log(pi(y_l) / pi_ref(y_l))`
    Paper: Rafailov et al. 2023, "Direct Preference Optimization"; Mitchell 2023, "A Note on DPO
      with Noisy Preferences" (cDPO)

    Args:
      chosen_logp, rejected_logp: `[N]` sums.
      ref_chosen_logp, ref_rejected_logp: `[N]` sums.
      beta: strength of the KL to the reference.
      label_smoothing: probability `eps` that a label is flipped, in `[0, 0.5)`.

    Returns:
      Loss `[N]`; metrics `margin` (of implicit rewards) and `correct` `[N]`.
    """
    margin = beta * _margin(chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp)
    loss = -(1.0 - label_smoothing) * jax.nn.log_sigmoid(margin)
    return loss - label_smoothing * jax.nn.log_sigmoid(-margin), _verdict(margin)


@checked
def robust_dpo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    *,
    beta: float = 0.1,
    flip_rate: float = 0.1,
) -> Loss:
    """Robust DPO: an unbiased estimate of the clean DPO loss from labels flipped at a known rate.

    Formula: `(-(1 - eps) log sigmoid(beta h) + eps log sigmoid(-beta h)) / (1 - 2 eps)`
    Paper: Chowdhury et al. 2024, "Provably Robust DPO: Aligning Language Models with Noisy
      Feedback"

    Args:
      chosen_logp, rejected_logp: `[N]` sums.
      ref_chosen_logp, ref_rejected_logp: `[N]` sums.
      beta: as in `dpo`.
      flip_rate: `eps`, in `[0, 0.5)`.

    Returns:
      Loss `[N]`, not bounded below; metrics `margin`, `correct` `[N]`.
    """
    if not 0.0 <= flip_rate < 0.5:
        raise ValueError(f"flip_rate={flip_rate} must lie in [0, 0.5)")
    margin = beta * _margin(chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp)
    loss = -(1.0 - flip_rate) * jax.nn.log_sigmoid(margin)
    loss = (loss + flip_rate * jax.nn.log_sigmoid(-margin)) / (1.0 - 2.0 * flip_rate)
    return loss, _verdict(margin)


@checked
def ipo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    *,
    tau: float = 0.1,
) -> Loss:
    """IPO: regresses the log-ratio margin onto a finite target instead of pushing it to infinity.

    With sums this is the paper's equation; with means it is the length-normalised form that the
    authors report on (and TRL computes).

    Formula: `(h - 1 / (2 tau))^2`
    Paper: Azar et al. 2023, "A General Theoretical Paradigm to Understand Learning from Human
      Preferences"

    Args:
      chosen_logp, rejected_logp: `[N]` sums or means.
      ref_chosen_logp, ref_rejected_logp: `[N]`, likewise.
      tau: strength of the regularisation.

    Returns:
      Loss `[N]`; metrics `margin`, `correct` `[N]`.
    """
    margin = _margin(chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp)
    return jnp.square(margin - 0.5 / tau), _verdict(margin)


@checked
def kto(
    logp: jax.Array,
    ref_logp: jax.Array,
    desirable: jax.Array,
    kl: jax.Array,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Loss:
    """KTO: prospect-theoretic utility of single responses, against a reference point `kl`.

    Formula: `w_d (1 - sigmoid(beta (d - z)))` if desirable, `w_u (1 - sigmoid(beta (z - d)))` else,
      `d = log(pi(y) / pi_ref(y))`
    Paper: Ethayarajh et al. 2024, "KTO: Model Alignment as Prospect Theoretic Optimization"

    Args:
      logp, ref_logp: `[N]` sums.
      desirable: `[N]` bool.
      kl: scalar `z` from `kto_reference_point`, without gradient.
      beta: as in `dpo`.
      desirable_weight, undesirable_weight: loss aversion.

    Returns:
      Loss `[N]`; metric `reward` `[N]`.
    """
    d = as_float(logp) - constant(ref_logp)
    desirable = jnp.asarray(desirable, bool)
    gain = beta * jnp.where(desirable, d - constant(kl), constant(kl) - d)
    weight = jnp.where(desirable, desirable_weight, undesirable_weight)
    return weight * jax.nn.sigmoid(-gain), {"reward": constant(beta * d)}


@checked
def kto_reference_point(mismatched_logp: jax.Array, mismatched_ref_logp: jax.Array) -> jax.Array:
    """KTO's reference point: the mean log-ratio of responses paired with other prompts.

    Formula: `max(0, mean_i log(pi(y_j | x_i) / pi_ref(y_j | x_i)))`
    Paper: Ethayarajh et al. 2024, "KTO: Model Alignment as Prospect Theoretic Optimization"

    Args:
      mismatched_logp, mismatched_ref_logp: `[N]` sums over response `j` given another's prompt `i`.

    Returns:
      A scalar of the whole batch, without gradient.
    """
    return jnp.maximum(jnp.mean(constant(mismatched_logp) - constant(mismatched_ref_logp)), 0.0)


@checked
def orpo(chosen_logp: jax.Array, rejected_logp: jax.Array, *, beta: float = 0.1) -> Loss:
    """ORPO: supervised fine-tuning with an odds-ratio penalty, no reference policy.

    Formula: `-log P_w - beta log sigmoid(logit(P_w) - logit(P_l))`, `log P = mean_t log pi_t`
    Paper: Hong et al. 2024, "ORPO: Monolithic Preference Optimization without Reference Model"

    Args:
      chosen_logp, rejected_logp: `[N]` means.
      beta: weight of the odds-ratio term (lambda in the paper).

    Returns:
      Loss `[N]`; metrics `margin` (log odds ratio), `correct` `[N]`.
    """
    chosen, rejected = as_float(chosen_logp), as_float(rejected_logp)
    margin = (chosen - _log1mexp(chosen)) - (rejected - _log1mexp(rejected))
    return -chosen - beta * jax.nn.log_sigmoid(margin), _verdict(margin)


@checked
def simpo(
    chosen_logp: jax.Array, rejected_logp: jax.Array, *, beta: float = 2.0, gamma: float = 0.5
) -> Loss:
    """SimPO: the mean log-probability as reward, a target margin, no reference policy.

    Formula: `-log sigmoid(beta (log P_w - log P_l) - gamma)`, `log P = mean_t log pi_t`
    Paper: Meng et al. 2024, "SimPO: Simple Preference Optimization with a Reference-Free Reward"

    Args:
      chosen_logp, rejected_logp: `[N]` means.
      beta: scale of the reward.
      gamma: target margin, in units of the scaled reward.

    Returns:
      Loss `[N]`; metrics `margin` (before gamma), `correct` `[N]`.
    """
    margin = beta * (as_float(chosen_logp) - as_float(rejected_logp))
    return -jax.nn.log_sigmoid(margin - gamma), _verdict(margin)


@checked
def cpo(
    chosen_logp: jax.Array, rejected_logp: jax.Array, *, beta: float = 0.1, alpha: float = 1.0
) -> Loss:
    """CPO: DPO with a uniform reference, held in place by likelihood of the chosen response.

    Formula: `-log sigmoid(beta (log pi(y_w) - log pi(y_l))) - alpha log pi(y_w)`
    Paper: Xu et al. 2024, "Contrastive Preference Optimization"

    Args:
      chosen_logp, rejected_logp: `[N]` sums.
      beta: scale of the margin.
      alpha: weight of the likelihood term; 0 to add it elsewhere (as a token mean, for example).

    Returns:
      Loss `[N]`; metrics `margin`, `correct` `[N]`.
    """
    chosen, rejected = as_float(chosen_logp), as_float(rejected_logp)
    margin = beta * (chosen - rejected)
    return -jax.nn.log_sigmoid(margin) - alpha * chosen, _verdict(margin)


@checked
def bco(
    logp: jax.Array,
    ref_logp: jax.Array,
    desirable: jax.Array,
    *,
    shift: float | jax.Array = 0.0,
    beta: float = 0.1,
) -> Loss:
    """BCO: a binary classifier whose logit is the implicit reward, from single verdicts.

    Formula: `-log sigmoid(s (beta log(pi(y) / pi_ref(y)) - delta))`, `s` = 1 if desirable, else -1
    Paper: Jung et al. 2024, "Binary Classifier Optimization for Large Language Model Alignment"

    Args:
      logp, ref_logp: `[N]` sums.
      desirable: `[N]` bool.
      shift: `delta` from `bco_shift`, usually its moving average.
      beta: as in `dpo`.

    Returns:
      Loss `[N]`; metric `reward` `[N]`, from which the next shift is made.
    """
    reward = beta * (as_float(logp) - constant(ref_logp))
    sign = jnp.where(jnp.asarray(desirable, bool), 1.0, -1.0)
    loss = -jax.nn.log_sigmoid(sign * (reward - constant(shift)))
    return loss, {"reward": constant(reward)}


@checked
def bco_shift(reward: jax.Array, desirable: jax.Array) -> jax.Array:
    """BCO's reward shift: midway between the mean rewards of the two classes.

    TRL's trainer takes the running mean of all rewards pooled instead, which differs where the
    classes are of unequal size. Its loss for a given shift is `bco`.

    Formula: `(mean_desirable r + mean_undesirable r) / 2`
    Paper: Jung et al. 2024, "Binary Classifier Optimization for Large Language Model Alignment"

    Args:
      reward: `[N]` of the whole batch; each class should have a member.
      desirable: `[N]` bool.

    Returns:
      A scalar without gradient.
    """
    good = jnp.asarray(desirable, bool)

    def mean(of: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(of, constant(reward), 0.0)) / jnp.maximum(jnp.sum(of), 1)

    return 0.5 * (mean(good) + mean(~good))


@checked
def slic(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    *,
    target_logp: jax.Array | None = None,
    margin: float = 1.0,
    weight: float = 0.1,
) -> Loss:
    """SLiC: a hinge on the log-probability margin, and likelihood of a target as regulariser.

    Formula: `max(0, margin - log pi(y_w) + log pi(y_l)) - weight log pi(y_ref)`
    Paper: Zhao et al. 2023, "SLiC-HF: Sequence Likelihood Calibration with Human Feedback"

    Args:
      chosen_logp, rejected_logp: `[N]` sums.
      target_logp: `[N]` log-probability of the supervised target; the chosen response if omitted.
      margin: width of the hinge (delta in the paper).
      weight: of the likelihood term (lambda).

    Returns:
      Loss `[N]`; metrics `margin`, `correct` `[N]`.
    """
    gap = as_float(chosen_logp) - as_float(rejected_logp)
    target = as_float(chosen_logp if target_logp is None else target_logp)
    return jnp.maximum(margin - gap, 0.0) - weight * target, _verdict(gap)


@checked
def online_dpo(
    logp: jax.Array,
    ref_logp: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    expert: jax.Array | None = None,
    beta: float = 0.1,
) -> Loss:
    """Online DPO: the best and the worst fresh sample of each prompt are the pair.

    Callable as a policy objective. Half of a pair's loss is put on each of its rows, so
    `seq-mean-token-mean` gives the sum over pairs over the number of rows. A group whose rewards
    are all equal has no pair; of equal rewards the first row is taken.

    Formula: `dpo(y_best, y_worst)`, best and worst by reward within the group
    Paper: Guo et al. 2024, "Direct Language Model Alignment from Online AI Feedback"

    Args:
      logp, ref_logp: `[B, T]`.
      rewards: `[B]`.
      mask: `[B, T]`; a row without action tokens is in no pair.
      group_ids: `[B]` int32; the rows of a group must be in the same call.
      expert: `[B]` bool, rows that an expert wrote, which are in no pair.
      beta: as in `dpo`.

    Returns:
      Loss `[B, T]`, equal along a row; metrics `margin`, `paired` `[B]`.
    """
    acts = jnp.any(jnp.asarray(mask, bool), axis=-1)
    if expert is not None:
        acts &= ~jnp.asarray(expert, bool)
    together = (group_ids[:, None] == group_ids[None, :]) & acts[:, None] & acts[None, :]
    rewards = row_constant(rewards, logp)
    best = jnp.argmax(jnp.where(together, rewards[None, :], -jnp.inf), axis=1)
    worst = jnp.argmin(jnp.where(together, rewards[None, :], jnp.inf), axis=1)
    d = row_sum(mask, as_float(logp) - constant(ref_logp))
    margin = beta * (d[best] - d[worst])
    rows = jnp.arange(d.shape[0])
    paired = acts & (rewards[best] > rewards[worst]) & ((rows == best) | (rows == worst))
    loss = jnp.where(paired, -0.5 * jax.nn.log_sigmoid(margin), 0.0)
    metrics = {"margin": constant(margin), "paired": indicator(paired)}
    return jnp.broadcast_to(loss[:, None], logp.shape), metrics


@checked
def verified_dpo(
    logp: jax.Array,
    ref_logp: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    beta: float = 0.1,
    threshold: float = 0.5,
) -> Loss:
    """VerIPO's preference phase: DPO on pairs that a verifier has made of the rollouts.

    A pair is the longest rollout of a prompt that passed, and the shortest that failed; of equals
    the first.

    Formula: `-log sigmoid(beta (d_w - d_l))`, `d = log(pi(y) / pi_ref(y))`
    Paper: Li et al. 2025, "VerIPO: Cultivating Long Reasoning in Video-LLMs via Verifier-Guided
      Iterative Policy Optimization" (which pair is chosen is our reading)

    Args:
      logp, ref_logp: `[B, T]`; the rows of a group must be in the same call.
      rewards: `[B]`.
      mask: `[B, T]`; rows without action tokens are in no pair.
      group_ids: `[B]` int32.
      beta: as in `dpo`.
      threshold: least reward that passes.

    Returns:
      Loss `[B, T]`, half of a pair's on each of its rows, equal along a row; metric `paired` `[B]`.
    """
    passed = row_constant(rewards, logp) >= threshold
    lengths = jnp.sum(jnp.asarray(mask, bool), axis=-1)
    acts, rows = lengths > 0, jnp.arange(len(lengths))
    together = (group_ids[:, None] == group_ids[None, :]) & acts[:, None] & acts[None, :]
    right, wrong = together & passed[None, :], together & ~passed[None, :]
    best = jnp.argmax(jnp.where(right, lengths[None, :], -1), axis=1)
    worst = jnp.argmin(jnp.where(wrong, lengths[None, :], mask.shape[1] + 1), axis=1)
    d = row_sum(mask, as_float(logp) - constant(ref_logp))
    both = jnp.any(right, axis=1) & jnp.any(wrong, axis=1)
    paired = acts & both & ((rows == best) | (rows == worst))
    loss = jnp.where(paired, -0.5 * jax.nn.log_sigmoid(beta * (d[best] - d[worst])), 0.0)
    return jnp.broadcast_to(loss[:, None], logp.shape), {"paired": indicator(paired)}


def _margin(
    chosen: jax.Array, rejected: jax.Array, ref_chosen: jax.Array, ref_rejected: jax.Array
) -> jax.Array:
    return (as_float(chosen) - constant(ref_chosen)) - (as_float(rejected) - constant(ref_rejected))


def _verdict(margin: jax.Array) -> dict[str, jax.Array]:
    return {"margin": constant(margin), "correct": indicator(margin > 0)}


def _log1mexp(x: jax.Array) -> jax.Array:
    """`log(1 - exp(x))` for `x <= 0`, finite with its gradient at 0 (floored at 1 - 1e-6)."""
    x = jnp.minimum(x, -1e-6)
    # Two branches lose no digits on either side of -log 2; each is safe where it is not selected.
    far = jnp.log1p(-jnp.exp(jnp.minimum(x, -0.5)))
    return jnp.where(x < -0.6931472, far, jnp.log(-jnp.expm1(x)))
