"""Parameters of bfloat16 and moments of 8 bits: rounding, learning, meshes and checkpoints."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.config import CheckpointConfig
from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import LoraConfig
from jaxrl.record import checkpoint
from jaxrl.record.writer import Writer
from jaxrl.run import loop, placement
from jaxrl.training import low_precision, optimizer, trainable
from jaxrl.training.low_precision import BlockCodes
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.types import Params, TrainState
from tests.jaxrl import tiny

ROOT = Path(__file__).parents[3]
MODEL = DecoderConfig(32, 512, 512, 1, 4, 2, 128)
BITSANDBYTES = {True: 454261483, False: 3899729807}
"""Check sums of `bitsandbytes.functional.create_dynamic_map(signed)`, version 0.50.2."""


def moments(signed: bool, shape: tuple[int, ...] = (4, 8, 1024)) -> np.ndarray:
    """Values of many sizes, as gradients are; squares where they are unsigned."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=shape) * np.exp(3 * rng.normal(size=shape))).astype(np.float32)
    return x if signed else x**2


def nearest_levels(x: np.ndarray, levels: np.ndarray, size: int = 256) -> np.ndarray:
    """Block-wise quantisation by its definition, of consecutive elements: the codes."""
    rows = x.reshape(-1, size)
    unit = rows / np.abs(rows).max(axis=1, keepdims=True)
    return np.argmin(np.abs(unit[..., None] - levels), axis=-1).reshape(x.shape)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.exact("codes of 8-bit moments are those of bitsandbytes' map, the nearest level each")
def test_codes_are_the_nearest_levels_of_the_map_of_bitsandbytes(signed):
    levels = low_precision.dynamic_map(signed=signed)
    assert zlib.crc32(levels.tobytes()) == BITSANDBYTES[signed]
    x = moments(signed)
    blocks = low_precision.quantize(jnp.asarray(x), signed=signed)
    expected = nearest_levels(x, levels)
    if not signed:  # which is no 0
        expected = np.maximum(expected, x > 0)
    np.testing.assert_array_equal(blocks.codes, expected)
    scales = np.abs(x.reshape(4, 8, 4, 256)).max(axis=-1)
    np.testing.assert_array_equal(blocks.scales, scales)
    values = low_precision.dequantize(blocks, signed=signed)
    expected_values = levels[expected] * np.repeat(scales, 256, axis=-1)
    np.testing.assert_allclose(values, expected_values, rtol=5e-7)


@pytest.mark.parametrize("signed", [True, False])
def test_codes_next_to_every_middle_of_two_levels(signed):
    levels = low_precision.dynamic_map(signed=signed)
    middles = (levels[1:] + levels[:-1]) / 2
    beside = [np.nextafter(middles, np.float32(end), dtype=np.float32) for end in (-2, 2)]
    x = np.concatenate([levels, *beside, np.zeros(1024 - 766, np.float32)]).reshape(4, 256)
    x[:, -1] = 1.0  # the scale of each block
    x = np.tile(x, (4, 1))
    codes = np.asarray(low_precision.quantize(jnp.asarray(x), signed=signed).codes).astype(int)
    expected = nearest_levels(x, levels)
    if not signed:
        expected = np.maximum(expected, x > 0)
    assert (np.abs(codes - expected) <= 1).all()  # at the middle it is either
    distance, least = (np.abs(levels[places] - x) for places in (codes, expected))
    np.testing.assert_allclose(distance, least, rtol=1e-4, atol=1e-13)
    of_levels = x == levels[expected]
    assert of_levels.sum() > 255 and (codes == expected)[of_levels].all()


def test_what_is_quantised_and_in_blocks_of_which_size():
    sizes = {(64, 64): 1, (2, 64, 256): 1, (8, 896): 4, (8, 576): 4, (8, 4096): 16, (8, 4864): 32}
    for shape, count in sizes.items():
        assert low_precision.blocks(shape) == count
        assert shape[-1] / count <= 256
    for shape in [(), (4095,), (63, 64), (4096, 4), (32, 1001)]:  # too small, or odd
        assert low_precision.blocks(shape) == 0
    nothing = low_precision.quantize(jnp.zeros((64, 64)), signed=True)
    np.testing.assert_array_equal(low_precision.dequantize(nothing, signed=True), 0)


@pytest.mark.exact("stochastic rounding gives one of the two neighbours, and the value in the mean")
def test_stochastic_rounding_is_unbiased_between_the_neighbours():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=64) * 10.0 ** rng.integers(-30, 30, 64)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 20_000)
    rounded = jax.vmap(low_precision.round_stochastically, (None, 0))(jnp.asarray(x), keys)
    rounded = np.asarray(rounded.astype(jnp.float32))
    bits = x.view(np.uint32)
    inner = (bits & 0xFFFF0000).view(np.float32)
    outer = ((bits & 0xFFFF0000) + np.uint32(1 << 16)).view(np.float32)
    assert ((rounded == inner) | (rounded == outer)).all()
    share = (rounded == outer).mean(axis=0)
    expected = (x.astype(np.float64) - inner) / (outer.astype(np.float64) - inner)
    np.testing.assert_allclose(share, expected, atol=5 * 0.5 / np.sqrt(len(keys)))


def test_stochastic_rounding_keeps_what_bfloat16_holds():
    every = jnp.arange(1 << 16, dtype=jnp.uint32).astype(jnp.uint16)
    every = jax.lax.bitcast_convert_type(every, jnp.bfloat16)
    rounded = low_precision.round_stochastically(every.astype(jnp.float32), jax.random.key(3))
    same = np.asarray(rounded).view(np.uint16) == np.asarray(every).view(np.uint16)
    assert (same | jnp.isnan(every)).all()
    np.testing.assert_array_equal(jnp.isnan(rounded), jnp.isnan(every))


def test_rounding_differs_between_keys_and_parameters_alone():
    params = {name: jnp.ones((4, 64), jnp.bfloat16) for name in "ab"}
    updates = jax.tree.map(lambda p: jnp.full(p.shape, 1e-3), params)
    one, again, other = (
        optimizer.apply_updates(params, updates, jax.random.key(seed)) for seed in (0, 0, 1)
    )
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert (one["a"] != other["a"]).any() and (one["a"] != one["b"]).any()
    wide = optimizer.apply_updates({"a": jnp.ones(3)}, {"a": jnp.full(3, 1e-3)}, None)
    np.testing.assert_array_equal(wide["a"], np.float32(1) + np.float32(1e-3))


def test_updates_are_those_of_adam_with_moments_rounded_between_them():
    """By NumPy, from the formulas of Adam and the definition of the codes."""
    rng, shape, rate = np.random.default_rng(0), (2, 16, 512), 0.1
    config = OptimizerConfig(learning_rate=rate, clip_norm=0, weight_decay=0.5, moments="int8")
    optimize = optimizer.make(config, 10, MODEL)
    params = {"layers": {"mlp": {"up": jnp.asarray(rng.normal(size=shape), jnp.float32)}}}
    state, update = optimize.init(params), jax.jit(optimize.update)
    m = v = np.zeros(shape, np.float32)
    value = np.asarray(params["layers"]["mlp"]["up"])
    for step in range(1, 5):
        gradient = moments(True, (4, *shape))[step - 1]
        grads = {"layers": {"mlp": {"up": jnp.asarray(gradient)}}}
        updates, state = update(grads, state, params)
        m, v = 0.9 * m + 0.1 * gradient, 0.95 * v + 0.05 * gradient**2
        direction = m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.95**step)) + 1e-8)
        expected = -rate * (direction + 0.5 * value)
        np.testing.assert_allclose(updates["layers"]["mlp"]["up"], expected, rtol=2e-4, atol=1e-5)
        for signed in (True, False):  # moments as they are stored, from here on those of the state
            levels = low_precision.dynamic_map(signed=signed)
            adam = next(s for s in state if isinstance(s, optax.ScaleByAdamState))
            stored = (adam.mu if signed else adam.nu)["layers"]["mlp"]["up"]
            codes = nearest_levels(m if signed else v, levels).astype(int)
            assert (np.abs(codes - np.asarray(stored.codes).astype(int)) <= 1).all()
            values = levels[np.asarray(stored.codes)] * np.repeat(stored.scales, 256, axis=-1)
            m, v = (values, v) if signed else (m, values)


def stored_codes(state: object) -> list[BlockCodes]:
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, BlockCodes))
    return [leaf for leaf in leaves if isinstance(leaf, BlockCodes)]


def test_moments_of_matrices_are_quantised_of_the_decoder_and_of_adapters():
    """A vector's are not, whatever its size, and small ones of adapters neither."""
    optimize = optimizer.make(OptimizerConfig(moments="int8"), 10, MODEL)
    params = decoder.abstract(MODEL)[0]
    adam = next(s for s in jax.eval_shape(optimize.init, params)[1] if hasattr(s, "mu"))
    matrices = optimizer.matrices(MODEL, params)
    is_stored = jax.tree.map(lambda _, x: isinstance(x, BlockCodes), matrices, adam.nu)
    assert is_stored == matrices
    part = trainable.part(MODEL, LoraConfig(rank=8), ())
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        like = placement.abstract_state(MODEL, optimize, LoraConfig(rank=8), part)
    sizes = {leaf.codes.shape[-1]: leaf.scales.shape[-1] for leaf in stored_codes(like.opt_state)}
    assert sizes[8] == 1 and sizes[512] == 2


def test_8_bit_moments_of_other_methods_are_refused():
    for method in ("lion", "muon", "adafactor"):
        with pytest.raises(ValueError, match=f"optimizer.moments='int8'.*{method}.*leave one"):
            optimizer.make(OptimizerConfig(method=method, moments="int8"), 10, MODEL)


@functools.cache
def regression() -> tuple[jax.Array, jax.Array]:
    inputs = jax.random.normal(jax.random.key(0), (256, 64))
    return inputs, inputs @ jax.random.normal(jax.random.key(1), (64, 64)) / 8


def final_loss(rounding: str, stored: str) -> float:
    """Of a regression by 300 steps much smaller than half the spacing of bfloat16."""
    inputs, targets = regression()
    settings = OptimizerConfig(learning_rate=1e-3, moments=stored)
    optimize = optimizer.make(settings, 300, MODEL)
    dtype = jnp.float32 if rounding == "none" else jnp.bfloat16
    start = {"layers": {"mlp": {"up": jnp.ones((1, 64, 64), dtype)}}}

    def loss(params):
        w = params["layers"]["mlp"]["up"][0].astype(jnp.float32)
        return jnp.mean((inputs @ (w - 1) - targets) ** 2)

    def step(carry, i):
        params, state = carry
        grads = optimizer.in_float32(jax.grad(loss)(params))
        updates, state = optimize.update(grads, state, optimizer.in_float32(params))
        if rounding == "nearest":
            params = optax.apply_updates(params, updates)
        else:
            key = jax.random.fold_in(jax.random.key(2), i)
            params = optimizer.apply_updates(params, updates, key)
        return (params, state), None

    @jax.jit
    def train(params):
        state = optimize.init(optimizer.in_float32(params))
        return loss(jax.lax.scan(step, (params, state), jnp.arange(300))[0][0])

    return float(train(start))


def test_it_learns_as_float32_does_where_rounding_to_nearest_learns_nothing():
    exact, start = final_loss("none", "float32"), float(jnp.mean(regression()[1] ** 2))
    assert exact < 0.01 * start
    for rounding, stored in (("none", "int8"), ("stochastic", "float32"), ("stochastic", "int8")):
        assert final_loss(rounding, stored) < 0.02 * start, (rounding, stored)
    assert final_loss("nearest", "float32") > 0.9 * start


def drawn(like: object, seed: int) -> object:
    """Arrays of the shapes, dtypes and places of `like`."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jax.device_put(
            rng.normal(size=leaf.shape, scale=0.02).astype(leaf.dtype), leaf.sharding
        ),
        like,
    )


def two_updates(axes: dict[str, int]) -> tuple[TrainState, list[str]]:
    """A state after them, on a mesh or, without axes, on one device; and the collectives."""
    optimize = optimizer.make(OptimizerConfig(moments="int8", clip_norm=0), 10, MODEL)
    part = trainable.part(MODEL, LoraConfig(rank=0), ("embed", "layers/mlp/down"), "bfloat16")
    with jax.set_mesh(mesh.make(MeshConfig(**axes), jax.devices()[: 8 if axes else 1])):
        like = placement.abstract_state(MODEL, optimize, part=part)
        where = placement.shardings(like)
        trained = part.split(like.params)[0]
        wide = jax.tree.map(lambda leaf: leaf.update(dtype=np.float32), trained)

        def update(state: TrainState, grads: Params) -> TrainState:
            params, frozen = part.split(state.params)
            values = optimizer.in_float32(params)
            updates, opt_state = optimize.update(grads, state.opt_state, values)
            key = jax.random.fold_in(jax.random.key(4), state.step)
            params = part.join(optimizer.apply_updates(params, updates, key), frozen)
            return state.replace(params=params, opt_state=opt_state, step=state.step + 1)

        state = placement.fresh_state(drawn(like.params, 0), optimize, like, part)
        places = where, placement.shardings(trained)
        run = jax.jit(update, in_shardings=places, out_shardings=where)
        compiled = run.lower(state, drawn(wide, 1)).compile()
        for seed in (1, 2):
            state = compiled(state, drawn(wide, seed))
    sent = re.findall(r"(?:all-|collective-|reduce-scatter)[a-z-]*(?=\()", compiled.as_text())
    return jax.device_get(state), sent


def main() -> None:
    """What two updates on 8 virtual devices have otherwise than on one; prints it."""
    expected, _ = two_updates({})
    paths = jax.tree_util.tree_leaves_with_path(expected)
    dtypes = {str(leaf.dtype) for _, leaf in paths}
    assert {"uint8", "bfloat16"} < dtypes, dtypes
    aligned, sent = two_updates({"fsdp": 2, "tensor": 2})
    print("sent", sent)
    for state in (aligned, two_updates({"fsdp": 8})[0]):
        for (path, a), b in zip(paths, jax.tree.leaves(state), strict=True):
            if a.tobytes() != b.tobytes():
                print("differs", jax.tree_util.keystr(path), np.mean(a != b))


@pytest.mark.broad
@pytest.mark.exact("8-bit moments and stochastically rounded parameters are equal on 8 devices")
def test_eight_devices_round_as_one_does_and_send_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "tests.jaxrl.training.test_low_precision"],
        cwd=ROOT,
        env=os.environ | tiny.environment() | {"XLA_FLAGS": tiny.xla_flags(8)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout == "sent []\n"


def test_scales_are_not_split_where_a_block_lies_in_two_shards():
    devices = np.array(jax.devices()[:1])
    where = jax.NamedSharding(jax.sharding.Mesh(devices, "a"), jax.P(None, "a"))
    assert low_precision.scale_sharding(where, (64, 512)).spec == jax.P(None, "a")
    abstract = jax.sharding.AbstractMesh((4,), ("a",))
    for size, axis in ((1024, "a"), (512, None)):
        where = jax.NamedSharding(abstract, jax.P(None, "a"))
        assert low_precision.scale_sharding(where, (64, size)).spec == jax.P(None, axis)


def test_a_checkpoint_has_the_bits_of_the_state(tmp_path):
    """Narrow arrays are saved as they are, and read as float32 they are the same numbers."""
    optimize = optimizer.make(OptimizerConfig(moments="int8"), 10, MODEL)
    part = trainable.WHOLE._replace(dtype="bfloat16")
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        like = placement.abstract_state(MODEL, optimize, part=part)
        state = jax.tree.map(
            lambda leaf: (
                jnp.full(leaf.shape, 3, leaf.dtype)
                if leaf.dtype in (jnp.uint8, jnp.int32)
                else drawn(leaf, 0)
            ),
            like,
        )
        with Writer(tmp_path, CheckpointConfig(), print) as writer:
            writer.save(1, state, {})
            writer.wait()
        saved = checkpoint.restore(tmp_path, 1, like).state
        wide, _ = checkpoint.restore_params(tmp_path, trainable.abstract(MODEL, LoraConfig(rank=0)))
    jax.tree.map(np.testing.assert_array_equal, saved, state)
    assert jax.tree.map(lambda x: x.dtype, saved) == jax.tree.map(lambda x: x.dtype, like)
    assert {str(x.dtype) for x in jax.tree.leaves(saved.params)} == {"float32", "bfloat16"}
    assert {x.dtype for x in jax.tree.leaves(wide)} == {np.dtype("float32")}
    jax.tree.map(np.testing.assert_array_equal, wide, optimizer.in_float32(state.params))


@pytest.mark.broad
@pytest.mark.exact("a run with 8-bit moments and bfloat16 parameters continues to the last bit")
def test_a_run_continues_to_the_last_bit(tmp_path):
    small = {"optimizer.moments": "int8", "param_dtype": "bfloat16", "warm_start.steps": 1}
    loop.train(tiny.config(tmp_path / "straight", steps=3, **small))
    loop.train(tiny.config(tmp_path / "halves", steps=1, **small))
    loop.train(tiny.config(tmp_path / "halves", steps=3, **small))
    straight, halves = (tiny.artefacts(tmp_path / name) for name in ("straight", "halves"))
    assert straight["arrays"] == halves["arrays"]
    assert any(name.endswith("['codes']") for name in straight["arrays"])


if __name__ == "__main__":
    main()
