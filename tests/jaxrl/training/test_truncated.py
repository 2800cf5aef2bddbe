"""Log-probabilities, entropies and updates over recorded supports, against a plain computation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.models import decoder
from jaxrl.sampling import support
from jaxrl.training import logprobs
from jaxrl.training.logprobs import all_logprobs
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.training.train_step import init_state, make_update
from tests.jaxrl.batches import MODEL, batch

TEMPERATURE = 0.8
SHAPES = [
    PackingConfig(4096, row_length=64),
    PackingConfig(32, row_length=24),
    PackingConfig(64, row_length=32, share_prompts=False),
]
BROAD = functools.partial(pytest.param, marks=pytest.mark.broad)


@pytest.fixture(scope="module")
def world():
    """A batch with supports of mixed sizes, its masks [N, T, V], and a policy."""
    rng, data = np.random.default_rng(0), batch(0)
    kept = rng.random((*data.tokens.shape, MODEL.vocab_size)) < 0.2
    np.put_along_axis(kept, data.tokens[..., None], True, axis=-1)
    words = np.array(support.to_words(jnp.asarray(kept)))
    whole = ~data.action_mask | (rng.random(data.tokens.shape) < 0.2)
    words[whole], kept[whole] = 0, True
    params = jax.jit(functools.partial(decoder.init, MODEL))(jax.random.key(0))
    return data.replace(support=words), kept, params


def plain(params, data, kept):
    """Log-probabilities and entropies [N, T], each sequence in a row of its own."""
    count, width = data.tokens.shape
    position = jnp.broadcast_to(jnp.arange(width), (count, width))
    hidden = decoder.hidden(MODEL, params, data.tokens, position, jnp.full((count, width), width))
    logits = (hidden @ decoder.unembedding(params).T)[:, :-1] / TEMPERATURE
    p = jnp.where(kept[:, 1:], jnp.exp(logits), 0.0)
    p = p / p.sum(axis=-1, keepdims=True)
    chosen = jnp.take_along_axis(p, data.tokens[:, 1:, None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1.0)), 0.0), axis=-1)
    at = data.action_mask[:, 1:]
    pads = ((0, 0), (1, 0))
    return tuple(jnp.pad(jnp.where(at, x, 0.0), pads) for x in (jnp.log(chosen), entropy))


@pytest.mark.exact("log-probs and entropies over recorded supports equal plain ones to 2e-5")
@pytest.mark.parametrize("shape", [SHAPES[0], *map(BROAD, SHAPES[1:])])
@pytest.mark.parametrize("chunk", [1024, BROAD(16)])
def test_log_probabilities_are_over_the_recorded_supports(world, shape, chunk, monkeypatch):
    data, kept, params = world
    monkeypatch.setattr(logprobs, "_LOGIT_TOKENS", chunk)
    packed = pack(data, shape)[0]
    score = jax.jit(lambda p, packed: all_logprobs(MODEL, p, packed, temperature=TEMPERATURE))
    for got, expected in zip(score(params, packed), plain(params, data, kept), strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5)
    full = score(params, packed.replace(support=None))
    assert np.abs(full[0] - score(params, packed)[0]).max() > 0.5


@pytest.mark.exact("an update over recorded supports equals the plain gradient to 1e-5")
@pytest.mark.parametrize("shape", [BROAD(SHAPES[0]), SHAPES[1]])
def test_the_update_is_the_gradient_over_the_supports(world, shape):
    """Of `-mean logp` with an entropy bonus, whose gradient must not be nan for what is cut."""
    data, kept, params = world
    mask = data.action_mask & data.valid[:, None]

    def loss(params):
        logp, entropy = plain(params, data, kept)
        return jnp.sum(jnp.where(mask, -logp - 0.1 * entropy, 0.0)) / mask.sum()

    objective = ObjectiveConfig(policy=f"{__name__}:imitation", entropy_coef=0.1)
    sgd = optax.sgd(1.0)
    update = make_update(
        MODEL, objective, sgd, temperature=TEMPERATURE, max_new_tokens=9, remat="none"
    )
    state = init_state(jax.tree.map(jnp.array, params), sgd)
    after, _ = update(state, data.replace(support=None), pack(data, shape)[0], None)
    for old, new, slope in zip(
        *map(jax.tree.leaves, (params, after.params, jax.jit(jax.grad(loss))(params))), strict=True
    ):
        np.testing.assert_allclose(old - new, slope, atol=1e-5)


def imitation(logp):
    return -logp, {}


def test_what_reads_logits_in_another_way_is_refused(world):
    data, _, params = world
    packed = pack(data, SHAPES[0])[0]
    with pytest.raises(ValueError, match=r"neither with a restriction nor with a reading.*top_k"):
        all_logprobs(
            MODEL, params, packed, temperature=1.0, reading=lambda logits, theirs, targets: targets
        )
