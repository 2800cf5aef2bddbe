"""The plan of methods on a user's file, and its page."""

import json
from pathlib import Path

import pytest

from experiments import own_data
from jaxrl.launch import cli, recipes
from jaxrl.record import jsonl
from tests.data import words


def test_sixteen_methods_of_many_families():
    names = [plan.method for plan in own_data.PLAN]
    assert len(set(names)) == 16 and len(set(map(recipes.family, names))) >= 8
    assert all(recipes.method_in(recipes.module(name)) for name in names)


@pytest.mark.broad
def test_every_plan_passes_the_checks_of_a_run(tmp_path, tmp_path_factory, capsys):
    """With another model, as that of the plan is a package that may not be there."""
    model = words.model(tmp_path_factory.mktemp("model"), positions=1024)
    rows = [
        {"question": f"What is {i}+1?", "answer": f"{i}+1={i + 1}\n#### {i + 1}"}
        for i in range(300)
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = own_data.add_lengths(tmp_path / "data.jsonl", tmp_path / "rows.jsonl")
    for plan in own_data.PLAN:
        shared = [f"--model={model}", f"--data={data}", *own_data.SETTINGS]
        argv = ["show", plan.method, *shared, "--steps=20", *plan.flags, "--check"]
        assert cli.main(argv) == 0, capsys.readouterr()


def test_the_page_is_what_is_generated():
    rows = list(jsonl.read(own_data.RESULTS)) if own_data.RESULTS.exists() else []
    assert own_data.PAGE.read_text() == own_data.render(rows)


def test_a_page_has_the_figures_of_what_is_done():
    row = {"method": "areal", "values": [0.0, 1.0], "holds": True, "seconds": 3.2}
    (line,) = [x for x in own_data.render([row]).splitlines() if x.startswith("| areal")]
    assert line.endswith("| 0 | 1 | 0.5 | yes | 3 |")


def test_short_rows_are_divided_by_the_lengths_of_their_questions(tmp_path):
    data, target = tmp_path / "data.jsonl", tmp_path / "rows.jsonl"
    rows = [{"question": "why " * (i % 9 + 1), "answer": f"{i}\n#### 1"} for i in range(90)]
    long_row = {"question": "why", "answer": "a" * 101}
    data.write_text("\n".join(map(json.dumps, [long_row, *rows])))
    made = [json.loads(line) for line in own_data.add_lengths(data, target).open()]
    counts = [sum(row["length"] == name for row in made) for name in ("short", "middle", "long")]
    assert [{k: row[k] for k in ("question", "answer")} for row in made] == rows
    assert sum(counts) == 90 and min(counts) >= 20


@pytest.mark.parametrize(("reward", "error"), [(0.35, 0.0), (0.5, 0.15)])
def test_control_errors_are_those_of_the_stated_weights(reward, error):
    prompt = "What?\n\nWeights: number 0.3, brief 0.7"
    row = {"prompt": prompt, "reward": reward, "parts": {"number": 0.0, "brief": 0.5}}
    assert own_data.control_errors([], [row]) == pytest.approx([error])
    assert own_data.control_errors([], [{**row, "prompt": "What?"}]) == [float("inf")]


def test_a_brief_answer_earns_more():
    assert own_data.brief("") == 1.0 and own_data.brief("a " * 64) == 0.0


def test_a_method_that_is_done_is_not_run_again(tmp_path, monkeypatch):
    ran = []

    def measure(plan, data, out, steps):
        ran.append(plan.method)
        return {"method": plan.method, "values": [1.0], "holds": True, "seconds": 1.0}

    monkeypatch.setattr(own_data, "measure", measure)
    places = ["--results", str(tmp_path / "lines.jsonl"), "--page", str(tmp_path / "page.md")]
    for _ in range(2):
        assert own_data.main(["--data", "rows.jsonl", "--only", "areal,vcpo", *places]) == 0
    assert ran == ["areal", "vcpo"]
    assert Path(places[3]).read_text().count("| yes |") == 2
