"""Environments of other libraries by their protocols, against stand-ins and the real packages."""

import dataclasses
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import Environment, Opening, Reply, Turn, play
from jaxrl.data.environments.bridges import adapters
from jaxrl.data.environments.tools.formats import Call, write_call
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.types import Problem, Score
from tests.data.test_bundled_environments import played

PROBLEM = Problem("p", "", 7)


class Line:
    """A Gymnasium environment in all but name: go to the end of a line."""

    def reset(self, seed=None):
        self.at, self.length = 0, 2 + seed % 2
        return self.at, {}

    def step(self, action):
        self.at += 2 * action - 1
        ended = self.at == self.length
        return self.at, float(ended), ended, self.at < 0, {}

    def close(self):
        self.at = None


def test_five_tuples_are_an_environment():
    world = adapters.five_tuples(Line, ("back", "on"), lambda env, seen: f"at {seen}", turns=4)
    state, opening = world.begin(PROBLEM, 3)
    assert opening.messages[0]["content"] == "at 0"
    assert "choose one" in world.step(state, "up").messages[0]["content"]
    steps = [world.step(state, "I go on") for _ in range(3)]
    assert [s.done for s in steps] == [False, False, True] and steps[-1].reward == 1
    state, _ = world.begin(PROBLEM, 3)
    assert world.step(state, "back").done
    state, _ = world.begin(PROBLEM, 3)
    assert [world.step(state, "x").done for _ in range(4)] == [False, False, False, True]
    world.close(state)
    assert state.env.at is None


class Noted(Line):
    """Writes a line to a file when it is made and when it is closed."""

    def __init__(self, path):
        self.path, self.name = path, f"{os.getpid()} {time.monotonic_ns()}"
        self.note("made")

    def note(self, what):
        with open(self.path, "a") as file:
            file.write(f"{what} {self.name}\n")

    def step(self, action):
        raise OSError("it fails")

    def close(self):
        self.note("closed")


OUTCOMES = ("finished", "left", "raises", "wrong", "late", "killed", "in flight")


def noted(path="", waits=False):
    """An environment whose actions are outcomes; each episode is one of `Noted`."""
    world = adapters.five_tuples(
        lambda: Noted(path), ("fail", "raises"), lambda env, seen: "go", turns=9
    )

    def step(state, action):
        if action in ("late", "killed"):
            state.env.note("dies")
        if action == "late":
            time.sleep(6)  # far beyond the limit of the pools below, but for one
        if action == "killed" and not waits:
            os._exit(3)
        if action == "finished":
            return Reply(reward=1.0, done=True)
        if action in ("wrong", "killed"):
            return None
        if action == "raises":
            return world.step(state, action)
        return Reply(({"role": "user", "content": "go on"},), 0.0)

    task = adapters.seeded("noted", "noted", world._replace(step=step, waits=waits))
    return dataclasses.replace(task, turns=task.turns._replace(step=step))


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("waits", [False, True])
def test_every_episode_is_closed_once_however_it_ends(waits, seed, tmp_path):
    """Or, where its process was killed, is gone with that."""
    path, outcomes = tmp_path / "notes", list(OUTCOMES) * 2
    path.touch()
    random.Random(seed).shuffle(outcomes)
    given = {"path": str(path), "waits": waits}
    name = f"{__name__}:noted"
    with scoring.open_pool(name, given, workers=2, time_limit_s=1.5) as pool:
        problem = tasks.get(name, **given).problem("train", 0, 0)
        openings = [pool.act(Turn(n, problem, 3)) for n in range(len(outcomes))]
        openings = [each.result(60) for each in openings]
        assert not any(each.error for each in openings)
        went = [
            pool.act(Turn(n, problem, 3, (outcome,), (openings[n],)))
            for n, outcome in enumerate(outcomes)
        ]
        for n, (outcome, each) in enumerate(zip(outcomes, went, strict=True)):
            reply = each.result(60)
            assert (reply.error is None) == (outcome in ("finished", "left", "in flight"))
            if outcome != "in flight":
                pool.over(n)
    deadline = time.monotonic() + 60
    while waits and path.read_text().count("made") > path.read_text().count("closed"):
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.05)  # those that were late
    notes = [line.split(" ", 1) for line in path.read_text().splitlines()]
    made, closed, dies = ([n for what, n in notes if what == w] for w in ("made", "closed", "dies"))
    assert len(set(closed)) == len(closed) and set(closed) <= set(made)
    lost, died = ({name.split()[0] for name in names} for names in (set(made) - set(closed), dies))
    assert not lost if waits else lost <= died


@pytest.mark.broad
def test_an_episode_that_is_over_is_closed_though_its_worker_is_busy(tmp_path):
    """Another worker, which has time, cannot do that."""
    path = tmp_path / "notes"
    name, given = f"{__name__}:noted", {"path": str(path)}
    with scoring.open_pool(name, given, workers=2, time_limit_s=60.0) as pool:
        problem = tasks.get(name, **given).problem("train", 0, 0)
        openings = [pool.act(Turn(n, problem, 3)).result(60) for n in range(3)]
        busy = pool.act(Turn(2, problem, 3, ("late",), (openings[2],)))
        pool.over(0)  # of the same worker
        assert busy.result(60).error is None
        deadline = time.monotonic() + 60
        while "closed" not in path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_an_environment_is_five_tuples():
    task = tasks.get("game24")
    gym = adapters.Gym(task)
    seen, info = gym.reset(seed=4)
    problem = task.problem("train", 0, 4)
    assert problem.prompt in seen and info == {"tools": ()}
    *_, (seen, reward, ended, cut, parts) = [gym.step(a) for a in task.turns.gold(problem, 4)]
    assert (seen, reward, ended, cut, parts["solved"]) == ("", 1.0, True, False, 1.0)
    for _ in range(2):  # it pays no second time
        with pytest.raises(
            RuntimeError, match=f"ended with action {len(task.turns.gold(problem, 4))}"
        ):
            gym.step("1 + 1")
    assert gym.reset(seed=4)[0] == gym.reset(seed=4)[0] != gym.reset(seed=5)[0]
    gym.close()


def test_an_episode_that_is_left_or_does_not_begin_is_closed():
    """As where a trainer resets before the end, or `reset` raises."""
    closed, made = [], []

    class Watched(Line):
        def reset(self, seed=None):
            made.append(self)
            if seed == 13:
                raise OSError("no display")
            return super().reset(seed)

        def close(self):
            closed.append(self)

    world = adapters.five_tuples(Watched, ("back", "on"), lambda env, seen: f"at {seen}", turns=4)
    task = adapters.seeded("line", "line", world)
    task = dataclasses.replace(task, turns=world)
    gym = adapters.Gym(task)
    for seed in (0, 0, 1):
        gym.reset(seed)
        gym.step("on")
    assert closed == made[:2]
    with pytest.raises(RuntimeError, match="no display"):
        gym.reset(13)
    assert closed == made
    gym.close()
    assert closed == made


def test_the_reward_of_an_answer_is_in_the_last_of_the_five():
    """It is the task's, as `Reply.answer` says; one that fails is an error and never 0."""

    def reward(problem, completion):
        return Score(float(completion), {"length": 1.0})

    def step(state, action):
        return Reply(reward=0.25, done=True, answer=action)

    world = Environment(
        lambda problem, seed: ([], Opening(({"role": "user", "content": "?"},))), step
    )
    gym = adapters.Gym(dataclasses.replace(tasks.get("arithmetic"), reward=reward, turns=world))
    gym.reset()
    assert gym.step("0.5")[1:] == (0.75, True, False, {"length": 1.0})
    gym.reset()
    with pytest.raises(RuntimeError, match="could not convert"):
        gym.step("half")


@pytest.mark.extra
def test_a_task_of_gymnasium():
    pytest.importorskip("gymnasium")
    name = "jaxrl.data.environments.bridges.adapters:gymnasium"
    given = {"env_id": "Taxi-v4", "actions": "south,north,east,west,pickup,dropoff"}
    try:
        task = tasks.get(name, **given, render=False)
    except Exception:
        task = tasks.get(name, **given | {"env_id": "Taxi-v3"}, render=False)
    problem = task.problem("train", 0, 0)
    one, two = (played(play.Player(task).answer, problem, "north", "jump") for _ in range(2))
    assert one == two and one[1].reward == -1 and "choose one" in one[2].messages[0]["content"]
    with pytest.raises(ValueError, match="give a word for each"):
        tasks.get(name, env_id=problem.prompt, actions="a,b", render=False)


class Counter(BaseHTTPRequestHandler):
    """A NeMo Gym resources server: a counter for each session."""

    counts, verified, closed, at_close = {}, [], [], 200

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        session = (self.headers.get("Cookie") or f"session={len(self.counts)}").split("=")[1]
        status, told = 200, {}
        match self.path:
            case "/seed_session":
                self.counts[session] = body["initial_count"]
            case "/increment_counter":
                self.counts[session] += body["count"]
                told = {"success": True}
            case "/verify":
                self.verified.append(body["response"])
                told = body | {"reward": float(body["expected_count"] == self.counts[session])}
            case "/close_session":
                del self.counts[session]
                self.closed.append(session)
                status = self.at_close
            case _:
                status, told = 404, {"detail": "Not Found"}
        self.send_response(status)
        self.send_header("Set-Cookie", f"session={session}")
        data = json.dumps(told).encode()
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def nemo_gym(tmp_path):
    """A task of that server, whose counter is 3 at first and has to be 6."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Counter)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    count = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    tool = {"type": "function", "name": "increment_counter", "parameters": count}
    params = {"input": [{"role": "user", "content": "add 1 and 2"}], "tools": [tool]}
    row = {"responses_create_params": params, "initial_count": 3, "expected_count": 6}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    yield tasks.get(
        "jaxrl.data.environments.bridges.adapters:nemo_gym",
        url=f"http://127.0.0.1:{server.server_address[1]}", path=str(tmp_path / "rows.jsonl"),
    )  # fmt: skip
    server.shutdown()
    server.server_close()


def test_a_resources_server_of_nemo_gym(nemo_gym):
    problem, answer = nemo_gym.problem("train", 0, 0), play.Player(nemo_gym).answer
    one, two = (write_call(Call("increment_counter", {"count": n})) for n in (1, 2))
    opening, first, _, end = played(answer, problem, one, two, "It is 6.")
    assert opening.messages == ({"role": "user", "content": "add 1 and 2"},)
    assert opening.tools[0]["function"]["name"] == "increment_counter"
    assert json.loads(first.messages[0]["content"]) == {"success": True} and first.calls == 1
    assert (end.reward, end.done) == (1.0, True)
    kinds = [item["type"] for item in Counter.verified[-1]["output"]]
    assert kinds == ["function_call", "function_call_output"] * 2 + ["message"]
    ids = [i["call_id"] for i in Counter.verified[-1]["output"] if "call_id" in i]
    assert ids[0] == ids[1] != ids[2] == ids[3]


@pytest.mark.parametrize(
    "name", ("seed_session", "verify", "nothing", "../verify", "/verify", "increment_counter/")
)
def test_a_policy_reaches_the_tools_of_a_resources_server_and_nothing_else(name, nemo_gym):
    """The server's own addresses would set its state or tell the reward."""
    problem, answer = nemo_gym.problem("train", 0, 0), play.Player(nemo_gym).answer
    verified = len(Counter.verified)
    given = {"initial_count": 6, "expected_count": 3, "response": {}, "count": 3}
    _, none, end = played(answer, problem, write_call(Call(name, given)), "done")
    assert none.messages[0]["content"] == f"error: there is no tool {name!r}"
    assert end.reward == 0 and len(Counter.verified) == verified + 1


def test_calls_that_cannot_be_made_stand_where_they_were_written(nemo_gym):
    """And reach no server, which may fail for one of a wrong type."""
    problem, answer = nemo_gym.problem("train", 0, 0), play.Player(nemo_gym).answer
    good = write_call(Call("increment_counter", {"count": 3}))
    wrong = [write_call(Call("increment_counter", each)) for each in ({"count": "3"}, {})]
    bad = "<tool_call>\nincrement 3\n</tool_call>"
    _, reply, end = played(answer, problem, "\n".join([wrong[0], bad, good, wrong[1]]), "6")
    said = reply.messages[0]["content"].split("\n")
    assert said[0].startswith("error: '3' is not of type 'integer'")
    assert said[1] == "error: a call is a JSON object with a name and arguments"
    assert said[2] == '{"success": true}' and said[3] == "error: 'count' is a required property"
    assert (reply.calls, end.reward) == (4, 1.0)
    text, *items = Counter.verified[-1]["output"]
    assert "increment 3" in text["content"][0]["text"]
    kinds = [item["type"] for item in items]
    assert kinds == ["function_call"] * 3 + ["function_call_output"] * 3 + ["message"]
    assert [each["call_id"] for each in items[:3]] == [each["call_id"] for each in items[3:6]]
    assert [each["output"] for each in items[3:6]] == [said[0], said[2], said[3]]


def test_a_row_whose_tool_has_no_schema_is_an_error_that_names_the_tool(nemo_gym):
    problem = nemo_gym.problem("train", 0, 0)
    params = problem.metadata["row"]["responses_create_params"]
    params["tools"][0]["parameters"]["properties"]["count"] = {"type": "int"}
    (opening,) = played(play.Player(nemo_gym).answer, problem)
    assert "tool 'increment_counter'" in opening.error and "count.type: 'int'" in opening.error


REFUSED = {
    "up": {"type": "literal_error", "msg": "Input should be 'go'"},
    "field": {"type": "extra_forbidden", "msg": "Extra inputs are not permitted"},
    "list": {"type": "list_type", "msg": "Input should be a valid list"},
}


@pytest.mark.extra
def test_a_server_of_openenv():
    pytest.importorskip("websockets")
    from websockets.sync.server import serve

    def echo(socket):
        count = 0
        for line in socket:
            told = json.loads(line)
            if told["type"] == "reset":
                seen, reward, done = f"seed {told['data']['seed']}", None, False
            elif told["data"].get("message") == "bad":
                socket.send(json.dumps({"type": "error", "data": {"message": "no", "code": "X"}}))
                continue
            elif wrong := REFUSED.get(told["data"].get("message")):
                error = {"message": "Invalid message", "code": "VALIDATION_ERROR"}
                socket.send(json.dumps({"type": "error", "data": error | {"errors": [wrong]}}))
                continue
            else:
                count += 1
                seen, reward, done = told["data"]["message"], 0.5, count == 2
            data = {"observation": {"echoed_message": seen}, "reward": reward, "done": done}
            socket.send(json.dumps({"type": "observation", "data": data}))

    with serve(echo, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        task = tasks.get(
            "jaxrl.data.environments.bridges.adapters:openenv", url=address, text="echoed_message"
        )
        problem, player = task.problem("train", 0, 0), play.Player(task)
        opening, hi, end = played(player.answer, problem, "hi", "there")
        assert opening.messages[0]["content"] == f"seed {problem.answer}"
        assert hi.messages[0]["content"] == "hi" and hi.reward == 0.5
        assert end.done and not end.messages
        bad = played(player.answer, problem, "bad", episode=1)[-1]
        assert "the server says" in bad.error and bad.reward is None
        _, up, hi = played(player.answer, problem, "up", "hi", episode=3)
        assert up.messages[0]["content"] == "error: Input should be 'go'" and up.reward == 0
        assert hi.messages[0]["content"] == "hi"  # in the same session
        for each in ("field", "list"):
            wrong = played(player.answer, problem, each, episode=each)[-1]
            assert "the server says" in wrong.error
        late = player.answer(Turn(2, problem, 0))
        assert not late.error
        server.shutdown()


@pytest.mark.extra
def test_a_task_is_a_server_of_openenv():
    """Its own client plays it, so both speak one protocol; bad messages end no episode."""
    pytest.importorskip("websockets")
    import urllib.request

    from websockets.sync.client import connect

    from jaxrl.data.environments.bridges import openenv_server

    inner = tasks.get("game24")
    with openenv_server.served(inner) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        task = tasks.get(
            "jaxrl.data.environments.bridges.adapters:openenv", url=address, text="message"
        )
        problem, player = task.problem("train", 0, 0), play.Player(task)
        there = inner.problem("train", 0, problem.answer)
        said = played(player.answer, problem, *inner.turns.gold(there, problem.answer))
        assert there.prompt in said[0].messages[0]["content"]
        assert said[-1].done and said[-1].reward == 1 and said[1].messages
        with connect(f"{address.replace('http', 'ws')}/ws") as socket:

            def ask(kind, **data):
                socket.send(json.dumps({"type": kind, "data": data}))
                return json.loads(socket.recv(timeout=10))

            assert ask("step", message="1")["type"] == "error"  # before it is reset
            assert "none of reset" in ask("jump")["data"]["message"]
            assert ask("reset", seed=3)["data"]["observation"]["tools"] == []
            assert ask("step", wrong="1")["data"]["code"] == "EXECUTION_ERROR"
            assert ask("step", message="1")["data"]["done"] is False
            assert ask("state") == {"type": "state", "data": {"step_count": 1}}
        with urllib.request.urlopen(f"{address}/health") as answer:
            assert json.load(answer) == {"status": "healthy"}
        server.shutdown()
    with pytest.raises(ValueError, match="one turn"), openenv_server.served(tasks.get("maze")):
        pass


def port_that_is_free():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def started(command, port):
    """A server, once it listens."""
    process, deadline = subprocess.Popen(command), time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.1)
    process.kill()
    raise RuntimeError(f"{command} does not listen; its status is {process.wait()}")


THEIR_SERVER = """
import sys
from typing import Literal
import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

class Move(Action):
    word: Literal["on", "break"]

class Seen(Observation):
    at: int

class Line(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def reset(self, seed=None, episode_id=None, **kwargs):
        self.at = self.start = seed
        return Seen(at=self.at)
    def step(self, action, timeout_s=None, **kwargs):
        if action.word == "break":
            raise OSError("it fails")
        self.at += 1
        done = self.at == self.start + 2
        return Seen(at=self.at, reward=float(done), done=done)
    @property
    def state(self):
        return State(step_count=self.at - self.start)

app = create_fastapi_app(Line, Move, Seen, max_concurrent_envs=8)
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
"""
THEIR_CLIENT = """
import json, sys
from openenv.core.generic_client import GenericEnvClient

address, seed, *actions = sys.argv[1:]
with GenericEnvClient(address).sync() as env:
    said = [env.reset(seed=int(seed))] + [env.step({"message": each}) for each in actions]
    told = [(each.observation, each.reward, each.done) for each in said]
    print(json.dumps({"said": told, "state": env.state()}))
"""
with_openenv = pytest.mark.skipif(
    "OPENENV_PYTHON" not in os.environ, reason="names a Python with openenv"
)


@pytest.mark.extra
@with_openenv
def test_episodes_of_a_real_server_of_openenv(tmp_path):
    """Each has a session of its own. A text that the action may not have is an observation."""
    pytest.importorskip("websockets")
    (tmp_path / "server.py").write_text(THEIR_SERVER)
    port = port_that_is_free()
    server = started([os.environ["OPENENV_PYTHON"], str(tmp_path / "server.py"), str(port)], port)
    try:
        name, url = "jaxrl.data.environments.bridges.adapters:openenv", f"http://127.0.0.1:{port}"
        task = tasks.get(name, url=url, field="word", text="at")
        problem, player = task.problem("train", 0, 0), play.Player(task)
        openings = [player.answer(Turn(n, problem, 0)) for n in (7, 8)]
        assert [each.error for each in openings] == [None, None]
        opening, refused, on, end = played(player.answer, problem, "jump", "on", "on")
        assert opening.messages[0]["content"] == str(problem.answer)
        assert refused.messages[0]["content"] == "error: Input should be 'on' or 'break'"
        assert on.messages[0]["content"] == str(problem.answer + 1)
        assert (refused.reward, on.reward, end.reward, end.done) == (0.0, 0.0, 1.0, True)
        assert "it fails" in played(player.answer, problem, "break", episode=1)[-1].error
        other = tasks.get(name, url=url, field="text")
        wrong = played(play.Player(other).answer, problem, "on", episode=2)[-1]
        assert "extra_forbidden" in wrong.error
        player.close()
    finally:
        server.terminate()
        server.wait()


@pytest.mark.extra
@with_openenv
def test_the_real_client_of_openenv_plays_a_task():
    pytest.importorskip("websockets")
    task, port = tasks.get("game24"), port_that_is_free()
    problem = task.problem("train", 0, 5)
    module = ["-m", "jaxrl.data.environments.bridges.openenv_server", "game24", "--port", str(port)]
    server = started([sys.executable, *module], port)
    try:
        actions = task.turns.gold(problem, 5)
        asked = ["-c", THEIR_CLIENT, f"http://127.0.0.1:{port}", "5", *actions]
        done = subprocess.run(
            [os.environ["OPENENV_PYTHON"], *asked], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
    finally:
        server.terminate()
        server.wait()
    told = json.loads(done.stdout)
    assert problem.prompt in told["said"][0][0]["message"]
    rewards, ends = zip(*(each[1:] for each in told["said"]), strict=True)
    assert sum(each or 0 for each in rewards) == 1 and ends[-1] and not any(ends[:-1])
    assert told["state"]["step_count"] == len(actions)


@pytest.mark.parametrize("status", [200, 307, 404, 500])
def test_a_session_of_nemo_gym_is_closed_with_its_episode(status, nemo_gym, monkeypatch, recwarn):
    """Whether it has ended or is left; what the server answers then is no fault."""
    monkeypatch.setattr(Counter, "at_close", status)
    monkeypatch.setattr(Counter, "counts", {})
    problem, player = nemo_gym.problem("train", 0, 0), play.Player(nemo_gym)
    before = len(Counter.closed)
    *_, end = played(player.answer, problem, "It is 6.")
    assert end.done and not end.error
    played(player.answer, problem)
    player.close()
    assert len(Counter.closed) - before == 2 and not Counter.counts and not recwarn.list
