"""Methods on the real model: which can be compared, what is planned, and what counts."""

import dataclasses
import functools
import json
import math
import subprocess
import time

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from experiments import __main__ as laboratory
from experiments.effects import claims_page as effects_claims
from experiments.effects import command as effects
from experiments.effects import markdown as effects_markdown
from experiments.effects import page as effects_page
from experiments.effects import real as effects_real
from experiments.effects import scales as effects_scales
from experiments.effects import table as effects_table
from experiments.lab import archive, files, scales
from jaxrl.losses.advantages import groups as advantages
from jaxrl.losses.advantages import pass_rate

CHOSEN = effects_real.planned()["methods"]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A copy of the plan under Git, without results; rows of the lab are the recorded ones."""
    folder, arms = tmp_path / "effects", effects_table.RESULTS / archive.NAME
    real = folder / "real"
    real.mkdir(parents=True)
    (folder / archive.NAME).symlink_to(arms)
    for name in CHOSEN:
        plan = f"{name}.plan.json"
        (folder / plan).symlink_to(effects_table.RESULTS / plan)
    (folder / effects_table.MEASURED).symlink_to(effects_table.RESULTS / effects_table.MEASURED)
    for command in (
        ["init", "-q"], ["config", "user.email", "a@b.c"], ["config", "user.name", "a"],
    ):  # fmt: skip
        subprocess.run(["git", *command], cwd=folder, check=True)
    files.write(real / "plan.json", effects_real.planned())
    monkeypatch.setattr(effects_table, "RESULTS", folder)
    monkeypatch.setattr(effects_table, "TABLE", folder / "README.md")
    monkeypatch.setattr(effects_claims, "PAGE", folder / "none" / "effects.md")
    monkeypatch.setattr(effects_claims, "PICTURE", folder / "none" / "effects.svg")
    monkeypatch.setattr(effects_claims, "SHORT", folder / "none" / "short.json")
    return real


class Fake:
    """Runs whose accuracy rises with the place of the method in the plan."""

    def __init__(self, stop_at: int = 1000):
        self.ran, self.stop_at = [], stop_at

    def __call__(self, config):
        if len(self.ran) == self.stop_at:
            raise KeyboardInterrupt
        self.ran.append((config.recipe, config.seed))
        gain = 0.02 * CHOSEN.index(config.recipe) if config.recipe in CHOSEN else 0.0
        value = 0.4 + gain + 0.001 * config.seed
        return {"pass@1": value, "before": 0.2, "tokens": 1000}


def quick():
    """In place of the pages, which take a second."""
    effects_table.TABLE.write_text(str(time.time_ns()))


def measure(fake, methods=(), pages=quick):
    effects_real.measure(methods, lambda line: None, pages, fake)


def committed(results):
    files.commit([results / "plan.json"], "Plan of the real model")


def subjects(results):
    done = subprocess.run(
        ["git", "log", "--format=%s", "--reverse"], cwd=results, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_the_plan_is_of_all_methods_that_fit():
    plan = effects_real.planned()
    again = effects_real.plan_of(CHOSEN, plan["defaults"])
    assert plan | {"defaults": again["defaults"]} == json.loads(json.dumps(again))
    assert all(again["defaults"][path] == value for path, value in plan["defaults"].items())
    assert effects_real.fitting() == CHOSEN
    assert len(effects_real.wanted(plan)) == 5 + 3 * len(CHOSEN)


@pytest.mark.parametrize("name", CHOSEN)
def test_both_arms_have_the_same_regime(name):
    """They differ in what method and ablation differ in, and in nothing else."""
    mine, base = (effects_real.config_of(n, 4) for n in (name, effects_real.BASELINE))
    own = effects_real.configured(name)
    assert mine.objective.aggregation == base.objective.aggregation == "seq-mean-token-mean"
    for field in ("policy", "policy_args", "shaping", "advantage", "advantage_args", "kl_coef"):
        assert getattr(mine.objective, field) == getattr(own.objective, field)
    assert (mine.curriculum, mine.extensions) == (own.curriculum, own.extensions)
    kept = ("objective", "curriculum", "extensions", "recipe")
    shared = {name: getattr(base, name) for name in kept}
    assert dataclasses.replace(mine, **shared) == base
    assert mine != dataclasses.replace(base, recipe=name)
    assert (mine.updates_per_batch, mine.rollout.oversampling, mine.asynchronous) == (
        1, 1.0, base.asynchronous,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("aepo", "updates_per_batch=4"),
        ("areal", "delay=16"),
        ("prorl", "oversampling=2.0"),
        ("prorl", "temperature=1.2"),
        ("campo", "no pass@1 of it on the neutral task"),
        ("rorecomp", "no pass@1 of it on the neutral task"),
        ("ghpo", "its ablation is not GRPO: guidance"),
        ("chord", "its ablation is not GRPO"),
        ("one_shot_rlvr", "an earlier run"),
        ("loop", "of the task"),
    ],
)
def test_what_cannot_be_compared_is_refused(name, reason):
    with pytest.raises(ValueError, match=f"{name} is not measured on the real model: .*{reason}"):
        effects_real.config_of(name, 0)


@pytest.mark.broad
def test_mgpo_without_strength_is_grpo():
    rewards = jnp.array([1.0, 0, 0, 1, 1, 1, 0, 1])
    groups = jnp.array([0, 0, 0, 0, 1, 1, 1, 1])
    found = pass_rate.mgpo(rewards, groups, num_groups=2, strength=0.0)
    plain = advantages.group_advantages(rewards, groups, num_groups=2)
    np.testing.assert_allclose(found, plain, rtol=1e-6)


def test_a_changed_default_makes_another_run():
    """Of any field that the run does not set. A field added later has its present default."""
    name, held = effects_real.BASELINE, effects_real.planned()
    planned, defaults = held["described"][name], held["defaults"]
    own = effects_real.arms.flat(effects_real.arms.describe(effects_real.config_of(name, 0)))
    unset = [
        path for path in own.keys() & defaults.keys() - {"seed"} if own[path] == defaults[path]
    ]
    assert effects_real.described(name, defaults) == planned and len(unset) > 100
    for path in unset:
        without = {k: v for k, v in defaults.items() if k != path}
        assert effects_real.described(name, without) == planned
        assert effects_real.described(name, defaults | {path: "another"}) != planned
    assert effects_real.plan_of([], {"steps": 99})["defaults"]["steps"] == 99


def test_nothing_is_run_without_a_committed_plan(results):
    fake = Fake()
    with pytest.raises(ValueError, match="not committed"):
        measure(fake)
    committed(results)
    plan = effects_real.planned()
    for changed, said in (
        ({"task": "x"}, "task"),
        ({"seeds": {"baseline": 1, "method": 1}}, "seeds"),
    ):
        files.write(results / "plan.json", plan | changed)
        committed(results)
        with pytest.raises(ValueError, match=f"not what would be measured: {said} differ"):
            measure(fake)
    files.write(results / "plan.json", plan | {"described": plan["described"] | {"grpo": "x"}})
    committed(results)
    with pytest.raises(ValueError, match="described differ"):
        measure(fake)
    (results / "plan.json").unlink()
    with pytest.raises(ValueError, match=r"plan\.json is missing"):
        measure(fake)
    assert fake.ran == [] and not effects_real.read_runs()


@pytest.mark.broad
def test_runs_are_added_over_several_sessions(results):
    """Each is committed with the table as it comes; none is run twice."""
    committed(results)
    total = len(effects_real.wanted(effects_real.planned()))
    first = Fake(stop_at=7)
    with pytest.raises(KeyboardInterrupt):
        measure(first, pages=lambda: (effects._write_pages if len(first.ran) == 7 else quick)())
    assert first.ran == [("grpo", s) for s in range(5)] + [(CHOSEN[0], s) for s in range(2)]
    assert effects_scales.headline().startswith(
        f"7 of {total} runs, interim: 0 of {len(CHOSEN)} methods; the correlation"
    )
    assert effects_table.TABLE.read_text() == effects_markdown.markdown(effects_scales.markdown())
    assert subjects(results)[-1] == f"Real model: {CHOSEN[0]}, seed 1"
    status = subprocess.run(
        ["git", "status", "--porcelain", "real", "README.md"], cwd=results.parent,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert status.stdout == ""
    kept = effects_real.read_runs()[CHOSEN[0], 1]
    plan = files.committed(results / "plan.json")
    assert kept["plan"] == kept["code"] == plan  # the commit that the first call began at

    second = Fake(stop_at=total - 8)
    with pytest.raises(KeyboardInterrupt):
        measure(second)
    assert second.ran[0] == (CHOSEN[0], 2)
    third = Fake()
    measure(third, pages=effects._write_pages)
    assert third.ran == [(CHOSEN[-1], 2)]
    fourth = Fake()
    measure(fourth)
    assert fourth.ran == []
    said = effects_scales.headline()
    assert said.startswith(f"Rank correlation of the effects of {len(CHOSEN)} methods")
    assert f"({total} of {total} runs)" in said
    assert f"\n{said}\n" in effects_table.TABLE.read_text()
    assert effects_real.read_runs()[CHOSEN[0], 2]["code"] != plan
    shown = effects_scales.table()
    page = effects_page.page(effects_table.rows(CHOSEN), effects_table.RESULTS, said, shown)
    assert page.index("Rank correlation") < page.index("<th>on SmolLM2-135M") < page.index("<h2>")
    assert f"<td>{CHOSEN[0]}<td>" in page and len(shown) == len(CHOSEN) + 1


@pytest.mark.broad
def test_the_command_ends_with_the_headline(monkeypatch, capsys):
    monkeypatch.setattr(effects_real, "measure", lambda *_: None)
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    assert laboratory.main(["effects", "--real"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said == effects_scales.headline()


@pytest.mark.broad
def test_the_correlation_is_that_of_complete_methods(results):
    """Of all methods of the plan; one counts with all its seeds, and no other line does."""
    committed(results)
    some, last = CHOSEN[:-1], CHOSEN[-1:]
    interim = f"interim: {len(some)} of {len(CHOSEN)} methods"
    measure(Fake(), some)
    assert interim in effects_scales.headline()
    with pytest.raises(KeyboardInterrupt):
        measure(Fake(stop_at=2), last)
    assert interim in effects_scales.headline() and "Rank" not in effects_scales.headline()
    measure(Fake(), last)
    found = effects_scales.headline()
    assert found.startswith(f"Rank correlation of the effects of {len(CHOSEN)} methods in the lab")
    lab = effects_scales.in_the_lab(CHOSEN)
    known = scales.correlation(lab, {name: i for i, name in enumerate(CHOSEN)})
    assert f"{known.rho:.2f} [{known.low:.2f}, {known.high:.2f}], p {known.p:.3f}" in found
    ceiling = scales.expected([*lab.values()], scales.pooled([[0, 0.001, 0.002]]), 3)
    said = f"{ceiling.mean:.2f} on average, and {ceiling.low:.2f} to {ceiling.high:.2f} in 90%"
    assert said in found

    before = effects_scales.compared()
    old = effects_real.read_runs()[CHOSEN[0], 0]
    effects_real.write_run(old | {"method": "aepo", "pass@1": 0.9})
    effects_real.write_run(old | {"seed": 7, "pass@1": 0.9})
    assert effects_scales.compared() == before
    effects_real.write_run(old | {"described": "of another recipe"})
    assert interim in effects_scales.headline()


@pytest.mark.broad
def test_effects_in_the_lab_are_those_of_the_recorded_arms():
    lab = effects_scales.in_the_lab(CHOSEN)
    assert sorted(lab) == sorted(CHOSEN)
    rows = {row["id"]: row for row in effects_table.rows(["prefixrl"]) if row["task"] == "neutral"
            and row["against"] == "ablation"}  # fmt: skip
    assert lab["prefixrl"] == pytest.approx(rows["prefixrl"]["effect"], abs=1e-4)  # over: final


@pytest.mark.broad
def test_one_seed_has_no_interval(results):
    committed(results)
    assert scales.difference([0.5], [0.4, 0.3]) == (pytest.approx(0.15), None, None)
    with pytest.raises(KeyboardInterrupt):
        measure(Fake(stop_at=6))
    assert any("(no interval from one run)" in line for line in effects_scales.markdown())
    assert "1.00 | 1 |" in "\n".join(effects_scales.markdown())


def test_a_run_is_done_again_and_compared(results, monkeypatch, capsys):
    committed(results)
    measure(Fake(), CHOSEN[:1])
    kept = effects_real.read_runs()[CHOSEN[0], 1]
    assert kept["digest"] == effects_real.digest(kept)
    monkeypatch.setattr(effects_real.rerun, "__defaults__", (Fake(),))
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    run = f"{effects_table.identity(CHOSEN[0])}.1"
    assert laboratory.main(["effects", "--real", "--rerun", run]) == 0
    assert f"{run}: equal; pass@1 0.4010 recorded, 0.4010 now" in capsys.readouterr().out
    effects_real.write_run({k: v for k, v in kept.items() if k not in ("code", "digest")})
    assert laboratory.main(["effects", "--real", "--rerun", run]) == 0  # a line of earlier code
    effects_real.write_run(kept | {"tokens": 7})
    assert laboratory.main(["effects", "--real", "--rerun", run]) == 1
    assert f"{run}: differs" in capsys.readouterr().out
    effects_real.write_run(kept | {"tokens": 7, "machine": "another"})
    assert laboratory.main(["effects", "--real", "--rerun", run]) == 0
    assert f"{run}: within noise" in capsys.readouterr().out
    effects_real.write_run(kept | {"pass@1": kept["pass@1"] + 0.5, "machine": "another"})
    assert laboratory.main(["effects", "--real", "--rerun", "grpo.0"]) == 0
    assert laboratory.main(["effects", "--real", "--rerun", run]) == 1
    assert f"{run}: beyond noise" in capsys.readouterr().out
    assert laboratory.main(["effects", "--real", "--rerun"]) == 2
    assert "name runs, such as `grpo.0`" in capsys.readouterr().err
    for unknown in (f"{CHOSEN[0]}.9", "aepo.0", "aepo"):
        assert laboratory.main(["effects", "--real", "--rerun", unknown]) == 2
        assert f"there is no run {unknown!r} of the plan" in capsys.readouterr().err


@pytest.mark.broad
def test_runs_have_low_priority(results, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(effects.os, "nice", lambda more: asked.append(more) or 0)
    monkeypatch.setattr(effects, "_write_pages", quick)
    committed(results)
    monkeypatch.setattr(
        effects_real.measure, "__defaults__", (Fake(),)
    )  # the run of the real model
    assert laboratory.main(["effects", "--real", CHOSEN[0]]) == 0
    assert asked == [0, 19]
    assert f"{CHOSEN[0]}, seed 2: 0.402" in capsys.readouterr().out
    assert laboratory.main(["effects", "--real", "aepo"]) == 2
    assert "aepo: its regime has updates_per_batch=4" in capsys.readouterr().err


def test_a_plan_is_written_from_the_methods_that_fit(results, capsys):
    (results / "plan.json").unlink()
    assert laboratory.main(["effects", "--real", "--plan"]) == 0
    assert f"{5 + 3 * len(CHOSEN)} runs" in capsys.readouterr().out
    assert effects_real.planned()["methods"] == effects_real.fitting()


def test_rank_correlation():
    names = "abcdefgh"
    lab_effects = dict(zip(names, range(8), strict=True))
    same = {n: v**3 for n, v in lab_effects.items()}
    found = scales.correlation(lab_effects, same)
    assert (found.rho, found.high, found.methods) == (pytest.approx(1), 1, 8)
    assert found.p == pytest.approx(2 / math.factorial(8))
    found = scales.correlation(lab_effects, {n: -v for n, v in same.items()})
    assert (found.rho, found.low) == (pytest.approx(-1), -1)
    assert scales.correlation(lab_effects, {n: same[n] for n in "abc"}) is None
    assert scales.correlation(lab_effects, dict.fromkeys(names, 0.0)) is None


def test_a_perfect_order_of_four_methods_is_no_evidence():
    four = dict(zip("abcd", range(4), strict=True))
    found = scales.correlation(four, four)
    assert found.rho == pytest.approx(1) and found.p == pytest.approx(1 / 12) and found.low < 0


@pytest.mark.broad
def test_the_permutation_test_is_that_of_scipy():
    """Ties have average ranks; of more methods than 8, random orders are drawn."""
    rng = np.random.default_rng(0)
    for size in (6, 12):
        a, b = rng.integers(0, 5, size).astype(float), rng.normal(size=size)
        found = scales.correlation(dict(enumerate(a)), dict(enumerate(b)))
        known = stats.permutation_test(
            (a,), lambda x, b=b: stats.spearmanr(x, b).statistic, permutation_type="pairings",
            n_resamples=4000 if size > 8 else np.inf, rng=np.random.default_rng(1),
        )  # fmt: skip
        assert found.rho == pytest.approx(stats.spearmanr(a, b).statistic)
        assert found.p == pytest.approx(known.pvalue, abs=0.05 if size > 8 else 1e-9)


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("methods", [4, 8])
def test_the_interval_of_a_rank_correlation_holds_the_true_one(rho, methods):
    """In 95% of cases or more, as few ranks have few values."""
    rng, times, pearson = np.random.default_rng(5), 1000, 2 * np.sin(np.pi / 6 * rho)
    interval = functools.cache(lambda sampled: scales.interval(sampled, methods))
    first, second = rng.normal(size=(2, times, methods))
    second = pearson * first + np.sqrt(1 - pearson**2) * second
    held = 0
    for a, b in zip(first, second, strict=True):
        low, high = interval(round(float(stats.spearmanr(a, b).statistic), 12))
        held += low - 1e-9 <= rho <= high + 1e-9
    assert held / times > 0.95 - 3 * np.sqrt(0.95 * 0.05 / times)


def test_the_interval_of_a_rank_correlation_is_no_wider_than_few_methods_make_it():
    low, high = scales.interval(1.0, 8)
    assert low > 0.85 and high == 1.0
    low, high = scales.interval(0.0, 8)
    assert -0.75 < low < -0.6 and 0.6 < high < 0.75  # by Fisher's transformation: -0.70, 0.70
    assert scales.interval(-1.0, 8)[1] < -0.85


def test_what_equal_effects_at_both_scales_would_give():
    lab_effects = np.linspace(-0.03, 0.04, 8)
    exact, noisy, many = (
        scales.expected(lab_effects, deviation, runs)
        for deviation, runs in ((0.0, 3), (0.05, 3), (0.05, 60))
    )
    assert exact == (pytest.approx(1), pytest.approx(1), pytest.approx(1))
    assert noisy.low < 0.3 < noisy.mean < many.low < many.mean < 1
    rng = np.random.default_rng(3)
    drawn = lab_effects + rng.normal(0, 0.05, (2000, 3, 8)).mean(axis=1)
    known = np.mean([stats.spearmanr(lab_effects, each).statistic for each in drawn])
    assert noisy.mean == pytest.approx(known, abs=0.03)


def test_the_spread_of_runs_is_pooled_over_arms():
    assert scales.pooled([[0.1, 0.3], [0.5, 0.5, 0.8], [0.9]]) == pytest.approx(
        np.sqrt((0.02 + 0.06) / 3)
    )
    assert scales.pooled([[0.1], []]) is None
