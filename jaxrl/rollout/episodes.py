"""Episodes: the policy and an environment take turns until one of them has ended.

Each turn is a sample whose prefix is the conversation so far. So a turn is sampled under the
prompt, the turns and the observations that it is trained under, token for token. While the
environment answers, the sampler holds the turn's slot, and then prefills only the observation; see
`drive`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.data.environments import Message, Opening, Reply, Token, Turn
from jaxrl.data.types import Problem, Score
from jaxrl.rollout import programs
from jaxrl.rollout.programs import (
    EMPTY,
    Act,
    Context,
    Fork,
    Grade,
    Row,
    Sample,
    Wanted,
    join,
    parts,
)
from jaxrl.sampling.requests import forced
from jaxrl.types import Completion, Prefix, Request, Source

_SEED = 1 << 20  # a count of `Context.rng` that no program reaches


def group(ctx: Context, problem: Problem, first_id: int) -> Generator[Wanted, Any, list[Row]]:
    """The rows of a group: episodes if the problem's task has turns, else single answers.

    The environments of a group have the same seed, so its episodes differ only in what the policy
    samples.
    """
    if ctx.task.of(problem).turns is None:
        rows = yield from programs.single_turn(ctx, problem, first_id)
        return rows if ctx.dialogue is None else list(map(single, rows))
    seed = int(ctx.rng(first_id, _SEED).integers(1 << 31))
    made = programs.requests(ctx, problem, first_id)
    return (yield Fork([episode(ctx, problem, request, seed) for request in made]))


def episode(
    ctx: Context, problem: Problem, request: Request, seed: int
) -> Generator[Wanted, Any, Row]:
    """Play an episode as one row: the policy writes the turns, and the rest is forced or observed.

    Args:
      ctx: its dialogue is that of the task.
      problem: what the environment begins with.
      request: its prompt is replaced by the environment's opening; its budget is that of the whole
        episode.
      seed: of the environment.
    """
    play = Turn(request.id, problem, seed)
    last: Opening | Reply = yield Act(play)
    system = [{"role": "system", "content": ctx.rollout.system}] if ctx.rollout.system else []
    messages: list[Message] = [*system, *last.messages]
    read = ctx.dialogue.action if last.tools else ctx.tokenizer.decode
    calls = 0
    done, marks, rewards, named = EMPTY, list[int](), list[float | None](), dict[str, float]()
    error, stopped = last.error, False
    try:
        if error is None:
            prompt = _prompt(ctx, messages, last.tools)
            budget = ctx.rollout.turn_tokens
            request = dataclasses.replace(request, prompt=prompt, turn_tokens=budget)
    except ValueError as refused:
        error = f"opening: {refused}"
    while error is None:
        count = len(done.tokens)
        made = yield Sample(
            dataclasses.replace(request, prefix=done if count else None, stop=last.stop)
        )
        done, own = parts(made), made.tokens[count:].tolist()
        action = read(own)
        play = dataclasses.replace(play, actions=(*play.actions, action), said=(*play.said, last))
        if ctx.task.of(problem).turns.reads is not None:
            spelled = (ctx.tokenizer.decode([each]) for each in own)
            heard = tuple(map(Token, own, spelled, made.logp[count:].tolist()))
            play = dataclasses.replace(play, tokens=(*play.tokens, heard))
        last = yield Act(play)
        marks += [len(play.actions)] * (len(done.tokens) - len(marks))
        rewards.append(last.reward)
        calls += last.calls
        named |= last.parts
        messages += [{"role": "assistant", "content": action}, *last.messages]
        error = last.error
        if error is None and last.answer is not None:
            score = yield Grade(problem, last.answer)
            error, named = score.error, named | dict(score.parts)
            rewards[-1] = (last.reward or 0.0) + (score.value or 0.0)
        if error is not None or last.done:
            stopped = error is None
            break
        try:
            joint = ctx.dialogue.joint(own[-1], last.messages)
        except ValueError as refused:
            error = f"observation: {refused}"
            break
        given = [forced(joint.close), forced(joint.more, Source.OBSERVATION)]
        if len(done.tokens) + sum(len(each.tokens) for each in given) >= request.max_new_tokens:
            break
        done = join([done, *given])
    return Row(
        _completion(request, done, stopped, marks, rewards, calls),
        ctx.tokenizer.decode(done.tokens.tolist()),
        _score(error, stopped, rewards, named),
        tuple(messages),
    )


def single(row: Row) -> Row:
    """A row of one turn, as an episode."""
    c, value = row.completion, row.score.value
    marks = np.ones(len(c.tokens), np.int16)
    made = dataclasses.replace(c, turn=marks, turn_rewards=(0.0 if value is None else value,))
    return row._replace(completion=made)


def _prompt(
    ctx: Context, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> tuple[int, ...]:
    ids = ctx.dialogue.opening(messages, tools)
    if len(ids) > ctx.rollout.max_prompt_tokens:
        raise ValueError(
            f"it has {len(ids)} tokens, more than rollout.max_prompt_tokens="
            f"{ctx.rollout.max_prompt_tokens}; raise the budget"
        )
    return ids


def _completion(
    request: Request,
    done: Prefix,
    stopped: bool,
    marks: Sequence[int],
    rewards: Sequence[float | None],
    calls: int,
) -> Completion:
    return Completion(
        request,
        *done[:4],
        stopped,
        done.source,
        turn=np.array(marks, np.int16),
        turn_rewards=tuple(reward or 0.0 for reward in rewards),
        tool_calls=calls,
    )


def _score(
    error: str | None, stopped: bool, rewards: Sequence[float | None], named: dict[str, float]
) -> Score:
    """The sum of the turns' rewards; an episode that ended without any has failed."""
    if error is None and stopped and all(reward is None for reward in rewards):
        error = "reward: the environment ended the episode and gave no reward"
    if error is not None:
        return Score(None, error=error)
    return Score(sum(reward or 0.0 for reward in rewards), named)
