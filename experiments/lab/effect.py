"""An experiment: a method, what it is compared with, and how an arm of it is run and measured."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.lab import policy, statistics, train
from experiments.lab.arms import Arm
from experiments.lab.collect import attempt
from experiments.lab.policy import Written
from experiments.lab.tasks import PAD, Task, taken
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SAMPLES = 8
"""Completions of each held-out problem after the last step; at the marks before, 1."""
MARKS = 5
"""Measurements over a run, whose mean is the area under a curve."""
BLOCK = 6
"""Seeds of a compiled call. More seeds are run block after block, by the same programs."""
_AT_ONCE = 128
"""Sequences of a call, as in a batch of 16 groups of 8, whose compilation serves here too."""
Measure = Callable[..., dict[str, np.ndarray]]
"""(model, task, arm, policies, policies before either arm, samples=) -> figures [S]."""


@dataclasses.dataclass(frozen=True)
class Effect:
    """What a method claims, as an experiment, see `PROTOCOL.md`.

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
    minimum: float = 0.03
    """Effect of interest, in the statistic's unit."""
    warm_steps: int = 150
    """Supervised steps on the demonstrations before either arm."""
    measure: Measure | None = None
    """In place of `held_out`."""
    stands_for: str = ""
    """The recipe's task or extension whose reward `method.rewards` is in the lab, where that reward
    is the method's own and not the regime's."""
    portable: bool = False
    """Rewards and figures of its own can be had on any task."""
    further: Mapping[str, Callable[[Arm], Arm]] = dataclasses.field(default_factory=dict)
    """Other arms that the method is compared with on its own task, by name, each a change of the
    method's arm: a part of its policy loss taken out, or its idea done in another way. Where a plan
    is older than an arm, the arm is added to it (`plans.make`)."""
    own_task: bool = False
    """Measured on its own task alone, as the method does nothing on the others."""
    on_real_model: bool = False
    """Compared on the real model, or once chosen for it, and so measured on two more tasks here."""
    elsewhere: Mapping[str, Effect] = dataclasses.field(default_factory=dict)
    """Further tasks by name, and the experiment on each (`also`). `control` is the method's own
    task without what the method is for: the claim there is that it does no harm."""

    def also(self, task_name: str, **changes: Any) -> Effect:
        """The experiment with a further task, on which these fields differ."""
        return dataclasses.replace(
            self, elsewhere=dict(self.elsewhere) | {task_name: dataclasses.replace(self, **changes)}
        )


def run_arm(
    effect: Effect, given: Arm, seeds: Sequence[int], *, steps: int | None = None
) -> dict[str, Any]:
    """Train an arm of an experiment and measure it.

    Args:
      effect: the experiment.
      given: one of its arms.
      seeds: whose instances, policies and streams; a seed's result does not depend on the others.
      steps: in place of the arm's, for a quick look, whose warm start is no longer than that.

    Returns:
      JSON-able: `final` and `area`, figure -> one number a seed; `before`, figure -> one number a
      seed before the RL; `curves`, figure -> one number a seed at each of `marks`, which are steps;
      `minutes`.
    """
    began = time.perf_counter()
    length = steps or given.steps
    warm_steps = min(steps or effect.warm_steps, effect.warm_steps)
    blocks = [
        _block(effect, given, tuple(seeds[i : i + BLOCK]), length, warm_steps)
        for i in range(0, len(seeds), BLOCK)
    ]
    start, curves = (
        {
            name: np.concatenate([block[k][name] for block in blocks], axis=k)
            for name in blocks[0][k]
        }
        for k in (0, 1)
    )
    return {
        "final": {k: _rounded(v[-1]) for k, v in curves.items()},
        "area": {k: _rounded(v.mean(axis=0)) for k, v in curves.items() if len(v) == MARKS},
        "before": {k: _rounded(v) for k, v in start.items()},
        "curves": {k: _rounded(v) for k, v in curves.items() if len(v) > 1},
        "marks": [round(length * (i + 1) / MARKS) for i in range(MARKS)],
        "minutes": round((time.perf_counter() - began) / 60, 2),
    }


def _block(
    effect: Effect, given: Arm, seeds: tuple[int, ...], steps: int, warm_steps: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Figures of some seeds before the RL, [S], and at the marks, [marks, S]."""
    task = effect.task.over(seeds)
    model = policy.shape(task.vocabulary, task.prompt_length + task.budget)
    model = dataclasses.replace(model, **given.model or {})
    figures_of = given.measure or effect.measure or held_out
    params = imitate(task, model, warm_steps)

    def measure(now: Params, last: bool) -> dict[str, np.ndarray]:
        samples = SAMPLES if last else 1
        return figures_of(model, task, given, now, params, samples=samples)

    curves = train.train(
        task, model, params, given, measure=measure, measurements=MARKS, steps=steps
    )
    return measure(params, False), curves


def run(effect: Effect, *, seeds: Sequence[int], steps: int | None = None) -> dict:
    """Both arms and their paired difference, outside of any plan: for a look at the code.

    Args:
      effect: the experiment.
      seeds: two or more, of which no effect is measured (`families.DEVELOPMENT`).
      steps: in place of the arms', as in `run_arm`.

    Returns:
      `method` and `ablation`, one number a seed, and `comparison`.
    """
    arms = (effect.method, effect.ablation)
    mine, other = (run_arm(effect, a, seeds, steps=steps)[effect.over] for a in arms)
    if effect.statistic not in mine:
        raise ValueError(f"statistic={effect.statistic!r}: measured are {sorted(mine)}")
    mine, other = mine[effect.statistic], other[effect.statistic]
    compared = statistics.paired(np.array(mine) - np.array(other), minimum=effect.minimum)
    return {"method": mine, "ablation": other, "comparison": dataclasses.asdict(compared)}


def _rounded(values: np.ndarray) -> Any:
    return np.round(np.asarray(values, np.float64), 5).tolist()


def held_out(
    model: DecoderConfig,
    task: Task,
    arm: Arm,
    params: Params,
    start: Params,
    temperature: float = 1.0,
    samples: int = SAMPLES,
) -> dict[str, np.ndarray]:
    """The figures of the policies on the test split, each [S].

    `pass@1` (share of full rewards), `score` (mean reward), `length`, `entropy` (nats a token),
    `pass@1/D` on domain D where there are several; of 8 samples also `pass@8` and `distinct`
    (different full-reward completions among them, as a share).
    """
    written, rewards = attempts(model, task, arm, params, temperature, samples)
    tokens, actions = written.tokens, written.actions
    same = (tokens[..., :, None, :] == tokens[..., None, :, :]).all(axis=-1)
    first = ~np.any(np.tril(same, -1), axis=-1)
    entropy = np.where(actions, written.entropy, 0.0).sum((1, 2, 3)) / actions.sum((1, 2, 3))
    passed = rewards == 1
    figures = {
        "pass@1": passed.mean((1, 2)),
        "score": rewards.mean((1, 2)),
        "length": (tokens != PAD).sum(axis=3).mean((1, 2)),
        "entropy": entropy,
    }
    if samples > 1:
        figures[f"pass@{samples}"] = passed.any(axis=2).mean(axis=1)
        figures["distinct"] = (passed & first).mean((1, 2))
    domain = np.broadcast_to(task.test.domain, passed.shape[:2])
    for d in np.unique(domain) if domain.max() else ():
        own = domain == d
        figures[f"pass@1/{d}"] = (passed.mean(axis=2) * own).sum(axis=1) / own.sum(axis=1)
    return figures


def attempts(
    model: DecoderConfig,
    task: Task,
    arm: Arm,
    params: Params,
    temperature: float = 1.0,
    samples: int = SAMPLES,
) -> tuple[Written, np.ndarray]:
    """What the policies write for each of the P test problems, [S, P, samples, T], and rewards.

    With the task's budget, from the same random streams whatever the policies.
    """
    seeds = len(jax.tree.leaves(params)[0])
    rows = np.tile(np.repeat(np.arange(task.test.prompt.shape[-2]), samples), (seeds, 1))
    problems = taken(task.test, rows)
    numbers = jnp.asarray(task.seeds or range(seeds))
    keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(10**6)))(numbers)
    parts = []
    for i in range(0, rows.shape[1], _AT_ONCE):
        some = jax.tree.map(lambda a, i=i: a[:, i : i + _AT_ONCE], problems)
        forced = np.full((*some.domain.shape, task.budget), -1, np.int32)
        key = jax.vmap(lambda k, i=i: jax.random.fold_in(k, i))(keys)
        parts.append(attempt(task, model, params, some, forced, key, temperature, arm.chunks))
    joined = jax.tree.map(lambda *a: np.concatenate(a, axis=1), *parts)
    return jax.tree.map(lambda a: a.reshape(seeds, -1, samples, *a.shape[2:]), joined)


@functools.lru_cache(maxsize=12)
def imitate(task: Task, model: DecoderConfig, steps: int) -> Params:
    """Fresh policies of the task's seeds, [S, ...], after supervised steps on demonstrations."""
    numbers = jnp.asarray(task.seeds)
    keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(0)))(numbers)
    params = _fresh(model, keys)
    demonstrations = np.concatenate([task.demonstrations.prompt, task.demonstrations.gold], axis=-1)
    opt_state = jax.vmap(_imitation(steps).init)(params)
    streams = [np.random.default_rng([seed, 7]) for seed in task.seeds]
    for _ in range(steps):
        rows = [rng.integers(demonstrations.shape[1], size=128) for rng in streams]
        tokens = np.stack([d[r] for d, r in zip(demonstrations, rows, strict=True)])
        given = (model, task.prompt_length, steps)
        params, opt_state = _imitated(*given, params, opt_state, tokens)
    return params


def _imitation(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.linear_schedule(4e-3, 4e-4, steps))


@functools.partial(jax.jit, static_argnums=0)
def _fresh(model: DecoderConfig, keys: jax.Array) -> Params:
    return jax.vmap(functools.partial(decoder.init, model))(keys)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _imitated(
    model: DecoderConfig,
    prompt: int,
    steps: int,
    params: Params,
    opt_state: optax.OptState,
    tokens: jax.Array,
) -> tuple[Params, optax.OptState]:
    """One step of all seeds on tokens [S, N, L], whose first `prompt` are given."""

    def one(
        params: Params, opt_state: optax.OptState, tokens: jax.Array
    ) -> tuple[Params, optax.OptState]:
        def loss(params: Params) -> jax.Array:
            logp, _ = policy.logprobs(model, params, tokens)
            written = (tokens != PAD) & (jnp.arange(tokens.shape[1]) >= prompt)
            return -jnp.sum(jnp.where(written, logp, 0.0)) / jnp.sum(written)

        updates, opt_state = _imitation(steps).update(jax.grad(loss)(params), opt_state)
        return optax.apply_updates(params, updates), opt_state

    return jax.lax.map(lambda given: one(*given), (params, opt_state, tokens))
