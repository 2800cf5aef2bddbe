"""How a run begins: afresh, from its own newest checkpoint, or from another run's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import optax

from jaxrl import config as configs
from jaxrl import json_file
from jaxrl.config import Config
from jaxrl.random_streams import RunStream
from jaxrl.record import checkpoint, references, storage
from jaxrl.record.checkpoint import Saved
from jaxrl.rollout import flight, policy
from jaxrl.run import placement, reference
from jaxrl.run.context import RunContext
from jaxrl.run.placement import Complete
from jaxrl.run.warm_start import discard, warm_start
from jaxrl.training import trainable
from jaxrl.training.trainable import Part
from jaxrl.types import TrainState

Assess = Callable[[TrainState, int], dict[str, float]]
_PROBLEMS = ("task", "task_args", "domains", "bandit", "curriculum", "stages")
"""Fields that problems are drawn by."""
_HOST: dict[str, type | tuple[type, ...]] = {
    "step": int, "before": dict, "lineage": list, "extensions": dict, "rollbacks": int,
    "seconds": (int, float), "tokens": (int, float), "rollouts": (dict, type(None)),
}  # fmt: skip
"""What a checkpoint holds beside arrays, and its types."""
_GROUPS = ("rollout", "extensions", "updates_per_batch", "seed")
"""Fields that groups are sampled and scheduled by, beside the staleness."""


def check_fork(config: Config) -> None:
    """Refuse a fork of what is not there, or that would train nothing.

    Raises:
      ValueError: naming the field.
    """
    if not config.fork:
        return
    source, step = fork_point(config.fork)
    checkpoint.require(source, step)
    if config.steps <= step:
        raise ValueError(
            f"steps={config.steps} with fork={config.fork!r}: the fork continues from step {step}, "
            f"so nothing is left to train; set steps above {step}, or fork an earlier step"
        )


def begin(
    run: RunContext,
    optimize: optax.GradientTransformation,
    like: TrainState,
    assess: Assess,
    part: Part,
    complete: Complete,
) -> Saved:
    """The state to continue from; a first one is saved at once, so that nothing is done twice."""
    if run.writer.step is not None:
        run.callbacks.note(f"continuing {run.directory} from step {run.writer.step}")
        return restored(run.directory, run.writer.step, like)
    if run.config.fork:
        saved = forked(run, like, assess)
    else:
        saved = fresh(run, optimize, like, assess, part, complete)
    with run.gate.closed():
        run.writer.save(saved.step, saved.state, saved.host)
        run.writer.wait()
    if run.writer.step == saved.step:
        discard(run.directory)
    return saved


def restored(directory: Path, step: int, like: TrainState) -> Saved:
    """The checkpoint of a step.

    Raises:
      ValueError: it does not fit, or was written by version 0.1.0.
    """
    saved = checkpoint.restore(directory, step, like)
    if "rollouts" not in saved.host:
        raise ValueError(
            f"the checkpoint of step {step} in {directory} was written by jaxrl 0.1.0, whose state "
            "of rollouts cannot be continued; finish that run with version 0.1.0, or start a new "
            "run with --model DIRECTORY, which reads its parameters"
        )
    for name, kind in _HOST.items():
        if not isinstance(value := saved.host.get(name), kind) or isinstance(value, bool):
            raise ValueError(
                f"host.json of step {step} in {directory} is damaged: {name}={value!r:.200} is "
                "of another type; restore it from a copy, or continue from an earlier step"
            )
    if odd := _odd(saved):
        raise ValueError(
            f"host.json of step {step} in {directory} is damaged: {odd}; restore it from a copy, "
            "or continue from an earlier step"
        )
    return saved


def _odd(saved: Saved) -> str:
    """What of a checkpoint's values, all of the right types, cannot be; empty: nothing."""
    host = saved.host
    if host["step"] != saved.step:
        return f"step={host['step']!r}, so it is of another checkpoint"
    for name in ("seconds", "tokens"):
        if not 0 <= host[name] < math.inf:
            return f"{name}={host[name]!r:.200}"
    for name, figure in host["before"].items():
        if not isinstance(figure, int | float):
            return f"before.{name:.200}={figure!r:.200}"
    for fork in host["lineage"]:
        entry = fork if isinstance(fork, dict) else {}
        if type(entry.get("run")) is not str or type(entry.get("step")) is not int:
            return f"lineage has {fork!r:.200}"
    return ""


def fresh(
    run: RunContext,
    optimize: optax.GradientTransformation,
    like: TrainState,
    assess: Assess,
    part: Part,
    complete: Complete,
) -> Saved:
    """Step 0: the model's parameters after the warm start, adapters on, measured."""
    config = run.config
    params = policy.first_params(config, run.policy.model, jax.sharding.get_mesh())
    params = warm_start(run, params)
    key = RunStream.ADAPTERS.key(config.seed)
    params = trainable.attach(run.policy.model, params, config.lora, key)
    params = trainable.in_compute_dtype(run.policy.model, params, part)
    state = placement.fresh_state(params, optimize, like, part, complete)
    if reference.stored(config, run.extensions):
        references.save(run.directory, state.params)
    host = {
        "step": 0,
        "before": _before(run, state, 0, assess),
        "seconds": 0.0,
        "tokens": 0.0,
        "rollouts": None,
        "extensions": _first_of(run),
        "rollbacks": 0,
        "lineage": [],
    }
    return Saved(0, state, host)


def forked(run: RunContext, like: TrainState, assess: Assess) -> Saved:
    """Another run's state, of which this run is the continuation under its own config, measured.

    The reference policy is that run's, or its state where it keeps none. Groups in flight are
    taken over where this run samples as that one did.
    """
    source, step = fork_point(run.config.fork)
    saved = restored(source, step, like)
    if reference.stored(run.config, run.extensions):
        params = references.load(source, like.params, step)
        references.save(run.directory, params or saved.state.params, step)
    run.callbacks.note(f"forked from step {step} of {source}{_other_recipe(source, run.config)}")
    lineage = [*saved.host["lineage"], {"run": str(storage.absolute(source)), "step": step}]
    with checkpoint.telling_damage(source):
        rollouts = _carried(source, run.config, saved.host["rollouts"])
    host_entries = {
        "before": _before(run, saved.state, step, assess),
        "rollouts": rollouts,
        "extensions": _first_of(run) | saved.host["extensions"],
        "rollbacks": 0,
        "lineage": lineage,
    }
    return saved._replace(host=saved.host | host_entries)


def _other_recipe(source: Path, config: Config) -> str:
    """What a note says of a fork whose settings are those of another recipe."""
    path = source / "config.json"
    source_recipe = (
        json_file.field(path, "config").get("recipe") if path.exists() else config.recipe
    )
    if source_recipe == config.recipe:
        return ""
    return (
        f"; WARNING: that run is of recipe {source_recipe!r}, and this one has the settings of "
        f"{config.recipe!r}; leave the recipe out to keep those of that run"
    )


def _before(run: RunContext, state: TrainState, step: int, assess: Assess) -> dict[str, float]:
    """The held-out figures before training."""
    figures, name = assess(state, step), run.origin.figure
    run.callbacks.note(f"before: {name} {figures[name]:.3f} on {run.origin.held_out}")
    return figures


def _carried(source: Path, config: Config, rollouts: dict[str, Any] | None) -> Any:
    """Another run's position in its experience, without groups that this config does not fit."""
    if rollouts is None or "open_groups" not in rollouts:  # it has learned from a file
        return rollouts
    source_config = json_file.field(source / "config.json", "config")
    run_config = json.loads(json.dumps(configs.to_dict(config)))

    def differ(names: Iterable[str]) -> bool:
        return any(source_config.get(name, run_config[name]) != run_config[name] for name in names)

    staleness = [
        values.get("asynchronous", {}).get("staleness") for values in (source_config, run_config)
    ]
    if not differ([*_PROBLEMS, *_GROUPS]) and staleness[0] == staleness[1]:
        return rollouts
    return flight.restarted(rollouts, problems=not differ(_PROBLEMS))


def _first_of(run: RunContext) -> dict[str, Any]:
    """The extensions' state on the host, which a rollback to the run's first step brings back."""
    return {name: extension.get_state() for name, extension in run.extensions.items()}


def fork_names(fork: str) -> tuple[str, str]:
    """The run, and the step or an empty text, that RUN or RUN@STEP names."""
    run, _, step = fork.rpartition("@")
    return (run, step) if step.isdigit() and run else (fork, "")


def fork_point(fork: str) -> tuple[Path, int]:
    """The run and step that RUN or RUN@STEP names.

    Raises:
      ValueError: there is no such run, or it holds no checkpoint.
    """
    run, step = fork_names(fork)
    if not checkpoint.root(storage.locate(run)).is_dir():
        raise ValueError(f"fork={fork!r}: {run} holds no checkpoints; name a run directory")
    if step:
        return storage.locate(run), int(step)
    newest = checkpoint.newest(storage.locate(run), lambda _: None)
    if newest is None:
        raise ValueError(f"fork={fork!r}: {run} holds no checkpoint yet; wait for its first")
    return storage.locate(run), newest
