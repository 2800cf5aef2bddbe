"""Whole commands that fail or are stopped: one line that says why, and what is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import pytest

from jaxrl.launch import cli
from jaxrl.record.process import SAVED
from tests.jaxrl.record.test_storage import small_disk  # noqa: F401
from tests.jaxrl.tiny import ROOT
from tests.launch.test_cli import TINY

INTERRUPTED = 130


def started(run_dir, *more):
    command = [sys.executable, "-m", "jaxrl.launch.cli", "train", "quickstart", *TINY, *more]
    return subprocess.Popen(
        [*command, "--run-dir", str(run_dir), "--seed", "3"],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.broad
def test_a_full_disk_ends_a_run_in_one_line(small_disk):  # noqa: F811
    """A disk of 2 MB holds the first checkpoints of a small run, and no more."""
    run = started(
        small_disk / "run", "--checkpoint.every", "1", "--checkpoint.keep", "9", "--steps", "40"
    )
    out, err = run.communicate(timeout=400)
    assert run.returncode == 1, err[-2000:]
    lines = [line for line in err.splitlines() if line.strip()]
    assert "the disk is full" in lines[-1] and f"jaxrl train {small_disk / 'run'}" in lines[-1]
    assert "Traceback" not in err and len(lines) <= 3, lines
    assert "Traceback" not in out


def test_only_late_writes_of_a_failed_save_are_not_printed():
    seen = []
    hook = cli.without_late_writes(lambda args: seen.append(args.exc_value))
    for error in (RuntimeError("Event loop is closed"), RuntimeError("other"), ValueError("x")):
        hook(SimpleNamespace(exc_value=error))
    assert [str(error) for error in seen] == ["other", "x"]


@pytest.mark.broad
@pytest.mark.parametrize("phase", ["warm start", "train"])
def test_an_interruption_says_what_is_kept(phase, tmp_path):
    """In the warm start nothing before its first step is over, and that step from then on."""
    directory = tmp_path / "run"
    run = started(
        directory, "--steps", "4000", "--warm-start.steps", "400" if phase == "warm start" else "2"
    )
    deadline = time.monotonic() + 300
    if phase == "warm start":  # the console tells a phase at its end
        while not (directory / "heartbeat.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(2)
    else:
        while (
            not (directory / "metrics.jsonl").exists()
            or not (directory / "metrics.jsonl").stat().st_size
        ):
            assert time.monotonic() < deadline and run.poll() is None
            time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=200)
    kept = "continue with: jaxrl train" in out
    assert kept or (phase == "warm start" and "nothing is kept" in out), (out, err[-2000:])
    assert run.returncode == (SAVED if kept else INTERRUPTED)
    assert directory.exists() == kept


def test_a_refusal_of_a_process_alone_opens_no_device(monkeypatch, capsys):
    """A TPU that another process holds would hide what is wrong."""

    def opened():
        raise RuntimeError("the TPU is in use")

    monkeypatch.setattr(jax, "process_count", opened)
    assert cli.main(["train", "grpo", "--task", "arithmetic"]) == 2
    assert "needs a model" in capsys.readouterr().err
