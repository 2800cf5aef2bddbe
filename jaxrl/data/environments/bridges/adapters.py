"""Environments of other libraries, by their protocols; none of these libraries is imported here
but the one that a task names.

They are named as MODULE:FUNCTION, as in `--task
jaxrl.data.environments.bridges.adapters:gymnasium`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.cookiejar
import importlib
import json
import sys
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jaxrl.data import http_post
from jaxrl.data.environments import Environment, Opening, Reply, Turn, unscored
from jaxrl.data.environments.bridges import agent_program, openenv_session, server_reply
from jaxrl.data.environments.bridges.dialects import DIALECTS, Answer, Asked
from jaxrl.data.environments.play import Player
from jaxrl.data.environments.tools import definition
from jaxrl.data.environments.tools.formats import HERMES, Call, write_call
from jaxrl.data.scoring import pool
from jaxrl.data.sources import extract, generate, records
from jaxrl.data.types import Problem, Score, Task

_LONGEST = 1 << 20
"""Bytes of a reply of a server."""


@dataclasses.dataclass
class _Played:
    """An environment of Gymnasium in the middle of an episode."""

    env: Any
    left: int


def five_tuples(
    make: Callable[[], Any],
    actions: Sequence[str],
    show: Callable[[Any, Any], str],
    *,
    turns: int,
    help: str = "",
) -> Environment:
    """The environment of a Gymnasium environment with discrete actions.

    Its `reset(seed=...)` gives `(observation, info)` and its `step(action)` the five values
    observation, reward, terminated, truncated and info. Its chances must come from the seed.

    Args:
      make: gives a new one.
      actions: words for its actions 0, 1, ...; a turn's last word that is one of them is done.
      show: `(env, observation) -> text` that the policy reads.
      turns: the most that an episode may have; it then ends.
      help: a system message; empty: none.
    """
    numbers = {word: i for i, word in enumerate(actions)}

    def begin(problem: Problem, seed: int) -> tuple[_Played, Opening]:
        played = _Played(make(), turns)
        try:
            observation, _ = played.env.reset(seed=seed)
            message = {"role": "user", "content": show(played.env, observation)}
        except BaseException:
            played.env.close()
            raise
        lead = ({"role": "system", "content": help},) if help else ()
        return played, Opening((*lead, message))

    def step(played: _Played, action: str) -> Reply:
        played.left -= 1
        choices = [numbers[word] for word in extract.spoken(action).split() if word in numbers]
        if not choices:
            message = {"role": "user", "content": f"choose one of {', '.join(actions)}"}
            return Reply((message,), 0.0, done=played.left <= 0)
        observation, reward, ended, cut, _ = played.env.step(choices[-1])
        done = bool(ended or cut or played.left <= 0)
        message = {"role": "user", "content": show(played.env, observation)}
        return Reply(() if done else (message,), float(reward), done=done)

    return Environment(begin, step, close=lambda played: played.env.close())


def gymnasium(env_id: str, actions: str, turns: int = 100, render: bool = True) -> Task:
    """An environment of Gymnasium with discrete actions; it needs the package `gymnasium`.

    Args:
      env_id: as in `gymnasium.make`, such as FrozenLake-v1.
      actions: words for its actions, in order and apart by commas.
      turns: the most that an episode may have.
      render: show what `render()` gives as text, else the observation.
    """
    package = importlib.import_module("gymnasium")
    words = [word.strip() for word in actions.split(",")]
    options = {"render_mode": "ansi"} if render else {}
    space = package.make(env_id, **options).action_space
    if getattr(space, "n", None) != len(words):
        raise ValueError(f"actions={actions!r}: {env_id} has {space}; give a word for each")

    def show(env: Any, observation: Any) -> str:
        return str(env.render() if render else observation)

    world = five_tuples(
        lambda: package.make(env_id, **options), words, show, turns=turns,
        help=f"Choose in each turn one of: {', '.join(words)}.",
    )  # fmt: skip
    return seeded("gymnasium", env_id, world)


class Gym:
    """An episode of a task, as a Gymnasium environment is used: texts in and out."""

    def __init__(self, task: Task, split: str = "train") -> None:
        """Args: a task with an environment, and the split of its problems."""
        self._task, self._split = task, split
        self._player, self._count = Player(task), 0
        self._turn: Turn | None = None

    def reset(self, seed: int = 0) -> tuple[str, dict[str, Any]]:
        """Begin the episode of problem `seed`: what is read first, and the tools that there are.

        The episode before it is closed.
        """
        self._player.close()
        self._count += 1
        self._turn = Turn(self._count, self._task.problem(self._split, 0, seed), seed)
        opening = self._player.answer(self._turn)
        if opening.error:
            raise RuntimeError(opening.error)
        self._turn = dataclasses.replace(self._turn, said=(opening,))
        return _joined(opening.messages), {"tools": opening.tools}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One turn: observation, reward, terminated, truncated (never), and the reply's parts.

        Raises:
          RuntimeError: the episode has ended, or the environment has failed, or the task's reward
            of its answer.
        """
        turn = dataclasses.replace(self._turn, actions=(*self._turn.actions, action))
        reply = self._player.answer(turn)
        if reply.error:
            raise RuntimeError(reply.error)
        self._turn = dataclasses.replace(turn, said=(*turn.said, reply))
        messages = reply.messages if reply.opening is None else reply.opening.messages
        reward, parts = reply.reward or 0.0, dict(reply.parts)
        if reply.answer is not None:
            task = self._task.of(turn.problem)
            score = pool.score_completion(task, turn.problem, reply.answer)
            if score.error:
                raise RuntimeError(score.error)
            reward, parts = reward + score.value, parts | dict(score.parts)
        return _joined(messages), reward, reply.done, False, parts

    def close(self) -> None:
        """End the episode."""
        self._player.close()


def _joined(messages: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(message["content"] for message in messages)


def seeded(name: str, key: str, world: Environment) -> Task:
    """A task whose problems differ in their seed alone, which is that of the episode."""

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        number = generate.draw(
            lambda stream: stream.randrange(1 << 30), key=str,
            stream=generate.rng(name, key, split, seed, index), split=split,
        )  # fmt: skip
        return generate.user_problem(name, f"{key}/{number}", key, number)

    environment = world._replace(begin=lambda problem, seed: world.begin(problem, problem.answer))
    task = Task(name, problem, unscored, splits=("train", "test"), turns=environment)
    return task


@dataclasses.dataclass
class _Conversation:
    """An episode of an OpenEnv server."""

    session: openenv_session.Session
    left: int


def openenv(
    url: str, field: str = "message", text: str = "", seconds: float = 30.0, turns: int = 20
) -> Task:
    """Episodes of an OpenEnv server, over its WebSocket; it needs the package `websockets`.

    Args:
      url: of the server, such as http://127.0.0.1:8000; it is sent what the policy writes.
      field: of the action, which is given the text of the turn. The policy reads why the server
        refuses a text; what the environment raises voids the episode.
      text: field of the observation that the policy reads; empty: all of it, as JSON.
      seconds: limit of each answer.
      turns: the most that an episode may have; it then ends.
    """
    importlib.import_module("websockets.sync.client")  # before the first episode needs it
    address = openenv_session.address_of(url)

    def as_messages(reply: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
        fields = server_reply.field(reply, "observation", "the server's message")
        if not text:
            return ({"role": "user", "content": json.dumps(fields)},)
        fields = server_reply.as_object(fields, "the observation")
        content = server_reply.field(fields, text, "the observation")
        return ({"role": "user", "content": str(content)},)

    def begin(problem: Problem, seed: int) -> tuple[_Conversation, Opening]:
        session = openenv_session.Session(address, seconds)
        try:
            reply = session.ask("reset", {"seed": seed})
            if server_reply.flag(reply.get("done", False), "done"):
                raise server_reply.WrongReply(
                    "the server says that an episode is over at its reset"
                )
            return _Conversation(session, turns), Opening(as_messages(reply))
        except BaseException:
            session.close()
            raise

    def step(state: _Conversation, action: str) -> Reply:
        state.left -= 1
        try:
            reply = state.session.ask("step", {field: action})
        except openenv_session.Refused as error:
            message = {"role": "user", "content": f"error: {str(error)[:200]}"}
            return Reply((message,), 0.0, done=state.left <= 0)
        source = "the server's message"
        over = server_reply.flag(server_reply.field(reply, "done", source), "done")
        reward = server_reply.field(reply, "reward", source)
        if isinstance(reward, bool):  # which the protocol allows
            reward = float(reward)
        if reward is not None:
            reward = server_reply.number(reward, "reward")
        done = over or state.left <= 0
        return Reply(() if done else as_messages(reply), reward, done=done)

    world = Environment(
        begin, step, close=lambda state: state.session.close(), waits=True,
        seconds=lambda problem, action: seconds if action else 2 * seconds,
    )  # fmt: skip
    return seeded("openenv", url, world)


@dataclasses.dataclass
class _Resources:
    """A session of a NeMo Gym resources server, which knows it by its cookies."""

    row: Mapping[str, Any]
    left: int
    cookies: http.cookiejar.CookieJar = dataclasses.field(default_factory=http.cookiejar.CookieJar)
    tools: tuple[definition.Tool, ...] = ()
    outputs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    answers: bool = False
    """Whether the server has answered the last request; one that has not is asked nothing more."""


def nemo_gym(
    url: str, path: str, seconds: float = 30.0, calls: int = 10, role: str = "tool"
) -> Task:
    """Tasks of a NeMo Gym resources server, which runs the tools and gives the reward.

    Args:
      url: of the server, such as http://127.0.0.1:8000; it is sent what the policy writes.
      path: file of its rows, each with `responses_create_params`.
      seconds: limit of each answer.
      calls: turns with calls that an episode may have; one more ends it as an answer does.
      role: of the messages that give results; `user` where the chat template knows no `tool`.
    """
    http_post.split(url)
    rows = list(records.read(path))
    if not rows or not all("responses_create_params" in row for row in rows):
        raise ValueError(f"path={path!r}: its rows need responses_create_params")

    def post(state: _Resources, name: str, body: Mapping[str, Any]) -> tuple[int, str]:
        address = f"{url.rstrip('/')}/{urllib.parse.quote(name, safe='')}"
        request = urllib.request.Request(address, headers={"Content-Type": "application/json"})
        state.cookies.add_cookie_header(request)
        headers, state.answers = dict(request.header_items()), False
        reply = http_post.post(address, json.dumps(body).encode(), headers, seconds, _LONGEST)
        state.answers = True
        if reply.is_redirect:
            raise RuntimeError(f"{name} answers {reply.status}, a redirect, which is not followed")
        state.cookies.extract_cookies(SimpleNamespace(info=lambda: reply.headers), request)
        return reply.status, reply.body.decode(errors="replace")

    def offered(state: _Resources, schema: Mapping[str, Any]) -> definition.Tool:
        """A tool that the row offers; the server has addresses that are none."""
        function = schema["function"]

        def run(**arguments: Any) -> str:
            return post(state, function["name"], arguments)[1]

        described, schema = function.get("description", ""), function.get("parameters", {})
        return definition.Tool(function["name"], described, schema, run)

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        row = rows[index % len(rows)]
        return generate.user_problem("nemo_gym", json.dumps(row, sort_keys=True), "", None, row=row)

    def begin(problem: Problem, seed: int) -> tuple[_Resources, Opening]:
        row = problem.metadata["row"]
        state = _Resources(row, calls)
        status, reply = post(state, "seed_session", row)
        if status != 200:
            raise RuntimeError(f"seed_session answers {status}: {reply[:500]}")
        request = DIALECTS["responses"].read(dict(row["responses_create_params"]))
        state.tools = tuple(offered(state, schema) for schema in request.tools)
        definition.check_names(state.tools)
        messages = tuple(
            {"role": message.role, "content": message.content} for message in request.messages
        )
        return state, Opening(messages, tools=tuple(tool.schema for tool in state.tools))

    def step(state: _Resources, action: str) -> Reply:
        content, read = HERMES.read(action)
        tool_calls = tuple(call for call in read if isinstance(call, Call))
        unread = [write_call(call) for call in read if not isinstance(call, Call)]  # it stays text
        text = "\n".join([*filter(None, [content.strip()]), *unread])
        body = DIALECTS["responses"].whole(
            Asked(()), Answer(len(state.outputs), text, tool_calls, ())
        )
        state.outputs += body["output"]
        if read and state.left:
            state.left -= 1
            results = definition.results(state.tools, action)
            ids = (item["call_id"] for item in body["output"] if item["type"] == "function_call")
            state.outputs += [
                {"type": "function_call_output", "call_id": next(ids), "output": result}
                for call, result in zip(read, results, strict=True)
                if isinstance(call, Call)
            ]
            results_message = {"role": role, "content": definition.joined(results)}
            return Reply((results_message,), calls=len(read))
        response = {**body, "output": state.outputs}
        status, reply = post(state, "verify", {**state.row, "response": response})
        if status != 200:
            raise RuntimeError(f"verify answers {status}: {reply[:500]}")
        return Reply(reward=server_reply.verified_reward(reply), done=True, calls=len(read))

    def close(state: _Resources) -> None:
        """Have the server free what it holds for an episode. One without this address says so."""
        if state.answers:
            # the server knows the session by its cookie, and requires these fields all the same
            ids = dict.fromkeys(("resources_session_id", "episode_id"), uuid.uuid4().hex)
            with contextlib.suppress(OSError, http.client.HTTPException, RuntimeError):
                post(state, "close_session", ids)

    task = Task(
        "nemo_gym",
        problem,
        unscored,
        splits=("train",),
        sizes={"train": len(rows)},
        turns=Environment(
            begin,
            step,
            close=close,
            roles=(role,),
            tools=True,
            waits=True,
            seconds=lambda problem, action: seconds * max(1, definition.count(action)),
        ),
    )
    return task


def verifiers(
    env: str,
    tasks: int,
    held_out: int = 0,
    python: str = "",
    seconds: float = 300.0,
    roles: str = "tool,user",
) -> Task:
    """Rollouts of an environment of verifiers, each a program whose model is the policy.

    Args:
      env: what its commands take as `env`, as JSON, such as {"taskset": {"id": "my_taskset"},
        "agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}}.
      tasks: how many tasks the taskset has.
      held_out: the last ones of them, which are the split `test`.
      python: a Python that has `verifiers`; empty: this one.
      seconds, roles: as of the task `agent_program`.
    """
    if not 0 <= held_out < tasks:
        raise ValueError(f"tasks={tasks}, held_out={held_out}: need 0 <= held_out < tasks")
    if not isinstance(json.loads(env), dict):
        raise ValueError(f"env={env!r}: give the fields of an environment as a JSON object")
    program = str(Path(__file__).with_name("verifiers_program.py"))
    sizes = {"train": tasks - held_out} | ({"test": held_out} if held_out else {})

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        number = index % sizes[split] + (tasks - held_out) * (split == "test")
        return generate.user_problem("verifiers", f"{env}/{number}", str(number), None)

    def reward(problem: Problem, completion: str) -> Score:
        source = "the program's report"
        report = server_reply.read_object(completion.strip().rpartition("\n")[2], source)
        parts = server_reply.as_object(server_reply.field(report, "parts", source), "parts")
        value = server_reply.number(server_reply.field(report, "reward", source), "reward")
        return Score(value, {k: server_reply.number(part, k) for k, part in parts.items()})

    task = Task(
        "verifiers",
        problem,
        reward,
        splits=tuple(sizes),
        sizes=sizes,
        turns=agent_program.environment(
            [python or sys.executable, program, env], seconds, tuple(roles.split(","))
        ),
    )
    return task
