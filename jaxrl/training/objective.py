"""The loss: a policy term, a KL penalty to a reference policy, and an entropy bonus.

Each term is a per-token array from `losses`, reduced with weights of the whole batch, so that
micro-batches add up to exactly the loss of the batch. The arguments of a function determine its
`scope`. A function of single tokens is computed on the tokens of a micro-batch; a function of whole
sequences, or of the batch, on arrays [N, T].
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import functions
from jaxrl.losses.reduce import aggregate, masking
from jaxrl.losses.reduce.parts import part_weights
from jaxrl.training import turns
from jaxrl.types import Array, Trajectory

ARRAYS = {
    "logp", "behavior_logp", "ref_logp", "advantages", "mask", "batch_mask", "entropy", "rewards",
    "group_ids", "lag", "proximal_logp", "expert", "step", "key",
}  # fmt: skip
REWARD_ARRAYS = {
    "rewards", "reward_parts", "greedy_rewards", "group_ids", "num_groups", "valid", "mask",
    "lengths", "tokens", "expert", "step", "age", "stopped",
}  # fmt: skip
ROW_ARRAYS = REWARD_ARRAYS | {"advantages"}
SOURCE_MEAN = "source-mean"


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """The objective: functions of `jaxrl.losses` by name (`jaxrl losses`), or `module:function`."""

    policy: str = "ppo_clip"
    """Policy objective, such as `ppo_clip`, or module:function."""
    policy_args: dict[str, float | str] = dataclasses.field(default_factory=dict)
    """Its keyword arguments, e.g. --objective.policy-args.clip_high 0.28."""
    shaping: str = ""
    """Reward shaping, applied before advantages are computed, also those of a critic; empty: none.
    By turns, what it changes is in the last turn of agent 0."""
    shaping_args: dict[str, float | str] = dataclasses.field(default_factory=dict)
    """Its keyword arguments."""
    advantage: str = "group_advantages"
    """Advantage estimator: rewards of the batch to advantages."""
    advantage_args: dict[str, float | str] = dataclasses.field(default_factory=dict)
    """Its keyword arguments, e.g. --objective.advantage-args.scale none."""
    rows: str = ""
    """Filter of the sequences with a reward, applied after advantages are computed; empty keeps
    all."""
    rows_args: dict[str, float | str] = dataclasses.field(default_factory=dict)
    """Its keyword arguments."""
    aggregation: str = "token-mean"
    """How per-token losses are reduced to a scalar; modes are in `jaxrl.losses.reduce.aggregate`.
    `source-mean` adds the token mean of the samples and that of the experts."""
    kl_coef: float = 0.0
    """Weight of the KL penalty to the reference policy; 0 computes no reference."""
    kl: str = "k3"
    """KL estimator, such as `k1`, `k2` or `k3`."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    skip_zero_advantages: bool = False
    """Skip the computation for sequences whose advantage is 0. The update is the same if every term
    is a multiple of the advantage; where an extension moves the entropy coefficient, none is
    skipped."""


@dataclasses.dataclass(frozen=True)
class BatchStatistics:
    """Statistics of the whole batch that every micro-batch needs."""

    advantages: jax.Array
    """[N, 1] or [N, T] float32."""
    mask: jax.Array
    """[N, T] bool: the action tokens that count and are computed."""
    weights: jax.Array
    """[N] float32: what a token of each sequence weighs in the loss."""
    tokens: jax.Array
    """Number of action tokens that are computed; metrics are means over them."""


jax.tree_util.register_dataclass(BatchStatistics)


Scope = Literal["token", "sequence", "batch"]


def scope(config: ObjectiveConfig) -> Scope:
    """What a token's loss depends on, from the arguments of its functions.

    `batch`: they name `batch_mask` or `group_ids`, so the loss depends on the log-probabilities of
    other sequences. `sequence`: they name `mask`, for sums along a sequence, or `key`, for draws of
    the shape [N, T]. `token`: neither, so each token's loss depends on that token alone.
    """
    functions_used = _per_token(config)

    def ask(*names: str) -> bool:
        return any(functions.takes(f, name) for f in functions_used for name in names)

    if ask("batch_mask", "group_ids"):
        return "batch"
    return "sequence" if ask("mask", "key") else "token"


def _per_token(config: ObjectiveConfig) -> list[Callable[..., Any]]:
    """The policy objective, and the estimator of the KL penalty where there is one."""
    names = [config.policy, config.kl] if config.kl_coef else [config.policy]
    return [functions.lookup(name) for name in names]


def needs_proximal(config: ObjectiveConfig) -> bool:
    """Whether the policy objective takes the log-probabilities before the first update."""
    function = functions.lookup(config.policy)
    return functions.takes(function, "proximal_logp")


def needs_behavior(config: ObjectiveConfig) -> bool:
    """Whether a term takes the log-probabilities that tokens were sampled with."""
    return any(functions.takes(function, "behavior_logp") for function in _per_token(config))


def needs_reference(config: ObjectiveConfig) -> bool:
    """Whether a term compares with the reference policy.

    A policy objective that may do without one, such as `grpo`, compares where its `beta` is not 0.
    """
    function = functions.lookup(config.policy)
    weighed = functions.takes(function, "ref_logp") and config.policy_args.get("beta")
    return bool(config.kl_coef or weighed or functions.requires(function, "ref_logp"))


def needs_greedy(config: ObjectiveConfig) -> bool:
    """Whether the advantage, or the filter of sequences, asks for the reward of each prompt's
    greedy answer."""
    references = filter(None, (config.advantage, config.rows))
    return any(functions.takes(functions.lookup(r), "greedy_rewards") for r in references)


def parts_weighed(config: ObjectiveConfig) -> tuple[str, ...]:
    """Names of the parts of a reward that `advantage_args.weights`, or `parts` of the shaping, has,
    in order.

    Empty: it names none, and functions get all parts.

    Raises:
      ValueError: both name parts.
    """
    takes_parts = functions.takes(functions.lookup(config.advantage), "reward_parts")
    weights = str(config.advantage_args.get("weights", ""))
    of_advantage = tuple(part_weights(weights)) if takes_parts and "=" in weights else ()
    parts = ""
    if config.shaping:
        parameter = inspect.signature(functions.lookup(config.shaping)).parameters.get("parts")
        parts = str(config.shaping_args.get("parts", parameter.default if parameter else ""))
    if of_advantage and parts:
        raise ValueError(
            f"objective.advantage_args.weights={weights!r} and objective.shaping_args.parts="
            f"{parts!r} both choose parts of the reward; leave one of them out"
        )
    return of_advantage or tuple(sorted(filter(None, parts.split(","))))


def worth_computing(
    config: ObjectiveConfig,
    batch: Trajectory,
    step: int = 0,
    coefficients: Collection[str] = (),
) -> Array | None:
    """The sequences that the update depends on.

    Args:
      config: the terms.
      batch: all N sequences.
      step: updates done.
      coefficients: names of those that an extension moves. Sequences of zero advantage are computed
        where `entropy_coef` is one of them, as an entropy bonus depends on them.

    Returns:
      [N] bool; None: compute all.
    """
    skip = config.skip_zero_advantages and "entropy_coef" not in coefficients
    if not skip and not config.rows:
        return batch.trained
    advantages = _advantages(config, batch, step)
    keep = np.asarray(_rows(config, batch, advantages, step) & batch.learned)
    if skip:
        # what has no reward has no advantage either, and is trained on for another reason
        keep = keep & (np.any(np.asarray(advantages) != 0, axis=-1) | ~np.asarray(batch.valid))
    return keep


def whole_batch(
    config: ObjectiveConfig,
    batch: Trajectory,
    max_new_tokens: int,
    computed: Array | bool = True,
    step: jax.Array | int = 0,
) -> BatchStatistics:
    """Advantages and weights, from all N sequences at once.

    Args:
      config: the terms.
      batch: all N sequences, their groups numbered below N.
      max_new_tokens: the completion budget, for aggregation modes that divide by it.
      computed: [N, T] or [N, 1] bool, the actions that have a log-probability.
      step: updates done.
    """
    advantages = _advantages(config, batch, step)
    keep = _rows(config, batch, advantages, step) & batch.learned
    mask = keep[:, None] & batch.action_mask
    if config.aggregation == SOURCE_MEAN:
        weights = aggregate.source_weights(mask, _expert(batch))
    else:
        weights = aggregate.weights(
            mask,
            config.aggregation,
            max_length=max_new_tokens,
            group_ids=jnp.asarray(batch.group_ids),
            num_groups=batch.tokens.shape[0],
        )
    mask = mask & computed
    return BatchStatistics(advantages, mask, weights, tokens=jnp.sum(mask))


def gather_actions(tree: Any, sequence: jax.Array, time: jax.Array) -> Any:
    """Arrays of N sequences at S actions, each in a row of its own: what looks at tokens alone.

    Args:
      tree: of arrays [N], [N, 1] or [N, T], and of scalars, which stay.
      sequence: [S] int32, n of each action; -1 where there is none, which gives what is at 0.
      time: [S] int32, its t.

    Returns:
      The tree with arrays [S], and [S, 1] of those that had two axes.
    """
    row = jnp.maximum(sequence, 0)

    def pick(x: jax.Array) -> jax.Array:
        if x.ndim < 2:
            return x[row] if x.ndim else x
        return x[row, jnp.minimum(time, x.shape[1] - 1)][:, None]

    return jax.tree.map(pick, tree)


def shaped(config: ObjectiveConfig, batch: Trajectory, step: jax.Array | int) -> Trajectory:
    """The batch with the rewards that advantages are made from.

    Args:
      config: the terms.
      batch: all N sequences.
      step: updates done.
    """
    if not config.shaping:
        return batch
    arguments = _of_rewards(batch, step)
    function = functions.resolve(config.shaping, config.shaping_args, set(arguments))
    rewards = functions.call(function, config.shaping_args, arguments)
    extra = batch.extra
    if "turn_rewards" in extra:
        extra = turns.with_more(extra, arguments["mask"], rewards - batch.rewards)
    return batch.replace(rewards=rewards, extra=extra)


def _of_rewards(batch: Trajectory, step: jax.Array | int) -> dict[str, Any]:
    """The arrays of `REWARD_ARRAYS` that the batch has."""
    mask = batch.action_mask & batch.valid[:, None]
    arguments = {
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
    for name in ("reward_parts", "greedy_rewards", "stopped"):
        if (array := getattr(batch, name)) is not None:
            arguments[name] = array
    return arguments


def _advantage_inputs(
    config: ObjectiveConfig, batch: Trajectory, step: jax.Array | int
) -> dict[str, Any]:
    """The arguments available to functions of the whole batch; rewards are the shaped ones."""
    batch = shaped(config, batch, step)
    arguments = _of_rewards(batch, step)
    if "turn" in batch.extra:
        arguments |= {name: batch.extra[name] for name in turns.TOKENS}
        arguments |= turns.steps(batch.extra, batch.group_ids, arguments["mask"])
    return arguments


def _advantages(config: ObjectiveConfig, batch: Trajectory, step: jax.Array | int) -> jax.Array:
    """[N, 1], or [N, T] from a critic or a function that gives each token its own."""
    if batch.advantages is not None:
        return jnp.asarray(batch.advantages)
    arguments = _advantage_inputs(config, batch, step)
    function = functions.resolve(config.advantage, config.advantage_args, set(arguments))
    advantages = functions.call(function, config.advantage_args, arguments)
    if functions.takes(function, "step_mask"):
        return turns.to_tokens(advantages, batch.extra["turn"], arguments["mask"])
    return advantages[:, None] if advantages.ndim == 1 else advantages


def _rows(
    config: ObjectiveConfig, batch: Trajectory, advantages: jax.Array, step: jax.Array | int
) -> jax.Array:
    """[N] bool: the sequences that the filter keeps, and those without a reward."""
    if not config.rows:
        return jnp.ones(len(batch.valid), bool)
    arguments = _advantage_inputs(config, batch, step) | {"advantages": advantages}
    function = functions.resolve(config.rows, config.rows_args, set(arguments))
    return functions.call(function, config.rows_args, arguments) | ~batch.valid


def _age(batch: Trajectory, step: jax.Array | int) -> jax.Array:
    """[N] int32: 0 of the step's own sequences, in all updates on them; of those that were added,
    at least 1, the updates since their first action."""
    age = jnp.max(jnp.where(batch.action_mask, step - batch.policy_version, 0), axis=-1)
    addition = batch.extra.get("addition", jnp.zeros(age.shape, jnp.int32))
    return jnp.where(addition > 0, jnp.maximum(age, 1), 0)


def _expert(batch: Trajectory) -> jax.Array:
    return jnp.zeros(len(batch.valid), bool) if batch.expert is None else jnp.asarray(batch.expert)


def objective(
    config: ObjectiveConfig,
    batch: Trajectory,
    statistics: BatchStatistics,
    mask: jax.Array,
    logp: jax.Array,
    entropy: jax.Array,
    ref_logp: jax.Array | None,
    version: jax.Array,
    coefficients: Mapping[str, jax.Array] = MappingProxyType({}),
    seed: int = 0,
    *,
    weights: bool = False,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """This micro-batch's share of the loss, and its share of each mean metric.

    Args:
      config: the terms.
      batch: all N sequences; or N actions, from `gather_actions`, with the rest of the arguments.
      statistics: of the whole batch, from `whole_batch`.
      mask: [N, T] bool, the action tokens of this micro-batch among those that count.
      logp: [N, T] under the parameters being trained.
      entropy: [N, T] of the distribution.
      ref_logp: [N, T], or None when the config needs none.
      version: scalar int32, the version of the parameters being trained.
      coefficients: scalars that take the place of the config's `kl_coef` and `entropy_coef`.
      seed: of what a function draws in this update.
      weights: also give `weight_mean` and `weight_square`, of the ratio to the sampler, for
        `effective_share`.

    Returns:
      A scalar whose sum over micro-batches is the loss, and scalars whose sums are token means;
      where the policy objective gives one, also `lr_scale`, a factor of the learning rate.
    """
    arguments: dict[str, Any] = masking.sanitize(
        mask,
        logp=logp,
        behavior_logp=batch.behavior_logp,
        ref_logp=ref_logp,
        entropy=entropy,
        advantages=statistics.advantages,
        proximal_logp=batch.proximal_logp,
        **{name: array for name, array in batch.extra.items() if array.ndim == 2},
    )
    arguments |= {name: array for name, array in batch.extra.items() if array.ndim == 1}
    arguments |= {
        "mask": mask,
        "batch_mask": statistics.mask,
        "rewards": batch.rewards,
        "group_ids": batch.group_ids,
        "lag": jnp.where(mask, version - batch.policy_version, 0),
        "expert": _expert(batch),
        "step": version,
        "key": jax.random.fold_in(jax.random.key(seed), version),
    }

    def reduce(per_token: jax.Array) -> jax.Array:
        return aggregate.weighted_sum(per_token, mask, statistics.weights)

    tokens = jnp.maximum(statistics.tokens, 1)
    function = functions.resolve(config.policy, config.policy_args, set(arguments))
    per_token, details = functions.call(function, config.policy_args, arguments)
    loss = reduce(per_token)
    means = {"policy_loss": per_token, "entropy": arguments["entropy"]} | details
    if config.kl_coef:
        divergence = functions.resolve(config.kl, {}, set(arguments))
        kl = functions.call(divergence, {}, arguments)
        loss += coefficients.get("kl_coef", config.kl_coef) * reduce(kl)
        means["kl"] = kl
    if config.entropy_coef or "entropy_coef" in coefficients:
        loss -= coefficients.get("entropy_coef", config.entropy_coef) * reduce(arguments["entropy"])
    gap = jnp.abs(arguments["logp"] - arguments["behavior_logp"])
    gap = jnp.where(arguments["expert"][:, None], 0.0, gap)  # which no policy sampled
    means["logp_gap"] = gap
    if weights:
        ratio = masking.bounded_exp(arguments["logp"] - arguments["behavior_logp"])
        ratio = jax.lax.stop_gradient(jnp.where(arguments["expert"][:, None], 1.0, ratio))
        means |= {"weight_mean": ratio, "weight_square": ratio**2}
    metrics = {
        name: aggregate.masked_mean(jnp.broadcast_to(x, mask.shape), mask, tokens)
        for name, x in means.items()
        if x.ndim == 2
    }
    if "lr_scale" in details:
        metrics["lr_scale"] = details["lr_scale"]
    metrics["logp_gap_max"] = jnp.max(jnp.where(mask, gap, 0.0))
    return loss, metrics | {"loss": loss}
