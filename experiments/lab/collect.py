"""A step's experience: groups are sampled, with a guide where there is one, and scored.

Like `jaxrl.rollout.programs` and `jaxrl.extensions.guidance`, for all seeds in one call.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import policy
from experiments.lab.arms import Arm, Parts, Sampled
from experiments.lab.policy import Written
from experiments.lab.tasks import EOS, Problems, Task, Verifier, taken
from jaxrl import functions
from jaxrl.data.selection.guidance import Hint
from jaxrl.extensions import latents
from jaxrl.models.config import DecoderConfig
from jaxrl.training.tries import WHOLE, Chunks
from jaxrl.types import Params, Trajectory

_GREEDY = 1e-6
"""A temperature at which the likeliest token is drawn, unless another is as likely."""


def collect(
    task: Task,
    model: DecoderConfig,
    params: Params,
    arm: Arm,
    ids: np.ndarray,
    step: int,
    *,
    versions: np.ndarray,
    likely: Params | None = None,
    settle: Callable[[np.ndarray], np.ndarray] = lambda rewards: rewards,
) -> tuple[Trajectory, np.ndarray]:
    """Sample and score the groups of the prompts `ids` [S, P]; `likely` is as in `policy.sample`,
    and `settle` makes of `arm.rewards` what is trained on, see `scores.settling`.

    Returns:
      The batch on the host, fields [S, N, ...], prompts first as in the real loop; and the rewards
      [S, P, group size], nan where there is none.
    """
    (seeds, count), group = ids.shape, arm.group_size
    problems = taken(task.train, np.repeat(ids, group, axis=1))
    shape = problems.domain.shape
    numbers = jnp.asarray(task.seeds or range(seeds))
    keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.key(s), step))(numbers)
    rewards, written = np.full(shape, np.nan, np.float32), None
    for number in itertools.count():
        before = written and [jax.tree.map(lambda a, s=s: a[s], written) for s in range(seeds)]
        hints = [
            ask(
                arm, number, [int(seed), step, number], rewards[s].reshape(count, group),
                before and before[s],
            )
            for s, seed in enumerate(numbers)
        ]  # fmt: skip
        if number and not any(hints):
            break
        asked, forced, expert = _apply(hints, problems, group, arm.max_new_tokens or task.budget)
        key = jax.vmap(lambda k, n=number: jax.random.fold_in(k, n))(keys)
        seen = problems._replace(prompt=asked)
        made, earned = attempt(
            task, model, params, seen, forced, key, arm.temperature, arm.chunks, arm.mass,
            likely,
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
    if arm.latents:
        given = (written.tokens != 0) & ~written.actions
        imitated = [latents.imitated_groups(arm.latents, [int(s), step], count) for s in numbers]
        experts = experts | (given.any(axis=-1) & np.repeat(imitated, group, axis=1))
    parts = None
    if arm.rewards is not None:
        steps = np.full(seeds, step)
        sampled = Sampled(problems, *written, rewards, group_ids, steps, keys)
        earned = jax.device_get(_rewarded(arm.rewards, model, params, sampled))
        rewards, parts = earned if isinstance(earned, Parts) else (earned, None)
    rewards = settle(rewards)
    batch = _trajectory(problems, written, rewards, group_ids, experts, versions)
    batch = batch.replace(reward_parts=parts)
    return batch, rewards.reshape(seeds, count, group)


def greedy(
    task: Task, model: DecoderConfig, params: Params, ids: np.ndarray, group_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The verifier's rewards of the greedy answers to the prompts `ids` [S, P].

    Returns:
      [S, P * group_size] float32, for each sample that of its prompt; and [S] int, how many tokens
      the greedy answers of a seed have.
    """
    problems = taken(task.train, ids)
    forced = np.full((*ids.shape, task.budget), -1, np.int32)
    keys = jax.vmap(jax.random.key)(jnp.zeros(len(ids), jnp.uint32))
    written, rewards = attempt(task, model, params, problems, forced, keys, _GREEDY, WHOLE)
    return np.repeat(rewards, group_size, axis=1), written.actions.sum(axis=(1, 2))


def ask(
    arm: Arm, number: int, drawn_by: list[int], rewards: np.ndarray, written: Written | None
) -> list[Hint]:
    """The guide's hints for an attempt of one seed, see `jaxrl.data.selection.guidance`; none
    without a guide.

    Args:
      arm: whose guide it is.
      number: of the attempt.
      drawn_by: seed of the random choices.
      rewards: [P, G] of the attempts before.
      written: what was written in them, [P * G, T]; None at the first.
    """
    if arm.guidance is None:
        return []
    count, group = rewards.shape
    given = {
        "attempt": number,
        "rewards": rewards if number else None,
        "rng": np.random.default_rng(drawn_by),
        "count": count,
        "group_size": group,
        "tokens": [],
        "entropies": [],
    }
    if written is not None:
        lengths = np.count_nonzero(written.tokens, axis=1)
        for name, rows in (("tokens", written.tokens), ("entropies", written.entropy)):
            kept = [row[:n] for row, n in zip(rows, lengths, strict=True)]
            given[name] = [kept[i : i + group] for i in range(0, len(kept), group)]
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
    mass: float = 0.0,
    likely: Params | None = None,
) -> tuple[Written, np.ndarray]:
    """Completions of problems [S, N, ...] and their rewards [S, N], on the host.

    The rest is as in `policy.sample`.
    """
    written = policy.sample(
        model, params, problems.prompt, problems.answer, forced, keys, temperature, task.respond,
        chunks, mass, likely,
    )  # fmt: skip
    missing = [(0, 0), (0, 0), (0, task.budget - forced.shape[-1])]
    rewards = _verified(task.reward)(problems.answer, jnp.pad(written.tokens, missing))
    return jax.device_get((written, rewards))


def _apply(
    hints: list[list[Hint]], problems: Problems, group_size: int, budget: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompts [S, N, P] as the policy sees them, tokens to force [S, N, T], whose rows are experts.

    Like `jaxrl.extensions.guidance`: a prefix leaves the policy at least one token.
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
        stopped=np.any(written.tokens == EOS, axis=-1),
        expert=expert,
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _rewarded(
    rewards: Callable[[Sampled], jax.Array | Parts],
    model: DecoderConfig,
    params: Params,
    batch: Sampled,
) -> jax.Array | Parts:
    def one(params: Params, batch: Sampled) -> jax.Array | Parts:
        return rewards(batch._replace(score=lambda t: policy.logprobs(model, params, t)[0]))

    return jax.vmap(one)(params, batch)


@functools.cache
def _verified(reward: Verifier) -> Callable[..., jax.Array]:
    """The rewards of answers [S, N, A] and completions [S, N, T], compiled once a verifier."""
    return jax.jit(jax.vmap(jax.vmap(reward)))
