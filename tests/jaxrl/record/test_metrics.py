"""Metrics beside the run's own file: wandb, offline and when it fails."""

import json
import struct
import sys

import pytest

from jaxrl import config as configs
from jaxrl.config import Config
from jaxrl.record.metrics import MetricsLog, read


def run_directory(path):
    (path / "config.json").write_text(json.dumps({"config": configs.to_dict(Config(seed=5))}))
    return path


def entries(log):
    """Records of a file of wandb's, a LevelDB log: blocks of 32 KiB, each part of a record led by
    its checksum (4 bytes), length (2) and kind (1: whole, 2: first, 3: amid, 4: last)."""
    at, parts = 7, b""  # the file's own mark
    while at + 7 <= len(log):
        if 2**15 - at % 2**15 < 7:  # the rest of a block too short for a head
            at += 2**15 - at % 2**15
            continue
        size, kind = struct.unpack("<HB", log[at + 4 : at + 7])
        if not kind:
            return
        parts += log[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield parts
            parts = b""


def test_wandb_has_every_step_of_a_run_and_of_its_continuation(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    directory, notes = run_directory(tmp_path), []
    for first in (0, 2):
        log = MetricsLog(directory, first, notes.append, "a-project")
        for step in (1, 2):
            log.write(first + step, {"reward/mean": 0.25 * step, "kl": float("nan")})
        log.close()
    assert not notes and len(read(directory)) == 4
    records, ids = [], set()
    for file in directory.glob("wandb/offline-run-*/*.wandb"):
        for data in entries(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add((record.run.run_id, record.run.project))
            if record.WhichOneof("record_type") == "history":
                row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json)
                       for item in record.history.item}  # fmt: skip
                records.append((row["step"], row["reward/mean"], "kl" in row))
    assert sorted(records) == [(s, r, False) for s, r in ((1, 0.25), (2, 0.5), (3, 0.25), (4, 0.5))]
    assert ids == {((directory / "wandb" / "id").read_text(), "a-project")}


def test_a_wandb_failure_is_reported_and_metrics_continue(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it fails
    notes = []
    log = MetricsLog(run_directory(tmp_path), 0, notes.append, "a-project")
    log.write(1, {"loss": 1.0})
    log.write(2, {"loss": 2.0})
    log.close()
    assert [row["loss"] for row in read(tmp_path)] == [1.0, 2.0]
    assert len(notes) == 1 and "wandb goes without further steps" in notes[0]


def test_asking_for_a_wandb_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'jaxrl\[wandb\]'"):
        configs.check(Config(wandb="a-project"))
    configs.check(Config())
