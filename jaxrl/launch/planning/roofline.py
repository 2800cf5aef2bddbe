"""How fast a step could be at best: a chip's arithmetic, memory and wires at their rates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxrl.launch.planning.chips import Chip
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.models.mixers import delta_rule, state_space

_KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
_COLLECTIVE = re.compile(rf"= (.*?) ({_KINDS})(-start)?\((.*)")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations)=(?:%?([\w.\-]+)|\{([^}]*)\})")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f64": 8, "s64": 8, "u64": 8}


class Collective(NamedTuple):
    """One kind and shape of communication in a program."""

    kind: str
    shape: str
    times: int
    bytes: float
    """That a device sends in one of them, by a ring."""


def collectives(program: str, unknown: int = 1) -> list[Collective]:
    """What a compiled program communicates, loops counted as often as they run.

    Args:
      program: text of the optimised HLO.
      unknown: how often a loop runs whose count the program does not say: over micro-batches.
    """
    bodies, entry = _computations(program)
    total: dict[tuple[str, str, float], int] = {}

    def walk(name: str, often: int) -> None:
        for line in bodies.get(name, ()):
            for transfer in _communicated(line, name.startswith("all-reduce-scatter")):
                total[transfer] = total.get(transfer, 0) + often
            trips = _trips(line, bodies, unknown) if " while(" in line else 1
            for callee, callees in _CALLED.findall(line):
                for called in (callee or callees).split(", "):
                    walk(called.lstrip("%"), often * trips)

    walk(entry, 1)
    return [Collective(kind, shape, n, size) for (kind, shape, size), n in sorted(total.items())]


def _computations(program: str) -> tuple[dict[str, list[str]], str]:
    """Lines of each computation, and the name of the one that is run."""
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in program.splitlines():
        if opened := _COMPUTATION.match(line):
            name = opened[1]
            entry = name if line.startswith("ENTRY") or not entry else entry
        bodies.setdefault(name, []).append(line)
    return bodies, entry


def _communicated(line: str, scattered: bool) -> Iterator[tuple[str, str, float]]:
    """Kind, shape and bytes sent of each array that a line sends.

    With `scattered`, an all-reduce of which a device keeps its slice alone, as XLA for TPU writes a
    reduce-scatter.
    """
    if match := _COLLECTIVE.search(line):
        result, kind, started, rest = match.groups()
        shapes, size = re.findall(r"\w+\[[\d,]*\]", result), _group(rest)
        if started and kind in ("all-gather", "collective-permute"):
            shapes = shapes[1:2]  # operand, result, and what marks the transfer
        kind, parts = ("reduce-scatter", size) if scattered else (kind, 1)
        for shape in shapes:
            yield kind, shape, _sent(kind, _size(shape) / parts, size)


def _trips(line: str, bodies: dict[str, list[str]], unknown: int) -> int:
    """How often the body of a loop runs: as annotated, or counted up to a constant."""
    if match := _TRIPS.search(line):
        return int(match[1])
    condition = "\n".join(bodies.get(_CONDITION.search(line)[1], ()))
    bounds = re.findall(r"s32\[\]\S* constant\((\d+)\)", condition)
    return int(bounds[0]) if len(bounds) == 1 and "direction=LT" in condition else unknown


def _size(shape: str) -> int:
    kind, dims = shape.rstrip("]").split("[")
    return math.prod(int(d) for d in dims.split(",") if d) * _BYTES.get(kind, 4)


def _group(text: str) -> int:
    if match := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", text):
        sizes = dict(axis.split("=") for axis in match[1].split(","))
        return math.prod(int(sizes[axis]) for axis in match[2].split(","))
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]", text):
        return int(iota[1])
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", text)
    return listed[1].count(",") + 1 if listed else 2


def _sent(kind: str, result: int, size: int) -> float:
    share = (size - 1) / size
    match kind:
        case "all-reduce":
            return 2 * share * result
        case "reduce-scatter":
            return (size - 1) * result
        case "collective-permute":
            return result
    return share * result


def active(config: DecoderConfig) -> int:
    """Weights that a token is multiplied by: of experts, those it is sent to; the head, once."""
    count = config.vocab_size * config.hidden_size
    for leaf in decoder.layout(config).values():
        if leaf.inputs:
            size, e = math.prod(leaf.shape), config.experts
            is_routed = leaf.axes[leaf.batch - 1] == "expert"
            count += size * e.per_token // e.num_experts if is_routed else size
    return count


def train_flops(
    config: DecoderConfig, tokens: int, row: int, remat: str, *, frozen: bool = False
) -> float:
    """Of an update: 6 a weight and token, and causal attention over rows; what is recomputed too.

    Args:
      config: the decoder's shape; windows are counted as if they were not there.
      tokens: computed, padding included.
      row: length of a row.
      remat: `full` computes the forward pass twice, `dots` and `offload` attention alone.
      frozen: adapters alone are trained, so that weights have no gradients: 4 in place of 6.
    """
    layers = config.num_layers - (0 if config.beside else sum(config.recurrent_layers))
    layers = config.parts.count("attention") if config.parts else layers
    attention = 2 * layers * config.num_heads * row * _head(config) * tokens
    weights = 2 * active(config) * tokens
    passes = (4 if remat == "full" else 3) - frozen
    return weights * passes + attention * (3 if remat == "none" else 4)


def _head(config: DecoderConfig) -> float:
    """Mean size of a head's keys and values."""
    m, local, kinds = config.latent, sum(config.local_layers), config.kinds
    if kinds:
        others = config.num_layers - local
        return (local * config.head_dim + others * kinds.global_head_dim) / config.num_layers
    return (m.nope_dim + m.rope_dim + m.v_dim) / 2 if m else config.head_dim


def saved(
    config: DecoderConfig, remat: str, row: int, tensor: int, *, scores: bool, levels: int
) -> float:
    """Numbers a token that a device keeps of the forward pass for the backward, of all layers.

    Args:
      config: the decoder's shape.
      remat: policy.
      row: length of a row.
      tensor: ways that heads and the MLP's width are split.
      scores: attention keeps them, as XLA's does and kernels do not.
      levels: of the trees of packed rows, see `Packed.levels`.
    """
    layers, d = range(config.num_layers), config.hidden_size
    if remat in ("full", "offload"):
        return config.num_layers * d
    parts = [_attention_or_mixer(config, i, row if scores else 0, tensor, levels) for i in layers]
    parts += [_mlp(config, i, tensor) for i in layers]
    everything = remat == "none"
    # beside what a part keeps within: its output, and under `none` its norm, and that of the norm
    sizes = [d + dots + everything * (2 * d + rest) for dots, rest in parts if dots]
    return config.num_layers * d + sum(sizes)


def _attention_or_mixer(
    config: DecoderConfig, layer: int, scores: int, tensor: int, levels: int
) -> tuple[float, float]:
    """What comes out of the projections at the start of a layer, and what is computed of it; none
    where a layer is an MLP alone."""
    part = config.parts[layer] if config.parts else ""
    if part in ("mlp", "experts"):
        return 0, 0
    if config.recurrent and config.recurrent_layers[layer]:
        return _mixer(config, levels)
    kinds, n, k, h = config.kinds, config.num_heads, config.num_kv_heads, _head(config)
    if kinds:
        is_local = config.is_local(layer)
        k, h = (k, config.head_dim) if is_local else (kinds.global_kv_heads, kinds.global_head_dim)
        k = k if config.source(layer) == layer else 0
    queries = (2 if config.attention_gate else 1) * n
    return (queries + 2 * k) * h / tensor, (n * h + 2 * n * scores) / tensor


def _mixer(config: DecoderConfig, levels: int) -> tuple[float, float]:
    """The same of a recurrent layer: a chunk's states, and matrices of its pairs of tokens.

    How often each is kept is fitted to what JAX saves of small models.
    """
    delta, mamba, d = config.delta, config.mamba, config.hidden_size
    if delta:
        key, value, chunk = delta.key_dim, delta.value_dim, delta_rule.CHUNK
        dots = delta.channels + delta.value_heads * (value + 2)
        pairs = 6 * chunk + (4 * levels + 2) * key + 6 * value
        state = levels * key * value / chunk
        return dots, 5 * delta.channels + delta.value_heads * (pairs + state)
    if mamba:
        pairs = 2 * state_space.CHUNK + 2 * (levels - 1) * mamba.head_dim
        state = levels * mamba.state * mamba.head_dim / state_space.CHUNK
        wide = 6 * mamba.channels + 5 * mamba.size
        return mamba.size + mamba.channels + mamba.heads, wide + mamba.heads * (pairs + state)
    return 3 * d, (config.convolution + 1) * d


def _mlp(config: DecoderConfig, layer: int, tensor: int) -> tuple[float, float]:
    """The same of the MLP of a layer; none where it has none."""
    if config.parts and config.parts[layer] not in ("mlp", "experts"):
        return 0, 0
    e, wide = config.experts, config.intermediate_size
    if config.kinds and config.source(layer) != layer:
        wide = config.kinds.sharing_mlp_size
    wide = e.per_token * e.size + e.shared_size if e and config.routes(layer) else wide
    projections = wide if config.self_gated else 2 * wide
    return projections / tensor, 2 * wide / tensor


def seconds(chip: Chip, flops: float, memory: float, wire: float, rows: float) -> tuple[float, str]:
    """Least time for so much of each, all overlapped, and what it is bound by.

    Args:
      chip: the device.
      flops: operations.
      memory: bytes from memory.
      wire: bytes to neighbours.
      rows: of the products, by which the chip reaches a share of its arithmetic.
    """
    times = {
        "arithmetic": flops / (chip.flops.value * chip.efficiency.at(rows)),
        "memory": memory / chip.bandwidth.value,
        "wires": wire / chip.wire.value,
    }
    bound = max(times, key=times.get)
    return times[bound], bound


class Demand(NamedTuple):
    """What an update, or all steps of sampling, takes of a device."""

    flops: float
    memory: float
    """Bytes."""
    wire: float
    """Bytes."""
    rows: float
    """Of its products."""
    times: int = 1

    def seconds_on(self, chip: Chip) -> tuple[float, str]:
        """Least seconds on a chip, and what they are bound by."""
        once, bound = seconds(chip, self.flops, self.memory, self.wire, self.rows)
        return self.times * once, bound


def decode_steps(requests: int, slots: int, new_tokens: int) -> int:
    """Passes over the weights that sampling takes, if every request uses its budget."""
    return int(np.ceil(requests / slots)) * new_tokens
