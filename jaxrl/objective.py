"""What is minimised: a policy term, a divergence to a reference, an entropy bonus.

Each term is a per-token array from `losses`; `aggregate` reduces it over the denominator of the
whole batch, so micro-batches add up to exactly the loss of the batch. A policy objective that looks
at other sequences of a group is computed on the whole batch at once, see `couples`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import functions
from jaxrl.types import Trajectory
from losses import aggregate, masking

_ARRAYS = {
    "logp", "behavior_logp", "ref_logp", "advantages", "mask", "entropy", "rewards", "group_ids",
    "version_gap", "proximal_logp", "expert", "step",
}  # fmt: skip
_REWARD_ARRAYS = {
    "rewards", "reward_parts", "greedy_rewards", "group_ids", "num_groups", "valid", "mask",
    "lengths", "tokens", "expert", "step", "age",
}  # fmt: skip
_ROW_ARRAYS = _REWARD_ARRAYS | {"advantages"}


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """The objective as functions of `losses`, by name."""

    policy: str = "losses.policy:ppo_clip"
    """Policy objective, as module:function."""
    policy_args: dict[str, float | str] = dataclasses.field(default_factory=dict)
    """Its keyword arguments, e.g. --objective.policy-args.clip_high 0.28."""
    shaping: str = ""
    """What becomes of the rewards of the batch before anything else, as module:function."""
    shaping_args: dict[str, float | str] = dataclasses.field(default_factory=dict)
    """Its keyword arguments."""
    advantage: str = "losses.advantages:group_advantages"
    """Advantage of a sequence from the rewards of the batch, as module:function."""
    advantage_args: dict[str, float | str] = dataclasses.field(default_factory=dict)
    """Its keyword arguments, e.g. --objective.advantage-args.scale none."""
    rows: str = ""
    """Which sequences are trained on once they all have their advantage, as module:function."""
    rows_args: dict[str, float | str] = dataclasses.field(default_factory=dict)
    """Its keyword arguments."""
    aggregation: str = "token-mean"
    """How token losses are reduced: see `losses.aggregate`."""
    kl_coef: float = 0.0
    """Weight of the divergence to the reference policy; 0 skips the reference altogether."""
    kl: str = "losses.divergence:k3"
    """Estimator of that divergence, as module:function."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    skip_zero_advantages: bool = False
    """Compute nothing for sequences of advantage 0: the same update, if each term is a multiple of
    the advantage."""


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
    tokens: jax.Array
    """How many action tokens are computed, over which metrics are means."""


jax.tree_util.register_dataclass(Whole)


def check(config: ObjectiveConfig) -> None:
    """Refuse a config that names what does not exist."""
    functions.resolve(config.policy, config.policy_args, _ARRAYS)
    functions.resolve(config.advantage, config.advantage_args, _REWARD_ARRAYS)
    if config.shaping:
        functions.resolve(config.shaping, config.shaping_args, _REWARD_ARRAYS)
    if config.rows:
        functions.resolve(config.rows, config.rows_args, _ROW_ARRAYS)
    functions.resolve(config.kl, {}, _ARRAYS)
    if config.aggregation not in aggregate.MODES:
        hint = functions.nearest(config.aggregation, list(aggregate.MODES))
        raise ValueError(f"objective.aggregation={config.aggregation!r} is unknown; {hint}")

    if config.skip_zero_advantages and (config.kl_coef or config.entropy_coef):
        raise ValueError(
            "objective.skip_zero_advantages with a kl_coef or entropy_coef would leave those terms "
            "out as well; set it to False, or both coefficients to 0"
        )


def couples(config: ObjectiveConfig) -> bool:
    """Whether a sequence's loss depends on the log-probabilities of others in its group."""
    function = functions.resolve(config.policy, config.policy_args, _ARRAYS)
    return functions.takes(function, "group_ids")


def needs_proximal(config: ObjectiveConfig) -> bool:
    """Whether the policy objective asks for the log-probabilities before the first update."""
    function = functions.resolve(config.policy, config.policy_args, _ARRAYS)
    return functions.takes(function, "proximal_logp")


def needs_reference(config: ObjectiveConfig) -> bool:
    """Whether a term compares with the reference policy."""
    function = functions.resolve(config.policy, config.policy_args, _ARRAYS)
    return bool(config.kl_coef) or functions.requires(function, "ref_logp")


def needs_greedy(config: ObjectiveConfig) -> bool:
    """Whether the advantage asks for the reward of each prompt's greedy answer."""
    function = functions.resolve(config.advantage, config.advantage_args, _REWARD_ARRAYS)
    return functions.takes(function, "greedy_rewards")


def worth_computing(config: ObjectiveConfig, batch: Trajectory, step: int = 0) -> np.ndarray | None:
    """[N] bool, the sequences that the update depends on; None: compute all."""
    if not config.skip_zero_advantages and not config.rows:
        return None
    advantages = _advantages(config, batch, step)
    keep = np.asarray(_rows(config, batch, advantages, step) & batch.valid)
    if config.skip_zero_advantages:
        keep = keep & np.any(np.asarray(advantages) != 0, axis=-1)
    return keep


def whole_batch(
    config: ObjectiveConfig,
    batch: Trajectory,
    max_new_tokens: int,
    computed: jax.Array | bool = True,
    step: jax.Array | int = 0,
) -> Whole:
    """Advantages and denominators, from all N sequences at once.

    Args:
      config: the terms.
      batch: all N sequences.
      max_new_tokens: the completion budget, for aggregation modes that divide by it.
      computed: [N, T] bool, the actions that have a log-probability.
      step: updates done.
    """
    advantages = _advantages(config, batch, step)
    keep = _rows(config, batch, advantages, step) & batch.valid
    mask = batch.action_mask & keep[:, None]
    count = batch.tokens.shape[0]
    return Whole(
        advantages=advantages,
        mask=mask,
        denominator=aggregate.denominator(
            mask,
            config.aggregation,
            max_length=max_new_tokens,
            group_ids=batch.group_ids,
            num_groups=count,
        ),
        prompt_tokens=aggregate.prompt_tokens(mask, batch.group_ids, count),
        tokens=jnp.sum(mask & computed),
    )


def _given(config: ObjectiveConfig, batch: Trajectory, step: jax.Array | int) -> dict[str, Any]:
    """What functions of the whole batch may ask for; rewards are the shaped ones."""
    mask = batch.action_mask & batch.valid[:, None]
    given = {
        "rewards": batch.rewards,
        "group_ids": batch.group_ids,
        "num_groups": batch.tokens.shape[0],
        "valid": batch.valid,
        "mask": mask,
        "lengths": jnp.sum(mask, axis=-1),
        "tokens": batch.tokens,
        "expert": _expert(batch),
        "step": step,
        "age": _age(batch, step),
    }
    for name in ("reward_parts", "greedy_rewards"):
        if (array := getattr(batch, name)) is not None:
            given[name] = array
    if config.shaping:
        function = functions.resolve(config.shaping, config.shaping_args, set(given))
        given["rewards"] = functions.call(function, config.shaping_args, given)
    return given


def _advantages(config: ObjectiveConfig, batch: Trajectory, step: jax.Array | int) -> jax.Array:
    """[N, 1], or [N, T] from a critic or a function that gives each token its own."""
    if batch.advantages is not None:
        return batch.advantages
    given = _given(config, batch, step)
    function = functions.resolve(config.advantage, config.advantage_args, set(given))
    advantages = functions.call(function, config.advantage_args, given)
    return advantages[:, None] if advantages.ndim == 1 else advantages


def _rows(
    config: ObjectiveConfig, batch: Trajectory, advantages: jax.Array, step: jax.Array | int
) -> jax.Array:
    """[N] bool: the sequences that are trained on."""
    if not config.rows:
        return jnp.ones(len(batch.valid), bool)
    given = _given(config, batch, step) | {"advantages": advantages}
    function = functions.resolve(config.rows, config.rows_args, set(given))
    return functions.call(function, config.rows_args, given)


def _age(batch: Trajectory, step: jax.Array | int) -> jax.Array:
    """[N] int32: updates since the first action of each sequence; 0 without actions."""
    return jnp.max(jnp.where(batch.action_mask, step - batch.policy_version, 0), axis=-1)


def _expert(batch: Trajectory) -> jax.Array:
    return jnp.zeros(len(batch.valid), bool) if batch.expert is None else batch.expert


def objective(
    config: ObjectiveConfig,
    batch: Trajectory,
    whole: Whole,
    mask: jax.Array,
    logp: jax.Array,
    entropy: jax.Array,
    ref_logp: jax.Array | None,
    version: jax.Array,
    kl_coef: jax.Array | None = None,
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
      kl_coef: scalar, in place of the config's, where a controller moves it.

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
        proximal_logp=batch.proximal_logp,
    )
    given |= {
        "mask": mask,
        "rewards": batch.rewards,
        "group_ids": batch.group_ids,
        "version_gap": version - batch.policy_version,
        "expert": _expert(batch),
        "step": version,
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

    tokens = jnp.maximum(whole.tokens, 1)
    function = functions.resolve(config.policy, config.policy_args, set(given))
    per_token, details = functions.call(function, config.policy_args, given)
    loss = reduce(per_token)
    means = {"policy_loss": per_token, "entropy": given["entropy"]} | details
    if config.kl_coef:
        divergence = functions.resolve(config.kl, {}, set(given))
        kl = functions.call(divergence, {}, given)
        loss += (config.kl_coef if kl_coef is None else kl_coef) * reduce(kl)
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
