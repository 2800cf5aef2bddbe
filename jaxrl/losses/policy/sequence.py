"""Objectives whose unit of action is the whole sequence.

Calling convention as in `jaxrl.losses.policy.objectives`, with `mask [B, T]` required: a row is
one sequence, and only its action tokens enter the row's ratio. `gspo`, `gspo_token`, `gmpo` and
`ppo_trajectory` put the sequence's loss on every token of its row, and `ppo_turn` that of a turn
on every token of the turn: reduce them with `seq-mean-token-mean`. `topr` and `a_lol` weight
ordinary token losses: reduce with `seq-mean-token-sum` for the paper's form.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.policy.objectives import Objective, clipped_surrogate
from jaxrl.losses.reduce.masking import (
    as_float,
    bounded_exp,
    constant,
    indicator,
    row_mean,
    row_sum,
    token_constant,
    where_valid,
)
from jaxrl.losses.reduce.masking import ratio as importance_ratio
from jaxrl.losses.reduce.shapes import checked

KIND = "policy"


@checked
def sequence_log_ratio(
    logp: jax.Array, behavior_logp: jax.Array, *, mask: jax.Array, mean: bool = False
) -> jax.Array:
    """Log-ratio of whole sequences, over action tokens only.

    Formula: `sum_t m_t (log pi_t - log pi_b,t)`, over `|y|` when `mean`
    Paper: Zheng et al. 2025, "Group Sequence Policy Optimization"

    Args:
      logp, behavior_logp: `[B, T]`; no gradient flows into the latter.
      mask: `[B, T]`.
      mean: divide by the number of action tokens.

    Returns:
      `[B, 1]`.
    """
    reduce = row_mean if mean else row_sum
    return reduce(mask, as_float(logp) - constant(behavior_logp))[:, None]


@checked
def ppo_trajectory(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    mask: jax.Array,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """PPO's clip on the likelihood ratio of the whole trajectory, which is one action.

    Formula: `-min(s A, clip(s) A)`, `s = pi(y) / pi_b(y)`
    Paper: Chen et al. 2025, "Reinforcement Learning for Long-Horizon Interactive LLM Agents" (LOOP
      compares it with the ratios of turns and of tokens)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, 1]` or `[B, T]`, the first one a trajectory.
      mask: `[B, T]`.
      clip_low, clip_high: widths around 1, in units of the trajectory's ratio.

    Returns:
      Loss `[B, T]`, equal along a row for `[B, 1]` advantages; the metrics of `ppo_clip` `[B, T]`.
    """
    log_ratio = sequence_log_ratio(logp, behavior_logp, mask=mask)
    return _clipped(log_ratio, logp.shape, advantages, clip_low, clip_high)


@checked
def ppo_turn(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    mask: jax.Array,
    turn: jax.Array,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """PPO's clip on the likelihood ratio of each turn, which is one action of an episode.

    Formula: `-min(s_k A, clip(s_k) A)`, `s_k = prod_(t in turn k) pi_t / pi_b,t`
    Paper: Chen et al. 2025, "Reinforcement Learning for Long-Horizon Interactive LLM Agents" (LOOP
      compares it with the ratios of trajectories and of tokens)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, 1]` or `[B, T]`.
      mask: `[B, T]`.
      turn: `[B, T]` int32, equal for the tokens of a turn, which follow one another.
      clip_low, clip_high: widths around 1, in units of a turn's ratio.

    Returns:
      Loss `[B, T]`, equal along a turn for equal advantages; the metrics of `ppo_clip` `[B, T]`.
    """
    rows, length = logp.shape
    begins = jnp.pad(turn[:, 1:] != turn[:, :-1], ((0, 0), (1, 0)))
    place = jnp.arange(rows)[:, None], jnp.cumsum(begins, axis=-1)
    moved = where_valid(mask, as_float(logp) - constant(behavior_logp))
    of_turns = jnp.zeros((rows, length), moved.dtype).at[place].add(moved)
    s = bounded_exp(of_turns)[place]
    return clipped_surrogate(s, advantages, clip_low=clip_low, clip_high=clip_high)


@checked
def gspo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    mask: jax.Array,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Objective:
    """GSPO: PPO clip on the length-normalised likelihood ratio of the sequence.

    Formula: `-min(s A, clip(s) A)`, `s = (pi(y) / pi_b(y))^(1 / |y|)`
    Paper: Zheng et al. 2025, "Group Sequence Policy Optimization"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, 1]` or `[B, T]`, the first one a sequence.
      mask: `[B, T]`.
      clip_low, clip_high: widths around 1, in units of the geometric-mean ratio.

    Returns:
      Loss `[B, T]`, equal along a row for `[B, 1]` advantages; the metrics of `ppo_clip` `[B, T]`.
    """
    log_ratio = sequence_log_ratio(logp, behavior_logp, mask=mask, mean=True)
    return _clipped(log_ratio, logp.shape, advantages, clip_low, clip_high)


@checked
def gspo_token(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    mask: jax.Array,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Objective:
    """GSPO-token: the sequence's ratio in value, the token's own gradient, for token advantages.

    Formula: `-min(s_t A_t, clip(s_t) A_t)`, `s_t = sg(s) pi_t / sg(pi_t)`
    Paper: Zheng et al. 2025, "Group Sequence Policy Optimization" (section 4.3)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      mask: `[B, T]`.
      clip_low, clip_high: widths around 1.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` `[B, T]`.
    """
    s = bounded_exp(sequence_log_ratio(logp, behavior_logp, mask=mask, mean=True))
    s = constant(s) * jnp.exp(as_float(logp) - constant(logp))
    return clipped_surrogate(s, advantages, clip_low=clip_low, clip_high=clip_high)


@checked
def gmpo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    mask: jax.Array,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> Objective:
    """GMPO: the geometric mean of token ratios, each clipped in log space on PPO's side.

    Formula: `-A exp(mean_t c_t)`, `c = min(d, clip_high)` if `A > 0`, `max(d, -clip_low)` else
    Paper: Zhao et al. 2025, "Geometric-Mean Policy Optimization"

    Args:
      logp, behavior_logp: `[B, T]`, `d = logp - behavior_logp`.
      advantages: `[B, 1]`: the objective is defined for one advantage a sequence.
      mask: `[B, T]`.
      clip_low, clip_high: widths of the log-ratio (nats), so the ratio is clipped to
        `(e^-clip_low, e^clip_high)`.

    Returns:
      Loss `[B, T]`, equal along a row; metrics `ratio`, `clipped` `[B, T]`.
    """
    if advantages.shape[-1] != 1:
        raise ValueError(f"gmpo needs advantages [B, 1], one a sequence; got {advantages.shape}")
    advantages = token_constant(advantages, logp)
    log_ratio = as_float(logp) - constant(behavior_logp)
    clipped = jnp.where(
        advantages > 0, jnp.minimum(log_ratio, clip_high), jnp.maximum(log_ratio, -clip_low)
    )
    mean_ratio = bounded_exp(row_mean(mask, clipped))[:, None]
    loss = jnp.broadcast_to(-advantages * mean_ratio, logp.shape)
    return loss, {
        "ratio": constant(jnp.broadcast_to(mean_ratio, logp.shape)),
        "clipped": indicator(clipped != log_ratio),
    }


@checked
def topr(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    mask: jax.Array,
    positive_low: float = 1.0,
    positive_high: float = 1.0,
    negative_low: float = 0.0,
    negative_high: float = 1.0,
) -> Objective:
    """TOPR: supervised learning on good sequences, a tapered importance weight on bad ones.

    Formula: `-sg(clip(pi(y) / pi_b(y), low, high)) A log pi_t`, bounds by the sign of `A`
    Paper: Le Roux et al. 2025, "Tapered Off-Policy REINFORCE"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, 1]` or `[B, T]`.
      mask: `[B, T]`.
      positive_low, positive_high: bounds where `A >= 0`; the canonical (1, 1) drops the weight.
      negative_low, negative_high: bounds where `A < 0`; the canonical ones are (0, 1).

    Returns:
      Loss `[B, T]`; metric `weight` `[B, T]`.
    """
    advantages = token_constant(advantages, logp)
    r = constant(bounded_exp(sequence_log_ratio(logp, behavior_logp, mask=mask)))
    weight = jnp.where(
        advantages >= 0,
        jnp.clip(r, positive_low, positive_high),
        jnp.clip(r, negative_low, negative_high),
    )
    weight = jnp.broadcast_to(weight, logp.shape)
    return -weight * advantages * as_float(logp), {"weight": weight}


@checked
def a_lol(
    logp: jax.Array,
    ref_logp: jax.Array,
    advantages: jax.Array,
    *,
    mask: jax.Array,
    clip: float = 0.9,
    level: str = "sequence",
) -> Objective:
    """A-LoL: offline policy gradient on samples better than the reference's value, nothing else.

    The paper's R-LoL is the same with the raw reward as advantage. The width of the clip is the
    authors' code's.

    Formula: `-max(A, 0) sg(clip(pi / pi_ref, 1 - clip, 1 + clip)) log pi_t`
    Paper: Baheti et al. 2024, "Leftover Lunch: Advantage-based Offline RL for Language Models"

    Args:
      logp, ref_logp: `[B, T]`.
      advantages: `[B, 1]`: reward minus the reference policy's value of the prompt.
      mask: `[B, T]`.
      clip: half width of the weight's interval around 1.
      level: `sequence` (A-LoL), `token` (A-LoL seq.) or `none` (A-LoL ref-free, weight 1).

    Returns:
      Loss `[B, T]`; metrics `weight` `[B, T]` and `dropped` (of the advantages' shape).
    """
    match level:
        case "sequence":
            r = bounded_exp(sequence_log_ratio(logp, ref_logp, mask=mask))
        case "token":
            r = importance_ratio(logp, ref_logp)
        case "none":
            r = jnp.ones_like(as_float(logp))
        case _:
            raise ValueError(f"level={level!r} is unknown; choose one of sequence, token, none")
    weight = jnp.broadcast_to(constant(jnp.clip(r, 1.0 - clip, 1.0 + clip)), logp.shape)
    advantages = token_constant(advantages, logp)
    positive_part = jnp.maximum(advantages, 0.0)
    loss = -weight * positive_part * as_float(logp)
    return loss, {"weight": weight, "dropped": indicator(advantages < 0)}


def _clipped(
    log_ratio: jax.Array, shape: tuple[int, ...], advantages: jax.Array, low: float, high: float
) -> Objective:
    """PPO's clip on log-ratios [B, 1] of sequences, for every token of these."""
    ratio = jnp.broadcast_to(bounded_exp(log_ratio), shape)
    return clipped_surrogate(ratio, advantages, clip_low=low, clip_high=high)
