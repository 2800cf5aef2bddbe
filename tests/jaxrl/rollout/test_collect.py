"""Which groups make a step: dynamic sampling, and groups that a step does not wait for."""

import dataclasses
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from jaxrl.config import Config, RolloutConfig
from jaxrl.data import tasks
from jaxrl.data.types import Problem, Score
from jaxrl.record.metrics import Timer
from jaxrl.rollout import collect, drive
from jaxrl.rollout.flight import Weights
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Row
from jaxrl.rollout.selection import Drawn, Source
from jaxrl.sampling.logits import Guide, keep
from tests.jaxrl.batches import MODEL

BATCHES = {
    "three": [(1, 1), (0, 1), (0, 0), (1, None), (1, 0), (0, 0), (0, 1), (1, 0), (1, 1)],
    "two": [(1, 1), (0, 1), (0, 0), (1, 1), (1, 0), (0, 0)],
}
"""Rewards of groups of two in the order of their problems; None is a failed score."""


class Tokens:
    eos_ids = (0,)


class Sampled(str):
    """In place of a completion: of as many tokens as its group's number."""

    @property
    def tokens(self):
        return range(int(self.split("/")[0]))


class Idle:
    """In place of a `Drive`: its groups begin, and nothing is sampled."""

    def __init__(self, program, ctx, engine, pool, pending):
        self.groups, self.pending = [], {}

    def begin(self, groups):
        self.groups += groups

    def save_partial(self):
        pass


POOL = SimpleNamespace(over=lambda row: None)


@pytest.fixture
def step(monkeypatch):
    """`(rewards, oversampling, in flight) -> rollouts`, whose groups end in order at once."""

    def make(values, oversampling=1.0, in_flight=1.0, last=None, rounds="fixed", pool=POOL):
        learned, count = [], iter(range(len(values)))

        def draw(wanted, params, in_flight):
            return [Drawn(Problem(str(i), "", ""), i) for _ in range(wanted) for i in [next(count)]]

        def advance(driven, *, enough, **more):
            left = [g for g in driven.groups if g.rows is None]
            for group in last(left, enough) if last else left[:enough]:
                scores = [
                    Score(v) if v is not None else Score(None, error="timeout: x")
                    for v in values[group.drawn.ticket]
                ]
                names = [Sampled(f"{group.drawn.problem.id}/{i}") for i in range(2)]
                group.rows = [Row(n, n, s) for n, s in zip(names, scores, strict=True)]

        monkeypatch.setattr(collect, "Drive", Idle)
        monkeypatch.setattr(drive, "advance", advance)
        source = Source(
            draw,
            lambda drawn, rewards: learned.append(([d.ticket for d in drawn], rewards)),
            lambda: {},
            lambda state: None,
        )
        rollout = RolloutConfig(
            prompts=3, group_size=2, oversampling=oversampling, in_flight=in_flight, rounds=rounds
        )
        config = dataclasses.replace(Config(), rollout=rollout)
        policy = Policy(MODEL, {}, Tokens())
        made = collect.open_rollouts(
            config, policy, tasks.get("arithmetic"), pool, source, None,
            open_engine=lambda setup, params: None,
        )  # fmt: skip
        return lambda: made.step(Weights({}, Guide(keep), 0, 0), Timer()), learned, made

    return make


def test_groups_that_differ_are_kept(step):
    run, learned, _ = step(BATCHES["three"], oversampling=3.0)
    got, sampled = run()
    assert [p.id for p in got.problems] == ["1", "4", "6"] and sampled == {"prompts_sampled": 9.0}
    assert got.completions == ["1/0", "1/1", "4/0", "4/1", "6/0", "6/1"] == got.texts
    assert [s.value for s in got.scores] == [0, 1, 1, 0, 0, 1]
    assert [tickets for tickets, _ in learned] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert np.isnan(learned[1][1][0, 1])


def test_sampling_is_bounded_and_fills_up(step):
    run, _, _ = step(BATCHES["two"], oversampling=2.0)
    got, sampled = run()
    assert [p.id for p in got.problems] == ["1", "4", "0"] and sampled["prompts_sampled"] == 6
    run, _, _ = step(BATCHES["two"])
    got, sampled = run()
    assert [p.id for p in got.problems] == ["1", "0", "2"] and sampled["prompts_sampled"] == 3


@pytest.mark.parametrize("in_flight", [1.0, 4 / 3])
def test_the_last_round_is_smaller_where_the_budget_is_no_multiple_of_a_step(step, in_flight):
    """Of 5 in all: 3 and then 2. Where a fourth is under way, the next step goes on with it."""
    run, learned, made = step(
        [*BATCHES["two"][:5], *[(0, 1)] * 4], oversampling=5 / 3, in_flight=in_flight
    )
    got, sampled = run()
    assert [p.id for p in got.problems] == ["1", "4", "0"] and sampled["prompts_sampled"] == 5
    assert in_flight > 1 or not made.get_state()["open_groups"]["waiting"]
    got, sampled = run()
    assert [p.id for p in got.problems] == ["5", "6", "7"] and sampled["prompts_sampled"] == 3
    assert [len(tickets) for tickets, _ in learned] == [3, 2, 3]


@pytest.mark.parametrize("rounds", ["fixed", "adaptive"])
def test_a_factor_above_1_samples_one_group_more_at_least(step, rounds):
    """3 times 1.1 is 3.3, so the budget is 4."""
    run, learned, _ = step(BATCHES["two"], oversampling=1.1, rounds=rounds)
    got, sampled = run()
    assert [len(tickets) for tickets, _ in learned] == [3, 1]
    assert [p.id for p in got.problems] == ["1", "0", "2"] and sampled["prompts_sampled"] == 4


def test_adaptive_rounds_begin_what_is_missing_at_the_lowest_share_so_far(step):
    """Of the first round of 3, 1 is kept, so the second has 2 / (1/3) = 6, and 3 of these differ:
    4 of 9. The next step therefore begins with ceil(3 / (4/9)) = 7."""
    run, learned, made = step(
        [*BATCHES["three"], *[(0, 1)] * 7], oversampling=4.0, rounds="adaptive"
    )
    got, sampled = run()
    assert [p.id for p in got.problems] == ["1", "4", "6"]
    assert sampled == {"prompts_sampled": 9.0, "rounds": 2.0}
    saved = made.get_state()
    assert saved["acceptance"] == 4 / 9 and not saved["open_groups"]["waiting"]
    made.set_state(saved)
    got, sampled = run()
    assert [p.id for p in got.problems] == ["9", "10", "11"]
    assert sampled == {"prompts_sampled": 7.0, "rounds": 1.0}
    assert [len(tickets) for tickets, _ in learned] == [3, 6, 7]


def test_groups_in_flight_continue_and_keep_their_ids(step):
    """Four are started for three; the one left over is the first of the next step."""
    run, learned, made = step([(0, 1)] * 9, in_flight=1.4)
    first, _ = run()
    assert [p.id for p in first.problems] == ["0", "1", "2"]
    saved = made.get_state()
    assert [group["first_id"] for group in saved["open_groups"]["groups"]] == [6]
    second, _ = run()
    assert [p.id for p in second.problems] == ["3", "4", "5"]
    assert [tickets for tickets, _ in learned] == [[0, 1, 2], [3, 4, 5]]


def test_groups_that_are_whole_first_are_taken_first_and_the_bias_of_lengths_is_logged(step):
    """Of four under way the first is never whole in time: it is the longest in flight, and the
    others have 2 tokens more on average, as it has come nowhere."""
    run, _, made = step([(0, 1)] * 9, in_flight=4 / 3, last=lambda left, enough: left[-enough:])
    got, measured = run()
    assert [p.id for p in got.problems] == ["1", "2", "3"]
    assert measured == {"prompts_sampled": 3.0, "length_bias": 2.0 - 1.0}
    assert [g["first_id"] for g in made.get_state()["open_groups"]["groups"]] == [0]


def test_what_is_in_flight_goes_on_from_a_checkpoint_also_of_a_version_without_a_schedule(step):
    values = [(0, 1)] * 9
    run, _, made = step(values, in_flight=1.4)
    run()
    saved = made.get_state()
    assert saved["schedule"] == {"groups": [[3, 0, None]], "admitted": 4}
    for state in (saved, {k: v for k, v in saved.items() if k != "schedule"}):
        again, _, other = step(values, in_flight=1.4)
        other.set_state(state)
        got, _ = again()
        assert [p.id for p in got.problems] == ["3", "4", "5"]


def test_what_was_sampled_for_later_steps_is_given_up_and_its_episodes_closed(step):
    over = []
    pool = SimpleNamespace(over=over.append)
    run, _, made = step([(0, 1)] * 9, in_flight=5 / 3, pool=pool)
    run()
    assert not over
    made.abandon()
    assert over == [6, 7, 8, 9] and not made.get_state()["open_groups"]["groups"]
    got, _ = run()
    assert [p.id for p in got.problems] == ["3", "4", "5"]


def test_the_sampler_of_a_step_is_gone_before_the_update(step, monkeypatch):
    """Its KV caches would lie beside the arrays of the update."""
    run, _, _ = step([(0, 1)] * 9, in_flight=4 / 3)
    samplers = []

    def opened(*parts):
        sampler = Idle(*parts)
        samplers.append(weakref.ref(sampler))
        return sampler

    monkeypatch.setattr(collect, "Drive", opened)
    run()
    assert [sampler() for sampler in samplers] == [None]


def test_a_checkpoint_names_the_weights_that_began_a_group(step):
    _, _, made = step([(0, 1)] * 9, in_flight=4 / 3)
    for steps in (7, 8):
        made.step(Weights({}, Guide(keep), 2 * steps, steps), Timer())
        assert made.get_state()["schedule"]["groups"] == [[3 * (steps - 6), steps, None]]
