"""Experience as arrays."""

import numpy as np

from jaxrl.data.types import Problem, Score
from jaxrl.rollout import experience, written
from jaxrl.rollout.programs import Row
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
    batch = experience.as_trajectory(made, tiny.config("unused"))
    np.testing.assert_array_equal(batch.reward_parts, [[0.5, 1.0], [0, 0], [0, 0]])
    assert batch.valid.tolist() == [True, True, False]
