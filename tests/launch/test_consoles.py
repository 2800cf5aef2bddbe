"""A console that lacks characters, is full, closed or gone ends no run."""

import errno
import io
import os
import signal
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.launch import cli, progress, streams, train
from jaxrl.launch.server.http import Server
from jaxrl.record import checkpoint
from jaxrl.record.process import SAVED
from jaxrl.run.loop import Callbacks
from tests.jaxrl.tiny import ROOT
from tests.launch.test_cli import TINY

COMMAND = [sys.executable, "-m", "jaxrl.launch.cli", "train", "quickstart", *TINY]
CONSOLES = {
    "latin-1": ("PYTHONIOENCODING=latin-1", ""),
    "ascii": ("PYTHONIOENCODING=ascii", ""),
    "full output": ("", ">/dev/full"),
    "full errors": ("", "2>/dev/full"),
    "both full": ("", ">/dev/full 2>&1"),
    "closed output": ("", ">&-"),
    "closed errors": ("", "2>&-"),
    "all closed": ("", "<&- >&- 2>&-"),
    "a reader that leaves": ("", "| head -c 1"),
}


@pytest.mark.sample(2)
@pytest.mark.broad
@pytest.mark.parametrize("console", CONSOLES)
def test_a_run_ends_well_whatever_its_console(console, tmp_path):
    variables, redirected = CONSOLES[console]
    run = tmp_path / "run"
    words = " ".join(f"'{word}'" for word in [*COMMAND, "--run-dir", str(run)])
    script = f"set -o pipefail; {variables} {words} {redirected}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr
    assert (run / "summary.json").exists() and checkpoint.steps(run)[-1] == 2
    rows = (run / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 2 and all(row.startswith('{"step": ') for row in rows)
    assert checkpoint.newest(run, pytest.fail) == 2
    if console == "full output":
        assert done.stderr.count(b"the output cannot be written") == 1


class Broken(io.StringIO):
    """A stream whose writes fail."""

    def __init__(self, error, works_again=False):
        super().__init__()
        self.error, self.works_again, self.failures = error, works_again, 0

    def write(self, text):
        if self.error and not (self.works_again and self.failures):
            self.failures += 1
            raise self.error
        return super().write(text)


ERRORS = [
    OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "gone"), BrokenPipeError(errno.EPIPE, "pipe"),
    BlockingIOError(errno.EAGAIN, "busy"), ValueError("I/O operation on closed file"),
    UnicodeEncodeError("ascii", "x", 0, 1, "no"),
]  # fmt: skip


@given(st.sampled_from(ERRORS), st.sampled_from(ERRORS), st.booleans())
def test_a_failing_stream_is_told_once_and_ends_nothing(of_output, of_errors, again):
    before = sys.stdout, sys.stderr
    output, errors = Broken(of_output, again), Broken(None)
    try:
        sys.stdout, sys.stderr = output, errors
        with streams.lasting():
            for _ in range(3):
                print("a line", flush=True)
                streams.say("another")
        told = errors.getvalue()
        sys.stdout, sys.stderr = Broken(of_output), Broken(of_errors)
        with streams.lasting():
            streams.say("a line")
            streams.say("a line", error=True)
    finally:
        sys.stdout, sys.stderr = before
    assert told.count("the output cannot be written") == 1
    assert ("another" in output.getvalue()) == again


def test_the_streams_are_those_of_before_afterwards(capsys):
    before = sys.stdout, sys.stderr
    with pytest.raises(KeyboardInterrupt), streams.lasting():
        raise KeyboardInterrupt
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize("closed", ["0", "1", "2", "12", "012"])
def test_closed_descriptors_lead_nowhere_and_never_into_a_file(closed, tmp_path):
    """Where one is closed, the next file takes its number, and libraries print into it."""
    program = (
        "import os, sys\n"
        "from jaxrl.launch import streams\n"
        "streams.open_streams()\n"
        f"file = open({str(tmp_path / 'rows')!r}, 'w')\n"
        "assert file.fileno() > 2\n"
        "file.write('rows')\n"
        "print('to the console'); print('to the console', file=sys.stderr)\n"
        "os.write(1, b'of a library'); os.write(2, b'of a library')\n"
        "assert sys.stdin.read() == ''\n"
    )
    closing = " ".join(f"{number}<&-" for number in closed)
    script = f"'{sys.executable}' -c \"$0\" {closing}"
    command = ["bash", "-c", script, program]
    assert not subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=60).returncode
    assert (tmp_path / "rows").read_text() == "rows"


@pytest.mark.broad
@pytest.mark.parametrize("words", [["losses"], ["--help"], ["eval", "--help"]], ids=" ".join)
def test_a_full_output_is_one_line(words):
    command = [sys.executable, "-m", "jaxrl.launch.cli", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=300)
    assert done.returncode == 1
    assert done.stderr.startswith(b"jaxrl: the output cannot be written: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize(("name", "status"), [("eval", 0), ("nonsense", 2)])
def test_messages_that_cannot_be_written_change_no_exit_status(name, status, error, monkeypatch):
    def speak(argv):
        streams.say("a message", error=True)
        return 0

    broken = Broken(error)
    monkeypatch.setattr(sys, "stderr", broken)
    monkeypatch.setattr(cli, "command", lambda where: speak)
    assert cli.main([name]) == status
    assert sys.stderr is broken and broken.failures


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EISDIR, errno.ENOSPC])
def test_a_file_that_cannot_be_used_is_one_line(number, monkeypatch, capsys):
    def fail(argv):
        raise OSError(number, os.strerror(number), "a\x1b[2Jfile")

    monkeypatch.setattr(cli, "command", lambda where: fail)
    assert cli.main(["report"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("jaxrl: [Errno ") and "file" in said and said.count("\n") == 1
    assert "\x1b" not in said


@pytest.mark.parametrize("error", [OSError(errno.EBADF, "bad", "f"), OSError(errno.EIO, "no file")])
def test_a_fault_of_ours_is_shown_whole(error, monkeypatch):
    def fail(argv):
        raise error

    monkeypatch.setattr(cli, "command", lambda where: fail)
    with pytest.raises(OSError, match=r"bad|no file"):
        cli.main(["report"])


@pytest.mark.parametrize("name", ["eval", "sample", "export", "plan", "recipes"])
def test_an_interrupted_command_is_one_line(name, monkeypatch, capsys):
    def interrupt(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "command", lambda where: interrupt)
    assert cli.main([name]) == cli.INTERRUPTED
    assert capsys.readouterr().err == "jaxrl: interrupted\n"


def test_a_server_answers_whatever_its_console(monkeypatch):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            print("a fault", file=sys.stderr)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server, answers = Server(("127.0.0.1", 0), Handler), []

    def ask():
        try:
            connection = HTTPConnection(*server.server_address[:2], timeout=30)
            connection.request("GET", "/")
            answers.append(connection.getresponse().status)
        finally:
            server.shutdown()

    monkeypatch.setattr(sys, "stderr", Broken(OSError(errno.ENOSPC, "full")))
    thread = threading.Thread(target=ask)
    thread.start()
    assert server.serve("serving") == 0
    thread.join()
    assert answers == [200]


def test_what_is_shown_cannot_end_a_run(capsys):
    def fail(*_):
        raise RuntimeError("[/x] \x1b[2J")

    shielded = train._shielding(Callbacks(*[fail] * len(Callbacks._fields)))
    for _ in range(2):
        shielded.stage("train", 1, 2)
        shielded.note("a note")
        shielded.step(1, {})
    said = capsys.readouterr().err
    assert said.count("cannot be shown") == 3 and "\x1b" not in said


SUMMARY = {
    "eval": {"before": {"pass@1": 0.1}, "after": {"pass@1": 0.2}},
    "seconds": 1, "steps": 2, "device": "x", "lineage": [],
}  # fmt: skip
ODD_SUMMARY = {**SUMMARY, "eval": {"before": {"pass@1": "x"}, "after": {}}}
FAULTS = [
    (None, None), (b"", b""), (b"{}\n", b"{}\n"), (b"garbage\n", b"{}\n"), (b"\xff\n", b"\0"),
    (b'{"reward": "x", "prompt": 1, "completion": 2, "answer": [1]}\n',) * 2,
    (b"{}\n{}\n", b"{}\n"), ("folder", "folder"),
]  # fmt: skip


@pytest.mark.parametrize("contents", FAULTS)
@pytest.mark.parametrize("summary", [SUMMARY, ODD_SUMMARY])
def test_the_closing_table_is_a_best_effort(contents, summary, tmp_path, capsys):
    (tmp_path / "evals").mkdir()
    for step, content in zip((0, 2), contents, strict=True):
        path = tmp_path / "evals" / f"{step:06d}.jsonl"
        if content == "folder":
            path.mkdir()
        elif content is not None:
            path.write_bytes(content)
    console = progress.Console(file=io.StringIO(), width=200)
    progress.close(console, tmp_path, summary)
    assert f"everything is in {tmp_path}" in console.file.getvalue().replace("\n", "")
    said = capsys.readouterr().err
    assert said.count("\n") == said.count("the run itself is complete") <= 2
    if contents[0] in (None, b"garbage\n", b"\xff\n"):
        assert "000000.jsonl" in said


@pytest.mark.sample(1)
@pytest.mark.broad
@pytest.mark.parametrize("stage", ["evaluate", "train"])
def test_a_lost_terminal_saves_the_run(stage, tmp_path):
    """A hang-up comes to all processes of the terminal, and nothing can be printed after it."""
    run, (reader, writer) = tmp_path / "run", os.pipe()
    more = ["--steps", "4000", "--run-dir", str(run), "--score-workers", "2", "--eval.every", "1"]
    process = subprocess.Popen(
        [*COMMAND, *more], cwd=ROOT, stdout=writer, stderr=writer, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # else nohup is heeded
    )  # fmt: skip
    os.close(writer)
    deadline = time.monotonic() + 300
    while not (beat(run).startswith(stage) and (run / "metrics.jsonl").exists()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    os.close(reader)
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(200) == SAVED
    assert checkpoint.steps(run)


def beat(run):
    try:
        text = (run / "heartbeat.json").read_text()
    except FileNotFoundError:
        return ""
    return text.partition('"stage": "')[2]
