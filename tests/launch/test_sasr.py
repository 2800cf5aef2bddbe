"""SASR's draws, from the gradient norms that updates report."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config import Config
from jaxrl.launch.recipes.demonstrations import sasr
from jaxrl.types import TrainState
from tests.jaxrl.batches import batch
from tests.jaxrl.extensions.contexts import context


def test_the_share_of_imitation_is_that_of_the_norms():
    """Norms 1, 2 (warm-up), then 6 wherever an update imitates: p = 6 / (6 + 3 * 2) from then."""
    extension = sasr.imitation(sasr.ImitationConfig(warmup_steps=2, gamma=3.0))
    ctx, seen = context(Config(seed=1)), []
    norms = jnp.array([1.0, 2.0] + [6.0] * 400)

    def inner(state, data, packed, ref_logp):
        metrics = {"grad_norm": norms[state.step], "imitate": data.extra["imitate"]}
        return state.replace(step=state.step + 1), metrics

    update = jax.jit(extension.update(ctx, inner))
    state = extension.init(ctx, TrainState({}, (), jnp.int32(0)))
    for _ in range(402):
        state, metrics = update(state, batch(0), None, None)
        seen.append({name: np.asarray(value) for name, value in metrics.items()})
    shares = [float(m["imitation_probability"]) for m in seen]
    imitated = [bool(m["imitate"][0]) for m in seen]
    assert all(m["imitate"].all() == m["imitate"].any() for m in seen)
    assert imitated[:2] == [True, True] and shares[:2] == [1.0, 1.0]
    first = imitated.index(True, 2)
    np.testing.assert_allclose(shares[2 : first + 1], 2 / (2 + 3 * 2), rtol=1e-6)
    np.testing.assert_allclose(shares[first + 1 :], 0.5, rtol=1e-6)
    assert 0.4 < np.mean(imitated[first + 1 :]) < 0.6
    assert float(seen[-1]["imitation_norm"]) == 6.0
