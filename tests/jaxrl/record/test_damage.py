"""Damaged and missing files of a run: what is said, and that good rows are kept."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl import json_file
from jaxrl.record import checkpoint, jsonl, metrics, rundir, runs
from jaxrl.record.metrics import MetricsLog
from jaxrl.rollout import rollout_log
from jaxrl.run import loop
from tests.jaxrl import tiny


def half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def nul(path):
    path.write_bytes(b"\0" * path.stat().st_size)


def empty(path):
    path.write_bytes(b"")


def gone(path):
    path.unlink()


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0x41
    path.write_bytes(content)


def junk(path):
    path.write_bytes(path.read_bytes() + b"garbage\n")


def not_utf8(path):
    first, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(first[:5] + b"\xff\xfe\x80" + first[5:] + b"\n" + rest)


def zeros_after(path):
    path.write_bytes(path.read_bytes() + b"\0" * 512)


def list_of_rows(path):
    path.write_bytes(b"[1, 2]\n3\nnull\n" + path.read_bytes())


def folder(path):
    path.unlink()
    path.mkdir()


def pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = [half, nul, empty, gone, flip, junk, not_utf8, zeros_after, list_of_rows, folder, pipe]
LOSSES = [half, nul, empty, gone, not_utf8, folder, pipe]


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A run of four steps."""
    directory = tmp_path_factory.mktemp("short") / "run"
    loop.train(tiny.config(directory, steps=4))
    return directory


def continued(directory, **changes):
    """What is said as a run goes on for two steps."""
    notes = []
    loop.train(tiny.config(directory, steps=6, **changes), loop.Callbacks(note=notes.append))
    return notes


def resumed(directory, name):
    """What is said as a run opens one of its files to go on from step 4."""
    notes = []
    if name == "metrics.jsonl":
        MetricsLog(directory, 4, notes.append, start=0).close()
    else:
        rollout_log.HistoryLog(directory, notes.append).back_to(4)
    return [note for note in notes if str(directory / name) in note]


@pytest.mark.broad
@pytest.mark.parametrize("name", ["metrics.jsonl", "history.jsonl"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_lost_rows_are_said_and_good_ones_kept(name, damage, short, tmp_path):
    path = tmp_path / name
    good = (short / name).read_text().splitlines()
    shutil.copy(short / name, path)
    damage(path)
    notes = resumed(tmp_path, name)
    rows = path.read_text().splitlines() if path.is_file() else []
    assert set(rows) <= set(good) or damage is flip
    lost = 4 - len(rows)
    assert lost > 0 or damage not in LOSSES
    said = [note for note in notes if "lacks the rows" in note]
    assert len(said) == bool(lost), notes
    if damage in (junk, not_utf8, list_of_rows):
        assert any(re.search(r"lines? \d", note) for note in notes), notes


@pytest.mark.broad
def test_a_run_says_which_steps_are_lost_and_goes_on(short, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(short, directory)
    gone(directory / "metrics.jsonl")
    half(directory / "history.jsonl")
    notes = [note for note in continued(directory) if "lacks the rows" in note]
    assert len(notes) == 2 and all(str(directory) in note for note in notes)
    assert any("steps 1 to 4;" in note for note in notes)
    assert [row["step"] for row in metrics.read(directory)] == [5, 6]


@pytest.mark.broad
def test_nothing_is_said_of_whole_files(short, tmp_path):
    """Of a continued run, a fork, a rollback, a run from which later rows are dropped."""
    directory = tmp_path / "run"
    shutil.copytree(short, directory)
    shutil.rmtree(checkpoint.path(directory, 4))  # its last rows are of steps that run again
    notes = continued(directory)
    forked = []
    fork = tiny.config(tmp_path / "fork", steps=6, fork=f"{short}@4")
    loop.train(fork, loop.Callbacks(note=forked.append))
    again = []
    loop.train(
        tiny.config(tmp_path / "fork", steps=7, fork=f"{short}@4"),
        loop.Callbacks(note=again.append),
    )
    assert not [note for note in (*notes, *forked, *again) if "lacks" in note or ".jsonl" in note]


@settings(deadline=None)
@given(st.sets(st.integers(0, 30)), st.integers(0, 20), st.integers(0, 20))
def test_the_steps_of_lost_rows_are_named(present, start, count):
    notes = []
    jsonl.tell_missing("FILE", present, range(start, start + count), "steps", notes.append)
    lost = set(range(start, start + count)) - present
    assert len(notes) == bool(lost)
    named = set()
    for first, _, last in re.findall(r"(\d+)( to (\d+))?", "".join(notes).partition("steps")[2]):
        named |= set(range(int(first), int(last or first) + 1))
    assert named == lost or "more gaps" in notes[0]


LINES = st.lists(
    st.one_of(
        st.builds(lambda n: json.dumps({"step": n}).encode(), st.integers(0, 99)),
        st.binary(max_size=12).filter(lambda line: b"\n" not in line),
        st.sampled_from([b"[" * 100_000, b"1" * 5000, b"{}", b"nul", b'{"step": "x"}', b"\xff"]),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(LINES)
def test_any_lines_leave_the_good_rows(lines):
    good = [row for line in lines if isinstance(row := parsed(line), dict)]
    bad = [n for n, line in enumerate(lines, 1) if not isinstance(parsed(line), dict)]
    with tempfile_of(b"".join(line + b"\n" for line in lines) + b'{"step": ') as path:
        notes = []
        assert list(jsonl.read(path, notes.append)) == good
        assert len(notes) == bool(bad) and all(str(path) in note for note in notes)
        assert all(str(n) in notes[0] for n in bad[:5])
        numbers = [row["step"] for row in good if isinstance(row.get("step"), int)]
        log = MetricsLog(path.parent, 1000, notes.append)
        log.write(1001, {"loss": 1.0})
        log.close()
        assert [row["step"] for row in metrics.read(path.parent)] == [*numbers, 1001]


def parsed(line):
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


@contextlib.contextmanager
def tempfile_of(content):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "metrics.jsonl"
        path.write_bytes(content)
        yield path


def bracket(path):
    """One bit of the first character is wrong."""
    path.write_bytes(b"\x3a" + path.read_bytes()[1:])


@pytest.mark.broad
@pytest.mark.parametrize("field", ["steps", "prompts", "curriculum", "learning_rate"])
def test_a_config_with_a_damaged_field_name_is_refused_by_its_file(field, short, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(short, directory)
    path = directory / "config.json"
    saved = path.read_text()
    assert f'"{field}"' in saved
    path.write_text(saved.replace(f'"{field}"', f'"{field[:-1]}#"'))
    with pytest.raises(ValueError, match=re.escape(str(path))):
        rundir.prepare(tiny.config(directory, steps=6), print)


@pytest.mark.broad
@pytest.mark.parametrize("value", ["3", '"x"', "null", "[]", "[1]", "true"])
@pytest.mark.parametrize("field", ["rollout", "curriculum", "extensions"])
def test_a_config_with_a_damaged_section_is_refused_by_its_file(field, value, short, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(short, directory)
    path = directory / "config.json"
    saved = json.loads(path.read_text())
    saved["config"][field] = json.loads(value)
    path.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=re.escape(str(path))):
        rundir.prepare(tiny.config(directory, steps=6), print)


@pytest.mark.broad
@pytest.mark.parametrize("damage", [half, nul, empty, bracket, not_utf8, folder])
def test_a_damaged_config_is_refused_by_its_name(damage, short, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(short, directory)
    damage(directory / "config.json")
    with pytest.raises((ValueError, OSError), match=re.escape(str(directory / "config.json"))):
        rundir.prepare(tiny.config(directory, steps=6), print)
    with pytest.raises((ValueError, OSError), match=re.escape(str(directory / "config.json"))):
        runs.load_config(directory)


@pytest.mark.broad
def test_a_missing_config_is_said(short, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(short, directory)
    (directory / "config.json").unlink()
    notes = []
    rundir.prepare(tiny.config(directory, steps=6), notes.append)
    assert any("config.json is missing" in note for note in notes)


@pytest.mark.parametrize("content", [b"", b"{", b"\0", b"[]", b"3", b"\xff", b"[" * 100_000])
def test_a_file_that_holds_no_object_is_named(content, tmp_path):
    path = tmp_path / "summary.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        json_file.read(path)


def test_a_damaged_schedule_is_refused(tmp_path):
    """All of it decides what is trained on."""
    path = tmp_path / "schedule.jsonl"
    path.write_text('{"step": 1}\ngarbage\n')
    with pytest.raises(ValueError, match=f"{path}: line 2"):
        jsonl.read_whole(path)


def test_a_history_of_a_fork_begins_where_it_forked(tmp_path):
    notes = []
    (tmp_path / "history.jsonl").write_text('{"batch": 3}\n{"batch": 5}\n')
    rollout_log.HistoryLog(tmp_path, notes.append, forked=True).back_to(6)
    assert len(notes) == 1 and "batches 4;" in notes[0]


@pytest.mark.parametrize("depth", [99, 100, 900, 100_000])
@pytest.mark.parametrize("brackets", ["[]", ('{"a": ', "}")])
def test_what_is_nested_too_deep_is_damaged(depth, brackets, tmp_path):
    """It would end what reads it recursively; a row of it is none."""
    start, end = brackets
    text = f'{{"config": {start * depth}1{end * depth}}}' if start != "[" else (
        f'{{"config": {"[" * depth}{"]" * depth}}}'
    )  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(text + "\n")
    notes = []
    rows = list(jsonl.read(path, notes.append))
    if depth == 99:
        assert rows == [json_file.read(path)] and not notes
        return
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        json_file.read(path)
    assert not rows and "line 1 holds no JSON object" in notes[0]


def test_a_line_is_read_in_bounds(monkeypatch, tmp_path):
    """The rows around those that are too long are kept, and their numbers are those of the file."""
    monkeypatch.setattr(jsonl, "_LONGEST", 16)
    long = json.dumps({"text": "x" * 100})
    path = tmp_path / "metrics.jsonl"
    for number in range(1, 40):  # lines that end at, before and after a bound
        path.write_text('{"a": 1}\n' + "y" * number + '\n{"a": 2}\n' + long + '\n{"a": 3}\n' + long)
        notes = []
        assert [row["a"] for row in jsonl.read(path, notes.append)] == [1, 2, 3]
        assert "lines 2, 4 hold no JSON object" in notes[0]
