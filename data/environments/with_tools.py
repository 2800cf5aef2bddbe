"""Any task that is answered in one turn, with tools to call before the answer."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence

from jaxrl.data import scoring, tasks
from jaxrl.data.environments import (
    Environment,
    Message,
    Opening,
    Reply,
    mcp_tools,
    toolbox,
    tools,
    unscored,
)
from jaxrl.data.environments.tools import Tool
from jaxrl.data.types import Problem, Task


def task(
    name: str = "arithmetic",
    args: str = "{}",
    tools: str = "calculator",
    corpus: str = "",
    database: str = "",
    mcp: str = "",
    calls: int = 3,
    role: str = "tool",
) -> Task:
    """A task with tools; a turn without a call is the answer.

    Args:
      name: of the task.
      args: its parameters, as JSON.
      tools: their names, apart by commas: calculator, python, search or sql; empty: none of these.
      corpus: file of records with a `text` each, for search.
      database: file of SQL statements that make the database, for sql.
      mcp: an MCP server, whose tools are given too: the command of a program, which each episode
        runs, or an address on loopback.
      calls: turns with calls that an episode may have; one more ends it with reward 0.
      role: of the messages that give results; `user` where the chat template knows no `tool`.
    """
    inner = tasks.get(name, **json.loads(args))
    if inner.turns is not None or inner.grouped:
        raise ValueError(f"name={name!r}: choose a task whose answers are scored one by one")
    known: dict[str, Callable[[], Tool]] = {
        "calculator": toolbox.calculator,
        "python": toolbox.python,
        "search": functools.partial(toolbox.search, corpus),
        "sql": functools.partial(toolbox.sql, database),
    }
    names = [each.strip() for each in tools.split(",") if each.strip()]
    if mcp:
        mcp_tools.check(mcp)
    if not (names or mcp):
        raise ValueError(f"tools={tools!r}, mcp={mcp!r}: name one or more")
    if unknown := [each for each in names if each not in known]:
        raise ValueError(f"tools={tools!r}: {unknown[0]!r} is none of {', '.join(known)}")
    for each, file in {"search": corpus, "sql": database}.items():
        if each in names and not file:
            raise ValueError(f"tools={tools!r}: name the file of {each} (corpus, database)")
    return dataclasses.replace(
        inner,
        name="with_tools",
        reward=inner.reward if mcp else unscored,
        gold=None,
        description=__doc__,
        pure=inner.pure and set(names) <= {"calculator"},
        sandboxed=inner.sandboxed or "python" in names,
        turns=environment(
            inner,
            lambda: [*(known[n]() for n in names), *(mcp_tools.connect(mcp) if mcp else ())],
            calls,
            role,
            waits=bool(mcp),
        ),
    )


@dataclasses.dataclass
class _Bench:
    problem: Problem
    tools: Sequence[Tool]
    left: int


def environment(
    inner: Task,
    make: Callable[[], Sequence[Tool]],
    calls: int = 3,
    role: str = "tool",
    *,
    waits: bool = False,
) -> Environment:
    """The environment that gives tools to the policy, until it answers.

    Args:
      inner: scores the turn without a call, its answer.
      make: the tools of one episode.
      calls: turns with calls that an episode may have; one more ends it with reward 0.
      role: of the messages that give results.
      waits: see `Environment.waits`; the answer is then left to the task's reward, which has to be
        that of `inner`. No call is made twice, as happens where several workers play an episode.
    """
    if calls < 1:
        raise ValueError(f"calls={calls}: allow one or more")

    def begin(problem: Problem, seed: int) -> tuple[_Bench, Opening]:
        bench = _Bench(problem, make(), calls)
        said: tuple[Message, ...] = ({"role": "user", "content": problem.prompt},)
        schemas = tuple(each.schema for each in bench.tools)
        return bench, Opening(problem.messages or said, tools=schemas)

    def step(bench: _Bench, action: str) -> Reply:
        outputs = tools.results(bench.tools, action)
        malformed = sum(each.startswith("error") for each in outputs)
        parts = {"malformed": float(malformed)}
        if outputs and not bench.left:
            return Reply(reward=0.0, parts=parts, done=True, calls=len(outputs))
        if outputs:
            bench.left -= 1
            said = ({"role": role, "content": "\n".join(outputs)},)
            return Reply(said, parts=parts, calls=len(outputs))
        if waits:
            return Reply(parts=parts, done=True, answer=action)
        score = scoring.score_completion(inner, bench.problem, action)
        return Reply(
            reward=score.value, parts=parts | dict(score.parts), done=True, error=score.error
        )

    def close(bench: _Bench) -> None:
        for each in bench.tools:
            each.close()

    return Environment(begin, step, roles=(role,), close=close, waits=waits)
