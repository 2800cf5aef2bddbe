"""Trains and samples on meshes of virtual devices; prints a JSON object a mesh.

    python -m tests.jaxrl.mesh_program '{"name": {"fsdp": 8}}' [FAMILY]

FAMILY is a model of `tests.models.test_extend`. With the variables of `jaxrl.mesh.distributed`, it
is one of several processes, and trains only.

Run in a process of its own: XLA_FLAGS fix the number of devices when JAX starts.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
from typing import Any

import jax
import numpy as np
import optax

from jaxrl.mesh import distributed, mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig, Experts
from jaxrl.rollout import policy
from jaxrl.sampling import slots
from jaxrl.sampling.sampler import SamplerConfig, generate
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.training.routers import Terms
from jaxrl.training.train_step import init_state, make_update
from jaxrl.types import Params, Request
from tests.jaxrl.batches import MODEL, batch
from tests.models.test_extend import FAMILIES

EXPERTS = dataclasses.replace(MODEL, experts=Experts(num_experts=8, per_token=2, size=16))
EXCEPTIONS = {
    "tensor, context by splash": {"attention": "splash"},
    "rules": {
        "rules": (
            ("vocab", "fsdp+tensor"),
            ("layers/mlp/down", "-,tensor+fsdp,-"),
            ("batch", "fsdp+context"),
            ("sequence", "-"),
        )
    },
}
"""Fields of the model of some of the meshes."""
TABLE = (96, 8)
"""Rows, and features of a layer, of the embeddings that enter layers apart: more than of any
matrix."""
COLLECTIVE = re.compile(r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all)(?:-start)?\(")


def train(model: DecoderConfig, steps: int = 5) -> tuple[Params, str]:
    """Updates on the mesh in use, each on a batch of odd size; parameters and the program."""
    the_mesh = jax.sharding.get_mesh()
    create = jax.jit(
        functools.partial(decoder.init, model),
        out_shardings=mesh.param_shardings(model, the_mesh),
    )
    optimizer = optax.adamw(1e-3, eps=1e-5)  # the default eps makes steps of rounding errors
    state = init_state(create(jax.random.key(0)), optimizer)
    terms = Terms(0.1, "batch", 1e-3, 0.0) if model.experts else None
    given = {"temperature": 1.0, "max_new_tokens": 9, "remat": "none", "router": terms}
    update = make_update(model, ObjectiveConfig(), optimizer, **given)
    everywhere, rows = mesh.replicated(the_mesh), mesh.rows(the_mesh, model.rules)
    for seed in range(steps):
        data = batch(seed, groups=3, size=5, failed=(1,))
        packed, _ = pack(data, PackingConfig(256, row_length=32), row_multiple=8)
        where = jax.tree.map(lambda a: rows if np.ndim(a) == 3 else everywhere, packed)
        inputs = state, data, jax.device_put(packed, where), None
        if seed == 0:
            program = update.lower(*inputs).compile()
        state, _ = program(*inputs)
        assert state.params["embed"].sharding.is_equivalent_to(
            mesh.param_shardings(model, the_mesh)["embed"], 2
        )
    return state.params, program.as_text()


def sample(model: DecoderConfig, params: Params) -> dict[int, list[int]]:
    """Tokens of eleven requests, by id."""
    requests = [Request(i, (1, 2, 3 + i // 4), 8) for i in range(11)]
    completions = generate(
        model,
        policy.sampling_params(params, "float32"),
        requests,
        stop_ids=[0],
        key=jax.random.key(1),
        sampler=SamplerConfig(slots=16, prefill_rows=8, chunk=8, bucket=16),
    )
    return {c.request.id: c.tokens.tolist() for c in completions}


def collectives(program: str) -> list[tuple[str, int]]:
    """Kind and elements of each array that the compiled program communicates."""
    return [
        (kind, int(np.prod([int(n) for n in dims.split(",") if n])))
        for shapes, kind in COLLECTIVE.findall(program)
        for dims in re.findall(r"\w+\[([\d,]*)\]", shapes)
    ]


def cache_shard(model: DecoderConfig) -> list[int]:
    """Shape of what one device holds of a layer's keys after a resize."""
    state, count = (
        slots.empty_slots((model,), 8, 16, 16, slots.Features()),
        slots.parts((model,), 8),
    )
    chosen = np.pad(
        np.arange(8, dtype=np.int32).reshape(count, -1),
        ((0, 0), (0, 4 // count)),
        constant_values=-1,
    )
    state = slots.resize((model,), state, chosen.ravel(), width=16)
    first = jax.tree.leaves(state.caches)[0]
    return list(first.sharding.shard_shape(first.shape))


def model_of(family: str, sizes: dict[str, int]) -> DecoderConfig:
    """The model that a mesh trains: one with experts where these are split, or that of a family."""
    if not family:
        return EXPERTS if "expert" in sizes else MODEL
    model, changes = FAMILIES[family], dict[str, Any](vocab_size=MODEL.vocab_size)
    if model.kinds:
        rows, features = TABLE
        kinds = dataclasses.replace(model.kinds, input_vocab=rows, input_size=features)
        changes["kinds"] = kinds
    return dataclasses.replace(model, **changes)


def run(
    sizes: dict[str, int], family: str = "", **model: Any
) -> tuple[dict[str, Any], Params, dict[int, list[int]]]:
    """What a mesh gives."""
    model = dataclasses.replace(model_of(family, sizes), **model)
    count = int(np.prod(list(sizes.values())))
    with jax.set_mesh(mesh.make(MeshConfig(**sizes), jax.devices()[:count])):
        params, program = train(model)
        tokens = sample(model, params)
        report = {"collectives": collectives(program), "cache": cache_shard(model)}
        return report, jax.device_get(params), tokens


def main(meshes: dict[str, dict[str, int]], family: str = "") -> None:
    """Compare each mesh with one device."""
    alone: dict[bool, Any] = {}
    for name, sizes in meshes.items():
        routed = "expert" in sizes
        if routed not in alone:
            alone[routed] = run({"expert": 1} if routed else {"data": 1}, family)[1:]
        report, params, tokens = run(sizes, family, **EXCEPTIONS.get(name, {}))
        difference = jax.tree.map(lambda a, b: np.max(np.abs(a - b)), params, alone[routed][0])
        report["difference"] = float(max(jax.tree.leaves(difference)))
        report["same_tokens"] = tokens == alone[routed][1]
        print(json.dumps({"name": name} | report), flush=True)


def together(sizes: dict[str, int]) -> None:
    """Train over all processes; the first prints the sum and the sum of squares of each leaf."""
    with jax.set_mesh(mesh.make(MeshConfig(**sizes))):
        params, _ = train(MODEL, steps=3)
        sums = jax.jit(
            lambda p: jax.tree.map(lambda a: (a.sum(), (a * a).sum()), p),
            out_shardings=mesh.replicated(jax.sharding.get_mesh()),
        )(params)
        if jax.process_index() == 0:
            values = [float(x) for x in jax.tree.leaves(sums)]
            print(json.dumps({"processes": jax.process_count(), "sums": values}), flush=True)


if __name__ == "__main__":
    meshes = json.loads(sys.argv[1])
    if distributed.start() > 1 or "alone" in meshes:
        together(next(iter(meshes.values())))
    else:
        main(meshes, *sys.argv[2:])
