"""Following a run through its files."""

import io
import json
import os
import threading
import time

import pytest
from rich.console import Console

from jaxrl.launch.inspect import watch


@pytest.fixture
def run(tmp_path):
    config = {"recipe": "[bold]q", "seed": 0, "steps": 10}
    (tmp_path / "config.json").write_text(json.dumps({"config": config}))
    return tmp_path


def row(step, **more):
    times = {"time/sample": 0.5, "time/train": 1.5, "time/step": 2.0}
    return (
        json.dumps({"step": step, "reward/mean": step / 10, "tokens": 50.0} | times | more) + "\n"
    )


def shown(run, **options):
    console = Console(file=io.StringIO(), width=120)
    watch.watch(run, console, **options)
    return console.file.getvalue()


def test_what_is_shown(run):
    first = row(1).replace("2.0}", "99.0}")  # it compiles: no guide to the pace
    (run / "metrics.jsonl").write_text(first + row(2) + row(3) + row(4, kl=None))
    text = shown(run, once=True)
    assert "step 4 of 10" in text and "[bold]q" in text
    assert "0:00:12 left" in text and "25 tokens/s" in text  # 6 steps of 2 s; 50 tokens in 2 s
    assert "reward" in text and "0.4" in text and "0.1 to 0.4" in text
    lines = {line.split()[1]: line for line in text.splitlines() if "%" in line}
    assert "75%" in lines["train"] and "25%" in lines["sample"]
    assert "KL" not in text


def test_a_run_that_has_not_stepped_yet(run):
    assert "no step is finished yet" in shown(run, once=True)


def test_the_course_of_a_figure():
    assert watch.course([0.0, 0.5, 1.0]) == "▁▅█"
    assert watch.course([2.0, 2.0]) == "▄▄"
    assert len(watch.course([float(i) for i in range(1000)])) == 24


def test_incomplete_lines_wait_and_a_replaced_file_is_read_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    look = watch.follow(path)
    assert look([]) == []
    path.write_text('{"step": 1}\n{"st')
    rows = look([])
    assert rows == [{"step": 1}]
    assert look(rows) == rows
    with path.open("a") as file:
        file.write('ep": 2}\n')
    rows = look(rows)
    assert [r["step"] for r in rows] == [1, 2]
    fresh = tmp_path / "fresh"
    fresh.write_text('{"step": 1, "again": true}\n{"step": 2}\n{"step": 3}\n')
    os.replace(fresh, path)
    rows = look(rows)
    assert [r["step"] for r in rows] == [1, 2, 3] and rows[0]["again"]


def test_it_follows_until_the_run_is_finished(run):
    def train():
        for step in range(1, 11):
            with (run / "metrics.jsonl").open("a") as file:
                file.write(row(step))
            time.sleep(0.01)
        (run / "summary.json").write_text("{}")

    trainer = threading.Thread(target=train)
    trainer.start()
    text = shown(run, every=0.01)
    trainer.join()
    assert "step 10 of 10" in text and "finished" in text


def test_one_look_at_a_directory_without_a_run_is_refused(tmp_path, capsys):
    assert watch.main([str(tmp_path), "--once"]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_run_that_has_not_started_is_waited_for(run, tmp_path, capsys, monkeypatch):
    late = tmp_path / "late"

    def begin(seconds):
        late.mkdir()
        (late / "config.json").write_text((run / "config.json").read_text())
        (late / "summary.json").write_text("{}")

    monkeypatch.setattr(watch.time, "sleep", begin)
    assert watch.main([str(late)]) == 0
    said = capsys.readouterr().out
    assert "waiting for" in said and "finished" in said
