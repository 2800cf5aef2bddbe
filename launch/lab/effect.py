"""A method against its own ablation at equal budget, over seeds: the smallest honest experiment."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import stats

from jaxrl.launch.lab import policy, train
from jaxrl.launch.lab.arms import Arm
from jaxrl.launch.lab.collect import attempt
from jaxrl.launch.lab.policy import Written
from jaxrl.launch.lab.tasks import PAD, Task
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SAMPLES = 8
"""Completions of each held-out problem."""
MARKS = 5
"""Measurements over a run, of which a mean is taken."""
_AT_ONCE = 128
"""Sequences of a call, as in a batch of 16 groups of 8, whose compilation serves here too."""
Measure = Callable[[DecoderConfig, Task, Arm, Params, Params], dict[str, np.ndarray]]
"""(model, task, arm, policies, policies before either arm) -> figures [S]."""


@dataclasses.dataclass(frozen=True)
class Effect:
    """What a method claims, as an experiment.

    The statistic is measured on held-out problems, at the end or as the mean over the run (the area
    under its curve), for each seed; both arms begin from the same policy and draw from the same
    random streams, and the effect is the mean over seeds of the paired difference.
    """

    claim: str
    """What the method should do to the statistic, in one line."""
    task: Task
    method: Arm
    ablation: Arm
    statistic: str = "pass@1"
    """One of the figures of `measure`."""
    over: Literal["final", "area"] = "final"
    better: Literal["higher", "lower"] = "higher"
    seeds: int = 6
    warm_steps: int = 150
    """Supervised steps on the pupil's demonstrations before either arm."""
    measure: Measure | None = None
    """In place of `held_out`."""


def run(effect: Effect, *, steps: int | None = None) -> dict[str, Any]:
    """Both arms, and what differs.

    Args:
      effect: the experiment.
      steps: of each arm, in place of its own, for a quick look.

    Returns:
      JSON-able: per-seed figures of both arms, the paired difference with its 95% t interval, the
      status, and every other figure's means.
    """
    began = time.perf_counter()
    length = effect.task.train.prompt.shape[1] + effect.task.budget
    model = policy.shape(effect.task.vocabulary, length)
    params = imitate(effect.task, model, effect.seeds, min(steps or 10**9, effect.warm_steps))

    def measure(arm: Arm, now: Params) -> dict[str, np.ndarray]:
        return (effect.measure or held_out)(model, effect.task, arm, now, params)

    common = effect.method.before if effect.method.before == effect.ablation.before else None
    earlier = common and train.histories(effect.task, model, params, common)
    curves = {
        name: train.train(
            effect.task,
            model,
            params,
            arm,
            measure=functools.partial(measure, arm),
            measurements=MARKS if effect.over == "area" else 1,
            steps=steps,
            earlier=earlier,
        )
        for name, arm in (("method", effect.method), ("ablation", effect.ablation))
    }
    before = measure(effect.method, params)
    if effect.statistic not in before:
        raise ValueError(f"statistic={effect.statistic!r}: measured are {sorted(before)}")
    summary = {
        name: {k: v[-1] if effect.over == "final" else v.mean(axis=0) for k, v in curve.items()}
        for name, curve in curves.items()
    }
    method, ablation = (summary[name][effect.statistic] for name in ("method", "ablation"))
    difference, low, high = interval(method - ablation)
    return {
        "claim": effect.claim,
        "statistic": effect.statistic,
        "over": effect.over,
        "better": effect.better,
        "before": round(float(np.mean(before[effect.statistic])), 4),
        "method": [round(float(x), 4) for x in method],
        "ablation": [round(float(x), 4) for x in ablation],
        "difference": difference,
        "low": low,
        "high": high,
        "status": status(low, high, effect.better),
        "seeds": effect.seeds,
        "others": {
            name: {k: round(float(v.mean()), 4) for k, v in figures.items()}
            for name, figures in summary.items()
        },
        "minutes": round((time.perf_counter() - began) / 60, 2),
    }


def interval(differences: np.ndarray) -> tuple[float, float, float]:
    """Mean of paired differences [S] and its 95% Student t interval, each to 4 digits."""
    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / len(differences) ** 0.5
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * error
    return round(mean, 4), round(mean - half, 4), round(mean + half, 4)


def status(low: float, high: float, better: str) -> str:
    """Whether the interval lies on the claimed side of 0, on the other, or on both."""
    if low <= 0 <= high:
        return "no effect at this scale"
    return "effect" if (low > 0) == (better == "higher") else "contrary"


def held_out(
    model: DecoderConfig,
    task: Task,
    arm: Arm,
    params: Params,
    start: Params,
    temperature: float = 1.0,
) -> dict[str, np.ndarray]:
    """The figures of the policies on the test split, each [S].

    `pass@1` (mean reward), `pass@8`, `distinct` (different full-reward completions among 8, as a
    share), `length`, `entropy` (nats a token), and `pass@1/D` on domain D where there are several.
    """
    written, rewards = attempts(model, task, arm, params, temperature)
    tokens, actions = written.tokens, written.actions
    same = (tokens[..., :, None, :] == tokens[..., None, :, :]).all(axis=-1)
    first = ~np.any(np.tril(same, -1), axis=-1)
    entropy = np.where(actions, written.entropy, 0.0).sum((1, 2, 3)) / actions.sum((1, 2, 3))
    figures = {
        "pass@1": rewards.mean((1, 2)),
        f"pass@{SAMPLES}": (rewards == 1).any(axis=2).mean(axis=1),
        "distinct": ((rewards == 1) & first).mean((1, 2)),
        "length": (tokens != PAD).sum(axis=3).mean((1, 2)),
        "entropy": entropy,
    }
    domains = np.unique(task.test.domain)
    if len(domains) > 1:
        for d in domains:
            figures[f"pass@1/{d}"] = rewards[:, task.test.domain == d].mean((1, 2))
    return figures


def attempts(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, temperature: float = 1.0
) -> tuple[Written, np.ndarray]:
    """What the policies write for each of the P test problems, 8 times: [S, P, 8, T] and rewards.

    With the task's budget, from the same random streams whatever the policies.
    """
    seeds = len(jax.tree.leaves(params)[0])
    rows = np.tile(np.repeat(np.arange(len(task.test.prompt)), SAMPLES), (seeds, 1))
    problems = jax.tree.map(lambda a: a[rows], task.test)
    keys = jax.random.split(jax.random.key(10**6), seeds)
    parts = []
    for i in range(0, rows.shape[1], _AT_ONCE):
        some = jax.tree.map(lambda a, i=i: a[:, i : i + _AT_ONCE], problems)
        forced = np.full((*some.domain.shape, task.budget), -1, np.int32)
        key = jax.vmap(lambda k, i=i: jax.random.fold_in(k, i))(keys)
        parts.append(attempt(task, model, params, some, forced, key, temperature, arm.chunks))
    joined = jax.tree.map(lambda *a: np.concatenate(a, axis=1), *parts)
    return jax.tree.map(lambda a: a.reshape(seeds, -1, SAMPLES, *a.shape[2:]), joined)


@functools.cache
def imitate(task: Task, model: DecoderConfig, seeds: int, steps: int) -> Params:
    """Fresh policies, [S, ...], after supervised steps on the pupil's demonstrations."""
    keys = jax.random.split(jax.random.key(0), seeds)
    params = jax.jit(jax.vmap(functools.partial(decoder.init, model)))(keys)
    optimizer = optax.adam(optax.linear_schedule(4e-3, 4e-4, steps))
    demonstrations = np.concatenate([task.pupil.prompt, task.pupil.gold], axis=1)
    prompt = task.pupil.prompt.shape[1]

    @jax.jit
    @jax.vmap
    def step(
        params: Params, opt_state: optax.OptState, tokens: jax.Array
    ) -> tuple[Params, optax.OptState]:
        def loss(params: Params) -> jax.Array:
            logp, _ = policy.logprobs(model, params, tokens)
            written = (tokens != PAD) & (jnp.arange(tokens.shape[1]) >= prompt)
            return -jnp.sum(jnp.where(written, logp, 0.0)) / jnp.sum(written)

        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state)
        return optax.apply_updates(params, updates), opt_state

    opt_state = jax.vmap(optimizer.init)(params)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        rows = rng.integers(len(demonstrations), size=(seeds, 128))
        params, opt_state = step(params, opt_state, demonstrations[rows])
    return params
