"""Estimates a run on a mesh without its hardware: bytes per device, and a lower bound of time.

Sharding is exact. Temporary memory and collectives are those of the train step compiled for
the slice itself, where libtpu is installed, else for virtual CPU devices: an upper bound, as XLA
fuses less there, scatters no gradients (it reduces them whole), sends bf16 as fp32, multiplies
every token by every expert, and emulates the kernels of TPUs.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from jaxrl.config import Config
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.planning import (
    asynchronous,
    chips,
    measurement,
    memory,
    roofline,
    shapes,
    topology,
)
from jaxrl.launch.planning import batch as plan_batch
from jaxrl.launch.planning.batch import Batch
from jaxrl.launch.planning.chips import CHIPS, Chip
from jaxrl.launch.planning.roofline import Demand
from jaxrl.launch.settings import configs, flags
from jaxrl.mesh import mesh
from jaxrl.models.config import DecoderConfig
from jaxrl.run.extension import (
    Extension,
    open_extensions,
)
from jaxrl.types import TrainState

_LARGE = 64  # MiB

Extensions = Mapping[str, Extension]
"""Of a run, by name, see `open_extensions`."""


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """Settings of a plan."""

    topology: str = "v5p"
    """Devices, such as v5p-512, v5p:4x8x8 or h100-64; a chip's name alone takes the number of
    devices from the mesh."""
    compile: bool = True
    """Compile the train step for its memory and collectives; takes minutes for a large model."""
    measurement: str = ""
    """An accelerator.json of `python -m tests.accelerator`: times are also given at its rates, and
    plans are compared with its steps; empty for none."""
    memory: str = ""
    """A size, or `auto` for that of the chip: the plan is of the fastest settings of memory that
    fit, as `jaxrl train --memory` chooses them; empty: of the config as it is."""


def main(argv: list[str]) -> int:
    """`jaxrl plan [RECIPE] [--topology v5p-512] [--no-compile] [flags of train]`.

    `--model` also takes the names of `jaxrl.launch.planning.shapes`, which have no weights. With
    `--asynchronous`, `jaxrl plan RUN`: see `jaxrl.launch.planning.asynchronous`.
    """
    if "--asynchronous" in argv:
        return asynchronous.main(argv)
    name, rest = flags.recipe(argv)
    parser = argparse.ArgumentParser(
        usage="jaxrl plan [RECIPE | FILE | RUN] [--topology NAME] [--no-compile] [flags of train]",
        epilog=f"--model also takes published models by name: {', '.join(shapes.SHAPES)}. "
        "`jaxrl train --help` and --help-all show the flags of a run.",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--topology",
        default=PlanConfig.topology,
        help="devices, such as v5p-512, v5p:4x8x8 or h100-64 (default: %(default)s, as many as "
        "the mesh has)",
    )
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True,
        help="compile the train step; takes minutes for a large model",
    )  # fmt: skip
    parser.add_argument(
        "--measurement", default="", metavar="FILE",
        help="accelerator.json of `python -m tests.accelerator`: times at its rates, and the error "
        "of plans against it",
    )  # fmt: skip
    arguments, rest = parser.parse_known_args(rest)
    if {"-h", "--help", "--help-all"} & {name, *rest}:
        parser.print_help()
        return 0
    try:
        config, options = configs.resolve([name, *rest], "plan")
        settings = PlanConfig(
            arguments.topology, arguments.compile, arguments.measurement, options.memory
        )
        show(config, settings)
    except REFUSALS as error:
        return refused(error)
    return 0


def show(config: Config, settings: PlanConfig = PlanConfig()) -> None:
    """Print the plan of a run.

    Call before JAX has made its devices.

    Raises:
      ValueError: an unknown topology, or a config that cannot work or fit.
    """
    target = topology.read(settings.topology)
    of_mesh = math.prod(max(1, getattr(config.mesh, axis)) for axis in mesh.AXES)
    devices = topology.devices(target, target.devices or of_mesh)
    with jax.set_mesh(mesh.make(config.mesh, devices)):
        if settings.memory:
            limit = memory.limit_of(settings.memory, CHIPS[target.chip].hbm.value / 2**20)
            config, chosen = memory.fit(config, limit, target.chip, compiling=settings.compile)
            print(chosen, flush=True)
        for line in lines(config, settings):
            print(line, flush=True)


def lines(config: Config, settings: PlanConfig) -> Iterator[str]:
    """The plan, on the mesh in use."""
    name = topology.read(settings.topology).chip
    the_mesh, model, chip = jax.sharding.get_mesh(), memory.describe(config, name), CHIPS[name]
    extensions = open_extensions(config)
    state = memory.state_of(config, model, extensions)
    axes = ", ".join(f"{axis}={n}" for axis, n in the_mesh.shape.items() if n > 1) or "one device"
    calibration = measurement.of_topology(settings.measurement, settings.topology, name)
    yield f"{config.model} on {axes}"
    yield from chips.describe(name, chip)
    yield f"{'parameter':<40} {'shape':<24} {'split over':<32} MiB a device"
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
        parameter = jax.tree_util.keystr(path, simple=True, separator="/")
        where = str(tuple(leaf.sharding.spec))
        yield f"{parameter:<40} {leaf.shape!s:<24} {where:<32} {memory.mib(leaf):.1f}"
    yield from (f"warning: {line}" for line in warnings(config, model, the_mesh, state.params))
    batch = plan_batch.input_of(config, extensions)
    needs = memory.estimate(config, model, state, batch, extensions, name)
    for part_of, mib in (needs.state | needs.passing).items():
        about = " (estimate)" if part_of == "activations" else ""
        yield f"{part_of:<20} {mib:12.1f} MiB a device{about}"
    training = needs.training
    wire = 0.0
    if settings.compile:
        xla = f"XLA for {name}" if topology.compiles_for(name) else "XLA on CPU"
        try:
            compiled = memory.step(config, model, state, batch, extensions)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            yield f"the train step does not fit on a {name} ({xla}): {str(error).splitlines()[0]}"
            return
        training = memory.compiled_mib(compiled)
        yield f"{'train step, compiled':<20} {training:12.1f} MiB a device ({xla})"
        training += needs.state.get("reference", 0.0)  # which is no argument of it
        collectives = roofline.collectives(compiled.as_text(), batch.micro_batches)
        wire = sum(c.times * c.bytes for c in collectives)
        for c in collectives:
            yield f"  {c.times} x {c.kind} of {c.shape}, {c.bytes / 2**20:.2f} MiB each"
        yield f"{'sent in an update':<20} {wire / 2**20:12.1f} MiB a device"
    costs = _costs(config, model, batch, state, wire, needs.passing.get("KV cache", 0.0))
    yield from _times(config, model, chip, batch, costs, settings.compile)
    if calibration is not None:
        yield from measurement.lines(calibration, *costs)
    gib, room = max(training, needs.sampling) / 1024, chip.hbm.value / 2**30
    fits = "fits" if gib < room else "does not fit"
    yield f"{gib:.2f} GiB of {room:.0f} GiB of a {name}: {fits}"


def warnings(
    config: Config, model: DecoderConfig, the_mesh: jax.sharding.Mesh, params: Any
) -> Iterator[str]:
    """Settings of the mesh that have no effect."""
    used: set[str] = set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        used |= {
            a
            for entry in leaf.sharding.spec
            for a in ((entry,) if isinstance(entry, str) else entry or ())
        }
        if the_mesh.size > 1 and leaf.sharding.is_fully_replicated and memory.mib(leaf) > _LARGE:
            yield f"{name} is whole on every device; no axis of it divides"
    for axis in ("fsdp", "tensor", "expert"):
        if the_mesh.shape[axis] > 1 and axis not in used:
            yield f"mesh.{axis}={the_mesh.shape[axis]} splits no parameter"
    sizes = {
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "mlp": model.intermediate_size,
        "vocab": model.vocab_size,
        "embed": model.hidden_size,
    }
    for name, size in sizes.items():
        split = mesh.spec((name,), (size,), the_mesh, rules=model.rules)
        over = mesh.axes_of(name, model.rules)
        ways = math.prod(the_mesh.shape[axis] for axis in over)
        if split == jax.P(None) and ways > 1:
            yield f"{name}={size} does not divide by {'*'.join(over)}={ways} and stays whole"
    shards = mesh.batch_shards(the_mesh, model.rules)
    if config.sampler.slots % shards:
        slots = f"sampler.slots={config.sampler.slots}"
        used = -(-config.sampler.slots // shards) * shards
        yield f"{slots} do not divide by {shards} shards of the batch; {used} are used"


def _costs(
    config: Config,
    model: DecoderConfig,
    batch: Batch,
    state: TrainState,
    wire: float,
    cache: float,
) -> tuple[Demand, Demand | None]:
    """Of an update and of sampling; no sampling where a run reads a file."""
    devices = jax.sharding.get_mesh()
    size, rollout = devices.size, config.rollout
    shards = mesh.batch_shards(devices, model.rules)
    tokens, frozen = batch.micro_batches * batch.micro_tokens, bool(config.lora.rank)
    flops = roofline.train_flops(model, tokens, batch.row, config.remat, frozen=frozen) / size
    gathered = memory.copy_of(state.params, model.dtype) * devices.shape["fsdp"]
    moved = (2 * memory.total(state) + 3 * batch.micro_batches * gathered) * 2**20
    update = Demand(flops, moved, wire, batch.micro_tokens / shards / devices.shape["context"])
    if config.data.kinds:
        return update, None
    requests, slots = rollout.prompts * rollout.group_size, config.sampler.slots
    steps = roofline.decode_steps(requests, slots, rollout.max_new_tokens)
    shard = memory.copy_of(_read(state.params), model.dtype) * 2**20
    copy = shard * devices.shape["fsdp"]
    flops = 2 * roofline.active(model) * slots / size
    # caches are half full on average; weights split over fsdp are gathered for every token
    return update, Demand(flops, copy + cache * 2**19, copy - shard, slots / shards, steps)


def _times(
    config: Config,
    model: DecoderConfig,
    chip: Chip,
    batch: Batch,
    costs: tuple[Demand, Demand | None],
    compiled: bool,
) -> Iterator[str]:
    size, rollout, (update, sampling) = jax.sharding.get_mesh().size, config.rollout, costs
    tokens, frozen = batch.micro_batches * batch.micro_tokens, bool(config.lora.rank)
    train, bound = update.seconds_on(chip)
    needed = roofline.train_flops(model, tokens, batch.row, "none", frozen=frozen) / size
    caveat = "" if compiled else "; compiling adds what wires take"
    yield (
        f"an update of {tokens} tokens takes {train:.2f} s at best, bound by {bound} "
        f"(MFU {needed / chip.flops.value / train:.0%}){caveat}"
    )
    if sampling is None:
        return
    decode, bound = sampling.seconds_on(chip)
    yield (
        f"{rollout.prompts * rollout.group_size} completions of {rollout.max_new_tokens} tokens "
        f"take {decode:.2f} s at best, bound by {bound}"
    )


def _read(params: Any) -> Any:
    """What a token is computed with in full: all but tables of which it reads a row."""
    rest = {name: part for name, part in params.items() if name != "embed" or "head" not in params}
    if "inputs" in rest:
        rest["inputs"] = {name: x for name, x in rest["inputs"].items() if name != "embed"}
    return rest
