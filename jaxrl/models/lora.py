"""Low-rank adapters: LoRA, rsLoRA and DoRA, over plain or quantised weights.

Adapters are a pytree of their own. `attach` puts them into the parameters for the forward pass, so
a train state holds and differentiates the adapters alone, and the parameters as they were are the
reference policy: adapter off, and no second copy.

    adapters = lora.init(key, model, params, config)
    gradient = jax.grad(lambda adapters: loss(lora.attach(model, params, adapters, config)))
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl.models import linear
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Leaf, Params, layout
from jaxrl.models.linear import Adapted, Kind

Adapters = dict[str, Any]
"""A nested dict like the parameters, with a dict of `a`, `b` and, for DoRA, `magnitude` in place of
each adapted matrix. Leaves lead with layers and experts as the matrix does."""

Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Which matrices are adapted, and how."""

    rank: int = 16
    """0 adapts nothing."""
    alpha: float = 32.0
    """The change is scaled by alpha / rank."""
    dropout: float = 0.0
    """Of what enters an adapter, in training."""
    targets: tuple[str, ...] = ("*/attention/*", "*/mlp/*")
    """Patterns of parameter paths such as `layers/attention/q`; routers only by their full name.
    The default ones take in the mixers of recurrent layers, `*/mixer/*`."""
    rank_stabilized: bool = False
    """rsLoRA (Kalajdzievski 2023): scale by alpha / sqrt(rank)."""
    dora: bool = False
    """DoRA (Liu et al. 2024): train the norm of each output's weights apart from the direction."""
    base: Literal["plain", "int8", "nf4"] = "plain"
    """QLoRA (Dettmers et al. 2023): what a training run holds the matrices of the layers in."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"rank={self.rank}: must be 1 or more, or 0 for no adapters")
        if self.base != "plain" and not self.rank:
            raise ValueError(f"base={self.base!r} without adapters trains nothing; give it a rank")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout}: must be at least 0 and below 1")

    @property
    def kind(self) -> Kind | None:
        """What the base is quantised to, if at all."""
        return None if self.base == "plain" else self.base

    @property
    def scale(self) -> float:
        """Factor on the change."""
        return self.alpha / max(1, math.sqrt(self.rank) if self.rank_stabilized else self.rank)


def targets(model: DecoderConfig, config: LoraConfig) -> dict[Path, Leaf]:
    """The matrices that are adapted.

    Raises:
      ValueError: a pattern that matches none; or DoRA on experts.
    """
    matrices = {path: leaf for path, leaf in layout(model).items() if leaf.inputs}
    chosen = {}
    default = config.targets == LoraConfig.targets
    for pattern in (*config.targets, *(("*/mixer/*",) if default and model.recurrent else ())):
        matches = {
            path: leaf
            for path, leaf in matrices.items()
            if fnmatch.fnmatchcase("/".join(path), pattern)
            and (path[-1] != "router" or pattern.endswith("router"))
        }
        if not matches:
            names = ", ".join("/".join(path) for path in matrices)
            raise ValueError(f"targets has {pattern!r}, which matches none of {names}")
        chosen |= matches
    if config.dora and any(leaf.batch > 1 for leaf in chosen.values()):
        raise ValueError("dora adapts no experts; leave them out of targets")
    return {path: leaf for path, leaf in matrices.items() if path in chosen}


def inputs(leaf: Leaf, part: str) -> int:
    """Input axes of one part of a matrix's adapter; 0 for DoRA's magnitude, which is a vector."""
    return {"a": leaf.inputs, "b": 1, "magnitude": 0}[part]


def _declare(leaf: Leaf, config: LoraConfig) -> dict[str, Leaf]:
    """The leaves of one matrix's adapter."""
    cut = leaf.batch + leaf.inputs

    input_shape, output_shape = leaf.shape[leaf.batch : cut], leaf.shape[cut:]
    parts = {
        "a": ((*input_shape, config.rank), (*leaf.axes[leaf.batch : cut], "rank")),
        "b": ((config.rank, *output_shape), ("rank", *leaf.axes[cut:])),
    }
    if config.dora:
        parts["magnitude"] = (output_shape, leaf.axes[cut:])
    shape, axes = leaf.shape[: leaf.batch], leaf.axes[: leaf.batch]
    return {
        name: Leaf(shape + part_shape, axes + names, leaf.batch, inputs(leaf, name))
        for name, (part_shape, names) in parts.items()
    }


def abstract(model: DecoderConfig, config: LoraConfig) -> tuple[Adapters, Adapters]:
    """Shapes of the adapters and, leaf by leaf, their logical axis names."""
    leaves = {
        (*path, name): part
        for path, leaf in targets(model, config).items()
        for name, part in _declare(leaf, config).items()
    }
    shapes = {path: jax.ShapeDtypeStruct(p.shape, jnp.float32) for path, p in leaves.items()}
    axes = {path: p.axes for path, p in leaves.items()}
    return nnx.traversals.unflatten_mapping(shapes), nnx.traversals.unflatten_mapping(axes)


def init(key: jax.Array, model: DecoderConfig, params: Params, config: LoraConfig) -> Adapters:
    """Fresh fp32 adapters, which change nothing: `a` uniform within 1 / sqrt(inputs), `b` zero.

    Args:
      key: typed PRNG key.
      model: the decoder's shape.
      params: as from `decoder.init`, quantised or not; DoRA reads their norms.
      config: what to adapt.
    """
    base, adapters = nnx.traversals.flatten_mapping(params), {}
    for i, (path, leaf) in enumerate(targets(model, config).items()):
        parts = _declare(leaf, config)
        input_shape = leaf.shape[leaf.batch : leaf.batch + leaf.inputs]
        bound = math.prod(input_shape) ** -0.5
        shape = parts["a"].shape
        adapters[*path, "a"] = jax.random.uniform(
            jax.random.fold_in(key, i), shape, jnp.float32, -bound, bound
        )
        adapters[*path, "b"] = jnp.zeros(parts["b"].shape, jnp.float32)
        if config.dora:
            norms = functools.partial(linear.norms, inputs=leaf.inputs)
            adapters[*path, "magnitude"] = _by_layer(norms, leaf)(base[path])
    return nnx.traversals.unflatten_mapping(adapters)


def attach(
    model: DecoderConfig,
    params: Params,
    adapters: Adapters,
    config: LoraConfig,
    *,
    key: jax.Array | None = None,
) -> Params:
    """Parameters with the adapters on, for `decoder`'s functions; differentiable in `adapters`.

    The base matrices are held, not copied. Matrices that attention reads whole, as latent attention
    does `kv_up`, have no dropout.

    Args:
      model: the decoder's shape.
      params: as from `decoder.init`, quantised or not.
      adapters: as from `init`.
      config: the same.
      key: typed PRNG key of this call's dropout; None, as in sampling, for none.
    """
    flat, parts = nnx.traversals.flatten_mapping(params), nnx.traversals.flatten_mapping(adapters)
    for i, (path, leaf) in enumerate(targets(model, config).items()):
        drop = None
        if key is not None and config.dropout > 0:
            drop = jax.random.fold_in(key, i)
            drop = jax.random.split(drop, leaf.shape[0]) if leaf.batch else drop
        flat[path] = Adapted(
            base=flat[path],
            a=parts[*path, "a"],
            b=parts[*path, "b"],
            magnitude=parts.get((*path, "magnitude")),
            key=drop,
            scale=config.scale,
            dropout=config.dropout,
        )
    return nnx.traversals.unflatten_mapping(flat)


def detach(params: Params) -> tuple[Adapters, Params]:
    """The adapters and the parameters without them; undoes `attach`."""
    base, adapters = nnx.traversals.flatten_mapping(params), {}
    for path, weight in base.items():
        if isinstance(weight, Adapted):
            base[path] = weight.base
            parts = {"a": weight.a, "b": weight.b, "magnitude": weight.magnitude}
            adapters |= {(*path, k): v for k, v in parts.items() if v is not None}
    return tuple(nnx.traversals.unflatten_mapping(flat) for flat in (adapters, base))


def replace(params: Params, adapters: Adapters) -> Params:
    """Parameters from `attach` with other adapters, of the same shapes, in place of their own."""
    flat, parts = nnx.traversals.flatten_mapping(params), nnx.traversals.flatten_mapping(adapters)
    for path, weight in flat.items():
        if isinstance(weight, Adapted):
            names = ("a", "b", "magnitude")
            flat[path] = weight.replace(**{name: parts.get((*path, name)) for name in names})
    return nnx.traversals.unflatten_mapping(flat)


def fold(params: Params) -> Params:
    """Parameters with each adapter added into its matrix, unless that is quantised."""

    def merge_weight(weight: linear.Weight) -> linear.Weight:
        if not isinstance(weight, Adapted) or isinstance(weight.base, linear.Quantized):
            return weight
        add = functools.partial(linear.dense, dtype=weight.base.dtype)
        for _ in range(weight.a.ndim + weight.b.ndim - 2 - weight.base.ndim):
            add = jax.vmap(add)
        return add(weight)

    return jax.tree.map(merge_weight, params, is_leaf=lambda x: isinstance(x, Adapted))


def merge(model: DecoderConfig, params: Params, adapters: Adapters, config: LoraConfig) -> Params:
    """Plain parameters equal to those with the adapters on; quantised matrices come out as fp32."""
    flat = nnx.traversals.flatten_mapping(attach(model, params, adapters, config))
    for path, leaf in layout(model).items():
        if not isinstance(flat[path], jax.Array):
            dense = functools.partial(linear.dense, dtype=jnp.float32)
            flat[path] = _by_layer(dense, leaf)(flat[path])
    return nnx.traversals.unflatten_mapping(flat)


def _by_layer(function: Callable[..., jax.Array], leaf: Leaf) -> Callable[..., jax.Array]:
    """A function of one layer's (and one expert's) weight, over all of them."""
    for _ in range(leaf.batch):
        function = jax.vmap(function)
    return jax.jit(function)
