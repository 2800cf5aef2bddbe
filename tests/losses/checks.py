"""Shared machinery: calling by name, finite differences, weighted gradients."""

import copy
import inspect
from collections.abc import Callable
from types import SimpleNamespace as Arrays

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.losses.reduce import masking
from tests.losses.cases import Case

FLOATS = (
    "logp",
    "behavior_logp",
    "proximal_logp",
    "ref_logp",
    "advantages",
    "rewards",
    "weights",
    "entropy",
)


def renamed(case: Case, d: Arrays) -> Arrays:
    """The drawn arrays under the names this case's function uses."""
    d = copy.copy(d)
    for name, source in case.rename.items():
        setattr(d, name, getattr(d, source))
    return d


def arguments(function: Callable, d: Arrays) -> dict:
    return {n: getattr(d, n) for n in inspect.signature(function).parameters if hasattr(d, n)}


def per_token(case: Case, d: Arrays, dtype=None, sanitize: bool = False) -> jax.Array:
    """The function's loss, optionally with the inputs cast and the masking contract applied."""
    given = {
        n: jnp.asarray(v, dtype if n in FLOATS else None)
        for n, v in arguments(case.function, d).items()
    }
    if sanitize:
        floats = {n: x for n, x in given.items() if n in FLOATS}
        given |= masking.sanitize(jnp.asarray(d.mask), **floats)
    return case.function(**given, **case.kwargs)[0]


def gradients(case: Case, d: Arrays, weight, dtype=None, sanitize: bool = False) -> dict:
    """Gradient of the weighted, masked sum of the loss in every float array the function takes."""
    floats = [n for n in arguments(case.function, d) if n in FLOATS]

    def loss(live: dict) -> jax.Array:
        arrays = copy.copy(d)
        vars(arrays).update(live)
        losses = per_token(case, arrays, sanitize=sanitize)
        return jnp.sum(masking.where_valid(jnp.asarray(d.mask), jnp.asarray(weight) * losses))

    return jax.grad(loss)({n: jnp.asarray(getattr(d, n), dtype) for n in floats})


def finite_differences(f: Callable[[np.ndarray], float], x: np.ndarray, eps: float = 1e-6):
    """Central differences of a scalar function, elementwise."""
    grad = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += eps
        down[i] -= eps
        grad[i] = (f(up) - f(down)) / (2 * eps)
    return grad


def oracle_gradient(case: Case, d: Arrays, weight: np.ndarray) -> np.ndarray:
    def f(logp: np.ndarray) -> float:
        live = copy.copy(d)
        live.logp = logp
        return np.where(d.mask, weight * case.oracle(live, d), 0.0).sum()

    return finite_differences(f, d.logp)


def agree(f: Callable, oracle: Callable, live: dict, fixed: dict | None = None, seed: int = 0):
    """Value and gradient of `f(**arrays)` against NumPy, in float64 (inside `enable_x64`).

    `live` arrays carry the gradient, checked by finite differences of the oracle under random
    weights; into `fixed` float arrays none may flow.
    """
    fixed = fixed or {}
    want = np.asarray(oracle(**live, **fixed))
    weight = np.random.default_rng(seed).normal(size=want.shape)

    def value(arrays: dict) -> jax.Array:
        out = f(**arrays)
        return out[0] if isinstance(out, tuple) else out

    np.testing.assert_allclose(value(live | fixed), want, rtol=1e-7, atol=1e-9)
    floats = {
        n: jnp.asarray(x) for n, x in (live | fixed).items() if np.asarray(x).dtype.kind == "f"
    }
    rest = {n: x for n, x in fixed.items() if n not in floats}
    grads = jax.grad(lambda a: jnp.sum(weight * value(a | rest)))(floats)
    for name, x in live.items():

        def total(moved: np.ndarray, name: str = name) -> float:
            return np.sum(weight * oracle(**(live | fixed | {name: moved})))

        np.testing.assert_allclose(
            grads.pop(name), finite_differences(total, np.asarray(x, float)), rtol=2e-5, atol=2e-6
        )
    for name, grad in grads.items():
        assert not np.any(grad), f"a gradient flows into {name}"
