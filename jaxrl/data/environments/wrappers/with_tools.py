"""Any task that is answered in one turn, with tools to call before the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl.data import tasks
from jaxrl.data.environments import Environment, Message, Opening, Reply, unscored
from jaxrl.data.environments.tools import definition, mcp_tools, toolbox
from jaxrl.data.environments.tools.definition import Tool
from jaxrl.data.environments.work import router
from jaxrl.data.sandbox import runner
from jaxrl.data.scoring import pool
from jaxrl.data.types import Problem, Task

_MCP_S = 30.0
"""Limit of the start of an MCP server, and of each call."""
_CALL_S = {
    "python": runner.Limits().wall_s + runner.START_S,
    "sql": toolbox.SQL_S,
    "router": router.SECONDS,
}
"""Seconds that a call may take by the limits of its tool."""


def task(
    name: str = "arithmetic",
    args: Mapping[str, Any] | str = "{}",
    tools: str = "calculator",
    corpus: str = "",
    database: str = "",
    dictionary: str = "",
    models: str = "",
    price: float = 0.0,
    mcp: str = "",
    memory_mb: int = 4096,
    calls: int = 3,
    role: str = "tool",
) -> Task:
    """A task with tools; a turn without a call is the answer.

    Args:
      name: of the task.
      args: its parameters, as a mapping or JSON.
      tools: their names, apart by commas: calculator, dictionary, python, router, search or sql;
        empty: none of these.
      corpus: file of records with a `text` each, for search.
      database: file of SQL statements that make the database, for sql.
      dictionary: file of a JSON object of words and their meanings, for dictionary; empty: a small
        bundled one.
      models: file of records, the models that router may ask, see `router.router`.
      price: taken off the reward for each unit that router has spent.
      mcp: an MCP server, whose tools are given too: the command of a program, which each episode
        runs, or an address on loopback.
      memory_mb: what that program, and each process that it starts, may take (Linux).
      calls: turns with calls that an episode may have; one more ends it with reward 0.
      role: of the messages that give results; `user` where the chat template knows no `tool`.
    """
    inner = tasks.within(name, args)
    if inner.turns is not None or inner.grouped:
        raise ValueError(f"name={name!r}: choose a task whose answers are scored one by one")
    makers: dict[str, Callable[[int], Tool]] = {
        "calculator": lambda seed: toolbox.calculator(),
        "dictionary": lambda seed: toolbox.dictionary(dictionary),
        "python": lambda seed: toolbox.python(seed=seed),
        "router": lambda seed: router.router(models),
        "search": lambda seed: toolbox.search(corpus),
        "sql": lambda seed: toolbox.sql(database),
    }
    names = [tool_name.strip() for tool_name in tools.split(",") if tool_name.strip()]
    if mcp:
        mcp_tools.check(mcp)
    if memory_mb <= 0:
        raise ValueError(f"memory_mb={memory_mb} must be positive")
    if not (names or mcp):
        raise ValueError(f"tools={tools!r}, mcp={mcp!r}: name one or more")
    if unknown := [tool_name for tool_name in names if tool_name not in makers]:
        raise ValueError(f"tools={tools!r}: {unknown[0]!r} is none of {', '.join(makers)}")
    for tool_name, file in {"search": corpus, "sql": database, "router": models}.items():
        if tool_name in names and not file:
            raise ValueError(
                f"tools={tools!r}: name the file of {tool_name} (corpus, database, models)"
            )
    if price < 0 or (price and "router" not in names):
        raise ValueError(
            f"price={price}{'' if price < 0 else ' without the tool router'}: give 0 or more, and "
            "more than 0 where the router spends something"
        )
    waits = bool(mcp) or "router" in names
    return dataclasses.replace(
        inner,
        name="with_tools",
        reward=inner.reward if waits else unscored,
        gold=None,
        description=__doc__,
        pure=inner.pure and set(names) <= {"calculator", "dictionary"},
        sandboxed=inner.sandboxed or "python" in names,
        turns=environment(
            inner,
            lambda seed: [
                *(makers[n](seed) for n in names),
                *(mcp_tools.connect(mcp, _MCP_S, memory_mb) if mcp else ()),
            ],
            calls,
            role,
            waits=waits,
            price=price,
            seconds=max(
                [_CALL_S.get(tool_name, 0.0) for tool_name in names] + [_MCP_S] * bool(mcp)
            ),
        ),
    )


@dataclasses.dataclass
class _Bench:
    problem: Problem
    tools: Sequence[Tool]
    left: int
    malformed: int = 0


def environment(
    inner: Task,
    make: Callable[[int], Sequence[Tool]],
    calls: int = 3,
    role: str = "tool",
    *,
    waits: bool = False,
    seconds: float = 0.0,
    price: float = 0.0,
) -> Environment:
    """The environment that gives tools to the policy, until it answers.

    Args:
      inner: scores the turn without a call, its answer.
      make: `seed -> tools` of one episode.
      calls: turns with calls that an episode may have; one more ends it with reward 0.
      role: of the messages that give results.
      waits: see `Environment.waits`; the answer is then left to the task's reward, which has to be
        that of `inner`. No call is made twice, as happens where several workers play an episode.
      seconds: that one call may take, by limits that the tools keep themselves; 0: they keep none.
      price: taken off the reward for each unit of the part `spent`.
    """
    if calls < 1:
        raise ValueError(f"calls={calls}: allow one or more")

    def begin(problem: Problem, seed: int) -> tuple[_Bench, Opening]:
        bench = _Bench(problem, make(seed), calls)
        messages: tuple[Message, ...] = ({"role": "user", "content": problem.prompt},)
        try:
            definition.check_names(bench.tools)
            schemas = tuple(tool.schema for tool in bench.tools)
        except BaseException:
            close(bench)
            raise
        return bench, Opening(problem.messages or messages, tools=schemas)

    def step(bench: _Bench, action: str) -> Reply:
        outputs = definition.results(bench.tools, action)
        bench.malformed += definition.malformed(action)
        parts = {"malformed": float(bench.malformed)}
        for tool in bench.tools:
            parts |= tool.parts()
        cost = price * parts.get("spent", 0.0)
        if outputs and not bench.left:
            return Reply(reward=-cost, parts=parts, done=True, calls=len(outputs))
        if outputs:
            bench.left -= 1
            messages = ({"role": role, "content": definition.joined(outputs)},)
            return Reply(messages, parts=parts, calls=len(outputs))
        if waits:
            return Reply(reward=-cost if cost else None, parts=parts, done=True, answer=action)
        score = pool.score_completion(inner, bench.problem, action)
        earned = None if score.value is None else score.value - cost
        return Reply(reward=earned, parts=parts | dict(score.parts), done=True, error=score.error)

    def close(bench: _Bench) -> None:
        for tool in bench.tools:
            tool.close()

    def seconds_of_reply(problem: Problem, action: str) -> float:
        if not action:  # a server starts, and then lists its tools
            return 2 * seconds
        judging = inner.seconds(problem) if inner.seconds and not waits else 0.0
        return seconds * definition.count(action) or judging

    limits = seconds_of_reply if seconds or inner.seconds else None
    return Environment(
        begin, step, roles=(role,), close=close, tools=True, waits=waits, seconds=limits
    )
