"""Every algorithm of control trains; runs resume exactly; seeds together equal seeds alone."""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments import __main__ as laboratory
from experiments import bench, control_claims
from jaxrl.control import algorithms, environments, rollout, train
from jaxrl.control.algorithms.offline import bc
from jaxrl.control.algorithms.representations import hilp, recoil
from jaxrl.control.environment import random_action
from jaxrl.control.environments import point_mass
from jaxrl.data.offline import readers, statistics, transitions
from jaxrl.launch import cli
from jaxrl.record import metrics

FOLDER = Path(algorithms.__file__).parent
TINY = {
    "steps": 8,
    "online_steps": 8,
    "model_steps": 8,
    "hidden": (8,),
    "batch_size": 16,
    "warmup": 16,
}


def slow_but(name, *quick):
    """A parameter that only runs with the slow tests, unless it is one of `quick`."""
    return name if name in quick else pytest.param(name, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def data():
    env = point_mass.make(horizon=10)
    act = lambda key, params, observation: random_action(key, env.space)  # noqa: E731
    return rollout.gather(env, act, None, jax.random.PRNGKey(0), steps=200)


def tiny(module):
    """The module's config with everything that takes time made small."""
    config = module.config()
    fields = {f.name for f in dataclasses.fields(config)}
    return dataclasses.replace(config, **{k: v for k, v in TINY.items() if k in fields})


def where(module):
    """A small environment that the algorithm can act in."""
    discrete = getattr(module, "DISCRETE", False)
    return environments.get("cartpole" if discrete else "point_mass", horizon=10)


@pytest.mark.sample(6, broad=5)
@pytest.mark.parametrize("name", algorithms.names())
def test_an_algorithm_says_what_it_is_and_keeps_its_shapes(name, data):
    module = algorithms.load(name)
    env = where(module)
    programs = module.programs(env, tiny(module))
    for count, program in enumerate(programs, 1):
        carry = train.shapes(programs[:count], seeds=[0, 1], data=data)
        prepared = program.algorithm.prepare(data)
        after, metrics = jax.eval_shape(jax.vmap(program.step, (0, None)), carry, prepared)
        for a, b in zip(*map(jax.tree.leaves, (carry, after)), strict=True):
            # a weak type would compile the loop a second time
            assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        assert all(m.shape == (2,) for m in metrics.values())
    for part in ("Paper:", "Idea:", "Formula:", "Claim:"):
        assert part in module.__doc__, part


@pytest.mark.parametrize("name", [slow_but(n, "sac") for n in algorithms.names()])
def test_an_algorithm_trains(name, data):
    module = algorithms.load(name)
    env = where(module)
    programs = module.programs(env, tiny(module))
    points = list(train.train(programs, env, seeds=[0, 1], data=data, points=2, episodes=2))
    phases = [p.phase for p in points]
    assert phases == sorted(phases) and set(phases) == set(range(len(programs)))
    for point in points:
        leaves = jax.tree.leaves((point.carry.learner, point.metrics))
        assert all(np.all(np.isfinite(x)) for x in leaves), (name, point.phase, point.step)
        assert point.returns.shape == (2,)
    first = points[phases.index(phases[-1])]
    pair = (jax.tree.leaves(p.carry.learner.params) for p in (first, points[-1]))
    moved = [np.any(a != b) for a, b in zip(*pair, strict=True)]
    assert any(moved)


@pytest.mark.parametrize("name", algorithms.names())
def test_an_algorithm_fits_on_three_screens(name):
    source = Path(algorithms.load(name).__file__).read_text()
    assert ast.get_docstring(ast.parse(source))
    assert len(source.splitlines()) <= 175, "one algorithm, one file of about 150 lines"


@pytest.mark.sample(0, broad=1)
@pytest.mark.exact(
    "seeds of a control run trained together begin as seeds alone do, to rounding, which training "
    "amplifies"
)
@pytest.mark.parametrize("networks", ["small", "default"])
def test_seeds_trained_together_begin_as_seeds_alone(networks, data):
    env = point_mass.make(horizon=10)
    module = algorithms.load("sac")
    small = {"steps": 8, "warmup": 16}
    config = tiny(module) if networks == "small" else module.config()

    def last(seeds):
        programs = module.programs(env, dataclasses.replace(config, **small))
        *_, point = train.train(programs, env, seeds=seeds, points=2, episodes=2)
        return point

    both, alone = last([3, 7]), last([7])
    for a, b in zip(*map(jax.tree.leaves, (both.carry, alone.carry)), strict=True):
        np.testing.assert_allclose(a[1], b[0], rtol=1e-4, atol=1e-5)


@pytest.mark.exact("seeds of a control run over devices equal those on one")
@pytest.mark.slow
def test_seeds_over_devices_equal_seeds_on_one(tmp_path):
    script = """
import sys, jax, numpy as np
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
from jaxrl.control import train
from jaxrl.control.environments import point_mass
from jaxrl.control.algorithms.online import sac
env = point_mass.make(horizon=10)
programs = sac.programs(env, sac.Config(steps=8, hidden=(8,), batch_size=16, warmup=16))
points = list(train.train(programs, env, seeds=[3, 7], points=2, episodes=2))
*_, again = train.train(programs, env, seeds=[3, 7], points=2, episodes=2, after=points[1])
for point, name in ((points[-1], "whole"), (again, "again")):
    leaves = jax.tree.leaves(point.carry.learner.params)
    assert len(leaves[0].sharding.device_set) == int(sys.argv[1])
    np.savez(f"{sys.argv[2]}/{name}{sys.argv[1]}", *leaves)
"""
    for count in ("1", "2"):
        subprocess.run([sys.executable, "-c", script, count, str(tmp_path)], check=True)
    saved = [np.load(tmp_path / f"{name}.npz") for name in ("whole1", "whole2", "again2")]
    for name in saved[0]:
        for other in saved[1:]:
            np.testing.assert_allclose(saved[0][name], other[name], rtol=1e-4, atol=1e-5)


def test_demonstrations_are_the_best_trajectories_and_half_of_a_batch(data):
    learner = recoil.make(point_mass.make().space, recoil.Config(demonstrations=3))
    parts = learner.prepare(data)
    shown, rest = parts["expert"], parts["offline"]
    assert len(transitions.episodes(shown)) == 3
    assert transitions.returns(shown).min() >= transitions.returns(rest).max()
    batch = learner.sample(jax.random.PRNGKey(0), parts, 12)
    np.testing.assert_array_equal(batch["expert"].extra["expert"], [1.0] * 6)
    np.testing.assert_array_equal(batch["offline"].extra["expert"], [0.0] * 6)


def test_hindsight_goals_lie_ahead_in_the_same_trajectory(data):
    learner = hilp.make(point_mass.make().space, hilp.Config(ahead=1.0))
    marked = data._replace(next_observations=np.arange(len(data.rewards))[:, None])
    numbered = marked._replace(observations=marked.next_observations)
    batch = learner.sample(jax.random.PRNGKey(0), learner.prepare(numbered), 64)["offline"]
    here, goal = np.array(batch.observations)[:, 0], np.array(batch.extra["goals"])[:, 0]
    episode = np.cumsum(data.ends) - data.ends
    assert np.all(goal >= here) and np.any(goal > here)
    np.testing.assert_array_equal(episode[here], episode[goal])


@pytest.mark.exact("a control run that is stopped continues exactly")
def test_a_run_leaves_what_reports_read_and_continues_exactly(tmp_path, capsys):
    def run(where, points):
        flags = ["--env", "point_mass", "--seeds", "2", "--points", "4", "--episodes", "2"]
        flags += ["--algorithm.steps", "8", "--algorithm.warmup", "16", "--algorithm.hidden", "8"]
        flags += ["--algorithm.batch-size", "16", "--run-dir", str(where)]
        return cli.main(["control", "sac", *flags, *points])

    assert run(tmp_path / "whole", []) == 0
    whole = metrics.read(tmp_path / "whole")
    assert [row["env_steps"] for row in whole] == [0, 2, 4, 6, 8]
    assert {"return", "return/seed0", "return/seed1", "critic_loss"} <= whole[-1].keys()
    # the same run, cut after its third point and continued
    assert run(tmp_path / "cut", []) == 0
    kept = sorted((tmp_path / "cut" / "checkpoints").iterdir())
    for late in kept[1:]:
        for file in sorted(late.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        late.rmdir()
    assert run(tmp_path / "cut", []) == 0
    assert "continuing" in capsys.readouterr().out
    assert metrics.read(tmp_path / "cut") == whole
    summaries = [json.loads((tmp_path / d / "summary.json").read_text()) for d in ("whole", "cut")]
    assert summaries[0]["return"] == summaries[1]["return"]


def test_a_misspelt_algorithm_or_environment_is_refused(capsys, tmp_path):
    assert cli.main(["control", "sacc"]) == 2
    assert "did you mean 'sac'" in capsys.readouterr().err
    given = ["--env", "pendulumm", "--run-dir", str(tmp_path / "run")]
    assert cli.main(["control", "sac", *given]) == 2
    assert "did you mean 'pendulum'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given,remedy",
    [
        (["iql", "--env", "point_mass"], "give --data"),
        (["dqn", "--env", "point_mass"], "such as cartpole"),
        (["sac", "--env", "cartpole"], "such as point_mass"),
        (["iql", "--env", "pendulum", "--data", "DATA"], "choose the environment"),
        (["sac", "--data", "DATA", "--algorithm.steps", "1"], "leave --data out"),
        (["expo", "--data", "DATA", "--algorithm.prior", "0"], "leave --data out"),
        (["sac", "--algorithm.recurrent", "gru"], "leave it out, or choose ppo"),
        (
            [
                "ppo",
                "--algorithm.recurrent",
                "gru",
                "--algorithm.worlds",
                "6",
                "--algorithm.minibatches",
                "4",
            ],
            "one of 1, 2, 3, 6 with --algorithm.minibatches",
        ),
        (["ppo", "--algorithm.recurrent=gru", "--algorithm.hidden"], "choose one or more with"),
    ],
)
def test_what_does_not_fit_together_is_refused(given, remedy, data, tmp_path, capsys):
    readers.write(tmp_path / "data.npz", data)
    given = [str(tmp_path / "data.npz") if word == "DATA" else word for word in given]
    assert cli.main(["control", *given, "--run-dir", str(tmp_path / "run")]) == 2
    assert remedy in " ".join(capsys.readouterr().err.split())


@pytest.mark.broad
def test_the_remedy_of_a_refused_request_goes_into_the_same_directory(data, tmp_path, capsys):
    readers.write(tmp_path / "data.npz", data)
    run = tmp_path / "run"
    flags = ["--seeds", "1", "--points", "1", "--episodes", "1", "--run-dir", str(run)]
    flags += ["--algorithm.steps", "1", "--algorithm.hidden", "4", "--algorithm.batch-size", "4"]
    given = ["--data", str(tmp_path / "data.npz"), *flags]
    assert cli.main(["control", "iql", *flags]) == 2
    assert not run.exists()
    assert cli.main(["control", "iql", "--env", "pendulum", *given]) == 2
    assert cli.main(["control", "iql", *given]) == 0
    assert json.loads((run / "config.json").read_text())["config"]["env"] == "point_mass"
    assert cli.main(["control", "iql", *given, "--algorithm.expectile", "0.6"]) == 2
    assert "differs in algorithm" in capsys.readouterr().err


def test_best_trajectories_are_the_ones_prepared(data):
    best = bc.make(point_mass.make().space, bc.Config(share=0.2))
    kept = best.prepare(data)
    assert 40 <= len(kept.rewards) <= 60
    assert transitions.returns(kept).min() >= np.quantile(transitions.returns(data), 0.7)


def test_a_claim_is_shown_only_where_the_interval_supports_it():
    rng = np.random.default_rng(0)
    scores = {"a": 80 + rng.normal(size=5), "b": 60 + rng.normal(size=5)}
    scores |= {"c": 79 + rng.normal(size=5), "wide": 85 + 40 * rng.normal(size=5)}

    def verdict(first, second, kind="above"):
        return bench.verdict_of(control_claims.Claim("", first, second, kind), scores)["verdict"]

    assert verdict("a", "b") == "shown" and verdict("b", "a") == "reversed"
    assert verdict("wide", "a") == "not shown"
    assert verdict("c", "a", "matches") == "shown"
    assert verdict("b", "a", "matches") == "reversed"
    assert verdict("wide", "a", "matches") == "not shown"


@pytest.mark.parametrize("name", control_claims.names())
def test_an_experiment_names_what_exists(name):
    experiment = control_claims.load(name)
    labels = [arm.label for arm in experiment.arms]
    assert len(set(labels)) == len(labels)
    for arm in experiment.arms:
        dataclasses.replace(algorithms.load(arm.algorithm).config(), **arm.config)
    for claim in experiment.claims:
        assert {claim.first, claim.second} <= set(labels)


@pytest.mark.broad
def test_a_bench_leaves_a_record_a_figure_and_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "OUT", tmp_path)
    env = point_mass.make(horizon=5)
    small = {"steps": 2, "hidden": (4,), "warmup": 4, "batch_size": 4}
    arms = (control_claims.Arm("one", "sac", small), control_claims.Arm("two", "sac", small))
    made = control_claims.Experiment(
        "A question",
        lambda: control_claims.Setting(env, statistics.Bounds(0.0, 10.0)),
        arms,
        (control_claims.Claim("one equals two", "one", "two", "matches"),),
        points=1,
    )
    monkeypatch.setattr(control_claims, "load", lambda name: made)
    assert laboratory.main(["control", "any"]) == 0
    assert (tmp_path / "any.png").stat().st_size > 1000
    record = json.loads((tmp_path / "any.json").read_text())
    assert np.shape(record["arms"][0]["scores"]) == (5, 2)
    page = (tmp_path / "results.md").read_text()
    assert "| one |" in page and "one equals two" in page


def test_an_interrupted_benchmark_continues_with_the_next_arm(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "OUT", tmp_path)
    arms = tuple(control_claims.Arm(label, "sac", {"hidden": (4,)}) for label in "abc")
    made = control_claims.Experiment("A question", lambda: None, arms)
    monkeypatch.setattr(control_claims, "load", lambda name: made)
    trained = []

    def curve(arm, setting, experiment):
        trained.append(arm.label)
        if trained == ["a", "b"]:
            raise KeyboardInterrupt
        scores = [[0.0, float(len(trained))]] * 5
        config = dict(arm.config)
        return {
            "label": arm.label,
            "algorithm": arm.algorithm,
            "code": "",
            "config": config,
            "steps": [0, 9],
            "scores": scores,
            "seconds": 0.0,
        }

    monkeypatch.setattr(bench, "curve", curve)
    with pytest.raises(KeyboardInterrupt):
        laboratory.main(["control", "any"])
    other = made._replace(arms=(arms[0]._replace(config={"hidden": (5,)}), *arms[1:]))
    monkeypatch.setattr(control_claims, "load", lambda name: other)
    assert laboratory.main(["control", "any"]) == 2
    assert "remove the file" in capsys.readouterr().err
    monkeypatch.setattr(control_claims, "load", lambda name: made)
    assert laboratory.main(["control", "any"]) == 0
    assert trained == ["a", "b", "b", "c"]
    record = json.loads((tmp_path / "any.json").read_text())
    assert [arm["label"] for arm in record["arms"]] == ["a", "b", "c"]
    assert [arm["scores"][0][-1] for arm in record["arms"]] == [1.0, 3.0, 4.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["any.json", "any.png", "results.md"]
