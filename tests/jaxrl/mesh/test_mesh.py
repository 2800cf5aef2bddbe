"""Eight virtual devices give what one gives, whichever way they share the work."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from jaxrl.mesh import layouts, mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import attention, decoder
from jaxrl.models.mixers import block as hybrid
from jaxrl.models.mixers import tree as trees
from jaxrl.run import placement
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.types import Params
from tests.jaxrl import mesh_program, tiny
from tests.jaxrl.batches import MODEL, batch

ROOT = Path(__file__).parents[3]
# optimising code that runs for milliseconds would take most of the time
UNOPTIMISED = "--xla_backend_optimization_level=0 "
MESHES = {
    "data": {"data": 8},
    "tensor, fsdp": {"data": 2, "fsdp": 2, "tensor": 2},
    "expert, fsdp": {"data": 1, "fsdp": 2, "expert": 4},
    "rules": {"data": 1, "fsdp": 2, "tensor": 2, "context": 2},
}
MORE = {
    "context, fsdp": {"fsdp": 4, "context": 2},
    "tensor, context by splash": {"data": 2, "tensor": 2, "context": 2},
}
AXES = {
    "fsdp": {"fsdp": 8},
    "tensor": {"data": 4, "tensor": 2},
    "tensor beyond the heads": {"tensor": 8},
    "context": {"data": 2, "context": 4},
    "expert": {"data": 1, "expert": 8},
    "all but data": {"data": 1, "fsdp": 2, "tensor": 2, "context": 2},
}


def run(meshes: dict[str, dict[str, int]], family: str = "") -> dict[str, dict]:
    """What `mesh_program` reports of each mesh."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.jaxrl.mesh_program", json.dumps(meshes), family],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": UNOPTIMISED + tiny.xla_flags(8)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=900,
    )
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {report["name"]: report for report in reports}


@pytest.fixture(scope="module")
def reports() -> dict[str, dict]:
    return run(MESHES)


@pytest.mark.sample(4)
@pytest.mark.broad
@pytest.mark.exact(
    "an update and its log-probs on any of four meshes equal those of one device to 1e-5"
)
@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_gives_what_one_device_gives(reports, name):
    report = reports[name]
    assert report["difference"] < 1e-5
    assert report["same_tokens"]


@pytest.mark.broad
def test_replicas_exchange_gradients_and_nothing_else(reports):
    assert {kind for kind, _ in reports["data"]["collectives"]} == {"all-reduce"}


@pytest.mark.broad
def test_no_device_gathers_more_than_one_matrix_of_one_layer(reports):
    """Neither a whole stack of layers nor the activations of other devices."""
    largest = max(
        math.prod(leaf.shape[leaf.axes[0] == "layers" :]) for leaf in decoder.layout(MODEL).values()
    )
    sizes = [size for kind, size in reports["tensor, fsdp"]["collectives"] if kind == "all-gather"]
    assert sizes and max(sizes) <= largest


@pytest.mark.exact("an update on two more meshes equals that of one device to 1e-5")
@pytest.mark.slow
def test_more_meshes_give_what_one_device_gives():
    check(MORE)


@pytest.mark.exact(
    "an update on every axis of a mesh, alone and together, equals that of one device"
)
@pytest.mark.slow
def test_every_axis_alone_and_together():
    check(AXES)


@pytest.mark.exact("an update of layers of several kinds on a mesh equals that of one device")
@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        "hybrid", "channels", "mamba", "beside", "convolution", "parts", "kinds", "chunks",
        "latent", "local layers",
    ],
)  # fmt: skip
def test_layers_of_several_kinds(family):
    """To 1e-4, as a recurrence sums more than attention does."""
    check({"tensor, fsdp": MESHES["tensor, fsdp"]}, family, atol=1e-4)


def check(meshes: dict[str, dict[str, int]], family: str = "", *, atol: float = 1e-5) -> None:
    """An update on each of the meshes is that of one device."""
    for name, report in run(meshes, family).items():
        assert report["difference"] < atol, name
        assert report["same_tokens"], name


def test_a_dimension_is_split_over_the_axes_of_its_rule_where_it_divides():
    table = jax.sharding.AbstractMesh((1, 4, 2, 1, 1), mesh.AXES)
    assert mesh.spec(("embed", "heads", "head_dim"), (64, 8, 16), table) == P(
        "fsdp", "tensor", None
    )
    assert mesh.spec(("embed", "kv_heads", "head_dim"), (64, 1, 16), table) == P("fsdp", None, None)
    assert mesh.spec(("vocab", "embed"), (33, 64), table) == P(None, "fsdp")
    assert mesh.spec(("vocab", "embed"), (32, 64), table, unsplit=("fsdp",)) == P("tensor", None)
    assert mesh.spec(("batch", "sequence", None), (8, 3, 5), table) == P(
        ("data", "fsdp"), "context", None
    )


def test_rules_by_name_and_by_path():
    rules = (("vocab", "fsdp+tensor"), ("layers/mlp/*", "-,tensor,fsdp"), ("layers/*/q", "-,-,-,-"))
    model = dataclasses.replace(MODEL, rules=rules)
    table = jax.sharding.AbstractMesh((1, 4, 2, 1, 1), mesh.AXES)

    def where(path: str, **more: object) -> P:
        leaf = decoder.layout(model)[tuple(path.split("/"))]
        return mesh.param_spec(
            model, path.split("/"), leaf.axes, (8,) * len(leaf.shape), table, **more
        )

    assert where("embed") == P(("fsdp", "tensor"), None)
    assert where("embed", unsplit=("data", "fsdp")) == P("tensor", None)
    assert where("layers/mlp/up") == P(None, "tensor", "fsdp")
    assert where("layers/mlp/up", unsplit=("data", "fsdp")) == P(None, "tensor", None)
    assert where("layers/attention/q") == P(None, None, None, None)
    assert where("layers/attention/k") == P(None, "fsdp", "tensor", None)
    assert mesh.spec(("vocab",), (4,), table, rules=rules) == P(None)  # 8 do not divide 4


def test_rows_lie_by_the_rule_of_the_batch():
    table = jax.sharding.AbstractMesh((1, 4, 2, 3, 1), mesh.AXES)
    rules = (("batch", "fsdp+context"), ("sequence", "-"))
    assert (mesh.batch_shards(table), mesh.batch_shards(table, rules)) == (4, 12)
    assert mesh.rows(table, rules).spec == P(None, ("fsdp", "context"))
    assert mesh.spec(("batch", "sequence"), (12, 6), table, rules=rules) == P(
        ("fsdp", "context"), None
    )


def test_a_batch_is_sharded_by_sequences(monkeypatch):
    """No device holds an array of all of them, where their number divides."""
    table = jax.sharding.AbstractMesh((1, 4, 2, 1, 1), mesh.AXES)
    monkeypatch.setattr(jax.sharding, "get_mesh", lambda: table)
    found = [jax.tree.leaves(placement.of_batch(batch(0, size=n, groups=n))) for n in (4, 3)]
    assert {where.spec[0] for where in found[0]} == {("data", "fsdp")}  # of 16 sequences
    assert ("data", "fsdp") not in {where.spec[0] for where in found[1]}  # 4 do not divide 9


def sinks_on_meshes():
    """Attention with sinks on eight devices, which share rows, queries and heads, as on one."""
    keys = jax.random.split(jax.random.key(0), 4)
    q = jax.random.normal(keys[0], (2, 16, 8, 8))
    k, v = (jax.random.normal(key, (2, 16, 2, 8)) for key in keys[1:3])
    sinks = jax.random.normal(keys[3], (8,))
    mask = attention.tree_mask(jnp.full((2, 16), 16))
    expected = attention.attend(q, k, v, mask, sinks=sinks)
    for sizes in ({"data": 1, "fsdp": 2, "tensor": 2, "context": 2}, {"data": 1, "tensor": 8}):
        with jax.set_mesh(mesh.make(MeshConfig(**sizes))):
            run = jax.jit(functools.partial(layouts.attend, kernel="xla", rules=()))
            np.testing.assert_allclose(run(q, k, v, mask, sinks=sinks), expected, atol=1e-5)


@pytest.mark.broad
def test_attention_sinks_lie_with_their_heads():
    program = "from tests.jaxrl.mesh import test_mesh; test_mesh.sinks_on_meshes()"
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": UNOPTIMISED + tiny.xla_flags(8)}
    subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ | flags, check=True, timeout=900
    )


def table_on_meshes() -> None:
    """Rows of a table that is split, and its gradient; devices gather tokens and none of it."""
    model = mesh_program.model_of("kinds", {})
    table = decoder.init(model, jax.random.key(0))["inputs"]["embed"]
    tokens = np.random.default_rng(0).integers(0, len(table), (16, 8)).astype(np.int32)
    factors = jax.random.normal(jax.random.key(1), (*tokens.shape, table.shape[1]))

    def loss(table: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = layouts.layout(model).look_up(table, tokens, jnp.bfloat16).astype(jnp.float32)
        return jnp.sum(jnp.sin(rows) * factors), rows

    change = jax.value_and_grad(loss, has_aux=True)
    (_, rows), gradient = jax.jit(change)(table, tokens)
    for sizes in ({"fsdp": 8}, {"fsdp": 2, "tensor": 2, "context": 2}):
        with jax.set_mesh(mesh.make(MeshConfig(**sizes))):
            where = mesh.param_shardings(model, jax.sharding.get_mesh())["inputs"]["embed"]
            split = jax.device_put(table, where)
            program = jax.jit(change, out_shardings=(None, where)).lower(split, tokens).compile()
            (_, got), got_gradient = program(split, tokens)
        np.testing.assert_array_equal(got, rows)
        np.testing.assert_allclose(got_gradient, gradient, atol=1e-5)
        sent = mesh_program.collectives(program.as_text())
        gathered = max((size for kind, size in sent if kind == "all-gather"), default=0)
        assert gathered <= tokens.size < table.size // 8


@pytest.mark.exact("rows of a table that devices share, and its gradient, are those of one device")
@pytest.mark.broad
def test_a_table_is_looked_up_where_it_lies():
    program = "from tests.jaxrl.mesh import test_mesh; test_mesh.table_on_meshes()"
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": UNOPTIMISED + tiny.xla_flags(8)}
    subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ | flags, check=True, timeout=900
    )


CUTS = {
    "context, fsdp, tensor": {"fsdp": 2, "tensor": 2, "context": 2},
    "context, data": {"data": 2, "context": 4},
    "context beyond the heads": {"context": 8},
}
"""Meshes that cut rows."""


def mixers_on_meshes(family: str) -> None:
    """A mixer, and its gradients, over rows of trees and, on the last mesh, of sequences apart.

    Rows are of two chunks of each recurrence; the ends of some and the last one are padding.
    """
    model = mesh_program.model_of(family, {})
    stack = model.place(0)[0]
    params = jax.jit(decoder.init, static_argnums=0)(model, jax.random.key(0))[stack]
    params = {"mixer": jax.tree.map(lambda leaf: leaf[0], params["mixer"])}
    kind = hybrid.kind_of({"mixer": None, "mlp": None})
    graph = nnx.split(nnx.eval_shape(lambda: kind(model, routed=False, rngs=nnx.Rngs(0)).mixer))[0]
    keys = jax.random.split(jax.random.key(1), 2)
    x, factors = (jax.random.normal(key, (4, 128, model.hidden_size)) for key in keys)

    def loss(params: Params, x: jax.Array, until: jax.Array, levels: int) -> tuple[Any, jax.Array]:
        layout, tree = layouts.layout(model), trees.of_rows(until, levels)
        mixer = nnx.merge(graph, nnx.State(layout.weights(params, stack)["mixer"]))
        y = layout.activations(mixer.train(layout.activations(x), tree, layout))
        return jnp.mean(y * factors), y

    change = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), static_argnums=3)
    for share in (True, False):
        packing = PackingConfig(512, row_length=128, share_prompts=share)
        packed, _ = pack(batch(0, groups=6, size=5), packing, row_multiple=4)
        inputs = params, x, packed.visible_until[0], packed.levels
        assert packed.levels == 1 + share and packed.tokens.shape == (1, 4, 128)
        (_, states), slopes = change(*inputs)
        for name, sizes in list(CUTS.items())[0 if share else -1 :]:
            devices = jax.devices()[: math.prod(sizes.values())]
            with jax.set_mesh(mesh.make(MeshConfig(**sizes), devices)):
                (_, got), got_slopes = change(*inputs)
            np.testing.assert_allclose(got, states, atol=1e-5, err_msg=name)
            for a, b in zip(*map(jax.tree.leaves, (got_slopes, slopes)), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max(), err_msg=name)


@pytest.mark.exact("recurrent layers of every kind, and gradients, are those of one device to 1e-5")
@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize("family", ["hybrid", "channels", "mamba", "beside", "convolution"])
def test_recurrent_layers_of_rows_that_are_cut(family):
    program = f"from tests.jaxrl.mesh import test_mesh; test_mesh.mixers_on_meshes({family!r})"
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": UNOPTIMISED + tiny.xla_flags(8)}
    subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ | flags, check=True, timeout=900
    )


@pytest.mark.broad
def test_slots_and_caches_lie_by_the_rules(reports):
    """Slots over the batch's axes, heads of keys over tensor."""
    data, fsdp, tensor = 2, 2, 2
    slots, length, heads, size = 12, 16, 2, 4
    shard = [slots // data // fsdp, heads // tensor, length, size]
    assert reports["tensor, fsdp"]["cache"] == shard


def test_no_mesh_axis_is_used_twice():
    table = jax.sharding.AbstractMesh((1, 4, 2, 1, 1), mesh.AXES)
    assert mesh.spec(("embed", "embed"), (64, 64), table) == P("fsdp", None)


def test_a_mesh_of_the_wrong_size_says_which_it_needs():
    with pytest.raises(ValueError, match="mesh fsdp=3 needs 3 devices, 1 are there"):
        mesh.make(MeshConfig(fsdp=3), jax.devices()[:1])


def test_tpu_slices_are_joined_by_data_alone():
    two = [types.SimpleNamespace(platform="tpu", slice_index=i // 4) for i in range(8)]
    with pytest.raises(ValueError, match=r"mesh\.data=1 over 2 TPU slices: .* a multiple of 2"):
        mesh.make(MeshConfig(fsdp=8), two)
