"""Data pruning against gradients and norms that are made in full, in float64."""

import numpy as np
import pytest

from jaxrl.losses import pruning

N, T, D, V, RATE = 5, 4, 3, 7, 0.3


@pytest.fixture(scope="module")
def samples():
    """Weights [V, D], states, targets, masks and each sample's gradient [N, V, D]."""
    rng = np.random.default_rng(0)
    weights, hidden = rng.normal(size=(V, D)), rng.normal(size=(N, T, D))
    targets = rng.integers(V, size=(N, T)).astype(np.int32)
    mask = rng.random((N, T)) < 0.7
    mask[:, 0] = True
    gradients = np.zeros((N, V, D))
    for n in range(N):
        for t in np.flatnonzero(mask[n]):
            p = np.exp(weights @ hidden[n, t])
            p /= p.sum()
            p[targets[n, t]] -= 1
            gradients[n] += np.outer(p, hidden[n, t]) / mask[n].sum()
    return weights, hidden, targets, mask, gradients


def test_products_are_those_of_the_gradient_itself(samples, x64):
    weights, hidden, targets, mask, gradients = samples
    logits = np.where(mask[..., None], hidden @ weights.T, np.nan)  # what is masked is not read
    inner, square = pruning.output_gradient(hidden, logits, targets, mask=mask)
    np.testing.assert_allclose(inner, (weights * gradients).sum((1, 2)), rtol=1e-10)
    np.testing.assert_allclose(square, (gradients**2).sum((1, 2)), rtol=1e-10)


def test_donod_is_the_closeness_of_the_norms(samples, x64):
    """DON and NOD of updated weights, then TOPSIS, criterion by criterion."""
    weights, _, _, _, gradients = samples
    after = weights - RATE * gradients
    don = np.array([np.linalg.norm(a) - np.linalg.norm(weights) for a in after])
    nod = np.array([np.linalg.norm(a - weights) for a in after])
    best, worst = np.zeros(N), np.zeros(N)
    for values, sign in ((don, 1), (nod, -1)):
        scaled = sign * values / np.sqrt((values**2).sum())
        best += (scaled - scaled.max()) ** 2
        worst += (scaled - scaled.min()) ** 2
    wanted = np.sqrt(worst) / (np.sqrt(best) + np.sqrt(worst))
    inner, square = (weights * gradients).sum((1, 2)), (gradients**2).sum((1, 2))
    got = pruning.donod(inner, square, np.linalg.norm(weights), rate=RATE)
    np.testing.assert_allclose(got, wanted, rtol=1e-8)


def test_a_step_that_grows_the_norm_and_moves_little_is_best():
    """By hand: the last moves far to no avail, and the first is best in both."""
    inner, square = np.array([-1.0, -0.5, 1.0]), np.array([1.0, 1.0, 4.0])
    got = np.asarray(pruning.donod(inner, square, np.float64(5.0)))
    assert got[0] == pytest.approx(1.0) and got[2] == pytest.approx(0.0) and 0 < got[1] < 1
    np.testing.assert_allclose(pruning.donod(inner[:1], square[:1], np.float64(5.0)), [0.5])
