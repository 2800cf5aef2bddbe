"""NEFTune's noise on embeddings: its scale for each packed sequence, and its draws."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.training.logprobs import Noise


def test_noise_has_the_scale_of_each_sequence():
    """Sequences of 2 and 6 tokens in one row, and a branch of 3 behind a prompt of 4 in another."""
    positions = jnp.array([[0, 1, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 0]])
    until = jnp.array([[2, 2, 8, 8, 8, 8, 8, 8], [7] * 7 + [0]])
    noise = Noise(jax.random.key(0), 5.0)
    drawn = np.abs(noise.draw(jnp.int32(0), positions, until, 1000))
    for row, span, tokens in ((0, slice(2), 2), (0, slice(2, 8), 6), (1, slice(7), 7)):
        bound = 5 / np.sqrt(tokens * 1000)
        assert 0.99 * bound < drawn[row, span].max() <= bound
        assert abs(drawn[row, span].mean() - bound / 2) < 0.02 * bound
    again = np.abs(noise.draw(jnp.int32(0), positions, until, 1000))
    np.testing.assert_array_equal(drawn, again)
    assert not np.array_equal(drawn, np.abs(noise.draw(jnp.int32(1), positions, until, 1000)))
