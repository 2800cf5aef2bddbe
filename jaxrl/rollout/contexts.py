"""The tokens of an episode, over the contexts that it is sampled in.

An episode has one context, its conversation, until the environment replaces it (`Reply.opening`):
by a summary, by the conversation without earlier reasoning, or by that of another agent, from which
it may return. All tokens stand in one row. What a new context has in common with an earlier one is
not repeated: its first other token continues the last common one (`Completion.parent`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.data.environments import Message
from jaxrl.data.text.dialogue import Dialogue
from jaxrl.rollout.programs import EMPTY, join
from jaxrl.sampling.requests import forced
from jaxrl.types import Completion, Prefix, Request, Source


class _Turn(NamedTuple):
    """Where a turn of the policy ended."""

    context: int
    messages: int
    tokens: int


class Contexts:
    """The contexts of an episode, the last of which grows."""

    def __init__(
        self, prompt: Sequence[int], messages: Sequence[Message], tools: Sequence[Any] = ()
    ) -> None:
        """Args: the first context, as tokens and as messages, and the tools that it shows."""
        self._ids = list(prompt)
        self._places = [list(range(len(prompt)))]  # of each context's tokens in the row
        self._said, self._tools = [list(messages)], [tools]
        self._turns: list[_Turn] = []
        self._parent: list[int] = []
        self._pieces: list[Prefix] = []

    @property
    def count(self) -> int:
        """Contexts so far."""
        return len(self._places)

    @property
    def length(self) -> int:
        """Tokens of the response so far, over all contexts."""
        return len(self._parent)

    @property
    def conversation(self) -> tuple[Sequence[Message], Sequence[Any]]:
        """The last context, as messages, and the tools that it shows."""
        return self._said[-1], self._tools[-1]

    @property
    def end(self) -> list[int]:
        """The last tokens of the context, eight at most."""
        return [self._ids[place] for place in self._places[-1][-8:]]

    @property
    def row(self) -> Prefix:
        """The whole response."""
        return join([EMPTY, *self._pieces])

    @property
    def parent(self) -> np.ndarray | None:
        """[length] int32, see `Completion.parent`; None: there is one context."""
        return np.array(self._parent, np.int32) if self.count > 1 else None

    def add(self, piece: Prefix) -> None:
        """Tokens that continue the context."""
        places, start = self._places[-1], len(self._ids)
        if count := len(piece.tokens):
            self._parent += [places[-1] if places else -1, *range(start, start + count - 1)]
            places += range(start, start + count)
            self._ids += piece.tokens.tolist()
            self._pieces.append(piece)

    def said(self, action: Message, reply_messages: Sequence[Message]) -> None:
        """Messages that continue the conversation: a turn of the policy, and what follows it."""
        self._said[-1].append(action)
        self._turns.append(_Turn(self.count - 1, len(self._said[-1]), len(self._places[-1])))
        self._said[-1] += reply_messages

    def encoded(
        self, dialogue: Dialogue, messages: Sequence[Message], tools: Sequence[Any]
    ) -> tuple[int, ...]:
        """Ids of a conversation. What the policy wrote in it keeps its own, unless `dialogue.anew`.

        A conversation that continues an earlier one after some turn has the ids of that one, as far
        as it goes. Any other is encoded as an opening.

        Raises:
          ValueError: it cannot be encoded.
        """
        for turn in sorted(() if dialogue.anew else self._turns, key=lambda turn: -turn.messages):
            rest = list(messages[turn.messages :])
            history = self._said[turn.context][: turn.messages]
            same = history == list(messages[: turn.messages]) and self._tools[turn.context] == tools
            if same and rest and all(message["role"] != "assistant" for message in rest):
                ids = [self._ids[place] for place in self._places[turn.context][: turn.tokens]]
                joint = dialogue.joint(ids[-1], rest, tools)
                return (*ids, *joint.close, *joint.more)
        return dialogue.opening(messages, tools)

    def replace(
        self, ids: Sequence[int], messages: Sequence[Message], tools: Sequence[Any], most: int
    ) -> bool:
        """Begin another context, if the response then has less than `most` tokens.

        Args:
          ids: its tokens.
          messages: the same, as messages.
          tools: that it shows.
          most: see above.
        """
        shared = max((self._shared(places, ids) for places in self._places), key=len)
        new = ids[len(shared) :]
        if self.length + len(new) >= most:
            return False
        self._places.append(shared)
        self._said.append(list(messages))
        self._tools.append(tools)
        self.add(forced(new, Source.OBSERVATION))
        return True

    def request(self, request: Request) -> Request:
        """What asks for the first turn of the last context.

        Args:
          request: of the episode. Its budget is that of all contexts.
        """
        return dataclasses.replace(
            request,
            prompt=tuple(self._ids[place] for place in self._places[-1]),
            max_new_tokens=request.max_new_tokens - self.length,
            draw=request.draw + ((self.count - 1) << 16),
        )

    def _shared(self, places: Sequence[int], ids: Sequence[int]) -> list[int]:
        """Places of the first tokens that a context has in common with `ids`."""
        same = (self._ids[place] == token for place, token in zip(places, ids, strict=False))
        return list(places[: len(list(itertools.takewhile(bool, same)))])


def observed(completion: Completion, count: int) -> Completion:
    """A completion whose tokens after the first `count` are observed, as an opponent wrote them.

    They keep no log-probability, entropy, version or support.
    """
    new = np.arange(len(completion.tokens)) >= count
    source = np.full(len(new), Source.POLICY, np.int8)
    source = source if completion.source is None else completion.source
    return dataclasses.replace(
        completion,
        logp=np.where(new, np.float32(0), completion.logp),
        entropy=np.where(new, np.float32(0), completion.entropy),
        version=np.where(new, np.int32(0), completion.version),
        source=np.where(new, np.int8(Source.OBSERVATION), source),
        support=None if completion.support is None else completion.support * ~new[:, None],
    )


def cut(response: Prefix, count: int) -> Prefix:
    """The first tokens of a response."""
    support = None if response.support is None else response.support[:count]
    return Prefix(*(array[:count] for array in response[:5]))._replace(support=support)
