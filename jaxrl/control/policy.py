"""A trained policy as a thing of its own: loaded without its data, its environment or a command.

A control run keeps two files for it: `policy.json`, with the algorithm, its settings, the sizes and
the layouts of the environment, and `policy.npz`, with the parameters of every seed. These are of
the point that it last came to; `best.json` and `best.npz` are of its best point.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import json_file
from jaxrl.control import algorithms, rollout, settings, spaces
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import blank_step
from jaxrl.printable import printable

POINTS = {"last": ("policy.npz", "policy.json"), "best": ("best.npz", "best.json")}
"""The files of a policy by the point that it is of, in the order in which they are written."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """A policy of one seed of a run, in the terms of its environment.

    `policy(observation)` is the action for one observation, or for a batch of them with a leading
    axis [N] on every part. With Gymnasium both are as the environment has them; with an environment
    in JAX they are [O] and [A] in [-1, 1], or a number. A policy that remembers the episode is
    played by `init` and `step`, which serve every other policy too.
    """

    description: Mapping[str, Any]
    """What `policy.json` holds."""
    params: Any
    seed: int
    """Which of the run's seeds."""

    @functools.cached_property
    def algorithm(self) -> Any:
        """The algorithm whose `best` is the policy."""
        env = stand_in(self.description)
        algorithm = _algorithm(self.description, env)
        if algorithm.observe(env) is not env:
            raise ValueError(
                f"algorithm {self.description['algorithm']!r} sees a history, which a loaded "
                "policy does not keep; play it with `jaxrl control play`"
            )
        return algorithm

    @functools.cached_property
    def compiled(self) -> Any:
        """key, parameters, observations [N, O], memories [N, ...] -> actions [N, ...], memories."""
        # made here, as constants that are made within a trace end with it
        recall = rollout.with_memory(self.algorithm.best, self.algorithm.memory)

        def every(key: jax.Array, params: Any, observations: jax.Array, memories: Any) -> Any:
            keys = jax.random.split(key, len(observations))
            return jax.vmap(recall, (0, None, 0, 0))(keys, params, observations, memories)

        return jax.jit(every)

    def init(self, count: int | None = None) -> Any:
        """The state before an episode, for `step`.

        Args:
          count: N, of states [N, ...] for a batch of observations; None: for one observation.
        """
        lead = () if count is None else (count,)
        return rollout.memories(self.algorithm.memory, *lead)

    def __call__(self, observation: Any, key: jax.Array | None = None) -> Any:
        """The action for an observation, or actions [N, ...] for a batch.

        Args:
          observation: one, or a batch.
          key: of the noise of a policy that draws some; the same at each call when omitted.

        Raises:
          ValueError: an observation of another size, or a policy that remembers the episode.
        """
        if jax.tree.leaves(self.algorithm.memory):
            raise ValueError(
                "this policy remembers the episode, so that an observation alone has no action; "
                "begin an episode with state = policy.init(), and play it with action, state = "
                "policy.step(observation, state)"
            )
        return self.step(observation, (), key)[0]

    def step(self, observation: Any, state: Any, key: jax.Array | None = None) -> tuple[Any, Any]:
        """The action for an observation of an episode, and the state for the next observation.

        Args:
          observation: one, or a batch [N, ...].
          state: from `init` at the start of an episode, then from the step before.
          key: of the noise of a policy that draws some; the same at each call when omitted.

        Raises:
          ValueError: an observation or a state of another size.
        """
        layouts, space = self.description["layouts"], self.description["space"]
        form = layouts.get("observation") or {"kind": "box", "shape": [space["observation"]]}
        single = spaces.extra_axes(form, observation) == 0
        batch = spaces.as_batch(form, observation) if single else observation
        flat = spaces.flatten(form, batch)
        if flat.shape[1] != space["observation"]:
            raise ValueError(
                f"an observation has {flat.shape[1]} numbers and the policy was trained on "
                f"{space['observation']}; give those of env={self.description['env']!r}"
            )
        key = jax.random.PRNGKey(0) if key is None else key
        expected_shapes = jax.tree.map(np.shape, self.init(None if single else len(flat)))
        shapes = jax.tree.map(np.shape, state)
        if shapes != expected_shapes:
            raise ValueError(
                f"state has the shape {shapes}, and {expected_shapes} belongs to this observation; "
                f"begin with policy.init({'' if single else len(flat)})"
            )
        if single:
            state = jax.tree.map(lambda x: x[None], state)
        chosen, state = self.compiled(key, self.params, jnp.asarray(flat), state)
        actions = np.asarray(chosen)
        if layouts:
            actions = spaces.to_environment(layouts["action"], actions)
        if single:
            return actions[0], jax.tree.map(lambda x: x[0], state)
        return actions, state


def load(run: str | Path, seed: int = 0, point: str = "last") -> Policy:
    """The policy of a control run: of the point that it last came to, or of its best.

    Args:
      run: its directory.
      seed: which of its seeds.
      point: `last`, or `best`: the one whose evaluation had the highest mean return over all seeds,
        the first of equals. As it was chosen by that return, judge it by episodes of its own.

    Raises:
      FileNotFoundError: no control run, or one that has come to no point yet.
      ValueError: no such seed or point.
    """
    if point not in POINTS:
        raise ValueError(f"point={point!r}: choose one of {', '.join(POINTS)}")
    params_path, description_path = (Path(run) / name for name in POINTS[point])
    for path in (description_path, params_path):
        if not path.exists():
            raise FileNotFoundError(
                f"run={str(run)!r} has no {path.name}; give the directory of a run of `jaxrl "
                "control` that has come to its first point"
            )
        if not path.is_file():  # a pipe or a device would be waited for
            raise ValueError(f"{path} is damaged: it is no regular file; restore it from a copy")
    description = json_file.read(description_path)
    try:
        _check(description)
    except ValueError as error:
        raise ValueError(f"{description_path} is damaged: {error}") from error
    if not 0 <= seed < description["seeds"]:
        raise ValueError(
            f"seed={seed}: the run has {description['seeds']} seeds; choose 0 to "
            f"{description['seeds'] - 1}"
        )
    try:
        with np.load(params_path) as file:
            leaves = [file[f"leaf{i}"][seed] for i in range(len(file.files))]
        params = _unpacked(description["tree"], [jnp.asarray(leaf) for leaf in leaves])
        _check_fit(description, params)
    except _NO_PARAMETERS as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(
            f"{params_path} is damaged, or does not hold what {description_path.name} describes: "
            f"{why:.500}; restore both from a copy"
        ) from error
    return Policy(description, params, seed)


_NO_PARAMETERS = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, OSError, EOFError,
    zipfile.BadZipFile, ZeroDivisionError,
)  # fmt: skip
"""What reading and tracing raise where files of others hold something else than parameters."""

_LARGEST = 1 << 24
"""Of sizes, seeds and steps in a description; a larger one would be memory first, then an error."""


def _check(description: Mapping[str, Any]) -> None:
    """Refuse a description whose values are of other types, or that no run could have.

    Raises:
      ValueError: naming the field.
    """

    def typed_field(values: Mapping[str, Any], name: str, *kinds: type) -> Any:
        value = values.get(name)
        if type(value) not in kinds:
            fault = f"{name}={value!r}" if name in values else f"the field {name!r} is missing"
            raise ValueError(f"{fault:.200}; restore it from a copy")
        if type(value) is int and abs(value) > _LARGEST:
            raise ValueError(f"{name}={value!r:.40} is over {_LARGEST}; restore it from a copy")
        return value

    for name in ("algorithm", "env"):
        if (text := typed_field(description, name, str)) != printable(text):
            raise ValueError(f"{name}={text!r:.200} has control characters")
    for name in ("phase", "horizon", "seeds"):
        if typed_field(description, name, int) < 0:
            raise ValueError(f"{name}={description[name]!r}; restore it from a copy")
    for name in ("config", "env_args", "space", "layouts"):
        typed_field(description, name, dict)
    space = {"shape": []} | description["space"]  # older ones have no pictures
    if space.keys() != set(Space._fields) or not isinstance(space["discrete"], bool):
        raise ValueError(f"space={space!r:.200} has other fields; restore it from a copy")
    if min(typed_field(space, "observation", int), typed_field(space, "action", int)) < 1:
        raise ValueError(f"space={space!r:.200}: a size is 1 or more; restore it from a copy")
    shape = typed_field(space, "shape", list)
    are_sides = all(type(side) is int and side > 0 for side in shape)
    if shape and not (len(shape) == 3 and are_sides and math.prod(shape) == space["observation"]):
        raise ValueError(f"space={space!r:.200}: its shape is of another size")
    typed_field(description, "tree", dict, int)
    module = algorithms.load(description["algorithm"])
    config = rebuilt(module.config(), description["config"])
    settings.check(config)
    layouts = description["layouts"]
    try:
        if layouts and spaces.space_of(
            layouts["observation"], layouts["action"], ""
        ) != saved_space(description):
            raise ValueError("the layouts are of other sizes")
        phases = len(module.programs(stand_in(description), config))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise ValueError(f"layouts or config: {error!r:.200}; restore it from a copy") from error
    if description["phase"] >= phases:
        raise ValueError(f"phase={description['phase']}: the algorithm has {phases}")


def _algorithm(description: Mapping[str, Any], env: Environment) -> Any:
    """The algorithm of a description, for an environment."""
    module = algorithms.load(description["algorithm"])
    config = rebuilt(module.config(), description["config"])
    return module.programs(env, config)[description["phase"]].algorithm


def _check_fit(description: Mapping[str, Any], params: Any) -> None:
    """Trace the policy once, which fails where the parameters are of another one."""
    env = stand_in(description)
    algorithm = _algorithm(description, env)
    observation = blank_step(algorithm.observe(env).space).observations
    key = jax.random.PRNGKey(0)
    recall = rollout.with_memory(algorithm.best, algorithm.memory)
    jax.eval_shape(recall, key, params, observation, algorithm.memory)


def save(run: Path, description: Mapping[str, Any], params: Any, point: str = "last") -> None:
    """Write the two files of a policy, one after the other and each at once.

    Args:
      run: the run directory.
      description: `algorithm`, `config`, `phase`, `env`, `horizon`, `space`, `layouts`, `seeds`.
      params: leaves [seeds, ...].
      point: see `load`.
    """
    leaves: list[np.ndarray] = []
    tree = _packed(jax.device_get(params), leaves)
    for name in POINTS[point]:
        temporary = run / f".{name}.part"
        if name.endswith(".json"):
            text = json.dumps({**description, "tree": tree}, indent=1)
            temporary.write_text(text, encoding="utf-8")
        else:
            with temporary.open("wb") as file:
                np.savez(file, **{f"leaf{i}": leaf for i, leaf in enumerate(leaves)})
        os.replace(temporary, run / name)


def stand_in(description: Mapping[str, Any]) -> Environment:
    """An environment of the policy's sizes that cannot be played."""

    def refuse(*args: Any) -> Any:
        raise ValueError("a loaded policy has no environment to play in; make one")

    space = saved_space(description)
    return Environment(description["env"], space, description["horizon"], refuse, refuse)


def saved_space(description: Mapping[str, Any]) -> Space:
    """The sizes that a description has."""
    space = {"shape": ()} | description["space"]
    return Space(**space | {"shape": tuple(space["shape"])})


def rebuilt(default: Any, values: Mapping[str, Any]) -> Any:
    """A config from its JSON: `default` with `values`, lists as tuples.

    Raises:
      ValueError: a field that this version does not have.
    """
    fields = {field.name for field in dataclasses.fields(default)}
    unknown = sorted(values.keys() - fields)
    if unknown:
        raise ValueError(
            f"the settings of the policy have {', '.join(unknown)}, which this version does not "
            "have; load it with the version that wrote it"
        )
    plain = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    optional = {f.name for f in dataclasses.fields(default) if "None" in str(f.type)}
    for name, value in plain.items():
        usual = getattr(default, name)
        kinds = {type(usual)} | ({int} if isinstance(usual, float) else set())
        kinds |= {int, float, type(None)} if name in optional else set()
        if type(value) not in kinds or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"{name}={value!r:.200} is no value like {usual!r}")
    return dataclasses.replace(default, **plain)


def _packed(tree: Any, leaves: list[np.ndarray]) -> Any:
    """The shape of nested dicts and tuples as JSON, whose arrays go to `leaves`."""
    if isinstance(tree, Mapping):
        return {"dict": {name: _packed(tree[name], leaves) for name in sorted(tree)}}
    if isinstance(tree, (tuple, list)):
        parts = [_packed(part, leaves) for part in tree]
        kind = type(tree)
        is_namedtuple = hasattr(tree, "_fields")
        where = f"{kind.__module__}:{kind.__qualname__}" if is_namedtuple else ""
        return {"tuple": parts, "type": where}
    leaves.append(np.asarray(tree))
    return len(leaves) - 1


def _unpacked(tree: Any, leaves: list[jax.Array]) -> Any:
    """The inverse of `_packed`. A named tuple is one of jaxrl's or refused."""
    if type(tree) is int and 0 <= tree < len(leaves):
        return leaves[tree]
    if not isinstance(tree, dict):
        tree_text = repr(tree)
        raise ValueError(
            f"policy.json has {tree_text:.80}, which is no part of a tree of parameters"
        )
    if "dict" in tree:
        return {name: _unpacked(part, leaves) for name, part in tree["dict"].items()}
    parts = tuple(_unpacked(part, leaves) for part in tree["tuple"])
    if not tree["type"]:
        return parts
    module, _, name = tree["type"].partition(":")
    kind = getattr(importlib.import_module(module), name) if module.startswith("jaxrl.") else None
    if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise ValueError(
            f"policy.json names {tree['type']!r}, which is no type of a policy's parts"
        )
    return kind(*parts)
