"""Asked to stop, and stuck: what is saved, what is said, and with which code the process ends."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from contextlib import suppress

import pytest

from jaxrl.data.scoring import user_functions
from jaxrl.data.types import Problem, Score, Task
from jaxrl.record import checkpoint
from jaxrl.record.process import INTERRUPTED, SAVED, STOPPING, UNSAVED, Heartbeat, Stop, stoppable
from jaxrl.run.loop import train
from tests.jaxrl import tiny


def output_after(process, line, *signals):
    """Send signals once a line begins so; the exit code and what was said."""
    said = ""
    for text in process.stdout:
        said += text
        if text.startswith(line):
            for number in signals:
                process.send_signal(number)
                time.sleep(0.05)
            break
    rest, error = process.communicate(timeout=300)
    return process.returncode, said + rest, error


def test_sigterm_saves_and_the_run_continues(tmp_path):
    """Amid a rollout, between checkpoints: the last whole step is saved."""
    never = {"checkpoint.every": 100, "warm_start.steps": 0, "steps": 3}
    code, said, error = output_after(tiny.start(tmp_path, **never), "train 2", signal.SIGTERM)
    assert code == SAVED, error[-2000:]
    assert "note SIGTERM: saving and stopping" in said
    step = checkpoint.steps(tmp_path)[-1]
    assert step >= 2 and f"step {step} is saved; the same command continues" in said
    assert f"from step {step}" in tiny.finish(tiny.start(tmp_path, **never))


def child(code, *, send):
    """Exit code of a small process that is sent signals after its first line.

    It heeds SIGHUP also where these tests run under `nohup`, whose children ignore it.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tiny.ROOT, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    for number in send:
        process.send_signal(number)
        time.sleep(0.2)
    return process.wait(60)


BUSY = """
import time
from jaxrl.record.process import stoppable
with stoppable({grace}, lambda text: None) as gate, gate.closed():
    print("ready", flush=True)
    time.sleep(60)
"""


def test_second_ctrl_c_is_immediate():
    start = time.monotonic()
    assert child(BUSY.format(grace=60), send=[signal.SIGINT] * 2) == INTERRUPTED
    assert time.monotonic() - start < 30


def test_grace_period_ends():
    assert child(BUSY.format(grace=0.1), send=[signal.SIGTERM]) == UNSAVED


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("number", STOPPING)
def test_uncaught_stop_exits_with_its_code(number):
    code = BUSY.format(grace=60).replace(", gate.closed()", "")
    assert child(code, send=[number]) == SAVED


def test_gate_holds_a_signal_back():
    """An open gate is broken into at once, a closed one at its end, a handler left as it was."""
    before = signal.getsignal(signal.SIGTERM)
    done = []
    with pytest.raises(Stop) as stop, stoppable(60, lambda text: None) as gate:
        with gate.closed():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            done.append("the rest of the step")
        done.append("not reached")
    assert done == ["the rest of the step"] and stop.value.name == "SIGTERM"
    with pytest.raises(Stop), stoppable(60, lambda text: None):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_faulty_reward_cannot_swallow_a_stop():
    assert not issubclass(Stop, Exception)


def leaving(completion: str) -> float:
    """A reward during which the run is asked to stop."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    return 1.0


def test_a_stop_that_was_swallowed_is_raised_again():
    """By what shields a run from a reward that calls `sys.exit`, where it is scored in the run."""
    ask = user_functions.scorer(f"{__name__}:leaving", ())
    with pytest.raises(Stop), stoppable(60, lambda text: None) as gate:
        assert ask(Problem("p", "", None), ["x"])[0].error
        with gate.closed():
            pytest.fail("the step began")


def swallowing() -> Task:
    """Its reward asks the run to stop at the second step, once, and swallows that."""
    scored = []

    def reward(problem: Problem, text: str) -> Score:
        if problem.id.startswith("train"):
            scored.append(text)
            if len(scored) == 20:  # of 16 a step
                with suppress(SystemExit):
                    leaving(text)
        return Score(1.0)

    def problem(split: str, seed: int, i: int) -> Problem:
        return Problem(f"{split}{i}", "1", "1")

    return Task("swallowing", problem, reward, gold=lambda _: "1", alphabet="01", pure=True)


@pytest.mark.broad
def test_a_run_stops_before_the_next_update_although_a_reward_swallowed_it(tmp_path):
    made = tiny.config(tmp_path, task=f"{__name__}:swallowing", task_args={}, steps=9)
    with pytest.raises(Stop):
        train(made)
    assert checkpoint.steps(tmp_path)[-1] == 1


def test_heartbeat_and_stall(tmp_path):
    """A stuck run leaves a stale heartbeat and the stacks of all threads, and says so once."""
    notes = []

    def stuck_in_here():
        deadline = time.monotonic() + 30
        while not notes and time.monotonic() < deadline:
            time.sleep(0.05)

    with Heartbeat(tmp_path, 0.3, notes.append) as heart:
        heart.beat("sample", 7)
        assert not (tmp_path / "stacks.txt").read_text()
        # Python shows the newest 100 threads, and earlier tests may have left that many
        stuck = threading.Thread(target=stuck_in_here)
        stuck.start()
        stuck.join()
        beat = json.loads((tmp_path / "heartbeat.json").read_text())
    assert (beat["stage"], beat["step"], beat["pid"]) == ("sample", 7, os.getpid())
    assert abs(beat["time"] - time.time()) < 60
    stacks = (tmp_path / "stacks.txt").read_text()
    assert "stuck_in_here" in stacks and "process.py" in stacks  # this thread, and another
    assert len(notes) == 1 and "no progress for 0.3 s" in notes[0]


def test_a_signal_that_breaks_into_the_collector_is_not_lost(monkeypatch):
    """Python drops what is raised there, and shows it as a traceback."""
    shown: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    sent: list[str] = []

    def collected(phase, _):
        if not sent:
            sent.append(phase)
            os.kill(os.getpid(), signal.SIGTERM)

    gc.callbacks.append(collected)
    try:
        with pytest.raises(Stop), stoppable(60, lambda text: None) as gate:
            gc.collect()
            assert sent and not shown
            gate.check()
            raise AssertionError("the signal is lost")
    finally:
        gc.callbacks.remove(collected)
    with stoppable(60, lambda text: None):
        sys.unraisablehook(types.SimpleNamespace(exc_value=ValueError()))
    assert len(shown) == 1
    assert sys.unraisablehook == shown.append
