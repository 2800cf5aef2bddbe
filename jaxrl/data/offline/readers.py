"""Readers of offline data into `Transitions`: D4RL, OGBench, Minari, RLDS, robomimic, LeRobot, and
own files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.data.offline.columns import (
    ALIASES,
    CUTS,
    D4RL,
    Convert,
    Flatten,
    arrays,
    as_policies_see,
    choose,
    flat,
    from_columns,
    member,
    need,
    stack,
)
from jaxrl.data.offline.transitions import Transitions, check, concatenate, to_unit_box

SOURCES = (
    "a .hdf5 file (D4RL's or robomimic's columns), a .npz file (of transitions, of columns or "
    "OGBench's), minari:NAME, rlds:NAME_OR_DIRECTORY[:SPLIT[:PART,...]], "
    "robomimic:FILE[:PART,...] or lerobot:DIRECTORY[:COLUMN,...]"
)


def read(
    source: str, convert: Convert | None = None, flatten: Flatten | None = None
) -> Transitions:
    """A data set by where it lies.

    Args:
      source: one of `SOURCES`: a file of columns, see `d4rl` and `npz`, `minari:NAME`,
        `rlds:NAME` of TensorFlow Datasets (`d4rl_mujoco_hopper/v2-medium`, `rlu_...`) or
        `rlds:DIRECTORY`, `robomimic:FILE` or `lerobot:DIRECTORY`. Parts of an observation, or
        columns, are chosen by name behind the last colon; all are read when omitted.
      convert: of the file's actions, where they are not in [-1, 1] already. Not asked for files of
        `write`, which are, nor for the bounded actions of Minari, which knows its own bounds.
      flatten: of the observations; parts stand side by side in the order of their names when
        omitted.

    Raises:
      ValueError: none of these, or a file of no format.
      FileNotFoundError: no such file.
    """
    scheme, _, rest = source.partition(":")
    if scheme == "minari" and rest:
        return minari(rest, convert, flatten)
    if scheme == "rlds" and rest:
        name, split, parts = [*rest.split(":", 2), "", ""][:3]
        return rlds(name, split or "train", _names(parts), convert, flatten)
    if scheme in ("robomimic", "lerobot") and rest:
        place, _, parts = rest.partition(":")
        _require(Path(place), source)
        reader = robomimic if scheme == "robomimic" else lerobot
        return reader(Path(place), _names(parts), convert, flatten)
    path = Path(source)
    if (path / "meta" / "info.json").exists():
        return lerobot(path, (), convert, flatten)
    if (path / "dataset_info.json").exists():
        return rlds(str(path), "train", (), convert, flatten)
    if path.suffix not in (".hdf5", ".h5", ".npz"):
        raise ValueError(f"data={source!r}: give {SOURCES}")
    _require(path, source)
    return npz(path, convert, flatten) if path.suffix == ".npz" else d4rl(path, convert, flatten)


def _require(path: Path, source: str) -> None:
    if not path.exists():
        raise FileNotFoundError(f"data={source!r}: no such file; download it first")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def write(path: Path, data: Transitions) -> None:
    """A data set as a `.npz` file that `read` takes: an array for each field, and no `extra`."""
    np.savez(path, **{name: getattr(data, name) for name in FIELDS}, scaled=np.True_)


FIELDS = Transitions._fields[:-1]
"""Arrays of a file of transitions."""

_OGBENCH = {"observations", "actions", "terminals"}
_OGBENCH_MORE = {"qpos", "qvel", "button_states", "rewards", "masks"}


def npz(path: Path, convert: Convert | None = None, flatten: Flatten | None = None) -> Transitions:
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
    if not scaled:
        columns = as_policies_see(columns, convert, flatten)
    missing = [name for name in FIELDS if name not in columns]
    if not missing:
        return check(Transitions(*(columns[name] for name in FIELDS)))
    canonical_names = {ALIASES.get(name, name) for name in columns}
    if columns.keys() & CUTS and canonical_names >= set(D4RL[:4]):
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


def d4rl(path: Path, convert: Convert | None = None, flatten: Flatten | None = None) -> Transitions:
    """An HDF5 file with `observations`, `actions`, `rewards`, `terminals` and mostly `timeouts`.

    `terminations` and `truncations`, Gymnasium's words, stand for the last two; `ends` for both
    together. Observations may be a group of arrays.

    Without `next_observations` the next row is what follows; the last step of a trajectory that was
    cut off has none and is left out (Fu et al. 2020, "D4RL", `qlearning_dataset`). Without
    `timeouts` a trajectory is one only up to a terminal.

    Raises:
      ValueError: a column that is missing, or that is a link or lies in another file.
    """
    h5py = need("h5py")
    with h5py.File(path) as file:
        if "data" in list(file) and isinstance(demos := member(file, "data"), h5py.Group):
            return _robomimic(demos, (), convert, flatten)
        names = [name for name in file if name in {*D4RL, *CUTS, *ALIASES}]
        columns = {name: arrays(file, name) for name in names}
    return from_columns(as_policies_see(columns, convert, flatten))


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


def minari(
    name: str, convert: Convert | None = None, flatten: Flatten | None = None
) -> Transitions:
    """A Minari data set, already downloaded (`minari download NAME`).

    Continuous actions are scaled from the bounds of its action space to [-1, 1];
    `transitions.from_unit_box` with the same bounds undoes it, as `host.Vector` does when it plays.
    """
    dataset = need("minari").load_dataset(name)
    space, episodes = dataset.action_space, dataset.iterate_episodes()
    return concatenate([minari_episode(e, space, convert, flatten) for e in episodes])


def minari_episode(
    episode: Any, space: Any, convert: Convert | None = None, flatten: Flatten | None = None
) -> Transitions:
    """One episode of Minari: observations [T + 1, ...], a dict or tuple of such side by side.

    Args:
      episode: of a Minari data set.
      space: of its actions, Gymnasium's; one with bounds `low` and `high` is continuous.
      convert, flatten: see `read`.

    Raises:
      ValueError: bounds that are not finite, or several choices at once without `convert`.
    """
    states, actions = (flatten or flat)(episode.observations), np.asarray(episode.actions)
    if hasattr(space, "low"):
        rows = len(actions), -1
        bounds = (np.broadcast_to(x, actions.shape[1:]).ravel() for x in (space.low, space.high))
        actions = to_unit_box(actions.reshape(rows), *bounds)
    elif convert is not None:
        actions = convert(actions)
    elif actions[0].size > 1:
        raise ValueError(
            f"actions are several choices at once {list(actions.shape[1:])}; name the environment, "
            "which says how they become one"
        )
    else:
        actions = actions - getattr(space, "start", 0)
    ends = np.zeros(len(episode.rewards))
    ends[-1] = 1.0
    terminals = np.asarray(episode.terminations, np.float32)
    return check(Transitions(states[:-1], actions, episode.rewards, states[1:], terminals, ends))


def rlds(
    name: str,
    split: str = "train",
    parts: Sequence[str] = (),
    convert: Convert | None = None,
    flatten: Flatten | None = None,
) -> Transitions:
    """A data set in RLDS form: one of TensorFlow Datasets that is prepared, or a directory of it.

    Raises:
      ValueError: files of a form that is read with TensorFlow alone.
    """
    tfds = need("tensorflow_datasets")
    is_directory = (Path(name) / "dataset_info.json").exists()
    builder = (tfds.builder_from_directory if is_directory else tfds.builder)(name)
    try:
        episodes = builder.as_data_source(split)
    except NotImplementedError as error:
        raise ValueError(
            f"data=rlds:{name}: {error}; write it anew with `tfds convert_format --file_format "
            "array_record`"
        ) from error
    rows = (list(episode["steps"]) for episode in episodes)
    where = f"rlds:{name}:{split}"
    return concatenate(
        [rlds_episode(r, parts, convert, flatten, where=where) for r in rows if len(r) > 1]
    )


def rlds_episode(
    steps: Iterable[Mapping[str, Any]],
    parts: Sequence[str] = (),
    convert: Convert | None = None,
    flatten: Flatten | None = None,
    *,
    where: str = "rlds:NAME:SPLIT",
) -> Transitions:
    """One episode of RLDS: the reward and action of a step belong to its observation.

    The last step holds the final observation alone (Ramos et al. 2021, "RLDS"); it ended by itself
    where `is_terminal`.

    Raises:
      ValueError: steps without one of these.
    """
    rows = list(steps)
    wanted = ("observation", "action", "reward", "is_terminal")
    if missing := [name for name in wanted if name not in rows[0]]:
        raise ValueError(
            f"data={where}: steps have {sorted(rows[0])}, and {missing} are missing; choose a data "
            "set that has them"
        )
    observations = choose(stack([row["observation"] for row in rows]), parts, where)
    actions = stack([row["action"] for row in rows[:-1]])
    seen = as_policies_see({"observations": observations, "actions": actions}, convert, flatten)
    states = seen["observations"]
    terminals, ends = np.zeros((2, len(rows) - 1))
    terminals[-1], ends[-1] = bool(rows[-1]["is_terminal"]), 1.0
    rewards = np.array([row["reward"] for row in rows[:-1]])
    return check(Transitions(states[:-1], seen["actions"], rewards, states[1:], terminals, ends))


def robomimic(
    path: Path,
    parts: Sequence[str] = (),
    convert: Convert | None = None,
    flatten: Flatten | None = None,
) -> Transitions:
    """A file of robomimic: a group `data/demo_I` for each demonstration, an end of which is its
    last step whatever `dones` says; `dones` are the terminals (Mandlekar et al. 2021, "What
    Matters in Learning from Offline Human Demonstrations").

    Raises:
      ValueError: no demonstrations, some without observations, rewards or dones, or links.
    """
    with need("h5py").File(path) as file:
        if "data" not in list(file):
            raise ValueError(f"data=robomimic:{path} has no group data; there are {sorted(file)}")
        return _robomimic(member(file, "data"), parts, convert, flatten)


def _robomimic(
    demos: Any, parts: Sequence[str], convert: Convert | None, flatten: Flatten | None
) -> Transitions:
    episodes = []
    for name in sorted(demos, key=lambda name: (len(name), name)):
        demo = member(demos, name)
        members = sorted(demo)
        missing = [x for x in ("obs", "actions", "rewards", "dones") if x not in members]
        if missing:
            raise ValueError(
                f"demonstration {name!r} has {members}, and {missing} are missing; write them "
                "with robomimic's dataset_states_to_obs.py"
            )
        columns = {"actions": arrays(demo, "actions")}
        for theirs, ours in (("obs", "observations"), ("next_obs", "next_observations")):
            if theirs in members:
                columns[ours] = choose(arrays(demo, theirs), parts, "robomimic:FILE")
        columns = as_policies_see(columns, convert, flatten)
        ends = np.arange(len(columns["actions"])) == len(columns["actions"]) - 1
        columns |= {"rewards": arrays(demo, "rewards"), "terminals": arrays(demo, "dones")}
        columns["ends"] = ends
        episodes.append(from_columns(columns))
    return concatenate(episodes)


def lerobot(
    path: Path,
    columns: Sequence[str] = (),
    convert: Convert | None = None,
    flatten: Flatten | None = None,
) -> Transitions:
    """A directory of LeRobot, of version 2 or 3: `meta/info.json`, and frames in Parquet files.

    Observations are the columns `observation.*`, actions `action`, rewards `next.reward`, 0 where
    there are none. `next.done` marks the last frame of every episode and so is no terminal; one is
    where `next.success` stands at that frame. What followed the last frame of an episode that was
    cut off is not in the files, so that frame is left out.

    Raises:
      ValueError: no frames, no such column, a column of pictures or films, or damaged `info.json`.
    """
    features = _features(path / "meta" / "info.json")
    seen = [name for name in features if name.startswith("observation.")]
    unknown = sorted(set(columns) - features.keys())
    numbers = [name for name in seen if features[name].get("dtype") not in ("video", "image")]
    names = tuple(columns) or tuple(sorted(seen))
    films = [name for name in names if name in seen and name not in numbers]
    if unknown or films or not names:
        fault = (
            f"has no columns {unknown}" if unknown
            else f"has films or pictures {films}, which are not read" if films
            else "has no columns observation.*"
        )  # fmt: skip
        raise ValueError(
            f"data=lerobot:{path} {fault}; choose from its numbers: "
            f"lerobot:{path}:{','.join(numbers) or 'COLUMN'}"
        )
    parquet = need("pyarrow.parquet")
    rest = [n for n in ("action", "next.reward", "next.success") if n in features]
    wanted = [*names, *rest, "episode_index", "frame_index"]
    tables = [parquet.read_table(f, columns=wanted) for f in sorted(path.glob("data/**/*.parquet"))]
    if not tables or "action" not in rest:
        raise ValueError(f"data=lerobot:{path} has no frames with an action under data/")
    frames = {name: np.concatenate([_column(t, name) for t in tables]) for name in wanted}
    order = np.lexsort((frames["frame_index"], frames["episode_index"]))
    frames = {name: values[order] for name, values in frames.items()}
    episode = frames["episode_index"]
    ends = np.append(episode[1:] != episode[:-1], True)
    none = np.zeros(len(ends), np.float32)
    success = frames.get("next.success", none).reshape(len(ends)).astype(bool)
    observations = {name: frames[name] for name in names}
    plain = {
        "observations": observations if len(names) > 1 else frames[names[0]],
        "actions": frames["action"],
    }
    return from_columns(
        as_policies_see(plain, convert, flatten)
        | {"rewards": frames.get("next.reward", none), "terminals": success & ends, "ends": ends}
    )


def _features(file: Path) -> dict[str, dict[str, Any]]:
    """The columns that a file of LeRobot describes.

    Raises:
      ValueError: it does not.
    """
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: {error}; restore it from a copy") from error
    features = info.get("features") if isinstance(info, dict) else None
    if not isinstance(features, dict) or not all(isinstance(x, dict) for x in features.values()):
        raise ValueError(f"{file} is damaged: it describes no features; restore it from a copy")
    return features


def _column(table: Any, name: str) -> np.ndarray:
    """A column of an Arrow table as an array [N], or [N, ...] of its lists."""
    values, count = table.column(name).combine_chunks(), len(table)
    depth = 0
    while hasattr(values.type, "value_type"):
        values, depth = values.flatten(), depth + 1
    array = values.to_numpy(zero_copy_only=False)
    return array.reshape(count, -1) if depth else array
