"""An arm of an experiment, and the loop that trains it: all seeds at once, one step at a time.

A step chooses prompts on the host, lets the policy write (guided, where a method guides it), judges
and reshapes the rewards, and updates by `jaxrl.objective`, which the real loop updates by as well.
Every part is a jitted function of arrays that lead with the seeds; the Python loop around them only
hands them on, so that replay, delays and curricula are ordinary host code.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from data import curriculum
from jaxrl import functions
from jaxrl.config import CurriculumConfig
from jaxrl.objective import ObjectiveConfig, needs_proximal, objective, whole_batch
from jaxrl.types import Params, Trajectory
from launch.lab import policy
from launch.lab.tasks import Problems, Task
from models.config import DecoderConfig


class Look(NamedTuple):
    """What a guide sees of a batch that is about to be written; one seed, N sequences."""

    problems: Problems
    """Of each sequence: fields [N, ...]."""
    member: jax.Array
    """[N] int32, place of the sequence in its group."""
    rate: jax.Array
    """[N] pass rate of the prompt at earlier visits; nan before the first."""
    step: jax.Array
    key: jax.Array
    rewards: jax.Array
    """[N] of the first attempt, where this is a retry; else nan."""
    group_ids: jax.Array
    """[N] int32."""


class Sampled(NamedTuple):
    """What a reward shape sees of a batch; one seed, N sequences of T tokens."""

    problems: Problems
    tokens: jax.Array
    """[N, T] int32."""
    actions: jax.Array
    """[N, T] bool: what the policy chose and is trained on."""
    logp: jax.Array
    """[N, T] float32."""
    entropy: jax.Array
    """[N, T] float32."""
    rewards: jax.Array
    """[N] float32."""
    group_ids: jax.Array
    """[N] int32 in [0, N)."""
    step: jax.Array
    key: jax.Array


Guide = Callable[[Look], jax.Array]
"""-> [N, T] int32: tokens to force on the beginning of each completion, -1 where it writes itself.
A row forced to its end is an expert's."""
Shape = Callable[[Sampled], jax.Array]
"""-> [N] float32: the rewards to train on; nan leaves the sequence out, as a failed score does."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to train. Two arms that differ in one field are a method and its ablation."""

    objective: ObjectiveConfig = ObjectiveConfig()
    learning_rate: float = 1e-3
    steps: int = 100
    prompts: int = 16
    """Prompts a step."""
    group_size: int = 8
    updates_per_batch: int = 1
    """Optimizer updates on each batch, each over an equal share of its groups."""
    temperature: float = 1.0
    max_new_tokens: int = 0
    """Completion budget; 0 takes the task's."""
    delay: int = 0
    """The sampler's policy is this many steps old,"""
    sync_every: int = 1
    """and renewed every so many steps; a number above `steps` makes the data offline."""
    replay: int = 0
    """Earlier batches that each update sees as well, drawn evenly"""
    memory: int = 8
    """from the last so many."""
    reference_every: int = 0
    """Steps after which the reference becomes the policy, the optimizer starts anew; 0: never."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """How prompts are chosen; `prompts` there is ignored, all of the train split are candidates."""
    guide: Guide | None = None
    retry: Guide | None = None
    """Sees the rewards of a first attempt; rows in which it forces a token are written again."""
    shape: Shape | None = None
    scale: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None = None
    """(logp, behavior_logp, mask, each [N, T]) -> multiplier of the update."""
    stages: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    """(first step, fields that change there), the first from step 0 on."""

    def at(self, step: int) -> Arm:
        """The arm in force at a step."""
        if not self.stages:
            return self
        return dataclasses.replace(self, **curriculum.stage_at(self.stages, step), stages=())


class Learner(NamedTuple):
    """What is trained, of all seeds."""

    params: Params
    opt_state: optax.OptState
    steps: jax.Array
    """[S] int32, updates done."""


_OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.95))


def learner(params: Params) -> Learner:
    """Of stacked parameters, at step 0."""
    seeds = len(jax.tree.leaves(params)[0])
    return Learner(params, jax.vmap(_OPTIMIZER.init)(params), jnp.zeros(seeds, jnp.int32))


def train(
    task: Task,
    model: DecoderConfig,
    params: Params,
    arm: Arm,
    *,
    measure: Callable[[Params], dict[str, np.ndarray]],
    measurements: int = 5,
    steps: int | None = None,
) -> dict[str, np.ndarray]:
    """Train all seeds of an arm.

    Args:
      task: the problems.
      model: the policy's shape.
      params: the policies after the warm start, leaves [S, ...].
      arm: what to do.
      measure: figures [S] of policies.
      measurements: how many, evenly over the steps, the last after the last step.
      steps: in place of the arm's.

    Returns:
      Each figure, [measurements, S].
    """
    steps = steps or arm.steps
    seeds = len(jax.tree.leaves(params)[0])
    problems = len(task.train.prompt)
    histories = [
        curriculum.start(problems, window=arm.curriculum.window, seed=s) for s in range(seeds)
    ]
    state, reference = learner(params), params
    behaviors = collections.deque[Params](maxlen=arm.delay + 1)
    memory: collections.deque[Trajectory] = collections.deque(maxlen=arm.memory)
    rng = np.random.default_rng(0)
    marks = {round(steps * (i + 1) / measurements) for i in range(measurements)}
    figures = collections.defaultdict(list)
    for step in range(steps):
        now = arm.at(step)
        if step % now.sync_every == 0:
            behaviors.append(state.params)
        if now.reference_every and step and step % now.reference_every == 0:
            reference, state = state.params, learner(state.params)._replace(steps=state.steps)
        histories, ids = choose(now, histories)
        rates = np.stack([curriculum.pass_rate(h)[i] for h, i in zip(histories, ids, strict=True)])
        batch, rewards = collect(
            task, model, behaviors[0], now, ids, rates, step, version=state.steps
        )
        histories = [curriculum.record(*x) for x in zip(histories, ids, rewards, strict=True)]
        old = [memory[i] for i in rng.integers(len(memory), size=now.replay)] if memory else []
        memory.append(batch)
        for part in [*shares(batch, now), *old]:
            state = update(model, now)(state, reference, part, now.learning_rate)
        if step + 1 in marks:
            for name, value in measure(state.params).items():
                figures[name].append(np.asarray(value))
    return {name: np.stack(values) for name, values in figures.items()}


def choose(
    arm: Arm, histories: list[curriculum.Prompts]
) -> tuple[list[curriculum.Prompts], np.ndarray]:
    """The prompts [S, P] of a step."""
    config = arm.curriculum
    given = {"count": arm.prompts, "allowed": np.ones(len(histories[0].visits), bool)}
    name = config.choose or "data.curriculum:uniform"
    function = functions.resolve(name, config.args, {*given, "state"})
    chosen = [functions.call(function, config.args, given | {"state": h}) for h in histories]
    return [state for state, _ in chosen], np.stack([ids for _, ids in chosen])


class Batch(NamedTuple):
    """A scored batch of all seeds."""

    prompts: jax.Array
    """[S, N, P] int32."""
    trajectory: Trajectory
    """Of completions alone: tokens [S, N, T]."""


def collect(
    task: Task,
    model: DecoderConfig,
    params: Params,
    arm: Arm,
    ids: np.ndarray,
    rates: np.ndarray,
    step: int,
    *,
    version: jax.Array,
) -> tuple[Batch, np.ndarray]:
    """Write and judge the groups of the prompts `ids` [S, P].

    Returns:
      The batch, and the task's own rewards [S, P, group size] of what the policy wrote.
    """
    seeds, group = len(ids), arm.group_size
    rows = np.repeat(ids, group, axis=1)
    problems = jax.tree.map(lambda a: a[rows], task.train)
    shape = rows.shape
    member = np.broadcast_to(np.arange(shape[1]) % group, shape)
    group_ids = np.broadcast_to(np.arange(shape[1], dtype=np.int32) // group, shape)
    keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.key(s), step))(jnp.arange(seeds))
    look = Look(
        problems,
        member,
        np.repeat(rates, group, axis=1).astype(np.float32),
        np.full(seeds, step),
        keys,
        np.full(shape, np.nan, np.float32),
        group_ids,
    )
    free = jnp.full((*shape, arm.max_new_tokens or task.budget), -1)
    forced = free if arm.guide is None else _vmapped(arm.guide)(look)
    given = (task, model, params, problems)
    written, rewards = attempt(*given, forced, keys, arm.temperature)
    judged = rewards
    if arm.retry is not None:
        again = _vmapped(arm.retry)(look._replace(rewards=rewards))
        keys = jax.vmap(lambda k: jax.random.fold_in(k, 1))(keys)
        chosen = jnp.any(again >= 0, axis=-1)
        second, better = attempt(*given, again, keys, arm.temperature)
        written = jax.tree.map(lambda a, b: jnp.where(chosen[..., None], a, b), second, written)
        rewards = jnp.where(chosen, better, rewards)
    if arm.shape is not None:
        sampled = Sampled(
            problems, written.tokens, written.actions, written.logp, written.entropy, rewards,
            group_ids, np.full(seeds, step), keys,
        )  # fmt: skip
        rewards = _vmapped(arm.shape)(sampled)
    trajectory = Trajectory(
        tokens=written.tokens,
        action_mask=written.actions,
        behavior_logp=written.logp,
        policy_version=jnp.broadcast_to(version[:, None, None], written.tokens.shape),
        rewards=jnp.nan_to_num(rewards),
        valid=~jnp.isnan(rewards),
        group_ids=group_ids,
    )
    return Batch(problems.prompt, trajectory), np.asarray(judged).reshape(seeds, -1, group)


def attempt(
    task: Task,
    model: DecoderConfig,
    params: Params,
    problems: Problems,
    forced: jax.Array,
    keys: jax.Array,
    temperature: float,
) -> tuple[policy.Written, jax.Array]:
    """Completions of problems [S, N, ...] and their rewards [S, N]."""
    written = policy.sample(
        model, params, problems.prompt, problems.answer, forced, keys, temperature, task.respond
    )
    missing = [(0, 0), (0, 0), (0, task.budget - forced.shape[-1])]
    return written, _judge(task.reward)(problems.answer, jnp.pad(written.tokens, missing))


def shares(batch: Batch, arm: Arm) -> list[Batch]:
    """Equal runs of whole groups, one an update."""
    size = arm.prompts * arm.group_size // arm.updates_per_batch
    cut = [slice(i * size, (i + 1) * size) for i in range(arm.updates_per_batch)]
    return [jax.tree.map(lambda a, c=c: a[:, c], batch) for c in cut]


def update(model: DecoderConfig, arm: Arm) -> Callable[..., Learner]:
    """The jitted `(learner, reference params, batch, learning rate) -> learner`.

    Shared by all arms of the same objective.
    """
    config = json.dumps(dataclasses.asdict(arm.objective), sort_keys=True)
    return _update(model, config, arm.temperature, arm.max_new_tokens, arm.scale)


@functools.cache
def _update(
    model: DecoderConfig,
    config: str,
    temperature: float,
    max_new_tokens: int,
    scale: Callable[..., jax.Array] | None,
) -> Callable[..., Learner]:
    terms = ObjectiveConfig(**json.loads(config))
    function = functions.resolve(terms.policy, terms.policy_args, set(_GIVEN))
    refers = bool(terms.kl_coef) or functions.takes(function, "ref_logp")

    def one(state: Learner, reference: Params, batch: Batch, rate: jax.Array) -> Learner:
        t = batch.trajectory
        score = functools.partial(
            policy.logprobs,
            model,
            prompts=batch.prompts,
            completions=t.tokens,
            temperature=temperature,
        )
        ref_logp = score(reference)[0] if refers else None
        if needs_proximal(terms):
            t = t.replace(proximal_logp=score(state.params)[0])
        whole = whole_batch(terms, t, max_new_tokens or t.tokens.shape[1])

        def loss(params: Params) -> tuple[jax.Array, jax.Array]:
            logp, entropy = score(params)
            total, _ = objective(terms, t, whole, whole.mask, logp, entropy, ref_logp, state.steps)
            return total, logp

        grads, logp = jax.grad(loss, has_aux=True)(state.params)
        updates, opt_state = _OPTIMIZER.update(grads, state.opt_state)
        if scale is not None:
            rate = rate * scale(logp, t.behavior_logp, whole.mask)
        params = jax.tree.map(lambda p, u: p - rate * u, state.params, updates)
        return Learner(params, opt_state, state.steps + 1)

    return jax.jit(jax.vmap(one, in_axes=(0, 0, 0, None)))


_GIVEN = ("logp", "behavior_logp", "ref_logp", "advantages", "mask", "entropy", "rewards",
          "group_ids", "version_gap", "proximal_logp")  # fmt: skip


@functools.cache
def _vmapped(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return jax.jit(jax.vmap(function))


@functools.cache
def _judge(verifier: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return jax.jit(jax.vmap(jax.vmap(verifier)))
