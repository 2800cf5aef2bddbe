"""The arithmetic that every objective stands on."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.losses.reduce import masking


def test_bounded_exp_is_exp_then_its_tangent():
    x = jnp.array([-80.0, -1.0, 0.0, 19.9, 21.0, 80.0])
    top = np.exp(20.0)
    expected = [np.exp(-80.0), np.exp(-1.0), 1.0, np.exp(19.9), 2 * top, 61 * top]
    np.testing.assert_allclose(masking.bounded_exp(x), expected, rtol=1e-5)
    slopes = jax.vmap(jax.grad(masking.bounded_exp))(x)
    np.testing.assert_allclose(slopes, [*expected[:4], top, top], rtol=1e-5)
    assert np.isfinite(np.square(masking.bounded_exp(jnp.float32(80.0))))


def test_where_valid_stops_values_and_gradients():
    mask = jnp.array([1, 0, 1])
    x = jnp.array([1.0, jnp.nan, 3.0])

    def f(x):
        return jnp.sum(jnp.log(masking.where_valid(mask, x, fill=1.0)))

    np.testing.assert_allclose(f(x), np.log(3.0), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(f)(x), [1.0, 0.0, 1 / 3], rtol=1e-6)


def test_sanitize_leaves_row_arrays_alone():
    mask = jnp.array([[1, 0], [1, 1]])
    row = jnp.array([[jnp.nan], [1.0]])
    out = masking.sanitize(mask, token=jnp.full((2, 2), jnp.inf), row=row, absent=None)
    assert out["row"] is row and out["absent"] is None
    np.testing.assert_array_equal(out["token"], [[np.inf, 0.0], [np.inf, np.inf]])


def test_row_reductions_of_an_empty_row_are_zero():
    mask, x = jnp.array([[0, 0], [1, 0]]), jnp.array([[jnp.nan, 1.0], [4.0, jnp.inf]])
    np.testing.assert_array_equal(masking.row_sum(mask, x), [0.0, 4.0])
    np.testing.assert_array_equal(masking.row_mean(mask, x), [0.0, 4.0])
    np.testing.assert_array_equal(masking.row_count(mask), [1.0, 1.0])


def test_dtype_promotion_and_stopped_gradients():
    half = jnp.ones(2, jnp.bfloat16)
    assert masking.as_float(half).dtype == jnp.float32
    assert masking.indicator(jnp.array([True])).dtype == jnp.float32
    assert not jax.grad(lambda x: jnp.sum(masking.constant(x) ** 2))(jnp.ones(2)).any()
    grad = jax.grad(lambda b: jnp.sum(masking.ratio(jnp.ones(2), b)))(jnp.ones(2))
    assert not grad.any()
