"""Refuses an objective that could only fail later, in the first update.

Its functions are called on shapes alone, which computes nothing, so what they raise for a choice
that they do not have, or for advantages of another shape, is known before anything is sampled.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import functions
from jaxrl.losses.reduce import aggregate
from jaxrl.training import turns
from jaxrl.training.objective import (
    ARRAYS,
    REWARD_ARRAYS,
    ROW_ARRAYS,
    SOURCE_MEAN,
    BatchStatistics,
    ObjectiveConfig,
    needs_proximal,
    needs_reference,
    objective,
    parts_weighed,
    shaped,
    whole_batch,
)
from jaxrl.types import Array, Trajectory

_SHAPED = ("rewards", "turn_rewards", "step_rewards")
"""Arrays that shaping changes."""
_ROLES = {
    "policy": "a policy objective",
    "shaping": "reward shaping",
    "advantage": "an advantage estimator",
    "rows": "a filter of sequences",
    "kl": "an estimator of the KL penalty",
}
"""Of the fields that name functions."""
_PARTS = (2, 1, *range(3, 9))
"""How many parts a reward may have. It is not known before a reward is there."""


def check(
    config: ObjectiveConfig,
    extra: Collection[str] = (),
    *,
    sequences: int = 16,
    bucket: int = 64,
    shapes: Callable[[Trajectory], Trajectory] = lambda batch: batch,
) -> None:
    """Refuse an objective that cannot work.

    Args:
      config: the objective.
      extra: names of the arrays that extensions add to a batch.
      sequences: those of an update, as a function may rely on their number.
      bucket: their length is a multiple of it.
      shapes: adds what extensions add to a batch before its updates, with any values.

    Raises:
      ValueError: naming the field, its value and the remedy.
    """
    _check_names(config, extra)
    _refuse(config, "advantage", _failure(parts_weighed, config))
    failures = []
    weighed = len(parts_weighed(config))
    for parts in [weighed] if weighed else _PARTS:
        try:
            return _check_calls(
                config, extra, _batch(config, sequences, bucket, parts, extra), shapes
            )
        except ValueError as error:
            failures.append(error)
    raise failures[0]


def _check_names(config: ObjectiveConfig, extra: Collection[str]) -> None:
    """Refuse what does not exist, and what would change nothing."""
    policy = functions.resolve(config.policy, config.policy_args, ARRAYS | set(extra))
    of_turns = {*turns.TOKENS, *turns.STEPS} if "turn" in extra else set()
    advantage = functions.resolve(config.advantage, config.advantage_args, REWARD_ARRAYS | of_turns)
    if config.shaping:
        functions.resolve(config.shaping, config.shaping_args, REWARD_ARRAYS)
        if not any(functions.takes(advantage, name) for name in _SHAPED):
            raise ValueError(
                f"objective.shaping={config.shaping!r} with objective.advantage="
                f"{config.advantage!r}, which reads none of {', '.join(_SHAPED)}: shaping would "
                "change nothing; leave it empty, or choose another advantage"
            )
        if functions.takes(policy, "rewards"):
            raise ValueError(
                f"objective.shaping={config.shaping!r} with objective.policy={config.policy!r}, "
                "which reads the rewards themselves: shaping is for advantages alone; leave it "
                "empty, or choose another policy objective"
            )
    if config.rows:
        functions.resolve(config.rows, config.rows_args, ROW_ARRAYS)
    functions.resolve(config.kl, {}, ARRAYS)
    modes = [*aggregate.MODES, SOURCE_MEAN]
    if config.aggregation not in modes:
        hint = functions.nearest(config.aggregation, modes)
        raise ValueError(f"objective.aggregation={config.aggregation!r} is unknown; {hint}")

    if config.skip_zero_advantages and functions.takes(policy, "batch_mask"):
        raise ValueError(
            f"objective.skip_zero_advantages with objective.policy={config.policy!r}: its "
            "statistics of the whole batch would leave those sequences out; set it to False"
        )
    if config.skip_zero_advantages and (needs_reference(config) or config.entropy_coef):
        raise ValueError(
            f"objective.skip_zero_advantages with kl_coef={config.kl_coef}, entropy_coef="
            f"{config.entropy_coef} and objective.policy={config.policy!r} would leave those terms "
            "out as well, a KL penalty or an entropy bonus; set it to False"
        )


def _batch(
    config: ObjectiveConfig, sequences: int, bucket: int, parts: int, extra: Collection[str]
) -> Trajectory:
    """Arrays of the shapes that an update gets; of what extensions add, turns alone."""
    # longer than a turn or two, and another number than of sequences, to tell the axes apart
    length = next(n for n in itertools.count(bucket, bucket) if n > 32 and n != sequences)
    of_rows, of_tokens = np.zeros(sequences, np.float32), np.zeros((sequences, length), np.float32)
    integers, truths = of_tokens.astype(np.int32), of_tokens.astype(bool)
    of_turns: dict[str, Array] = {name: integers for name in turns.TOKENS}
    of_turns["turn_rewards"] = of_tokens
    return Trajectory(
        tokens=integers,
        action_mask=truths,
        behavior_logp=of_tokens,
        policy_version=integers,
        rewards=of_rows,
        valid=of_rows.astype(bool),
        group_ids=of_rows.astype(np.int32),
        stopped=of_rows.astype(bool),
        reward_parts=np.zeros((sequences, parts), np.float32),
        greedy_rewards=of_rows,
        expert=of_rows.astype(bool),
        proximal_logp=of_tokens if needs_proximal(config) else None,
        extra=of_turns if "turn" in extra else {},
    )


def _check_calls(
    config: ObjectiveConfig,
    extra: Collection[str],
    batch: Trajectory,
    shapes: Callable[[Trajectory], Trajectory],
) -> None:
    """Refuse functions that raise when they are called, or return what no update can use."""
    step = np.int32(0)

    def of_batch(config: ObjectiveConfig) -> BatchStatistics:
        call = functools.partial(whole_batch, config, max_new_tokens=1)
        return jax.eval_shape(call, batch, step=step)

    def loss(config: ObjectiveConfig, statistics: BatchStatistics) -> None:
        ref_logp = batch.behavior_logp if needs_reference(config) else None
        args = (
            batch,
            statistics,
            statistics.mask,
            batch.behavior_logp,
            batch.behavior_logp,
            ref_logp,
            step,
        )
        jax.eval_shape(functools.partial(objective, config), *args)

    all_rows, count, batch = dataclasses.replace(config, rows=""), len(batch.rewards), shapes(batch)
    by_objective = batch.advantages is None
    # else an extension makes them, of rewards shaped on the host
    if config.shaping:
        call = functools.partial(jax.eval_shape, functools.partial(shaped, config))
        of_rewards = call if by_objective else functools.partial(shaped, config)
        _refuse(config, "shaping", _failure(of_rewards, batch, step))
    _refuse(config, "advantage", _failure(of_batch, all_rows))
    shape = of_batch(all_rows).advantages.shape
    if shape not in ((), (count, 1), batch.tokens.shape):
        _refuse(config, "advantage", f"it returns the shape {shape} for {count} sequences")
    if config.rows:
        _refuse(config, "rows", _failure(of_batch, config))
    policy = functions.lookup(config.policy)
    if any(functions.takes(policy, name) and name not in batch.extra for name in extra):
        return  # an extension adds it within its update, in a shape that is not known here

    statistics, alone = of_batch(all_rows), dataclasses.replace(config, kl_coef=0.0)
    one_each = dataclasses.replace(
        statistics, advantages=jnp.zeros((count, 1), statistics.advantages.dtype)
    )
    failure = _failure(loss, alone, statistics)
    if failure and statistics.advantages.size > count and not _failure(loss, alone, one_each):
        given_by = f"objective.advantage={config.advantage!r}" if by_objective else "an extension"
        raise ValueError(
            f"objective.policy={config.policy!r} takes one advantage a sequence, and {given_by} "
            "gives one a token; choose another policy objective, such as ppo_clip, or "
            + (
                "another advantage, such as group_advantages"
                if by_objective
                else "leave the extension out"
            )
        ) from failure
    _refuse(config, "policy", failure)
    if config.kl_coef:
        _refuse(config, "kl", _failure(loss, config, statistics))


def _failure(call: Callable[..., Any], *arguments: Any) -> Exception | None:
    """What a call raises. Functions are a user's, so it may be any exception."""
    try:
        call(*arguments)
    except Exception as error:
        return error
    return None


def _refuse(config: ObjectiveConfig, field: str, why: Exception | str | None) -> None:
    """Raise what is wrong with the function of a field, and its arguments; None: nothing is."""
    if why is None:
        return
    args = getattr(config, f"{field}_args", {})
    values = "".join(f", objective.{field}_args.{k}={v!r}" for k, v in args.items())
    reason = str(why).partition("\n")[0]
    if isinstance(why, Exception) and not isinstance(why, ValueError):
        reason = f"{type(why).__name__}: {reason}"
    raise ValueError(
        f"objective.{field}={getattr(config, field)!r}{values} does not work as {_ROLES[field]}: "
        f"{reason}; correct its arguments, or choose another function (`jaxrl losses`)"
    ) from (why if isinstance(why, Exception) else None)
