"""Storage that fails under a run: full, read-only, erring, gone, slow. Nothing saved is lost."""

import errno
import json
import os
import subprocess
import threading

import numpy as np
import pytest

from jaxrl.config import CheckpointConfig
from jaxrl.data.types import Problem
from jaxrl.mesh import distributed
from jaxrl.record import checkpoint, jsonl, manifest, metrics, references, rundir
from jaxrl.record.metrics import MetricsLog
from jaxrl.record.writer import Writer
from jaxrl.rollout import history, rollout_log
from jaxrl.run import loop
from tests.jaxrl import tiny
from tests.jaxrl.record.test_checkpoint import equal, like, state


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a file system needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk):
    """Write until the disk is full; the file to remove."""
    ballast = disk / "ballast"
    with pytest.raises(OSError, match="No space"), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


def attempt(writer, step):
    writer.save(step, state(step), {"step": step})
    writer.wait()


def test_full_disk(small_disk):
    """ENOSPC: the save fails aloud and leaves nothing behind; with room again, the next works."""
    notes = []
    with Writer(small_disk, CheckpointConfig(), notes.append) as writer:
        attempt(writer, 1)
        ballast = fill(small_disk)
        attempt(writer, 2)
        assert writer.failures == 1 and writer.owed
        assert "checkpoint of step 2 could not be saved" in notes[0]
        assert "the newest is of step 1" in notes[0]
        assert checkpoint.steps(small_disk) == [1] and not manifest.faults(
            checkpoint.path(small_disk, 1)
        )
        with pytest.raises(OSError, match="step 3 could not be saved"):
            writer.save_now(3, state(3), {})
        ballast.unlink()
        attempt(writer, 4)
        assert not writer.owed
    assert checkpoint.steps(small_disk) == [1, 4]
    assert equal(checkpoint.restore(small_disk, 4, like()).state, state(4))


def test_full_disk_at_every_file(small_disk):
    """Room for a part of a checkpoint only, from nothing on: whichever file is the one that does
    not fit, the save fails aloud and what was saved before is sound."""
    notes = []
    with Writer(small_disk, CheckpointConfig(keep=1), notes.append) as writer:
        attempt(writer, 0)
        for step in range(1, 99):
            ballast = fill(small_disk)
            with ballast.open("r+b") as file:
                file.truncate(ballast.stat().st_size - 4096 * (step - 1))
            attempt(writer, step)
            ballast.unlink()
            if not writer.owed:
                break
            assert checkpoint.steps(small_disk) == [0]
            assert not manifest.faults(checkpoint.path(small_disk, 0))
    assert step > 5 and writer.failures == len(notes) == step - 1
    assert checkpoint.steps(small_disk) == [step]
    assert equal(checkpoint.restore(small_disk, step, like()).state, state(step))


@pytest.mark.broad
def test_input_output_error_at_every_file(tmp_path, monkeypatch):
    """EIO when the n-th file is synced, then the manifest and the two directories: nothing is
    committed that was not synced whole. How many files Orbax writes differs from save to save."""
    fsync, notes, left = os.fsync, [], [0]

    def fails(descriptor):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    with Writer(tmp_path, CheckpointConfig(keep=1), notes.append) as writer:
        attempt(writer, 0)
        for step in range(1, 99):
            left[0] = step
            attempt(writer, step)
            if not writer.owed:
                break
            assert checkpoint.steps(tmp_path) == [0]
    files = len(manifest.files(checkpoint.path(tmp_path, step)))
    assert writer.failures == len(notes) == step - 1 >= files + 3 and files >= 18
    assert all("Input/output error" in note for note in notes)
    assert checkpoint.steps(tmp_path) == [step]
    assert equal(checkpoint.restore(tmp_path, step, like()).state, state(step))


def test_read_only(small_disk):
    notes = []
    with Writer(small_disk, CheckpointConfig(), notes.append) as writer:
        attempt(writer, 1)
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        attempt(writer, 2)
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        attempt(writer, 3)
    assert len(notes) == 1 and writer.failures == 1
    assert checkpoint.steps(small_disk) == [1, 3]
    assert equal(checkpoint.restore(small_disk, 1, like()).state, state(1))


def test_read_only_from_the_start(small_disk):
    """Refused at once, with what to do."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(ValueError, match=r"cannot be written.*choose another with --run-dir"):
        rundir.prepare(tiny.config(small_disk / "run"), print)


def test_input_output_error(tmp_path, monkeypatch):
    """EIO when the files are synced: what may not have reached the disk is not committed."""
    notes = []

    def fails(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Writer(tmp_path, CheckpointConfig(), notes.append) as writer:
        attempt(writer, 1)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fails)
            attempt(writer, 2)
        assert checkpoint.steps(tmp_path) == [1] and "Input/output error" in notes[0]
        attempt(writer, 3)
    assert checkpoint.steps(tmp_path) == [1, 3]


def test_vanished(tmp_path):
    """The directory is gone, and comes back: what it held is still there."""
    notes = []
    with Writer(tmp_path, CheckpointConfig(), notes.append) as writer:
        attempt(writer, 1)
        checkpoint.root(tmp_path).rename(tmp_path / "elsewhere")
        checkpoint.root(tmp_path).write_text("in its place")
        attempt(writer, 2)
        assert writer.failures == 1
        checkpoint.root(tmp_path).unlink()
        (tmp_path / "elsewhere").rename(checkpoint.root(tmp_path))
        attempt(writer, 3)
    assert checkpoint.steps(tmp_path) == [1, 3]


def test_a_reference_that_cannot_be_saved_ends_the_run(small_disk):
    """As no step after it could be resumed from; with room, the same again works."""
    params = state(1).params
    ballast = fill(small_disk)
    with pytest.raises(OSError, match=r"reference policy of step 4 .* make room there"):
        references.save(small_disk, params, 4)
    ballast.unlink()
    references.save(small_disk, params, 4)
    assert equal(references.load(small_disk, params, 5), params)


class Slow:
    """Orbax on storage that takes no more until it is released."""

    def __init__(self, orbax, release):
        self.save, self.close, self._orbax, self._release = orbax.save, orbax.close, orbax, release

    def wait_until_finished(self):
        self._release.wait(60)
        self._orbax.wait_until_finished()


def test_slow(tmp_path):
    """A save that outlasts the patience costs the next one its turn, not the run its time."""
    notes, release = [], threading.Event()
    config = CheckpointConfig(patience_seconds=0.1)
    with Writer(tmp_path, config, notes.append) as writer:
        writer._orbax = Slow(writer._orbax, release)
        writer.save(1, state(1), {})
        writer.save(2, state(2), {})
        assert "step 1 is still being saved, so step 2 is not" in notes[0] and writer.owed
        release.set()
        writer.save_now(3, state(3), {})
    assert checkpoint.steps(tmp_path) == [1, 3]


def test_slow_in_another_process(tmp_path, monkeypatch):
    """This process has nothing left to save, and says what another one waits for."""
    notes = []
    monkeypatch.setattr(distributed, "gathered", lambda late: [late, 4, 3])
    with Writer(tmp_path, CheckpointConfig(), notes.append) as writer:
        writer.save(5, state(5), {})
        assert "step 3 is still being saved, so step 5 is not" in notes[0] and writer.owed


def test_a_save_does_not_wait_for_the_one_before_to_be_hashed(tmp_path, monkeypatch):
    """Its arrays are written meanwhile; commits stay in order, and no more than two are open."""
    notes, release, measure = [], threading.Event(), manifest.measure

    def slow(saved):
        release.wait(60)
        return measure(saved)

    monkeypatch.setattr(manifest, "measure", slow)
    with Writer(tmp_path, CheckpointConfig(patience_seconds=5), notes.append) as writer:
        writer.save(1, state(1), {})
        writer.save(2, state(2), {})
        assert not notes and checkpoint.steps(tmp_path) == []
        writer._config = CheckpointConfig(patience_seconds=0.1)
        writer.save(3, state(3), {})
        assert "step 1 is still being saved, so step 3 is not" in notes[0]
        release.set()
        writer.wait()
        assert writer.step == 2
        writer.save_now(4, state(4), {})
    assert checkpoint.steps(tmp_path) == [2, 4]  # retention keeps two
    assert equal(checkpoint.restore(tmp_path, 2, like()).state, state(2))


def test_metrics_wait_for_room(small_disk):
    """Rows that did not fit are written, whole and in order, once there is room."""
    notes = []
    log = MetricsLog(small_disk, 0, notes.append)
    log.write(1, {"loss": 1.0})
    ballast = fill(small_disk)
    for step in range(2, 200):
        log.write(step, {"loss": float(step), "not": float("nan")})
    assert any("metrics.jsonl could not be written" in note for note in notes)
    ballast.unlink()
    log.write(200, {"loss": 200.0})
    log.close()
    rows = metrics.read(small_disk)
    assert [row["step"] for row in rows] == list(range(1, 201))
    assert rows[5] == {"step": 6, "loss": 6.0, "not": None}


@pytest.mark.broad
def test_training_continues_where_storage_fails(small_disk):
    """A disk full from step 2 to 4: the run trains on, loses no row, and ends saved."""
    notes, ballast = [], []

    def at(step, row):
        if step == 2:
            ballast.append(fill(small_disk))
        if step == 4:
            ballast.pop().unlink()

    changes = {"checkpoint.every": 1, "checkpoint.keep": 1, "warm_start.steps": 0, "steps": 6}
    run = small_disk / "run"
    config = tiny.config(run, **changes, **{"eval.every": 0})
    summary = loop.train(config, loop.Callbacks(step=at, note=notes.append))
    assert summary["failed_saves"] >= 1
    assert any("could not be saved" in note for note in notes)
    assert [row["step"] for row in metrics.read(run)] == [1, 2, 3, 4, 5, 6]
    assert checkpoint.steps(run)[-1] == 6 and not manifest.faults(checkpoint.path(run, 6))
    assert json.loads((run / "summary.json").read_text())["steps"] == 6


def test_history_waits_for_room(small_disk):
    """As metrics do: a batch that did not fit is written, in order, once there is room."""
    notes = []
    recorder, ballast = rollout_log.HistoryLog(small_disk, notes.append), None
    problems = [Problem(str(i) * 100, "", 0) for i in range(20)]
    for batch in range(6):
        if batch == 1:
            ballast = fill(small_disk)
        if batch == 5:
            ballast.unlink()
        recorder.add(problems, np.full((20, 1), batch))
    assert any("history.jsonl could not be written" in note for note in notes)
    assert [row["batch"] for row in jsonl.read(small_disk / "history.jsonl")] == [*range(6)]
    assert history.read(small_disk).curves == [[0, 1, 2, 3, 4, 5]] * 20
