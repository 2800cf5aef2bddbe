"""Any environment, in which the policy compresses its context.

When a conversation has grown past a limit, the policy is asked what to keep of it. Its answer is a
turn like any other, and is trained on. The conversation then begins anew with the problem and this
text, so an episode may be longer than what the policy can read at once.

Recalled from: Databricks 2026, "KARL: Knowledge Agents via Reinforcement Learning"
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxrl.data.environments import Environment, Opening, Reply, Written
from jaxrl.data.environments.wrappers import inner
from jaxrl.data.sources import extract
from jaxrl.data.types import Problem, Task

ASK = (
    "\n\nYour context is nearly full. All of it but the task is about to be removed. Write down "
    "what you need to go on: what you have found, and what is left to do."
)
KEPT = "\n\nYour notes from before your context was emptied:\n"
SYMBOLS = ("?", ";")
"""In symbols, what asks for notes, and what ends them."""


@dataclasses.dataclass
class _Conversation:
    state: Any
    """State of the environment."""
    opening: Opening
    """The one that notes are added to."""
    size: int = 0
    """Characters of turns and replies since the context began."""
    longest: int = 0
    """The most that there were, with notes."""
    notes: str = ""
    compressions: int = 0
    due: Reply | None = None
    """The reply after which notes were asked for, which the next action is."""


def task(
    name: str = "calculator",
    args: Mapping[str, Any] | str = "{}",
    characters: int = 4000,
    symbols: bool = False,
) -> Task:
    """An environment whose conversations are compressed.

    Parts of the reward are `compressions`, their number, and `context`, the characters of the
    longest context with the notes that it begins with, without the problem and without the request
    for notes and its answer.

    Args:
      name: of the task.
      args: its parameters, as a mapping or JSON.
      characters: of turns and replies, after which notes are asked for.
      symbols: ask with `?` and end the notes with `;`, for a small model from nothing.
    """
    plain = inner.task(name, args, words=ASK + KEPT, symbols=symbols)
    if characters < 1:
        raise ValueError(f"characters={characters} must be 1 or more")
    if symbols and (plain.alphabet is None or set(SYMBOLS) & set(plain.alphabet)):
        raise ValueError(
            f"symbols=True: the alphabet of {name!r} must be known and without {SYMBOLS}"
        )
    return dataclasses.replace(
        plain,
        name="with_compression",
        alphabet=plain.alphabet and plain.alphabet + "".join(SYMBOLS) * symbols,
        description=__doc__,
        turns=environment(plain.turns, characters, symbols=symbols),
    )


def environment(single: Environment, characters: int, *, symbols: bool = False) -> Environment:
    """The environment that asks for notes.

    Its demonstrations keep all replies of the environment, and no turns of the policy.

    Args:
      single: of the task.
      characters: of turns and replies, after which notes are asked for.
      symbols: see `task`.
    """
    request, ends = (SYMBOLS[0], SYMBOLS[1:]) if symbols else (ASK, ())
    heading = "\n" if symbols else KEPT

    def begin(problem: Problem, seed: int) -> tuple[_Conversation, Opening]:
        state, opening = single.begin(problem, seed)
        return _Conversation(state, opening), opening

    def step(talk: _Conversation, action: str) -> Reply:
        if talk.due is not None:
            return begun_again(talk, action)
        reply = single.step(talk.state, action)
        if reply.opening is not None:
            talk.opening, talk.size, talk.notes = reply.opening, 0, ""
        else:
            talk.size += len(action) + sum(len(message["content"]) for message in reply.messages)
        talk.longest = max(talk.longest, len(talk.notes) + talk.size)
        reply = reply._replace(parts={**reply.parts, **figures(talk)})
        if reply.done or reply.error is not None or talk.size <= characters or not reply.messages:
            return reply
        talk.due = reply
        return reply._replace(messages=inner.extended(reply.messages, request), stop=ends)

    def begun_again(talk: _Conversation, action: str) -> Reply:
        due, talk.due = talk.due, None
        notes = extract.spoken(action).strip()
        talk.notes = notes.removesuffix(SYMBOLS[1]) if symbols else notes
        talk.compressions, talk.size = talk.compressions + 1, 0
        messages = inner.extended(talk.opening.messages, heading + talk.notes)
        opening = talk.opening._replace(messages=messages, stop=due.stop)
        return Reply(parts=figures(talk), opening=opening)

    def figures(talk: _Conversation) -> Mapping[str, float]:
        return {"compressions": float(talk.compressions), "context": float(talk.longest)}

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        talk, _ = begin(problem, seed)
        actions: list[str] = []
        try:
            notes = ""
            for action in single.gold(problem, seed):
                reply = step(talk, action)
                actions.append(action)
                if talk.due is not None:
                    notes += "".join(message["content"] for message in talk.due.messages)
                    actions.append(notes + "".join(ends))
                    step(talk, actions[-1])
                elif not reply.done:
                    notes += "".join(message["content"] for message in reply.messages)
        finally:
            single.close(talk.state)
        return tuple(actions)

    def reads(talk: _Conversation, written: Written) -> None:
        if talk.due is None:  # the environment hears nothing of notes
            single.reads(talk.state, written)

    return single._replace(
        begin=begin,
        step=step,
        gold=gold if single.gold else None,
        close=lambda talk: single.close(talk.state),
        reads=reads if single.reads else None,
        arrays=None,
        against=None,
    )
