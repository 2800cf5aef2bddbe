"""The report: what it gathers, and the page itself in a browser."""

import json
import random
import re
import struct
import threading
import tracemalloc
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from jaxrl.launch import report
from jaxrl.launch.report import collect, live
from jaxrl.run import loop
from tests.jaxrl import tiny
from tests.launch import browser

ESC = chr(27)
HOSTILE = [
    "</script><script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 2'><svg onload='window.hit = 3'>",
    "<!--<script>window.hit = 4",
    f"{ESC}[2J{ESC}[31mred{ESC}]0;title{chr(7)}",
    "x" * 1_000_000,
    "‮gnp.exe⁦‏⁩​\x00\x85\u2028",
    "مرحبا 12+3= שלום",
    "{{script}} javascript:window.hit=5 \ud800 %3Cscript%3E",
]


def write_run(directory, *, seed=0, lr=1e-3, steps=40, rollouts=(), evals=(), **summary):
    """A run directory as the loop leaves it, with curves that a test can foretell."""
    directory.mkdir()
    config = {"recipe": "quickstart", "seed": seed, "steps": steps, "run_dir": str(directory)}
    config |= {"model": "fresh", "task": "arithmetic", "optimizer": {"learning_rate": lr}}
    config |= {"warm_start": {"steps": 5}}
    saved = {"config": config, "command": ["jaxrl", "train"], "versions": {"jax": "0.10"}}
    (directory / "config.json").write_text(json.dumps(saved | {"git": "abc"}))
    rng = random.Random(seed)
    with (directory / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            row = {
                "step": step,
                "reward/mean": step / steps + seed,
                "reward/correct": rng.random(),
                "entropy": 1 / step,
                "logp_gap": 1e-7,
                "kl": None if step == 1 else 0.01 * step,
                "tokens": 100.0,
                "completion_length": 3.0,
                "completion_length_max": 5.0,
                "novel/metric": 1.0,
                "time/sample": 0.2,
                "time/train": 0.25,
                "time/step": 9.5 if step == 1 else 0.5,
            }
            if step == steps // 2:
                row |= {"eval/pass@1": 0.5, "eval/pass@1/low": 0.4, "eval/pass@1/high": 0.6}
            file.write(json.dumps(row) + "\n")
    for kind, rows in (("rollouts", rollouts), ("evals", evals)):
        (directory / kind).mkdir()
        for step in {row["step"] for row in rows}:
            lines = [json.dumps(row) + "\n" for row in rows if row["step"] == step]
            (directory / kind / f"{step:06d}.jsonl").write_text("".join(lines))
    if summary:
        (directory / "summary.json").write_text(json.dumps({"steps": steps} | summary))
    return directory


def rollout(step, problem, text, reward, pieces=None, error=None):
    pieces = list(text) if pieces is None else pieces
    count = len(pieces)
    return {
        "step": step,
        "group": 0,
        "problem": problem,
        "prompt": f"{problem}=",
        "answer": "7",
        "completion": text,
        "reward": reward,
        "parts": {"correct": reward or 0.0},
        "error": error,
        "stopped": len(text) < 5,
        "tokens": pieces,
        "logp": [-0.1 * (i + 1) for i in range(count)],
        "entropy": [0.2 * i for i in range(count)],
        "version": [step - 1] * count,
        "source": ["policy"] * (count - 1) + ["tool"],
        "advantage": [1.5 if reward else -0.5] * count,
        "log_ratio": [0.01] * count,
    }


FIGURES = {"pass@1": 0.25, "pass@1/low": 0.2, "pass@1/high": 0.3, "problems": 4.0}
FIGURES |= {"pass@1/easy": 0.5}


def test_what_is_gathered(tmp_path):
    eval_row = {"step": 20, "problem": "a", "prompt": "", "completion": "", "reward": 1.0}
    first = write_run(
        tmp_path / "one",
        seconds=60.0,
        eval={"before": FIGURES, "after": FIGURES | {"pass@1": 0.75}},
        evals=[eval_row, eval_row | {"step": 30}, eval_row | {"step": 30, "reward": None}],
    )
    data = collect.gather([first])
    (run,) = data["runs"]
    series = run["series"]
    assert series["reward/mean"]["value"][:2] == [0.025, 0.05]
    assert series["kl"]["step"][0] == 2  # what is null is not drawn
    assert set(series["throughput"]["value"]) == {200.0}  # 100 tokens in half a second
    assert series["throughput"]["step"][0] == 2  # the step that compiles says nothing of speed
    assert series["eval/pass@1"]["step"] == [0, 20, 30, 40]
    assert series["eval/pass@1"]["value"] == [0.25, 0.5, 0.5, 0.75]
    assert series["eval/pass@1/easy"] == {"step": [0, 40], "value": [0.5, 0.5]}
    assert series["eval/pass@1"]["low"] == {"0": 0.2, "20": 0.4, "40": 0.2}
    # 39 steps of half a second, of which 0.2 sampled and 0.25 trained; 60 s in all.
    expected = {"sample": 7.8, "train": 9.75, "other": 1.95, "first step": 9.5}
    expected["outside the steps"] = 60 - 19.5 - 9.5
    assert run["time"] == pytest.approx(expected)
    assert run["facts"]["steps"] == 40 and run["facts"]["throughput"] == 200
    assert run["clock"]["tokens"][-1] == 4000 and run["clock"]["seconds"][1] == 10
    assert run["lineage"][0] == "fresh weights" and "5 steps" in run["lineage"][1]
    by_name = {panel["name"]: panel for panel in data["panels"]}
    assert by_name["length"]["columns"] == ["completion_length", "completion_length_max"]
    assert by_name["parts"]["columns"] == ["reward/correct"] and by_name["gap"]["log"]
    assert not by_name["novel-metric"]["main"] and by_name["reward"]["main"]


def test_seeds_and_differences(tmp_path):
    made = [
        write_run(tmp_path / f"lr{lr}-{seed}", seed=seed, lr=lr)
        for lr in (1e-3, 1e-4)
        for seed in (0, 1)
    ]
    data = collect.gather(made)
    assert [run["group"] for run in data["runs"]] == [0, 0, 1, 1]
    assert data["groups"] == ["learning_rate 0.001", "learning_rate 0.0001"]
    assert data["runs"][0]["name"] == "lr0.001-0"


def test_names_and_lineage_of_runs_with_a_parent(tmp_path):
    first = write_run(tmp_path / "run")
    (tmp_path / "later").mkdir()
    second = write_run(tmp_path / "later" / "run", seed=1)
    saved = json.loads((second / "config.json").read_text())
    saved["config"]["model"] = str(first)
    (second / "config.json").write_text(json.dumps(saved))
    one, two = collect.gather([first, second])["runs"]
    assert one["name"].endswith("/run") and two["name"] == "later/run"
    assert two["lineage"][: len(one["lineage"])] == one["lineage"]
    assert str(first) in two["lineage"][len(one["lineage"])]
    changes = {"fork": f"{first}@20", "domains": {"sums": {}, "mazes": {}}, "stages": {"9": {}}}
    saved["config"] |= {"model": "fresh"} | changes
    (second / "config.json").write_text(json.dumps(saved))
    path = collect.gather([second])["runs"][0]["lineage"]
    assert path[:-2] == one["lineage"] and path[-2] == f"forked from {first}@20"
    assert "RL on sums, mazes in 2 stages" in path[-1]


def test_the_lineage_of_a_run_on_a_model_directory_and_a_file(tmp_path):
    """The model's own config.json is none of a run."""
    run, model = write_run(tmp_path / "run"), tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    saved = json.loads((run / "config.json").read_text())
    saved["config"] |= {"model": str(model), "recipe": "sft", "task": "", "warm_start": {}}
    saved["config"] |= {"data": {"path": "rows.jsonl", "kinds": ["completion"]}}
    (run / "config.json").write_text(json.dumps(saved))
    (path,) = (run["lineage"] for run in collect.gather([run])["runs"])
    assert path == [str(model), "sft: 40 steps on rows.jsonl, seed 0"]


def test_long_runs_are_averaged(tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "POINTS", 10)
    (run,) = collect.gather([write_run(tmp_path / "run", steps=45)])["runs"]
    curve = run["series"]["reward/mean"]
    assert len(curve["step"]) == len(curve["value"]) == 10
    np.testing.assert_allclose(np.array(curve["step"]) / 45, curve["value"], rtol=1e-5)


def test_too_many_completions_are_left_out_by_groups(tmp_path, monkeypatch):
    rows = [rollout(s, f"p{s}", "1234", float(i)) for s in range(1, 21) for i in range(4)]
    path = write_run(tmp_path / "run", rollouts=rows)
    monkeypatch.setattr(collect, "ROLLOUT_BYTES", 10_000)
    data = collect.gather([path])
    kept = data["rollouts"]
    assert 0 < len(kept) < len(rows) and len(kept) + data["left_out"] == len(rows)
    steps = [row["step"] for row in kept]
    assert all(steps.count(step) == 4 for step in steps) and {1, 20} <= set(steps)


@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize("field", ["prompt", "completion", "answer", "error", "problem"])
def test_a_report_is_of_bounded_size_whatever_is_long(field, tmp_path, monkeypatch):
    """And so is the memory it takes: the files here are thirty times what is kept."""
    rows = [
        rollout(s, f"p{s}", "<é>", 1.0) | {field: f"p{s}" + "<é" * 15_000}
        for s in range(1, 51)
        for _ in range(4)
    ]
    path = write_run(tmp_path / "run", rollouts=rows)
    del rows
    monkeypatch.setattr(collect, "ROLLOUT_BYTES", 1_000_000)
    tracemalloc.start()
    (written,) = report.write([path], tmp_path / "report.html")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    base = report.write([write_run(tmp_path / "empty")], tmp_path / "empty.html")[0].stat().st_size
    assert base + 400_000 < written.stat().st_size < base + 1_010_000
    assert peak < 24_000_000


def test_no_secret_of_a_command_is_reported(tmp_path):
    path = write_run(tmp_path / "run")
    saved = json.loads((path / "config.json").read_text())
    saved["command"] = ["jaxrl", "train", "--task-args.api-key", "hunter2", "K_TOKEN=hunter2"]
    saved["config"]["model"] = "https://me:hunter2@host/m"
    saved["config"]["task_args"] = {"password": "hunter2"}
    (path / "config.json").write_text(json.dumps(saved))
    (written,) = report.write([path], tmp_path / "report.html")
    page = written.read_text()
    assert "hunter2" not in page and "--task-args.api-key" in page and "https://***@host/m" in page


def test_a_run_that_comes_from_itself(tmp_path):
    path = write_run(tmp_path / "run")
    saved = json.loads((path / "config.json").read_text())
    saved["config"]["model"] = str(path)
    (path / "config.json").write_text(json.dumps(saved))
    assert len(collect.gather([path])["runs"][0]["lineage"]) < 300


def test_what_cannot_be_reported_is_refused(tmp_path, capsys):
    with pytest.raises(ValueError, match="needs a run"):
        report.write([], tmp_path / "report.html")
    assert report.main([str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_run_that_has_just_started(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps({"config": {"steps": 3}}))
    assert report.main([str(tmp_path / "run")]) == 0
    assert "</html>" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_ends_the_element_that_holds_it(text):
    embedded = report.embed({"text": text, "number": float("nan")})
    assert "<" not in embedded
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    assert json.loads(embedded) == {"text": shown, "number": None}


@pytest.mark.broad
def test_pictures(tmp_path):
    runs = [write_run(tmp_path / f"seed{seed}", seed=seed, steps=3) for seed in (0, 1)]
    for path in runs:
        row = json.loads((path / "metrics.jsonl").read_text().splitlines()[1])
        kept = {name: row[name] for name in ("step", "reward/mean", "logp_gap")}
        (path / "metrics.jsonl").write_text(json.dumps(kept) + "\n")
    html, *pictures = report.write(runs, tmp_path / "out" / "r.html", png=True)
    assert html == tmp_path / "out" / "r.html"
    assert {path.name for path in pictures} == {"overview.png", "reward.png", "gap.png"}
    unfinished = write_run(tmp_path / "unfinished", evals=[rollout(0, "1+1", "2", 1.0)])
    # whose first evaluation has no interval
    pictures += report.write([unfinished], tmp_path / "u.html", png=True)[1:]
    for path in pictures:
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n" and min(struct.unpack(">II", head[16:])) > 400


# ---- the page in a browser


@pytest.fixture(scope="module")
def page():
    if browser.CHROMIUM is None:
        pytest.skip("no Chromium here; on Debian: apt-get install chromium")
    with browser.chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Two seeds and another learning rate; hostile and harmless completions."""
    folder = tmp_path_factory.mktemp("report")
    rows = [rollout(10, "3+4", text, reward) for text, reward in (("7", 1.0), ("8", 0.0))]
    rows += [rollout(20, "3+4", "7", 1.0), rollout(20, "1+1", "99999", 0.0)]
    rows += [rollout(30, f"evil{i}", text, 0.0, [text]) for i, text in enumerate(HOSTILE)]
    rows += [rollout(40, "5+5", "?", None, error="timeout: no score after 5 s")]
    evals = [{k: v for k, v in rows[0].items() if k not in _TRAINING} | {"step": 40}]
    ends = {"before": FIGURES, "after": FIGURES | {"pass@1": 0.75}}
    runs = [
        write_run(folder / "a", rollouts=rows, evals=evals, seconds=60.0, eval=ends),
        write_run(folder / "b", seed=1),
        write_run(folder / "c", lr=1e-4),
    ]
    return report.write(runs, folder / "report.html")[0]


_TRAINING = ("group", "version", "advantage", "log_ratio")


@pytest.mark.browser
def test_the_page_draws_and_its_controls_work(page, written, tmp_path):
    page.open(written)
    charts = page.js("document.querySelectorAll('#main-charts svg path.line').length")
    assert charts >= 8
    assert page.js("document.querySelectorAll('#main-charts path.band').length") > 3
    folded = page.js(
        "[...document.querySelectorAll('#constant-charts .card')].map((c) => c.dataset.panel)"
    )
    assert {"length", "gap", "throughput"} <= set(folded) and "reward" not in folded
    assert page.js("document.querySelectorAll('#constant-charts path').length") == 0
    page.js("document.querySelector('#constant > summary').click()")
    page.until("document.querySelectorAll('#constant-charts path.line').length > 0")
    label = page.js("document.querySelector('[data-panel=reward] svg').getAttribute('aria-label')")
    # Seeds 0 and 1 end at 1 and 2.
    assert "learning_rate 0.001 (2 seeds) from 0.525 to 1.5" in label
    page.select("#seeds", "")
    assert page.js("document.querySelectorAll('#legend button').length") == 3
    page.click("#legend button")
    assert page.js("document.querySelector('#legend button').ariaPressed") == "false"
    page.select("#axis", "tokens")
    assert "4000" in page.js("document.querySelector('[data-panel=reward] svg').textContent")
    page.js("document.querySelector('#smooth').value = 0.9")
    page.js("document.querySelector('#smooth').dispatchEvent(new Event('input'))")
    assert page.js("document.querySelectorAll('path.raw').length") > 0
    page.js("document.querySelector('#more > summary').click()")
    page.until("document.querySelectorAll('#more-charts path.line').length > 0")
    rows = "[...document.querySelectorAll('#settings tbody tr')].map((r) => r.cells[0].textContent)"
    assert page.js(rows) == ["seed", "optimizer.learning_rate"]
    page.select("#which", "all")
    assert "warm_start.steps" in page.js(rows)
    assert "first step" in page.js("document.querySelector('#phases').textContent")
    assert "abc" in page.js("document.querySelector('#origins').textContent")
    page.select("#theme", "dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.js(background) == "rgb(20, 23, 26)"
    assert page.screenshot(tmp_path / "dark.png")[:4] == b"\x89PNG"
    assert (page.errors, page.requests) == ([], [])


@pytest.mark.browser
@pytest.mark.parametrize("beside", [False, True])
def test_runs_on_a_file_are_summarised_by_their_loss(beside, page, tmp_path):
    """Also beside a run that samples; less is better."""
    ends = {"before": {"loss": 4.5, "rows": 9.0}, "after": {"loss": 0.5, "rows": 9.0}}
    made = [write_run(tmp_path / "sft", eval=ends)]
    saved = json.loads((made[0] / "config.json").read_text())
    saved["config"] |= {"data": {"path": "rows.jsonl", "kinds": ["completion"]}}
    (made[0] / "config.json").write_text(json.dumps(saved))
    if beside:
        made.append(write_run(tmp_path / "rl", eval={"before": FIGURES, "after": FIGURES}))
    page.open(report.write(made, tmp_path / "report.html")[0])
    text = page.js("document.querySelector('#summary').innerText")
    assert ("held-out loss before" in text) != beside and "−4.000" in text
    assert ("loss 4.500" in text) == beside and ("pass@1 0.250 [0.2" in text) == beside
    assert page.js("document.querySelector('#summary .good').innerText") == "−4.000"
    assert page.js("document.querySelectorAll('#main-charts svg').length") and not page.errors


@pytest.mark.browser
def test_filter_and_shading(page, written):
    page.open(written)
    count = "document.querySelector('#count').textContent"
    total = 5 + len(HOSTILE) + 1
    assert page.js(count) == f"{total} of {total}"
    shaded = "document.querySelector('.answer.chosen .token').style.backgroundColor"
    assert "--plus" in page.js(shaded)  # advantage 1.5
    page.click("#list .row:nth-of-type(3)")
    assert "--minus" in page.js(shaded)
    page.select("#shade", "source")
    assert "--amount" in page.js(shaded)
    page.select("#shade", "entropy")
    assert page.js(shaded) == ""
    page.type("#search", "1+1")
    page.until(f"{count} === '1 of {total}'")
    page.click("#clear")
    page.until(f"{count} === '{total} of {total}'")
    page.select("#verdict", "error")
    assert page.js(count) == f"1 of {total}"
    assert "timeout: no score" in page.js("document.querySelector('#detail').textContent")
    page.click("#clear")
    for field, text, left in (
        ("step-to", "10", 2),
        ("reward-from", "0.5", 1),
        ("length-from", "2", 0),
    ):
        page.type(f"#{field}", text)
        page.until(f"{count} === '{left} of {total}'")
    assert "No completion passes" in page.js("document.querySelector('#detail').textContent")
    page.click("#clear")
    page.select("#kind", "evals")
    assert page.js(count) == f"1 of {total}"
    for name, colour in (("logp", "--amount"), ("advantage", ""), ("version", "")):
        page.select("#shade", name)
        assert colour in page.js(shaded) and bool(colour) == bool(page.js(shaded))
    page.js("document.querySelector('.answer .block[tabindex]').focus()")
    page.press("ArrowRight")
    status = page.js("document.querySelector('.status').textContent")
    assert "log-prob -0.1" in status and "undefined" not in status and "version" not in status
    assert page.errors == []


@pytest.mark.broad
@pytest.mark.browser
def test_an_episode_is_shown_by_turns_with_calls_and_replies(page, tmp_path):
    """Of a run with tools some of whose calls are taken back, which begins another context."""
    changes = {
        "task": "ledger", "task_args": {"names": 2, "calls": 6, "again": 1}, "steps": 1,
        "warm_start.steps": 0, "rollout.max_prompt_tokens": 32, "rollout.max_new_tokens": 60,
        "rollout.turn_tokens": 4, "packing.row_length": 128, "eval.problems": 1, "eval.every": 0,
        "rollout_log.groups": 9,
    }  # fmt: skip
    loop.train(tiny.config(tmp_path / "run", **changes))
    page.open(report.write([tmp_path / "run"], tmp_path / "report.html")[0])
    page.select("#kind", "rollouts")
    rows = list(map(json.loads, (tmp_path / "run/rollouts/000001.jsonl").read_text().splitlines()))
    called = [n for n, row in enumerate(rows) if row["tool_calls"]]
    assert called and any("parent" in rows[n] for n in called) and len(rows) == 16
    assert any("parent" not in rows[n] for n in called)
    seen = {"environment"}
    for n in called:
        row = rows[n]
        page.js(f"document.querySelector('#list').scrollTop = {46 * n}")
        page.until(f"document.querySelector('#row-{n}') !== null")
        page.js(f"document.querySelector('#row-{n}').click()")
        shown = page.js(
            "[...document.querySelector('.answer.chosen .block').children]"
            ".reduce((found, {className, textContent}) => {"
            "if (className.startsWith('turn')) found.push([textContent, '']);"
            "else if (textContent[0] !== '⟨') "
            "found.at(-1)[1] += textContent.replace(/[⏎\\n]/g, ''); return found; }, [])"
        )
        wanted = told(row)
        assert [[head, text] for head, text in shown] == wanted
        seen |= {head for head, _ in wanted}
        badges = page.js("document.querySelector('.answer.chosen').textContent")
        calls = row["tool_calls"]
        assert f"{calls} tool call{'s' * (calls > 1)}" in badges
    assert any(head.startswith("turn 2") for head in seen)
    assert any("new context" in head for head in seen)
    assert page.errors == []


@pytest.mark.broad
@pytest.mark.browser
def test_a_match_against_oneself_says_whose_turn_it_is(page, tmp_path):
    changes = {
        "task": "board_game", "steps": 1, "warm_start.steps": 0, "rollout.turn_tokens": 2,
        "task_args": {"instructions": False, "symbols": True, "mistakes": 9, "opponent": "self"},
        "rollout.max_prompt_tokens": 32, "rollout.max_new_tokens": 160, "packing.row_length": 256,
        "packing.micro_batch_tokens": 1024, "eval.problems": 1, "eval.every": 0,
        "rollout_log.groups": 9, "objective.advantage": "agent_advantages",
    }  # fmt: skip
    loop.train(tiny.config(tmp_path / "run", **changes))
    rows = list(map(json.loads, (tmp_path / "run/rollouts/000001.jsonl").read_text().splitlines()))
    n = next(n for n, row in enumerate(rows) if row.get("turn_agents"))
    page.open(report.write([tmp_path / "run"], tmp_path / "report.html")[0])
    page.select("#kind", "rollouts")
    page.js(f"document.querySelector('#list').scrollTop = {46 * n}")
    page.until(f"document.querySelector('#row-{n}') !== null")
    page.js(f"document.querySelector('#row-{n}').click()")
    heads = page.js(
        "[...document.querySelectorAll('.answer.chosen .turn')].map(e => e.textContent)"
    )
    for turn, agent in enumerate(rows[n]["turn_agents"], 1):
        assert any(head.startswith(f"turn {turn} · agent {agent} ·") for head in heads)
    assert page.errors == []


def told(row):
    """Who says what in an episode, in order: turns with their rewards, and the environment."""
    found, said = [], None
    for i, (turn, source) in enumerate(zip(row["turn"], row["source"], strict=True)):
        branch = "parent" in row and row["parent"][i] != row["parent"][0] + i
        if source != "forced" and ((turn, source) != said or branch):
            reward = row["turn_rewards"][turn - 1]
            head = "environment" if source == "tool" else f"turn {turn} · reward {reward:g}"
            found.append([head + " · new context" * branch, ""])
            said = turn, source
        found[-1][1] += row["tokens"][i].strip()
    return found


@pytest.mark.browser
def test_from_a_curve_to_its_rollouts_and_two_runs_side_by_side(page, tmp_path):
    rows = [rollout(step, "3+4", str(step), 1.0) for step in (10, 20, 40)]
    other = [rollout(step, "3+4", f"{step}!", 0.0) for step in (12, 38)]
    runs = [
        write_run(tmp_path / "a", rollouts=rows),
        write_run(tmp_path / "b", lr=1e-4, rollouts=other),
    ]
    page.open(report.write(runs, tmp_path / "r.html")[0])
    page.js("document.querySelector('[data-panel=entropy] svg').focus()")
    page.press("Home")
    assert "step 1" in page.js("document.querySelector('[data-panel=entropy] .tip').textContent")
    page.click("[data-panel=entropy] svg")  # in the middle, near step 20
    assert page.js("document.querySelector('#step-from').value") == "20"
    assert page.js("document.querySelector('#count').textContent") == "1 of 5"
    page.until(
        "document.querySelector('#detail h3').textContent.includes('a · training · step 20')"
    )
    heads = "[...document.querySelectorAll('#detail h4')].map((h) => h.textContent)"
    assert page.js(heads) == []
    page.select("#beside", "1")
    assert page.js(heads) == ["a · step 20", "b · step 12"]
    answers = "[...document.querySelectorAll('#detail .answer .block')].map((b) => b.textContent)"
    assert [text.split("⟨")[0] for text in page.js(answers)] == ["20", "12!"]
    page.select("#beside", "step")
    assert page.js(heads) == ["a · step 20", "a · step 10"]
    page.click("#clear")
    assert page.js("document.querySelector('#count').textContent") == "5 of 5"
    assert (page.errors, page.requests) == ([], [])


@pytest.fixture
def served(tmp_path):
    """A run whose report is served, and its address."""
    run = write_run(tmp_path / "a", steps=10, rollouts=[rollout(10, "3+4", "7", 1.0)])
    make = lambda version: report.page(collect.gather([run]), version=version)  # noqa: E731
    server = live.server([run], make, "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield run, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def grow(run):
    """Another step of a run."""
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 11, "reward/mean": 5.0, "time/step": 1.0}) + "\n")


def test_a_report_is_served_as_the_run_is_now(served):
    run, address = served
    get = lambda path: urllib.request.urlopen(address + path, timeout=20).read().decode()  # noqa: E731
    before = get("/version")
    first = get("/")
    assert f'"version":"{before}"' in first and "connect-src 'self'" in first
    grow(run)
    after = get("/version")
    assert after != before and f'"version":"{after}"' in get("/") and ",11.0]" in get("/")
    for path, headers, status in (("/etc", {}, 404), ("/", {"Host": "evil.example:80"}, 403)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(address + path, headers=headers))
        assert refused.value.code == status


def test_serving_what_is_no_run_is_refused(tmp_path, capsys):
    assert report.main([str(tmp_path), "--serve", "--port", "0"]) == 2
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.broad
@pytest.mark.browser
def test_a_served_report_follows_its_run(page, served):
    run, address = served
    page.open(f"{address}/")
    page.select("#axis", "tokens")
    label = "document.querySelector('[data-panel=reward] svg').getAttribute('aria-label')"
    page.js("window.before = true")
    grow(run)
    page.until("window.before === undefined && document.readyState === 'complete'")
    page.until("document.querySelector('#axis')?.value === 'tokens'")
    assert "to 5" in page.js(label)
    assert page.errors == []


@pytest.mark.browser
def test_the_keyboard_is_enough(page, written):
    page.open(written)
    page.js("document.querySelector('[data-panel=reward] svg').focus()")
    page.press("ArrowRight")
    assert "step 1" in page.js("document.querySelector('[data-panel=reward] .tip').textContent")
    page.press("ArrowRight")
    assert "step 2" in page.js("document.querySelector('[data-panel=reward] .tip').textContent")
    page.js("document.querySelector('#list').focus()")
    page.press("ArrowDown")
    assert (
        page.js("document.querySelector('#list').getAttribute('aria-activedescendant')") == "row-1"
    )
    page.js("document.querySelector('.answer .block[tabindex]').focus()")
    page.press("ArrowRight")
    status = page.js("document.querySelector('.status').textContent")
    assert "token 1 of 1" in status and "log-prob -0.1 (90.48%)" in status
    page.js("document.activeElement.blur(); document.body.focus()")
    seen = set()
    for _ in range(60):
        page.press("Tab")
        seen.add(page.js("document.activeElement.id || document.activeElement.tagName"))
    assert {"axis", "smooth", "seeds", "kind", "search", "shade", "list", "detail", "svg"} <= seen


@pytest.mark.browser
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_completions_do_no_harm(page, written, number):
    if number == 0:
        page.open(written)
    page.type("#search", f"evil{number}=")
    detail = "document.querySelector('#detail')"
    page.until(f"{detail}.querySelector('h3').textContent.endsWith('evil{number}')")
    text = page.js(f"{detail}.querySelector('.answer .block').textContent")
    shown = HOSTILE[number].replace(ESC, "\\x1b").replace(chr(7), "\\x07").replace("\x00", "\\x00")
    assert text[:15] == shown[:15] or text.startswith("\\u202egnp.exe\\u2066\\u200f")
    assert not any(c in text for c in f"{ESC}\x00\x85‮⁦​\u2028")
    if len(shown) > 20_000:
        assert len(text) < 21_000 and "980,000 further characters" in text
    assert page.js("window.hit === undefined")
    allowed = "document.querySelectorAll('script').length"
    assert (
        page.js(allowed) == 2 and page.js(f"{detail}.querySelectorAll('img, script').length") == 0
    )
    # Nothing spills out of its box, nor reorders what stands around it.
    assert page.js("document.documentElement.scrollWidth <= innerWidth")
    assert (page.errors, page.requests) == ([], [])


@pytest.mark.broad
@pytest.mark.browser
def test_ten_thousand_rollouts_do_not_stall(page, tmp_path):
    rows = [
        rollout(1 + n // 50, f"{n // 5}+1", f"{n} is the sum", float(n % 2), [f"{n}", " is", " it"])
        for n in range(10_000)
    ]
    path = report.write([write_run(tmp_path / "run", rollouts=rows, steps=3)], tmp_path / "r.html")
    page.open(path[0])
    assert page.js("document.querySelector('#count').textContent") == "10,000 of 10,000"
    assert page.js("document.querySelectorAll('.row').length") < 60
    # A keystroke's work, and a jump to the end: each well under the second at which people wait.
    filtered = """(async () => {
      const start = performance.now();
      document.querySelector('#order').value = '-reward';
      document.querySelector('#order').dispatchEvent(new Event('change'));
      document.querySelector('#list').scrollTop = 1e9;
      await new Promise(requestAnimationFrame);
      await new Promise(requestAnimationFrame);
      return performance.now() - start;
    })()"""
    assert page.js(filtered) < 2000
    page.until("document.querySelector('.row:last-child').textContent.includes('9998 is the')")
    page.type("#search", "9998 is")
    page.until("document.querySelector('#count').textContent === '1 of 10,000'")
    assert page.errors == []


def test_pictures_and_numbers_of_the_page_on_reports():
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "report.md").read_text()
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) == 5 and all((docs / target).exists() for target in targets)
    assert f"{collect.ROLLOUT_BYTES // 1_000_000} MB" in text
