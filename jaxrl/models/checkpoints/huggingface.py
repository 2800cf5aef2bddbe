"""Weights in Hugging Face directories: safetensors files, read and written a layer at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from jaxrl.models.checkpoints import hf_config, peft_merge, tensor_files
from jaxrl.models.checkpoints.families import INPUTS, LAYER, PREFIX, ROUTED, Family
from jaxrl.models.checkpoints.forms import quantized_files, stacked, wrapped
from jaxrl.models.checkpoints.peft_merge import Adapter
from jaxrl.models.checkpoints.tensor_files import listed
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Leaf, Params, layout
from jaxrl.models.linear import Kind
from jaxrl.models.stream import Shardings, assemble, places


class Piece(NamedTuple):
    """A matrix or vector of ours, and the rows of a file's tensor that hold it."""

    path: str
    """Of our parameter, with slashes."""
    at: tuple[int, ...]
    """Index of layer and expert in our parameter."""
    tensor: str
    rows: slice
    shape: tuple[int, ...]
    """In the file, [outputs, inputs] or [size]."""


_FLOAT32 = ("/mixer/a_log", "/mixer/norm/weight")
"""Ends of the paths of parameters that released files hold in fp32 whatever the rest is in."""

AS_THEY_ARE = {"vocab", "taps", "single"}
"""Axes of parameters that are no matrices of a projection, and have all their axes in files."""


def _file_shape(leaf: Leaf) -> tuple[int, ...]:
    shape = leaf.shape[leaf.batch :]
    if leaf.inputs:
        return math.prod(shape[leaf.inputs :]), math.prod(shape[: leaf.inputs])
    return shape if AS_THEY_ARE & {*leaf.axes} else (math.prod(shape),)


def _renamed(name: str, before: str, after: str) -> str:
    return after + name.removeprefix(before) if name.startswith(before) else name


def _dtype(path: str, dtype: str) -> np.dtype:
    """In which a parameter is written where matrices are in `dtype`."""
    return jnp.dtype("float32" if path.endswith(_FLOAT32) else dtype)


def pieces(config: DecoderConfig, family: Family | None = None) -> list[Piece]:
    """Every parameter of the decoder in the order of the file: embedding, layers, norm and head."""
    family = family or hf_config.find(config.family)
    leaves = {"/".join(path): leaf for path, leaf in layout(config).items()}
    filled: dict[str, int] = {}
    plan: list[Piece] = []

    def add(path: str, at: tuple[int, ...], tensor: str) -> None:
        shape, start = _file_shape(leaves[path]), filled.get(tensor, 0)
        filled[tensor] = start + shape[0]
        plan.append(Piece(path, at, tensor, slice(start, filled[tensor]), shape))

    outside = family.tensors_outside
    for path in ("embed", *INPUTS):
        if path in leaves:
            add(path, (), outside[path])
    for layer in range(config.num_layers):
        stack, row = config.place(layer)
        names = LAYER | family.names
        if config.routes(layer):
            names |= ROUTED | family.routed
        for name, tensor in names.items():
            if leaf := leaves.get(f"{stack}/{name}"):
                for expert in itertools.product(*map(range, leaf.shape[1 : leaf.batch])):
                    place = tensor.format(expert=expert[0] if expert else None)
                    add(f"{stack}/{name}", (row, *expert), f"model.layers.{layer}.{place}")
    for path in ("norm/weight", "head", "score"):
        if path in leaves:
            add(path, (), outside[path])
    if nameless := leaves.keys() - {piece.path for piece in plan}:
        raise ValueError(f"family {config.family!r} names no tensors for {sorted(nameless)}")
    return plan


def read_config(directory: str | Path, family: Family | None = None) -> DecoderConfig:
    """The decoder that the directory's config.json describes.

    Raises:
      ValueError: as `hf_config.read`, or the weights are quantised in a way that is not read.
    """
    raw = json.loads((path := Path(directory) / "config.json").read_text())
    quantized_files.check(raw.get("quantization_config"), path)
    config = hf_config.read(raw, family)
    if config.tie_embeddings and wrapped.leaves_tying_open(raw):
        names = tensor_files.tensor_names(path.parent)
        return dataclasses.replace(config, tie_embeddings=not wrapped.has_head(names))
    return config


def load(
    directory: str | Path,
    *,
    shardings: Shardings | None = None,
    dtype: str = "float32",
    quantized: Kind | None = None,
    family: Family | None = None,
    adapters: Sequence[Adapter] = (),
) -> tuple[DecoderConfig, Params]:
    """Config and parameters, each layer put where it belongs as soon as it is read.

    Beside the parameters, the host holds one tensor of one layer at a time (one layer's experts),
    also where they are quantised on the way. Files in fp8 and of compressed-tensors are read as the
    numbers that they stand for.

    Args:
      directory: config.json and safetensors files, in one piece or sharded.
      shardings: where the parameters go; None: the default device.
      dtype: of the matrices that are not quantised; vectors and routers are float32.
      quantized: quantise the matrices of the layers, as `quantize.quantize` does.
      family: a record of your own; None: looked up by `model_type`.
      adapters: are merged into the tensors, one after the other.

    Raises:
      FileNotFoundError: no safetensors files.
      ValueError: an unsupported config; adapters that do not fit; or tensors are missing, unmapped,
        of the wrong shape or of a type that is no weight, and the message lists them.
    """
    directory = Path(directory)
    config = read_config(directory, family)
    family = family or hf_config.find(config.family)
    with contextlib.ExitStack() as stack:
        tensors = tensor_files.open_tensors(directory, stack)
        raw = json.loads((directory / "config.json").read_text())
        tensors = wrapped.text_tensors(raw, tensors)
        if quantization := raw.get("quantization_config"):
            tensors = quantized_files.dequantize(quantization, tensors)
        tensors = {_renamed(name, family.prefix, PREFIX): t for name, t in tensors.items()}
        tensors = {_respelled(name, family): tensor for name, tensor in tensors.items()}
        tensors = stacked.with_joined(family.joined, tensors)
        tensors = stacked.split(family.stacks, tensors)
        _drop_repeated_head(config, family, tensors)
        for adapter in adapters:
            if wrapped.find(raw):
                adapter = adapter._replace(changed=wrapped.adapter_names(adapter.changed))
            tensors = peft_merge.merge(adapter, config, tensors, family)
            config = peft_merge.config(adapter, config, family)
        plan = pieces(config, family)
        _check(config, family, plan, tensors)
        where, flat = places(config, shardings), {}
        for path, leaf in layout(config).items():
            parts = [piece for piece in plan if piece.path == "/".join(path)]
            flat[path] = assemble(leaf, _read(leaf, parts, tensors), where[path], dtype, quantized)
    return config, nnx.traversals.unflatten_mapping(flat)


def _respelled(name: str, family: Family) -> str:
    """The usual name of a tensor in a layer, where files have several."""
    layer, dot, short = name.rpartition(".layers.")[2].partition(".")
    usual = family.spellings.get(short, short)
    return name.removesuffix(short) + usual if dot and layer.isdecimal() else name


def _drop_repeated_head(config: DecoderConfig, family: Family, tensors: dict[str, Any]) -> None:
    """Leave out a head that repeats the tied embedding.

    Raises:
      ValueError: it differs from the embedding.
    """
    embed, head = (family.tensors_outside[path] for path in ("embed", "head"))
    if config.tie_embeddings and head in tensors and embed in tensors:
        # some files repeat the tied embedding; one that differs would change the model
        if not np.array_equal(tensors[head][:], tensors[embed][:]):
            raise ValueError(f"{head} differs from the embedding; set tie_word_embeddings to false")
        del tensors[head]


def _ignored(config: DecoderConfig, family: Family) -> list[str]:
    """Patterns of tensors that are not weights of the decoder."""
    sharing = range(config.num_layers - config.sharing, config.num_layers)
    values = {"num_layers": config.num_layers, "sharing": "|".join(map(str, sharing))}
    carried = (family.carried,) if family.carried else ()
    return [*(pattern.format(**values) for pattern in family.ignored), *carried]


def _check(
    config: DecoderConfig, family: Family, plan: list[Piece], tensors: dict[str, Any]
) -> None:
    """Refuse a directory whose tensors are not exactly those of the decoder."""
    ignored = _ignored(config, family)
    expected: dict[str, tuple[int, ...]] = {}
    for piece in plan:
        expected[piece.tensor] = (piece.rows.stop, *piece.shape[1:])
    present = {
        name: tuple(tensor.get_shape())
        for name, tensor in tensors.items()
        if not any(re.search(pattern, name) for pattern in ignored)
    }
    missing, unmapped = expected.keys() - present.keys(), present.keys() - expected.keys()
    shapes = [
        f"{name}: {present[name]}, not {expected[name]}"
        for name in sorted(expected.keys() & present.keys())
        if present[name] != expected[name]
    ]
    if missing or unmapped or shapes:
        raise ValueError(
            f"the files are not of this {config.family} decoder: missing tensors "
            f"{listed(missing)}; unmapped tensors {listed(unmapped)}; wrong shapes "
            f"{listed(shapes)}"
        )
    tensor_files.check_types(tensors, expected)


def _read(leaf: Leaf, parts: list[Piece], tensors: dict[str, Any]) -> Iterator[np.ndarray]:
    """The parameter, or its layers one by one."""
    shape = leaf.shape[leaf.batch :]

    def matrix(part: Piece) -> np.ndarray:
        value = tensors[part.tensor][part.rows]
        return (value.T if leaf.inputs else value).reshape(shape)

    if not leaf.batch:
        yield matrix(parts[0])
    for _, layer in itertools.groupby(parts, key=lambda part: part.at[:1]) if leaf.batch else ():
        yield np.stack([matrix(part) for part in layer]).reshape(leaf.shape[1:])


def save(
    directory: str | Path,
    config: DecoderConfig,
    params: Params,
    *,
    dtype: str = "float32",
    extra: Mapping[str, Any] | None = None,
    max_shard_bytes: int = 5_000_000_000,
    family: Family | None = None,
    around: str | Path | None = None,
) -> None:
    """Write config.json and safetensors files that transformers loads.

    The host holds one shard at a time.

    Args:
      directory: made if need be.
      config: the decoder.
      params: as from `decoder.init`.
      dtype: of the tensors in the files, but for decays and norms of recurrent layers, which are
        float32.
      extra: further keys of config.json, such as `eos_token_id`.
      max_shard_bytes: a file that would grow larger is followed by another, with an index.
      family: a record of your own; None: looked up by `config.family`.
      around: directory of a model that reads pictures, whose text model this is, or of one with
        `Family.carried` tensors; all else of it is copied byte for byte. None: the parameters are
        written alone.

    Raises:
      ValueError: what would be copied is quantised.
    """
    directory, outer = Path(directory), Path(around) if around else None
    directory.mkdir(parents=True, exist_ok=True)
    by_tensor: dict[str, list[Piece]] = {}
    plan = pieces(config, family)
    outer_names = tensor_files.tensor_names(outer) if outer else []
    family = family or hf_config.find(config.family)
    names = {piece.tensor: _renamed(piece.tensor, PREFIX, family.prefix) for piece in plan}
    outer_raw = wrapped.read_raw(outer) if outer else {}
    reads_pictures = outer is not None and wrapped.find(outer_raw) is not None
    names = wrapped.file_names(outer_names, names) if reads_pictures else names
    for piece in plan:
        by_tensor.setdefault(names[piece.tensor], []).append(piece)
    groups = stacked.groups(family.stacks, by_tensor)
    sizes = {
        name: sum(
            math.prod(part.shape) * _dtype(part.path, dtype).itemsize
            for short in group.names
            for part in by_tensor[short]
        )
        for name, group in groups.items()
    }
    leaves = {"/".join(path): leaf for path, leaf in layout(config).items()}
    arrays = nnx.traversals.flatten_mapping(params, sep="/")

    def matrix(part: Piece) -> np.ndarray:
        value = np.asarray(arrays[part.path][part.at], _dtype(part.path, dtype))
        turned = value.reshape(part.shape[::-1]).T if leaves[part.path].inputs else value
        return turned.reshape(part.shape)

    def tensor(group: stacked.Group) -> np.ndarray:
        values = [np.concatenate([matrix(part) for part in by_tensor[n]]) for n in group.names]
        return stacked.join(group.stack, values) if group.stack else values[0]

    shards, total = _shards(sizes, max_shard_bytes), sum(sizes.values())
    count = len(shards) + bool(outer)
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = tensor_files.shard_name(number, count)
        tensors = {
            # save_file writes memory as it lies, whatever the strides
            name: np.ascontiguousarray(tensor(groups[name]))
            for name in shard
        }
        safetensors.numpy.save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    raw = hf_config.write(config, dtype, family)
    if outer:
        file = tensor_files.shard_name(count, count)
        rest = wrapped.outside(outer_names) if reads_pictures else carried(family, outer_names)
        total += tensor_files.copy(outer, rest, directory / file)
        weight_map |= dict.fromkeys(rest, file)
    if outer and reads_pictures:
        raw = wrapped.describe(outer_raw, config, dtype)
        wrapped.copy_processor(outer, directory)
    elif outer:
        raw |= {key: outer_raw[key] for key in family.carried_keys if key in outer_raw}
    if count > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / tensor_files.INDEX).write_text(json.dumps(index, indent=2) + "\n")
    raw |= dict(extra or {})
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n")


def carried(family: Family, names: Iterable[str]) -> list[str]:
    """The names of the tensors that an export copies, see `Family.carried`."""
    return [name for name in names if family.carried and re.search(family.carried, name)]


def _shards(sizes: dict[str, int], limit: int) -> list[list[str]]:
    """Names in order, cut before the one that would exceed the limit."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards
