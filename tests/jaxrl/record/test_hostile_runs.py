"""Files of a run directory of others: what is no file, of other types, or outside is refused."""

import json
import os
import stat
import warnings
from types import SimpleNamespace

import numpy as np
import orbax.checkpoint as ocp
import pytest

from jaxrl import json_file
from jaxrl.config import CheckpointConfig
from jaxrl.launch import report
from jaxrl.launch.inspect import replay, watch
from jaxrl.record import (
    account,
    checkpoint,
    manifest,
    metrics,
    references,
    rundir,
    runs,
    storage,
    trackers,
    writer,
)
from jaxrl.record.checkpoint import Saved
from jaxrl.rollout import flight
from jaxrl.run import begin, course
from jaxrl.types import TrainState
from tests.jaxrl import tiny

KINDS = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "device": lambda path: os.symlink("/dev/zero", path),
    "link out": lambda path: os.symlink("/etc/passwd", path),
}
"""What stands in the place of a file."""


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_a_run_is_refused_by_its_name(kind, tmp_path):
    path = tmp_path / "config.json"
    KINDS[kind](path)
    with pytest.raises(ValueError, match=r"config\.json is damaged") as error:
        json_file.read(path)
    assert "root:" not in str(error.value)  # what is outside is not shown


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "link out"])
def test_rows_are_not_waited_for(kind, tmp_path):
    KINDS[kind](tmp_path / "metrics.jsonl")
    assert watch.follow(tmp_path / "metrics.jsonl")([]) == []
    with pytest.warns(UserWarning, match="no regular file"):
        assert metrics.read(tmp_path) == []


def test_a_file_is_as_long_as_memory_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(json_file, "LARGEST", 10)
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert json_file.read(tmp_path / "a.json") == {"a": 1}
    (tmp_path / "a.json").write_text('{"a":     1}')
    with pytest.raises(ValueError, match="more than 10 bytes"):
        json_file.read(tmp_path / "a.json")


def test_rows_of_no_step_are_left_out(tmp_path):
    rows = ({"a": 1}, {"step": "x"}, {"step": None}, {"step": True}, {"step": 2.5}, {"step": 3})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert metrics.read(tmp_path) == [{"step": 3}]


SUMMARIES = (
    {"steps": "x"}, {"seconds": "x"}, {"eval": [1]}, {"lineage": 5}, {"steps": True},
    {"eval": {"before": {}}, "steps": 1}, {"eval": {"before": {}, "after": {}}},
    {"lineage": [5]}, {"lineage": [{}]}, {"eval": {"before": 1, "after": 2}, "steps": 1},
)  # fmt: skip


@pytest.mark.parametrize("summary", SUMMARIES, ids=str)
def test_a_summary_with_values_of_other_types_is_damaged(summary, tmp_path):
    (tmp_path / "config.json").write_text('{"config": {}}')
    (tmp_path / "summary.json").write_text("{}")
    assert runs.load_run(tmp_path).summary == {}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ValueError, match=r"summary\.json is damaged"):
        runs.load_run(tmp_path)


def test_values_that_are_no_numbers_are_left_out_of_the_tables(tmp_path):
    (tmp_path / "config.json").write_text('{"config": {}}')
    row = {"step": 1, "a": "x", "b": [1], "c": None, "d": 10**400, "e": 0.5, "f": {"x": 1}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert runs.load_run(tmp_path).metrics.keys() == {"step", "e"}


BODIES = (
    [], 5, None, "x", {}, {"schema": 1}, {"schema": "x", "files": {}}, {"schema": 2, "files": []},
    {"schema": 2, "files": {"a": 5}}, {"schema": 2, "files": {"a": {"bytes": "x", "sha256": []}}},
    {"schema": 2, "files": {"a": {"bytes": 1, "sha256": 5}}}, {"schema": None, "files": {}},
    {"schema": 2, "files": {"a": {"bytes": 1, "sha256": [None]}}},
    {"schema": 2, "files": {"../../x": {"bytes": 1, "sha256": ["x"]}}},
    {"schema": 2, "files": {"/etc/passwd": {"bytes": 1, "sha256": ["x"]}}},
    {"schema": 2, "files": {"a": {"bytes": 1, "sha256": []}}},
    {"schema": 2, "files": {"a": {"bytes": 1 << 60, "sha256": ["x"]}}},
    {"schema": 2, "files": {"a": {"bytes": -1, "sha256": ["x"]}}},
    {"schema": 2, "files": {"pipe": {"bytes": 0, "sha256": ["x"]}}},
    {"schema": 2, "files": {"zero": {"bytes": 10**12, "sha256": ["x"] * 100}}},
)  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=str)
def test_a_manifest_of_others_is_damaged(body, tmp_path):
    """Its own digest is right, as anybody can compute it."""
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/dev/zero", tmp_path / "zero")
    text = json.dumps({"sha256": manifest.digest(body), "body": body})
    (tmp_path / manifest.NAME).write_text(text)
    (fault,) = manifest.faults(tmp_path)
    assert fault.startswith((manifest.NAME, "'pipe' is"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_that_is_no_file_is_damaged(kind, tmp_path):
    KINDS[kind](tmp_path / manifest.NAME)
    (fault,) = manifest.faults(tmp_path)
    assert fault.startswith(manifest.NAME)


ODD = {
    "pipe": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "device": lambda path: os.symlink("/dev/full", path),
    "file outside": lambda path: os.symlink(path.parents[1] / "outside" / "file", path),
    "folder outside": lambda path: os.symlink(path.parents[1] / "outside", path),
    "nothing outside": lambda path: os.symlink(path.parents[1] / "outside" / "new", path),
}
"""What a run of others may hold where a run writes, by kind."""
WRITTEN = ("lock", "stacks.txt", "metrics.tmp", "checkpoints", "tensorboard", "wandb", "report-png")
"""Places of a run where it writes."""


def with_odd(folder, name, kind):
    """A run directory with an odd entry, and what it may not change."""
    (folder / "outside" / "of the user").mkdir(parents=True)
    (folder / "outside" / "file").write_text("precious")
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_text('{"config": {}}')
    ODD[kind](folder / "run" / name)
    return folder / "run", folder / "outside"


def held(outside):
    return {str(path.relative_to(outside)): path.is_dir() or path.read_text()
            for path in outside.rglob("*")}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", WRITTEN)
def test_a_run_that_leads_out_of_itself_is_not_continued(name, kind, tmp_path):
    run, outside = with_odd(tmp_path, name, kind)
    before = held(outside)
    refused = pytest.raises(ValueError, match=rf"holds what no run writes there: '{name}'")
    with refused, rundir.locked(run):
        raise AssertionError("it was locked")
    assert held(outside) == before


@pytest.mark.parametrize("kind", ODD)
def test_a_report_is_not_written_out_of_the_run(kind, tmp_path, capsys):
    run, outside = with_odd(tmp_path, "report.html", kind)
    before = held(outside)
    assert report.main([str(run)]) == 2
    assert "'report.html' is" in capsys.readouterr().err and held(outside) == before
    assert report.main([str(run), "--out", str(tmp_path / "page.html")]) == 0


@pytest.mark.parametrize("kind", ODD)
def test_a_file_is_written_whatever_is_in_its_place(kind, tmp_path):
    """A rename replaces the file; what it is renamed from may be there as well."""
    run, outside = with_odd(tmp_path, "metrics.tmp", kind)
    before = held(outside)
    storage.write(run / "metrics.jsonl", "a row")
    assert (run / "metrics.jsonl").read_text() == "a row" and held(outside) == before
    assert not (run / "metrics.jsonl").is_symlink()


def test_links_within_a_run_and_those_of_wandb_are_no_fault(tmp_path):
    (tmp_path / "run" / "wandb" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "wandb" / "logs" / "core.log").symlink_to("/tmp/core.log")
    (tmp_path / "run" / "wandb" / "latest-run").symlink_to("logs")
    (tmp_path / "run" / "itself").symlink_to(".")
    (tmp_path / "linked").symlink_to("run")  # a run on another disk
    with rundir.locked(tmp_path / "linked"):
        assert (tmp_path / "run" / "lock").exists()


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder outside"])
def test_what_a_manifest_does_not_list_is_not_waited_for(kind, tmp_path):
    run, _ = with_odd(tmp_path, "manifest.ocdbt", kind)
    body = {"schema": 2, "files": {}}
    text = json.dumps({"sha256": manifest.digest(body), "body": body})
    (run / manifest.NAME).write_text(text)
    (fault,) = manifest.faults(run)
    assert fault.startswith("'manifest.ocdbt' is")


GOOD = {
    "step": 1, "before": {}, "lineage": [], "extensions": {}, "rollbacks": 0, "rollouts": None,
    "seconds": 1.5, "tokens": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("value", ["x", True, (1,)])
def test_a_checkpoint_with_values_of_other_types_is_damaged(name, value, tmp_path, monkeypatch):
    found = Saved(1, None, GOOD | {name: value})
    monkeypatch.setattr(checkpoint, "restore", lambda *_: found)
    with pytest.raises(ValueError, match=f"host.json of step 1 .* is damaged: {name}="):
        begin.restored(tmp_path, 1, None)


IMPOSSIBLE = (
    {"step": 2}, {"step": 10**30}, {"seconds": float("nan")}, {"tokens": -1.0},
    {"tokens": float("inf")}, {"before": {"pass@1": "x"}}, {"before": {"pass@1": None}},
    {"lineage": [5]}, {"lineage": [{}]}, {"lineage": [{"run": "r", "step": "1"}]},
    {"lineage": [{"run": 5, "step": 1}]}, {"lineage": [{"run": "r", "step": True}]},
)  # fmt: skip


@pytest.mark.parametrize("change", IMPOSSIBLE, ids=str)
def test_a_checkpoint_of_another_step_or_of_impossible_values_is_damaged(
    change, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoint, "restore", lambda *_: Saved(1, None, GOOD | change))
    (name,) = change
    with pytest.raises(ValueError, match=f"host.json of step 1 .* is damaged: {name}"):
        begin.restored(tmp_path, 1, None)


@pytest.mark.parametrize("error", [KeyError("a"), AttributeError("a"), AssertionError()])
def test_arrays_that_cannot_be_read_are_told_by_their_place(error, tmp_path, monkeypatch):
    """Orbax raises what comes, where its own files have values of other types."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(ocp.Checkpointer, "restore", fail)
    monkeypatch.setattr(ocp.StandardCheckpointer, "restore", fail)
    monkeypatch.setattr(manifest, "faults", lambda _: [])
    for place in ("checkpoints", "references"):
        (tmp_path / place / "00000001").mkdir(parents=True)
        (tmp_path / place / "00000001" / manifest.NAME).write_text("{}")
    like = {"a": np.zeros(1)}
    for read in (
        lambda: checkpoint.restore(tmp_path, 1, TrainState(like, None, None)),
        lambda: checkpoint.restore_params(tmp_path, like),
        lambda: checkpoint.restore_extra(tmp_path, "ilql", like),
        lambda: references.load(tmp_path, like, 1),
    ):
        with pytest.raises(ValueError, match=r"00000001 does not fit .*: .*\w"):
            read()


ROLLOUTS = (
    {}, {"open_groups": 5}, {"open_groups": {}}, {"open_groups": {"waiting": 5}},
    {"open_groups": {"waiting": [5], "next_id": 0, "groups": []}},
    {"open_groups": {"waiting": [], "next_id": 0, "groups": [{}]}},
    {"open_groups": {"waiting": [], "next_id": 0, "groups": []}, "schedule": 5},
    {"open_groups": {"waiting": [], "next_id": 0, "groups": []}, "schedule": {"groups": [1]}},
    {"open_groups": {"waiting": [{"problem": {"record": "Problem", "fields": {"x": 1}},
                                  "ticket": 0}], "next_id": 0, "groups": []}},
    {"open_groups": {"waiting": [{"problem": {"scalar": 5}, "ticket": 0}]}},
    {"open_groups": {"waiting": [{"problem": {"record": []}, "ticket": 0}]}},
    {"open_groups": {"waiting": [{"problem": {"dict": 5}, "ticket": 0}]}},
    {"open_groups": {"waiting": [{"problem": {"set": [{"dict": []}]}, "ticket": 0}]}},
)  # fmt: skip


@pytest.mark.parametrize("rollouts", ROLLOUTS, ids=str)
def test_a_position_that_nothing_can_continue_from_is_damaged(rollouts, tmp_path):
    flying = flight.Flight(None, 4, SimpleNamespace(set_state=id), None, None)
    with (
        pytest.raises(ValueError, match=r"damaged, or of another version|no record of ours"),
        checkpoint.telling_damage(tmp_path),
    ):
        flying.set_state({"source": {}} | rollouts)


ARRAYS = ("f4,(2", ",", "f4,(1+1)f4", "O", "|O", "f4,f4", "(9,9)f4", "V" * 99, ["f4"], 5, None, "")


@pytest.mark.parametrize("dtype", ARRAYS, ids=str)
def test_the_type_of_an_array_is_a_name(dtype):
    """NumPy reads other texts as Python, and says of some that they are no Python."""
    with pytest.raises((ValueError, TypeError)):
        checkpoint.from_json({"base64": "AAAAAAAAAAA=", "dtype": dtype, "shape": [2]})


@pytest.mark.parametrize("shape", [[-1], [10**30], [2**40, 2**40], ["x"], None, 5, [True], {}])
def test_the_shape_of_an_array_is_a_list_of_sizes(shape):
    with pytest.raises(ValueError, match=r"shape|dimension|size|big"):
        checkpoint.from_json({"base64": "AAAAAAAAAAA=", "dtype": "float32", "shape": shape})


@pytest.mark.parametrize("dtype", ["bfloat16", "int4", "float8_e4m3fn", "<U3", "datetime64[ns]"])
def test_arrays_of_all_types_come_back(dtype):
    array = np.zeros(3, np.dtype(dtype))
    back = checkpoint.from_json(json.loads(json.dumps(checkpoint.to_json(array))))
    assert back.dtype == array.dtype and back.shape == (3,)


NAMES = ("x", "1²", "-1", "1e5", "\u0661", "2", "000000002", "1" * 200, "00000001.tmp")
"""Of folders that no run writes, but for the first of its steps."""


@pytest.mark.parametrize("name", NAMES)
def test_folders_of_other_names_are_no_steps(name, tmp_path):
    for place in ("checkpoints", "references"):
        for step in (name, "00000001"):
            (tmp_path / place / step).mkdir(parents=True)
            (tmp_path / place / step / manifest.NAME).write_text("{}")
    assert checkpoint.steps(tmp_path) == references._steps(tmp_path, 10**300) == [1]


@pytest.mark.parametrize("name", NAMES)
def test_files_of_other_names_are_no_rows_and_no_stages(name, tmp_path):
    good = {"recipe": "x", "steps": 1, "seconds": 1, "eval": {}}
    for number, content in (("1", good), (name, good if name.isdecimal() else {"a": 1})):
        (tmp_path / "stages" / number).mkdir(parents=True, exist_ok=True)
        (tmp_path / "stages" / number / "summary.json").write_text(json.dumps(content))
    assert {**good} in course.summary(tmp_path)["course"]
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "000001.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "evals" / f"{name}.jsonl").write_text('{"a": 2}\n')
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rows = list(runs.completions(tmp_path, "evals"))
    assert {"step": 1, "a": 1} in rows
    assert len(rows) + sum("named after no step" in str(entry.message) for entry in said) == 2


@pytest.mark.parametrize("size", [1 << 33, 1 << 42])
def test_a_hole_of_any_size_takes_neither_time_nor_memory(size, tmp_path):
    path, row = tmp_path / "metrics.jsonl", b'{"step": 1, "a": 2}\n'
    with path.open("wb") as file:
        file.write(row)
        file.seek(size)
        file.write(b"\n" + row)
        file.truncate(2 * size)
    with pytest.warns(UserWarning, match="line 2 holds no JSON object"):
        assert metrics.read(tmp_path) == [{"step": 1, "a": 2}] * 2
    look = watch.follow(path)
    rows = look([])
    assert len(rows) == 2 and look(rows) == rows
    path.rename(tmp_path / "host.json")
    with pytest.raises(ValueError, match="byte 20 of it is NUL"):
        json_file.text(tmp_path / "host.json")
    with pytest.raises(ValueError, match=r"host\.json is damaged"):
        json_file.read(tmp_path / "host.json")


def test_a_looked_at_file_goes_on_where_it_ended(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"ste')
    look = watch.follow(path)
    assert look([]) == [{"step": 1}]
    with path.open("a") as file:
        file.write('p": 2}\n\n{"step": 3}\n')
    assert look([{"step": 1}]) == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_numbers_of_a_config_that_no_run_has_are_refused(tmp_path):
    """As `jaxrl export RUN` would otherwise make a thousand million layers."""
    rundir.save_config(tmp_path, tiny.config(tmp_path))
    assert account.config(tmp_path, ()).recipe == "tiny"
    content = json.loads((tmp_path / "config.json").read_text())
    content["config"]["fresh"]["num_layers"] = 10**9
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"fresh\.num_layers=1000000000: must be from 1 to"):
        account.config(tmp_path, None)


@pytest.mark.parametrize("value", ["x", None, [1], {}, 10**400])
def test_figures_of_a_spike_are_numbers(value, tmp_path):
    (tmp_path / "spikes" / "00000003").mkdir(parents=True)
    text = json.dumps({"metrics": {"a": 1.5, "b": value}})
    (tmp_path / "spikes" / "00000003" / "spike.json").write_text(text)
    if value is None:  # of what was not finite
        assert replay._spike(tmp_path, 3) == {"a": 1.5, "b": None}
        return
    with pytest.raises(ValueError, match=r"spike\.json is damaged: b="):
        replay._spike(tmp_path, 3)


IDS = ("", "..", "../x", "a/../b", "/etc/x", "a//b", "a\n", "\x1b]0;x\x07", "a\u202eb", "a" * 5000)


@pytest.mark.parametrize("kept", IDS, ids=ascii)
def test_the_id_of_a_run_in_a_tracker_is_a_name(kept, tmp_path):
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "id").write_text(kept)
    with pytest.raises(ValueError, match=r"id holds .* remove the file|more than 4096 bytes"):
        trackers._kept_id(tmp_path / "wandb", lambda: "new")
    (tmp_path / "wandb" / "id").unlink()
    assert [trackers._kept_id(tmp_path / "wandb", lambda: "a/new one") for _ in "ab"] == [
        "a/new one"
    ] * 2


@pytest.mark.parametrize("kind", ODD)
def test_a_link_of_the_users_own_is_followed_with_trust(kind, tmp_path):
    """Checkpoints on a larger disk; what is neither a file nor a folder stays refused."""
    run, outside = with_odd(tmp_path, "checkpoints", kind)
    other = kind in ("pipe", "socket", "device")
    with pytest.raises(ValueError, match="holds what no run") as error, rundir.locked(run):
        pass
    assert ("--trust" in str(error.value)) != (kind in ("pipe", "socket"))
    if other:
        with pytest.raises(ValueError, match="holds what no run"), rundir.locked(run, trust=True):
            pass
        return
    before = held(outside)
    with rundir.locked(run, trust=True):
        pass
    if kind == "folder outside":  # what else is in it stays, too
        with writer.Writer(run, CheckpointConfig(), pytest.fail):
            pass
    assert held(outside) == before


def test_a_checkpoint_as_it_is_passes(tmp_path, monkeypatch):
    found = Saved(1, None, GOOD)
    monkeypatch.setattr(checkpoint, "restore", lambda *_: found)
    assert begin.restored(tmp_path, 1, None) is found
