"""Steps of sampling over a sampler that only counts: lockstep, live and recorded."""

import random
import threading
from concurrent import futures
from concurrent.futures import Future

import jax
import numpy as np
import pytest

from jaxrl.data.types import Problem, Score
from jaxrl.rollout import asynchronous
from jaxrl.rollout.asynchronous import Live
from jaxrl.rollout.drive import Chunk
from jaxrl.rollout.flight import Flight, Weights
from jaxrl.rollout.programs import Row
from jaxrl.rollout.schedule import Limits
from jaxrl.rollout.selection import Drawn, Source
from jaxrl.types import Completion, Request

MESH = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))


def completion(first_id, versions):
    """Of tokens that are the versions which sampled them."""
    tokens, zeros = np.array(versions, np.int32), np.zeros(len(versions), np.float32)
    request = Request(first_id, prompt=(0,), max_new_tokens=9)
    return Completion(request, tokens, zeros, zeros, tokens, True)


class Counting:
    """In place of a `Drive`: group n is sampled in 1 + n % 5 chunks, and then scored."""

    def __init__(self, world, known):
        self.world, self.known, self.pending = world, known, {}
        self.groups, self.context, self.count = [], 0, 0
        world.opened += 1

    def begin(self, groups):
        for group in groups:
            if group.rows is None:
                self.groups.append(group)
                if len(group.partial) == 1 + group.first_id % 5:
                    self.ask(group)

    @property
    def work(self):
        waiting = {name[0] for name, _ in self.pending.values()}
        return [g for g in self.groups if g.rows is None and g.first_id not in waiting]

    @property
    def sequences(self):
        return len(self.work)

    def chunk(self, version):
        sequences = self.sequences
        for group in self.work:
            group.partial[(len(group.partial),)] = completion(group.first_id, [version])
            if len(group.partial) == 1 + group.first_id % 5:
                self.ask(group)
        return Chunk(sequences, 0, 1, sequences, 0, 0, 0, 0.001)

    def ask(self, group):
        name = (group.first_id, (), 0)
        self.pending[self.count] = name, self.known.get(name) or self.world.score(name)
        self.count += 1

    def ready(self):
        return [n for n, (_, future) in self.pending.items() if future.done()]

    def wait(self, seconds):
        futures.wait([future for _, future in self.pending.values()], seconds)

    def answers(self, numbers):
        return {n: self.pending[n][1].result(timeout=10) for n in numbers}

    def receive(self, answers):
        for n, score in answers.items():
            first_id = self.pending.pop(n)[0][0]
            (group,) = [g for g in self.groups if g.first_id == first_id]
            versions = [int(part.tokens[0]) for part in group.partial.values()]
            group.rows = [Row(completion(first_id, versions), "", score)]

    def save_partial(self):
        self.groups = []


class World:
    """Problems in order, scorers that take their time, and what was asked of them."""

    def __init__(self, limits, delay=lambda: 0.0, spare=0):
        self.delay, self.opened, self.scored, self.rows, self.learned = delay, 0, [], [], []
        self.drawn, self.over = iter(range(10**6)), []
        source = Source(
            lambda count, params, in_flight: [
                Drawn(Problem(str(next(self.drawn)), "", "")) for _ in range(count)
            ],
            lambda drawn, rewards: self.learned.append([d.problem.id for d in drawn]),
            dict,
            lambda state: None,
        )
        self.flight = Flight(
            limits,
            1,
            source,
            lambda weights, known: Counting(self, known),
            self.over.append,
            self.rows.append,
            drawn_at_once=limits.groups_per_step,
            together=limits.staleness == 0,
            spare=spare,
        )

    def score(self, name):
        self.scored.append(name)
        future = Future()
        seconds, score = self.delay(), Score(1.0)
        if seconds:
            threading.Timer(seconds, future.set_result, [score]).start()
        else:
            future.set_result(score)
        return future

    def step(self, way, step, *more):
        return taken(way(self.flight, Weights({}, None, step, step), *more))


def taken(batch):
    """Of a batch, the groups with the version of each chunk."""
    return [(g.drawn.problem.id, tuple(g.rows[0].completion.tokens)) for g in batch.groups]


def unclocked(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_lockstep_samples_on_for_as_long_as_an_update_takes():
    world = World(Limits(2, 1))
    first = world.step(asynchronous.lockstep, 0, 3)
    assert first == [("0", (0,)), ("1", (0, 0))]
    assert [row["train"] for row in world.rows if "train" in row] == [[0, 1]]
    after = world.rows[[("train" in row) for row in world.rows].index(True) :]
    assert len(after) <= 4 and world.rows[-1]["decoded"] is False
    second = world.step(asynchronous.lockstep, 1, 3)
    assert [number for number, _ in second] == ["2", "3"]
    assert second[1][1][0] == 0 and max(second[1][1]) <= 1
    assert world.opened == 2, "a step has a sampler of its own, that knows no older weights"


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("order", ["admitted", "finished"])
def test_groups_that_teach_nothing_are_replaced_within_the_budget(staleness, order):
    """All rewards are equal here."""
    world = World(Limits(2, staleness, 0, order), spare=3)
    for step in range(5):
        batch = world.step(asynchronous.lockstep, step, 2)
        assert len(batch) == 2
        for _, versions in batch:
            assert step - min(versions) <= staleness
        saved = world.flight.get_state()
        assert 0 <= saved["dropped"] <= 3
    drops = [n for row in world.rows for n in row.get("drop", [])]
    trained = [n for row in world.rows for n in row.get("train", [])]
    assert len(trained) == 10 and not set(drops) & set(trained)
    assert 6 <= len(drops) <= 15 + 3  # and those of the batch under way
    assert sorted(int(n) for names in world.learned for n in names) == sorted(drops + trained)


def test_no_answer_is_asked_for_twice_across_steps():
    world = World(Limits(2, 3))
    for step in range(6):
        world.step(asynchronous.lockstep, step, 1)
    assert len(world.scored) == len(set(world.scored)) >= 12
    assert sum(world.learned, []) == [str(n) for n in range(12)]  # noqa: RUF017


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("order", ["admitted", "finished"])
def test_a_record_repeats_a_live_run_whatever_its_timing(staleness, order):
    limits, draw = Limits(2, staleness, order=order), random.Random(staleness)
    world = World(limits, lambda: draw.choice([0.0, 0.002, 0.01]))
    live, made, flights = Live(world.flight, MESH, 10.0), [], []
    for step in range(5):
        made.append(taken(live.step(Weights({}, None, step, step))))
        if draw.random() < 0.5:
            threading.Event().wait(0.004)  # an update that takes a while
        live.halt()
        flights.append(world.flight.get_state()["schedule"])
    for step, batch in enumerate(made):
        assert all(step - min(versions) <= staleness for _, versions in batch)
    again = World(limits)
    for step, batch in enumerate(made):
        rows = [row for row in world.rows if row["step"] == step]
        assert again.step(asynchronous.recorded, step, rows) == batch
        assert again.flight.get_state()["schedule"] == flights[step]
    assert unclocked(again.rows) == unclocked(world.rows)
    assert again.learned == world.learned


def test_a_step_that_was_not_recorded_is_refused():
    with pytest.raises(ValueError, match="no schedule of step 4"):
        World(Limits(1, 1)).step(asynchronous.recorded, 3, [])


def test_what_was_sampled_for_later_is_given_up_and_its_problems_come_first():
    world = World(Limits(2, 2))
    world.step(asynchronous.lockstep, 0, 1)
    in_progress = [group for group, *_ in world.flight.get_state()["schedule"]["groups"]]
    assert in_progress == [2, 3, 4, 5]
    world.flight.abandon()
    assert world.over == [2, 3, 4, 5]
    assert [number for number, _ in world.step(asynchronous.lockstep, 0, 1)] == ["2", "3"]
