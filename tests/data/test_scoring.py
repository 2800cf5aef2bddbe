"""The scoring pool against scorers that hang, crash, raise and lie."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from data import scoring, tasks
from data.types import Problem, Score, count_errors

HOSTILE = "tests.data.hostile:make"
PROBLEM = Problem("p", "", None)


@pytest.fixture(scope="module")
def pool():
    with scoring.open_pool(HOSTILE, workers=2, time_limit_s=1.0) as pool:
        pool.score([(PROBLEM, "")] * 2)  # workers up
        yield pool


def test_failures_become_errors_in_order_and_leave_the_rest_alone(pool):
    told = [
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
    scores = pool.score([(PROBLEM, c) for c in told] + [(PROBLEM, "")] * 5)
    kinds = [s.value if s.error is None else s.error.split(":")[0] for s in scores]
    assert kinds[: len(told)] == [
        1.0, "timeout", "crash", "exception", "crash", "exception", "exception", 0.0, 1.0, 2.0,
        "timeout",
    ]  # fmt: skip
    assert kinds[len(told) :] == [1.0] * 5
    assert count_errors(scores) == {"timeout": 2, "crash": 2, "exception": 3}
    assert "signal 11" in scores[4].error and "exit status 0" in scores[2].error


def test_a_hung_scorer_does_not_hold_up_the_others(pool):
    start = time.monotonic()
    hung = pool.submit(PROBLEM, "hang")
    quick = [pool.submit(PROBLEM, "") for _ in range(20)]
    assert [f.result().value for f in quick] == [1.0] * 20
    assert time.monotonic() - start < 0.9 and not hung.done()
    assert hung.result(timeout=5).error.startswith("timeout")


def test_works_off_the_main_thread(pool):
    got = []
    thread = threading.Thread(target=lambda: got.extend(pool.score([(PROBLEM, "hang")])))
    thread.start()
    thread.join(10)
    assert got[0].error.startswith("timeout")


def test_a_time_out_kills_the_scorers_children(pool, tmp_path):
    note = tmp_path / "pid"
    (score,) = pool.score([(Problem("p", str(note), None), "child")])
    assert score.error.startswith("timeout")
    child = int(note.read_text())
    for _ in range(100):
        if not _running(child):
            break
        time.sleep(0.02)
    assert not _running(child)


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
    assert not _running(int(pid.value))
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(PROBLEM, "")


def test_workers_die_with_a_killed_parent():
    program = (
        "from data import scoring; from data.types import Problem; import time\n"
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
    assert not _running(worker)


def test_memory_limit_and_a_problem_that_does_not_pickle():
    with scoring.open_pool(HOSTILE, workers=1, memory_limit_mb=2048) as pool:
        hog, bad, good = pool.score(
            [(PROBLEM, "hog"), (Problem("p", "", lambda: 0), ""), (PROBLEM, "")]
        )
    assert "MemoryError" in hog.error and "does not pickle" in bad.error and good.value == 1.0


def test_no_workers_scores_in_this_process():
    with scoring.open_pool(HOSTILE, workers=0) as pool:
        scores = pool.score([(PROBLEM, c) for c in ("pid", "raise", "async")])
    assert scores[0].value == os.getpid() and scores[1].error == "exception: RuntimeError: no"
    assert scores[2].value == 2.0


def test_workers_import_neither_jax_nor_the_loader():
    program = (
        "import sys; from data import scoring; from data.tasks import get; get('arithmetic')\n"
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


def _running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"
