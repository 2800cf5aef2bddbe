"""Training over seeds at once: phases in chunks of scanned steps, evaluated after each."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl.control import host
from jaxrl.control.environment import Environment
from jaxrl.control.program import Carry, Program
from jaxrl.control.rollout import evaluate


class Point(NamedTuple):
    """The state of a run at an evaluation. Arrays begin with the axis of the seeds, [S]."""

    phase: int
    step: int
    """Of the phase, 0 before its first."""
    env_steps: int
    """Of all phases so far, warm-ups left out."""
    returns: np.ndarray
    """Mean undiscounted return of the evaluated policy."""
    costs: np.ndarray
    """Mean cost of its episodes."""
    metrics: dict[str, np.ndarray]
    """Means over the steps since the point before; empty at step 0."""
    carry: Carry


def train(
    programs: Sequence[Program],
    env: Environment,
    *,
    seeds: Sequence[int],
    data: Any = None,
    points: int = 10,
    episodes: int = 16,
    after: Point | None = None,
    note: Callable[[str], None] = warnings.warn,
    on_host: Callable[..., Callable[..., tuple]] = host.advance,
) -> Iterator[Point]:
    """Run the phases one after the other, and evaluate the policy at evenly spaced points.

    Where the local devices divide the seeds, each device has its share of them. A processor can be
    several devices too, by `JAX_NUM_CPU_DEVICES`.

    Args:
      programs: the phases; each takes the learner over from the one before.
      env: where the policy is evaluated.
      seeds: trained side by side, each with the draws that it has alone. Products of matrices may
        round otherwise for several seeds than for one, and training amplifies that: a seed of
        several is trained again, to the last bit, with the same seeds on as many devices.
      data: offline transitions, for the phases that learn from them.
      points: of each phase, beside one before its first step.
      episodes: that each seed plays at a point.
      after: continue after this point of the same run.
      note: told where a run continues otherwise than it would have gone on.
      on_host: what advances a phase that plays on the host, with the arguments of `host.advance`.

    Yields:
      The points in order.
    """
    keys = jnp.stack([jax.random.PRNGKey(seed) for seed in seeds])
    mesh, done = _mesh(len(seeds)), 0
    carry = None if after is None else after.carry
    if mesh is not None and after is not None:
        carry = jax.device_put(carry, NamedSharding(mesh, PartitionSpec("seed")))
    for phase, program in enumerate(programs):
        if after is None or phase >= after.phase:
            phase_keys = jax.vmap(lambda key, phase=phase: jax.random.fold_in(key, phase))(keys)
            prepared = program.algorithm.prepare(data)
            if env.host is None:
                advance = _advance(program, mesh)
                measure = _evaluation(program, env, episodes, mesh)
            else:
                advance, measure = _on_host(
                    program, env, seeds, episodes, mesh, functools.partial(on_host, note=note)
                )
            continues = after is not None and phase == after.phase
            at = after.step if continues else 0
            if not continues:  # the point before the first step may be the one to continue after
                carry = _start(program, mesh, phase_keys, carry, prepared)
                yield Point(
                    phase, 0, done, *measure(carry.learner.params, phase_keys, 0), {}, carry
                )
            while at < program.steps:
                length = min(-(-program.steps // points), program.steps - at)
                at += length
                carry, metrics = advance(carry, prepared, length)
                evaluation = jax.device_get(measure(carry.learner.params, phase_keys, at))
                env_steps = done + at * program.env_steps
                yield Point(phase, at, env_steps, *evaluation, jax.device_get(metrics), carry)
        done += program.steps * program.env_steps


def check_finite(point: Point, programs: Sequence[Program], remedy: str) -> None:
    """Refuse a point that holds a number that is not finite: training has diverged.

    Raises:
      ValueError: naming what it is, the seed and the step.
    """
    learner = {"params": point.carry.learner.params}
    arrays = {
        "return": point.returns,
        **point.metrics,
        **{
            jax.tree_util.keystr(path): x
            for path, x in jax.tree_util.tree_leaves_with_path(learner)
        },
    }
    for name, values in arrays.items():
        rows = np.asarray(values).reshape(len(point.returns), -1)
        bad = ~np.isfinite(rows).all(axis=1)
        if bad.any():
            seed = int(np.argmax(bad))
            value = rows[seed][~np.isfinite(rows[seed])][0]
            raise ValueError(
                f"{name} of seed {seed} is {value} after step {point.step} of phase "
                f"{point.phase} ({programs[point.phase].name}): training has diverged; lower the "
                f"learning rate or the sizes of rewards and observations. {remedy}"
            )


def _mesh(seeds: int) -> Mesh | None:
    """The local devices, if there are several and they divide the seeds."""
    devices = jax.local_devices()
    shared = len(devices) > 1 and seeds % len(devices) == 0
    return Mesh(np.array(devices), ("seed",)) if shared else None


def _each(function: Callable[..., Any], mesh: Mesh | None, axes: tuple[int | None, ...]) -> Any:
    """Compiled: `function` for each seed, whose axis leads where `axes` says 0."""
    every = jax.vmap(function, axes)
    if mesh is None:
        return jax.jit(every)
    specs = tuple(PartitionSpec() if axis is None else PartitionSpec("seed") for axis in axes)
    options = {"in_specs": specs, "out_specs": PartitionSpec("seed"), "check_vma": False}
    return jax.jit(jax.shard_map(every, mesh=mesh, **options))


def _start(
    program: Program, mesh: Mesh | None, keys: jax.Array, before: Carry | None, data: Any
) -> Carry:
    """The carries of all seeds at the beginning of a phase."""

    def start(key: jax.Array, before: Any, data: Any) -> Carry:
        init_key, start_key = jax.random.split(key)
        learner = program.algorithm.init(init_key)
        if before is not None:
            learner = program.adopt(before, learner)
        return program.init(start_key, learner, data)

    learner = None if before is None else before.learner
    axes = (0, None if learner is None else 0, None)
    return _each(start, mesh, axes)(keys, learner, data)


def _advance(program: Program, mesh: Mesh | None) -> Callable[..., tuple[Carry, Any]]:
    """Compiled: carries, data, length -> carries after as many steps, and mean metrics.

    The length is an argument of the compiled program, so that a shorter last stretch reuses it.
    """

    def run_steps(carry: Carry, data: Any, length: jax.Array) -> tuple[Carry, Any]:
        _, metrics = jax.eval_shape(program.step, carry, data)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)

        def step(i: jax.Array, carry_and_sums: tuple[Carry, Any]) -> tuple[Carry, Any]:
            carry, metrics = program.step(carry_and_sums[0], data)
            return carry, jax.tree.map(jnp.add, carry_and_sums[1], metrics)

        carry, sums = jax.lax.fori_loop(0, length, step, (carry, zeros))
        return carry, jax.tree.map(lambda x: x / length, sums)

    return _each(run_steps, mesh, (0, None, None))


def _evaluation(
    program: Program, env: Environment, episodes: int, mesh: Mesh | None
) -> Callable[..., tuple]:
    """Compiled: parameters, keys, step -> mean returns and costs, [S] each."""
    algorithm = program.algorithm
    sees = algorithm.observe(env)

    def evaluate_seed(params: Any, key: jax.Array, step: int) -> tuple[jax.Array, jax.Array]:
        key = jax.random.fold_in(key, step)
        out = evaluate(
            sees, algorithm.best, params, key, episodes=episodes, memory=algorithm.memory
        )
        return jnp.mean(out.returns), jnp.mean(out.costs)

    return _each(evaluate_seed, mesh, (0, 0, None))


def _on_host(
    program: Program,
    env: Environment,
    seeds: Sequence[int],
    episodes: int,
    mesh: Mesh | None,
    on_host: Callable[..., Callable[..., tuple]],
) -> tuple[Callable[..., tuple], Callable[..., tuple]]:
    """What `_advance` and `_evaluation` give, for an environment on the host.

    Raises:
      ValueError: a policy that sees more than the observation.
    """
    if program.algorithm.observe(env) is not env:
        raise ValueError(
            f"env={env.name!r} is played on the host, where the history that this algorithm sees "
            "is not kept; choose an environment in JAX, or another algorithm"
        )
    advance = _advance(program, mesh)
    if program.play is not None:
        advance = on_host(program, env, seeds)
    algorithm = program.algorithm
    return advance, host.evaluation(algorithm.best, env, seeds, episodes, algorithm.memory)


def shapes(programs: Sequence[Program], *, seeds: Sequence[int], data: Any = None) -> Carry:
    """The shapes of what the last of `programs` carries, for restoring it."""
    keys = jax.ShapeDtypeStruct((len(seeds), 2), jnp.uint32)
    carry = None
    for program in programs:
        prepared = program.algorithm.prepare(data)
        carry = jax.eval_shape(functools.partial(_start, program, None), keys, carry, prepared)
    return carry
