"""What is minimised: a policy term, a divergence to a reference, an entropy bonus.

Each term is a per-token array from `losses`; `aggregate` reduces it over the denominator of the
whole batch, so micro-batches add up to exactly the loss of the batch.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import functions
from jaxrl.types import Trajectory
from losses import aggregate, masking

_ARRAYS = {
    "logp", "behavior_logp", "ref_logp", "advantages", "mask", "entropy", "rewards", "group_ids",
    "version_gap",
}  # fmt: skip
_REWARD_ARRAYS = {"rewards", "group_ids", "num_groups", "valid", "mask", "lengths"}


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """The objective as functions of `losses`, by name."""

    policy: str = "losses.policy:ppo_clip"
    """Policy objective, as module:function."""
    policy_args: dict[str, float | str] = dataclasses.field(default_factory=dict)
    """Its keyword arguments, e.g. --objective.policy-args.clip_high 0.28."""
    advantage: str = "losses.advantages:group_advantages"
    """Advantage of a sequence from the rewards of the batch, as module:function."""
    advantage_args: dict[str, float | str] = dataclasses.field(default_factory=dict)
    """Its keyword arguments, e.g. --objective.advantage-args.scale none."""
    aggregation: str = "token-mean"
    """How token losses are reduced: see `losses.aggregate`."""
    kl_coef: float = 0.0
    """Weight of the divergence to the reference policy; 0 skips the reference altogether."""
    kl: str = "losses.divergence:k3"
    """Estimator of that divergence, as module:function."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""


@dataclasses.dataclass(frozen=True)
class Whole:
    """What every micro-batch needs to know of the whole batch."""

    advantages: jax.Array
    """[N, 1] float32."""
    mask: jax.Array
    """[N, T] bool: the action tokens that count."""
    denominator: jax.Array
    prompt_tokens: jax.Array
    """[N] float32, action tokens of each group."""


jax.tree_util.register_dataclass(Whole)


def check(config: ObjectiveConfig) -> None:
    """Refuse a config that names what does not exist."""
    functions.resolve(config.policy, config.policy_args, _ARRAYS)
    functions.resolve(config.advantage, config.advantage_args, _REWARD_ARRAYS)
    functions.resolve(config.kl, {}, _ARRAYS)
    if config.aggregation not in aggregate.MODES:
        hint = functions.nearest(config.aggregation, list(aggregate.MODES))
        raise ValueError(f"objective.aggregation={config.aggregation!r} is unknown; {hint}")


def whole_batch(config: ObjectiveConfig, batch: Trajectory, max_new_tokens: int) -> Whole:
    """Advantages and denominators, from all N sequences at once."""
    count = batch.tokens.shape[0]
    mask = batch.action_mask & batch.valid[:, None]
    given = {
        "rewards": batch.rewards,
        "group_ids": batch.group_ids,
        "num_groups": count,
        "valid": batch.valid,
        "mask": mask,
        "lengths": jnp.sum(mask, axis=-1),
    }
    function = functions.resolve(config.advantage, config.advantage_args, set(given))
    advantages = functions.call(function, config.advantage_args, given)
    return Whole(
        advantages=advantages[:, None] if advantages.ndim == 1 else advantages,
        mask=mask,
        denominator=aggregate.denominator(
            mask,
            config.aggregation,
            max_length=max_new_tokens,
            group_ids=batch.group_ids,
            num_groups=count,
        ),
        prompt_tokens=aggregate.prompt_tokens(mask, batch.group_ids, count),
    )


def objective(
    config: ObjectiveConfig,
    batch: Trajectory,
    whole: Whole,
    mask: jax.Array,
    logp: jax.Array,
    entropy: jax.Array,
    ref_logp: jax.Array | None,
    version: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """This micro-batch's share of the loss, and its share of each mean metric.

    Args:
      config: the terms.
      batch: all N sequences.
      whole: from `whole_batch`.
      mask: [N, T] bool, the action tokens of this micro-batch.
      logp: [N, T] under the parameters being trained.
      entropy: [N, T] of the distribution.
      ref_logp: [N, T], or None when the config needs none.
      version: scalar int32, the version of the parameters being trained.

    Returns:
      A scalar whose sum over micro-batches is the loss, and scalars whose sums are token means.
    """
    given = masking.sanitize(
        mask,
        logp=logp,
        behavior_logp=batch.behavior_logp,
        ref_logp=ref_logp,
        entropy=entropy,
        advantages=whole.advantages,
    )
    given |= {
        "mask": mask,
        "rewards": batch.rewards,
        "group_ids": batch.group_ids,
        "version_gap": version - batch.policy_version,
    }

    def reduce(per_token: jax.Array) -> jax.Array:
        return aggregate.aggregate(
            per_token,
            mask,
            config.aggregation,
            whole.denominator,
            group_ids=batch.group_ids,
            prompt_tokens=whole.prompt_tokens,
        )

    tokens = jnp.maximum(jnp.sum(whole.mask), 1)
    function = functions.resolve(config.policy, config.policy_args, set(given))
    per_token, details = functions.call(function, config.policy_args, given)
    loss = reduce(per_token)
    means = {"policy_loss": per_token, "entropy": given["entropy"]} | details
    if config.kl_coef:
        divergence = functions.resolve(config.kl, {}, set(given))
        kl = functions.call(divergence, {}, given)
        loss += config.kl_coef * reduce(kl)
        means["kl"] = kl
    if config.entropy_coef:
        loss -= config.entropy_coef * reduce(given["entropy"])
    gap = jnp.abs(given["logp"] - given["behavior_logp"])
    means["logp_gap"] = gap
    metrics = {
        name: aggregate.masked_mean(jnp.broadcast_to(x, mask.shape), mask, tokens)
        for name, x in means.items()
        if x.shape == mask.shape
    }
    metrics["logp_gap_max"] = jnp.max(jnp.where(mask, gap, 0.0))
    return loss, metrics | {"loss": loss}
