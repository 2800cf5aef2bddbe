"""Bad settings of a control run are refused before it trains, and one that diverges stops."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from jaxrl.control import algorithms, settings
from jaxrl.launch import cli
from jaxrl.launch.report import collect

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
