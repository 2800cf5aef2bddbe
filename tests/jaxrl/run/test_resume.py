"""A run killed again and again and started again equals an uninterrupted one, byte for byte."""

import io
import json
import shutil
import signal
import time

import pytest
from rich.console import Console

from jaxrl.launch import progress
from jaxrl.record import checkpoint, jsonl, metrics
from jaxrl.run import assemble
from tests.jaxrl import tiny


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    directory = tmp_path_factory.mktemp("straight") / "run"
    tiny.finish(tiny.start(directory))
    return directory


def kill_in_save(process, run_dir):
    """SIGKILL while a checkpoint is half written."""
    root = checkpoint.root(run_dir)
    left = set(root.glob("*"))  # by those killed before, perhaps torn too

    def torn():
        return any(not (d / "manifest.json").exists() for d in set(root.glob("*")) - left)

    while process.poll() is None:
        if torn():
            process.send_signal(signal.SIGSTOP)  # else it may end its save first
            time.sleep(0.05)
            process.send_signal(signal.SIGKILL if torn() else signal.SIGCONT)
        time.sleep(0.001)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    return torn()


@pytest.mark.broad
@pytest.mark.exact(
    "a run that is killed and continued equals an uninterrupted one, to the last bit"
)
def test_killed_and_continued_equals_straight(straight, tmp_path):
    """In the evaluation before training, in a rollout, in a save; then to the end."""
    every = {"checkpoint.every": 1}  # how often is saved changes nothing of the run
    for line in ("note before", "train 2"):
        assert tiny.kill_at(tiny.start(tmp_path, **every), line), f"over before {line!r}"
    assert metrics.read(tmp_path)[-1]["step"] >= 2
    assert kill_in_save(tiny.start(tmp_path, **every), tmp_path)
    said = tiny.finish(tiny.start(tmp_path, **every))
    assert "continuing" in said and "warm start" not in said
    assert tiny.artefacts(tmp_path) == tiny.artefacts(straight)


@pytest.mark.exact("an unchanged fork repeats the run to the last bit")
def test_fork_continues_under_its_own_config(straight, tmp_path):
    """An unchanged fork repeats the run; the lineage says where it came from."""
    tiny.finish(tiny.start(tmp_path, fork=f"{straight}@4"))
    fork, run = tiny.artefacts(tmp_path), tiny.artefacts(straight)
    assert fork["rows"] == [row for row in run["rows"] if row["step"] > 4]
    assert fork["arrays"] == run["arrays"]
    assert fork["host"]["lineage"] == [{"run": str(straight), "step": 4}]
    summary = json.loads((tmp_path / "summary.json").read_text())
    shown = io.StringIO()
    progress.close(Console(file=shown), tmp_path, summary)
    assert "some held-out problems" in shown.getvalue()


@pytest.fixture(scope="module")
def in_flight(tmp_path_factory):
    """A run whose checkpoints hold unfinished groups, and groups that no step has taken yet."""
    directory = tmp_path_factory.mktemp("flight") / "run"
    tiny.run(directory, **FLIGHT, **{"asynchronous.staleness": 1})
    saved = json.loads((checkpoint.path(directory, 2) / "host.json").read_text())
    assert len(saved["rollouts"]["open_groups"]["groups"]) > 1
    return directory


FLIGHT = {"steps": 3, "checkpoint.every": 1, "warm_start.steps": 0, "eval.every": 0}


@pytest.mark.sample(1)
@pytest.mark.broad
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"asynchronous.staleness": None},
        {"updates_per_batch": 2},
        {"rollout.group_size": 6},
        {"rollout.group_size": 2},
        {"curriculum.choose": "difficulty_targeted"},
        {"task_args": {"digits": 2, "operators": "-"}},
    ],
)
def test_a_fork_that_samples_otherwise_starts_its_own_groups(changes, in_flight, tmp_path):
    """Under another schedule, another group size, or with other problems, it goes on."""
    given = FLIGHT | {"asynchronous.staleness": 1, "steps": 4, "fork": f"{in_flight}@2"} | changes
    tiny.run(tmp_path, **given)
    assert [row["step"] for row in metrics.read(tmp_path)] == [3, 4]
    for row in (r for f in sorted((tmp_path / "rollouts").glob("*")) for r in jsonl.read(f)):
        assert ("-" in row["prompt"]) == ("task_args" in changes)


def test_a_fork_that_would_train_nothing_is_refused(straight, tmp_path):
    with pytest.raises(ValueError, match=r"steps=6 with fork=.* continues from step 6.*above 6"):
        assemble.assemble(tiny.config(tmp_path, fork=str(straight)))


@pytest.mark.exact("a checkpoint of one device is restored to the last bit on eight")
@pytest.mark.slow
def test_restore_on_another_mesh(straight, tmp_path):
    """Saved by one device, read by eight: the same numbers, sharded; and the run continues."""
    mesh = {"mesh.fsdp": 4, "mesh.tensor": 2}
    said = tiny.finish(tiny.start(tmp_path, devices=8, fork=f"{straight}@4", **mesh))
    assert "forked" in said
    at_4 = tiny.arrays(checkpoint.path(straight, 4))
    assert tiny.arrays(checkpoint.path(tmp_path, 4)) == at_4
    assert [row["step"] for row in metrics.read(tmp_path)] == [5, 6]


@pytest.mark.exact("a change of the compute dtype restores trained parameters to the last bit")
@pytest.mark.slow
def test_continued_in_another_dtype(straight, tmp_path):
    """Activations in bfloat16 from step 7 on: what was trained is restored to the last bit."""
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    said = tiny.finish(tiny.start(tmp_path, steps=8, compute_dtype="bfloat16"))
    assert "compute_dtype: 'float32' there, 'bfloat16' here" in said
    assert tiny.arrays(checkpoint.path(tmp_path, 6)) == tiny.arrays(checkpoint.path(straight, 6))
    before, after = metrics.read(straight), metrics.read(tmp_path)
    assert after[:6] == before and [row["step"] for row in after[6:]] == [7, 8]
    assert all(row["skipped"] == 0 for row in after)


@pytest.mark.exact("a killed run on a mesh of eight devices continues to the last bit")
@pytest.mark.slow
def test_eight_devices_killed_and_continued(tmp_path):
    mesh = {"mesh.fsdp": 4, "mesh.tensor": 2}
    tiny.finish(tiny.start(tmp_path / "straight", devices=8, **mesh))
    assert tiny.kill_at(tiny.start(tmp_path / "killed", devices=8, **mesh), "train 3")
    tiny.finish(tiny.start(tmp_path / "killed", devices=8, **mesh))
    assert tiny.artefacts(tmp_path / "killed") == tiny.artefacts(tmp_path / "straight")


def test_changed_fields_are_reported_or_refused(straight):
    """A field that changes the run is refused by name; one that may change is reported."""
    from jaxrl.record import rundir

    notes = []
    rundir.prepare(tiny.config(straight, steps=9, **{"guard.kl": "stop"}), notes.append)
    assert "steps: 6 there, 9 here" in notes[0] and "guard.kl: 'warn' there" in notes[0]
    with pytest.raises(ValueError, match=r"optimizer\.learning_rate: 0\.001 there, 0\.1 here"):
        rundir.prepare(tiny.config(straight, **{"optimizer.learning_rate": 0.1}), notes.append)


def test_second_run_is_refused(straight):
    from jaxrl.record import rundir
    from jaxrl.run import loop

    with rundir.locked(straight), pytest.raises(BlockingIOError, match="in use by another"):
        loop.train(tiny.config(straight))
