"""Bad settings and divergence stop a control run, reports show it, and records know their code."""

from __future__ import annotations

import ast
import dataclasses
import json
import re

import numpy as np
import pytest
from PIL import Image

from experiments import bench, control_code
from jaxrl.control import algorithms, settings
from jaxrl.launch import cli
from jaxrl.launch.report import collect

RECORDS = sorted(bench.OUT.glob("*.json"))
SMALL = ["--seeds", "2", "--points", "2", "--episodes", "1", "--algorithm.hidden", "4"]


@pytest.mark.parametrize(
    "given,field,value",
    [
        (["sac", "--points", "0"], "points", "0"),
        (["sac", "--seeds", "0"], "seeds", "0"),
        (["sac", "--episodes", "0"], "episodes", "0"),
        (["sac", "--algorithm.batch-size", "0"], "batch_size", "0"),
        (["ppo", "--algorithm.minibatches", "7"], "minibatches", "7"),
        (["sac", "--env", "brax/nope"], "brax", "nope"),
        (["sac", "--env", "pendulum", "--algorithm.shift", "4"], "shift", "numbers"),
        (["sac", "--algorithm.learning-rate", "-1"], "learning_rate", "-1"),
        (["sac", "--algorithm.discount", "1.5"], "discount", "1.5"),
        (["sac", "--algorithm.polyak", "nan"], "polyak", "nan"),
        (["redq", "--algorithm.subset", "9"], "subset", "9"),
        (["ppo", "--preset", "cleanrll"], "preset", "cleanrll"),
    ],
)
def test_a_bad_setting_is_refused_by_field_value_and_remedy(given, field, value, tmp_path, capsys):
    run = tmp_path / "run"
    assert cli.main(["control", *given, "--run-dir", str(run)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert field in said and value in said and re.search("choose|known|did you|leave", said), said
    assert not run.exists()


@pytest.mark.parametrize("name", algorithms.names())
def test_every_number_of_every_algorithm_is_checked(name):
    config = algorithms.load(name).config()
    settings.check(config)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            wrong = [float("nan")] if isinstance(value, float) else []
            wrong += [-1] if field.name not in settings.UNBOUNDED else []
            for bad in wrong:
                with pytest.raises(ValueError, match=field.name):
                    settings.check(dataclasses.replace(config, **{field.name: bad}))


@pytest.mark.broad
def test_a_run_that_diverges_stops_and_names_seed_and_step(tmp_path, capsys):
    flags = [*SMALL, "--algorithm.steps", "40", "--algorithm.warmup", "16"]
    flags += ["--algorithm.learning-rate", "1e30", "--algorithm.batch-size", "16"]
    assert cli.main(["control", "sac", *flags, "--run-dir", str(tmp_path / "run")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "seed 0" in said and "after step" in said and "learning rate" in said, said
    assert (tmp_path / "run" / "checkpoints").exists()


def test_a_report_shows_a_control_run(tmp_path, capsys):
    run = tmp_path / "run"
    flags = [*SMALL, "--algorithm.steps", "8", "--algorithm.warmup", "16"]
    flags += ["--algorithm.batch-size", "16", "--run-dir", str(run)]
    assert cli.main(["control", "sac", *flags]) == 0
    assert cli.main(["report", str(run), "--png"]) == 0
    shown = collect.gather([run])
    series = shown["runs"][0]["series"]
    assert {"return/iqm", "return/seed0", "return/seed1"} <= series.keys()
    assert len(series["return/iqm"]["low"]) == len(series["return/iqm"]["value"]) == 3
    assert shown["runs"][0]["lineage"] == ["control/sac in point_mass, 2 seeds"]
    assert json.dumps(shown)


def record_of(*codes):
    """A record of one arm for each code, and a claim about the first two."""
    arms = [
        {"label": f"arm {i}", "algorithm": "sac", "code": code, "steps": [0, 9], "seconds": 1.0,
         "scores": [[0.0, 1.0], [0.0, 2.0]]}
        for i, code in enumerate(codes)
    ]  # fmt: skip
    claim = {
        "text": "one is above",
        "arms": ["arm 0", "arm 1"],
        "gap": 1.0,
        "low": 0.5,
        "high": 2.0,
    }
    claims = [claim | {"verdict": "shown"}]
    return {"title": "T", "note": "", "episodes": 1, "arms": arms, "claims": claims}


@pytest.mark.broad
def test_the_page_of_results_is_that_of_its_records():
    """The rows in italics are those whose algorithm has changed since; `python -m experiments
    control NAME` measures them again."""
    assert (bench.OUT / "results.md").read_text() == bench.table(bench.OUT)


@pytest.mark.sample(2, broad=2)
@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.stem)
def test_a_row_knows_the_code_it_was_measured_with(path):
    record = json.loads(path.read_text())
    old = {arm["label"] for arm in bench.stale(record)}
    for arm in record["arms"]:
        current = arm["code"] == control_code.code_of(arm["algorithm"])
        assert current is (arm["label"] not in old)
        assert not (current and "measured_before" in arm)
    for claim in record["claims"]:
        assert set(claim["arms"]) <= {arm["label"] for arm in record["arms"]}


def test_a_claim_about_a_stale_row_has_no_verdict(tmp_path):
    now = control_code.code_of("sac")
    for codes, verdict in (((now, now), "shown"), ((now, "other"), "to be measured again")):
        (tmp_path / "x.json").write_text(json.dumps(record_of(*codes)))
        page = bench.table(tmp_path)
        assert f"| {verdict} |" in page
        assert ("| *arm 1* |" in page) is (verdict != "shown")


STALE = 80
"""Rows that are to be measured again. The number may fall, and never rise."""


def test_the_rows_to_measure_again_are_listed():
    rows = [
        f"{path.stem}: {arm['label']}"
        for path in RECORDS
        for arm in bench.stale(json.loads(path.read_text()))
    ]
    assert len(rows) <= STALE, rows
    assert f"These are {len(rows)} of" in (bench.OUT / "results.md").read_text()


def test_figures_and_table_are_drawn_from_the_records_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "OUT", tmp_path)
    now = control_code.code_of("sac")
    colors = []
    for codes in ((now, now), (now, "other")):
        (tmp_path / "x.json").write_text(json.dumps(record_of(*codes)))
        assert bench.main(["--draw"]) == 0
        assert "IQM" in (tmp_path / "results.md").read_text()
        with Image.open(tmp_path / "x.png") as picture:
            pixels = np.asarray(picture.convert("RGB")).astype(int)
        colors.append(np.sum(np.ptp(pixels, axis=-1) > 40))
    assert 0 < colors[1] < 0.7 * colors[0]  # of two arms one is grey


BEFORE = """
import jax.numpy as jnp
from jaxrl.losses import control, value
def mean_of(values, weights):
    "One."
    total = jnp.sum(values * weights)
    return total / jnp.sum(weights)  # a comment
def loss(config, x):
    return config.rate * mean_of(values=x, weights=value.shape(x))
"""


@pytest.mark.parametrize(
    "change,same",
    [
        ((), True),
        (("One.", "Two."), True),
        (("a comment", "another"), True),
        (("mean_of", "average"), True),
        (("total", "summed"), True),
        (("weights", "parts"), True),
        (("control, value", "value"), False),
        (("jnp.sum(weights)", "jnp.max(weights)"), False),
        (("values * weights", "values * values"), False),
        (("values * weights", "weights * values"), False),
        (("total / jnp", "values / jnp"), False),
        (("values=x", "weights=x"), False),
        (("value.shape", "value.size"), False),
        (("config.rate", "config.step"), False),
        (("config.rate *", "2 * config.rate *"), False),
    ],
)
def test_the_code_of_an_algorithm_is_what_it_computes_whatever_its_names(change, same):
    codes = []
    for text in (BEFORE, BEFORE.replace(*change) if change else BEFORE):
        if change == ("values=x", "weights=x"):
            text = text.replace("weights=value", "values=value") if codes else text
        codes.append(control_code.hash_of([control_code._without_texts(ast.parse(text))]))
    assert (codes[0] == codes[1]) is same


@pytest.mark.broad
def test_an_algorithm_that_builds_on_another_has_a_code_of_its_own():
    codes = {name: control_code.code_of(name) for name in algorithms.names()}
    assert len(set(codes.values())) == len(codes)
