"""Rollouts with help: rows that start from part of a solution, are one, or are sampled again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future

import jax
import numpy as np

from data.guidance import Hint
from data.scoring import Pool
from data.types import Problem, Score, Task
from jaxrl import functions, rollout
from jaxrl.config import Config, GuidanceConfig
from jaxrl.metrics import Timer
from jaxrl.policy import Policy, encode_prompt
from jaxrl.requests import forced
from jaxrl.rollout import Experience, Row
from jaxrl.types import Params, Request, Source

_GIVEN = {"attempt", "rewards", "rng", "count", "group_size", "tokens", "entropies"}


def check(config: GuidanceConfig, task: Task) -> None:
    """Refuse a guide that does not exist, or a task that has no solutions to help with."""
    if not config.guide:
        return
    functions.resolve(config.guide, config.args, _GIVEN)
    if task.gold is None:
        raise ValueError(
            f"guidance.guide={config.guide!r}, but task {task.name!r} has no solutions to help "
            "with; choose a task that has, or leave it empty"
        )


def collect(
    policy: Policy,
    params: Params,
    problems: Sequence[Problem],
    task: Task,
    pool: Pool,
    config: Config,
    *,
    key: jax.Array,
    first_id: int,
    version: int,
    timer: Timer,
) -> Experience:
    """Sample a group for every problem as the config's guide would have it, and score it.

    Args:
      policy, params, problems, pool: see `rollout.collect`.
      task: has the solutions.
      config: of the run.
      key, first_id, version, timer: see `rollout.collect`; each further attempt has its own key.
    """
    settings, size = config.rollout, config.rollout.group_size
    guide = functions.resolve(config.guidance.guide, config.guidance.args, _GIVEN)
    plain = rollout.requests(policy, problems, settings, first_id)
    rows: list[Row] = []
    for attempt in range(1 << 16):
        given = {
            "attempt": attempt,
            "rewards": _rewards(rows).reshape(len(problems), size) if rows else None,
            "rng": np.random.default_rng([config.seed, first_id, attempt]),
            "count": len(problems),
            "group_size": size,
            "tokens": by_problem([row.completion.tokens for row in rows], size),
            "entropies": by_problem([row.completion.entropy for row in rows], size),
        }
        hints = {
            h.problem * size + h.row: h for h in functions.call(guide, config.guidance.args, given)
        }
        if rows and not hints:
            break
        places = sorted(hints) if rows else list(range(len(plain)))
        made = _sample(
            policy, params, [plain[n] for n in places], [problems[n // size] for n in places],
            [hints.get(n, Hint(n // size, n % size)) for n in places], task, pool, config,
            key=jax.random.fold_in(key, attempt) if attempt else key, version=version, timer=timer,
        )  # fmt: skip
        if not rows:
            rows = made
            continue
        for n, row in zip(places, made, strict=True):
            if not hints[n].if_better or _value(row) > _value(rows[n]):
                rows[n] = row
    return rollout.experience(problems, rows)


def by_problem(each: Sequence[np.ndarray], size: int) -> list[Sequence[np.ndarray]]:
    """What there is of each response, as groups of `size`; none before any is sampled."""
    return [each[i : i + size] for i in range(0, len(each), size)]


def _sample(
    policy: Policy,
    params: Params,
    requests: Sequence[Request],
    problems: Sequence[Problem],
    hints: Sequence[Hint],
    task: Task,
    pool: Pool,
    config: Config,
    *,
    key: jax.Array,
    version: int,
    timer: Timer,
) -> list[Row]:
    """A row for each request, as its hint would have it."""
    budget = config.rollout.max_new_tokens
    solutions = [
        rollout.solution(policy.tokenizer, task, problem, budget)
        if hint.given or hint.expert or hint.shown
        else []
        for problem, hint in zip(problems, hints, strict=True)
    ]
    asked = [
        _hinted(policy, config, task, request, problem, hint, tokens)
        for request, problem, hint, tokens in zip(requests, problems, hints, solutions, strict=True)
    ]
    written = {
        n: rollout.written_by_expert(requests[n], tokens)
        for n, (hint, tokens) in enumerate(zip(hints, solutions, strict=True))
        if hint.expert
    }
    left = [n for n in range(len(requests)) if n not in written]
    sampled = rollout.sample(
        policy, params, [asked[n] for n in left], [problems[n] for n in left], pool,
        config.rollout, config.sampler, key=key, version=version, timer=timer,
        # one width for all calls, so that hints compile nothing anew
        longest_start=config.rollout.max_prompt_tokens + budget,
    ) if left else []  # fmt: skip
    rows = dict(zip(left, sampled, strict=True))
    for n in left:
        if hints[n].shown:  # the policy's tokens, but not its choice under the plain prompt
            completion = rows[n].completion
            marks = np.full(len(completion.tokens), Source.EXPERT, np.int8)
            completion = dataclasses.replace(completion, source=marks)
            rows[n] = rows[n]._replace(completion=completion)
    texts = {n: policy.tokenizer.decode(c.tokens.tolist()) for n, c in written.items()}
    futures: dict[int, Future[Score]] = {}
    for n, text in texts.items():
        rollout.submit(futures, n, pool, problems[n], text)
    scores = rollout.results(futures)
    rows |= {n: Row(completion, texts[n], scores[n]) for n, completion in written.items()}
    return [rows[n] for n in range(len(requests))]


def _hinted(
    policy: Policy,
    config: Config,
    task: Task,
    request: Request,
    problem: Problem,
    hint: Hint,
    solution: Sequence[int],
) -> Request:
    if hint.begin:
        return dataclasses.replace(request, prefix=forced(hint.begin))
    if hint.given:
        # at least one token is left to the policy
        count = min(round(hint.given * len(solution)), len(solution) - 1)
        return dataclasses.replace(request, prefix=forced(solution[:count])) if count else request
    if hint.shown:
        text = config.guidance.shown.format(solution=task.gold(problem), prompt=problem.prompt)
        turns = ({"role": "user", "content": text},)
        told = dataclasses.replace(
            problem, prompt=text, messages=turns if problem.messages else None
        )
        room = config.rollout.max_prompt_tokens + config.rollout.max_new_tokens
        prompt = encode_prompt(
            policy.tokenizer, dataclasses.replace(config.rollout, max_prompt_tokens=room), told
        )
        return dataclasses.replace(request, prompt=prompt, scoring_prompt=request.prompt)
    return request


def _value(row: Row) -> float:
    return -np.inf if row.score.value is None else row.score.value


def _rewards(rows: Sequence[Row]) -> np.ndarray:
    return np.array([np.nan if row.score.value is None else row.score.value for row in rows])
