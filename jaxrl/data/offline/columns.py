"""Columns of offline data: what a file calls them, and the form in which policies see them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.data.offline.transitions import Transitions, check

Convert = Callable[[np.ndarray], np.ndarray]
"""Actions [N, ...] as the environment has them -> [N, A] in [-1, 1], or [N] whole numbers."""
Flatten = Callable[[Any], np.ndarray]
"""Observations as the environment has them, an array [N, ...] or a dict or tuple of such ->
[N, O]."""

D4RL = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
ALIASES = {"terminations": "terminals", "truncations": "timeouts"}
CUTS = frozenset({"timeouts", "truncations", "ends"})
"""Columns that say where a trajectory was cut off."""


def from_columns(columns: Mapping[str, np.ndarray]) -> Transitions:
    """`Transitions` of D4RL's columns; see `d4rl`.

    Raises:
      ValueError: a column that is missing, or of another length.
    """
    columns = {ALIASES.get(name, name): values for name, values in columns.items()}
    missing = [name for name in D4RL[:4] if name not in columns]
    if missing:
        raise ValueError(f"columns {missing} are missing; there are {sorted(columns)}")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns have {lengths} steps; cut them alike")
    terminals = np.asarray(columns["terminals"], bool)
    terminals = terminals.reshape(len(terminals))
    if "ends" in columns:
        ends = np.asarray(columns["ends"], bool).reshape(len(terminals))
        timeouts = ends & ~terminals
    else:
        timeouts = np.asarray(columns.get("timeouts", np.zeros_like(terminals)), bool)
        timeouts = timeouts.reshape(len(terminals))
        ends = terminals | timeouts
    if "next_observations" in columns:
        following, keep_mask = columns["next_observations"], np.ones(len(ends), bool)
    else:
        states = columns["observations"]
        after = np.concatenate([states[1:], states[-1:]])
        # the next row of a terminal is of another trajectory; its own state holds the place
        over = terminals.reshape(-1, *(1,) * (states.ndim - 1))
        following = np.where(over, states, after)
        keep_mask = terminals | ~timeouts
        keep_mask[-1] &= terminals[-1]
        # the step before one that is left out becomes the last of its trajectory
        ends = ends | np.append(~keep_mask[1:], True)
    rewards = np.asarray(columns["rewards"]).reshape(len(ends))
    picked = (columns["observations"], columns["actions"], rewards, following)
    return check(
        Transitions(*(x[keep_mask] for x in picked), terminals[keep_mask], ends[keep_mask])
    )


def as_policies_see(
    columns: Mapping[str, Any], convert: Convert | None, flatten: Flatten | None
) -> dict[str, Any]:
    """The columns with flat observations [N, ...], and actions as policies give them."""
    columns = dict(columns)
    for name in ("observations", "next_observations"):
        if name in columns:
            columns[name] = (flatten or flat)(columns[name])
    if "actions" in columns:
        actions = columns["actions"]
        actions = flat(actions) if isinstance(actions, Mapping) else np.asarray(actions)
        columns["actions"] = actions if convert is None else convert(actions)
    return columns


def stack(values: Sequence[Any]) -> Any:
    """Values of one form, arrays or nested dicts of them, with a leading axis."""
    if isinstance(values[0], Mapping):
        return {name: stack([value[name] for value in values]) for name in values[0]}
    return np.stack([np.asarray(value) for value in values])


def choose(observations: Any, parts: Sequence[str], where: str) -> Any:
    """The named parts of observations, all when none is named.

    Raises:
      ValueError: no such part, or one of pictures or texts beside others.
    """
    if not isinstance(observations, Mapping):
        return observations
    unknown = sorted(set(parts) - observations.keys())
    if unknown:
        raise ValueError(f"observations have no parts {unknown}; there are {sorted(observations)}")
    chosen = {name: observations[name] for name in parts or observations}
    if len(parts) == 1 and _is_picture(chosen[parts[0]]):
        return chosen[parts[0]]
    unreadable = [n for n, x in chosen.items() if not isinstance(x, Mapping) and _is_unreadable(x)]
    if unreadable:
        rest = [name for name in sorted(observations) if name not in unreadable]
        raise ValueError(
            f"the parts {unreadable} of the observations are pictures or texts; choose one picture "
            f"or others by name: {where}:{','.join(rest) or 'PART'}"
        )
    return chosen


def _is_unreadable(values: np.ndarray) -> bool:
    return values.dtype.kind in "SUO" or _is_picture(values)


def _is_picture(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype == np.uint8 and values.ndim > 2


def flat(observations: Any) -> np.ndarray:
    """Leaves of nested dicts and tuples of arrays [N, ...] side by side, in the order of names.

    Returns:
      [N, O] float32, or uint8 of pictures: arrays of uint8 with more than one axis beside N.

    Raises:
      ValueError: pictures beside other parts.
    """
    if isinstance(observations, Mapping):
        observations = [observations[name] for name in sorted(observations)]
    if isinstance(observations, (tuple, list)):
        parts = [flat(part) for part in observations]
        if len(parts) > 1 and any(part.dtype == np.uint8 for part in parts):
            raise ValueError("observations hold pictures beside other parts; keep one of them")
        return np.concatenate(parts, axis=1)
    array = np.asarray(observations)
    if array.dtype == np.uint8 and array.ndim > 2:  # pictures
        return array.reshape(len(array), -1)
    return array.reshape(len(array), -1).astype(np.float32)


_DEEPEST = 16
"""Groups within each other in an HDF5 file, which are read recursively and may hold themselves."""


def arrays(group: Any, name: str, depth: int = 0) -> Any:
    """A data set in a group of HDF5 as an array, a group in it as a dict of them.

    Raises:
      ValueError: see `member`, or too many groups within each other.
    """
    item = member(group, name)
    if not isinstance(item, Mapping):
        return np.asarray(item)
    if depth == _DEEPEST:
        raise ValueError(
            f"data={group.file.filename!r}: over {_DEEPEST} groups are within each other, "
            "possibly one in itself; write the arrays to a flat group"
        )
    return {each: arrays(item, each, depth + 1) for each in item}


def member(group: Any, name: str) -> Any:
    """What a group of HDF5 holds by this name, without following links, which name any file.

    Raises:
      ValueError: it is a link, or its values lie in other files.
    """
    h5py = need("h5py")
    if group.id.links.get_info(name.encode()).type == h5py.h5l.TYPE_HARD:
        item = group[name]
        if not isinstance(item, h5py.Dataset) or not (item.external or item.is_virtual):
            return item
    raise ValueError(
        f"data={group.file.filename!r}: {group.name.rstrip('/')}/{name}: the file links to other "
        "places; copy it with h5repack"
    )


def need(module: str) -> Any:
    """An optional module.

    Raises:
      ModuleNotFoundError: with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{module} is not installed; install the extra: pip install 'jaxrl[control]'"
        ) from error
