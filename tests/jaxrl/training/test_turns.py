"""Turns as arrays of tokens, and as steps."""

import jax.numpy as jnp
import numpy as np

from jaxrl.training import turns


def test_tokens_become_turns_and_come_back():
    turn = np.array([[0, 1, 1, 2, 2, 2], [0, 1, 2, 2, 3, 0], [0, 1, 1, 1, 2, 2]])
    own = np.array([[0, 1, 1, 0, 1, 1], [0, 1, 0, 1, 1, 0], [0, 1, 1, 1, 0, 1]], bool)
    rewards = np.where(np.roll(turn, -1, 1) != turn, turn * 10.0, 0.0) * own
    state = np.array([[0, 7, 7, 5, 5, 5], [0, 7, 5, 5, 5, 0], [0, 7, 7, 7, 5, 5]], np.int32)
    groups = np.array([0, 0, 1])
    valid = np.array([[True], [True], [False]])
    agent = np.where(turn == 2, 1, 0)
    given = {"turn": turn, "turn_rewards": rewards, "turn_state": state, "agent": agent}
    made = turns.steps({k: jnp.asarray(v) for k, v in given.items()}, groups, own & valid)
    assert set(made) == set(turns.STEPS)
    mask = np.asarray(made["step_mask"])
    assert mask.sum(1).tolist() == [2, 3, 0] and not mask[:, 3:].any()
    assert np.asarray(made["step_rewards"])[:2, :3].tolist() == [[10, 20, 0], [10, 20, 30]]
    assert np.asarray(made["agent_ids"])[:2, :3].tolist() == [[0, 1, 0], [0, 1, 0]]
    ids = np.asarray(made["state_ids"])
    assert ids[0, 0] == ids[1, 0] != ids[0, 1] == ids[1, 1] == ids[1, 2]
    everyone = turns.steps({k: jnp.asarray(v) for k, v in given.items()}, groups, own)
    ids = np.asarray(everyone["state_ids"])
    assert ids[2, 0] != ids[0, 0] and ids.max() < everyone["num_states"]  # another group
    back = turns.to_tokens(jnp.arange(18.0).reshape(3, 6) + 1, jnp.asarray(turn), own & valid)
    expected = (np.arange(18).reshape(3, 6) + 1)[np.arange(3)[:, None], turn - 1] * (own & valid)
    np.testing.assert_array_equal(back, expected)
