"""Layers whose kinds repeat after a period: how they are stacked, and run by one scan."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.models.config import CYCLE, SHARING

STACKS = ("dense_layers", "layers")
"""Keys of stacked layers that are alike, from the bottom up; the first only under experts with
dense layers."""


def is_stack(name: str) -> bool:
    """Whether a key of the parameters names stacked layers."""
    return name in STACKS or name.startswith((CYCLE, SHARING))


def names(stacks: Mapping[str, Any]) -> list[str]:
    """The keys of stacked layers among those of parameters: of plain stacks from the bottom up,
    then those of a period in order, and of that of the layers above."""
    plain = [name for name in STACKS if name in stacks]
    return plain + _cycle(stacks, CYCLE) + _cycle(stacks, SHARING)


def in_order(stacks: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The layers from the bottom up.

    Args:
      stacks: by key, the layers of each stack; see `DecoderConfig.place`.
    """
    layers = [layer for name in STACKS for layer in stacks.get(name, ())]
    for prefix in (CYCLE, SHARING):
        rows = itertools.zip_longest(*[stacks[name] for name in _cycle(stacks, prefix)])
        layers += [layer for row in rows for layer in row if layer is not None]
    return layers


def _cycle(stacks: Mapping[str, Any], prefix: str) -> list[str]:
    """The stacks of a period, in order."""
    names = [name for name in stacks if name.startswith(prefix)]
    return sorted(names, key=lambda name: int(name.removeprefix(prefix)))


def run(
    params: Mapping[str, Any],
    further: Any,
    x: Any,
    body: Callable[[str, Any, Any], tuple[Any, Any]],
    prefix: str = CYCLE,
) -> tuple[Any, Any]:
    """Run the layers of a period, again and again, over `x`.

    Args:
      params: by stack, leaves that lead with its layers.
      further: a pytree of arrays that lead with all layers.
      x: what goes from layer to layer, a pytree.
      body: `(stack, x, (params of the layer, its part of further)) -> (x, output)`.
      prefix: of the stacks of the period, `CYCLE` or `SHARING`.

    Returns:
      The last `x`, and the outputs, leaves leading with all layers whose output is not None.
    """
    names = _cycle(params, prefix)
    size, total = len(names), jax.tree.leaves(further)[0].shape[0]
    repeats, rest = divmod(total, size)

    def layers(count: int, x: Any, xs: Any) -> tuple[Any, Any]:
        weights, values = xs
        results = []
        for i, name in enumerate(names[:count]):
            part = jax.tree.map(lambda leaf: leaf[i], values)  # noqa: B023
            x, result = body(name, x, (weights[name], part))
            results += [] if result is None else [result]
        return x, jax.tree.map(lambda *a: jnp.stack(a), *results) if results else None

    repeated = repeats * size
    xs = (
        jax.tree.map(lambda leaf: leaf[:repeats], {name: params[name] for name in names}),
        jax.tree.map(lambda leaf: leaf[:repeated].reshape(repeats, size, *leaf.shape[1:]), further),
    )
    x, outputs = jax.lax.scan(lambda x, xs: layers(size, x, xs), x, xs)
    outputs = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), outputs)
    if rest:
        last = jax.tree.map(lambda leaf: leaf[repeats], {n: params[n] for n in names[:rest]})
        x, tail = layers(rest, x, (last, jax.tree.map(lambda leaf: leaf[repeated:], further)))
        if tail is not None:
            outputs = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), outputs, tail)
    return x, outputs
