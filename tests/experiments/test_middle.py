"""The middle scale: twenty arms that the library can run, and a command that goes on."""

import importlib.util
import json

import pytest

from experiments.lab import arms
from experiments.numbers import ROOT
from jaxrl import config as configs

SPEC = importlib.util.spec_from_file_location(
    "middle", ROOT / "experiments/runs/middle/experiment.py"
)
middle = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(middle)


def test_the_arms_are_twenty_and_spread():
    effects = {name: middle.lab_effect(name) for name in middle.ARMS}
    known = [value for value in effects.values() if value is not None]
    assert len(effects) == 20 and len(known) == 18
    assert min(known) < -0.03 and max(known) > 0.1
    assert all(source.against in {"", *middle.ARMS} for source in middle.ARMS.values())


@pytest.mark.parametrize("name", middle.ARMS)
def test_an_arm_trains_what_the_labs_arm_trains(name):
    config, arm = middle.config_of(name, 4e-4, 0), middle.lab_arm(name)
    configs.check(config)
    assert arms.describe(config.objective) == arms.describe(arm.objective)
    assert config.rollout.oversampling == arm.oversampling
    assert not arm.stages and arm.replay is None and arm.nucleus is None
    assert (config.asynchronous.staleness is not None) == bool(arm.delay or arm.sync_every > 1)
    other = middle.ARMS[name].against
    if other:  # both are as stale
        reference = middle.config_of(other, 4e-4, 0)
        assert reference.asynchronous == config.asynchronous
        assert reference.updates_per_batch == config.updates_per_batch


def test_a_stopped_measurement_goes_on(tmp_path, monkeypatch):
    """Rates are chosen on the development seeds, and nothing that is done is done again."""
    monkeypatch.setattr(middle, "RESULTS", tmp_path / "results.jsonl")
    monkeypatch.setattr(middle, "ARMS", {"GRPO": middle.ARMS["GRPO"]})
    ran = []
    count = len(middle.RATES) * len(middle.DEVELOPMENT) + len(middle.SEEDS)

    def fake(work, name, rate, seed):
        if len(ran) == 2 and not work.exists():
            work.mkdir()
            raise KeyboardInterrupt
        ran.append((name, rate, seed))
        row = {"arm": name, "rate": rate, "seed": seed, "before": 0.5}
        return row | {"after": 0.9 if rate == middle.RATES[2] else 0.8}

    monkeypatch.setattr(middle, "measure", fake)
    monkeypatch.setattr(middle.os, "nice", lambda more: 0)
    monkeypatch.setattr("sys.argv", ["experiment.py", str(tmp_path / "work")])
    with pytest.raises(KeyboardInterrupt):
        middle.main()
    middle.main()
    assert len(ran) == len(set(ran)) == count
    assert {rate for _, rate, seed in ran if seed in middle.SEEDS} == {middle.RATES[2]}
    rows = [json.loads(line) for line in middle.RESULTS.read_text().splitlines()]
    assert len(rows) == count
    middle.main()
    assert len(ran) == count
