"""What recipes define for themselves, by hand."""

import jax.numpy as jnp
import numpy as np

from data import curriculum
from launch.recipes import campo, cure, dph_rl, kimi_k1_5, scalerl


def test_kimi_adds_half_at_most_to_the_shortest_right_answer():
    rewards, lengths = jnp.array([1.0, 1.0, 0.0, 0.0]), jnp.array([2, 6, 4, 6])
    got = kimi_k1_5.brief(rewards, lengths, jnp.zeros(4, int), 1, weight=0.2)
    np.testing.assert_allclose(got, [1.1, 0.9, 0.0, -0.1], atol=1e-6)


def test_scalerl_leaves_solved_prompts_out_while_there_are_others():
    state = curriculum.record(
        curriculum.start(4), np.arange(4), np.array([[1, 1], [1, 1], [0, 1], [0, 0]])
    )
    _, ids = scalerl.unsolved(state, 2, np.ones(4, bool))
    assert set(ids) == {2, 3}
    _, ids = scalerl.unsolved(state, 3, np.ones(4, bool))
    assert len(set(ids)) == 3


def test_cure_forks_before_the_least_certain_token():
    tokens = [[np.array([5, 6, 7]), np.array([8]), np.array([9, 9]), np.array([4])]]
    unsure = [[np.array([0.1, 0.2, 0.9]), np.array([0.3]), np.zeros(2), np.zeros(1)]]
    rng = np.random.default_rng(0)
    assert cure.forks(0, rng, [], [], 4) == []
    first, second = cure.forks(1, rng, tokens, unsure, 4, top=1)
    assert (first.problem, first.row, first.begin) == (0, 2, (5, 6))
    assert (second.row, second.begin) == (3, ())
    assert cure.forks(2, rng, tokens, unsure, 4) == []


def test_campo_takes_half_a_reward_for_a_loop_from_the_start():
    tokens = jnp.array([[9, 3, 3, 3], [9, 4, 5, 6]])
    mask = jnp.array([[False, True, True, True]] * 2)
    np.testing.assert_allclose(campo.penalised(jnp.ones(2), tokens, mask, weight=0.5), [0.5, 1.0])


def test_dph_divergences_are_those_they_are_called_after():
    """Over all tokens of a small distribution, the expected values are the two divergences."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    logp, ref = jnp.log(p)[None], jnp.log(q)[None]
    np.testing.assert_allclose(
        (p * dph_rl.forward_kl(logp, ref)[0]).sum(), (q * np.log(q / p)).sum(), rtol=1e-5
    )
    np.testing.assert_allclose(
        (p * dph_rl.reverse_kl(logp, ref)[0]).sum(), (p * np.log(p / q)).sum(), rtol=1e-5
    )
