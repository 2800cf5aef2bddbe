"""Plays episodes: asks an environment for its replies, checks them, and remembers its states."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from jaxrl.data.environments import MOST_AGENTS, Environment, Opening, Reply, Turn
from jaxrl.data.environments.tools import formats
from jaxrl.data.sandbox import processes
from jaxrl.data.text import messages as normal_form
from jaxrl.data.types import LARGEST_REWARD, LOGGED, Task, is_reward

LONGEST = 1 << 16
"""Characters of the messages of one reply."""
DEEPEST = 64
"""Lists and objects within each other in the schemas of tools, which are read recursively."""


@dataclasses.dataclass
class _Episode:
    environment: Environment
    turn: Turn
    state: Any


class Player:
    """Answers turns with a task's environments, in one process.

    It remembers the states of the `most` episodes that it played last. An episode that it does not
    remember is played again from its actions; replies that then differ from those in the turn make
    it an error.
    """

    def __init__(self, task: Task, most: int = 1024) -> None:
        self._task, self._most = task, most
        self._known: OrderedDict[int, _Episode] = OrderedDict()
        self._unwarned = threading.Semaphore()

    def answer(self, turn: Turn) -> Opening | Reply:
        """The opening where the turn has no actions, else the reply to the last of them.

        What an environment raises, and a reply of wrong type, is an `error` of the answer.
        """
        try:
            return self._answer(turn)
        except (Exception, SystemExit) as error:
            self.forget(turn.episode)
            if isinstance(error, _Wrong):
                return failed(turn, f"type: {error}")
            return failed(turn, processes.failure(error))

    def _answer(self, turn: Turn) -> Opening | Reply:
        episode = self._known.pop(turn.episode, None)
        if episode is not None and not _leads_to(episode.turn, turn):
            self._close(episode.environment, episode.state)
            episode = None
        if episode is None:
            environment = self._task.of(turn.problem).turns
            started = environment.begin(turn.problem, turn.seed)
            if not isinstance(started, tuple) or len(started) != 2:
                raise _Wrong(f"begin returned {started!r:.100}; return (state, Opening)")
            state, opening = started
            try:
                opening = checked(opening, Opening, environment)
            except BaseException:
                self._close(environment, state)
                raise
            first = dataclasses.replace(turn, actions=(), said=(opening,))
            episode = _Episode(environment, first, state)
        self._known[turn.episode] = episode
        answer = episode.turn.said[-1]
        for action in turn.actions[len(episode.turn.actions) :]:
            if isinstance(answer, Reply) and answer.done:
                count = len(episode.turn.actions)
                raise RuntimeError(f"the episode ended with action {count}; begin another one")
            if answer != turn.said[len(episode.turn.actions)]:
                raise RuntimeError(
                    f"played again, its answer {len(episode.turn.actions)} differs; an environment "
                    "may depend on the problem, the seed and the actions alone"
                )
            if episode.environment.reads is not None and turn.written:
                episode.environment.reads(episode.state, turn.written[len(episode.turn.actions)])
            answer = checked(
                episode.environment.step(episode.state, action), Reply, episode.environment
            )
            episode.turn = dataclasses.replace(
                episode.turn,
                actions=(*episode.turn.actions, action),
                said=(*episode.turn.said, answer),
            )
        if answer.error or (isinstance(answer, Reply) and answer.done):
            self.forget(turn.episode)
        while len(self._known) > self._most:
            _, episode = self._known.popitem(last=False)
            self._close(episode.environment, episode.state)
        return answer

    def knows(self, name: int) -> bool:
        """Whether an episode is remembered."""
        return name in self._known

    def known(self) -> list[int]:
        """The episodes that are remembered."""
        return list(self._known)

    def close(self) -> None:
        """Forget all episodes."""
        for name in self.known():
            self.forget(name)

    def forget(self, name: int) -> None:
        """Close an episode that will not be asked for again, if it is remembered."""
        episode = self._known.pop(name, None)
        if episode is not None:
            self._close(episode.environment, episode.state)

    def _close(self, environment: Environment, state: Any) -> None:
        """End an episode. What its environment raises is a warning: no result depends on it."""
        try:
            environment.close(state)
        except (Exception, SystemExit) as error:
            if self._unwarned.acquire(blocking=False):  # threads may close episodes at once
                warnings.warn(
                    f"Environment.close raised {type(error).__name__}: {error}; what the episode "
                    "held may be left behind. Later ones are not reported",
                    RuntimeWarning,
                    stacklevel=2,
                )


def _leads_to(previous_turn: Turn, turn: Turn) -> bool:
    """Whether an episode that has been played so far is the beginning of the one asked for."""
    count = len(previous_turn.actions)
    same = (previous_turn.seed, previous_turn.problem.id) == (turn.seed, turn.problem.id)
    return same and count <= len(turn.actions) and previous_turn.actions == turn.actions[:count]


def failed(turn: Turn, error: str) -> Opening | Reply:
    """The answer to a turn that says why there is none."""
    return Reply(error=error) if turn.actions else Opening(error=error)


class _Wrong(TypeError):
    """An environment's answer is invalid."""


def checked(
    answer: Any, kind: type[Opening] | type[Reply], environment: Environment
) -> Opening | Reply:
    """An environment's answer, as plain values.

    Raises:
      TypeError: it is none, or more than `LONGEST`.
    """
    roles = environment.roles
    plain_answer = _checked(answer, kind, _opening_roles(roles) if kind is Opening else roles)
    opening = plain_answer if isinstance(plain_answer, Opening) else plain_answer.opening
    for agent in {0 if opening is None else opening.agent, *getattr(plain_answer, "others", ())}:
        if not 0 <= agent < min(environment.agents, MOST_AGENTS):
            raise _Wrong(
                f"agent={agent} is not below Environment.agents={environment.agents}, which is at "
                f"most {MOST_AGENTS}"
            )
    return plain_answer


def _opening_roles(roles: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("system", "user", "assistant", *roles)))


def _checked(
    answer: Any, kind: type[Opening] | type[Reply], roles: tuple[str, ...]
) -> Opening | Reply:
    if not isinstance(answer, kind):
        raise _Wrong(f"the environment gave {answer!r:.100}; give a {kind.__name__}")
    messages = tuple(_message(message, roles) for message in _sequence(answer.messages, "messages"))
    if (size := sum(len(message["content"]) for message in messages)) > LONGEST:
        raise _Wrong(f"messages of {size} characters; give at most {LONGEST}")
    stop = _sequence(answer.stop, "stop")
    if not all(isinstance(string, str) and string for string in stop):
        raise _Wrong(f"stop={stop!r:.100}; give strings of one character or more")
    if answer.error is not None and not isinstance(answer.error, str):
        raise _Wrong(f"error={answer.error!r:.100}; give a text or None")
    if isinstance(answer, Opening):
        agent = _number(answer.agent, "agent")
        return Opening(messages, stop, answer.error, _schemas(answer.tools), int(agent))
    if not isinstance(answer.done, bool):
        raise _Wrong(f"done={answer.done!r:.100}; give True or False")
    if not isinstance(answer.parts, Mapping):
        raise _Wrong(f"parts={answer.parts!r:.100}; give numbers by name")
    if reserved_names := LOGGED.intersection(answer.parts):
        raise _Wrong(
            f"parts={sorted(reserved_names)}: the log of rewards has figures of these names"
        )
    reward = None if answer.reward is None else _reward(answer.reward, "reward")
    parts = {str(name): _number(value, f"part {name}") for name, value in answer.parts.items()}
    if not isinstance(answer.calls, int) or not 0 <= answer.calls <= LONGEST:
        raise _Wrong(f"calls={answer.calls!r:.100}; give a number from 0 to {LONGEST}")
    if answer.answer is not None and not (isinstance(answer.answer, str) and answer.done):
        raise _Wrong(f"answer={answer.answer!r:.100}; give a text, in the last reply")
    calls, opening = int(answer.calls), answer.opening
    if opening is not None:
        if messages or answer.done or not getattr(opening, "messages", ()):
            raise _Wrong("an opening in a reply takes the place of its messages, and has some")
        opening = _checked(opening, Opening, _opening_roles(roles))
    if not isinstance(answer.others, Mapping):
        raise _Wrong(f"others={answer.others!r:.100}; give numbers by agent")
    # a worker's answer is JSON, whose names are texts
    other_rewards = {int(agent): _reward(value, "others") for agent, value in answer.others.items()}
    return Reply(
        messages, reward, parts, answer.done, answer.error, stop, calls, answer.answer, opening,
        other_rewards,
    )  # fmt: skip


def _schemas(value: Any) -> tuple[Any, ...]:
    """JSON schemas as plain values."""
    try:
        text = json.dumps(_sequence(value, "tools"))
        schemas = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise _Wrong(f"tools are no JSON: {error}") from error
    if len(text) > LONGEST:
        raise _Wrong(f"tools of {len(text)} characters; give at most {LONGEST}")
    if not all(isinstance(schema, dict) for schema in schemas):
        raise _Wrong(f"tools={text:.100}; give JSON schemas")
    if (depth := _depth(schemas)) > DEEPEST:
        raise _Wrong(
            f"tools={text:.100} of {depth} lists and objects within each other; give at most "
            f"{DEEPEST}, for instance by definitions under $defs"
        )
    try:
        return tuple(normal_form.tools(schemas) or ())
    except ValueError as error:
        raise _Wrong(f"tools={text:.100}{error}") from error


def _depth(value: Any) -> int:
    """How many lists and objects of JSON are within each other."""
    depth, level = 0, [value]
    while level := [node for node in level if isinstance(node, dict | list)]:
        depth += 1
        level = [x for node in level for x in (node.values() if isinstance(node, dict) else node)]
    return depth


def _sequence(value: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list):
        raise _Wrong(f"{name}={value!r:.100}; give a tuple")
    return tuple(value)


def _message(message: Any, roles: tuple[str, ...]) -> dict[str, str]:
    """A message in the one form, as `role` and `content`: its calls and its thought are text."""
    try:
        fields = normal_form.normal(message, strict=False)
    except ValueError as error:
        raise _Wrong(f"message {message!r:.100}: {error}") from error
    spelling = message.get("role", message.get("from"))
    role = spelling if spelling in roles else fields.get("role")
    if role not in roles:
        raise _Wrong(f"message {message!r:.100}; give a text, and a role of {', '.join(roles)}")
    if extra_fields := set(fields) - _FIELDS:
        raise _Wrong(
            f"message {message!r:.100} has {sorted(extra_fields)}, which episodes cannot show"
        )
    thought = fields.get("reasoning_content", "")
    content = (
        f"<think>\n{thought}\n</think>\n\n{fields['content']}" if thought else fields["content"]
    )
    calls = [
        formats.write_call(formats.Call(call["function"]["name"], call["function"]["arguments"]))
        for call in fields.get("tool_calls", ())
    ]
    return {
        "role": role,
        "content": "\n".join([*filter(None, [content]), *calls]) if calls else content,
    }


_FIELDS = {"role", "content", "tool_calls", "tool_call_id", "reasoning_content"}
"""Of a message in the one form. Replies of tools follow their calls in order, so no id is shown."""


def _number(value: Any, name: str) -> float:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise _Wrong(f"{name}={value!r:.100}; give a finite number")
    return float(value)


def _reward(value: Any, name: str) -> float:
    if not is_reward(reward := _number(value, name)):
        raise _Wrong(f"{name}={reward:g}; a reward is at most {LARGEST_REWARD:g} in size")
    return reward


def as_json(answer: Opening | Reply, number: int) -> dict[str, Any]:
    """An answer as JSON values; `number` is that of the message that it answers."""
    fields = answer._asdict()
    if fields.get("opening") is not None:
        fields["opening"] = answer.opening._asdict()
    return {"answers": number, "answer": fields}


def read(line: bytes, number: int, turn: Turn, environment: Environment) -> Opening | Reply:
    """The answer that a worker wrote, which is data from a process that may have been subverted."""
    try:
        reply = json.loads(line)
        if reply["answers"] != number:
            raise ValueError(f"it answers message {reply['answers']!r}, not {number}")
        kind = Reply if turn.actions else Opening
        answer = kind(**reply["answer"])
        if kind is Reply and answer.opening is not None:
            answer = answer._replace(opening=Opening(**answer.opening))
        return checked(answer, kind, environment)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return failed(turn, f"reply: the worker's answer is no reply: {error}")
