"""Environments of other libraries by their protocols, against stand-ins and the real packages."""

import dataclasses
import json
import os
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from jaxrl.data import scoring, tasks
from jaxrl.data.environments import Environment, Opening, Reply, Turn, adapters, play
from jaxrl.data.environments.formats import Call, written
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
            time.sleep(2)
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
    deadline = time.monotonic() + 5
    while waits and path.read_text().count("made") > path.read_text().count("closed"):
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.05)  # those that were late
    notes = [line.split(" ", 1) for line in path.read_text().splitlines()]
    made, closed, dies = ([n for what, n in notes if what == w] for w in ("made", "closed", "dies"))
    assert len(set(closed)) == len(closed) and set(closed) <= set(made)
    lost, died = ({name.split()[0] for name in names} for names in (set(made) - set(closed), dies))
    assert not lost if waits else lost <= died


def test_an_episode_that_is_over_is_closed_though_its_worker_is_busy(tmp_path):
    """Another worker, which has time, cannot do that."""
    path = tmp_path / "notes"
    name, given = f"{__name__}:noted", {"path": str(path)}
    with scoring.open_pool(name, given, workers=2, time_limit_s=9.0) as pool:
        problem = tasks.get(name, **given).problem("train", 0, 0)
        openings = [pool.act(Turn(n, problem, 3)).result(60) for n in range(3)]
        busy = pool.act(Turn(2, problem, 3, ("late",), (openings[2],)))
        pool.over(0)  # of the same worker
        assert busy.result(9).error is None
        deadline = time.monotonic() + 5
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
    name = "jaxrl.data.environments.adapters:gymnasium"
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

    counts, verified = {}, []

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
            case _:
                status, told = 404, {"detail": "Not Found"}
        self.send_response(status)
        self.send_header("Set-Cookie", f"session={session}")
        data = json.dumps(told).encode()
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def test_a_resources_server_of_nemo_gym(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Counter)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    tool = {"type": "function", "name": "increment_counter", "parameters": {"type": "object"}}
    params = {"input": [{"role": "user", "content": "add 1 and 2"}], "tools": [tool]}
    row = {"responses_create_params": params, "initial_count": 3, "expected_count": 6}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    task = tasks.get(
        "jaxrl.data.environments.adapters:nemo_gym",
        url=f"http://127.0.0.1:{server.server_address[1]}", path=str(tmp_path / "rows.jsonl"),
    )  # fmt: skip
    problem, answer = task.problem("train", 0, 0), play.Player(task).answer
    one, two = (written(Call("increment_counter", {"count": n})) for n in (1, 2))
    opening, first, _, end = played(answer, problem, one, two, "It is 6.")
    assert opening.messages == ({"role": "user", "content": "add 1 and 2"},)
    assert opening.tools[0]["function"]["name"] == "increment_counter"
    assert json.loads(first.messages[0]["content"]) == {"success": True} and first.calls == 1
    assert (end.reward, end.done) == (1.0, True)
    kinds = [item["type"] for item in Counter.verified[-1]["output"]]
    assert kinds == ["function_call", "function_call_output"] * 2 + ["message"]
    ids = [i["call_id"] for i in Counter.verified[-1]["output"] if "call_id" in i]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    _, wrong, end = played(answer, problem, written(Call("nothing", {})), "6", episode=1)
    assert "Not Found" in wrong.messages[0]["content"] and end.reward == 0
    server.shutdown()


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
            else:
                count += 1
                seen, reward, done = told["data"]["message"], 0.5, count == 2
            data = {"observation": {"echoed_message": seen}, "reward": reward, "done": done}
            socket.send(json.dumps({"type": "observation", "data": data}))

    with serve(echo, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        task = tasks.get(
            "jaxrl.data.environments.adapters:openenv", url=address, text="echoed_message"
        )
        problem, player = task.problem("train", 0, 0), play.Player(task)
        opening, hi, end = played(player.answer, problem, "hi", "there")
        assert opening.messages[0]["content"] == f"seed {problem.answer}"
        assert hi.messages[0]["content"] == "hi" and hi.reward == 0.5
        assert end.done and not end.messages
        bad = played(player.answer, problem, "bad", episode=1)[-1]
        assert "the server says" in bad.error and bad.reward is None
        late = player.answer(Turn(2, problem, 0))
        assert not late.error
        server.shutdown()


@pytest.mark.extra
def test_a_task_is_a_server_of_openenv():
    """Its own client plays it, so both speak one protocol; bad messages end no episode."""
    pytest.importorskip("websockets")
    import urllib.request

    from websockets.sync.client import connect

    from jaxrl.data.environments import openenv_server

    inner = tasks.get("game24")
    with openenv_server.served(inner) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        task = tasks.get("jaxrl.data.environments.adapters:openenv", url=address, text="message")
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
