"""The scoring pool against scorers that hang, crash, raise and lie."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from jaxrl.data import tasks
from jaxrl.data.sandbox import runner
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.scoring import scoring_process
from jaxrl.data.types import Problem, Score, count_errors

HOSTILE = "tests.data.hostile:make"
PROBLEM = Problem("p", "", None)
HUGE = 10**400  # more than a float holds


@pytest.fixture(scope="module")
def pool():
    with scoring.open_pool(HOSTILE, workers=2, time_limit_s=1.0) as pool:
        pool.score([(PROBLEM, "")] * 2)  # workers up
        yield pool


def test_failures_become_errors_in_order_and_leave_the_rest_alone(pool):
    hostile = [
        "",
        "hang",
        "exit",
        "raise",
        "segfault",
        "nan",
        "none",
        "zero",
        "print",
        "async",
        "spin",
    ]
    scores = pool.score([(PROBLEM, c) for c in hostile] + [(PROBLEM, "")] * 5)
    kinds = [s.value if s.error is None else s.error.split(":")[0] for s in scores]
    assert kinds[: len(hostile)] == [
        1.0, "timeout", "crash", "exception", "crash", "exception", "exception", 0.0, 1.0, 2.0,
        "timeout",
    ]  # fmt: skip
    assert kinds[len(hostile) :] == [1.0] * 5
    assert count_errors(scores) == {"timeout": 2, "crash": 2, "exception": 3}
    assert "signal 11" in scores[4].error and "exit status 0" in scores[2].error


def test_a_hung_scorer_does_not_hold_up_the_others(pool):
    ended = []
    hung = pool.submit(PROBLEM, "hang")
    hung.add_done_callback(lambda _: ended.append("hung"))
    quick = [pool.submit(PROBLEM, "") for _ in range(20)]
    quick[-1].add_done_callback(lambda _: ended.append("quick"))
    assert [f.result().value for f in quick] == [1.0] * 20
    assert hung.result(timeout=60).error.startswith("timeout")
    assert ended == ["quick", "hung"]


def test_works_off_the_main_thread(pool):
    got = []
    thread = threading.Thread(target=lambda: got.extend(pool.score([(PROBLEM, "hang")])))
    thread.start()
    thread.join(60)
    assert got[0].error.startswith("timeout")


def test_a_time_out_kills_the_scorers_children(pool, tmp_path):
    note = tmp_path / "pid"
    (score,) = pool.score([(Problem("p", str(note), None), "child")])
    assert score.error.startswith("timeout")
    child = int(note.read_text())
    for _ in range(100):
        if not running(child):
            break
        time.sleep(0.02)
    assert not running(child)


@pytest.mark.broad
def test_a_worker_killed_while_idle_is_replaced(pool):
    pids = {int(s.value) for s in pool.score([(PROBLEM, "pid")] * 20)}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert [s.value for s in pool.score([(PROBLEM, "")] * 4)] == [1.0] * 4


def test_close_ends_what_is_queued_and_the_workers():
    pool = scoring.open_pool(HOSTILE, workers=1, time_limit_s=60)
    (pid,) = pool.score([(PROBLEM, "pid")])
    futures = [pool.submit(PROBLEM, "hang") for _ in range(3)]
    time.sleep(0.1)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 5
    assert [f.result().error.split(":")[0] for f in futures] == ["closed"] * 3
    assert not running(int(pid.value))
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(PROBLEM, "")


def test_workers_die_with_a_killed_parent():
    program = (
        "from jaxrl.data.scoring import pool as scoring; import time\n"
        "from jaxrl.data.types import Problem\n"
        f"pool = scoring.open_pool({HOSTILE!r}, workers=1, time_limit_s=60)\n"
        "p = Problem('p', '', None)\n"
        "print(int(pool.score([(p, 'pid')])[0].value), flush=True)\n"
        "pool.submit(p, 'spin'); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    time.sleep(0.1)
    parent.kill()
    parent.wait()
    time.sleep(0.5)
    assert not running(worker)


def test_memory_limit_and_a_problem_that_does_not_pickle():
    with scoring.open_pool(HOSTILE, workers=1, memory_limit_mb=2048) as pool:
        hog, bad, good = pool.score(
            [(PROBLEM, "hog"), (Problem("p", "", lambda: 0), ""), (PROBLEM, "")]
        )
    assert hog.error.startswith("memory:") and "score_memory_mb" in hog.error
    assert "does not pickle" in bad.error and good.value == 1.0


def test_what_overruns_gets_the_score_stated_for_that_and_is_marked():
    with scoring.open_pool(HOSTILE, {"on_timeout": -0.5}, workers=1, time_limit_s=0.5) as pool:
        slow, good = pool.score([(PROBLEM, "spin"), (PROBLEM, "")])
    assert slow == Score(-0.5, timed_out=True) and good == Score(1.0)
    assert tasks.get("arithmetic").on_timeout == 0.0
    assert count_errors([slow]) == {}


def test_a_task_that_keeps_its_own_time_is_given_it():
    """One limit and not two: else a right but slow program would never be scored."""
    given = {"own_seconds": 2.0, "delay": 1.0}
    with scoring.open_pool(HOSTILE, given, workers=1, time_limit_s=0.2) as pool:
        assert pool.score([(PROBLEM, "")])[0].value == 1.0
    code = tasks.get("code")
    problem = code.problem("train", 0, 0)
    limit, on_timeout = scoring._limits(code, problem, 10.0)
    assert limit > 5 * (len(problem.metadata["tests"]) + 1) and on_timeout is None
    mixed = tasks.get("mixture", parts='{"a": [1, "code", {}], "b": [1, "arithmetic", {}]}')
    assert mixed.sandboxed and not mixed.pure
    sums = mixed.parts["b"].problem("train", 0, 0)
    assert scoring._limits(mixed.of(sums), sums, 10.0) == (10.0, 0.0)


def test_a_killed_worker_leaves_no_scratch_files(tmp_path):
    note = tmp_path / "scratch"
    with scoring.open_pool(HOSTILE, workers=1, time_limit_s=0.5) as pool:
        assert pool.score([(Problem("p", str(note), None), "scratch")])[0].error
        pool.score([(PROBLEM, "")])
        assert note.read_text() and not Path(note.read_text()).exists()
        kept = next(iter(pool._workers))._scratch.name
        assert Path(kept).exists()
    assert not Path(kept).exists()


@pytest.mark.broad
def test_what_a_killed_trainer_leaves_is_removed_at_the_next_start(tmp_path, monkeypatch):
    program = (
        "from jaxrl.data.scoring import pool as scoring; from jaxrl.data.types import Problem\n"
        f"pool = scoring.open_pool({HOSTILE!r}, workers=1, time_limit_s=60)\n"
        "pool.score([(Problem('p', '', None), '')])\n"
        "print('up', flush=True); input()\n"
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as parent:
        assert parent.stdout.readline() == "up\n"
        (left,) = tmp_path.iterdir()
        (left / "file").write_text("x")
        (tmp_path / "jaxrl-scoring-link").symlink_to(left)
        for alive in (True, False):
            if not alive:
                parent.kill()
                parent.wait()
            with scoring.open_pool(HOSTILE, workers=1) as pool:
                pool.score([(PROBLEM, "")])
                assert left.exists() == alive
    assert [path.name for path in tmp_path.iterdir()] == ["jaxrl-scoring-link"]


def test_workers_receive_only_the_variables_that_a_task_names(monkeypatch):
    monkeypatch.setenv("API_SECRET", "hunter2")
    monkeypatch.setenv("JUDGE_KEY", "needed")
    with scoring.open_pool(HOSTILE, workers=1) as pool:
        assert pool.score([(PROBLEM, "environment")])[0].value == 2.0


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{}", b"[]", b"7", b"\x80\x04K\x01.", b'{"value": 1}', b"[" * 100_000,
        b'{"value": 1e999, "parts": {}, "error": null, "timed_out": false, "answers": 1}',
        b'{"value": NaN, "parts": {}, "error": null, "timed_out": false, "answers": 1}',
        b'{"value": "1", "parts": {}, "error": null, "timed_out": false, "answers": 1}',
        b'{"value": 1, "parts": {"a": null}, "error": null, "timed_out": false, "answers": 1}',
        b'{"value": 1, "parts": [], "error": null, "timed_out": false, "answers": 1}',
        b'{"value": null, "parts": {}, "error": 7, "timed_out": false, "answers": 1}',
        b'{"value": 1, "parts": {}, "error": null, "timed_out": false, "answers": 0}',
        b'{"value": %d, "parts": {}, "error": null, "timed_out": false, "answers": 1}' % HUGE,
        b'{"value": 1, "parts": {"a": %d}, "error": null, "timed_out": false, "answers": 1}'
        % HUGE,
    ],
)  # fmt: skip
def test_a_reply_is_data_and_a_bad_one_an_error(line):
    assert scoring_process.read_score(line, 1).error.startswith("reply:")


def test_scores_arrive_as_they_were():
    timed_out = Score(1, {}, None, True)
    for score in [Score(0.1 + 0.2, {"a": 1e-300}), Score(None, error="x: y"), timed_out]:
        assert (
            scoring_process.read_score(
                json.dumps(scoring_process.written_score(score, 3)).encode(), 3
            )
            == score
        )


def test_a_hostile_worker_affects_one_item_only():
    with scoring.open_pool(HOSTILE, workers=1, time_limit_s=5) as pool:
        hostile = ["forge", "", "babble", "", "leave", "late exit", "huge int", ""]
        scores = pool.score([(PROBLEM, c) for c in hostile])
    kinds = [s.value if s.error is None else s.error.split(":")[0] for s in scores]
    assert kinds[0] == "reply" and kinds[2:] == [
        "crash", 1.0, "exception", "crash", "exception", 1.0
    ]  # fmt: skip
    assert "exit status 3" in scores[5].error, scores[5]


@pytest.mark.sample(2, broad=2)
@pytest.mark.parametrize("raised", [OSError("no more processes"), OverflowError("a huge number")])
@pytest.mark.parametrize("place", ["__init__", "prepare", "ask", "discard"])
def test_whatever_a_thread_of_the_pool_meets_costs_one_item(monkeypatch, place, raised):
    """A thread that died would leave its items unanswered, and a run that waits for them."""
    left, own = [raised], getattr(scoring.Worker, place)

    def once(self, *arguments):
        if left:
            raise left.pop()
        return own(self, *arguments)

    monkeypatch.setattr(scoring.Worker, place, once)
    with scoring.open_pool(HOSTILE, workers=1, time_limit_s=20, ahead=place == "prepare") as pool:
        futures = [pool.submit(PROBLEM, text) for text in ("exit", "", "")]
        scores = [future.result(30) for future in futures]
    assert not left and scores[2] == Score(1.0)
    kinds = [score.error and score.error.split(":")[0] for score in scores[:2]]
    wanted = {"prepare": ["crash", None], "discard": ["crash", "pool"]}
    assert kinds == wanted.get(place, ["pool", None])


def test_parts_are_numbers_and_do_not_replace_what_is_logged():
    with pytest.raises(ValueError, match="a=None is not a finite number"):
        Score(1.0, {"a": None})
    for name in ("mean", "std", "errors", "timeouts", "zero_variance_groups"):
        with pytest.raises(ValueError, match=name):
            Score(1.0, {name: 1.0})


def test_without_workers_only_a_pure_task_is_scored_here():
    """A recipe for sums scores in the trainer; the same recipe with another task must not."""
    for name, params in [
        ("reasoning_gym/chain_sum", {}),
        ("sql", {}),
        ("mixture", {"parts": '{"a": [1, "sql", {}], "b": [1, "arithmetic", {}]}'}),
    ]:
        with scoring.open_pool(name, params, workers=0) as pool:
            assert len(pool._threads) == 1, name
    for name in ("arithmetic", "countdown", "sat"):
        with scoring.open_pool(name, workers=0) as pool:
            assert not pool._threads
            problem = tasks.get(name).problem("train", 0, 0)
            assert pool.score([(problem, "")])[0].value == 0.0


def test_a_task_that_runs_programs_says_in_what_and_is_refused_without(monkeypatch):
    with scoring.open_pool("code", workers=1, allow_weak=True) as pool:
        assert pool.isolation == runner.strongest()
    with scoring.open_pool("arithmetic", workers=0) as pool:
        assert pool.isolation is None
    monkeypatch.delenv(runner.ALLOW_WEAK, raising=False)
    monkeypatch.setattr(runner, "strongest", lambda: runner.Isolation("rlimits", True))
    with pytest.raises(RuntimeError, match=r"--sandbox\.allow-weak"):
        scoring.open_pool("code", workers=1)
    with scoring.open_pool("code", workers=1, allow_weak=True) as pool:
        assert pool._environment[runner.ALLOW_WEAK] == "1"


def test_no_workers_scores_in_this_process():
    with scoring.open_pool(HOSTILE, {"pure": True}, workers=0) as pool:
        scores = pool.score([(PROBLEM, c) for c in ("pid", "raise", "async")])
    assert scores[0].value == os.getpid() and scores[1].error == "exception: RuntimeError: no"
    assert scores[2].value == 2.0


def test_workers_are_started_ahead_and_each_score_is_told_with_its_completion():
    told = []

    def seen(problem, completion, score):
        told.append((problem.id, completion, score.value))

    with scoring.open_pool(HOSTILE, workers=2, on_score=seen, ahead=True) as pool:
        deadline = time.monotonic() + 30
        while len(pool._workers) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert [s.value for s in pool.score([(PROBLEM, "")] * 4)] == [1.0] * 4
    assert told == [("p", "", 1.0)] * 4


def test_workers_import_neither_jax_nor_the_loader():
    program = (
        "import sys; from jaxrl.data.scoring import pool as scoring\n"
        "from jaxrl.data.tasks import get\n"
        "get('arithmetic')\n"
        "assert not {'jax', 'grain', 'numpy', 'torch'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="did you mean 'arithmetic'"):
        tasks.get("aritmetic")
    with pytest.raises(ValueError, match="no parameter 'digit'; did you mean 'digits'"):
        tasks.get("arithmetic", digit=3)
    with pytest.raises(ValueError, match="MODULE:FUNCTION"):
        tasks.get("no.such.module:make")
    with pytest.raises(ValueError, match="workers=-1"):
        scoring.open_pool("arithmetic", workers=-1)
    with pytest.raises(ValueError, match="exactly one"):
        Score(None)
    with pytest.raises(ValueError, match="exactly one"):
        Score(0.0, error="x: y")


def running(pid: int | str) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # before or while it is read
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"
