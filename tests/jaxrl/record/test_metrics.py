"""Metrics beside the run's own file: trackers, offline and when they fail; rows of steps."""

import gzip
import http.server
import json
import math
import os
import re
import sqlite3
import struct
import subprocess
import sys
import threading
import time
import types

import pytest

from jaxrl import config as configs
from jaxrl.config import Config, TrackConfig
from jaxrl.data.types import Score
from jaxrl.record import jsonl, metrics, trackers
from jaxrl.record.jsonl import StepLog
from jaxrl.record.metrics import MetricsLog, read
from jaxrl.rollout import experience
from jaxrl.rollout.experience import Experience

ROWS = [
    {"prompt": "1+1=", "completion": "2", "answer": "2", "reward": 1.0},
    {"prompt": "1+1=", "completion": "3", "answer": "2", "reward": None},
]


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


@pytest.mark.extra
def test_wandb_has_every_step_of_a_run_and_of_its_continuation(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    config = Config(wandb="a-project", track=TrackConfig("a-team", "a-name", ("one", "two")))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    directory, notes = run_directory(tmp_path), []
    (tmp_path / "beside").mkdir()
    other_directory = run_directory(tmp_path / "beside")
    beside = MetricsLog(other_directory, 0, notes.append, trackers.openers(config))
    beside.write(1, {"reward/mean": 9.0})  # of another run of this process, which goes on
    for first in (0, 2):
        log = MetricsLog(directory, first, notes.append, trackers.openers(config))
        for step in (1, 2):
            log.write(first + step, {"reward/mean": 0.25 * step, "kl": float("nan")})
        log.table(first + 1, ROWS)
        log.close()
    beside.write(2, {"reward/mean": 9.0})
    beside.close()
    wandb.teardown()  # as at the exit of a process: `finish` may return before all is in the file
    assert not notes and len(read(directory)) == 4
    records, tables, ids = [], [], set()
    for file in directory.glob("wandb/offline-run-*/*.wandb"):
        for data in entries(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "run":
                logged = record.run
                names = (logged.entity, logged.display_name, tuple(logged.tags))
                ids.add((logged.run_id, logged.project, names))
            if record.WhichOneof("record_type") == "history":
                row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json)
                       for item in record.history.item}  # fmt: skip
                if "reward/mean" in row:
                    records.append((row["step"], row["reward/mean"], "kl" in row))
                else:
                    tables.append(row["step"])
    assert sorted(records) == [(s, r, False) for s, r in ((1, 0.25), (2, 0.5), (3, 0.25), (4, 0.5))]
    names = ("a-team", "a-name", ("one", "two"))
    assert ids == {((directory / "wandb" / "id").read_text(), "a-project", names)}
    assert sorted(tables) == [1, 3]
    sent = [json.loads(path.read_text()) for path in directory.rglob("*.table.json")]
    assert all(one["columns"] == list(ROWS[0]) and len(one["data"]) == 2 for one in sent) and sent


def test_a_wandb_failure_is_reported_and_metrics_continue(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it fails
    notes = []
    wanted = trackers.openers(Config(wandb="a-project"))
    log = MetricsLog(run_directory(tmp_path), 0, notes.append, wanted)
    log.write(1, {"loss": 1.0})
    log.write(2, {"loss": 2.0})
    log.close()
    assert [row["loss"] for row in read(tmp_path)] == [1.0, 2.0]
    assert len(notes) == 1 and "wandb goes without further steps" in notes[0]


@pytest.mark.parity
def test_trackio_has_every_step_of_a_run_and_of_its_continuation(tmp_path):
    pytest.importorskip("trackio")
    program = """
import pathlib, sys
from jaxrl.config import Config, TrackConfig
from jaxrl.record import trackers
from jaxrl.record.metrics import MetricsLog
from tests.jaxrl.record.test_metrics import ROWS
wanted = trackers.openers(Config(trackio="a-project", track=TrackConfig(name="a-name")))
notes, first = [], int(sys.argv[2])
log = MetricsLog(pathlib.Path(sys.argv[1]), first, notes.append, wanted)
for step in (1, 2):
    log.write(first + step, {"loss": float(first + step)})
log.table(first + 1, ROWS)
log.close()
assert not notes, notes
"""
    home = tmp_path / "trackio-home"
    env = os.environ | {"TRACKIO_DIR": str(home), "HF_HUB_OFFLINE": "1"}
    directory = run_directory(tmp_path)
    for first in ("0", "2"):  # processes of their own: what trackio starts ends with them
        command = [sys.executable, "-c", program, str(directory), first]
        subprocess.run(command, env=env, check=True, timeout=300)
    (database,) = home.rglob("a-project.db")
    rows = sqlite3.connect(database).execute("select run_name, step, metrics from metrics")
    found = [(name, step, json.loads(text)) for name, step, text in rows]
    losses = {(name, step): logged["loss"] for name, step, logged in found if "loss" in logged}
    assert losses == {("a-name", step): step for step in (1, 2, 3, 4)}
    assert sorted(step for _, step, logged in found if "completions" in logged) == [1, 3]


@pytest.mark.parity
def test_mlflow_has_every_step_of_a_run_and_of_its_continuation(tmp_path, monkeypatch):
    client = pytest.importorskip("mlflow").MlflowClient
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config = Config(mlflow="a-project", track=TrackConfig(name="a-name", tags=("one",)))
    directory, notes = run_directory(tmp_path), []
    for first in (0, 2):
        log = MetricsLog(directory, first, notes.append, trackers.openers(config))
        for step in (1, 2):
            values = {"reward/mean": 0.25 * step, "eval/pass@1": 0.5, "kl": float("nan")}
            log.write(first + step, values)
        log.table(first + 1, ROWS)
        log.close()
    assert not notes
    run = (directory / "mlflow" / "id").read_text()
    history = client().get_metric_history(run, "reward/mean")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.5), (3, 0.25), (4, 0.5)]
    assert len(client().get_metric_history(run, "eval/pass_at_1")) == 4
    logged = client().get_run(run)
    assert logged.info.run_name == "a-name" and logged.info.status == "FINISHED"
    assert logged.data.tags["one"] == "true" and not client().get_metric_history(run, "kl")
    paths = [f.path for f in client().list_artifacts(run, "completions")]
    assert paths == ["completions/000001.json", "completions/000003.json"]


class _Client:
    """What trackers call, kept; names of metrics are checked as MLflow does."""

    def __init__(self):
        self.logged, self.tables = [], 0

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def init(self, **settings):
        return self

    def create_run(self, experiment, **settings):
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="a-run"))

    def log(self, values, step=None):
        self.logged += [k for k in values if k not in ("step", "completions")]
        self.tables += "completions" in values

    def log_batch(self, run, metrics):
        bad = [key for key, *_ in metrics if not re.fullmatch(r"[/\w.\- ]*", key)]
        if bad:
            raise ValueError(f"Invalid metric names: {bad}")
        self.logged += [key for key, *_ in metrics]

    def finish(self):
        self.ending()

    def set_terminated(self, run):
        self.ending()

    def log_dict(self, run, made, path):
        self.tables += path.startswith("completions/")


@pytest.fixture(params=["wandb", "trackio", "mlflow"])
def tracked(request, tmp_path, monkeypatch):
    """A log to a tracker, what the tracker was sent, and the notes of failures."""
    client, notes = _Client(), []
    module = types.ModuleType(request.param)
    module.init, module.Table = client.init, lambda columns, data: (columns, data)
    module.MlflowClient = lambda: client
    monkeypatch.setitem(sys.modules, request.param, module)
    entities = types.ModuleType("mlflow.entities")
    entities.Metric = lambda *fields: fields
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    wanted = trackers.openers(Config(**{request.param: "a-project"}))
    return MetricsLog(run_directory(tmp_path), 0, notes.append, wanted), client, notes


def test_a_table_without_rows_is_not_sent(tracked):
    log, client, notes = tracked
    log.table(1, [])
    log.write(1, {"loss": 1.0})
    log.table(2, ROWS)
    log.close()
    assert not notes and client.logged == ["loss"] and client.tables == 1


@pytest.mark.parametrize("fault", [ValueError("x"), SystemExit(3), None], ids=repr)
def test_a_tracker_that_fails_or_hangs_at_its_end_holds_no_run(
    fault, tracked, tmp_path, monkeypatch
):
    log, client, notes = tracked
    monkeypatch.setattr(metrics, "_CLOSING_S", 0.05)
    answered = threading.Event()

    def ending(*_):
        if fault:
            raise fault
        answered.wait(30)

    client.ending = ending
    log.write(1, {"loss": 1.0})
    start = time.monotonic()
    log.close()
    answered.set()
    assert time.monotonic() - start < 10
    assert len(notes) == 1 and str(fault or "did not end within") in notes[0]
    assert [row["step"] for row in read(tmp_path)] == [1]


@pytest.mark.parametrize("tracked", ["mlflow"], indirect=True)
def test_names_that_mlflow_refuses_are_spelled_otherwise_and_stay_distinct(tracked):
    log, client, notes = tracked
    log.write(1, dict.fromkeys(["eval/pass@1", "a b/c-d.e", "r(x", "r)x", "rx", "größe"], 1.0))
    log.close()
    assert not notes
    assert client.logged[:2] == ["eval/pass_at_1", "a b/c-d.e"] and "größe" in client.logged
    assert len(set(client.logged)) == 6


AWKWARD = (
    "../../x", "a/../b", "x" * 10_000, "x" * 9_999, "\x1b[2J", "a\nb", "", "..", "/etc", "loss/",
    "//", "step", "'; DROP TABLE", "\u202e",
)  # fmt: skip
"""Names of metrics that a judge's criteria or the domains of a file may have."""


@pytest.mark.extra
def test_mlflow_itself_takes_every_name(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run_directory(tmp_path)
    tracker = trackers.mlflow(tmp_path, "a-project", TrackConfig(name="../up"))
    tracker.log(1, dict.fromkeys(AWKWARD, 1.0))
    tracker.close()
    run = mlflow.MlflowClient().get_run((tmp_path / "mlflow" / "id").read_text())
    assert len(run.data.metrics) == len(AWKWARD)


@pytest.mark.parametrize("tracked", ["trackio"], indirect=True)
@pytest.mark.parametrize("name", ["../up", "..", "a/b", "/etc", "x" * 200, "%00", "-rf"])
def test_a_run_of_any_name_is_tracked(name, tracked, tmp_path, monkeypatch):
    trackers.trackio(tmp_path, "a-project", TrackConfig(name=name)).log(1, {"loss": 1.0})
    assert not {"/", "..", ""} & {(tmp_path / "trackio" / "id").read_text()}
    assert "/" not in (tmp_path / "trackio" / "id").read_text()


def test_completions_of_a_step_as_a_table():
    problem = types.SimpleNamespace(prompt="1+1=", answer=2)
    scores = [Score(1.0, parts={"right": 1.0}), Score(None, error="it raised"), *[Score(0.0)] * 2]
    made = Experience([problem] * 2, [None] * 4, ["a", "b", "c", "d"], scores, [])
    rows = experience.table(made, 3)
    assert [row["completion"] for row in rows] == ["a", "b", "c"]
    assert [row["reward"] for row in rows] == [1.0, None, 0.0]
    assert [row["reward/right"] for row in rows] == [1.0, None, None]
    assert rows[1]["error"] == "it raised" and rows[2]["answer"] == "2"
    assert not experience.table(made, 0) and len(experience.table(made, 9)) == 4


@pytest.mark.extra
def test_a_collector_of_opentelemetry_has_a_run_by_the_proposed_names(tmp_path):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

    bodies = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            compressed = self.headers.get("Content-Encoding") == "gzip"
            bodies.append((self.path, gzip.decompress(body) if compressed else body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    notes = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        wanted = trackers.openers(Config(otlp=f"http://127.0.0.1:{server.server_port}/"))
        log = MetricsLog(run_directory(tmp_path), 0, notes.append, wanted)
        for step in (1, 2):
            values = {"loss": 0.5 * step, "time/sample": 2.0, "time/step": 3.0, "tokens": 10.0}
            log.write(step, values | dict.fromkeys(AWKWARD, 1.0) | {"reward/mean": math.nan})
        log.table(1, ROWS)
        log.close()
        server.shutdown()
    assert not notes and {path for path, _ in bodies} == {"/v1/metrics"}
    request = metrics_service_pb2.ExportMetricsServiceRequest.FromString(bodies[-1][1])
    (resource,) = request.resource_metrics
    attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert attributes["rl.system"] == "jaxrl" and attributes["rl.algorithm"] == "quickstart"
    sent = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    assert sent["rl.train.loss"].gauge.data_points[0].as_double == 1.0
    assert sent["rl.train.steps"].sum.data_points[0].as_int == 2
    assert sent["rl.train.tokens"].sum.data_points[0].as_double == 20.0
    point = sent["rl.sample.duration"].histogram.data_points[0]
    assert (point.count, point.sum) == (2, 4.0) and "rl.environment.reward.mean" not in sent
    assert len([name for name in sent if name.startswith("jaxrl.")]) == len({*AWKWARD, "step"})


@pytest.mark.parametrize("tracker", ["wandb", "trackio", "mlflow", "otlp"])
def test_asking_for_a_tracker_that_is_not_there_is_refused(tracker, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"pip install 'jaxrl\[{tracker}\]'"):
        configs.check(Config(**{tracker: "a-project"}))
    configs.check(Config())


def test_a_step_that_is_done_again_replaces_its_rows(tmp_path):
    path = tmp_path / "chunks.jsonl"
    log = StepLog(path, print, sync=False)
    log.begin(0)
    log.add({"step": 0, "chunk": 0, "tokens": 9}, {"step": 0, "chunk": 1, "tokens": 9})
    log.begin(1)
    log.add({"step": 1, "chunk": 0, "tokens": 9})
    again = StepLog(path, print, sync=False)  # restarted after step 1
    again.begin(1)
    again.add(*({"step": 1, "chunk": n, "tokens": 7} for n in range(3)))
    rows = list(jsonl.read(path))
    assert [(row["step"], row["chunk"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [row["tokens"] for row in rows] == [9, 9, 7, 7, 7]
