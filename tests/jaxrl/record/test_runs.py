"""Run directories as tables."""

import json
import subprocess
import sys

import numpy as np
import pytest

import jaxrl
from jaxrl.record import rundir


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"config": {"seed": 3}, "git": "abc"}))
    return tmp_path


def write(path, *rows, torn=""):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)


def test_tables(directory):
    metrics = [{"step": 1, "loss": None}, {"step": 2, "loss": 0.5, "eval/pass@1": 1}]
    write(directory / "metrics.jsonl", *metrics, torn='{"step": 3, "lo')
    ends = [{"completion": "a", "reward": 1, "parts": {"format": 0.5}, "error": None}]
    write(directory / "evals" / "000000.jsonl", *ends)
    write(directory / "evals" / "000020.jsonl", ends[0] | {"reward": None, "error": "crash: x"})
    write(directory / "rollouts" / "000020.jsonl", *[{"step": 20, "tokens": ["a", "b"]}] * 2)
    run = jaxrl.load_run(str(directory))
    assert (run.config, run.environment, run.summary) == ({"seed": 3}, {"git": "abc"}, {})
    assert run.metrics["step"].tolist() == [1, 2] and run.metrics["step"].dtype.kind == "i"
    np.testing.assert_array_equal(run.metrics["loss"], [np.nan, 0.5])
    np.testing.assert_array_equal(run.metrics["eval/pass@1"], [np.nan, 1])
    assert run.evals["step"].tolist() == [0, 20]
    assert run.evals["error"].tolist() == [None, "crash: x"]
    np.testing.assert_array_equal(run.evals["parts/format"], [0.5, 0.5])
    assert run.rollouts["tokens"].tolist() == [["a", "b"], ["a", "b"]]


@pytest.mark.extra
def test_pandas_takes_them(directory):
    pandas = pytest.importorskip("pandas")
    write(directory / "metrics.jsonl", {"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25})
    frame = pandas.DataFrame(jaxrl.load_run(directory).metrics).set_index("step")
    assert frame["loss"][2] == 0.25


def test_a_run_that_has_just_started(directory):
    run = jaxrl.load_run(directory)
    assert run.metrics == run.evals == run.rollouts == {}


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        jaxrl.load_run(tmp_path)


def test_importing_the_package_imports_nothing_else():
    code = "import sys, jaxrl; assert not {'numpy', 'jax'} & set(sys.modules); jaxrl.load_run"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not hasattr(jaxrl, "load_runs")


def test_a_slow_git_ends_no_run(monkeypatch):
    def slow(*args, **given):
        raise subprocess.TimeoutExpired("git", 10)

    monkeypatch.setattr(subprocess, "run", slow)
    assert rundir.revision() is None
