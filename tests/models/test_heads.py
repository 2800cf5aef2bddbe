"""Heads: chunked token log-probabilities, values, rewards; remat policies; bf16 compute."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import decoder, head, linear, remat, reward, value
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import DecoderConfig
from jaxrl.models.value import ValueConfig
from tests.models import tiny

CONFIG = DecoderConfig(
    vocab_size=19,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
)


@pytest.mark.sample(2, broad=2)
@pytest.mark.exact("log-probs and gradients computed in chunks equal those of the whole to 1e-5")
@pytest.mark.parametrize("chunk", [4, 7, 100])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_token_logprobs(chunk, softcap):
    """Against float64 NumPy, whatever the chunk; gradients against finite differences."""
    rng = np.random.default_rng(0)
    h, w = rng.normal(size=(7, 5)), rng.normal(size=(11, 5))
    targets = rng.integers(0, 11, 7)

    def oracle(h):
        logits = h @ w.T
        logits = logits if softcap is None else softcap * np.tanh(logits / softcap)
        logits = logits / 0.7
        logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return logp[np.arange(7), targets], -(np.exp(logp) * logp).sum(-1)

    def ours(h):
        return head.token_logprobs(
            jnp.asarray(h, jnp.float32),
            jnp.asarray(w, jnp.float32),
            jnp.asarray(targets),
            softcap=softcap,
            process=lambda logits: logits / 0.7,
            chunk=chunk,
        )

    for got, expected in zip(ours(h), oracle(h), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)
    got = jax.grad(lambda h: sum(x.sum() for x in ours(h)))(jnp.asarray(h, jnp.float32))
    direction, eps = rng.normal(size=h.shape), 1e-6
    total = [sum(x.sum() for x in oracle(h + s * eps * direction)) for s in (1, -1)]
    assert np.sum(got * direction) == pytest.approx((total[0] - total[1]) / (2 * eps), rel=1e-4)


def test_truncated_tokens_have_no_entropy():
    def keep_two(logits):
        return jnp.where(jnp.arange(4) < 2, logits, -jnp.inf)

    h, w = jnp.zeros((1, 3)), jnp.ones((4, 3))
    logp, entropy = head.token_logprobs(h, w, jnp.array([1]), process=keep_two)
    np.testing.assert_allclose([logp[0], entropy[0]], [-np.log(2), np.log(2)], rtol=1e-6)


def test_value_heads():
    hidden = jnp.array([[1.0, 2.0], [0.0, -1.0]])
    scalar = {"weight": jnp.array([[0.5], [1.0]]), "bias": jnp.array([0.25])}
    out = value.outputs(scalar, hidden)
    np.testing.assert_allclose(value.values(ValueConfig(), out), [2.75, -0.75])

    three = ValueConfig(bins=3, low=-1.0, high=3.0)
    np.testing.assert_allclose(value.support(three), [-1, 1, 3])
    logits = jnp.log(jnp.array([[0.25, 0.25, 0.5]]))
    np.testing.assert_allclose(value.values(three, logits), [1.5], rtol=1e-6)
    fresh = value.init(three, 2)
    np.testing.assert_allclose(value.values(three, value.outputs(fresh, hidden)), [1.0, 1.0])
    with pytest.raises(ValueError, match=r"low=2.0 is not below high=1.0"):
        ValueConfig(bins=3, low=2.0)


@pytest.mark.exact("scores of a reward model equal those of transformers to 1e-5")
@pytest.mark.parity
def test_reward_model_equals_transformers(tmp_path):
    """A sequence classifier on packed rows, against one sequence at a time."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**tiny.VARIANTS["llama"][1], num_labels=1)
    model = transformers.LlamaForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    ours, params = huggingface.load(tmp_path)

    tokens = np.random.default_rng(0).integers(3, 97, 10)
    with torch.no_grad():
        expected = [float(model(torch.tensor(part[None])).logits) for part in np.split(tokens, [4])]
    positions = np.array([*range(4), *range(6)])
    visible = np.array([4] * 4 + [10] * 6)
    hidden = decoder.hidden(ours, params, tokens[None], positions[None], visible[None])
    got = reward.score(params, hidden[0, np.array([3, 9])])
    np.testing.assert_allclose(got[:, 0], expected, atol=1e-5)
    huggingface.save(tmp_path / "again", ours, params)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "again")
    with torch.no_grad():
        assert float(again(torch.tensor(tokens[None, 4:])).logits) == pytest.approx(expected[1])


def _loss(policy, config=CONFIG):
    tokens = jnp.arange(12)[None]
    positions, visible = jnp.arange(12)[None], jnp.full((1, 12), 12)

    def loss(params):
        hidden = decoder.hidden(config, params, tokens, positions, visible, remat=policy)
        return jnp.sum(jnp.sin(hidden.astype(jnp.float32)))

    return loss


@pytest.mark.exact("recomputation in the backward pass does not change gradients")
@pytest.mark.broad
def test_remat_policies_change_memory_alone():
    params = decoder.init(CONFIG, jax.random.key(0))
    kept, gradients = {}, {}
    for policy in ("none", "dots", "offload", "full"):
        gradients[policy] = jax.jit(jax.grad(_loss(policy)))(params)
        _, pull = jax.eval_shape(lambda p, policy=policy: jax.vjp(_loss(policy), p), params)
        kept[policy] = sum(x.size for x in jax.tree.leaves(pull))
    for policy in ("dots", "offload", "full"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            gradients[policy],
            gradients["none"],
        )
    assert kept["full"] < kept["dots"] < kept["none"]
    with pytest.raises(ValueError, match="remat='half'"):
        remat.wrap(abs, "half")


@pytest.mark.broad
def test_bf16_compute_over_fp32_weights():
    """Activations are bf16, gradients fp32, and both near those of fp32 compute."""
    config = DecoderConfig(**{**vars(CONFIG), "dtype": "bfloat16"})
    params = decoder.init(CONFIG, jax.random.key(0))
    positions, visible = jnp.arange(12)[None], jnp.full((1, 12), 12)
    run = jax.jit(decoder.hidden, static_argnums=0)
    low = run(config, params, jnp.arange(12)[None], positions, visible)
    high = run(CONFIG, params, jnp.arange(12)[None], positions, visible)
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(low.astype(jnp.float32), high, atol=0.1)
    for a, b in zip(
        jax.tree.leaves(jax.jit(jax.grad(_loss("none", config)))(params)),
        jax.tree.leaves(jax.jit(jax.grad(_loss("none")))(params)),
        strict=True,
    ):
        assert a.dtype == jnp.float32
        assert jnp.linalg.norm(a - b) < 0.05 * jnp.linalg.norm(b) + 1e-3


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (1, 2), (2, 1)])
def test_gradients_of_projections(inputs, outputs):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 5, 4, 2)[: 2 + inputs])
    w = rng.normal(size=(*(4, 2)[:inputs], *(6, 7)[:outputs]))
    dy = rng.normal(size=(3, 5, *(6, 7)[:outputs]))
    y, pull = jax.vjp(lambda x, w: linear.project(x, w, inputs=inputs), jnp.array(x), jnp.array(w))
    dx, dw = pull(jnp.array(dy, jnp.float32))
    flat_x, flat_dy = x.reshape(15, -1), dy.reshape(15, -1)
    flat_w = w.reshape(flat_x.shape[1], flat_dy.shape[1])
    np.testing.assert_allclose(y.reshape(15, -1), flat_x @ flat_w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dx.reshape(15, -1), flat_dy @ flat_w.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dw.reshape(flat_w.shape), flat_x.T @ flat_dy, rtol=1e-5, atol=1e-5)
