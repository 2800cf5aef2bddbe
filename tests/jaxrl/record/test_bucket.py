"""A run in a bucket, on an emulator of Google Cloud Storage on this machine."""

import http.server
import logging
import socket
import threading
import time

import pytest

from jaxrl.launch import report
from jaxrl.launch.inspect import evaluate, replay, watch
from jaxrl.record import checkpoint, jsonl, rundir, runs, storage
from jaxrl.run import loop
from tests.jaxrl import tiny

pytest.importorskip("gcsfs", reason="the extra `gcs` is not installed")
server = pytest.importorskip("gcp_storage_emulator.server")
pytestmark = pytest.mark.extra

SHORT = {
    "steps": 3, "warm_start.steps": 2, "eval.every": 0, "checkpoint.every": 1,
    "objective.kl_coef": 0.05, "reference_refresh.every": 2,
}  # fmt: skip

OUT_OF_ORDER = threading.Event()
"""While it is set, whatever is asked of the bucket fails."""
SILENT = threading.Event()
"""While it is set, nothing that is asked is answered."""


@pytest.fixture(scope="module")
def bucket():
    """Its address; the libraries find the emulator by their own variables."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.MonkeyPatch.context() as patched:
        for name in ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"):
            patched.setenv(name, f"http://127.0.0.1:{port}")
        patched.setattr(rundir, "RENEWAL_S", 0.2)
        # Else each file warns that it is not Google's own, until a process that is not read stops.
        patched.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        # Else a client that has connected and is silent keeps all others waiting. What is asked is
        # done one by one, as the emulator changes its dictionaries while it writes them down.
        patched.setattr("http.server.HTTPServer", http.server.ThreadingHTTPServer)
        handle, one_by_one = server.Router.handle, threading.Lock()

        def handled(router, method):
            if OUT_OF_ORDER.is_set():
                router._request_handler.send_error(503)
                return
            while SILENT.is_set():
                time.sleep(0.05)
            with one_by_one:
                handle(router, method)

        patched.setattr(server.Router, "handle", handled)
        logging.getLogger("gcsfs").setLevel(logging.ERROR)  # that there are no credentials
        emulator = server.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
        emulator.start()
        yield "gs://bucket"
        emulator.stop()


@pytest.mark.exact("a run in a bucket equals one on disk to the last bit")
@pytest.mark.slow
def test_a_run_in_a_bucket_equals_one_on_disk(bucket, tmp_path):
    """Begun, broken off, and continued there; torn and damaged there, and done again; forked."""
    where = f"{bucket}/runs/one"

    def break_off(step, row):
        raise KeyError(step)

    with pytest.raises(KeyError):
        loop.train(tiny.config(where, **SHORT), loop.Callbacks(step=break_off))
    notes = []
    summary = loop.train(tiny.config(where, **SHORT), loop.Callbacks(note=notes.append))
    assert f"continuing {where} from step 1" in notes and not summary["failed_saves"]
    loop.train(tiny.config(tmp_path, **SHORT))
    run = storage.locate(where)
    assert tiny.artefacts(run) == tiny.artefacts(tmp_path)
    assert checkpoint.steps(run) == [2, 3]
    (checkpoint.path(run, 3) / "manifest.json").unlink()  # a save that got no further
    assert checkpoint.steps(run) == [2]
    loop.train(tiny.config(where, **SHORT))
    assert tiny.artefacts(run) == tiny.artefacts(tmp_path)
    (checkpoint.path(run, 3) / "host.json").write_text("{}")
    loop.train(tiny.config(where, **SHORT), loop.Callbacks(note=notes.append))
    assert any("host.json: 2 bytes, not" in note for note in notes)
    assert tiny.artefacts(run) == tiny.artefacts(tmp_path)
    assert checkpoint.path(run, 3).with_suffix(".damaged").exists()
    assert replay.replay(run, 3).differs == {}  # which forks it
    assert runs.load_run(where).metrics["step"].tolist() == [1, 2, 3]
    assert evaluate.resolve(where, evaluate.EvaluateConfig()) == tiny.config(where, **SHORT)
    assert watch.follow(run / "metrics.jsonl")([])[-1]["step"] == 3
    assert report.main([where]) == 0 and (run / "report.html").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_training_continues_while_a_bucket_fails(bucket, tmp_path):
    """Nothing can be written between the first step and the second: the run says so, continues, and
    ends with all but the rollouts of the time."""
    where, notes = f"{bucket}/runs/order", []

    def at(step, row):
        OUT_OF_ORDER.set() if step == 1 else OUT_OF_ORDER.clear()

    short = {k: v for k, v in SHORT.items() if k != "reference_refresh.every"}
    summary = loop.train(tiny.config(where, **short), loop.Callbacks(step=at, note=notes.append))
    assert summary["failed_saves"]
    for what in ("the checkpoint of step", "metrics.jsonl", "history.jsonl", "the rollouts"):
        assert any(what in note and "could not be" in note for note in notes), what
    loop.train(tiny.config(tmp_path, **short))
    ours, expected = tiny.artefacts(storage.locate(where)), tiny.artefacts(tmp_path)
    lost = {"rollouts/000002.jsonl"}
    assert {*expected.pop("texts")} - {*ours.pop("texts")} <= lost
    assert ours == expected


@pytest.mark.exact("a killed run of two processes in a bucket continues to the last bit")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_pair_in_a_bucket_continues_byte_for_byte(bucket, tmp_path):
    where = f"{bucket}/runs/pair"
    pair = tiny.start_pair(where, devices=1, **SHORT)
    tiny.await_line(pair[0], "train 2")
    pair[1].kill()
    for process in pair:
        process.communicate(timeout=120)
    assert "note continuing" in tiny.finish_pair(tiny.start_pair(where, devices=1, **SHORT))
    tiny.finish_pair(tiny.start_pair(tmp_path, devices=1, **SHORT))
    assert tiny.artefacts(storage.locate(where)) == tiny.artefacts(tmp_path)


def test_a_bucket_that_does_not_answer_fails_in_time(bucket, monkeypatch):
    monkeypatch.setattr(storage, "ANSWER_S", 0.5)
    run = storage.locate(f"{bucket}/runs/silent")
    notes = []
    log = jsonl.Log(run / "log.jsonl", notes.append, lambda row: True)
    SILENT.set()
    log.add({"row": 1})
    SILENT.clear()
    assert "log.jsonl could not be written: FSTimeoutError" in notes[0]
    log.add({"row": 2})
    assert [row["row"] for row in jsonl.read(run / "log.jsonl")] == [1, 2] and len(notes) == 1


def test_a_bucket_that_is_not_there_is_refused(bucket):
    with pytest.raises(ValueError, match=r"cannot be written.*choose another with --run-dir"):
        rundir.prepare(tiny.config("gs://nowhere/run"), print)


def test_second_run_in_a_bucket_is_refused(bucket):
    """While the first lives; the lease of one that was killed runs out."""
    run = storage.locate(f"{bucket}/runs/two")
    refused = pytest.raises(BlockingIOError, match="in use by another")
    with rundir.locked(run), refused, rundir.locked(run):
        pass
    with rundir.locked(run):  # free again
        pass
    (run / "lock").write_text("of a process that is gone")
    start = time.monotonic()
    with rundir.locked(run):
        assert time.monotonic() - start > 2 * rundir.RENEWAL_S
