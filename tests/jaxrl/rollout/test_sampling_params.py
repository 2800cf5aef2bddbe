"""The sampler's weights, made a layer at a time, against one program for all of them."""

import functools

import jax
import numpy as np
import pytest

from jaxrl.models import decoder, linear, lora, quantize
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import LoraConfig
from jaxrl.rollout import policy

MODEL = DecoderConfig(32, 32, 64, 3, 2, 2, 16)


@functools.partial(jax.jit, static_argnums=(1, 2))
def at_once(params, dtype, rounded):
    params = lora.fold(params)
    if rounded is not None:
        params = quantize.quantize(rounded, params, "int8")
    return linear.outputs_first(decoder.cast(decoder.unstack(params), dtype))


@pytest.fixture(scope="module")
def params():
    return jax.jit(functools.partial(decoder.init, MODEL))(jax.random.key(0))


@pytest.mark.sample(2, broad=2)
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the layout of a CPU")
@pytest.mark.parametrize("case", ["float32", "bfloat16", "int8", "adapters"])
def test_each_layer_is_what_one_program_makes(case, params):
    dtype, rounded = "bfloat16" if case == "bfloat16" else "float32", None
    if case == "int8":
        rounded = MODEL
    if case == "adapters":
        settings = LoraConfig(rank=2)
        make = jax.jit(lambda key: lora.init(key, MODEL, params, settings))
        adapters = jax.tree.map(lambda leaf: leaf + 0.1, make(jax.random.key(1)))
        params = lora.attach(MODEL, params, adapters, settings)
    wanted, found = at_once(params, dtype, rounded), policy.sampling_params(params, dtype, rounded)
    assert jax.tree.structure(wanted) == jax.tree.structure(found)
    for one, other in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other)
