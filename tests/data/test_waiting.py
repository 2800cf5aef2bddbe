"""Environments that wait for other processes: none holds up another, and each has a deadline."""

import http.server
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from jaxrl.data.environments import Environment, Opening, Reply, Turn, unscored
from jaxrl.data.scoring import async_environments
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.types import Task
from tests.data.test_environments import PROBLEM, SAID, played


def task(step, begin=lambda problem, seed: ([], Opening(SAID)), **more):
    world = Environment(begin, step, waits=True, **more)
    return Task("waits", lambda split, seed, index: PROBLEM, unscored, turns=world)


def opened(made, limit_s):
    return scoring.Pool(made, 0, limit_s, None, None)


def acts(pool):
    return lambda turn: pool.act(turn).result(20)


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Trickling(http.server.BaseHTTPRequestHandler):
    """Answers a byte now and then, so that no read of a client times out."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        try:
            for _ in range(1000):
                self.wfile.write(b"x")
                time.sleep(0.1)
        except OSError:
            return

    def log_message(self, *_):
        pass


@pytest.mark.broad
def test_a_server_that_trickles_is_given_up_on():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Trickling) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answers = []

        def step(state, action):
            url = f"http://127.0.0.1:{server.server_port}/"
            with urllib.request.urlopen(url, timeout=0.5) as reply:
                answers.append(reply.read(8 if action == "little" else -1))
            return Reply(SAID, 1.0)

        with opened(task(step), 1.5) as pool:
            said = played(acts(pool), "little", "all")
            assert said[1] == Reply(SAID, 1.0)
            assert said[2].error == "timeout: no reply after 1.5 s"
            assert played(acts(pool), "little", episode=1)[1] == Reply(SAID, 1.0)
        server.shutdown()
    assert len(answers) == 2


@pytest.mark.parametrize("where", ("begin", "step", "close"))
def test_an_episode_that_is_late_is_void_and_closed_once(where):
    free, closed = threading.Event(), []

    def late(name):
        if name == where:
            free.wait(20)

    def begin(problem, seed):
        late("begin")
        return [seed], Opening(SAID)

    def step(state, action):
        late("step")
        return Reply(SAID, 1.0)

    def close(state):
        late("close")
        closed.append(state)

    with opened(task(step, begin, close=close), 0.3) as pool:
        said = [pool.act(Turn(0, PROBLEM, 3)).result(5)]
        if where != "begin":
            said.append(pool.act(Turn(0, PROBLEM, 3, ("a",), tuple(said))).result(5))
        start = time.monotonic()
        pool.over(0)  # as its group has ended
        assert time.monotonic() - start < 0.2
        void = where != "close"
        assert (said[-1].error == "timeout: no reply after 0.3 s") == void
        assert (said[-1].error is None) == (not void)
        free.set()
        until(lambda: closed)
        time.sleep(0.1)
        assert closed == [[3]]


def test_no_slow_environment_holds_up_another():
    """However many: each has a thread of its own."""
    count, free = 150, threading.Event()

    def step(state, action):
        if action == "slow":
            free.wait(20)
        return Reply(SAID, 1.0)

    with opened(task(step), 15.0) as pool:
        openings = [pool.act(Turn(n, PROBLEM, 3)).result(5) for n in range(count + 1)]
        asked = [
            pool.act(Turn(n, PROBLEM, 3, ("slow",), (opening,)))
            for n, opening in enumerate(openings[:count])
        ]
        last = pool.act(Turn(count, PROBLEM, 3, ("fast",), (openings[-1],)))
        assert last.result(3) == Reply(SAID, 1.0) and not any(each.done() for each in asked)
        free.set()
        assert all(each.result(10) == Reply(SAID, 1.0) for each in asked)


@pytest.mark.parametrize(("own", "limit"), [(0.0, 1.0), (0.5, 1.1), (3.0, 3.6)])
def test_the_limit_is_the_pools_or_the_environments_own_if_that_is_more(own, limit, monkeypatch):
    """What is played again is given the time of all its actions."""
    monkeypatch.setattr(scoring, "_GRACE_S", 0.6)
    world = Environment(None, None, seconds=lambda problem, action: own)
    made = Task("t", None, unscored, turns=world)
    turn = Turn(0, PROBLEM, 3, ("a", "b"))
    alone, again = scoring._turn_limits(made, turn, 1.0)
    assert (alone, again) == (pytest.approx(limit), pytest.approx(max(1.0, 3 * own + 0.6)))
    none = Task("t", None, unscored, turns=world._replace(seconds=None))
    assert scoring._turn_limits(none, turn, 1.0) == (1.0, 1.0)
    judged = Task("t", None, unscored, turns=none.turns, seconds=lambda problem: own)
    assert scoring._turn_limits(judged, turn, 1.0) == (pytest.approx(limit),) * 2


def test_closing_the_pool_answers_what_is_asked_and_waits_for_no_thread():
    pool = opened(task(lambda state, action: time.sleep(60)), 50.0)
    opening = pool.act(Turn(0, PROBLEM, 3)).result(5)
    asked = pool.act(Turn(0, PROBLEM, 3, ("a",), (opening,)))
    start = time.monotonic()
    pool.close()
    assert asked.result(1).error.startswith("closed:") and time.monotonic() - start < 5
    with pytest.raises(RuntimeError, match="closed"):
        pool.act(Turn(1, PROBLEM, 3))


def opening(pool, episode, *actions):
    said = (Opening(SAID), *[Reply(SAID, 1.0)] * len(actions))[: len(actions)]
    return pool.act(Turn(episode, PROBLEM, 3, actions, said))


def test_many_openings_that_share_a_machine_keep_the_limit_that_one_keeps(monkeypatch):
    """The limit of an opening begins with its work, and not while it waits for that of others."""
    monkeypatch.setattr(async_environments, "_PLACES", 2)
    machine = threading.Lock()

    def begin(problem, seed):
        with machine:
            time.sleep(0.1)
        return [], Opening(SAID)

    with opened(task(lambda state, action: Reply(SAID, 1.0), begin), 1.0) as pool:
        asked = [opening(pool, n) for n in range(20)] + [opening(pool, n, "a") for n in (20, 21)]
        assert not any(each.result(10).error for each in asked)


def test_openings_that_hang_are_void_alone_and_hold_up_the_others_for_a_part_of_their_limit(
    monkeypatch,
):
    monkeypatch.setattr(async_environments, "_PLACES", 2)
    hangs, free = 10, threading.Event()

    def begin(problem, seed):
        if seed < hangs:
            free.wait(20)
        return [], Opening(SAID)

    start = time.monotonic()
    with opened(task(None, begin), 1.0) as pool:
        asked = [pool.act(Turn(n, PROBLEM, n)) for n in range(2 * hangs)]
        errors = [each.result(20).error for each in asked]
        assert errors == ["timeout: no reply after 1 s"] * hangs + [None] * hangs
        assert time.monotonic() - start < 4.0  # 5 limits if each kept its place
        free.set()


def test_replies_that_are_played_again_wait_for_each_other(monkeypatch):
    """Only the opening of an episode is bounded, not what follows it."""
    monkeypatch.setattr(async_environments, "_PLACES", 1)
    both = threading.Barrier(3)

    def step(state, action):
        both.wait(1.5)
        return Reply(SAID, 1.0)

    with opened(task(step), 20.0) as pool:
        asked = [opening(pool, n, "a") for n in range(3)]
        assert [each.result(10) for each in asked] == [Reply(SAID, 1.0)] * 3


def test_an_opening_that_fails_is_the_error_of_what_was_to_be_played_again():
    def begin(problem, seed):
        raise OSError("no display")

    with opened(task(None, begin), 1.0) as pool:
        reply = opening(pool, 0, "a").result(5)
        assert isinstance(reply, Reply) and "no display" in reply.error


def test_closing_the_pool_begins_nothing_more(monkeypatch):
    monkeypatch.setattr(async_environments, "_PLACES", 1)
    free, begun = threading.Event(), []

    def begin(problem, seed):
        begun.append(seed)
        free.wait(20)
        return [], Opening(SAID)

    pool = opened(task(None, begin), 50.0)
    asked = [pool.act(Turn(n, PROBLEM, n)) for n in range(3)]
    until(lambda: begun)
    pool.close()
    assert all(each.result(1).error.startswith("closed:") for each in asked)
    free.set()
    time.sleep(0.2)
    assert begun == [0]


def test_a_thread_that_hangs_keeps_no_process_from_its_end():
    program = (
        "import time; from jaxrl.data.scoring import pool as scoring\n"
        "from jaxrl.data.environments import Turn\n"
        "from tests.data.test_waiting import PROBLEM, opened, task\n"
        "pool = opened(task(None, lambda problem, seed: time.sleep(600)), 0.1)\n"
        "print(pool.act(Turn(0, PROBLEM, 3)).result().error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "timeout: no reply after 0.1 s\n" and done.returncode == 0, done.stderr
