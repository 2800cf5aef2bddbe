"""Runs in simulated time: by hand, and from the log of a synchronous run."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from jaxrl import config as configs
from jaxrl.launch.planning import asynchronous, costs, simulate
from jaxrl.launch.planning.costs import Costs
from jaxrl.launch.planning.simulate import Workload
from jaxrl.rollout.schedule import Limits
from jaxrl.sampling.work import SamplerConfig
from tests.jaxrl import tiny

COSTS = Costs(decode_step=1.0, decode_slot=0.0, update=5.0, update_token=0.0)


def ten(number):
    return np.array([10])


def work(lengths, slots, chunk, prompt=0):
    return Workload(lengths, SamplerConfig(slots, prefill_rows=2, chunk=chunk), prompt)


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
        Limits(1, staleness, steps=2), COSTS, work(ten, slots, 10), overlap=overlap
    )
    assert out.seconds == seconds and out.tokens == 20
    assert out.idle_sample == pytest.approx(1 - decoding / seconds)
    assert out.idle_train == pytest.approx(1 - 10 / seconds)
    assert out.lag == (0.5 if staleness else 0.0)


def test_costs_of_scores_weights_chunks_and_slots_by_hand():
    """One of two slots is empty and is computed too."""
    own = Costs(1.0, 0.5, 5.0, 0.1, push=2.0, score=3.0, chunk=0.25, chunk_slot=0.125)
    out = simulate.simulate(Limits(1, 0, steps=1), own, work(ten, 2, 4), overlap=True)
    once = 10 + 0.5 * 2 * 10 + 3 * (0.25 + 2 * 0.125) + 3 + 5 + 1
    assert out.seconds == pytest.approx(once)
    again = simulate.simulate(Limits(1, 0, steps=2), own, work(ten, 2, 4), overlap=True)
    assert again.seconds == pytest.approx(2 * once + 2)


def test_new_weights_have_what_is_in_progress_read_again_and_nothing_else():
    """Two prompts of 10 tokens are read in a pass of 32 positions and 4 tokens decoded, an update,
    then 14 read again in one of 16, and 6 decoded in two chunks."""
    own, lengths = Costs(1.0, 0.0, 5.0, 0.0, read_pass=0.5, read_position=0.1), [[4], [10]]
    given = work(lambda number: np.array(lengths[number]), 2, 4, prompt=10)
    out = simulate.simulate(Limits(1, 1, steps=2), own, given, overlap=False)
    assert out.seconds == pytest.approx((0.5 + 3.2 + 4) + 5 + (0.5 + 1.6 + 4 + 2) + 5)
    assert out.older == pytest.approx(4 / 14)


@pytest.mark.parametrize(("drain", "seconds"), [(False, 17), (True, 21)])
def test_a_sampler_that_ends_what_it_has_begun_takes_new_weights_later(drain, seconds):
    """Groups of 4, 16, 4 and 4 tokens, two at a time. The weights of the first step arrive at 5.
    The fourth is sampled from 8 on beside the second, or from 16 on, when the second has ended."""
    lengths = [[4], [16], [4], [4]]
    given = work(lambda number: np.array(lengths[number]), 2, 4)
    limits = Limits(1, None, in_flight=2, order="finished", steps=4)
    own = Costs(decode_step=1.0, decode_slot=0.0, update=1.0, update_token=0.0)
    out = simulate.simulate(limits, own, given, overlap=True, drain=drain)
    assert out.seconds == seconds and out.older == pytest.approx(24 / 28)


@pytest.mark.parametrize("chunks", [1, 2])
def test_in_lockstep_so_many_chunks_are_decoded_before_an_update(chunks):
    """A score takes effect a chunk later, and then so many are decoded; the first update begins
    after 1 + 1 + `chunks` chunks of 4."""
    lengths = [[4], [18]]
    given = work(lambda number: np.array(lengths[number]), 2, 4)
    out = simulate.simulate(Limits(1, 1, steps=2), COSTS, given, overlap=False, lockstep=chunks)
    first = 4 * (2 + chunks)
    assert out.seconds == pytest.approx(first + 5 + (18 - first) + 5)


def test_in_lockstep_a_batch_that_is_whole_already_waits_for_what_may_begin():
    """The second is whole when the first has been trained on. Its update begins after two chunks of
    the third, which begins with the new weights."""
    lengths = [[4], [4], [16], [16]]
    given = work(lambda number: np.array(lengths[number]), 2, 4)
    out = simulate.simulate(Limits(1, 1, steps=3), COSTS, given, overlap=False, lockstep=2)
    spans = [(s.who, round(s.start, 6), round(s.end, 6), s.step) for s in out.spans]
    assert spans[:5] == [
        ("sample", 0, 4, 0),
        ("train", 4, 9, 0),
        ("sample", 9, 13, 1),
        ("sample", 13, 17, 1),
        ("train", 17, 22, 1),
    ]


def test_a_share_of_the_devices_takes_longer_but_for_latency():
    given = {"read_pass": 2.0, "chunk": 0.5}
    shared = Costs(1.0, 2.0, 3.0, 4.0, read_position=1.0, chunk_slot=0.5, **given).on(0.25)
    wanted = Costs(1.0, 8.0, 4.0, 16.0 / 3, read_position=4.0, chunk_slot=2.0, **given)
    assert shared == wanted


def test_the_timeline_shows_who_worked_on_which_step():
    out = simulate.simulate(Limits(1, 1, steps=2), COSTS, work(ten, 1, 10), overlap=True)
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
    rng, rows, chunks = np.random.default_rng(0), [], []
    for step in range(7):
        lengths = rng.integers(50, 500, 16)
        sample = 0.0
        for chunk in range(5):
            live = int(rng.integers(1, 40))
            did = {"sequences": live, "steps": int(rng.integers(1, 64))}
            first = chunk == 0
            did |= {"read": 40 * first, "passes": 1 * first, "positions": 64 * first}
            slots = 16 if live > 8 else 8 if live > 4 else 4
            took = (0.02 + 1e-3 * slots) * did["steps"] + 0.04 * first + 0.005 + 2e-3 * slots
            chunks.append({"step": step, "chunk": chunk, **did, "seconds": took})
            sample += took
        train = 1.0 + 6e-4 * lengths.sum() + (100.0 if step == 0 else 0.0)
        begins = 0.5  # of sampling, beside its chunks
        rows.append(
            {
                "step": step + 1,
                "tokens": int(lengths.sum()),
                "time/sample": sample + begins,
                "time/train": train,
                "time/sync": 0.25,
                "time/score": 0.5,
                "time/save": 3.0,
                "time/step": sample + begins + train + 0.25 + 0.5 + 3.0,
            }
        )
        texts = [
            {"step": step + 1, "group": i // 4, "source": ["policy"] * int(n) + ["tool"]}
            for i, n in enumerate(lengths)
        ]
        said = "".join(json.dumps(row) + "\n" for row in texts)
        (run / f"rollouts/{step + 1:06d}.jsonl").write_text(said)
    for name, those in {"metrics": rows, "chunks": chunks}.items():
        (run / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in those))
    return run


def test_costs_are_those_of_the_log(logged):
    """A position of a pass costs a third of a trained token, and the rest of a pass is its own."""
    found = dataclasses.astuple(costs.costs_of(logged))
    read = (0.04 - 64 * 2e-4, 2e-4)
    assert found == pytest.approx((0.02, 1e-3, 1.5, 6e-4, 0.25, 0.5, *read, 0.005, 2e-3))
    assert costs.prompt_of(logged, 4) == 10
    groups = costs.groups_of(logged)
    assert len(groups) == 7 * 4 and all(len(group) == 4 for group in groups)
    assert min(map(min, groups)) >= 50 and max(map(max, groups)) < 500


def test_groups_of_a_log_keep_their_order_where_it_has_them_all(logged):
    """Those of one problem have lengths alike, and are of one group again."""
    config = configs.load(logged / "config.json")
    groups = costs.groups_of(logged)
    given = asynchronous.workload(config, logged)
    assert [given.lengths(n).tolist() for n in range(28)] == [g.tolist() for g in groups]
    (logged / "rollouts/000003.jsonl").unlink()
    given, left = asynchronous.workload(config, logged), costs.groups_of(logged)
    assert given.lengths(5).tolist() in [g.tolist() for g in left]
    assert len({tuple(given.lengths(n)) for n in range(99)}) > 9


def test_a_plan_recommends_what_it_predicts_to_be_fastest(logged, capsys):
    assert asynchronous.main([str(logged), "--asynchronous", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["settings"]) == 1 + len(asynchronous.STALENESS) * 3
    fastest = max(row["tokens_per_second"] for row in plan["settings"])
    assert plan["recommended"]["tokens_per_second"] == fastest
    assert plan["settings"][0]["staleness"] is None and plan["settings"][0]["lag"] == 0
    assert all(row["lag"] <= row["staleness"] for row in plan["settings"][1:])
    assert asynchronous.main([str(logged), "--asynchronous"]) == 0
    assert "synchronous" in capsys.readouterr().out


def test_a_run_without_a_log_is_refused(tmp_path, capsys, monkeypatch):
    assert asynchronous.main([str(tmp_path), "--asynchronous"]) == 2
    assert "no config.json" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert asynchronous.main(["--asynchronous"]) == 2
    assert "holds no run to plan by" in capsys.readouterr().err


def test_the_picture_of_the_page_is_simulated():
    page = (Path(__file__).parents[2] / "docs/asynchronous.md").read_text()
    assert simulate.example() in page
