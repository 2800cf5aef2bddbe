"""Readers of offline data into `Transitions`: D4RL, OGBench, Minari, RLDS, and own files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.data.offline.transitions import Transitions, check, concatenate, to_unit_box

Convert = Callable[[np.ndarray], np.ndarray]
"""Actions [N, ...] as the environment has them -> [N, A] in [-1, 1], or [N] whole numbers."""


def read(source: str, convert: Convert | None = None) -> Transitions:
    """A data set by where it lies.

    Args:
      source: a D4RL-format `.hdf5` file, a `.npz` file as `write` leaves it or of OGBench,
        `minari:NAME`, or `rlds:NAME[:SPLIT]` of TensorFlow Datasets
        (`d4rl_mujoco_hopper/v2-medium`, `rlu_...`).
      convert: of the file's actions, where they are not in [-1, 1] already. Not asked for files of
        `write`, which are, nor for Minari, which knows its own bounds.

    Raises:
      ValueError: none of these, or a `.npz` file of neither format.
      FileNotFoundError: no such file.
    """
    scheme, _, rest = source.partition(":")
    if scheme == "minari" and rest:
        return minari(rest)
    if scheme == "rlds" and rest:
        name, _, split = rest.partition(":")
        return rlds(name, split or "train")
    path = Path(source)
    if path.suffix not in (".hdf5", ".h5", ".npz"):
        raise ValueError(
            f"data={source!r}: give a D4RL .hdf5 file, a .npz file of transitions or of OGBench, "
            "minari:NAME or rlds:NAME"
        )
    if not path.exists():
        raise FileNotFoundError(f"data={source!r}: no such file; download it first")
    return npz(path, convert) if path.suffix == ".npz" else d4rl(path, convert)


def write(path: Path, data: Transitions) -> None:
    """A data set as a `.npz` file that `read` takes: an array for each field, and no `extra`."""
    np.savez(path, **{name: getattr(data, name) for name in FIELDS}, scaled=np.True_)


FIELDS = Transitions._fields[:-1]
"""Arrays of a file of transitions."""

_OGBENCH = {"observations", "actions", "terminals"}
_OGBENCH_MORE = {"qpos", "qvel", "button_states", "rewards", "masks"}


def npz(path: Path, convert: Convert | None = None) -> Transitions:
    """A `.npz` file by the arrays it holds: transitions, D4RL's columns, or OGBench's.

    A file of transitions has all of `FIELDS`. One of columns has `ends` or `timeouts`, or another
    of the names that `from_columns` reads. OGBench's has `observations`, `actions` and
    `terminals`, perhaps states of the simulator, and either both or none of `rewards` and `masks`.

    Raises:
      ValueError: any other set of arrays: what `terminals` marks in it is not known.
    """
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files}
    scaled = columns.pop("scaled", None) is not None
    if convert is not None and not scaled and "actions" in columns:
        columns["actions"] = convert(columns["actions"])
    missing = [name for name in FIELDS if name not in columns]
    if not missing:
        return check(Transitions(*(columns[name] for name in FIELDS)))
    canonical_names = {_ALIASES.get(name, name) for name in columns}
    if columns.keys() & _CUTS and canonical_names >= set(_D4RL[:4]):
        return from_columns(columns)
    paired = ("rewards" in columns) == ("masks" in columns)
    is_ogbench = _OGBENCH <= columns.keys() <= _OGBENCH | _OGBENCH_MORE
    if not (is_ogbench and paired):
        raise ValueError(
            f"data={str(path)!r} holds {sorted(columns)}: for a file of transitions {missing} are "
            "missing, one of steps holds observations, actions, rewards, terminals and timeouts or "
            "ends, and OGBench's holds observations, actions, terminals and either both or none "
            "of rewards and masks; add what is missing, or write it with readers.write"
        )
    return ogbench(columns)


def d4rl(path: Path, convert: Convert | None = None) -> Transitions:
    """An HDF5 file with `observations`, `actions`, `rewards`, `terminals` and mostly `timeouts`.

    `terminations` and `truncations`, Gymnasium's words, stand for the last two; `ends` for both
    together.

    Without `next_observations` the next row is what follows; the last step of a trajectory that was
    cut off has none and is left out (Fu et al. 2020, "D4RL", `qlearning_dataset`). Without
    `timeouts` a trajectory is one only up to a terminal.
    """
    h5py = _need("h5py")
    with h5py.File(path) as file:
        names = [name for name in file if name in {*_D4RL, *_CUTS, *_ALIASES}]
        columns = {name: np.asarray(file[name]) for name in names}
    if convert is not None and "actions" in columns:
        columns["actions"] = convert(columns["actions"])
    return from_columns(columns)


_D4RL = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
_ALIASES = {"terminations": "terminals", "truncations": "timeouts"}
_CUTS = frozenset({"timeouts", "truncations", "ends"})
"""Columns that say where a trajectory was cut off."""


def from_columns(columns: Mapping[str, np.ndarray]) -> Transitions:
    """`Transitions` of D4RL's columns; see `d4rl`.

    Raises:
      ValueError: a column that is missing.
    """
    columns = {_ALIASES.get(name, name): values for name, values in columns.items()}
    missing = [name for name in _D4RL[:4] if name not in columns]
    if missing:
        raise ValueError(f"columns {missing} are missing; there are {sorted(columns)}")
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


def ogbench(columns: Mapping[str, np.ndarray]) -> Transitions:
    """OGBench's arrays: `observations`, `actions`, `terminals` that mark the last *state*.

    The row of a trajectory's last state has no action, so it is left out; nothing there is a true
    terminal (Park et al. 2024, "OGBench"). Data sets of a single task carry `rewards` and `masks`;
    without rewards they are 0.
    """
    states, last = columns["observations"], np.asarray(columns["terminals"], bool).copy()
    last[-1] = True
    keep_mask = ~last
    following = np.concatenate([states[1:], states[-1:]])
    rewards = columns.get("rewards", np.zeros(len(states), np.float32))
    terminals = 1.0 - columns["masks"] if "masks" in columns else np.zeros(len(states))
    ends = np.append(last[1:], True)
    picked = (states, columns["actions"], rewards, following, terminals, ends)
    return check(Transitions(*(x[keep_mask] for x in picked)))


def minari(name: str) -> Transitions:
    """A Minari data set, already downloaded (`minari download NAME`).

    Continuous actions are scaled from the bounds of its action space to [-1, 1];
    `transitions.from_unit_box` with the same bounds undoes it, as `host.Vector` does when it plays.
    """
    dataset = _need("minari").load_dataset(name)
    space = dataset.action_space
    return concatenate([minari_episode(e, space) for e in dataset.iterate_episodes()])


def minari_episode(episode: Any, space: Any) -> Transitions:
    """One episode of Minari: observations [T + 1, ...], a dict of them side by side.

    Args:
      episode: of a Minari data set.
      space: of its actions, Gymnasium's; one with bounds `low` and `high` [A] is continuous.

    Raises:
      ValueError: bounds that are not finite.
    """
    states, actions = _flat(episode.observations), np.asarray(episode.actions)
    if hasattr(space, "low"):
        actions = to_unit_box(actions, space.low, space.high)
    ends = np.zeros(len(episode.rewards))
    ends[-1] = 1.0
    return check(
        Transitions(
            states[:-1],
            actions,
            episode.rewards,
            states[1:],
            np.asarray(episode.terminations, np.float32),
            ends,
        )
    )


def rlds(name: str, split: str = "train") -> Transitions:
    """A data set of TensorFlow Datasets in RLDS form, already prepared in its data directory."""
    builder = _need("tensorflow_datasets").builder(name)
    return concatenate([rlds_episode(e["steps"]) for e in builder.as_data_source(split)])


def rlds_episode(steps: Iterable[Mapping[str, Any]]) -> Transitions:
    """One episode of RLDS: the reward and action of a step belong to its observation.

    The last step holds the final observation alone (Ramos et al. 2021, "RLDS"); it ended by itself
    where `is_terminal`.
    """
    rows = list(steps)
    states = np.stack([_flat(row["observation"], axis=0) for row in rows])
    terminals, ends = np.zeros((2, len(rows) - 1))
    terminals[-1], ends[-1] = bool(rows[-1]["is_terminal"]), 1.0
    actions = np.stack([np.asarray(row["action"]) for row in rows[:-1]])
    rewards = np.array([row["reward"] for row in rows[:-1]])
    return check(Transitions(states[:-1], actions, rewards, states[1:], terminals, ends))


def _flat(observation: Any, axis: int = 1) -> np.ndarray:
    """Leaves of a nested dict of arrays side by side, in the order of their names."""
    if isinstance(observation, Mapping):
        parts = [_flat(observation[name], axis) for name in sorted(observation)]
        return np.concatenate(parts, axis=axis)
    array = np.asarray(observation, np.float32)
    return array.reshape(*array.shape[:axis], -1)


def _need(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{module} is not installed; install the extra: pip install 'jaxrl[control]'"
        ) from error
