"""Demonstrations: the task's own solutions, as the batches of a supervised warm start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.config import Config
from jaxrl.data.environments import Opening
from jaxrl.data.environments.play import Player
from jaxrl.data.scoring.scoring_process import score_completion
from jaxrl.data.types import Problem, Task
from jaxrl.mesh.buckets import round_up
from jaxrl.rollout import episodes, experience, programs, tasks
from jaxrl.rollout.policy import Policy, encode_prompt
from jaxrl.rollout.programs import Act, Context, Grade, Sample, solution, written_by_expert
from jaxrl.training import packing
from jaxrl.types import Completion, Request, Trajectory


def demonstrations(
    policy: Policy, config: Config, task: Task, problems: Sequence[Problem]
) -> Trajectory:
    """The task's own solutions, each with reward 1 and alone in its group.

    Args:
      policy: its tokenizer.
      config: of the run.
      task: has solutions, see `demonstrable`.
      problems: one demonstration each.

    Raises:
      ValueError: a prompt or solution over the rollout's budgets, or an episode without reward.
    """
    dialogue = tasks.dialogue(task, policy.tokenizer, config.rollout)
    ctx = Context(config.rollout, config.seed, policy.tokenizer, task, dialogue)
    completions = [_written(ctx, problem, n) for n, problem in enumerate(problems)]
    count = len(completions)
    length = round_up(
        max(len(c.request.prompt) + len(c.tokens) for c in completions), config.packing.bucket
    )
    batch = packing.trajectory(completions, [1.0] * count, range(count), length=length)
    if any(c.turn is not None for c in completions):
        parent = experience.parents(completions, batch.tokens.shape)
        batch = batch.replace(extra={"parent": parent})
    return batch


def demonstrable(task: Task) -> bool:
    """Whether every problem of a task has a solution to imitate."""
    parts = task.parts.values() or [task]
    return all((part.turns.gold if part.turns else part.gold) is not None for part in parts)


def _written(ctx: Context, problem: Problem, n: int) -> Completion:
    request = Request(n, (), ctx.rollout.max_new_tokens)
    if ctx.task.of(problem).turns is not None:
        return _played(ctx, problem, request)
    prompt = encode_prompt(ctx.tokenizer, ctx.rollout, problem)
    gold = solution(ctx.tokenizer, ctx.task.of(problem), problem, request.max_new_tokens)
    return written_by_expert(Request(n, prompt, request.max_new_tokens), gold)


def _played(ctx: Context, problem: Problem, request: Request) -> Completion:
    """An episode whose turns are the environment's own solution, played in this process."""
    task, player = ctx.task.of(problem), Player(ctx.task)
    seed = int(np.random.default_rng([ctx.seed, request.id]).integers(1 << 31))
    assert task.turns is not None and task.turns.gold is not None  # see `demonstrable`
    actions = iter(task.turns.gold(problem, seed))
    tools: tuple[Mapping[str, Any], ...] = ()
    program = episodes.episode(ctx, problem, request, seed)
    query = next(program)
    try:
        while True:
            if isinstance(query, Act):
                answer = player.answer(query.turn)
                opening = answer if isinstance(answer, Opening) else answer.opening
                tools = tools if opening is None else opening.tools
                query = program.send(answer)
            elif isinstance(query, Grade):
                query = program.send(score_completion(task, query.problem, query.text))
            else:
                assert isinstance(query, Sample)
                turn = programs.expert_turn(ctx, query.request, next(actions, ""), tools)
                _check_budgets(ctx, problem, turn)
                query = program.send(turn)
    except StopIteration as ended:
        row: programs.Row = ended.value
    finally:
        player.close()
    if not (row.completion.stopped and row.score.value):
        raise ValueError(
            f"problem {problem.id}: the environment's own solution came to {row.score}, after "
            f"{len(row.completion.tokens)} tokens; raise rollout.max_new_tokens="
            f"{ctx.rollout.max_new_tokens} if that is all of them"
        )
    return row.completion


def _check_budgets(ctx: Context, problem: Problem, turn: Completion) -> None:
    """Refuse a turn that sampling would cut off. The token that ends it may lie beyond."""
    before = 0 if turn.request.prefix is None else len(turn.request.prefix.tokens)
    length = len(turn.tokens) - before - (int(turn.tokens[-1]) in ctx.tokenizer.eos_ids)
    rollout = ctx.rollout
    if rollout.turn_tokens and length > rollout.turn_tokens:
        raise ValueError(
            f"problem {problem.id}: a turn of its solution has {length} tokens; raise "
            f"rollout.turn_tokens={rollout.turn_tokens}"
        )
    if before + length > turn.request.max_new_tokens:
        raise ValueError(
            f"problem {problem.id}: its solution does not fit into the budget of a response; raise "
            f"rollout.max_new_tokens={rollout.max_new_tokens}"
        )
