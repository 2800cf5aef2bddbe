"""Curricula that go by visits, where prompts are drawn while others are in flight."""

import dataclasses
import json

import pytest

from jaxrl.config import BanditConfig, Config, CurriculumConfig, RolloutConfig
from jaxrl.data import tasks
from jaxrl.data.types import Problem, Score, Task
from jaxrl.record.metrics import Timer
from jaxrl.rollout import asynchronous, collect, drive, selection
from jaxrl.rollout.flight import Flight, Weights
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Row
from jaxrl.rollout.schedule import Limits
from jaxrl.sampling.logits import Guide, keep
from tests.jaxrl.batches import MODEL
from tests.jaxrl.rollout.test_asynchronous import Counting, World
from tests.jaxrl.rollout.test_collect import POOL, Idle, Sampled, Tokens

SIZE, BATCH = 12, 3
BY_VISITS = ["easiest_first", "frontier", "passes"]


def opened(choose):
    """A source of `SIZE` prompts, and the numbers of those that it has drawn."""
    drawn = []
    task = Task("own", lambda split, seed, i: Problem(str(i), "", i), reward=None)
    source = selection.chosen(
        CurriculumConfig(choose, prompts=SIZE), task, {}, seed=0, measure=None, closeness=None
    )

    def draw(*args):
        made = source.draw(*args)
        drawn.extend(each.ticket for each in made)
        return made

    return source._replace(draw=draw), drawn


@pytest.fixture
def partial(monkeypatch):
    """`curriculum -> (step, numbers drawn, rollouts)`: of the 6 groups in flight the last 3 end."""

    def advance(driven, *, enough, **more):
        for group in [g for g in driven.groups if g.rows is None][-enough:]:
            score = Score(float(group.drawn.ticket % 2))
            group.rows = [Row(name, name, score) for name in map(Sampled, ("1/0", "1/1"))]

    monkeypatch.setattr(collect, "Drive", Idle)
    monkeypatch.setattr(drive, "advance", advance)

    def make(choose):
        source, drawn = opened(choose)
        config = dataclasses.replace(
            Config(), rollout=RolloutConfig(prompts=BATCH, group_size=2, in_flight=2.0)
        )
        made = collect.open_rollouts(
            config, Policy(MODEL, {}, Tokens()), tasks.get("arithmetic"), POOL, source, None,
            open_engine=lambda setup, params: None,
        )  # fmt: skip
        return lambda: made.step(Weights({}, Guide(keep), 0, 0), Timer()), drawn, made

    return make


def balanced(drawn):
    """Whether no prompt is drawn again before all others are."""
    seen = dict.fromkeys(range(SIZE), 0)
    for number in drawn:
        if seen[number] > min(seen.values()):
            return False
        seen[number] += 1
    return True


@pytest.mark.parametrize("choose", BY_VISITS)
def test_partial_rollouts_draw_no_prompt_that_is_in_flight_before_the_others(choose, partial):
    step, drawn, _ = partial(choose)
    for _ in range(9):
        step()
    assert len(drawn) == 30 and balanced(drawn)


@pytest.mark.parametrize("choose", BY_VISITS)
def test_a_lag_draws_no_prompt_that_is_in_flight_before_the_others(choose):
    limits, (source, drawn) = Limits(BATCH, 2), opened(choose)
    world = World(limits)
    world.flight = Flight(
        limits,
        1,
        source,
        lambda weights, known: Counting(world, known),
        world.over.append,
        drawn_at_once=BATCH,
    )
    for step in range(9):
        world.step(asynchronous.lockstep, step, 2)
    assert len(drawn) >= 30 and balanced(drawn)


@pytest.mark.exact("a restored run with groups in flight draws the same prompts by a curriculum")
@pytest.mark.parametrize("choose", BY_VISITS)
def test_a_restored_run_draws_the_same_prompts(choose, partial):
    step, drawn, made = partial(choose)
    for _ in range(3):
        step()
    saved, before = json.loads(json.dumps(made.get_state())), len(drawn)
    again, drawn_again, other = partial(choose)
    other.set_state(saved)
    for _ in range(4):
        assert [p.id for p in step()[0].problems] == [p.id for p in again()[0].problems]
    assert drawn[before:] == drawn_again and len(drawn_again) == 12


def test_a_mixture_tells_each_part_its_own_prompts_in_flight():
    parts = {name: opened("easiest_first")[0] for name in ("a", "b")}
    source = selection.mixed(parts, {"a": 1.0, "b": 3.0}, BanditConfig(), 0)
    first = source.draw(8, {})
    both = [*first, *source.draw(8, {}, first)]
    assert sorted(each.ticket for each in both) == [
        *([0, n] for n in range(4)), *([1, n] for n in range(12)),
    ]  # fmt: skip


def test_prompts_in_flight_that_a_shorter_file_lacks_are_not_counted():
    source, drawn = opened("passes")
    source.draw(BATCH, {}, [selection.Drawn(Problem("gone", "", None), SIZE + 3)])
    assert len(drawn) == BATCH


def test_what_is_in_flight_is_no_visit_before_it_is_learned_from():
    source, _ = opened("passes")
    first = source.draw(BATCH, {})
    state = source.get_state()["state"]
    source.draw(BATCH, {}, first)
    assert source.get_state()["state"]["visits"] == state["visits"]
