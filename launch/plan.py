"""What a run would take on a mesh, without its hardware: where parameters lie, and bytes a device.

The mesh is made of virtual CPU devices, so the figures of where arrays lie are exact, and so are
the collectives of the compiled step; its temporary memory is what XLA's CPU backend would take,
which fuses less than that of an accelerator: an upper bound.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxrl import mesh, optimizer, packing, placement, policy, trainable
from jaxrl.buckets import round_up
from jaxrl.config import Config
from jaxrl.train_step import make_update
from jaxrl.types import Completion, Packed, Request, TrainState, Trajectory
from launch import flags, recipes
from launch.cli import REFUSALS, refused
from models import decoder

HBM = {"v5e": 16, "v5p": 95, "v6e": 32, "a100": 80, "h100": 80, "h200": 141}
"""GiB of memory of a device."""
_COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_LARGE = 64 << 20


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """What is planned for."""

    chip: str = "v5p"
    """Kind of device: v5e, v5p, v6e, a100, h100 or h200."""
    compile: bool = False
    """Compile the train step for its memory and collectives; minutes for a large model."""


def main(argv: list[str]) -> int:
    """`jaxrl plan [RECIPE] [--chip v5p] [--compile] [flags of train]`."""
    name, rest = flags.recipe(argv)
    parser = argparse.ArgumentParser(prog="jaxrl plan", add_help=False, allow_abbrev=False)
    parser.add_argument("--chip", default=PlanConfig.chip)
    parser.add_argument("--compile", action="store_true")
    given, rest = parser.parse_known_args(rest)
    try:
        config = flags.parse(recipes.load(name), rest, prog=f"jaxrl plan {name}")
        show(config, PlanConfig(given.chip, given.compile))
    except REFUSALS as error:
        return refused(error)
    return 0


def show(config: Config, settings: PlanConfig = PlanConfig()) -> None:
    """Print the plan of a run.

    Call before JAX has made its devices.

    Raises:
      ValueError: an unknown chip, or a config that cannot work.
    """
    if settings.chip not in HBM:
        raise ValueError(f"chip={settings.chip!r} is unknown; choose one of {', '.join(HBM)}")
    sizes = dataclasses.asdict(config.mesh)
    count = math.prod(max(1, n) for n in sizes.values())
    given = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{given} --xla_force_host_platform_device_count={count}"
    jax.config.update("jax_platforms", "cpu")
    the_mesh = mesh.make(config.mesh, jax.devices()[:count])
    with jax.set_mesh(the_mesh):
        for line in lines(config, settings):
            print(line)


def lines(config: Config, settings: PlanConfig) -> Iterator[str]:
    """The plan, on the mesh in use."""
    the_mesh, (model, _) = jax.sharding.get_mesh(), policy.describe(config)
    optimize = optimizer.make(config.optimizer, config.steps, model)
    part = trainable.part(model, config.lora, config.train)
    state = placement.abstract_state(model, optimize, config.lora, part)
    axes = ", ".join(f"{axis}={n}" for axis, n in the_mesh.shape.items() if n > 1) or "one device"
    yield f"{config.model} on {axes}"
    yield f"{'parameter':<40} {'shape':<24} {'split over':<32} MiB a device"
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        where = str(tuple(leaf.sharding.spec))
        yield f"{name:<40} {leaf.shape!s:<24} {where:<32} {_mib(leaf):.1f}"
        if the_mesh.size > 1 and leaf.sharding.is_fully_replicated and leaf.nbytes > _LARGE:
            yield f"  warning: {name} is whole on every device; no axis of it divides"
    total = {
        "parameters": _sum(state.params),
        "gradients": _sum(part.split(state.params)[0]),
        "optimizer": _sum(state.opt_state),
        "KV cache": _cache(config, model) / mesh.batch_shards(the_mesh),
    }
    for name, mib in total.items():
        yield f"{name:<20} {mib:12.1f} MiB a device"
    if settings.compile:
        compiled = step(config, model, state)
        memory = compiled.memory_analysis()
        total["temporary"] = memory.temp_size_in_bytes / 2**20
        yield f"{'temporary':<20} {total['temporary']:12.1f} MiB a device (XLA on CPU)"
        for (kind, shape), times in sorted(collectives(compiled.as_text()).items()):
            yield f"  {times} x {kind} of {shape}"
    gib, room = sum(total.values()) / 1024, HBM[settings.chip]
    fits = "fits" if gib < room else "does not fit"
    yield f"{gib:.2f} GiB of {room} GiB of a {settings.chip}: {fits}"


def step(config: Config, model: decoder.DecoderConfig, state: TrainState) -> Any:
    """The compiled train step of a batch whose sequences are as long as the budgets allow."""
    rollout = config.rollout
    prompt = (1,) * rollout.max_prompt_tokens
    zeros = np.zeros(rollout.max_new_tokens, np.float32)
    whole = Completion(
        Request(0, prompt, rollout.max_new_tokens), zeros.astype(np.int32) + 1, zeros, zeros,
        zeros.astype(np.int32), True,
    )  # fmt: skip
    groups = rollout.prompts // config.updates_per_batch
    count = groups * rollout.group_size
    batch = packing.trajectory(
        [whole] * count,
        [0.0] * count,
        list(np.repeat(np.arange(groups), rollout.group_size)),
        length=round_up(len(prompt) + len(zeros), config.packing.bucket),
    )
    the_mesh = jax.sharding.get_mesh()
    packed, _ = packing.pack(batch, config.packing, row_multiple=mesh.batch_shards(the_mesh))
    everywhere, rows = mesh.replicated(the_mesh), mesh.rows(the_mesh)
    where = Packed(rows, rows, rows, rows, rows, everywhere, everywhere)
    update = make_update(
        model,
        config.objective,
        optimizer.make(config.optimizer, config.steps, model),
        temperature=rollout.temperature,
        max_new_tokens=rollout.max_new_tokens,
        remat=config.remat,
        part=trainable.part(model, config.lora, config.train),
    )
    place = functools.partial(_shape, everywhere)
    shapes: Trajectory = jax.tree.map(place, batch)
    ref_logp = shapes.behavior_logp if config.objective.kl_coef else None
    packed = jax.tree.map(_shape, where, packed)
    return update.lower(state, shapes, packed, ref_logp).compile()


def collectives(program: str) -> Counter[tuple[str, str]]:
    """How often a compiled program has a collective of a kind and shape; once for each loop."""
    return Counter(
        (kind, shape)
        for shapes, kind in _COLLECTIVE.findall(program)
        for shape in re.findall(r"\w+\[[\d,]*\]", shapes)
    )


def _shape(where: Any, a: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype, sharding=where)


def _mib(leaf: jax.ShapeDtypeStruct) -> float:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize / 2**20


def _sum(tree: Any) -> float:
    return sum(_mib(leaf) for leaf in jax.tree.leaves(tree))


def _cache(config: Config, model: decoder.DecoderConfig) -> float:
    length = config.rollout.max_prompt_tokens + config.rollout.max_new_tokens
    cache = jax.eval_shape(lambda: decoder.empty_cache(model, config.sampler.slots, length))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache)) / 2**20
