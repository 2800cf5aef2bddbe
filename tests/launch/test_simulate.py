"""Runs in simulated time: by hand, and from the log of a synchronous run."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from jaxrl import config as configs
from jaxrl.launch import plan_asynchronous, simulate
from jaxrl.launch.simulate import Costs, Workload
from jaxrl.rollout.schedule import Limits
from tests.jaxrl import tiny

COSTS = Costs(decode_step=1.0, decode_token=0.0, update=5.0, update_token=0.0)


def ten(number):
    return np.array([10])


@pytest.mark.parametrize(
    ("staleness", "slots", "overlap", "seconds", "decoding"),
    [
        (0, 1, False, 30, 20),  # sample 10, train 5, twice
        (0, 1, True, 30, 20),  # nothing may begin before the weights have come
        (1, 1, False, 30, 20),
        (1, 1, True, 25, 20),  # the second is sampled from 10 to 20, while the first is trained on
        (1, 2, True, 20, 10),  # both are sampled from 0 to 10
    ],
)
def test_two_steps_by_hand(staleness, slots, overlap, seconds, decoding):
    out = simulate.simulate(
        Limits(1, staleness, steps=2), COSTS, Workload(ten, slots, 10), overlap=overlap
    )
    assert out.seconds == seconds and out.tokens == 20
    assert out.idle_sample == pytest.approx(1 - decoding / seconds)
    assert out.idle_train == pytest.approx(1 - 10 / seconds)
    assert out.lag == (0.5 if staleness else 0.0)


def test_costs_of_scores_weights_and_reading_by_hand():
    costs = Costs(1.0, 0.5, 5.0, 0.1, push=2.0, score=3.0, read_token=0.0)
    out = simulate.simulate(Limits(1, 0, steps=1), costs, Workload(ten, 1, 4), overlap=True)
    assert out.seconds == pytest.approx(10 + 5 + 3 + 5 + 1)
    again = simulate.simulate(Limits(1, 0, steps=2), costs, Workload(ten, 1, 4), overlap=True)
    assert again.seconds == pytest.approx(2 * 24 + 2)


def test_a_share_of_the_devices_takes_longer_but_for_latency():
    costs = Costs(1.0, 2.0, 3.0, 4.0, read_token=1.0).on(0.25)
    assert costs == Costs(1.0, 8.0, 4.0, 16.0 / 3, read_token=4.0)


def test_the_timeline_shows_who_worked_on_which_step():
    out = simulate.simulate(Limits(1, 1, steps=2), COSTS, Workload(ten, 1, 10), overlap=True)
    assert simulate.timeline(out, 25).splitlines() == [
        " sample |00000000000000000000     |",
        "  train |          00000     11111|",
    ]


@pytest.fixture
def logged(tmp_path):
    """A synchronous run whose seconds follow from its lengths exactly."""
    run = tmp_path / "run"
    (run / "rollouts").mkdir(parents=True)
    config = tiny.config(run)
    (run / "config.json").write_text(json.dumps({"config": configs.to_dict(config)}))
    rng, rows = np.random.default_rng(0), []
    for step in range(1, 8):
        lengths = rng.integers(50, 500, 16)
        rows.append(
            {
                "step": step,
                "tokens": int(lengths.sum()),
                "completion_length_max": int(lengths.max()),
                "time/sample": 0.02 * lengths.max() + 1e-4 * lengths.sum(),
                "time/train": 1.0 + 5e-4 * lengths.sum() + (100.0 if step == 1 else 0.0),
                "time/sync": 0.25,
                "time/score": 0.5,
            }
        )
        texts = [json.dumps({"source": ["policy"] * int(n) + ["tool"]}) + "\n" for n in lengths]
        (run / f"rollouts/{step:06d}.jsonl").write_text("".join(texts))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_costs_are_those_of_the_log(logged):
    found = dataclasses.astuple(simulate.costs_of(logged))
    assert found == pytest.approx((0.02, 1e-4, 1.0, 5e-4, 0.25, 0.5, 0.0))
    lengths = simulate.lengths_of(logged)
    assert len(lengths) == 7 * 16 and lengths.min() >= 50 and lengths.max() < 500


def test_a_plan_recommends_what_it_predicts_to_be_fastest(logged, capsys):
    assert plan_asynchronous.main([str(logged), "--asynchronous", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["settings"]) == 1 + len(plan_asynchronous.STALENESS) * 3
    fastest = max(row["tokens_per_second"] for row in plan["settings"])
    assert plan["recommended"]["tokens_per_second"] == fastest
    assert plan["settings"][0]["staleness"] is None and plan["settings"][0]["lag"] == 0
    assert all(row["lag"] <= row["staleness"] for row in plan["settings"][1:])
    assert plan_asynchronous.main([str(logged), "--asynchronous"]) == 0
    assert "synchronous" in capsys.readouterr().out


def test_a_run_without_a_log_is_refused(tmp_path, capsys, monkeypatch):
    assert plan_asynchronous.main([str(tmp_path), "--asynchronous"]) == 2
    assert "no config.json" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert plan_asynchronous.main(["--asynchronous"]) == 2
    assert "holds no run to plan by" in capsys.readouterr().err


def test_the_picture_of_the_page_is_simulated():
    page = (Path(__file__).parents[2] / "docs/asynchronous.md").read_text()
    assert simulate.example() in page
