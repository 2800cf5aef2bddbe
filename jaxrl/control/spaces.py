"""Spaces of Gymnasium as plain values: what a policy sees of them, and the actions it gives back.

A layout is JSON: `{"kind": "box", "shape", "low", "high"}`, `{"kind": "discrete", "n", "start"}`,
`{"kind": "multi", "n": [...], "one_hot"}`, `{"kind": "picture", "shape", "channels"}` of uint8,
`{"kind": "dict", "parts": {name: layout}}` or
`{"kind": "tuple", "parts": [layout, ...]}`. A run keeps the layouts of its environment, so that
its policy can be played without one. Observations are flattened to [O] float32, pictures to uint8,
numbers as one-hot vectors and parts of a dict in the order of their names; actions of a box are
scaled to [-1, 1]^A, and several numbers become one of all their combinations.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl.control.environment import Space
from jaxrl.data.offline import columns
from jaxrl.data.offline.transitions import Transitions, from_unit_box, to_unit_box

Layout = dict[str, Any]
COMBINATIONS = 1024
"""Most combinations of several discrete actions."""


def layout(space: Any, where: str) -> Layout:
    """The layout of a space of Gymnasium.

    Args:
      space: Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple of these.
      where: what a message calls it, such as `the observations of 'Name-v0'`.

    Raises:
      ValueError: any other space, such as Text, Graph or Sequence, pictures of other than 0 to
        255, or pictures beside other parts.
    """
    kind = type(space).__name__
    if kind == "Box":
        if space.dtype == np.uint8 and len(space.shape) >= 2:
            if (most := int(np.max(space.high))) != 255:
                raise ValueError(
                    f"{where} are pictures of 0 to {most}, and encoders take 0 to 255; scale them "
                    "with gymnasium.wrappers.TransformObservation"
                )
            return _picture(space.shape, where)
        low, high = (np.asarray(x, np.float64).ravel().tolist() for x in (space.low, space.high))
        finite = [x if math.isfinite(x) else None for x in (*low, *high)]
        size = len(low)
        box = {"low": finite[:size], "high": finite[size:]}
        return {"kind": "box", "shape": list(space.shape), "dtype": str(space.dtype), **box}
    if kind == "Discrete":
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if kind == "MultiDiscrete":
        return {"kind": "multi", "n": np.asarray(space.nvec).ravel().tolist(), "one_hot": True}
    if kind == "MultiBinary":
        return {"kind": "multi", "n": [2] * int(np.prod(space.shape)), "one_hot": False}
    if kind in ("Dict", "Tuple"):
        parts = space.spaces.values() if kind == "Dict" else space.spaces
        if any(layout(part, where)["kind"] == "picture" for part in parts):
            raise ValueError(
                f"{where} hold pictures beside other parts, which no network here reads; keep one "
                "of them with gymnasium.wrappers.FilterObservation and FlattenObservation, or a "
                "wrapper of your own"
            )
    if kind == "Dict":
        parts = {name: layout(space.spaces[name], where) for name in sorted(space.spaces)}
        return {"kind": "dict", "parts": parts}
    if kind == "Tuple":
        return {"kind": "tuple", "parts": [layout(part, where) for part in space.spaces]}
    raise ValueError(
        f"{where} are of the space {kind} ({space}), which no network here reads; change it to "
        "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple with a wrapper of Gymnasium"
    )


def _picture(shape: tuple[int, ...], where: str) -> Layout:
    """The layout of pictures, whose channels are the shorter one of the first and the last axis."""
    if len(shape) > 3:
        raise ValueError(
            f"{where} are pictures {list(shape)}, of more than three axes; make them grey with "
            "gymnasium.wrappers.GrayscaleObservation, or stack them along their channels"
        )
    first = len(shape) == 3 and shape[0] < shape[2]
    return {"kind": "picture", "shape": list(shape), "channels": "first" if first else "last"}


def picture_shape(form: Layout) -> tuple[int, ...]:
    """H, W, C of pictures of this layout; empty for others."""
    if form["kind"] != "picture":
        return ()
    shape = (*form["shape"], 1)[:3]
    return (*shape[1:], shape[0]) if form["channels"] == "first" else shape


def size(form: Layout) -> int:
    """O, numbers of an observation of this layout."""
    if form["kind"] in ("box", "picture"):
        return math.prod(form["shape"])
    if form["kind"] == "discrete":
        return form["n"]
    if form["kind"] == "multi":
        return sum(form["n"]) if form["one_hot"] else len(form["n"])
    parts = form["parts"].values() if form["kind"] == "dict" else form["parts"]
    return sum(size(part) for part in parts)


def flatten(form: Layout, observations: Any) -> np.ndarray:
    """Observations of a layout, a batch of N, as [N, O] float32, or uint8 of pictures."""
    if form["kind"] == "picture":
        pictures = np.asarray(observations, np.uint8)
        if form["channels"] == "first":
            pictures = np.moveaxis(pictures, 1, -1)
        return pictures.reshape(len(pictures), -1)
    if form["kind"] == "box":
        array = np.asarray(observations, np.float32)
        return array.reshape(len(array), -1)
    if form["kind"] == "discrete":
        numbers = np.asarray(observations).reshape(-1, 1) - form["start"]
        return (numbers == np.arange(form["n"])).astype(np.float32)
    if form["kind"] == "multi":
        numbers = np.asarray(observations).reshape(-1, len(form["n"]))
        if not form["one_hot"]:
            return numbers.astype(np.float32)
        hot = [(numbers[:, i, None] == np.arange(n)) for i, n in enumerate(form["n"])]
        return np.concatenate(hot, axis=1).astype(np.float32)
    if form["kind"] == "dict":
        parts = [flatten(part, observations[name]) for name, part in form["parts"].items()]
    else:
        parts = [flatten(f, x) for f, x in zip(form["parts"], observations, strict=True)]
    return np.concatenate(parts, axis=1)


def flatten_file(form: Layout, observations: Any) -> np.ndarray:
    """Observations of a file as `flatten` gives them: as the environment has them, or flat already.

    Args:
      form: of the environment.
      observations: an array [N, ...], or a dict or tuple of such, whose parts stand side by side
        where those of the environment do not have names.

    Returns:
      [N, O] float32, uint8 of pictures; of another size than O where the file has neither.

    Raises:
      ValueError: parts that the environment has and the file has not.
    """
    if isinstance(observations, Mapping) and form["kind"] == "dict":
        missing = sorted(form["parts"].keys() - observations.keys())
        if missing:
            raise ValueError(
                f"observations of the data have the parts {sorted(observations)}, and the "
                f"environment also has {missing}; choose the environment that the data are of"
            )
        return flatten(form, observations)
    if isinstance(observations, (tuple, list)) and form["kind"] == "tuple":
        return flatten(form, observations)
    if form["kind"] == "picture" and np.shape(observations)[1:] == tuple(form["shape"]):
        return flatten(form, observations)
    flat = columns.flat(observations)
    numbers = {"discrete": 1, "multi": len(form.get("n", ())) if form["kind"] == "multi" else 0}
    if flat.shape[1] == numbers.get(form["kind"], 0) != size(form):
        return flatten(form, flat.astype(np.int64))
    return flat


def extra_axes(form: Layout, observation: Any) -> int:
    """Leading axes of an observation of this layout: 0 for one, 1 for a batch."""
    if form["kind"] in ("dict", "tuple"):
        name = min(form["parts"]) if form["kind"] == "dict" else 0
        return extra_axes(form["parts"][name], observation[name])
    rank = {"discrete": 0, "multi": 1}.get(form["kind"], len(form.get("shape", ())))
    return np.ndim(observation) - rank


def as_batch(form: Layout, observation: Any) -> Any:
    """One observation as a batch of one."""
    if form["kind"] == "dict":
        return {name: as_batch(part, observation[name]) for name, part in form["parts"].items()}
    if form["kind"] == "tuple":
        return [as_batch(part, observation[i]) for i, part in enumerate(form["parts"])]
    return np.asarray(observation)[None]


def space_of(observation: Layout, action: Layout, where: str) -> Space:
    """The sizes of networks for these layouts.

    Raises:
      ValueError: actions without finite bounds, a dict of actions, or too many combinations.
    """
    sizes, shape = size(observation), picture_shape(observation)
    if action["kind"] == "discrete":
        return Space(sizes, action["n"], discrete=True, shape=shape)
    if action["kind"] == "multi":
        count = math.prod(action["n"])
        if count > COMBINATIONS:
            raise ValueError(
                f"the actions of {where} have {count} combinations, and at most {COMBINATIONS} are "
                "played as one choice; wrap it to fewer"
            )
        return Space(sizes, count, discrete=True, shape=shape)
    if action["kind"] != "box":
        raise ValueError(
            f"the actions of {where} are a {action['kind']}; wrap it "
            "(gymnasium.wrappers.TransformAction) to a Box or Discrete"
        )
    if None in (*action["low"], *action["high"]):
        raise ValueError(
            f"the actions of {where} are without bounds; give finite ones with "
            "gymnasium.wrappers.RescaleAction or a wrapper of your own"
        )
    return Space(sizes, size(action), shape=shape)


def to_environment(form: Layout, actions: np.ndarray) -> np.ndarray:
    """Actions of a policy, [N, A] in [-1, 1] or [N] int, as the environment takes them."""
    if form["kind"] == "discrete":
        return np.asarray(actions) + form["start"]
    if form["kind"] == "multi":
        table = np.array(list(itertools.product(*(range(n) for n in form["n"]))))
        return table[np.asarray(actions)]
    scaled = from_unit_box(np.clip(actions, -1.0, 1.0), form["low"], form["high"])
    return scaled.astype(form["dtype"]).reshape(len(actions), *form["shape"])


def from_environment(form: Layout, actions: Any) -> np.ndarray:
    """The inverse of `to_environment`, for actions [N, ...] of a file.

    Raises:
      ValueError: an action outside of the space.
    """
    array = np.asarray(actions)
    if form["kind"] == "box":
        flat = array.reshape(len(array), -1)
        if flat.shape[1] != size(form):
            raise ValueError(
                f"actions of the data have {flat.shape[1]} numbers, and the environment takes "
                f"{size(form)}; choose the environment that the data are of"
            )
        scaled = to_unit_box(flat, form["low"], form["high"])
        if np.abs(scaled).max(initial=0.0) > 1.0 + 1e-4:
            raise ValueError(
                f"actions of the data reach {flat.min():.4g} to {flat.max():.4g}, and the "
                f"environment has {min(form['low']):.4g} to {max(form['high']):.4g}; choose the "
                "environment that the data are of, or clip them"
            )
        return scaled
    if form["kind"] == "discrete":
        numbers = array.reshape(len(array)).astype(np.int64) - form["start"]
        limit = form["n"]
    else:
        digits = array.reshape(len(array), len(form["n"])).astype(np.int64)
        numbers = np.zeros(len(array), np.int64)
        for digit, n in zip(digits.T, form["n"], strict=True):
            numbers = numbers * n + digit
        limit = math.prod(form["n"])
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < limit:
        raise ValueError(
            f"actions of the data reach {numbers.min()} to {numbers.max()}, and the environment "
            f"has 0 to {limit - 1}; choose the environment that the data are of"
        )
    return numbers.astype(np.int32)


def check_sizes(data: Transitions, space: Space, env: str) -> None:
    """Refuse data that are of another task than the environment.

    Args:
      data: leaves [N, ...].
      space: of the environment.
      env: name of the environment.

    Raises:
      ValueError: with the remedy.
    """
    discrete = np.ndim(data.actions) == 1
    data_sizes = data.observations.shape[1], None if discrete else data.actions.shape[1]
    env_sizes = space.observation, None if space.discrete else space.action
    pictures = data.observations.dtype == np.uint8
    if data_sizes == env_sizes and pictures != bool(space.shape):
        kinds = ("numbers", "pictures of uint8")
        raise ValueError(
            f"observations of the data are {kinds[pictures]}, and those of env={env!r} are "
            f"{kinds[not pictures]}; choose the environment that the data are of"
        )
    if data_sizes != env_sizes:
        sizes = [
            f"{o} observations and {a or 'discrete'} actions" for o, a in (data_sizes, env_sizes)
        ]
        raise ValueError(
            f"the data have {sizes[0]}, env={env!r} has {sizes[1]}; choose the environment "
            "that the data are of"
        )


def of_files(layouts: Mapping[str, Layout]) -> tuple[Any, Any]:
    """What `readers.read` needs of an environment, (convert, flatten); None without layouts."""
    if not layouts:
        return None, None
    return (
        functools.partial(from_environment, layouts["action"]),
        functools.partial(flatten_file, layouts["observation"]),
    )
