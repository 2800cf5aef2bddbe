"""Memory of a run on the mesh in use: counted, compiled, and the settings with which it fits."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from jaxrl import config as configs
from jaxrl.config import Config
from jaxrl.launch.planning import batch as plan_batch
from jaxrl.launch.planning import roofline, shapes, topology
from jaxrl.launch.planning.batch import Batch
from jaxrl.mesh import distributed, mesh
from jaxrl.models import attention, decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import LoraConfig
from jaxrl.models.remat import Remat
from jaxrl.record import rundir
from jaxrl.rollout import policy, reshard
from jaxrl.rollout.policy import Policy
from jaxrl.run import placement, reference
from jaxrl.run.context import stage_update
from jaxrl.run.extension import (
    Context,
    Extension,
    context,
    extension_state,
    open_extensions,
    provider,
)
from jaxrl.sampling import support
from jaxrl.training import optimizer, trainable
from jaxrl.types import TrainState, Trajectory

Extensions = Mapping[str, Extension]
"""Of a run, by name, see `open_extensions`."""

_SAVING: tuple[Remat, ...] = ("none", "dots", "full")
"""Policies of rematerialisation, each of which keeps less than the one before and computes more."""
_LEAST_TOKENS = 2048
"""Tokens of a micro-batch on a device: with fewer, recomputing activations costs less than what
matrix units lose."""


class Memory(NamedTuple):
    """MiB a device of a run's parts."""

    state: dict[str, float]
    """Held from step to step."""
    passing: dict[str, float]
    """Held in a part of a step."""
    offloaded: float
    """Of the state, on the host while the policy samples."""

    @property
    def training(self) -> float:
        """Of an update, by estimate."""
        names = ("gradients", "activations")
        return sum(self.state.values()) + sum(self.passing[name] for name in names)

    @property
    def sampling(self) -> float:
        """While the policy samples."""
        names = ("sampler's copy", "KV cache", "prefix cache")
        passing = sum(self.passing.get(name, 0.0) for name in names)
        return sum(self.state.values()) - self.offloaded + passing


def describe(config: Config, chip: str = "") -> DecoderConfig:
    """The decoder of a config, for which `shapes.read` may have enough.

    With the kernels of the chip, emulated if it cannot be compiled for.
    """
    if config.attention == "auto" and topology.is_tpu(chip) and not topology.compiles_for(chip):
        config = dataclasses.replace(config, attention="splash")
    if (model := shapes.read(config.model)) is None:
        return policy.describe(config)[0]
    mesh.check(config.mesh.rules, model)
    rules = tuple(config.mesh.rules.items())
    computed = {"dtype": config.compute_dtype, "attention": config.attention}
    model = dataclasses.replace(model, **computed, rules=rules)
    attention.check(model)
    return model


def state_of(config: Config, model: DecoderConfig, extensions: Extensions) -> TrainState:
    """Sharded shapes of all that a run carries on the mesh in use, moments on the devices."""
    ctx = _context(config, model, extensions)
    complete = extension_state(ctx, extensions)
    optimize = _optimizer(config, model)
    return placement.abstract_state(model, optimize, config.lora, ctx.part, complete)


def _context(config: Config, model: DecoderConfig, extensions: Extensions) -> Context:
    part = trainable.part(model, config.lora, config.train, config.param_dtype)
    return context(config, Policy(model, {}, None), part, extensions)


def _optimizer(config: Config, model: DecoderConfig) -> optax.GradientTransformation:
    return optimizer.make(config.optimizer, config.steps * config.updates_per_batch, model)


def totals(
    config: Config, model: DecoderConfig, state: TrainState, extensions: Extensions
) -> dict[str, float]:
    """MiB a device of what a run holds from step to step, by name; what it lacks is left out."""
    sizes = {name: total(entry) for name, entry in state.extra.items()}
    if reference.stored(config, extensions):
        sizes["reference"] = total(trainable.in_compute_dtype(model, state.params))
    always = {"parameters": total(state.params), "optimizer": total(state.opt_state)}
    return always | {name: mib for name, mib in sizes.items() if mib}


def estimate(
    config: Config,
    model: DecoderConfig,
    state: TrainState,
    batch: Batch,
    extensions: Extensions,
    chip: str,
) -> Memory:
    """Memory of a run.

    Args:
      config: of the run.
      model: its decoder.
      state: shapes, see `state_of`.
      batch: an update's input.
      extensions: of the run.
      chip: a key of `chips.CHIPS`, or empty: the device here. Attention by kernels keeps no scores
        for the backward pass.
    """
    has_kernels = topology.is_tpu(chip) if chip else jax.default_backend() != "cpu"
    scores = model.attention == "xla" or (model.attention == "auto" and not has_kernels)
    the_mesh = jax.sharding.get_mesh()
    tensor, levels = the_mesh.shape["tensor"], batch.packed.levels
    width = roofline.saved(model, config.remat, batch.row, tensor, scores=scores, levels=levels)
    width *= np.dtype(model.dtype).itemsize
    shards = mesh.batch_shards(the_mesh, model.rules) * the_mesh.shape["context"]
    trained = trainable.part(model, config.lora, config.train).split(state.params)[0]
    is_split = len(batch.packed.tokens) > 1  # their sum is in float32
    wide = jax.tree.map(lambda leaf: leaf.update(dtype=np.float32), trained)
    by_part = totals(config, model, state, extensions)
    passing = {
        "gradients": total(wide if is_split else trained),
        "activations": batch.micro_tokens / shards * width / 2**20,
    }
    if not config.data.kinds:  # else nothing is sampled
        copies = 2 if provider(extensions, "restriction") is not None else 1
        passing["sampler's copy"] = copy_of(state.params, model.dtype) * copies
        passing["KV cache"] = cache(model, config, the_mesh)
        if config.sampler.draft_model:
            draft = describe(dataclasses.replace(config, model=config.sampler.draft_model), chip)
            draft_shapes = trainable.abstract(draft, LoraConfig(rank=0), on=False)
            by_part["draft model"] = copy_of(draft_shapes, draft.dtype)
            passing["KV cache"] += cache(draft, config, the_mesh)
        if config.sampler.prefix_cache:
            passing["prefix cache"] = float(config.sampler.prefix_cache)
    return Memory(by_part, passing, by_part["optimizer"] if config.optimizer.offload else 0.0)


def compiled_mib(compiled: Any) -> float:
    """MiB a device that a compiled update takes, its arguments included."""
    analysis = compiled.memory_analysis()
    return (analysis.argument_size_in_bytes + analysis.temp_size_in_bytes) / 2**20


def fit(
    config: Config, limit: float, chip: str = "", *, compiling: bool = True
) -> tuple[Config, str]:
    """The fastest settings of memory with which a run fits, on the mesh in use.

    They are `remat` and `packing.micro_batch_tokens`, with which the length of rows shrinks too.
    The micro-batch is halved down to 2,048 tokens a device before more is computed again in the
    backward pass, and after that down to one row of each shard of the batch. Nothing is kept that
    `config.remat` does not keep, and no micro-batch is larger than the config's.

    Args:
      config: of the run.
      limit: MiB a device. What samples on devices of its own is not counted.
      chip: see `estimate`.
      compiling: compile each candidate that fits about, and take the compiler's own figure.

    Returns:
      The config, and a line that says what was chosen.

    Raises:
      ValueError: nothing fits, with the least that a device needs and what to change; or the run
        has a teacher.
    """
    model, extensions = describe(config, chip), open_extensions(config)
    if _context(config, model, extensions).reading is not None:
        raise ValueError(
            f"--memory: {config.recipe} has a teacher, whose memory is not estimated; leave the "
            "flag out, and set --remat and --packing.micro-batch-tokens"
        )
    state = state_of(config, model, extensions)
    is_apart = bool(config.sampling.devices or config.generators)
    least = math.inf
    for candidate, batch in _candidates(config, model, extensions):
        needs = estimate(candidate, model, state, batch, extensions, chip)
        sampling = 0.0 if is_apart else needs.sampling
        if sampling > limit:
            raise ValueError(
                f"--memory: sampling takes {sampling / 1024:.2f} GiB of "
                f"{limit / 1024:.2f} GiB a device; lower sampler.slots={config.sampler.slots}, "
                "train adapters with --lora-rank, split parameters with --mesh.fsdp, or keep "
                "moments on the host meanwhile with --optimizer.offload"
            )
        training, how = needs.training, "by estimate"
        if compiling and training <= 1.5 * limit:  # so far an estimate may be off
            training, how = _compiled(candidate, model, state, batch, extensions), "compiled"
            training += needs.state.get("reference", 0.0)  # which is no argument of it
        if training <= limit:
            return candidate, (
                f"memory: {_settings(candidate)}: "
                f"{max(training, sampling) / 1024:.2f} GiB of {limit / 1024:.2f} GiB a "
                f"device ({how})"
            )
        least = min(least, training)
    raise ValueError(
        f"--memory: an update takes {least / 1024:.2f} GiB at least, of {limit / 1024:.2f} GiB a "
        "device; train adapters with --lora-rank, split parameters with --mesh.fsdp, or shorten "
        "sequences"
    )


def limit_of(text: str, available: float | None) -> float:
    """MiB a device that `--memory` allows: a size, or of `auto` nine tenths of what there is.

    Args:
      text: such as `auto`, `14GiB` or `800MiB`.
      available: MiB of a device; None: it does not say, as a CPU does not.

    Raises:
      ValueError: neither, or `auto` where a device does not say what it has.
    """
    if text == "auto" and available is not None:
        return 0.9 * available  # allocators and other programs take some
    if text == "auto":
        raise ValueError("--memory auto: this device names no limit; give one: --memory 8GiB")
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([MG])iB", text)
    if not match or not float(match[1]):
        raise ValueError(f"--memory {text}: must be auto, or a size such as 14GiB or 800MiB")
    return float(match[1]) * (1024 if match[2] == "G" else 1)


def available_here() -> float | None:
    """MiB of the device of this process that has least; None where one does not say."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    limits = [entry.get("bytes_limit") for entry in stats]
    return None if None in limits else min(limits) / 2**20


def fit_run(config: Config, text: str, directory: Path) -> tuple[Config, str]:
    """The config of a run on the devices here, with settings that `--memory` chooses, and a line
    that says which. A run that continues keeps those that it began with.

    Args:
      config: of the run.
      text: see `limit_of`.
      directory: of the run.

    Raises:
      ValueError: see `fit` and `limit_of`.
    """
    limit = min(distributed.gathered(limit_of(text, available_here())))
    if rundir.has_progress(directory):
        before = configs.load(directory / "config.json")
        tokens = before.packing.micro_batch_tokens
        packing = dataclasses.replace(config.packing, micro_batch_tokens=tokens)
        remat = config.remat if config.remat != "none" else before.remat  # it may change
        config = dataclasses.replace(config, remat=remat, packing=packing)
        return config, f"memory: {_settings(config)}, as the run began"
    with jax.set_mesh(reshard.meshes(config.mesh, config.sampling)[0]):
        return fit(config, limit)


def _settings(config: Config) -> str:
    tokens = config.packing.micro_batch_tokens
    return f"remat={config.remat}, packing.micro_batch_tokens={tokens}"


def _candidates(
    config: Config, model: DecoderConfig, extensions: Extensions
) -> Iterator[tuple[Config, Batch]]:
    """Configs that take less and less memory, each with an update's input."""
    the_mesh = jax.sharding.get_mesh()
    shards = mesh.batch_shards(the_mesh, model.rules) * the_mesh.shape["context"]
    policies = (
        _SAVING[_SAVING.index(config.remat) :] if config.remat in _SAVING else (config.remat,)
    )
    smaller: list[tuple[Config, Batch]] = []
    for remat in policies:
        last = 0
        for halvings in itertools.count():
            tokens = config.packing.micro_batch_tokens >> halvings
            packing = dataclasses.replace(config.packing, micro_batch_tokens=max(1, tokens))
            candidate = dataclasses.replace(config, remat=remat, packing=packing)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that one row of each shard exceeds the setting
                batch = plan_batch.input_of(candidate, extensions)
            if batch.micro_tokens == last or not tokens:
                break
            last = batch.micro_tokens
            if halvings and batch.micro_tokens / shards < _LEAST_TOKENS:
                smaller.append((candidate, batch))
            else:
                yield candidate, batch
    yield from (pair for pair in smaller if pair[0].remat == policies[-1])


def _compiled(
    config: Config, model: DecoderConfig, state: TrainState, batch: Batch, extensions: Extensions
) -> float:
    """MiB a device of the compiled update; infinite where XLA itself says that it does not fit."""
    try:
        return compiled_mib(step(config, model, state, batch, extensions))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return math.inf


def step(
    config: Config, model: DecoderConfig, state: TrainState, batch: Batch, extensions: Extensions
) -> Any:
    """The compiled update that the loop runs, guards and extensions included."""
    ctx = _context(config, model, extensions)
    if ctx.reading is not None:
        raise ValueError(
            f"{config.recipe} has a teacher, whose memory and time jaxrl plan does not estimate; "
            "plan the recipe sft, and the teacher apart"
        )
    update = stage_update(ctx, extensions, _optimizer(config, model))
    where = placement.of_batch(batch.trajectory)
    abstract: Trajectory = jax.tree.map(_shape, where, batch.trajectory)
    ref_logp = abstract.behavior_logp if reference.needed(config, extensions) else None
    host_packed = batch.packed
    if config.rollout.records_support:
        words = support.words(model.vocab_size)
        host_packed = host_packed.replace(
            support=np.zeros((*host_packed.target.shape, words), np.uint32)
        )
    packed = jax.tree.map(_shape, placement.of_packed(config, host_packed), host_packed)
    return update.lower(state, abstract, packed, ref_logp).compile()


def _shape(where: Any, a: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype, sharding=where)


def mib(leaf: jax.ShapeDtypeStruct) -> float:
    """MiB a device of an array."""
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize / 2**20


def total(tree: Any) -> float:
    """MiB a device of all arrays of a tree."""
    return sum(mib(leaf) for leaf in jax.tree.leaves(tree))


def copy_of(params: Any, dtype: str) -> float:
    """MiB a device of the parameters as the sampler reads them."""
    return sum(
        mib(leaf) * np.dtype(dtype).itemsize / leaf.dtype.itemsize
        if np.issubdtype(leaf.dtype, np.floating)
        else mib(leaf)
        for leaf in jax.tree.leaves(params)
    )


def cache(model: DecoderConfig, config: Config, the_mesh: jax.sharding.Mesh) -> float:
    """MiB a device of the sampler's caches."""
    length = config.rollout.max_prompt_tokens + config.rollout.max_new_tokens
    shards = mesh.batch_shards(the_mesh, model.rules)
    slots = -(-config.sampler.slots // shards) * shards
    layers = jax.eval_shape(lambda: decoder.empty_cache(model, slots, length))
    axes = tuple(map(decoder.cache_axes, layers))

    def size(leaf: jax.ShapeDtypeStruct, names: tuple[str | None, ...]) -> float:
        spec = mesh.spec(names, leaf.shape, the_mesh, rules=model.rules)
        where = jax.NamedSharding(the_mesh, spec)
        return mib(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where))

    return sum(jax.tree.leaves(jax.tree.map(size, layers, axes)))
