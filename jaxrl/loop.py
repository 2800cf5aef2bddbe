"""The training loop: prompts, rollouts, scores, one update, metrics, checkpoint; then again.

`train` reads top to bottom. All that a run carries is `TrainState` on the mesh and a small `host`
dict beside it; a checkpoint holds both, so the same call in the same directory continues the run.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp

from data import stream, tasks
from data.scoring import Pool, open_pool
from data.types import Problem, Task
from jaxrl import (
    checkpoint,
    evaluate,
    mesh,
    objective,
    optimizer,
    packing,
    policy,
    rollout,
    rollout_log,
)
from jaxrl import config as configs
from jaxrl.config import Config
from jaxrl.metrics import MetricsLog, Timer
from jaxrl.policy import Policy
from jaxrl.train_step import init_state, make_score, make_update
from jaxrl.types import Packed, Params, TrainState, Trajectory

_SAMPLING, _WARM_START = 1, 2  # purposes folded into the run's key


class Watch(NamedTuple):
    """What an onlooker is told. The defaults say nothing."""

    stage: Callable[[str, int, int], None] = lambda name, done, total: None
    """A stage (warm start, train) has done so many of its steps."""
    step: Callable[[int, dict[str, float]], None] = lambda step, metrics: None
    """A training step is finished, with its metrics."""
    note: Callable[[str], None] = lambda text: None
    """Something worth a line."""


class Workshop(NamedTuple):
    """What a run works with and never changes."""

    config: Config
    watch: Watch
    directory: Path
    task: Task
    held_out: list[Problem]
    actor: Policy
    """The policy as the run starts from it."""
    pool: Pool
    checkpoints: ocp.CheckpointManager


def train(config: Config, watch: Watch = Watch()) -> dict[str, Any]:
    """Run a config from its start, or from its newest checkpoint, to its last step.

    Returns:
      What is written to `summary.json`.

    Raises:
      ValueError: a config that cannot work; nothing has been compiled or written yet.
      BlockingIOError: another process is running in this directory.
    """
    start = perf_counter()
    configs.check(config)
    objective.check(config.objective)
    task = tasks.get(config.task, **config.task_args)
    held_out = evaluate.problems(task, config.eval.split, config.eval.problems)
    check_prompts(config, held_out + first_problems(task, config))
    the_mesh = mesh.make(config.mesh)
    directory = prepare_directory(config)
    with (
        locked(directory),
        jax.set_mesh(the_mesh),
        open_pool(
            task.name,
            config.task_args,
            workers=config.score_workers,
            time_limit_s=config.score_seconds,
        ) as pool,
        checkpoint.manager(directory, keep=config.checkpoint.keep) as checkpoints,
    ):
        save_config(directory, config)
        actor = policy.create(config, the_mesh)
        shop = Workshop(config, watch, directory, task, held_out, actor, pool, checkpoints)
        return _run(shop, start)


def _run(shop: Workshop, start: float) -> dict[str, Any]:
    config, actor, checkpoints = shop.config, shop.actor, shop.checkpoints
    problems = stream.prompts(
        shop.task, split="train", seed=config.seed, batch_size=config.rollout.prompts
    )
    key = jax.random.key(config.seed)
    sampling_key = jax.random.fold_in(key, _SAMPLING)
    optimize = optimizer.make(config.optimizer, config.steps * config.updates_per_batch)
    update = make_update(
        actor.model,
        config.objective,
        optimize,
        temperature=config.rollout.temperature,
        max_new_tokens=config.rollout.max_new_tokens,
        remat=config.remat,
    )
    score = make_score(actor.model, temperature=config.rollout.temperature)
    record = rollout_log.recorder(shop.directory, config, actor.tokenizer.decode, score)

    def assess(state: TrainState, step: int) -> dict[str, float]:
        params = policy.sampling_params(state.params, config.compute_dtype)
        figures, experience = evaluate.evaluate(
            actor, params, shop.held_out, shop.pool, config.rollout, config.sampler
        )
        evaluate.save(shop.directory, step, experience)
        return figures

    last = checkpoints.latest_step()
    if last is None:
        state = init_state(warm_start(shop), optimize)
        before = assess(state, 0)
        count = len(shop.held_out)
        shop.watch.note(f"before: pass@1 {before['pass@1']:.3f} on {count} held-out problems")
        host = {"step": 0, "before": before, "seconds": 0.0, "tokens": 0.0, "stream": None}
    else:
        like = abstract_state(actor, optimize)
        state, host = checkpoint.restore(checkpoints, last, like)
        problems.set_state(host["stream"])
        shop.watch.note(f"continuing {shop.directory} from step {last}")
    reference = None
    if config.objective.kl_coef:
        reference = checkpoint.reference(shop.directory, state.params, save=last is None)
    already = host["seconds"]

    log = MetricsLog(shop.directory, resume_step=host["step"])
    timer = Timer()
    for step in range(host["step"] + 1, config.steps + 1):
        began = perf_counter()
        batch = next(problems)
        with timer("sync"):
            params = policy.sampling_params(state.params, config.compute_dtype)
        experience = rollout.collect(
            actor,
            params,
            batch,
            shop.pool,
            config.rollout,
            config.sampler,
            key=sampling_key,
            first_id=(step - 1) * config.rollout.prompts * config.rollout.group_size,
            version=step - 1,
            timer=timer,
        )
        del params
        with timer("train"):
            measured = []
            for part in shares(rollout.as_trajectory(experience, config), config.updates_per_batch):
                packed, cost = pack(part, config)
                ref_logp = None if reference is None else score(reference, packed)
                state, metrics = update(state, part, packed, ref_logp)
                measured.append(metrics)
            metrics = combine(jax.device_get(measured))
        with timer("record"):
            record(step, experience, part, packed, state.params)
        metrics |= rollout.measure(experience) | cost
        metrics["learning_rate"] = float(
            optimizer.learning_rate(config.optimizer, config.steps * config.updates_per_batch)(
                int(state.step) - 1
            )
        )
        host = host | {
            "step": step,
            "tokens": host["tokens"] + metrics["tokens"],
            "stream": problems.get_state(),
        }
        if config.eval.every and step % config.eval.every == 0 and step < config.steps:
            with timer("eval"):
                figures = assess(state, step)
            metrics |= {f"eval/{name}": value for name, value in figures.items()}
        if step % config.checkpoint.every == 0 or step == config.steps:
            with timer("save"):
                host["seconds"] = already + perf_counter() - start
                checkpoint.save(checkpoints, step, state, host)
        metrics |= timer.take() | {"time/step": perf_counter() - began}
        log.write(step, metrics)
        shop.watch.step(step, metrics)
        shop.watch.stage("train", step, config.steps)

    after = assess(state, config.steps)
    log.close()
    summary = {
        "recipe": config.recipe,
        "seed": config.seed,
        "steps": host["step"],
        "seconds": already + perf_counter() - start,
        "tokens": host["tokens"],
        "eval": {"before": host["before"], "after": after},
        **environment(),
    }
    write_json(shop.directory / "summary.json", summary)
    return summary


def warm_start(shop: Workshop) -> Params:
    """Supervised fine-tuning on the task's own solutions: REINFORCE with every reward 1.

    Returns:
      The parameters, which are those of `actor` when the config asks for no warm start.
    """
    config, actor, task = shop.config, shop.actor, shop.task
    warm = config.warm_start
    if not warm.steps:
        return actor.params
    if task.gold is None:
        raise ValueError(
            f"warm_start.steps={warm.steps}, but task {config.task!r} has no solutions to imitate; "
            "set it to 0"
        )
    imitate = objective.ObjectiveConfig(
        policy="losses.policy:reinforce", advantage_args={"baseline": "none", "scale": "none"}
    )
    settings = dataclasses.replace(
        config.optimizer,
        learning_rate=warm.learning_rate,
        schedule="cosine",
        warmup_steps=max(1, warm.steps // 20),
    )
    optimize = optimizer.make(settings, warm.steps)
    update = make_update(
        actor.model,
        imitate,
        optimize,
        temperature=1.0,
        max_new_tokens=config.rollout.max_new_tokens,
        remat=config.remat,
    )
    state = init_state(actor.params, optimize)
    seed = config.seed + (_WARM_START << 32)  # other problems than RL will see
    batches = stream.prompts(task, split="train", seed=seed, batch_size=warm.batch_size)
    for step in range(1, warm.steps + 1):
        batch = rollout.demonstrations(actor, config, task, next(batches))
        state, _ = update(state, batch, pack(batch, config)[0], None)
        shop.watch.stage("warm start", step, warm.steps)
    return state.params


def pack(batch: Trajectory, config: Config) -> tuple[Packed, dict[str, float]]:
    """Packed micro-batches on the mesh, rows split over its batch axes."""
    the_mesh = jax.sharding.get_mesh()
    packed, cost = packing.pack(batch, config.packing, row_multiple=mesh.batch_shards(the_mesh))
    everywhere, split = mesh.replicated(the_mesh), mesh.rows(the_mesh)
    where = Packed(split, split, split, split, split, everywhere, everywhere)
    return jax.device_put(packed, where), cost


def shares(batch: Trajectory, count: int) -> Iterator[Trajectory]:
    """Equal runs of whole groups, one an update."""
    size = len(batch.tokens) // count
    for i in range(count):
        yield jax.tree.map(lambda a: a[i * size : (i + 1) * size], batch)  # noqa: B023


def combine(measured: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Means over a step's updates; the sampler's gap is taken at the first, before any update."""
    out = {k: float(np.mean([m[k] for m in measured])) for k in measured[0]}
    return out | {k: float(measured[0][k]) for k in ("logp_gap", "logp_gap_max")}


def abstract_state(actor: Policy, optimize: optax.GradientTransformation) -> TrainState:
    """Shapes and shardings of the train state: moments lie where their parameters lie."""
    the_mesh = jax.sharding.get_mesh()
    shapes = jax.eval_shape(lambda p: init_state(p, optimize), actor.params)
    where = mesh.param_shardings(actor.model, the_mesh)
    everywhere = mesh.replicated(the_mesh)

    def place(shape: jax.ShapeDtypeStruct, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    opt_state = optax.tree.map_params(
        optimize,
        place,
        shapes.opt_state,
        where,
        transform_non_params=lambda s: place(s, everywhere),
    )
    return TrainState(
        jax.tree.map(place, shapes.params, where), opt_state, place(shapes.step, everywhere)
    )


def first_problems(task: Task, config: Config) -> list[Problem]:
    """The problems of the first step."""
    preview = stream.prompts(
        task, split="train", seed=config.seed, batch_size=config.rollout.prompts
    )
    return next(preview)


def check_prompts(config: Config, problems: list[Problem]) -> None:
    """Refuse prompts over budget before anything is compiled."""
    model, tokenizer = policy.describe(config)
    for problem in problems:
        policy.encode_prompt(tokenizer, config.rollout, problem)
    total = config.rollout.max_prompt_tokens + config.rollout.max_new_tokens
    if total > model.max_positions:
        raise ValueError(
            f"rollout.max_prompt_tokens + rollout.max_new_tokens = {total} exceed the model's "
            f"{model.max_positions} positions; lower one of them"
        )


def run_directory(config: Config) -> Path:
    """Where the run writes."""
    return Path(config.run_dir or f"runs/{config.recipe}-seed{config.seed}")


def prepare_directory(config: Config) -> Path:
    """Create the run directory, or check that this run may continue in it.

    Raises:
      ValueError: the directory cannot be written, or holds another run.
    """
    directory = run_directory(config)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "lock").touch()
    except OSError as error:
        raise ValueError(
            f"run_dir={str(directory)!r} cannot be written: {error}; choose another with --run-dir"
        ) from error
    saved = directory / "config.json"
    if saved.exists():
        differs = configs.changed(configs.load(saved), config)
        for free in _MAY_CHANGE:
            differs.pop(free, None)
        if differs:
            listing = "; ".join(f"{k}: {a!r} there, {b!r} here" for k, (a, b) in differs.items())
            raise ValueError(
                f"run_dir={str(directory)!r} holds a run of another config ({listing}); "
                "choose another directory, or the same values"
            )
    return directory


_MAY_CHANGE = (
    "steps", "run_dir", "score_workers", "score_seconds", "checkpoint.every", "checkpoint.keep",
    "eval.every", "rollout_log.every", "rollout_log.groups",
    "mesh.data", "mesh.fsdp", "mesh.tensor", "mesh.context", "mesh.expert",
)  # fmt: skip
"""Fields that a continued run may be given new values of."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the run directory; the lock goes with the process, however it ends."""
    with (directory / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"run_dir={str(directory)!r} is in use by another process; stop it, or choose "
                "another directory with --run-dir"
            ) from error
        yield


def save_config(directory: Path, config: Config) -> None:
    """The resolved config with versions, revision and command, before the first step."""
    record = {"config": configs.to_dict(config), "command": sys.argv, **environment()}
    write_json(directory / "config.json", record)


def write_json(path: Path, value: Any) -> None:
    """Write whole or not at all."""
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(fresh, path)


def environment() -> dict[str, Any]:
    """What a result depends on beside its config."""
    packages = ("jaxrl", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "grain")
    device = jax.devices()[0]
    return {
        "device": f"{jax.device_count()} x {device.device_kind} ({device.platform})",
        "host": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {name: metadata.version(name) for name in packages},
        "git": revision(),
    }


def revision() -> str | None:
    """Git revision of the source tree, with a + if it has changes; None outside a checkout."""
    root = Path(__file__).parent
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except OSError:
        return None
    return run.stdout.strip() or None
