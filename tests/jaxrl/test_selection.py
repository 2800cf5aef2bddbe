"""Prompts in stream order, by a curriculum with its state, and by dynamic sampling."""

import json

import numpy as np
import pytest

from data import tasks
from data.types import Problem, Score
from jaxrl import selection
from jaxrl.config import CurriculumConfig
from jaxrl.rollout import Experience

TARGETED = CurriculumConfig("data.curriculum:difficulty_targeted", {"target": 0.5}, prompts=32)


def open_source(config):
    task = tasks.get("arithmetic", operators="+")
    return selection.open_source(config, task, seed=3, batch_size=8)


def rewards(problems, group=4):
    """Prompts whose answer is even are solved half of the time, others always."""
    return np.array([[1.0, 1.0, p.answer % 2, p.answer % 2] for p in problems])


@pytest.mark.parametrize("config", [CurriculumConfig(), TARGETED], ids=["stream", "curriculum"])
def test_a_restored_source_goes_on_as_the_original(config):
    source, other = open_source(config), open_source(config)
    for _ in range(3):
        source.learn(rewards(source.draw()))
    other.set_state(json.loads(json.dumps(source.get_state())))
    for _ in range(3):
        batch = source.draw()
        assert [p.id for p in batch] == [p.id for p in other.draw()]
        source.learn(rewards(batch))
        other.learn(rewards(batch))


def test_a_curriculum_comes_to_prefer_what_teaches():
    source = open_source(TARGETED)
    seen = []
    for _ in range(40):
        batch = source.draw()
        seen.append(np.mean([p.answer % 2 == 0 for p in batch]))
        source.learn(rewards(batch))
    assert np.mean(seen[-10:]) > np.mean(seen[:5]) + 0.15


def test_bad_curricula_are_refused():
    with pytest.raises(ValueError, match="did you mean 'difficulty_targeted'"):
        selection.check(CurriculumConfig("data.curriculum:difficulty_target"), 8)
    with pytest.raises(ValueError, match="did you mean 'target'"):
        selection.check(CurriculumConfig(TARGETED.choose, {"targt": 1.0}), 8)
    with pytest.raises(ValueError, match=r"rollout\.prompts=64"):
        selection.check(TARGETED, 64)


def experience(first, values):
    """Groups of two numbered from `first`, with these rewards; None is a failed score."""
    problems = [Problem(str(first + i), "", "") for i in range(len(values))]
    scores = [
        Score(v) if v is not None else Score(None, error="timeout: x") for g in values for v in g
    ]
    names = [f"{p.id}/{i}" for p in problems for i in range(2)]
    return Experience(problems, names, names, scores)


def test_dynamic_sampling_keeps_groups_that_differ():
    batches = [
        experience(0, [(1, 1), (0, 1), (0, 0)]),
        experience(3, [(1, None), (1, 0), (0, 0)]),
        experience(6, [(0, 1), (1, 0), (1, 1)]),
    ]
    got, sampled = selection.dynamic(
        lambda i: batches[i], prompts=3, group_size=2, oversampling=3.0
    )
    assert [p.id for p in got.problems] == ["1", "4", "6"] and sampled == 9
    assert got.completions == ["1/0", "1/1", "4/0", "4/1", "6/0", "6/1"] == got.texts
    assert [s.value for s in got.scores] == [0, 1, 1, 0, 0, 1]


def test_dynamic_sampling_is_bounded_and_fills_up():
    batches = [experience(0, [(1, 1), (0, 1), (0, 0)]), experience(3, [(1, 1), (1, 0), (0, 0)])]
    got, sampled = selection.dynamic(
        lambda i: batches[i], prompts=3, group_size=2, oversampling=2.0
    )
    assert [p.id for p in got.problems] == ["1", "4", "0"] and sampled == 6
    once, sampled = selection.dynamic(
        lambda i: batches[i], prompts=3, group_size=2, oversampling=1.0
    )
    assert [p.id for p in once.problems] == ["1", "0", "2"] and sampled == 3
