"""The kernels of attention against plain XLA, and that they lower for the platforms they serve."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.export import DisabledSafetyCheck

from jaxrl.config import Config
from jaxrl.models import attention, decoder
from jaxrl.models.config import DecoderConfig, Latent, LayerKinds
from jaxrl.rollout import policy

VISIBLE = np.zeros((2, 200), np.int32)  # not a multiple of the kernel's blocks
VISIBLE[0, :40], VISIBLE[0, 40:90], VISIBLE[0, 90:150] = 150, 90, 150  # a prompt, two branches
VISIBLE[1] = 200
REAL = VISIBLE > 0


def _inputs(size: int, value_size: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    shapes = (2, 200, 4, size), (2, 200, 2, size), (2, 200, 2, value_size)
    return tuple(jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)


@pytest.mark.sample(1, broad=2)
@pytest.mark.exact("splash attention on trees equals XLA's to 1e-5")
@pytest.mark.parametrize(
    ("value_size", "softcap", "window", "chunk"),
    [(16, None, None, None), (24, 5.0, 30, None), (16, None, None, 37)],
)
def test_splash_is_exact_on_trees(value_size, softcap, window, chunk):
    """Shared prompts, grouped queries, uneven sizes, soft-caps, windows with sinks, chunks; and
    gradients."""
    inputs, mask = _inputs(16, value_size), attention.tree_mask(jnp.asarray(VISIBLE))
    if window:
        index = jnp.arange(200)[None]
        mask = attention.tree_mask(jnp.asarray(VISIBLE), index)
        mask = mask.replace(window=jnp.int32(window), sink=jnp.int32(3))
    if chunk:
        mask = mask.replace(chunk=jnp.int32(chunk))
    weights = np.random.default_rng(1).normal(size=(2, 200, 4, value_size)) * REAL[..., None, None]

    def run(kernel):
        def loss(*qkv):
            y = attention.attend(*qkv, mask, scale=0.3, softcap=softcap, kernel=kernel)
            return jnp.sum(y * weights), y

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*inputs)

    (expected, y), (got, ours) = run("xla"), run("splash")
    assert np.isfinite(ours).all()  # padding too
    np.testing.assert_allclose(ours[REAL], y[REAL], atol=1e-5)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


def test_what_cudnn_is_given_is_the_attention_that_is_asked_for(monkeypatch):
    """Its arguments, computed by XLA in its place: trees and padding, and gradients."""
    library = jax.nn.dot_product_attention

    def by_xla(*args, implementation, **options):
        assert implementation == "cudnn"
        return library(*args, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    inputs, mask = _inputs(16, 16), attention.tree_mask(jnp.asarray(VISIBLE))
    weights = np.random.default_rng(1).normal(size=(2, 200, 4, 16)) * REAL[..., None, None]

    def run(kernel):
        def loss(*qkv):
            y = attention.attend(*qkv, mask, scale=0.3, kernel=kernel)
            return jnp.sum(y * weights), y

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*inputs)

    (expected, y), (got, ours) = run("xla"), run("cudnn")
    assert np.isfinite(ours).all()  # padding too
    np.testing.assert_allclose(ours[REAL], y[REAL], atol=1e-5)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


@pytest.mark.broad
@pytest.mark.exact("a decoder with splash attention has the loss and gradients of XLA's")
def test_a_decoder_by_splash():
    """Alternating windows and a soft-cap: hidden states and gradients of every parameter."""
    config = DecoderConfig(
        19, 16, 24, 2, 4, 2, 8, sliding_window=30, local_layers=(True, False), attention_softcap=4.0
    )
    params = decoder.init(config, jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, 19, VISIBLE.shape).astype(np.int32)
    positions = np.broadcast_to(np.arange(200, dtype=np.int32), VISIBLE.shape)

    @functools.partial(jax.jit, static_argnums=0)
    def gradient(kernel, params):
        def loss(params):
            model = dataclasses.replace(config, attention=kernel)
            x = decoder.hidden(model, params, tokens, positions, VISIBLE)
            return jnp.sum(jnp.where(REAL[..., None], x, 0) ** 3)

        return jax.value_and_grad(loss)(params)

    (loss, expected), (ours, got) = gradient("xla", params), gradient("splash", params)
    assert float(ours) == pytest.approx(float(loss), rel=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(b).max()), got, expected
    )


def _shapes(length: int, size: int = 64, value_size: int = 64, dtype: str = "bfloat16"):
    shapes = (2, length, 4, size), (2, length, 2, size), (2, length, 2, value_size)
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def test_who_computes_what():
    ours, cap = attention.choose, 50.0
    assert ours("tpu", *_shapes(256), cap) == "splash"
    assert ours("tpu", *_shapes(64), None) == "xla"
    assert ours("cpu", *_shapes(256), None) == "xla"
    assert ours("gpu", *_shapes(256), None) == "cudnn"
    assert ours("gpu", *_shapes(256), cap) == "xla"
    assert ours("gpu", *_shapes(256, 192, 128), None) == "xla"
    assert ours("gpu", *_shapes(256, dtype="float32"), None) == "xla"
    assert ours("gpu", *_shapes(255), None) == "xla"


def test_what_a_kernel_cannot_do_is_refused():
    inputs, mask = _inputs(16, 16), attention.tree_mask(jnp.asarray(VISIBLE))
    with pytest.raises(ValueError, match=r"attention='cudnn' has no softcap=5\.0; use 'auto'"):
        attention.attend(*inputs, mask, softcap=5.0, kernel="cudnn")
    with pytest.raises(ValueError, match="attention='flash': choose auto, xla, cudnn or splash"):
        attention.attend(*inputs, mask, kernel="flash")
    for kernel in ("cudnn", "splash"):
        with pytest.raises(ValueError, match=f"attention='{kernel}' has no attention sinks"):
            attention.attend(*inputs, mask, sinks=jnp.zeros(4), kernel=kernel)


@pytest.mark.parametrize(
    ("change", "lack"),
    [
        ({"head_dim": 264}, r"heads of \[264\] features, only of multiples of 8 up to 256"),
        ({"kinds": LayerKinds(512, 1)}, r"heads of \[512\] features"),
        ({"latent": Latent(512, None, 128, 64, 128)}, r"heads of \[576\] features"),
        ({"head_dim": 20}, r"heads of \[20\] features"),
        ({"dtype": "float32"}, "compute_dtype='float32', only bfloat16"),
        ({"attention_softcap": 5.0}, r"softcap=5\.0"),
        ({"sinks": True}, "attention sinks"),
    ],
)
def test_a_decoder_is_refused_before_it_is_built(change, lack):
    config = DecoderConfig(11, 8, 8, 1, 2, 1, 64, attention="cudnn", dtype="bfloat16")
    attention.check(config)
    with pytest.raises(ValueError, match=rf"attention='cudnn' has no {lack}.*; use 'auto' or"):
        attention.check(dataclasses.replace(config, **change))
    attention.check(dataclasses.replace(config, **change, attention="xla"))


def test_a_run_refuses_a_kernel_before_its_first_step():
    config = Config(attention="cudnn", compute_dtype="bfloat16")
    config = dataclasses.replace(config, fresh=dataclasses.replace(config.fresh, head_dim=264))
    with pytest.raises(ValueError, match=r"attention='cudnn' has no heads of \[264\] features"):
        policy.describe(config)


def test_what_a_device_lacks_names_the_remedy(monkeypatch):
    def lacking(*args, **options):
        raise NotImplementedError("The head dim must be <= 128.")

    monkeypatch.setattr(jax.nn, "dot_product_attention", lacking)
    inputs, mask = _inputs(16, 16), attention.tree_mask(jnp.asarray(VISIBLE))
    with pytest.raises(ValueError, match=r"attention='cudnn': The head dim .* Use 'auto' or 'xla'"):
        attention.attend(*inputs, mask, kernel="cudnn")


def test_a_sink_is_a_key_of_no_value():
    """Of every head, whose score is the sink; the kernel that is chosen has them."""
    q, k, v = _inputs(16, 16)
    mask, sinks = attention.tree_mask(jnp.asarray(VISIBLE)), jnp.asarray([-1.0, 0.0, 1.0, 2.0])
    plain = attention.attend(q, k, v, mask, scale=0.3)
    got = attention.attend(q, k, v, mask, scale=0.3, sinks=sinks, platform="tpu")
    scores = jnp.einsum("btkgh,bskh->bkgts", q.reshape(2, 200, 2, 2, 16), k, precision="highest")
    scores = jnp.where(mask.dense(200)[:, None, None], 0.3 * scores, -jnp.inf)
    total = jax.nn.logsumexp(scores, axis=-1).reshape(2, 4, 200).transpose(0, 2, 1)
    share = jax.nn.sigmoid(total - sinks)[..., None]
    np.testing.assert_allclose(got[REAL], (share * plain)[REAL], atol=1e-5)


def _lowered(attend, platform: str, *checks: DisabledSafetyCheck) -> str:
    def loss(q, k, v, mask):
        return jnp.sum(attend(q, k, v, mask, scale=0.1).astype(jnp.float32))

    mask = attention.tree_mask(jnp.full((2, 256), 256))
    gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
    export = jax.export.export(gradient, platforms=[platform], disabled_checks=checks)
    return export(*_shapes(256), mask).mlir_module()


def test_splash_lowers_for_tpu():
    """The kernel itself, forward, dQ and dKV, through Mosaic."""
    assert _lowered(attention.splash, "tpu").count("@tpu_custom_call") == 3


def test_cudnn_lowers_for_cuda(monkeypatch):
    """With a library and a device that are claimed to be there."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda _: False)
    calls = ["__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"]
    checks = [DisabledSafetyCheck.custom_call(call) for call in calls]
    program = _lowered(functools.partial(attention.attend, kernel="cudnn"), "cuda", *checks)
    assert all(f"@{call}(" in program for call in calls)
