"""Experience as arrays."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from jaxrl.data.types import Problem, Score
from jaxrl.rollout import experience, written
from jaxrl.rollout.programs import Row
from jaxrl.run import assemble
from jaxrl.training import objective, packing
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import Completion, Request
from tests.jaxrl import tiny


def test_a_reward_that_came_too_late_has_parts_of_zero():
    """So one of them does not take the parts of all others away."""
    zeros = np.zeros(1, np.float32)
    answer = Completion(
        Request(0, (1,), 1), np.ones(1, np.int32), zeros, zeros, zeros.astype(int), True
    )
    scores = [Score(1.0, {"right": 1.0, "brief": 0.5}), Score(0.0, timed_out=True)]
    scores.append(Score(None, error="failed"))
    made = written.gathered([(Problem("p", "", None), [Row(answer, "", s) for s in scores])])
    batch = experience.to_trajectory(tiny.config("unused"))(made)
    np.testing.assert_array_equal(batch.reward_parts, [[0.5, 1.0], [0, 0], [0, 0]])
    assert batch.valid.tolist() == [True, True, False]


PARTS = [
    {"right": float(n == 0), "brief": 0.7 if n % 2 else 0.5, "long": 2.0 if n % 2 else 9.0}
    for n in range(4)
]


def advantages_by(weights: str, parts: Sequence[dict[str, float]] = PARTS) -> np.ndarray:
    """Of GDPO, for two problems of two answers each."""
    zeros = np.zeros(1, np.float32)
    answer = Completion(
        Request(0, (1,), 1), np.ones(1, np.int32), zeros, zeros, zeros.astype(int), True
    )
    rows = [Row(answer, "", Score(sum(given.values()), given)) for given in parts]
    groups = [(Problem(str(n), "", None), rows[2 * n : 2 * n + 2]) for n in range(2)]
    fields = {"objective.advantage": "gdpo", "objective.advantage_args": {"weights": weights}}
    config = tiny.config("unused", **fields)
    batch = experience.to_trajectory(config)(written.gathered(groups))
    return np.asarray(objective.whole_batch(config.objective, batch, 9).advantages[:, 0])


def test_parts_of_a_reward_have_weights_by_name():
    """By hand, of GDPO: those that are not named are left out, and the order is free."""
    right, brief = np.array([1, -1, 0, 0]), np.array([-1, 1, -1, 1])
    for weights, total in (
        ("right=2,brief=0.5", 2 * right + 0.5 * brief),
        ("brief=0.5, right=2", 2 * right + 0.5 * brief),
        ("brief=3", brief),
        ("right=1,brief=-1", right - brief),
        ("", right + brief - brief),  # `long` is the opposite of `brief`
    ):
        np.testing.assert_allclose(advantages_by(weights), total / np.std(total, ddof=1), atol=2e-3)


def test_a_weight_of_a_part_that_there_is_not_is_refused():
    with pytest.raises(
        ValueError, match=r"parts names the part 'wrong', but .* brief, long, right;"
    ):
        advantages_by("wrong=1,right=1")
    with pytest.raises(ValueError, match=r"parts names the part 'right', but .* parts none;"):
        advantages_by("right=1", [{}] * 4)


def test_a_shaping_gets_the_parts_that_it_names():
    """Those of `dual` by default, whatever others there are; a reward without them is refused."""
    config = ObjectiveConfig(shaping="dual")
    assert objective.parts_weighed(config) == ("helpful", "refused")
    other = dataclasses.replace(config, shaping_args={"parts": "use,declined"})
    assert objective.parts_weighed(other) == ("declined", "use")
    both = dataclasses.replace(config, advantage="gdpo", advantage_args={"weights": "right=1"})
    with pytest.raises(ValueError, match="both choose parts of the reward"):
        objective.parts_weighed(both)
    with pytest.raises(ValueError, match="names the part 'helpful', but a reward has the parts a;"):
        packing.reward_parts([{"a": 1.0}], objective.parts_weighed(config))


def test_a_filter_may_ask_for_the_greedy_answers():
    assert objective.needs_greedy(ObjectiveConfig(rows="unsolved"))
    assert objective.needs_greedy(ObjectiveConfig(advantage="remax"))
    assert not objective.needs_greedy(ObjectiveConfig(rows="stopped"))


@pytest.mark.parametrize(
    "weights", ["right", "right=", "=1", "right=nan", "right=1,right=2", "1.0"]
)
def test_weights_of_another_form_are_refused_beforehand(weights):
    fields = {"objective.advantage": "gdpo", "objective.advantage_args": {"weights": weights}}
    with pytest.raises(ValueError, match=r"objective\.advantage_args\.weights=.*correct=1,format"):
        assemble.assemble(tiny.config("unused", **fields))
