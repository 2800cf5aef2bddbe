"""Adapters: against PEFT, their merge and the sampler's form; and quantised weights."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import decoder, head, linear, lora, quantize
from jaxrl.models.checkpoints import peft
from jaxrl.models.config import DecoderConfig, Experts, Latent
from jaxrl.models.lora import LoraConfig
from tests.models.test_extend import FAMILIES

SMALL = dict(vocab_size=17, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4)
DENSE = DecoderConfig(**SMALL, num_kv_heads=2, head_dim=8)
MIXED = DecoderConfig(  # latent attention, a dense layer below experts
    **SMALL,
    num_kv_heads=4,
    head_dim=12,
    latent=Latent(kv_rank=16, q_rank=None, nope_dim=8, rope_dim=4, v_dim=8),
    experts=Experts(num_experts=4, per_token=2, size=16, shared_size=16, dense_layers=1),
)
TOKENS = jax.random.randint(jax.random.key(7), (1, 9), 0, 17)
POSITIONS = jnp.arange(9)[None]


def _hidden(model, params):
    return decoder.hidden(model, params, TOKENS, POSITIONS, jnp.full((1, 9), 9))


hidden = jax.jit(_hidden, static_argnums=0)


def _trained(model, params, config):
    fresh = lora.init(jax.random.key(1), model, params, config)
    keys = iter(jax.random.split(jax.random.key(2), 100))
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape), fresh)


@pytest.mark.sample(1, broad=1)
@pytest.mark.exact("adapters beside, merged into and sampled over their base agree to 1e-5")
@pytest.mark.parametrize(
    ("model", "dora", "kind"),
    [
        (DENSE, False, None),
        pytest.param(DENSE, True, "int8", marks=pytest.mark.broad),
        pytest.param(MIXED, False, "nf4", marks=pytest.mark.broad),
        pytest.param(MIXED, True, None, marks=pytest.mark.broad),
        pytest.param(FAMILIES["local layers"], False, "int8", marks=pytest.mark.slow),
        pytest.param(FAMILIES["experts"], False, "nf4", marks=pytest.mark.slow),
        pytest.param(FAMILIES["kinds"], False, "nf4", marks=pytest.mark.slow),
        pytest.param(FAMILIES["kinds"], True, "int8", marks=pytest.mark.slow),
        pytest.param(FAMILIES["chunks"], False, "int8", marks=pytest.mark.slow),
        pytest.param(FAMILIES["chunks"], True, "nf4", marks=pytest.mark.slow),
    ],
    ids=[
        "lora",
        "dora-int8",
        "experts-lora-nf4",
        "latent-dora",
        "local-lora-int8",
        "experts-alone-lora-nf4",
        "kinds-lora-nf4",
        "kinds-dora-int8",
        "chunks-lora-int8",
        "chunks-dora-nf4",
    ],
)
def test_adapters_over_any_base(model, dora, kind):
    """Fresh adapters change nothing; trained ones equal their merge and reach the sampler."""
    params = decoder.init(model, jax.random.key(0))
    base = quantize.quantize(model, params, kind) if kind else params
    targets = ("*/attention/*",) if dora else ("*/attention/*", "*/mlp/*")
    config = LoraConfig(rank=3, alpha=8.0, dora=dora, targets=targets)
    off = hidden(model, base)

    fresh = lora.init(jax.random.key(1), model, base, config)
    np.testing.assert_allclose(
        hidden(model, lora.attach(model, base, fresh, config)), off, atol=1e-5
    )
    adapters = _trained(model, base, config)
    attached = lora.attach(model, base, adapters, config)
    on = hidden(model, attached)
    assert jnp.abs(on - off).max() > 0.1
    np.testing.assert_allclose(
        hidden(model, lora.merge(model, base, adapters, config)), on, atol=1e-5
    )

    unstacked = decoder.cast(decoder.unstack(attached), "float32")
    cached, _ = jax.jit(decoder.extend, static_argnums=0, static_argnames="window")(
        model, unstacked, TOKENS, POSITIONS, decoder.empty_cache(model, 1, 9), window=9
    )
    np.testing.assert_allclose(cached, on, atol=1e-5)


@pytest.mark.sample(0, broad=4)
@pytest.mark.exact("layers of every kind compute with quantised weights as with their numbers")
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("hybrid", "nf4"),
        ("mamba", "int8"),
        ("parts", "int8"),
        ("convolution", "nf4"),
        ("kinds", "nf4"),
        ("beside", "int8"),
        ("channels", "nf4"),
        ("chunks", "int8"),
    ],
)
def test_layers_of_every_kind_over_quantised_weights(family, kind):
    """In training and over a cache."""
    model = FAMILIES[family]
    params = jax.jit(decoder.init, static_argnums=0)(model, jax.random.key(0))
    quantised = quantize.quantize(model, params, kind)
    off = LoraConfig(rank=1)
    numbers = lora.merge(model, quantised, lora.init(jax.random.key(1), model, params, off), off)
    got = hidden(model, quantised)
    assert jnp.abs(got - hidden(model, params)).max() > 0.01
    np.testing.assert_allclose(got, hidden(model, numbers), atol=1e-5)
    cached, _ = jax.jit(decoder.extend, static_argnums=0, static_argnames="window")(
        model, decoder.unstack(quantised), TOKENS, POSITIONS, decoder.empty_cache(model, 1, 9),
        window=9,
    )  # fmt: skip
    np.testing.assert_allclose(cached, got, atol=1e-5)


@pytest.mark.slow
@pytest.mark.exact("trained adapters over quantised mixers equal their merge up to rounding")
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("hybrid", "nf4"),
        ("channels", "int8"),
        ("mamba", "nf4"),
        ("convolution", "int8"),
        ("beside", "nf4"),
        ("parts", "int8"),
    ],
)
def test_trained_adapters_over_quantised_mixers(family, kind):
    """A recurrence carries rounding on, so the bound is what it makes of a last bit of the weights:
    merging rounds each of them once, and computing beside them rounds each sum."""
    model, config = FAMILIES[family], LoraConfig(rank=3, alpha=8.0)
    params = jax.jit(decoder.init, static_argnums=0)(model, jax.random.key(0))
    base = quantize.quantize(model, params, kind)
    adapters = _trained(model, base, config)
    beside = hidden(model, lora.attach(model, base, adapters, config))
    merged = lora.merge(model, base, adapters, config)
    expected = hidden(model, merged)

    def change(seed: int) -> jax.Array:
        """Of the states, by a last bit of each weight."""
        rng = np.random.default_rng(seed)
        bits = jax.tree.map(lambda w: w * (1 + 2.0**-23 * rng.choice([-1, 1], w.shape)), merged)
        bits = jax.tree.map(lambda w: jnp.asarray(w, jnp.float32), bits)
        return jnp.abs(hidden(model, bits) - expected).max()

    error, bound = jnp.abs(beside - expected).max(), max(change(seed) for seed in range(3))
    assert error < 4 * bound < 1e-3


def test_gradients_flow_to_adapters_alone():
    """And equal those that the merged matrix hands down: dW = (dA B + A dB) scale."""
    params = decoder.init(DENSE, jax.random.key(0))
    config = LoraConfig(rank=3, targets=("layers/mlp/up",))
    adapters = _trained(DENSE, params, config)

    def loss(params):
        return jnp.sum(jnp.sin(_hidden(DENSE, params)))

    got = jax.jit(jax.grad(lambda a: loss(lora.attach(DENSE, params, a, config))))(adapters)
    dw = jax.jit(jax.grad(loss))(lora.merge(DENSE, params, adapters, config))["layers"]["mlp"]["up"]
    a, b = (adapters["layers"]["mlp"]["up"][name] for name in "ab")
    scale = 32 / 3
    up = got["layers"]["mlp"]["up"]
    np.testing.assert_allclose(up["a"], dw @ b.swapaxes(1, 2) * scale, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(up["b"], a.swapaxes(1, 2) @ dw * scale, rtol=1e-3, atol=1e-4)


def test_dropout_is_of_the_key_and_keeps_the_mean():
    weight = linear.Adapted(
        base=jnp.zeros((8, 1)),
        a=jnp.eye(8),
        b=jnp.ones((8, 1)),
        magnitude=None,
        key=jax.random.key(0),
        scale=1.0,
        dropout=0.25,
    )
    x = jnp.ones((4000, 8))
    y = linear.project(x, weight)
    np.testing.assert_array_equal(y, linear.project(x, weight))
    assert (y != linear.project(x, weight.replace(key=jax.random.key(1)))).any()
    kept = np.round(np.asarray(y) * 0.75)  # each feature passes or not, scaled by 1 / 0.75
    np.testing.assert_allclose(kept / 0.75, y, rtol=1e-5)
    assert y.mean() == pytest.approx(8, abs=0.1)


def test_layers_drop_differently():
    params = decoder.init(DENSE, jax.random.key(0))
    config = LoraConfig(rank=2, dropout=0.5, targets=("*/up",))
    adapters = _trained(DENSE, params, config)
    attached = lora.attach(DENSE, params, adapters, config, key=jax.random.key(3))
    keys = jax.random.key_data(attached["layers"]["mlp"]["up"].key)
    assert (keys[0] != keys[1]).any()
    off = hidden(DENSE, lora.attach(DENSE, params, adapters, config))
    assert jnp.abs(hidden(DENSE, attached) - off).max() > 0.01


def test_a_matrix_outside_the_layers_has_one_key_for_dropout():
    """Such as the score of a reward model, or a projection of Gemma 4's inputs."""
    model = dataclasses.replace(DENSE, labels=1)
    params = decoder.init(model, jax.random.key(0))
    config = LoraConfig(rank=2, dropout=0.5, targets=("score",))
    adapters = lora.init(jax.random.key(1), model, params, config)
    score = lora.attach(model, params, adapters, config, key=jax.random.key(3))["score"]
    assert score.key.shape == ()
    x = jnp.ones((2, model.hidden_size))
    assert jnp.isfinite(linear.project(x, score)).all()


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_quantisation_error_is_bounded(kind):
    """By the stated part of each block's greatest magnitude, an independent loop over blocks."""
    params = decoder.init(DENSE, jax.random.key(0))
    params["layers"]["attention"]["o"] *= jnp.linspace(0, 3, 32)  # whole outputs of zeros too
    quantised = quantize.quantize(DENSE, params, kind)
    bits = {"int8": 8, "nf4": 4}[kind]
    for path in (("attention", "o"), ("mlp", "down")):
        true, stored = (tree["layers"][path[0]][path[1]] for tree in (params, quantised))
        for layer in range(2):
            size = true[layer].size // 32
            w = np.asarray(true[layer]).reshape(size, 32)
            one = jax.tree.map(lambda x: x[layer], stored)  # noqa: B023
            got = np.asarray(linear.dense(one, jnp.float32)).reshape(size, 32)
            block = np.gcd(size, 64)
            for start in range(0, size, block):
                rows = slice(start, start + block)
                peak = np.abs(w[rows]).max(axis=0)
                error = np.abs(got[rows] - w[rows]).max(axis=0)
                assert (error <= peak * quantize.error_bound(kind) * (1 + 1e-5)).all()
                assert (error[peak > 0] > 0).all()
        assert stored.codes.size * stored.codes.itemsize == true.size * bits // 8


def test_targets_that_match_nothing_or_everything():
    with pytest.raises(ValueError, match="targets has 'query', which matches none of"):
        lora.targets(DENSE, LoraConfig(targets=("query",)))
    with pytest.raises(ValueError, match="dora adapts no experts"):
        lora.targets(MIXED, LoraConfig(dora=True))
    with pytest.raises(ValueError, match="rank=-1"):
        LoraConfig(rank=-1)
    paths = {"/".join(path) for path in lora.targets(MIXED, LoraConfig())}
    assert "layers/mlp/gate" in paths and "layers/mlp/router" not in paths
    assert ("layers", "mlp", "router") in lora.targets(MIXED, LoraConfig(targets=("*/router",)))


def test_abstract_describes_init():
    config = LoraConfig(rank=3, dora=True)
    params = decoder.init(DENSE, jax.random.key(0))
    shapes, axes = lora.abstract(DENSE, config)
    made = lora.init(jax.random.key(0), DENSE, params, config)
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, shapes)
    names = jax.tree.leaves(axes, is_leaf=lambda x: isinstance(x, tuple))
    assert [len(n) for n in names] == [x.ndim for x in jax.tree.leaves(made)]


def _logits(model, params, tokens):
    positions = jnp.arange(tokens.shape[1])[None]
    out = decoder.hidden(model, params, tokens, positions, jnp.full(tokens.shape, tokens.shape[1]))
    return head.logits(out[0], decoder.unembedding(params))


@pytest.mark.exact("adapters read from and written for PEFT give its logits to 1e-4")
@pytest.mark.parity
@pytest.mark.parametrize("style", ["lora", "rslora", "dora"])
def test_peft(tiny_model, style, tmp_path):
    """PEFT's adapters give PEFT's logits here; ours, saved, give ours there."""
    import copy

    import torch

    theirs = pytest.importorskip("peft")
    model, _, config, params = tiny_model("llama")
    options = theirs.LoraConfig(
        r=3,
        lora_alpha=7,
        target_modules=["q_proj", "o_proj", "down_proj"],
        use_rslora=style == "rslora",
        use_dora=style == "dora",
        task_type="CAUSAL_LM",
    )
    wrapped = theirs.get_peft_model(copy.deepcopy(model), options)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, value in wrapped.named_parameters():
            if "lora_" in name:
                value.add_(0.2 * torch.randn_like(value))
    wrapped.save_pretrained(tmp_path / "theirs")
    lora_config, adapters = peft.load(tmp_path / "theirs", config)
    tokens = np.arange(3, 15)[None]
    with torch.no_grad():
        expected = wrapped(torch.tensor(tokens)).logits[0].numpy()
        off = model(torch.tensor(tokens)).logits[0].numpy()
    got = _logits(config, lora.attach(config, params, adapters, lora_config), tokens)
    np.testing.assert_allclose(got, expected, atol=1e-4)
    assert np.abs(off - expected).max() > 0.1

    peft.save(tmp_path / "ours", config, adapters, lora_config)
    again = theirs.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path / "ours")
    with torch.no_grad():
        np.testing.assert_array_equal(again(torch.tensor(tokens)).logits[0].numpy(), expected)


def test_peft_refusals(tmp_path):
    model = DecoderConfig(**SMALL, num_kv_heads=2, head_dim=8, family="phi3")
    config = LoraConfig(rank=2, targets=("*/attention/q",))
    with pytest.raises(ValueError, match=r"no module of its own for \['layers/attention/q'\]"):
        peft.save(tmp_path, model, {}, config)

    params = decoder.init(DENSE, jax.random.key(0))
    peft.save(tmp_path, DENSE, lora.init(jax.random.key(0), DENSE, params, config), config)
    raw = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(raw | {"bias": "all"}))
    with pytest.raises(ValueError, match="bias='all'"):
        peft.load(tmp_path, DENSE)
    (tmp_path / "adapter_config.json").write_text(json.dumps(raw | {"use_dora": True}))
    with pytest.raises(ValueError, match=r"missing tensors \['base_model.*magnitude"):
        peft.load(tmp_path, DENSE)
