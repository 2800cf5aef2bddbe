"""Two processes at one directory, a directory that is renamed, and what a run may remove."""

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxrl.config import CheckpointConfig, CurriculumConfig, Domain
from jaxrl.launch import train as command
from jaxrl.record import checkpoint, rundir, storage, writer
from jaxrl.record.writer import Writer
from jaxrl.run import loop
from tests.jaxrl import tiny
from tests.launch.test_cli import TINY


def contend(directory: str, number: int, results) -> None:
    """Prepare, lock, and leave with an error: each round of each process, at any moment."""
    config = tiny.config(directory)
    for _ in range(number):
        try:
            place = rundir.prepare(config, lambda _: None)
            with rundir.locked(place.directory), rundir.discarding(place):
                mark = place.directory / f"of-{os.getpid()}"
                mark.write_text("")
                time.sleep(0.001)
                others = [p for p in place.directory.glob("of-*") if p != mark]
                results.put(("both", len(others)))
                mark.unlink()
                raise LookupError
        except LookupError:
            results.put(("held", 1))
        except BlockingIOError:
            results.put(("refused", 1))
        except BaseException as error:
            results.put((f"{type(error).__name__}: {error}", 1))


def test_processes_at_one_directory_never_hold_it_together(tmp_path):
    """Nor does one that is refused remove what another has made, or meet a half removed one."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    arguments = (str(tmp_path / "run"), 60, results)
    processes = [context.Process(target=contend, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    found = [results.get(timeout=120)]
    while any(process.is_alive() for process in processes) or not results.empty():
        if not results.empty():
            found.append(results.get())
    kinds = {name for name, _ in found}
    assert kinds <= {"both", "held", "refused"}, kinds
    assert sum(n for name, n in found if name == "both") == 0
    assert "held" in kinds


def test_a_directory_that_another_removes_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    make, errors = rundir._make, [FileExistsError("there"), FileNotFoundError("gone")]

    def interrupted(directory):
        if errors:
            raise errors.pop()
        return make(directory)

    monkeypatch.setattr(rundir, "_make", interrupted)
    assert rundir.prepare(tiny.config(tmp_path / "run"), print).made
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        rundir.prepare(tiny.config(tmp_path / "file"), print)


def test_what_another_process_removes_meanwhile_is_not_odd(tmp_path, monkeypatch):
    file = tmp_path / "file"
    stat = os.stat

    def removed_after(name, *, follow_symlinks=True, **options):
        status = stat(name, follow_symlinks=follow_symlinks, **options)
        if os.fspath(name) == str(file) and follow_symlinks:
            file.unlink()
        return status

    file.write_text("")
    monkeypatch.setattr(os, "stat", removed_after)
    assert storage.odd_entry(tmp_path, links=True) == ""
    assert not file.exists()


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError, SystemExit])
def test_only_what_this_process_made_and_nobody_needs_is_removed(saved, there, error, tmp_path):
    directory = tmp_path / "run"
    if there:
        directory.mkdir()
        (directory / "mine.txt").write_text("mine")
    place = rundir.prepare(tiny.config(directory), print)
    with pytest.raises(error), rundir.locked(directory), rundir.discarding(place):
        if saved:
            (directory / "checkpoints/00000000").mkdir(parents=True)
            (directory / "checkpoints/00000000/manifest.json").write_text("{}")
        raise error
    assert directory.exists() == (saved or there)
    assert not there or (directory / "mine.txt").read_text() == "mine"


def test_a_lock_whose_directory_was_removed_is_taken_anew(tmp_path):
    directory = tmp_path / "run"
    place = rundir.prepare(tiny.config(directory), print)
    waits = threading.Event()
    held = threading.Event()

    def refused():
        with pytest.raises(LookupError), rundir.locked(directory), rundir.discarding(place):
            held.set()
            waits.wait(30)
            raise LookupError

    other = threading.Thread(target=refused)
    other.start()
    held.wait(30)
    early = (directory / "lock").open("w")  # opened before it is removed, locked afterwards
    waits.set()
    other.join()
    assert not directory.exists()
    with rundir.locked(directory):
        assert (directory / "lock").exists()
        with pytest.raises(BlockingIOError), rundir.locked(directory):
            pass
    early.close()


@pytest.mark.broad
def test_two_equal_commands_at_once_leave_one_good_run(tmp_path):
    """In a directory that is not there yet: one ends with 0, the other is refused."""
    run = tmp_path / "run"
    words = [sys.executable, "-m", "jaxrl.launch.cli", "train", "quickstart", *TINY]
    pair = [
        subprocess.Popen(
            [*words, "--run-dir", str(run), "--warm-start.steps", "40"],
            cwd=tiny.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=400) for process in pair]
    assert sorted(process.returncode for process in pair) == [0, 2], said
    assert {"config.json", "lock", "summary.json", "metrics.jsonl"} <= {
        p.name for p in run.iterdir()
    }
    assert sum("in use by another process" in error for _, error in said) == 1
    assert subprocess.run(
        [*words[:3], "watch", str(run), "--once"], cwd=tiny.ROOT, capture_output=True
    ).returncode == 0  # fmt: skip


def test_two_courses_at_once_are_told_apart(tmp_path):
    """A course is locked as a whole, before its first stage."""
    directory = tmp_path / "run"
    rundir.prepare(tiny.config(directory), print)
    stage = {0: __import__("json").loads(__import__("json").dumps(
        __import__("dataclasses").asdict(tiny.config("", steps=1))
    ))}  # fmt: skip
    before = sorted(p.name for p in directory.iterdir())
    with rundir.locked(directory), pytest.raises(BlockingIOError):
        loop.train(tiny.config(directory, course=stage))
    assert {p.name for p in directory.iterdir()} - set(before) == {"lock"}


def test_processes_may_differ_in_folders_and_in_what_each_has_of_its_own(monkeypatch):
    gathered = []
    monkeypatch.setattr(rundir.distributed, "gathered", lambda value: gathered.append(value) or [])

    def fields(**changes):
        with pytest.raises(ValueError):  # nothing to unpack
            rundir.require_one(tiny.config("/a/run", **changes))
        return gathered.pop()

    extension = {"reward_model": {"models": ("/a/b/one", "/a/b/two")}}
    args = {"rewards": '[{"name": "/a/b/my_reward.py:score"}]'}
    first = fields(model="/a/b/model", extensions=extension, task_args=args, wandb="mine")
    other = fields(
        model="/c/model",
        extensions={"reward_model": {"models": ("/c/one", "/c/two")}},
        task_args={"rewards": '[{"name": "/c/my_reward.py:score"}]'},
        **{"score_workers": 3, "score_memory_mb": 9, "sandbox.allow_weak": True},
        **{"rollout_log.groups": 7},
    )
    assert first == other
    for changes in ({"steps": 99}, {"model": "/a/b/other"}, {"model": "gs://a/model"}):
        changed = {"model": "/a/b/model", **changes}
        assert fields(extensions=extension, task_args=args, **changed) != first


def test_a_run_that_began_with_relative_paths_continues_with_whole_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "run"

    def config(lead):
        chosen = CurriculumConfig(history=f"{lead}runs/a")
        return tiny.config(
            directory,
            curriculum=chosen,
            domains={"one": Domain("file", {}, curriculum=chosen)},
            extensions={
                "teacher": {"model": f"{lead}me/model"},
                "reward_model": {"models": (f"{lead}me/a", f"{lead}me/b")},
            },
            fork=f"{lead}runs/a@10",
        )

    rundir.save_config(rundir.prepare(config(""), print).directory, config(""))
    (directory / "checkpoints/00000000").mkdir(parents=True)
    (directory / "checkpoints/00000000/manifest.json").write_text("{}")
    notes = []
    rundir.prepare(config(""), notes.append)
    rundir.prepare(config(f"{tmp_path}/"), notes.append)
    assert not notes
    with pytest.raises(ValueError, match="another config"):
        rundir.prepare(config("/elsewhere/"), print)


@pytest.mark.broad
def test_a_renamed_run_grows_no_second_directory(tmp_path):
    """Its last step cannot be saved, and the message says why."""
    run, moved = tmp_path / "run", tmp_path / "moved"
    notes = []

    def step(number, metrics):
        if number == 2:
            while not checkpoint.steps(run):  # the first is being committed
                time.sleep(0.01)
            run.rename(moved)

    with pytest.raises(OSError, match="no longer there; was it renamed or removed"):
        loop.train(tiny.config(run, steps=4), loop.Callbacks(step=step, note=notes.append))
    assert checkpoint.steps(moved) and not checkpoint.steps(run)
    assert not {"config.json", "metrics.jsonl", "evals"} & {p.name for p in run.glob("*")}
    shutil.rmtree(run, ignore_errors=True)  # of a save that was in progress
    shutil.move(moved, run)
    loop.train(tiny.config(run, steps=4))
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_run_renamed_while_a_save_begins_grows_no_second_directory(tmp_path, monkeypatch):
    """Orbax creates the directories above its own that are missing."""
    run, moved = tmp_path / "run", tmp_path / "moved"
    clear = writer.clear

    def clear_and_rename(where):
        clear(where)
        if where.name == "00000002" and not moved.exists():
            run.rename(moved)

    monkeypatch.setattr(writer, "clear", clear_and_rename)
    with pytest.raises(OSError, match="no longer there; was it renamed or removed"):
        loop.train(tiny.config(run, steps=4))
    assert not checkpoint.steps(run)


@pytest.mark.broad
def test_old_checkpoints_are_removed_at_the_end_of_a_finished_run(tmp_path):
    """As where a kill came between a commit and what follows it."""
    loop.train(tiny.config(tmp_path, steps=6, **{"checkpoint.keep": 9}))
    assert checkpoint.steps(tmp_path) == [0, 2, 4, 6]
    loop.train(tiny.config(tmp_path, steps=6, **{"checkpoint.keep": 2}))
    assert checkpoint.steps(tmp_path) == [4, 6]


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(28, "No space left on device"), True), (OSError(122, "Disk quota exceeded"), True),
        (IsADirectoryError(21, "Is a directory", "x"), False), (OSError(30, "Read-only"), False),
        (PermissionError(13, "Permission denied"), False), (OSError(), False),
        (OSError("a\nb\x1b[2J"), False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("saved", [True, False])
def test_failures_of_storage_are_called_what_they_are(error, full, saved, tmp_path):
    if saved:
        (tmp_path / "checkpoints/00000000").mkdir(parents=True)
        (tmp_path / "checkpoints/00000000/manifest.json").write_text("{}")
    text = command._failure(error, tmp_path, full)
    assert ("free some space" in text) == ("the disk is full" in text) == full
    assert (f"continue with: jaxrl train {tmp_path}" in text) == saved
    assert "\n" not in text and re.search(r"full|Is a|Read-only|Permission|OSError|a b", text)


def test_a_writer_in_a_directory_that_is_gone_makes_none(tmp_path):
    notes, run = [], tmp_path / "run"
    run.mkdir()
    with Writer(run, CheckpointConfig(), notes.append) as writer:
        run.rename(tmp_path / "moved")
        with pytest.raises(OSError, match="no longer there"):
            writer.save_now(1, None, {})
    assert not Path(run).exists()
