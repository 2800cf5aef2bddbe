"""`jaxrl control [ALGORITHM] [flags]`: train it over seeds in a run directory, or continue it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from rich.table import Table

from jaxrl import json_file
from jaxrl.config import CheckpointConfig
from jaxrl.control import algorithms, environments, policy, settings, spaces, train
from jaxrl.control.environment import Environment
from jaxrl.control.program import Carry, Program
from jaxrl.launch import offline_sets, streams
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.console import PlainConsole
from jaxrl.launch.control import actor
from jaxrl.launch.settings import flags
from jaxrl.record import account, checkpoint, metrics, rundir, storage
from jaxrl.record.writer import Writer
from jaxrl.types import TrainState


@dataclasses.dataclass(frozen=True)
class Run:
    """Settings of a control run; the algorithm's own settings are under `algorithm`."""

    preset: str = ""
    """Authors' values of the algorithm's settings, by name; further flags change them."""

    env: str = "point_mass"
    """Environment: a module of jaxrl/control/environments, gymnax/NAME, brax/NAME, playground/NAME,
    xminigrid/NAME, gym/NAME (Gymnasium's), or MODULE:FUNCTION, a function of yours that gives a
    gymnasium.Env."""
    env_args: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Parameters of the environment."""
    data: str = ""
    """Offline data: a tier (random, medium, medium_replay, expert, medium_expert) or `walks`, which
    are generated, or a file or name that jaxrl.data.offline.readers.read accepts. Empty: none."""
    seeds: int = 5
    """Number of seeds trained side by side: 0, 1, ..."""
    points: int = 20
    """Evaluations per phase; each is followed by a checkpoint."""
    episodes: int = 16
    """Episodes per seed and evaluation."""
    run_dir: str = ""
    """Run directory; empty: runs/control-ALGORITHM-ENV."""
    trust: bool = False
    """Links in the run directory may lead out of it."""


def main(argv: list[str]) -> int:
    """Run an algorithm; the same command again continues it. Without one, list them."""
    if not argv or argv[0].startswith("-"):
        return _list()
    name, rest = argv[0], argv[1:]
    try:
        module = algorithms.load(name)
        start = _preset(name, module, flags.value_of("--preset", rest) or "")
        _remembers(name, start, rest)
        field = ("algorithm", type(start), dataclasses.field(default=start))
        run_type = dataclasses.make_dataclass("ControlRun", [field], bases=(Run,), frozen=True)
        run = flags.parse(run_type(), rest, prog=f"jaxrl control {name}")
        settings.check(run, "")
        settings.check(run.algorithm)
        env = environments.get(run.env, **run.env_args)
        _acts(name, module, env)
        _sees(name, module, env)
        _shifts(run, env)
        _plays_apart(name, module, env)
        programs = module.programs(env, run.algorithm)
        _learns(name, programs, run.data)
        directory = Path(run.run_dir or f"runs/control-{name}-{env.name.replace('/', '-')}")
        directory.mkdir(parents=True, exist_ok=True)
        with rundir.locked(directory, trust=run.trust):
            _same(directory, name, run)
            if ":" in run.env or run.env.startswith("gym/"):
                account.remember(directory, [run.env])
            data = _data(env, run) if run.data else None
            if data is not None:
                spaces.check_sizes(data, env.space, env.name)
            with streams.lasting():
                follow(directory, name, programs, env, run, data)
    except REFUSALS as error:
        return refused(error)
    return 0


def follow(
    directory: Path, name: str, programs: Sequence[Program], env: Environment, run: Any, data: Any
) -> None:
    """Train in `directory`: a row of metrics and a checkpoint a point, a summary at the end."""
    console = PlainConsole()
    after = _restore(directory, programs, env, run, data, console.print)
    log = metrics.MetricsLog(directory, -1 if after is None else _total(programs, after), _warn)
    options = CheckpointConfig(every=1)
    point, highest = after, _highest(directory, after)
    if after is not None and np.isfinite(after.returns).all():  # a kill may have come before these
        highest = _save_policies(directory, _described(name, env, run, after), after, highest)
    with Writer(directory, options, _warn) as writer, contextlib.ExitStack() as stack:
        arguments = {"seeds": range(run.seeds), "points": run.points, "episodes": run.episodes}
        if getattr(algorithms.load(name), "APART", False):
            role = actor.Role(name, run.algorithm, run.env, run.env_args, run.seeds)
            arguments["on_host"] = stack.enter_context(actor.ActorProcess(role, _warn)).advance
        for point in train.train(programs, env, data=data, after=after, note=_warn, **arguments):
            step = _total(programs, point)
            train.check_finite(point, programs, f"the point before it stays in {directory}")
            log.write(step, _row(point))
            state, host = _pack(point)
            writer.save(step, state, host)
            highest = _save_policies(directory, _described(name, env, run, point), point, highest)
            return_text = f"return {point.returns.mean():.4g} (seeds {_span(point.returns)})"
            console.print(
                f"{programs[point.phase].name} {point.step}  {return_text}", highlight=False
            )
        if point is not None and np.isfinite(point.returns).all():
            state, host = _pack(point)
            writer.save_now(_total(programs, point), state, host)
            summary = {"return": point.returns.tolist(), "env_steps": point.env_steps}
            storage.write_json(directory / "summary.json", summary | rundir.environment())
    log.close()
    console.print(f"everything is in {directory}", highlight=False)


def _save_policies(
    directory: Path, description: dict[str, Any], point: train.Point, highest: float
) -> float:
    """Save the policies of a point, also as the best where their mean return is over `highest`.

    Returns:
      The highest mean return, this point's included.
    """
    params, mean = point.carry.learner.params, _mean(point.returns)
    policy.save(directory, description, params)
    if mean > highest:
        policy.save(directory, description, params, "best")
    return max(mean, highest)


def _described(name: str, env: Environment, run: Any, point: train.Point) -> dict[str, Any]:
    """What `policy.load` must know of a run."""
    return {
        "algorithm": name,
        "config": dataclasses.asdict(run.algorithm),
        "phase": point.phase,
        "step": point.step,
        "returns": point.returns.tolist(),
        "env": run.env,
        "env_args": run.env_args,
        "horizon": env.horizon,
        "space": env.space._asdict(),
        "layouts": dict(env.layouts),
        "seeds": run.seeds,
    }


def _highest(directory: Path, after: train.Point | None) -> float:
    """The mean return of the best point so far; none is where a run begins."""
    file = directory / policy.POINTS["best"][-1]
    if after is None or not file.is_file():
        return -math.inf
    returns = json_file.read(file).get("returns")
    try:
        highest = _mean(returns)
    except (ValueError, TypeError):
        highest = math.nan
    if not math.isfinite(highest):
        raise ValueError(f"{file} is damaged: returns={returns!r:.80}; restore it from a copy")
    return highest


def _mean(returns: Any) -> float:
    """Of all seeds, alike for an array and for its JSON."""
    return float(np.mean(np.asarray(returns, np.float64)))


def _pack(point: train.Point) -> tuple[TrainState, dict[str, Any]]:
    """A point as a checkpoint holds it: networks, everything else, and where it stands."""
    learner, rest = point.carry.learner, point.carry._replace(learner=())._asdict()
    if not jax.tree.leaves(rest["memory"]):  # older checkpoints do not have the field
        del rest["memory"]
    state = TrainState(learner.params, (learner.opt_state, rest), learner.step)
    return state, {"phase": point.phase, "step": point.step, "env_steps": point.env_steps}


def _restore(
    directory: Path, programs: Sequence[Program], env: Environment, run: Any, data: Any, note: Any
) -> train.Point | None:
    step = checkpoint.newest(directory, note)
    if step is None:
        return None
    file = checkpoint.path(directory, step) / "host.json"
    host = json_file.read(file)
    for field, most in (("phase", len(programs) - 1), ("step", step), ("env_steps", sys.maxsize)):
        if type(host.get(field)) is not int or not 0 <= host[field] <= most:
            value = repr(host.get(field))
            raise ValueError(f"{file} is damaged: {field}={value:.80}; restore it from a copy")
    shapes = train.shapes(programs[: host["phase"] + 1], seeds=range(run.seeds), data=data)
    like = train.Point(0, 0, 0, np.zeros(0), np.zeros(0), {}, shapes)
    saved = checkpoint.restore(directory, step, _pack(like)[0])
    opt_state, rest = saved.state.opt_state
    learner = TrainState(saved.state.params, opt_state, saved.state.step)
    note(f"continuing {directory} after step {step}")
    carry = Carry(**rest)._replace(learner=learner)
    returns, costs = _returns(directory, step, run.seeds), np.full(run.seeds, np.nan)
    return train.Point(host["phase"], host["step"], host["env_steps"], returns, costs, {}, carry)


def _returns(directory: Path, step: int, seeds: int) -> np.ndarray:
    """Of the point of a step [seeds], by the metrics; not-a-number where they do not say."""
    rows = [row for row in metrics.read(directory) if row["step"] == step]
    row = rows[-1] if rows else {}
    return np.array([row.get(f"return/seed{i}") for i in range(seeds)], np.float64)


def _total(programs: Sequence[Program], point: train.Point) -> int:
    """Steps of all phases; a phase's step 0 counts as one more, so that no two points are equal."""
    return sum(p.steps + 1 for p in programs[: point.phase]) + point.step


def _row(point: train.Point) -> dict[str, float]:
    row = {"return": point.returns, "cost": point.costs, **point.metrics}
    means = {name: float(np.mean(value)) for name, value in row.items()}
    seed_returns = {f"return/seed{i}": float(value) for i, value in enumerate(point.returns)}
    return {"env_steps": point.env_steps, **means, **seed_returns}


def _data(env: Environment, run: Any) -> Any:
    if run.data == "walks":
        return offline_sets.walks(env.name.removeprefix("maze_")).sets["walks"]
    if run.data in offline_sets.TIERS:
        return offline_sets.tiers(env).sets[run.data]
    from jaxrl.data.offline import readers

    return readers.read(run.data, *spaces.of_files(env.layouts))


def _learns(name: str, programs: Sequence[Program], data: str) -> None:
    """Refuse no data where the algorithm needs some, and data that it would not read.

    Raises:
      ValueError: with the remedy.
    """
    needed = any(program.needs_data for program in programs)
    if needed and not data:
        raise ValueError(
            f"algorithm {name!r} learns from offline data and data is empty; give --data a "
            f"tier ({', '.join(offline_sets.TIERS)}), a file, minari:NAME, rlds:NAME, "
            "robomimic:FILE or lerobot:DIRECTORY"
        )
    if data and not needed:
        raise ValueError(
            f"data={data!r}: algorithm {name!r} as it is set learns online alone and would not "
            "read it; leave --data out, or choose an algorithm that learns from data, such as "
            "rlpd or iql"
        )


def _acts(name: str, module: Any, env: Environment) -> None:
    """Refuse an environment whose kind of actions the algorithm does not have.

    Raises:
      ValueError: with the environments that it can act in.
    """
    discrete = getattr(module, "DISCRETE", False)
    if discrete in (None, env.space.discrete):
        return
    kinds = ("continuous", "discrete")
    env_names = ("cartpole",) if discrete else ("point_mass", "pendulum", "maze")
    raise ValueError(
        f"algorithm {name!r} takes {kinds[discrete]} actions and env={env.name!r} has "
        f"{kinds[env.space.discrete]} ones; choose another algorithm, or an env such as "
        f"{', '.join(env_names)}"
    )


def _sees(name: str, module: Any, env: Environment) -> None:
    """Refuse pictures to an algorithm that has no encoder.

    Raises:
      ValueError: with the algorithms that have one.
    """
    if env.space.shape and not getattr(module, "PICTURES", False):
        able = [n for n in algorithms.names() if getattr(algorithms.load(n), "PICTURES", False)]
        raise ValueError(
            f"algorithm {name!r} reads no pictures, and the observations of env={env.name!r} are "
            f"pictures {list(env.space.shape)}; choose {', '.join(able)}, or give features with a "
            "gymnasium.ObservationWrapper"
        )


def _remembers(name: str, start: Any, rest: list[str]) -> None:
    """Refuse a memory to an algorithm that has none.

    Raises:
      ValueError: with the algorithms that have one.
    """
    choice = flags.value_of("--algorithm.recurrent", rest)
    if choice is not None and not hasattr(start, "recurrent"):
        able = [n for n in algorithms.names() if hasattr(algorithms.load(n).config(), "recurrent")]
        raise ValueError(
            f"algorithm.recurrent={choice}: algorithm {name!r} keeps no memory of the episode; "
            f"leave it out, or choose {', '.join(able)}"
        )


def _shifts(run: Any, env: Environment) -> None:
    """Refuse to move pictures where there are none.

    Raises:
      ValueError: with the remedy.
    """
    shift = getattr(run.algorithm, "shift", 0)
    if shift and not env.space.shape:
        raise ValueError(
            f"algorithm.shift={shift} moves pictures, and the observations of env={env.name!r} are "
            "numbers; choose --algorithm.shift 0"
        )


def _plays_apart(name: str, module: Any, env: Environment) -> None:
    """Refuse an environment that no other process plays to an algorithm that needs one.

    Raises:
      ValueError: with the remedy.
    """
    if getattr(module, "APART", False) and env.host is None:
        raise ValueError(
            f"algorithm {name!r} plays in a process of its own, and env={env.name!r} is compiled "
            "into the learner's; choose gym/NAME or MODULE:FUNCTION, or the algorithm rlpd"
        )


def _same(directory: Path, name: str, run: Any) -> None:
    """Write the config, or check that the run may continue under this one.

    A directory without a checkpoint has nothing to continue, so that what was refused there, or
    ended before its first point, does not stand in the way of other values.
    """
    config = {"recipe": f"control/{name}", **dataclasses.asdict(run)}
    config = json.loads(json.dumps(config | {"run_dir": "", "trust": False}))
    saved = directory / "config.json"
    if not saved.exists() or not rundir.has_progress(directory):
        storage.write_json(saved, {"config": config, "command": [], **rundir.environment()})
        return
    saved_config = {"trust": False} | json_file.field(saved, "config")  # older runs have none
    if "recurrent" in config["algorithm"]:  # older runs do not have the field
        saved_config["algorithm"] = {"recurrent": "none"} | saved_config["algorithm"]
    differs = sorted(
        k for k in saved_config.keys() | config if saved_config.get(k) != config.get(k)
    )
    if differs:
        raise ValueError(
            f"run_dir={str(directory)!r} holds a run of another config (differs in "
            f"{', '.join(differs)}); choose another directory with --run-dir, or the same values"
        )


def _preset(name: str, module: ModuleType, preset: str) -> Any:
    """The config that flags change.

    Raises:
      ValueError: a preset that the algorithm does not have.
    """
    presets = getattr(module, "PRESETS", {})
    if preset and preset not in presets:
        raise ValueError(
            f"preset={preset!r}: algorithm {name!r} has {', '.join(presets) or 'none'}; leave "
            "--preset out for its defaults"
        )
    return presets[preset] if preset else module.config()


def _list() -> int:
    table = Table("algorithm", "what it is")
    for name in algorithms.names():
        table.add_row(name, (algorithms.load(name).__doc__ or "").partition("\n")[0])
    PlainConsole().print(table)
    return 0


def _span(values: np.ndarray) -> str:
    return f"{values.min():.4g} to {values.max():.4g}"


def _warn(text: str) -> None:
    streams.say(text, error=True)
