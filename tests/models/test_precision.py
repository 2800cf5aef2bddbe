"""Products of fp32 are asked for in fp32, where exactness is promised, on every platform."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.export
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import attention, decoder, head, linear, lora, quantize, reward, value
from jaxrl.models.config import DecoderConfig, Experts, Latent
from jaxrl.models.control import mlp
from jaxrl.sampling import logits

_SHAPE = (19, 16, 24, 1, 4, 2, 8)
_LATENT = Latent(kv_rank=8, q_rank=4, nope_dim=8, rope_dim=4, v_dim=6)
MODELS = {
    "plain": DecoderConfig(*_SHAPE, tie_embeddings=False),
    "experts": DecoderConfig(*_SHAPE, experts=Experts(4, 2, 8, shared_size=8)),
    "latent": DecoderConfig(*(19, 16, 24, 1, 4, 4, 8), latent=_LATENT),
}
HIGHEST = jax.lax.Precision.HIGHEST


def products(jaxpr: Any) -> Iterator[tuple[Any, set[str]]]:
    """Precision and types of the operands of every matrix product, those of kernels included."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("dot_general", "ragged_dot_general", "ragged_dot"):
            types = {str(x.aval.dtype) for x in eqn.invars[:2]}
            yield eqn.params["precision"], types
        for inner in jax.tree.leaves(
            list(eqn.params.values()),
            is_leaf=lambda x: isinstance(x, jax.extend.core.Jaxpr | jax.extend.core.ClosedJaxpr),
        ):
            inner = getattr(inner, "jaxpr", inner)
            if isinstance(inner, jax.extend.core.Jaxpr):
                yield from products(inner)


def of(function: Any, *args: Any) -> list[tuple[Any, set[str]]]:
    found = list(products(jax.make_jaxpr(function)(*args).jaxpr))
    assert found
    return found


def in_fp32(found: list[tuple[Any, set[str]]]) -> bool:
    return all(p in (HIGHEST, (HIGHEST, HIGHEST)) for p, types in found if types == {"float32"})


def loss(config: DecoderConfig, params: decoder.Params, length: int = 9, **changes: Any):
    tokens = jnp.zeros((1, length), jnp.int32)
    index = jnp.arange(length)[None]
    hidden = decoder.hidden(
        config, params, tokens, index, jnp.full_like(index, length), remat="full", **changes
    )
    logp, _ = head.token_logprobs(hidden, decoder.unembedding(params), tokens, chunk=4)
    return jnp.sum(logp)


def abstract(config: DecoderConfig) -> decoder.Params:
    return jax.eval_shape(lambda: decoder.init(config, jax.random.key(0)))


@pytest.mark.exact("compute in float32 asks for fp32 products on every platform: the trainer's")
@pytest.mark.parametrize("name", MODELS)
def test_training_in_fp32(name):
    """Log-probs and every gradient."""
    config = MODELS[name]
    found = of(jax.value_and_grad(lambda params: loss(config, params)), abstract(config))
    assert in_fp32(found) and all(types == {"float32"} for _, types in found)


@pytest.mark.exact("compute in float32 asks for fp32 products on every platform: the sampler's")
@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("name", MODELS)
def test_sampling_in_fp32(name, length):
    config = MODELS[name]

    def step(params):
        params = linear.outputs_first(decoder.unstack(params))
        index = jnp.arange(length)[None]
        cache = decoder.empty_cache(config, 1, 32)
        hidden, _ = decoder.extend(config, params, jnp.zeros_like(index), index, cache)
        return head.logits(hidden, decoder.unembedding(params))

    found = of(step, abstract(config))
    assert in_fp32(found) and all(types == {"float32"} for _, types in found)


@pytest.mark.sample(1, broad=1)
@pytest.mark.parametrize("kind", ["nf4", None])
def test_adapters_in_fp32(kind):
    config, settings = MODELS["plain"], lora.LoraConfig(rank=2, dora=True)
    params = jax.jit(decoder.init, static_argnums=0)(config, jax.random.key(0))
    base = quantize.quantize(config, params, kind) if kind else params
    adapters = lora.init(jax.random.key(1), config, base, settings)
    found = of(jax.grad(lambda a: loss(config, lora.attach(config, base, a, settings))), adapters)
    assert in_fp32(found)


def test_splash_in_fp32():
    """In the kernels themselves, forward and backward; in bf16 they are left as they are."""
    config = dataclasses.replace(MODELS["plain"], attention="splash")
    for dtype in ("float32", "bfloat16"):
        model = dataclasses.replace(config, dtype=dtype)
        found = of(jax.grad(lambda p, m=model: loss(m, p, length=128)), abstract(model))
        assert in_fp32(found) == (dtype == "float32")
    assert jax.config.jax_default_matmul_precision is None


def test_routers_and_heads_in_fp32_whatever_the_compute_dtype():
    """Routers choose the same experts in trainer and sampler; values and rewards are regressed."""
    config = dataclasses.replace(MODELS["experts"], dtype="bfloat16")
    found = of(jax.grad(lambda params: loss(config, params)), abstract(config))
    exact = [p for p, types in found if types == {"float32"}]
    assert len(exact) >= 3 and all(p in (HIGHEST, (HIGHEST, HIGHEST)) for p in exact)
    assert any("bfloat16" in types for _, types in found)  # the rest is not

    hidden = jnp.zeros((1, 4, 16), jnp.bfloat16)
    settings = value.ValueConfig(bins=3)

    def values(params):
        return value.values(settings, value.outputs(params, hidden)).sum()

    def rewards(params):
        return reward.score(params, hidden).sum()

    heads = (values, value.init(settings, 16)), (rewards, {"score": jnp.ones((16, 1))})
    for function, params in heads:
        found = of(jax.value_and_grad(function), params)
        assert in_fp32(found) and all(types == {"float32"} for _, types in found)


def test_networks_of_control_and_guides_in_fp32():
    params = mlp.ensemble(jax.random.key(0), 2, (3, 4, 1), norm=True)
    states = jnp.zeros((5, 3))

    def apply(params):
        return jax.vmap(lambda p: mlp.apply(p, states))(params).sum()

    assert in_fp32(of(jax.value_and_grad(apply), params))
    context = logits.Context(states, jnp.zeros((5, 1), jnp.int32), jnp.ones(5, jnp.int32), ())
    guided = functools.partial(logits.value_guided, context=context, args=(jnp.zeros((7, 3)), 0.1))
    assert in_fp32(of(guided, jnp.zeros((5, 7))))


def test_precision_reaches_the_compiler():
    """StableHLO for TPU and CUDA names the precision of each product."""
    mask = attention.tree_mask(jnp.full((1, 8), 8))

    def attend(q):
        return attention.attend(q, q, q, mask, kernel="xla")

    for platform in ("tpu", "cuda"):
        module = jax.export.export(jax.jit(attend), platforms=[platform])(
            jax.ShapeDtypeStruct((1, 8, 2, 8), np.float32)
        ).mlir_module()
        lines = [line for line in module.splitlines() if "stablehlo.dot_general" in line]
        assert len(lines) == 2 and all("precision = [HIGHEST, HIGHEST]" in line for line in lines)
