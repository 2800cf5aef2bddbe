"""Which part of the parameters is trained: all, those that patterns name, or low-rank adapters.

The train state holds all parameters, adapters included, so sampling, evaluation and checkpoints do
not depend on the choice. Gradients and the optimizer's moments exist for the trained part alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaxrl.mesh import mesh
from jaxrl.models import decoder, lora, quantize, subset
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import LoraConfig
from jaxrl.types import Params

_WHOLE = {"score"}
"""Parameters that are trained whole beside adapters."""


class Part(NamedTuple):
    """Splits parameters into a trained and a frozen part and joins them, differentiably."""

    split: Callable[[Params], tuple[Params, Params]] = lambda params: (params, {})
    """The parameters to the trained part and the frozen rest."""
    join: Callable[[Params, Params], Params] = lambda trained, frozen: trained
    """Back again."""
    dtype: str = "float32"
    """That the trained part is stored in."""


WHOLE = Part()
FROZEN = Part(lambda params: ({}, params), lambda trained, frozen: frozen)
"""Nothing is trained."""


def part(
    model: DecoderConfig, adapters: LoraConfig, patterns: Sequence[str], dtype: str = "float32"
) -> Part:
    """The part that a config trains.

    Args:
      model: the decoder's shape.
      adapters: of rank 0 for none; otherwise they alone are trained, and a reward model's score.
      patterns: of the paths of parameters to train, see `jaxrl.models.subset`; empty for all.
      dtype: that they are stored in.

    Raises:
      ValueError: adapters with dropout, or both kinds at once, or a pattern that matches nothing.
    """
    if adapters.rank and patterns:
        raise ValueError(
            f"lora.rank={adapters.rank} with train={tuple(patterns)}: adapters are trained alone; "
            "leave one of them out"
        )
    if adapters.rank and adapters.dropout:
        raise ValueError(
            f"lora.dropout={adapters.dropout}: the trainer's log-probabilities would not be those "
            "of the sampler; set it to 0"
        )
    if adapters.rank:
        lora.targets(model, adapters)
        return _adapted(model, adapters)._replace(dtype=dtype)
    if patterns:
        subset.split(decoder.abstract(model)[0], patterns)
        return Part(functools.partial(subset.split, patterns=patterns), subset.join, dtype)
    return WHOLE._replace(dtype=dtype)


def _adapted(model: DecoderConfig, adapters: LoraConfig) -> Part:
    """Adapters, and a reward model's score, which no language model has had."""

    def split(params: Params) -> tuple[Params, Params]:
        trained, frozen = lora.detach(params)
        return trained | {name: frozen.pop(name) for name in _WHOLE & frozen.keys()}, frozen

    def join(trained: Params, frozen: Params) -> Params:
        full_params = {name: trained[name] for name in _WHOLE & trained.keys()}
        small = {name: part for name, part in trained.items() if name not in _WHOLE}
        return lora.attach(model, frozen, small, adapters) | full_params

    return Part(split, join)


def attach(model: DecoderConfig, params: Params, adapters: LoraConfig, key: jax.Array) -> Params:
    """The parameters with fresh adapters on, laid out on the mesh in use; as they were at rank 0.

    They change no output before the first update. The base is quantised where the config asks for
    it.
    """
    if not adapters.rank:
        return params
    where = jax.tree.map(lambda s: s.sharding, abstract(model, adapters))

    def make(base: Params) -> Params:
        if adapters.kind:
            base = quantize.quantize(model, base, adapters.kind)
        return lora.attach(model, base, lora.init(key, model, base, adapters), adapters)

    return jax.jit(make, out_shardings=where, donate_argnums=0)(params)


def in_compute_dtype(model: DecoderConfig, params: Any, part: Part = FROZEN) -> Any:
    """Parameters as a run stores them: the trained part in its dtype, and the frozen part in the
    compute dtype, to which it is cast once instead of in every pass.

    Norms and routers compute in float32 and stay so.

    Args:
      model: the decoder's shape, and the compute dtype.
      params: arrays, or their sharded shapes.
      part: what is trained.
    """

    def cast(x: Any, to: jax.ShapeDtypeStruct) -> Any:
        shape = isinstance(x, jax.ShapeDtypeStruct)
        return x.update(dtype=to.dtype) if shape else x.astype(to.dtype)

    def stored(tree: Any, dtype: str) -> Any:
        dtypes = jax.eval_shape(lambda tree: decoder.cast(tree, dtype), tree)
        return jax.tree.map(cast, tree, dtypes)

    trained, frozen = part.split(params)
    return part.join(stored(trained, part.dtype), stored(frozen, model.dtype))


def abstract(model: DecoderConfig, adapters: LoraConfig, *, on: bool = True) -> Any:
    """Float32 shapes of the parameters, adapters `on`, each with its sharding."""
    the_mesh, kind = jax.sharding.get_mesh(), adapters.kind
    shapes, axes = quantize.abstract(model, kind) if kind else decoder.abstract(model)
    if adapters.rank and on:
        small, names = lora.abstract(model, adapters)
        shapes = lora.attach(model, shapes, small, adapters)
        axes = lora.attach(model, axes, names, adapters)

    def place(
        path: tuple[Any, ...], shape: jax.ShapeDtypeStruct, names: tuple[str, ...]
    ) -> jax.ShapeDtypeStruct:
        keys = tuple(step.key for step in path if isinstance(step, jax.tree_util.DictKey))
        attributes = [step.name for step in path[len(keys) :]]
        param_path = keys if attributes in ([], ["base"]) else ()
        spec = mesh.param_spec(model, param_path, names, shape.shape, the_mesh)
        where = jax.NamedSharding(the_mesh, spec)
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=where)

    return jax.tree_util.tree_map_with_path(place, shapes, axes)
