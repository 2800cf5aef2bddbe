"""Bad settings and divergence stop a control run, reports show it, and records know their code."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import os
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from experiments import bench, control_code
from jaxrl import control
from jaxrl.control import algorithms, settings
from jaxrl.launch import cli
from jaxrl.launch.control import run as command
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
        (["serl", "--env", "pendulum", "--algorithm.shift", "0"], "process", "pendulum"),
        (["serl", "--algorithm.labels", "x.npz"], "labels='x.npz'", "classifier_steps=0"),
        (["serl", "--algorithm.classifier-batch", "1"], "classifier_batch", "even"),
        (["serl", "--algorithm.classifier-batch", "7"], "classifier_batch", "even"),
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


FLAGS = [
    "sac", "--seeds", "1", "--points", "2", "--episodes", "1", "--algorithm.hidden", "4",
    "--algorithm.steps", "8", "--algorithm.warmup", "16", "--algorithm.batch-size", "16",
]  # fmt: skip
ODD = (None, "x", -1, 10**30, 1.5, float("nan"), [], {}, [[]], {"x": 1}, True, "a\x1b[2J")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two points."""
    run = tmp_path_factory.mktemp("control") / "run"
    assert cli.main(["control", *FLAGS, "--run-dir", str(run)]) == 0
    return run


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy that this account has not started, in a place of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return shutil.copytree(trained, tmp_path / "copy")


def describe(run, place, value):
    """Change one value of `policy.json`."""
    description = json.loads((run / "policy.json").read_text())
    *around, last = place
    inner = description
    for name in around:
        inner = inner[name]
    inner[last] = value
    (run / "policy.json").write_text(json.dumps(description))


def places(value, place=()):
    """The fields of a description at any depth, one entry of each list among them."""
    if place:
        yield place
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*place, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*place, 0))


def said(argv, capsys):
    status = cli.main(["control", *map(str, argv)])
    return status, capsys.readouterr().err


def cases(run, share):
    description = json.loads((run / "policy.json").read_text())
    return itertools.islice(itertools.product(places(description), ODD), 0, None, share)


@pytest.mark.parametrize("share", [23, pytest.param(3, marks=pytest.mark.broad)])
def test_a_description_of_other_values_is_damaged_or_as_good(share, run):
    """Every field with values of every type: a policy that acts, or one error that names a file."""
    good, seen = (run / "policy.json").read_text(), np.zeros(4, np.float32)
    for place, value in cases(run, share):
        describe(run, place, value)
        try:
            control.load(run)(seen)
        except ValueError as error:
            assert "policy" in str(error) or "history" in str(error), (place, value)
            assert str(error).isprintable()
        (run / "policy.json").write_text(good)


@pytest.mark.parametrize("command", ["play", "export"])
@pytest.mark.parametrize("name", ["policy.json", "policy.npz"])
def test_files_of_a_policy_that_are_none_are_refused(name, command, run, tmp_path, capsys):
    rest = ["--episodes", "1"] if command == "play" else [tmp_path / "out"]
    for content in (b"", b"[" * 10**5, b"\x00" * 100, b"PK\x03\x04" + b"x" * 100, b"{}", None):
        (run / name).unlink()
        if content is None:
            os.mkfifo(run / name)
        else:
            (run / name).write_bytes(content)
        status, error = said([command, run, *rest], capsys)
        assert status == 2 and error.count("\n") == 1 and name in error, content


def test_arrays_of_other_shapes_are_refused(run, capsys):
    with np.load(run / "policy.npz") as file:
        leaves = {name: file[name] for name in file.files}
    for change in (
        {"leaf0": np.zeros((1, 7), np.float32)}, {"leaf0": np.zeros(0, np.float32)},
        {"leaf0": np.array([["x"]])}, {"leaf0": np.array([{}], object)}, {"other": np.zeros(3)},
    ):  # fmt: skip
        np.savez(run / "policy.npz", **{**leaves, **change})
        status, error = said(["play", run, "--episodes", "1"], capsys)
        assert status == 2 and error.count("\n") == 1 and "policy.npz" in error, change


def test_an_exported_policy_runs_nothing_of_the_run(run, tmp_path, capsys):
    """The name of the environment is any text, also one that ends a string of Python."""
    stolen = tmp_path / "stolen"
    for quotes in ('"""', "'", '"', "\\"):
        describe(run, ("env",), f"{quotes}+str(open({str(stolen)!r}, 'w'))+{quotes}")
        status, _ = said(["export", run, tmp_path / "out"], capsys)
        source = (tmp_path / "out" / "policy.py").read_text()
        scope = {"__file__": str(tmp_path / "out" / "policy.py"), "__name__": "policy"}
        exec(compile(source, "policy.py", "exec"), scope)
        assert status == 0 and not stolen.exists()
        assert scope["policy"](np.zeros(4)).shape == (2,)


@pytest.mark.parametrize(
    ("env", "args"),
    [
        ("stolen_module:make", {}), ("gym/stolen_module:X-v0", {}), ("brax/stolen_module:x", {}),
        ("gym/CartPole-v1", {"render_mode": "human"}),
    ],
)  # fmt: skip
def test_no_module_of_the_run_is_imported_without_trust(
    env, args, run, tmp_path, capsys, monkeypatch
):
    (tmp_path / "stolen_module.py").write_text("open('stolen', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    describe(run, ("env",), env)
    describe(run, ("env_args",), args)
    status, error = said(["play", run, "--episodes", "1"], capsys)
    assert status == 2 and "accept it with --trust" in error and not (tmp_path / "stolen").exists()


def test_a_run_of_a_damaged_config_is_not_continued(run, capsys):
    for content in ("", "[]", "[" * 10**5, '{"config": []}', "{}\x00"):
        (run / "config.json").write_text(content)
        status, error = said([*FLAGS, "--run-dir", run], capsys)
        assert status == 2 and error.count("\n") == 1 and "config.json" in error, content


def test_links_of_the_users_own_are_followed_with_trust(run, tmp_path, capsys, monkeypatch):
    followed = []
    monkeypatch.setattr(command, "follow", lambda *arguments: followed.append(arguments))
    os.replace(run / "checkpoints", tmp_path / "disk")
    os.symlink(tmp_path / "disk", run / "checkpoints")
    status, error = said([*FLAGS, "--run-dir", run], capsys)
    assert status == 2 and "--trust" in error and not followed
    status, error = said([*FLAGS, "--run-dir", run, "--trust"], capsys)
    assert status == 0 and followed, error


def test_brackets_in_a_directory_are_text(trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / "[b]run[/i]")
    assert cli.main(["control", *FLAGS, "--run-dir", str(run)]) == 0
    assert "[b]run[/i]" in "".join(capsys.readouterr().out.split())
