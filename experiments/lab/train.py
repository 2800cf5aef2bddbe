"""The loop that trains an arm: all seeds at once, one step at a time.

A step chooses prompts, collects, mixes in what was kept of earlier steps, and updates. Only the
model, its sampling and its update are the lab's own, small enough here to be computed for all seeds
in one call.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.lab import arms, critic, policy, prompts, scores
from experiments.lab.arms import Arm
from experiments.lab.collect import collect, greedy
from experiments.lab.tasks import Task
from jaxrl.data.selection import curriculum
from jaxrl.extensions import replay
from jaxrl.extensions.nucleus import masked
from jaxrl.extensions.sharpness import SharpnessConfig, uphill
from jaxrl.launch.recipes.demonstrations import sasr
from jaxrl.launch.recipes.demonstrations.sasr import ImitationConfig
from jaxrl.losses.divergence.kl import forward_kl
from jaxrl.losses.reduce.aggregate import masked_mean
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import history
from jaxrl.sampling.logits import nucleus_of
from jaxrl.training import packing
from jaxrl.training.logprobs import Restriction
from jaxrl.training.objective import (
    ObjectiveConfig,
    needs_greedy,
    needs_proximal,
    needs_reference,
    objective,
    whole_batch,
)
from jaxrl.training.tries import WHOLE, Chunks
from jaxrl.types import Params, Trajectory


class Learner(NamedTuple):
    """What is trained, of all seeds."""

    params: Params
    opt_state: optax.OptState
    steps: jax.Array
    """[S] int32, updates done."""
    norms: dict[str, jax.Array]
    """[S] float32 each, of the gradient of imitation, see `experiments.lab.imitation`."""
    seeds: jax.Array
    """[S] int32."""
    learned: jax.Array
    """[S] int32, updates done whose rate the loss does not put to 0."""
    previous: Params | None = None
    """Before the last update, where the arm goes by it."""


_OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.95))


def learner(params: Params, seeds: Sequence[int] = ()) -> Learner:
    """Of stacked parameters, at step 0; of seeds 0, 1, ... where not told."""
    count = len(jax.tree.leaves(params)[0])
    numbers = jnp.asarray(seeds or range(count), jnp.int32)
    norms = {name: jnp.zeros(count) for name in ("last", "warm")}
    begun = jax.vmap(_OPTIMIZER.init)(params)
    none = jnp.zeros(count, jnp.int32)
    return Learner(params, begun, none, norms, numbers, none)


def train(
    task: Task,
    model: DecoderConfig,
    params: Params,
    arm: Arm,
    *,
    measure: Callable[[Params, bool], dict[str, np.ndarray]],
    measurements: int = 1,
    steps: int | None = None,
    earlier: Sequence[curriculum.Prompts] | None = None,
    note: Callable[[np.ndarray, np.ndarray], None] = lambda ids, rewards: None,
) -> dict[str, np.ndarray]:
    """Train all seeds of an arm.

    Args:
      task: the problems.
      model: the policy's shape.
      params: the policies after the warm start, leaves [S, ...].
      arm: what to do.
      measure: (policies, whether this is the last time) -> figures [S].
      measurements: how many, evenly over the steps, the last after the last step.
      steps: in place of the arm's.
      earlier: what `histories` says of the arm's earlier run, if that is known already.
      note: called with the prompts [S, P] and rewards [S, P, group size] of each step.

    Returns:
      Each figure, [measurements, S]; one that is measured at the last time alone, [1, S]. `tokens`
      are the action tokens of the batches and greedy answers sampled so far, solutions among them
      included, and
      `updates` those of the optimizer. An update does not count if the loss puts its rate to 0, as
      in a phase that samples alone; those of an arm whose own rate is 0 count.
    """
    steps = steps or arm.steps
    seeds = len(jax.tree.leaves(params)[0])
    if earlier is None and arm.before is not None:
        earlier = histories(task, model, params, arm.before)
    sources, opened = [], None
    numbers = task.seeds or range(seeds)
    buffers = arm.replay and [replay.open_buffer(arm.replay, seed) for seed in numbers]
    state, reference = learner(params, task.seeds), params
    state = state._replace(previous=params) if arm.sharpness else state
    likely = params if arm.nucleus else None
    settle = scores.settling(arm.renormalise, seeds)
    critic_steps = arm.critic and critic.steps(arm.critic, model, _OPTIMIZER)
    critics = critic_steps and critic_steps.init(params)
    samplers = collections.deque[Learner](maxlen=arm.delay + 1)
    marks = {round(steps * (i + 1) / measurements) for i in range(measurements)}
    figures = collections.defaultdict(list)
    spent = np.zeros(seeds, int)
    for step in range(steps):
        now = arm.at(step)
        if step % now.sync_every == 0:
            samplers.append(state)
        if now.reference and step and step % now.reference.every == 0:
            reference = state.params
            if now.reference.reset_optimizer:
                state = state._replace(opt_state=learner(state.params).opt_state)
        if now.nucleus and step and step % now.nucleus.every == 0:
            likely = state.params
        old, versions = samplers[0].params, np.asarray(samplers[0].steps)
        choice = prompts.Choice(now.curriculum, now.bandit, now.weights)
        if choice != opened:
            states, opened = [source.get_state() for source in sources], choice
            given = (task, model, choice, now.prompts)
            sources = [prompts.open_source(*given, s, earlier and earlier[s]) for s in range(seeds)]
            for source, state_before in zip(sources, states, strict=False):  # none at the start
                source.set_state(state_before)
        asked = int(curriculum.quota(now.prompts, oversampling=now.oversampling).budget)
        drawn = [source.draw(asked, old) for source in sources]
        ids = np.array([[d.problem.answer for d in problems] for problems in drawn])
        batch, rewards = collect(
            task, model, old, now, ids, step, versions=versions, likely=likely, settle=settle
        )
        note(ids, rewards)
        kept, sampled = informative(rewards, now.prompts)
        written = batch.action_mask.sum(axis=2).reshape(rewards.shape).sum(axis=2)
        if needs_greedy(now.objective):
            scores_of_greedy, tokens = greedy(task, model, old, ids, now.group_size)
            batch, spent = batch.replace(greedy_rewards=scores_of_greedy), spent + tokens
        spent += np.where(np.arange(asked) < sampled[:, None], written, 0).sum(axis=1)
        if asked > now.prompts:
            batch = groups_of(batch, kept, now.group_size)
        for source, problems, earned in zip(sources, drawn, rewards, strict=True):
            source.learn(problems, earned)
        version = int(state.steps[0])
        if np.any(batch.expert):  # what an expert wrote is as likely as the policy finds it now
            logp = logprobs(model, task, now, state.params, likely, batch)
            wrote = batch.expert[..., None]
            batch = batch.replace(
                behavior_logp=np.where(wrote, logp, batch.behavior_logp),
                policy_version=np.where(wrote & batch.action_mask, version, batch.policy_version),
            )
        if now.replay:
            mixed = [
                buffer.mix(jax.tree.map(lambda a, s=s: a[s], batch), now.group_size, version)
                for s, buffer in enumerate(buffers)
            ]
            batch = jax.tree.map(lambda *a: np.stack(a), *mixed)
        if critics:
            anchored = now.critic.kl_coef or None
            anchor = anchored and _score(model, reference, None, batch.tokens, now.temperature)
            batch = critic_steps.advised(critics, batch, anchor)
        if needs_proximal(now.objective):
            logp = logprobs(model, task, now, state.params, likely, batch)
            batch = batch.replace(proximal_logp=logp)
        for part in packing.shares(batch, now.updates_per_batch):
            state = update(model, task, now)(state, reference, likely, part, now.learning_rate)
            critics = critics and critic_steps.update(critics, part)
        if step + 1 in marks:
            measured = {"tokens": spent, "updates": np.asarray(state.learned)}
            for name, value in (measured | measure(state.params, step + 1 == steps)).items():
                figures[name].append(np.array(value))
    return {name: np.stack(values) for name, values in figures.items()}


def informative(rewards: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """DAPO's dynamic sampling: the first groups whose rewards differ, up to a number.

    Args:
      rewards: [S, P, G], nan where there is none.
      count: of groups to keep, at most P.

    Returns:
      [S, count] places, in the order in which the groups were sampled, with others where too few
      differ; and [S] how many had to be sampled.
    """
    none = np.isnan(rewards)
    low = np.where(none, np.inf, rewards).min(axis=2)
    differ = np.where(none, -np.inf, rewards).max(axis=2) > low
    first = np.argsort(~differ, axis=1, kind="stable")[:, :count]
    enough = differ.sum(axis=1) >= count
    return np.sort(first, axis=1), np.where(enough, first.max(axis=1) + 1, rewards.shape[1])


def groups_of(batch: Trajectory, kept: np.ndarray, group_size: int) -> Trajectory:
    """The groups at places [S, P] of a batch, numbered from 0."""
    rows = (kept[..., None] * group_size + np.arange(group_size)).reshape(len(kept), -1)
    each = np.arange(len(kept))[:, None]
    numbered = np.broadcast_to(np.arange(rows.shape[1], dtype=np.int32) // group_size, rows.shape)
    return jax.tree.map(lambda a: a[each, rows], batch).replace(group_ids=numbered)


def histories(
    task: Task, model: DecoderConfig, params: Params, arm: Arm
) -> list[curriculum.Prompts]:
    """Of each seed, how a run of the arm answers each problem of the train split."""
    size = task.train.prompt.shape[-2]
    curves = [[[] for _ in range(size)] for _ in jax.tree.leaves(params)[0]]

    def note(ids: np.ndarray, rewards: np.ndarray) -> None:
        for seed, (row, earned) in enumerate(zip(ids, rewards, strict=True)):
            for i, reward in zip(row, np.nanmean(earned, axis=-1), strict=True):
                curves[seed][i].append(float(reward))

    train(task, model, params, arm, measure=lambda params, last: {}, note=note)
    numbers = task.seeds or range(len(curves))
    stored = zip(numbers, curves, strict=True)
    return [history.store(curve)._replace(seed=np.uint64(seed)) for seed, curve in stored]


def update(model: DecoderConfig, task: Task, arm: Arm) -> Callable[..., Learner]:
    """The jitted `(learner, reference params, nucleus params, batch, learning rate) -> learner`.

    Shared by all arms of the same objective: learning rate and widths of the clip are arguments of
    the compiled program.
    """
    widths = arms.widths(arm.objective)
    config = dataclasses.asdict(arm.objective)
    config["policy_args"] = {k: v for k, v in config["policy_args"].items() if k not in widths}
    text = json.dumps(config, sort_keys=True)
    budget = arm.max_new_tokens or task.budget
    prompt = task.prompt_length
    given = (arm.temperature, budget, arm.chunks, prompt, arm.mass, arm.imitation, arm.sharpness)
    made = _update(model, text, *given)
    return functools.partial(made, widths)


@functools.cache
def _update(
    model: DecoderConfig,
    config: str,
    temperature: float,
    max_new_tokens: int,
    chunks: Chunks,
    prompt: int,
    mass: float,
    imitation: ImitationConfig | None,
    sharpness: SharpnessConfig | None,
) -> Callable[..., Learner]:
    fixed = ObjectiveConfig(**json.loads(config))

    def one(
        widths: Mapping[str, jax.Array],
        state: Learner,
        reference: Params,
        likely: Params | None,
        t: Trajectory,
        rate: jax.Array,
    ) -> Learner:
        args = dict(fixed.policy_args) | widths
        terms = dataclasses.replace(fixed, policy_args=args)
        allowed = Restriction(likely, masked, nucleus_of, mass) if mass else None
        plain = functools.partial(
            policy.logprobs,
            model,
            tokens=t.tokens,
            temperature=temperature,
            chunks=chunks,
            prompt=prompt,
        )
        score = functools.partial(plain, restriction=allowed)
        ref_logp = plain(reference)[0] if needs_reference(terms) else None
        imitate = jnp.array(False)
        if imitation:
            imitate, _ = sasr.draw_imitation(imitation, state.norms, state.steps, state.seeds)
            flag = {"imitate": jnp.broadcast_to(imitate, t.valid.shape)}
            t = t.replace(extra=dict(t.extra) | flag)
        whole = whole_batch(terms, t, max_new_tokens, step=state.steps)

        def loss(params: Params) -> tuple[jax.Array, dict[str, jax.Array]]:
            scored = score(params)
            return objective(terms, t, whole, whole.mask, *scored, ref_logp, state.steps)

        grads, metrics = jax.grad(loss, has_aux=True)(state.params)
        if sharpness:
            radius = sharpness.radius or sharpness.scale * moved(model, state, t)
            grads, _ = jax.grad(loss, has_aux=True)(uphill(state.params, grads, radius))
        updates, opt_state = _OPTIMIZER.update(grads, state.opt_state)
        scale = metrics.get("lr_scale", 1.0)
        rate = rate * scale
        params = jax.tree.map(lambda p, u: p - rate * u, state.params, updates)
        norms = state.norms
        if imitation:
            norms = sasr.update_norms(
                imitation, norms, state.steps, imitate, optax.global_norm(grads)
            )
        before = state.params if sharpness else None
        learned = state.learned + jnp.int32(scale > 0)
        return Learner(params, opt_state, state.steps + 1, norms, state.seeds, learned, before)

    @jax.jit
    def each(
        widths: Mapping[str, jax.Array],
        state: Learner,
        reference: Params,
        likely: Params | None,
        batch: Trajectory,
        rate: jax.Array,
    ) -> Learner:
        # On a CPU, one seed after another is faster than products batched over seeds.
        of_seeds = (state, reference, likely, batch)
        return jax.lax.map(lambda given: one(widths, *given, rate), of_seeds)

    return each


def moved(model: DecoderConfig, state: Learner, batch: Trajectory) -> jax.Array:
    """Mean divergence of one seed's policy from what it was before, over the actions of a batch."""
    now, before = (
        policy.all_logprobs(model, params, batch.tokens[:, :-1])
        for params in (state.params, state.previous)
    )
    acted = batch.action_mask & batch.learned[:, None]
    return masked_mean(forward_kl(now, before), acted[:, 1:])


def logprobs(
    model: DecoderConfig,
    task: Task,
    arm: Arm,
    params: Params,
    likely: Params | None,
    batch: Trajectory,
) -> jax.Array:
    """Log-probabilities [S, N, L] of a batch under policies, as `update` computes them."""
    prompt = task.prompt_length
    given = (params, likely if arm.mass else None, batch.tokens, arm.temperature)
    return _score(model, *given, arm.chunks, prompt, arm.mass)


@functools.partial(jax.jit, static_argnames=("model", "chunks", "prompt", "mass"))
def _score(
    model: DecoderConfig,
    params: Params,
    likely: Params | None,
    tokens: jax.Array,
    temperature: float,
    chunks: Chunks = WHOLE,
    prompt: int = 0,
    mass: float = 0.0,
) -> jax.Array:
    def one(params: Params, likely: Params | None, tokens: jax.Array) -> jax.Array:
        allowed = Restriction(likely, masked, nucleus_of, mass) if mass else None
        return policy.logprobs(model, params, tokens, temperature, chunks, prompt, allowed)[0]

    return jax.vmap(one)(params, likely, tokens)
