"""Files of a run directory of others: what is no file, of other types, or outside is refused."""

import json
import os
import stat

import pytest

from jaxrl import json_file
from jaxrl.launch import report
from jaxrl.launch.inspect import watch
from jaxrl.record import checkpoint, manifest, metrics, rundir, runs, storage
from jaxrl.record.checkpoint import Saved
from jaxrl.run import begin

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


def test_a_checkpoint_as_it_is_passes(tmp_path, monkeypatch):
    found = Saved(1, None, GOOD)
    monkeypatch.setattr(checkpoint, "restore", lambda *_: found)
    assert begin.restored(tmp_path, 1, None) is found
