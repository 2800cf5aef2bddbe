"""Methods on the real model: which can be compared, what is planned, and what counts."""

import dataclasses
import json
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.launch import cli, effects, effects_claims, effects_page, effects_real, effects_table
from jaxrl.launch.lab import plans, scales
from jaxrl.losses import advantages, pass_rate

CHOSEN = effects_real.planned()["methods"]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A copy of the plan under Git, without results; rows of the lab are the recorded ones."""
    folder, arms = tmp_path / "effects", effects_table.RESULTS / "arms"
    real = folder / "real"
    real.mkdir(parents=True)
    (folder / "arms").symlink_to(arms)
    for name in CHOSEN:
        for kind in ("plan.json", "json"):
            (folder / f"{name}.{kind}").symlink_to(effects_table.RESULTS / f"{name}.{kind}")
    for command in (
        ["init", "-q"], ["config", "user.email", "a@b.c"], ["config", "user.name", "a"],
    ):  # fmt: skip
        subprocess.run(["git", *command], cwd=folder, check=True)
    plans.write(real / "plan.json", effects_real.planned())
    monkeypatch.setattr(effects_table, "RESULTS", folder)
    monkeypatch.setattr(effects_table, "TABLE", folder / "README.md")
    monkeypatch.setattr(effects_claims, "PAGE", folder / "none" / "effects.md")
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


def measure(fake, methods=(), said=None):
    lines = [] if said is None else said
    effects_real.measure(methods, lines.append, effects._write_pages, fake)


def committed(results):
    plans.commit([results / "plan.json"], "Plan of the real model")


def subjects(results):
    done = subprocess.run(
        ["git", "log", "--format=%s", "--reverse"], cwd=results, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_the_plan_is_of_eight_methods_and_29_runs():
    plan = effects_real.planned()
    assert plan == json.loads(json.dumps(effects_real.plan_of(CHOSEN)))
    assert len(CHOSEN) >= 8 and len(effects_real.wanted(plan)) == 5 + 3 * len(CHOSEN)


@pytest.mark.parametrize("name", CHOSEN)
def test_both_arms_have_the_same_regime(name):
    """They differ in what method and ablation differ in, and in nothing else."""
    mine, base = (effects_real.config_of(n, 4) for n in (name, effects_real.BASELINE))
    own = effects_table.module(name).config()
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
        ("dump", "no pass@1 of it on the neutral task"),
        ("rorecomp", "no pass@1 of it on the neutral task"),
        ("ghpo", "its ablation is not GRPO: guidance"),
        ("chord", "its ablation is not GRPO"),
        ("self_low_likelihood_rlvr", "an earlier run"),
        ("loop", "of the task"),
    ],
)
def test_what_cannot_be_compared_is_refused(name, reason):
    with pytest.raises(ValueError, match=f"{name} is not measured on the real model: .*{reason}"):
        effects_real.config_of(name, 0)


def test_mgpo_without_strength_is_grpo():
    rewards = jnp.array([1.0, 0, 0, 1, 1, 1, 0, 1])
    groups = jnp.array([0, 0, 0, 0, 1, 1, 1, 1])
    found = pass_rate.mgpo(rewards, groups, num_groups=2, strength=0.0)
    plain = advantages.group_advantages(rewards, groups, num_groups=2)
    np.testing.assert_allclose(found, plain, rtol=1e-6)


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
        plans.write(results / "plan.json", plan | changed)
        committed(results)
        with pytest.raises(ValueError, match=f"not what would be measured: {said} differ"):
            measure(fake)
    plans.write(results / "plan.json", plan | {"described": plan["described"] | {"grpo": "x"}})
    committed(results)
    with pytest.raises(ValueError, match="described differ"):
        measure(fake)
    (results / "plan.json").unlink()
    with pytest.raises(ValueError, match=r"plan\.json is missing"):
        measure(fake)
    assert fake.ran == [] and not list(results.glob("*.0.json"))


def test_runs_are_added_over_several_sessions(results):
    """Each is committed with the table as it comes; none is run twice."""
    committed(results)
    total = len(effects_real.wanted(effects_real.planned()))
    first = Fake(stop_at=7)
    with pytest.raises(KeyboardInterrupt):
        measure(first)
    assert first.ran == [("grpo", s) for s in range(5)] + [(CHOSEN[0], s) for s in range(2)]
    assert effects_real.headline().startswith(f"7 of {total} runs, correlation not yet computed")
    assert effects_table.TABLE.read_text() == effects_table.markdown(effects_real.markdown())
    assert subjects(results)[-1] == f"Real model: {CHOSEN[0]}, seed 1"
    status = subprocess.run(
        ["git", "status", "--porcelain", "real", "README.md"], cwd=results.parent,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert status.stdout == ""
    head = json.loads((results / f"{CHOSEN[0]}.1.json").read_text())
    assert head["plan"] == plans.committed(results / "plan.json")

    second, said = Fake(), []
    measure(second, said=said)
    assert len(second.ran) == total - 7 and second.ran[0] == (CHOSEN[0], 2)
    third = Fake()
    measure(third)
    assert third.ran == []
    assert said[-1].startswith(f"Rank correlation of the effects of {len(CHOSEN)} methods")
    assert f"({total} of {total} runs)" in said[-1]
    assert f"**{said[-1]}**" in effects_table.TABLE.read_text()
    page = effects_page.page(effects_table.rows(CHOSEN), effects_table.RESULTS, said[-1])
    assert page.index("Rank correlation") < page.index("<h2>")


def test_the_correlation_is_that_of_complete_methods(results):
    """The first three, then four; a method counts with all its seeds, and no other file does."""
    committed(results)
    measure(Fake(), CHOSEN[:3])
    assert "correlation not yet computed: 3 methods" in effects_real.headline()
    with pytest.raises(KeyboardInterrupt):
        measure(Fake(stop_at=2), CHOSEN[3:4])
    assert "correlation not yet computed: 3 methods" in effects_real.headline()
    measure(Fake(), CHOSEN[3:4])
    found = effects_real.headline()
    assert found.startswith("Rank correlation of the effects of 4 methods in the lab")
    lab = effects_real.in_the_lab(CHOSEN[:4])
    expected = scales.correlation(lab, {name: i for i, name in enumerate(CHOSEN[:4])})
    assert f"{expected.rho:.2f} [{expected.low:.2f}, {expected.high:.2f}]" in found

    before = effects_real.compared()
    old = json.loads((results / f"{CHOSEN[0]}.0.json").read_text())
    plans.write(results / "aepo.0.json", old | {"method": "aepo", "pass@1": 0.9})
    plans.write(results / f"{CHOSEN[0]}.7.json", old | {"seed": 7, "pass@1": 0.9})
    assert effects_real.compared() == before
    plans.write(results / f"{CHOSEN[0]}.0.json", old | {"described": "of another recipe"})
    assert "3 methods" in effects_real.headline()


def test_effects_in_the_lab_are_those_of_the_recorded_arms():
    lab = effects_real.in_the_lab(CHOSEN)
    assert sorted(lab) == sorted(CHOSEN)
    rows = {row["id"]: row for row in effects_table.rows(["prefixrl"]) if row["task"] == "neutral"
            and row["against"] == "ablation"}  # fmt: skip
    assert lab["prefixrl"] == pytest.approx(rows["prefixrl"]["effect"], abs=1e-4)  # over: final


def test_one_seed_has_no_interval(results):
    committed(results)
    assert scales.difference([0.5], [0.4, 0.3]) == (pytest.approx(0.15), None, None)
    with pytest.raises(KeyboardInterrupt):
        measure(Fake(stop_at=6))
    assert any("(no interval from one run)" in line for line in effects_real.markdown())
    assert "1.00 | 1 |" in "\n".join(effects_real.markdown())


def test_runs_have_low_priority(results, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(effects.os, "nice", lambda more: asked.append(more) or 0)
    committed(results)
    monkeypatch.setattr(
        effects_real.measure, "__defaults__", (Fake(),)
    )  # the run of the real model
    assert cli.main(["effects", "--real", CHOSEN[0]]) == 0
    assert asked == [0, 19]
    assert f"{CHOSEN[0]}, seed 2: 0.402" in capsys.readouterr().out
    assert cli.main(["effects", "--real", "aepo"]) == 2
    assert "aepo: its regime has updates_per_batch=4" in capsys.readouterr().err


def test_a_plan_is_written_from_the_methods_that_fit(results, capsys):
    (results / "plan.json").unlink()
    assert cli.main(["effects", "--real", "--plan"]) == 0
    assert "29 runs" in capsys.readouterr().out or len(CHOSEN) != 8
    assert effects_real.planned()["methods"] == effects_real.fitting()


def test_rank_correlation():
    names = "abcdefgh"
    lab_effects = dict(zip(names, range(8), strict=True))
    same = {n: v**3 for n, v in lab_effects.items()}
    found = scales.correlation(lab_effects, same)
    assert found.rho == pytest.approx(1) and found.low > 0.9 and found.high <= 1
    found = scales.correlation(lab_effects, {n: -v for n, v in same.items()})
    assert found.rho == pytest.approx(-1) and found.high < -0.9 and found.methods == 8
    assert scales.correlation(lab_effects, {n: same[n] for n in "abc"}) is None
    assert scales.correlation(lab_effects, dict.fromkeys(names, 0.0)) is None


def test_a_rank_correlation_of_noise_is_seldom_significant():
    keys = jax.random.split(jax.random.key(0), 400)
    drawn = np.array(jax.vmap(lambda k: jax.random.normal(k, (2, 8)))(keys))
    found = [scales.correlation(*(dict(enumerate(x)) for x in pair)) for pair in drawn]
    assert np.mean([not c.low < 0 < c.high for c in found]) < 0.1
