"""Guidance: help on problems that the policy fails, from the task's own solutions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from jaxrl import functions
from jaxrl.config import Config
from jaxrl.data.selection.guidance import Hint
from jaxrl.data.types import Problem
from jaxrl.rollout import programs, tasks
from jaxrl.rollout.policy import encode_prompt
from jaxrl.rollout.programs import Context, Fork, Part, Program, Row, Wanted
from jaxrl.run.extension import Extension
from jaxrl.sampling.requests import for_training, forced
from jaxrl.types import Request, Source


@dataclasses.dataclass(frozen=True)
class GuidanceConfig:
    """Which help is given."""

    guide: str = "escalate"
    """When and how to help: a function of `jaxrl.data.selection.guidance`, or module:function."""
    args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Its keyword arguments, e.g. --guidance.args.attempts 2."""
    shown: str = "{solution}\n{prompt}"
    """The prompt of a policy that is shown the solution."""


def guidance(settings: GuidanceConfig) -> Extension:
    """Groups whose rows start from part of a solution, are one, or are sampled again."""

    def check(config: Config) -> None:
        guide = functions.resolve(settings.guide, settings.args, GIVEN)
        task = tasks.of_config(config)
        if task.gold is None and not functions.takes(guide, "tokens"):  # which helps by own rows
            raise ValueError(
                f"guidance.guide={settings.guide!r}, but task {task.name!r} has no solutions to "
                "help with; choose a task that has, or leave the extension out"
            )

    return Extension(
        check=check,
        program=lambda program: guided(settings),
        provides={"extra_prompt_tokens": lambda config: config.rollout.max_new_tokens},
    )


def guided(config: GuidanceConfig) -> Program:
    """Rows that start from part of a solution, are one, or are sampled again, as a guide says.

    The guide, see `jaxrl.data.selection.guidance`, is asked about one problem at a time.
    """
    guide = functions.resolve(config.guide, config.args, GIVEN)

    def program(ctx: Context, problem: Problem, first_id: int) -> Generator[Wanted, Any, list[Row]]:
        plain = programs.requests(ctx, problem, first_id)
        rows: list[Row] = []
        for attempt in itertools.count():
            arguments = {
                "attempt": attempt,
                "rewards": np.array([[programs.reward(row) for row in rows]]) if rows else None,
                "rng": ctx.rng(first_id, attempt),
                "count": 1,
                "group_size": len(plain),
                "tokens": [[row.completion.tokens for row in rows]] if rows else [],
                "entropies": [[row.completion.entropy for row in rows]] if rows else [],
            }
            hints = {hint.row: hint for hint in functions.call(guide, config.args, arguments)}
            if rows and not hints:
                break
            places = sorted(hints) if rows else range(len(plain))
            new_rows = yield Fork(
                [
                    hinted(ctx, config, problem, request, hints.get(g))
                    for g in places
                    for request in [dataclasses.replace(plain[g], draw=attempt)]
                ]
            )
            if not rows:
                rows = new_rows
                continue
            for g, row in zip(places, new_rows, strict=True):
                if not hints[g].if_better or _at_least(row) > _at_least(rows[g]):
                    rows[g] = row
        return rows

    return program


GIVEN = {"attempt", "rewards", "rng", "count", "group_size", "tokens", "entropies"}
"""What a guide may ask for."""


def hinted(
    ctx: Context, config: GuidanceConfig, problem: Problem, request: Request, hint: Hint | None
) -> Part:
    """The row of a request with a hint: an expert's, or one that the hint helps."""
    if hint is None:
        return (yield from programs.answered(ctx, problem, request))
    gold: list[int] = []
    if hint.given or hint.expert or hint.shown:
        gold = programs.solution(ctx.tokenizer, ctx.task, problem, ctx.rollout.max_new_tokens)
    if hint.expert:
        return (yield from programs.graded(ctx, problem, programs.written_by_expert(request, gold)))
    hinted_request = _with_hint(ctx, config, request, problem, hint, gold)
    completion = for_training((yield from programs.write(ctx, hinted_request)))
    if hint.shown:  # the policy's tokens, but not its choice under the plain prompt
        marks = np.full(len(completion.tokens), Source.EXPERT, np.int8)
        completion = dataclasses.replace(completion, source=marks)
    return (yield from programs.graded(ctx, problem, completion))


def _with_hint(
    ctx: Context,
    config: GuidanceConfig,
    request: Request,
    problem: Problem,
    hint: Hint,
    gold: Sequence[int],
) -> Request:
    if hint.begin:
        return dataclasses.replace(request, prefix=forced(hint.begin))
    if hint.given:
        # at least one token is left to the policy
        count = min(round(hint.given * len(gold)), len(gold) - 1)
        return dataclasses.replace(request, prefix=forced(gold[:count])) if count else request
    if hint.shown:
        text = config.shown.format(solution=ctx.task.gold(problem), prompt=problem.prompt)
        turns = ({"role": "user", "content": text},) if problem.messages else None
        hinted_problem = dataclasses.replace(problem, prompt=text, messages=turns)
        rollout = ctx.rollout
        room = rollout.max_prompt_tokens + rollout.max_new_tokens
        prompt = encode_prompt(
            ctx.tokenizer, dataclasses.replace(rollout, max_prompt_tokens=room), hinted_problem
        )
        return dataclasses.replace(request, prompt=prompt, scoring_prompt=request.prompt)
    return request


def _at_least(row: Row) -> float:
    return -np.inf if row.score.value is None else row.score.value
