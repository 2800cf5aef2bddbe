"""An arm of an experiment, and the loop that trains it: all seeds at once, one step at a time.

A step chooses prompts, lets the policy write (with the guide's help, where there is one), judges,
mixes in what was kept of earlier steps, and updates. Curricula, guides, replay and the objective
are the real loop's own, by the same configs; only the model, its sampling and its update are small
enough here to be computed for all seeds in one call.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from data import curriculum
from data.guidance import Hint
from jaxrl import functions, guided, history, replay
from jaxrl.chunks import WHOLE, Chunks
from jaxrl.config import (
    BanditConfig,
    Config,
    CriticConfig,
    CurriculumConfig,
    GuidanceConfig,
    ReferenceConfig,
    ReplayConfig,
)
from jaxrl.objective import (
    ObjectiveConfig,
    needs_proximal,
    needs_reference,
    objective,
    whole_batch,
)
from jaxrl.types import Params, Trajectory
from launch.lab import critic, policy, prompts
from launch.lab.policy import Steer, Written
from launch.lab.tasks import Problems, Task
from models.config import DecoderConfig


class Sampled(NamedTuple):
    """What a change of the rewards sees of a batch; one seed, N sequences of T tokens."""

    problems: Problems
    """Of each sequence: fields [N, ...]."""
    tokens: jax.Array
    """[N, T] int32, the completions."""
    actions: jax.Array
    """[N, T] bool: what the policy chose."""
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
    score: Callable[[jax.Array], jax.Array] | None = None
    """[N, L] int32 tokens, prompts first -> their log-probabilities under the sampler's policy."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to train. Two arms that differ in one field are a method and its ablation."""

    objective: ObjectiveConfig = ObjectiveConfig()
    guidance: GuidanceConfig = GuidanceConfig()
    replay: ReplayConfig = ReplayConfig()
    reference: ReferenceConfig = ReferenceConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    """`history` there is `before`, here."""
    bandit: BanditConfig = BanditConfig()
    weights: tuple[float, ...] = ()
    """Of the task's domains, which the bandit moves; empty draws from all of them as one."""
    before: Arm | None = None
    """An earlier run from the same policies. Its rewards choose what this one trains on, once: the
    `keep` prompts that score highest, or with weights, more of the domains that it failed."""
    critic: CriticConfig = CriticConfig()
    """Of its optimizer, the learning rate counts."""
    steps: int = 100
    learning_rate: float = 1e-3
    prompts: int = 16
    """Prompts a step."""
    group_size: int = 8
    updates_per_batch: int = 1
    """Optimizer updates on each batch, each over an equal share of its groups."""
    temperature: float = 1.0
    max_new_tokens: int = 0
    """Completion budget; 0 takes the task's."""
    chunks: Chunks = WHOLE
    """That completions are thought in, held-out ones too."""
    steer: Steer | None = None
    """What the reference policy makes of the logits of the policy that is trained."""
    delay: int = 0
    """The sampler's policy is this many steps old,"""
    sync_every: int = 1
    """and renewed every so many steps; a number above `steps` makes the data offline."""
    rewards: Callable[[Sampled], jax.Array] | None = None
    """-> [N] float32: the environment's rewards in place of the verifier's, such as noisy ones; nan
    leaves the sequence out, as a failed score does. What a method does to rewards is rather the
    objective's `shaping`."""
    stages: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    """(first step, fields that change there), the first from step 0 on."""

    def at(self, step: int) -> Arm:
        """The arm in force at a step."""
        if not self.stages:
            return self
        return dataclasses.replace(self, **curriculum.stage_at(self.stages, step), stages=())


def arm(config: Config, **changes: Any) -> Arm:
    """The arm that does what a recipe's config does, with `changes` of other fields."""
    shared = (
        "objective", "guidance", "replay", "reference", "curriculum", "bandit", "critic",
        "updates_per_batch",
    )  # fmt: skip
    given = {name: getattr(config, name) for name in shared} | {"chunks": config.rollout.chunks}
    return Arm(**given | changes)


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
    note: Callable[[np.ndarray, np.ndarray], None] = lambda ids, rewards: None,
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
      note: told the prompts [S, P] and rewards [S, P, group size] of each step.

    Returns:
      Each figure, [measurements, S].
    """
    steps = steps or arm.steps
    seeds = len(jax.tree.leaves(params)[0])
    earlier = [None] * seeds
    if arm.before is not None:
        earlier = _histories(task, model, params, arm.before)
    sources, opened = [], None
    buffers = [replay.open_buffer(arm.replay, seed) for seed in range(seeds)]
    state, reference = learner(params), params
    judge = critic.steps(arm.critic, model, _OPTIMIZER)
    judges = judge.begun(params) if arm.critic.use else None
    samplers = collections.deque[Learner](maxlen=arm.delay + 1)
    marks = {round(steps * (i + 1) / measurements) for i in range(measurements)}
    figures = collections.defaultdict(list)
    for step in range(steps):
        now = arm.at(step)
        if step % now.sync_every == 0:
            samplers.append(state)
        if now.reference.every and step and step % now.reference.every == 0:
            reference = state.params
            if now.reference.reset_optimizer:
                state = learner(state.params)._replace(steps=state.steps)
        old, versions = samplers[0].params, np.asarray(samplers[0].steps)
        choice = prompts.Choice(now.curriculum, now.bandit, now.weights)
        if choice != opened:
            states, opened = [source.get_state() for source in sources], choice
            given = (task, model, choice, now.prompts)
            sources = [prompts.open_source(*given, s, earlier[s]) for s in range(seeds)]
            for source, state_before in zip(sources, states, strict=False):  # none at the start
                source.set_state(state_before)
        drawn = [source.draw(now.prompts, old) for source in sources]
        ids = np.array([[problem.answer for problem in problems] for problems in drawn])
        batch, rewards = collect(
            task, model, old, now, ids, step, versions=versions, reference=reference
        )
        note(ids, rewards)
        for source, earned in zip(sources, rewards, strict=True):
            source.learn(earned)
        if now.replay.groups:
            version = int(state.steps[0])
            mixed = [
                buffer.mix(jax.tree.map(lambda a, s=s: a[s], batch), now.group_size, version)
                for s, buffer in enumerate(buffers)
            ]
            batch = jax.tree.map(lambda *a: np.stack(a), *mixed)
        if now.guidance.guide:  # what an expert wrote is as likely as the policy finds it now
            logp = _score(model, state.params, batch.tokens, now.temperature)
            mixed = np.where(batch.expert[..., None], logp, batch.behavior_logp)
            batch = batch.replace(behavior_logp=mixed)
        if judges:
            anchored = now.critic.kl_coef or None
            anchor = anchored and _score(model, reference, batch.tokens, now.temperature)
            batch = judge.advised(judges, batch, anchor)
        for part in shares(batch, now.updates_per_batch):
            state = update(model, task, now)(state, reference, part, now.learning_rate)
            judges = judges and judge.update(judges, part)
        if step + 1 in marks:
            for name, value in measure(state.params).items():
                figures[name].append(np.asarray(value))
    return {name: np.stack(values) for name, values in figures.items()}


def _histories(
    task: Task, model: DecoderConfig, params: Params, arm: Arm
) -> list[curriculum.Prompts]:
    """Of each seed, how a run of the arm answers each problem of the train split."""
    size = len(task.train.prompt)
    curves = [[[] for _ in range(size)] for _ in jax.tree.leaves(params)[0]]

    def note(ids: np.ndarray, rewards: np.ndarray) -> None:
        for seed, (row, earned) in enumerate(zip(ids, rewards, strict=True)):
            for i, reward in zip(row, np.nanmean(earned, axis=-1), strict=True):
                curves[seed][i].append(float(reward))

    train(task, model, params, arm, measure=lambda params: {}, note=note)
    return [history.store(c)._replace(seed=np.uint64(s)) for s, c in enumerate(curves)]


def collect(
    task: Task,
    model: DecoderConfig,
    params: Params,
    arm: Arm,
    ids: np.ndarray,
    step: int,
    *,
    versions: np.ndarray,
    reference: Params | None = None,
) -> tuple[Trajectory, np.ndarray]:
    """Write and judge the groups of the prompts `ids` [S, P].

    Returns:
      The batch on the host, fields [S, N, ...], prompts first as in the real loop; and the rewards
      [S, P, group size], nan where there is none.
    """
    (seeds, count), group = ids.shape, arm.group_size
    problems = jax.tree.map(lambda a: a[np.repeat(ids, group, axis=1)], task.train)
    shape = problems.domain.shape
    keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.key(s), step))(jnp.arange(seeds))
    rewards, written = np.full(shape, np.nan, np.float32), None
    for number in itertools.count():
        hints = [
            ask(arm, number, seed, step, rewards.reshape(seeds, count, group), written)
            for seed in range(seeds)
        ]
        if number and not any(hints):
            break
        asked, forced, expert = _apply(hints, problems, group, arm.max_new_tokens or task.budget)
        key = jax.vmap(lambda k, n=number: jax.random.fold_in(k, n))(keys)
        seen = problems._replace(prompt=asked)
        made, earned = attempt(
            task, model, params, seen, forced, key, arm.temperature, arm.chunks,
            **({"steer": arm.steer, "other": reference} if arm.steer else {}),
        )  # fmt: skip
        if not number:
            written, rewards, experts = made, earned, expert
            continue
        again = np.zeros(shape, bool)
        for seed, hint in ((s, h) for s, hinted in enumerate(hints) for h in hinted):
            n = hint.problem * group + hint.row
            again[seed, n] = not hint.if_better or earned[seed, n] > rewards[seed, n]
        rewards, experts = np.where(again, earned, rewards), np.where(again, expert, experts)
        mixed = zip(made, written, strict=True)
        written = Written(*(np.where(again[..., None], new, old) for new, old in mixed))
    group_ids = np.broadcast_to(np.arange(shape[1], dtype=np.int32) // group, shape)
    if arm.rewards is not None:
        steps = np.full(seeds, step)
        sampled = Sampled(problems, *written, rewards, group_ids, steps, keys)
        rewards = np.asarray(_rewarded(arm.rewards, model, params, sampled))
    batch = _trajectory(problems, written, rewards, group_ids, experts, versions)
    return batch, rewards.reshape(seeds, count, group)


def ask(
    arm: Arm, number: int, seed: int, step: int, rewards: np.ndarray, written: Written | None
) -> list[Hint]:
    """The guide's hints for an attempt of one seed, see `data.guidance`; none without a guide."""
    if not arm.guidance.guide:
        return []
    count, group = rewards.shape[1:]
    given = {
        "attempt": number,
        "rewards": rewards[seed] if number else None,
        "rng": np.random.default_rng([seed, step, number]),
        "count": count,
        "group_size": group,
        "tokens": [],
        "entropies": [],
    }
    if written is not None:
        lengths = np.count_nonzero(written.tokens[seed], axis=1)
        for name, rows in (("tokens", written.tokens), ("entropies", written.entropy)):
            kept = [row[:n] for row, n in zip(rows[seed], lengths, strict=True)]
            given[name] = guided.by_problem(kept, group)
    function = functions.resolve(arm.guidance.guide, arm.guidance.args, set(given))
    return functions.call(function, arm.guidance.args, given)


def attempt(
    task: Task,
    model: DecoderConfig,
    params: Params,
    problems: Problems,
    forced: np.ndarray,
    keys: jax.Array,
    temperature: float,
    chunks: Chunks,
    **steering: Any,
) -> tuple[Written, np.ndarray]:
    """Completions of problems [S, N, ...] and their rewards [S, N], on the host.

    `steering` is the `steer` and `other` of `policy.sample`.
    """
    written = policy.sample(
        model, params, problems.prompt, problems.answer, forced, keys, temperature, task.respond,
        chunks, **steering,
    )  # fmt: skip
    missing = [(0, 0), (0, 0), (0, task.budget - forced.shape[-1])]
    rewards = _vmapped(jax.vmap(task.reward))(problems.answer, jnp.pad(written.tokens, missing))
    return jax.device_get((written, rewards))


def shares(batch: Trajectory, count: int) -> list[Trajectory]:
    """Equal runs of whole groups, one an update."""
    size = batch.tokens.shape[1] // count
    cut = [slice(i * size, (i + 1) * size) for i in range(count)]
    return [jax.tree.map(lambda a, c=c: a[:, c], batch) for c in cut]


def update(model: DecoderConfig, task: Task, arm: Arm) -> Callable[..., Learner]:
    """The jitted `(learner, reference params, batch, learning rate) -> learner`.

    Shared by all arms of the same objective.
    """
    config = json.dumps(dataclasses.asdict(arm.objective), sort_keys=True)
    budget = arm.max_new_tokens or task.budget
    prompt = task.train.prompt.shape[1]
    return _update(model, config, arm.temperature, budget, arm.chunks, prompt, arm.steer)


@functools.cache
def _update(
    model: DecoderConfig,
    config: str,
    temperature: float,
    max_new_tokens: int,
    chunks: Chunks,
    prompt: int,
    steer: Steer | None,
) -> Callable[..., Learner]:
    terms = ObjectiveConfig(**json.loads(config))

    def one(state: Learner, reference: Params, t: Trajectory, rate: jax.Array) -> Learner:
        def score(params: Params) -> tuple[jax.Array, jax.Array]:
            other = reference if steer else None
            return policy.logprobs(
                model, params, t.tokens, temperature, chunks, prompt, steer, other
            )

        ref_logp = score(reference)[0] if needs_reference(terms) else None
        if needs_proximal(terms):
            t = t.replace(proximal_logp=score(state.params)[0])
        whole = whole_batch(terms, t, max_new_tokens, step=state.steps)

        def loss(params: Params) -> jax.Array:
            scored = score(params)
            return objective(terms, t, whole, whole.mask, *scored, ref_logp, state.steps)[0]

        updates, opt_state = _OPTIMIZER.update(jax.grad(loss)(state.params), state.opt_state)
        params = jax.tree.map(lambda p, u: p - rate * u, state.params, updates)
        return Learner(params, opt_state, state.steps + 1)

    return jax.jit(jax.vmap(one, in_axes=(0, 0, 0, None)))


def _apply(
    hints: list[list[Hint]], problems: Problems, group_size: int, budget: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompts [S, N, P] as the policy sees them, tokens to force [S, N, T], whose rows are experts.

    Like `jaxrl.guided`: a prefix leaves the policy at least one token.
    """
    prompts, gold = problems.prompt.copy(), problems.gold[..., :budget]
    forced = np.full(gold.shape, -1, np.int32)
    expert = np.zeros(gold.shape[:2], bool)
    for seed, hinted in enumerate(hints):
        for hint in hinted:
            n = hint.problem * group_size + hint.row
            if hint.begin:
                forced[seed, n, : len(hint.begin)] = hint.begin
                continue
            length = int(np.count_nonzero(gold[seed, n]))
            if not hint.expert:
                length = min(round(hint.given * length), length - 1)
            forced[seed, n, :length] = gold[seed, n, :length]
            if hint.shown:
                prompts[seed, n] = problems.shown[seed, n]
            expert[seed, n] = hint.expert or hint.shown
    return prompts, forced, expert


def _trajectory(
    problems: Problems,
    written: Written,
    rewards: np.ndarray,
    group_ids: np.ndarray,
    expert: np.ndarray,
    versions: np.ndarray,
) -> Trajectory:
    before = ((0, 0), (0, 0), (problems.prompt.shape[-1], 0))
    real = written.tokens != 0
    actions = np.pad(np.where(expert[..., None], real, written.actions), before)
    return Trajectory(
        tokens=np.concatenate([problems.prompt, written.tokens], axis=-1),
        action_mask=actions,
        behavior_logp=np.where(actions, np.pad(written.logp, before), 0.0),
        policy_version=np.where(actions, versions[:, None, None], 0).astype(np.int32),
        rewards=np.nan_to_num(rewards).astype(np.float32),
        valid=~np.isnan(rewards),
        group_ids=group_ids,
        expert=expert,
    )


@functools.partial(jax.jit, static_argnames="model")
def _score(
    model: DecoderConfig, params: Params, tokens: jax.Array, temperature: float
) -> jax.Array:
    one = functools.partial(policy.logprobs, model, temperature=temperature)
    return jax.vmap(lambda p, t: one(p, t)[0])(params, tokens)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _rewarded(
    rewards: Callable[[Sampled], jax.Array], model: DecoderConfig, params: Params, batch: Sampled
) -> jax.Array:
    def one(params: Params, batch: Sampled) -> jax.Array:
        return rewards(batch._replace(score=lambda t: policy.logprobs(model, params, t)[0]))

    return jax.vmap(one)(params, batch)


@functools.cache
def _vmapped(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return jax.jit(jax.vmap(function))
