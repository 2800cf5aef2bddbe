"""Rollout programs: from a problem to the scored rows of its group.

A program is a generator. It yields what it needs, `Sample`, `Grade` or `Act`, and receives the
result; `Fork` runs other programs side by side and gives what each returns. It returns the rows of
its group.
`jaxrl.rollout.drive` runs many programs over one sampler, keeps unfinished ones for later steps,
and replays them from their log after a restart. A program may therefore reach the policy and the
scorers only through what it yields, and take randomness only from `Context.rng`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.config import RolloutConfig
from jaxrl.data.environments import Arrays, Message, Turn
from jaxrl.data.rewards import group
from jaxrl.data.sources import extract
from jaxrl.data.text import dialogue, tokenizers
from jaxrl.data.text.dialogue import Dialogue
from jaxrl.data.types import Problem, Score, Task
from jaxrl.rollout.policy import encode_prompt
from jaxrl.sampling import constraints
from jaxrl.sampling.constraints import Matchers
from jaxrl.sampling.requests import for_training, forced, parts, start_of
from jaxrl.types import Completion, OutputConstraint, Prefix, Request, Source

GREEDY = 1 << 30
"""Added to the id of a group's first row for its greedy answer; no sampled row has such an id."""


class Row(NamedTuple):
    """One sampled and scored completion."""

    completion: Completion
    text: str
    score: Score
    messages: tuple[Message, ...] = ()
    """The conversation, where the completion is an episode."""


class Sample(NamedTuple):
    """Asks for a completion. The result is a `Completion`."""

    request: Request


class Grade(NamedTuple):
    """Asks for the score of a text. The result is a `Score`."""

    problem: Problem
    text: str


class Act(NamedTuple):
    """Sends an action to an environment. The result is the `Reply`, or first the `Opening`."""

    turn: Turn


class Fork(NamedTuple):
    """Asks for programs to be run side by side. The result is the list of what each returns."""

    programs: Sequence[Generator[Any, Any, Any]]


Wanted = Sample | Grade | Act | Fork
Program = Callable[["Context", Problem, int], Generator[Wanted, Any, list[Row]]]
"""`(context, problem, id of the group's first row) -> rows`, as many as the group size."""
Part = Generator[Wanted, Any, Row]


class Context(NamedTuple):
    """What a program receives; it is the same for all groups of a stage."""

    rollout: RolloutConfig
    seed: int
    """Of the run."""
    tokenizer: tokenizers.Tokenizer
    task: Task
    dialogue: Dialogue | None = None
    """How the task's episodes become tokens; None for a task without turns."""
    arrays: Arrays | None = None
    """Of the task's environment, where episodes are played within the decode loop."""

    constraint: OutputConstraint | None = None
    """What every completion must match, where the config names it."""
    matchers: Matchers | None = None
    """Begins to match constraints; None: none is asked for."""

    def rng(self, first_id: int, count: int) -> np.random.Generator:
        """A random generator for a group, seeded with the run's seed, the group's first id and a
        count."""
        return np.random.default_rng([self.seed, first_id, count])


def dialogue_of(ctx: Context) -> Dialogue:
    """How the episodes of a program's task become tokens.

    Raises:
      ValueError: the task has none.
    """
    if ctx.dialogue is None:
        raise ValueError(f"task {ctx.task.name!r} has no turns; use a program of single answers")
    return ctx.dialogue


def single_turn(ctx: Context, problem: Problem, first_id: int) -> Generator[Wanted, Any, list[Row]]:
    """Each row is an answer to the problem's prompt."""
    row_requests = requests(ctx, problem, first_id)
    if ctx.task.of(problem).grouped:
        answers = yield Fork([write(ctx, request) for request in row_requests])
        return (yield from graded_together(ctx, problem, list(map(for_training, answers))))
    return (yield Fork([answered(ctx, problem, request) for request in row_requests]))


def with_greedy(program: Program) -> Program:
    """`program`, whose rows are followed by the greedy answer (a baseline for their rewards)."""

    def both(ctx: Context, problem: Problem, first_id: int) -> Generator[Wanted, Any, list[Row]]:
        first = requests(ctx, problem, first_id)[0]
        greedy = dataclasses.replace(first, id=GREEDY + first_id, temperature=0.0)
        rows, row = yield Fork([program(ctx, problem, first_id), answered(ctx, problem, greedy)])
        return [*rows, row]

    return both


def with_samples(
    program: Generator[Wanted, Any, Any],
    sample: Callable[[Request], Generator[Wanted, Any, Completion]],
) -> Generator[Wanted, Any, Any]:
    """The same program, whose completions `sample` makes, those of its forks included."""
    result: Any = None
    while True:
        try:
            query = program.send(result)
        except StopIteration as end:
            return end.value
        if isinstance(query, Sample):
            result = yield from sample(query.request)
        elif isinstance(query, Fork):
            result = yield Fork([with_samples(branch, sample) for branch in query.programs])
        else:
            result = yield query


def requests(ctx: Context, problem: Problem, first_id: int) -> list[Request]:
    """The requests of a group, whose ids follow from the first.

    Those of episodes have no prompt yet: it is the opening of the environment.
    """
    settings, turns = ctx.rollout, ctx.task.of(problem).turns
    prompt = encode_prompt(ctx.tokenizer, settings, problem) if turns is None else ()
    constraint = ctx.constraint or constraint_of(settings, problem)
    return [
        Request(
            id=first_id + g,
            prompt=prompt,
            max_new_tokens=budget(problem, settings),
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            constraint=constraint,
        )
        for g in range(settings.group_size)
    ]


def constraint_of(rollout: RolloutConfig, problem: Problem) -> OutputConstraint | None:
    """What completions of a problem must match by its own word, where the config asks for that.

    It is `constraint` of the problem's metadata, or of its row of a data file.

    Raises:
      ValueError: it is none, see `constraints.of_value`.
    """
    if rollout.constraint != "problem":
        return None
    row = problem.metadata.get("row", {})
    try:
        return constraints.of_value(problem.metadata.get("constraint", row.get("constraint")))
    except ValueError as error:
        raise ValueError(f"problem {problem.id}: {error}") from error


def budget(problem: Problem, rollout: RolloutConfig) -> int:
    """Tokens that a completion of the problem may have: its own budget, if it has one."""
    problem_budget = problem.metadata.get("max_new_tokens", rollout.max_new_tokens)
    return min(problem_budget, rollout.max_new_tokens)


def answered(ctx: Context, problem: Problem, request: Request) -> Part:
    """Sample a completion of the request and score it as an answer to the problem."""
    completion = yield from write(ctx, request)
    return (yield from graded(ctx, problem, for_training(completion)))


def graded(ctx: Context, problem: Problem, completion: Completion) -> Part:
    """Score a completion, and return its row."""
    if ctx.task.of(problem).grouped:
        return (yield from graded_together(ctx, problem, [completion]))[0]
    text, text_to_score = _texts(ctx, completion)
    score = yield Grade(problem, text_to_score)
    return Row(completion, text, score)


def graded_together(
    ctx: Context, problem: Problem, completions: Sequence[Completion]
) -> Generator[Wanted, Any, list[Row]]:
    """The rows of completions that a task's reward scores together, see `Task.grouped`."""
    texts = [_texts(ctx, completion) for completion in completions]
    score = yield Grade(problem, json.dumps([text_to_score for _, text_to_score in texts]))
    scores = group.apart(score, len(texts))
    return [Row(c, t, s) for c, (t, _), s in zip(completions, texts, scores, strict=True)]


def _texts(ctx: Context, completion: Completion) -> tuple[str, str]:
    """The text of a completion, and the part of it that is scored."""
    tokens, before = completion.tokens.tolist(), completion.request.prompt[-8:]
    text = ctx.tokenizer.decode(tokens)
    if ctx.rollout.chat:
        return text, dialogue.answer(ctx.tokenizer, before, tokens)
    return text, extract.thinking(ctx.tokenizer.decode(list(before)), text)


def write(ctx: Context, request: Request) -> Generator[Wanted, Any, Completion]:
    """The completion of a request, in chunks of bounded context where the config has chunks.

    Each chunk reads the prompt, the request's prefix and the end of the chunk before ("The
    Markovian Thinker", Aghajohari et al. 2025). `Chunks.spans` gives the chunks, from the first
    sampled token on, as in `packing.pack`.
    """
    chunks = ctx.rollout.chunks
    if not chunks.size:
        return (yield Sample(request))
    end, done = request.max_new_tokens, request.prefix or EMPTY
    first = len(done.tokens)
    prompt = (*request.prompt, *done.tokens.tolist())
    for turn, (carried, start, stop) in enumerate(chunks.spans(first, end)):
        chunk = yield Sample(
            dataclasses.replace(
                request,
                prompt=(*prompt, *done.tokens[carried:start].tolist()),
                prefix=None,
                max_new_tokens=stop - start,
                draw=request.draw + (turn << 16),
            )
        )
        done = join([done, parts(chunk)])
        if chunk.stopped or stop == end:
            result = Completion(
                request, *done[:4], chunk.stopped, done.source, support=done.support
            )
            if start:
                return result
            return dataclasses.replace(result, top_ids=chunk.top_ids, top_logp=chunk.top_logp)
    raise AssertionError("a response always ends")


_KINDS = (np.int32, np.float32, np.float32, np.int32, np.int8)
EMPTY = Prefix(*(np.zeros(0, kind) for kind in _KINDS))
"""An empty response."""


def join(pieces: Sequence[Prefix]) -> Prefix:
    """Concatenate the pieces of a response."""
    arrays = zip(*(piece[:5] for piece in pieces), strict=True)
    response = Prefix(*map(np.concatenate, arrays))
    support_arrays = [piece.support for piece in pieces if piece.support is not None]
    if not support_arrays:
        return response
    words = support_arrays[0].shape[1]
    supports = [
        np.zeros((len(piece.tokens), words), np.uint32) if piece.support is None else piece.support
        for piece in pieces
    ]
    return response._replace(support=np.concatenate(supports))


def limits(rollout: RolloutConfig, room: int = 0, *, again: bool = False) -> tuple[int, int]:
    """Longest prompt with its prefix, and longest context, of any request of a program.

    Args:
      rollout: budgets.
      room: tokens that the program adds to prompts, at most.
      again: whether what has been sampled may be read again, as by a turn or after a break.
    """
    start = rollout.max_prompt_tokens + rollout.chunks.carry + room
    longest = start + min(rollout.chunks.size or rollout.max_new_tokens, rollout.max_new_tokens)
    return (longest if rollout.in_flight > 1 or again else start), longest


def reward(row: Row) -> float:
    """nan where the score failed."""
    return np.nan if row.score.value is None else row.score.value


def solution(
    tokenizer: tokenizers.Tokenizer, task: Task, problem: Problem, budget: int
) -> list[int]:
    """Token ids of the task's own solution, the end of sequence included.

    Raises:
      ValueError: there is none, or it has more than `budget` tokens.
    """
    if task.gold is None:
        raise ValueError(f"task {task.name!r} has no solutions; choose one whose `gold` gives them")
    tokens = [*tokenizer.encode(task.gold(problem)), tokenizer.eos_ids[0]]
    if len(tokens) > budget:
        raise ValueError(
            f"problem {problem.id}: its solution has {len(tokens)} tokens, more than "
            f"rollout.max_new_tokens={budget}; raise the budget"
        )
    return tokens


def written_by_expert(request: Request, tokens: Sequence[int]) -> Completion:
    """The completion of a request that consists of given tokens, all trained on."""
    zeros = np.zeros(len(tokens), np.float32)
    marks = np.full(len(tokens), Source.EXPERT, np.int8)
    ids = np.array(tokens, np.int32)
    return Completion(request, ids, zeros, zeros, zeros.astype(np.int32), True, marks)


def expert_turn(
    ctx: Context,
    request: Request,
    action: str,
    tools: Sequence[Mapping[str, Any]],
    *,
    limit: int | None = None,
) -> Completion:
    """The completion of a request for a turn that an expert plays.

    Args:
      ctx: its dialogue is that of the task.
      request: for the turn.
      action: the turn as environments read it.
      tools: JSON schemas of those that the conversation offers.
      limit: cut off where prompt and response have this length; None: nowhere.
    """
    start = start_of(request)
    ids = dialogue_of(ctx).ids(start[-8:], action, tools)
    turn = forced(ids if limit is None else ids[: limit - len(start)], Source.EXPERT)
    done = join([request.prefix or EMPTY, turn])
    return Completion(request, *done[:4], len(turn.tokens) == len(ids), done.source)
