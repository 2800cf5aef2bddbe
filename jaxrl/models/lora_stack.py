"""Several LoRA adapters at once on one base: every row of a batch has one of them, or none.

The adapters stand beside each matrix on a leading axis, padded with zeros to one rank, and a pass
chooses among them by row. What a row gets depends on its own adapter alone, so sequences of
different adapters decode in one batch, and adapters come and go without compiling anything anew.

    params = lora_stack.attach(model, params, matrices, count=8, rank=16)
    params = lora_stack.put(model, params, 3, adapters, config)
    hidden, cache = decoder.extend(model, lora_stack.choose(params, rows), ...)

Papers: Chen et al. 2023, "Punica: Multi-Tenant LoRA Serving"; Sheng et al. 2023, "S-LoRA: Serving
Thousands of Concurrent LoRA Adapters"
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl.models import lora
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Leaf, Params, layout
from jaxrl.models.linear import AdaptedRows
from jaxrl.models.lora import Adapters, LoraConfig, Path

HEAD: Path = ("head",)
"""The output head, apart from the embedding where the two are tied. Its adapter is `a` [D, R] and
`b` [R, V]."""

_NOT_BY_ROW = ("router", "kv_up", "shared")
"""Parts whose tokens are sorted by expert, or whose matrices attention reads as they are."""


def matrices(model: DecoderConfig) -> dict[Path, Leaf]:
    """The matrices of layers that can have another adapter for each row, by path."""
    return {
        path: leaf
        for path, leaf in layout(model).items()
        if leaf.inputs and leaf.batch == 1 and not {*path} & {*_NOT_BY_ROW}
    }


def check(
    model: DecoderConfig,
    name: str,
    config: LoraConfig,
    adapters: Adapters,
    paths: Sequence[Path],
    rank: int,
) -> None:
    """Refuse adapters that have no place in a stack.

    Args:
      model: the decoder's shape.
      name: of the adapters, for the message.
      config: of the adapters.
      adapters: as from `lora.init`, and `HEAD`.
      paths: of the matrices of the stack.
      rank: of the stack.

    Raises:
      ValueError: DoRA, a greater rank, matrices that the stack or any stack lacks, other shapes
        than the base has, or numbers that are not finite.
    """
    if config.dora:
        raise ValueError(
            f"adapter {name!r} has use_dora=True, whose norms are of one adapter; merge it into "
            "its base and serve that model"
        )
    if not 0 < config.rank <= rank:
        raise ValueError(
            f"adapter {name!r} has rank {config.rank}, and there is room for ranks of 1 to {rank}; "
            "raise the greatest rank, or merge the adapter into its base"
        )
    flat = nnx.traversals.flatten_mapping(adapters)
    adapted = dict.fromkeys(path[:-1] for path in flat)
    if alien := [path for path in adapted if path != HEAD and path not in matrices(model)]:
        raise ValueError(
            f"adapter {name!r} changes {_names(alien)}, which cannot differ from row to row (those "
            "of experts, of routers and of latent attention's kv_up); merge it into its base and "
            "serve that model"
        )
    if alien := [path for path in adapted if path not in paths]:
        raise ValueError(
            f"adapter {name!r} changes {_names(alien)}, and there is room for changes of "
            f"{_names(paths)}; name it when the server starts, which makes room for its matrices"
        )
    for path in adapted:
        expected = _own_shapes(model, path, config.rank)
        for part, shape in expected.items():
            value = flat[*path, part]
            if value.shape != shape:
                raise ValueError(
                    f"adapter {name!r}: {'/'.join(path)}/{part} has shape {value.shape}, and this "
                    f"base needs {shape}; name the base that the adapter was trained on"
                )
            if not np.isfinite(np.asarray(value)).all():
                raise ValueError(
                    f"adapter {name!r}: {'/'.join(path)}/{part} has numbers that are nan or "
                    "infinite; load an earlier checkpoint"
                )


def _names(paths: Sequence[Path]) -> str:
    return ", ".join("/".join(path) for path in paths)


def _own_shapes(model: DecoderConfig, path: Path, rank: int) -> dict[str, tuple[int, ...]]:
    """The shapes of one adapter's parts, as it is trained."""
    if path == HEAD:
        return {"a": (model.hidden_size, rank), "b": (rank, model.vocab_size)}
    leaf = matrices(model)[path]
    cut = leaf.batch + leaf.inputs
    layers, inputs, outputs = leaf.shape[:1], leaf.shape[1:cut], leaf.shape[cut:]
    return {"a": (*layers, *inputs, rank), "b": (*layers, rank, *outputs)}


def attach(
    model: DecoderConfig, params: Params, paths: Sequence[Path], *, count: int, rank: int
) -> Params:
    """Parameters with room for adapters, which change nothing yet.

    Args:
      model: the decoder's shape.
      params: as from `decoder.unstack` or `policy.sampling_params`, shared and not copied.
      paths: of the matrices that any of the adapters changes: of `matrices`, and `HEAD`.
      count: how many adapters there may be, N; they are numbered from 1, and 0 is none.
      rank: the greatest of them.
    """
    dtype, sharding = jnp.dtype(model.dtype), jax.tree.leaves(params)[0].sharding
    if isinstance(sharding, NamedSharding):  # adapters are small: each device has them all
        sharding = NamedSharding(sharding.mesh, PartitionSpec())

    def room(path: Path, base: Any) -> AdaptedRows:
        shapes = _own_shapes(model, path, rank)
        a, b = shapes["a"][path != HEAD :], shapes["b"][path != HEAD :]
        zeros = functools.partial(jnp.zeros, dtype=dtype, device=sharding)
        return AdaptedRows(base, zeros((count, rank, *a[:-1])), zeros((count, *b)))

    result = {**params, "layers": tuple(dict(layer) for layer in params["layers"])}
    layers = [nnx.traversals.flatten_mapping(layer) for layer in result["layers"]]
    for path in paths:
        if path == HEAD:
            result["head"] = room(path, params.get("head", params["embed"]))
            continue
        for i in _layers_of(model, path[0]):
            layers[i][path[1:]] = room(path, layers[i][path[1:]])
    return result | {"layers": tuple(map(nnx.traversals.unflatten_mapping, layers))}


def _layers_of(model: DecoderConfig, stack: str) -> list[int]:
    """The numbers of the layers that are stacked under a name, in order."""
    return [i for i in range(model.num_layers) if model.place(i)[0] == stack]


def put(
    model: DecoderConfig,
    params: Params,
    index: int,
    adapters: Adapters | None,
    config: LoraConfig = LoraConfig(),
) -> Params:
    """Parameters with adapters in one place of the stack; what was there is gone.

    Args:
      model: the decoder's shape.
      params: from `attach`, rows not chosen.
      index: of the place, from 1.
      adapters: as from `lora.init`, and `HEAD`; see `check`. None: none, so the place changes
        nothing.
      config: of the adapters.

    Raises:
      IndexError: there is no such place.
    """
    if not 0 < index <= count(params):
        raise IndexError(f"adapter {index}: there are places 1 to {count(params)}")
    flat = {k: np.asarray(v) for k, v in nnx.traversals.flatten_mapping(adapters or {}).items()}
    stacked = _adapted(params)
    # padded here, so that one program puts adapters of any rank and of any matrices
    fresh = {path: _padded(weight, *_parts(model, flat, path)) for path, weight in stacked.items()}
    arrays = {path: (weight.a, weight.b) for path, weight in stacked.items()}
    return _replaced(params, _write(arrays, fresh, np.int32(index - 1), np.float32(config.scale)))


def _parts(
    model: DecoderConfig, flat: Mapping[Path, np.ndarray], path: Path
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The parts of an adapter, as it is trained, that are of one layer's matrix."""
    if path == HEAD:
        return flat.get((*HEAD, "a")), flat.get((*HEAD, "b"))
    stack, row = model.place(path[1])
    a, b = (flat.get((stack, *path[2:], part)) for part in "ab")
    return (None, None) if a is None or b is None else (a[row], b[row])


def _padded(
    weight: AdaptedRows, a: np.ndarray | None, b: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Parts a [*I, r] and b [r, *O] as [R, *I] and [R, *O]; zeros in place of None."""
    wide = tuple(np.zeros(part.shape[1:], np.float32) for part in (weight.a, weight.b))
    if a is not None and b is not None:
        wide[0][: len(b)], wide[1][: len(b)] = np.moveaxis(a, -1, 0), b
    return wide


@jax.jit
def _write(arrays: Any, fresh: Any, place: jax.Array, scale: jax.Array) -> Any:
    """All pairs (a [N, R, *I], b [N, R, *O]) with new ones (a [R, *I], b [R, *O]) at a place."""

    def pair(old: Any, new: Any) -> Any:
        parts = zip(old, (new[0], new[1] * scale), strict=True)
        return tuple(stack.at[place].set(bounded(part, stack.dtype)) for stack, part in parts)

    def bounded(part: jax.Array, dtype: jnp.dtype) -> jax.Array:
        # 0 times infinity would reach the rows of other adapters
        greatest = float(jnp.finfo(dtype).max)
        return jnp.clip(part, -greatest, greatest).astype(dtype)

    return {path: pair(old, fresh[path]) for path, old in arrays.items()}


def _adapted(params: Params) -> dict[Path, AdaptedRows]:
    """The matrices with room for adapters: `HEAD`, and (`layers`, layer, *path)."""
    weights = {
        ("layers", i, *path): weight
        for i, layer in enumerate(params["layers"])
        for path, weight in nnx.traversals.flatten_mapping(layer).items()
        if isinstance(weight, AdaptedRows)
    }
    head = params.get("head")
    return weights | ({HEAD: head} if isinstance(head, AdaptedRows) else {})


def _replaced(params: Params, parts: Mapping[Path, tuple[jax.Array, jax.Array]]) -> Params:
    def leaf(path: tuple[Any, ...], weight: Any) -> Any:
        key = tuple(getattr(step, "key", getattr(step, "idx", None)) for step in path)
        if not isinstance(weight, AdaptedRows):
            return weight
        a, b = parts[key]
        return weight.replace(a=a, b=b)

    return jax.tree_util.tree_map_with_path(leaf, params, is_leaf=_is_adapted)


def _is_adapted(part: Any) -> bool:
    return isinstance(part, AdaptedRows)


def count(params: Params) -> int:
    """How many adapters there is room for; 0 in parameters that `attach` did not make."""
    parts = jax.tree.leaves(params, is_leaf=_is_adapted)
    return max((part.a.shape[0] for part in parts if _is_adapted(part)), default=0)


def choose(params: Params, rows: jax.Array) -> Params:
    """Parameters for a batch; those that `attach` did not make stay as they are.

    Args:
      params: from `put`.
      rows: [B] int32, the adapter of each row of the batch: its place from 1, or 0 for none. [1]
        is that of all rows.
    """
    if not (places := count(params)):
        return params
    chosen = rows[:, None] == jnp.arange(1, places + 1)

    def leaf(weight: Any) -> Any:
        return weight.replace(chosen=chosen) if _is_adapted(weight) else weight

    return jax.tree.map(leaf, params, is_leaf=_is_adapted)


def targets_of(model: DecoderConfig, configs: Sequence[LoraConfig]) -> list[Path]:
    """The matrices that any of several adapters changes, in the order of the decoder."""
    chosen = {path for config in configs for path in lora.targets(model, config)}
    return [path for path in layout(model) if path in chosen]
