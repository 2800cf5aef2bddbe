"""The optimizer and its learning-rate schedule, from optax."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from jaxrl.models import decoder, lora
from jaxrl.models.config import DecoderConfig
from jaxrl.training import low_precision


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """An optimizer with warm-up, learning-rate schedule and clipping by the global norm."""

    method: Literal["adamw", "lion", "muon", "adafactor"] = "adamw"
    """Optimizer. Lion needs about a third of AdamW's learning rate; the others take AdamW's."""
    learning_rate: float = 1e-6
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Learning-rate decay after the warm-up, to 0 at the last update; `wsd` stays constant and
    decays only in the last part."""
    decay_share: float = 0.2
    """Share of all updates over which `wsd` decays, from 0 to 1."""
    warmup_steps: int = 0
    """Updates of linear warm-up."""
    b1: float = 0.9
    """Decay rate of the first moment (momentum); Adafactor has none."""
    b2: float = 0.95
    """Decay rate of the second moment; in Lion, of the stored momentum."""
    eps: float = 1e-8
    """Added to the denominator of Adam's update."""
    weight_decay: float = 0.0
    """Decoupled weight decay; norms, biases and other vectors are not decayed."""
    clip_norm: float = 1.0
    """Largest global gradient norm; larger gradients are scaled down to it. 0 does not clip."""
    rates: dict[str, float] = dataclasses.field(default_factory=dict)
    """Factors on the update, weight decay included, by pattern of parameter paths, e.g. 0.1 for
    `layers/attention/*`; the first matching pattern applies."""
    moments: Literal["float32", "int8"] = "float32"
    """Storage of AdamW's moments. `int8` takes 1 byte a number, with a scale for blocks of 256 at
    most; arrays below 4,096 numbers, and vectors, keep float32."""
    offload: bool = False
    """Keep optimizer state in host memory between updates: more device memory for sampling, at the
    cost of one copy in each direction."""


def learning_rate(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate at each of `steps` updates."""
    decay_steps = max(1, steps - config.warmup_steps)
    falling = max(1, round(config.decay_share * steps))
    decay = {
        "constant": optax.constant_schedule(config.learning_rate),
        "linear": optax.linear_schedule(config.learning_rate, 0.0, decay_steps),
        "cosine": optax.cosine_decay_schedule(config.learning_rate, decay_steps),
        "wsd": optax.linear_schedule(
            config.learning_rate, 0.0, falling, transition_begin=max(0, decay_steps - falling)
        ),
    }[config.schedule]
    if not config.warmup_steps:
        return decay
    warmup = optax.linear_schedule(
        config.learning_rate / config.warmup_steps, config.learning_rate, config.warmup_steps
    )
    return optax.join_schedules([warmup, decay], [config.warmup_steps])


def make(config: OptimizerConfig, steps: int, model: DecoderConfig) -> optax.GradientTransformation:
    """The transformation for a run of `steps` updates.

    AdamW (Loshchilov and Hutter 2019); Lion (Chen et al. 2023); Adafactor (Shazeer and Stern 2018)
    with AdamW's step size; Muon (Jordan 2024) for the matrices of the layers, with AdamW for the
    rest and updates scaled to AdamW's (Liu et al. 2025, "Muon is Scalable for LLM Training").

    Args:
      config: the method.
      steps: of the whole run.
      model: the decoder's shape, which tells matrices from vectors, and a matrix's axes.

    Raises:
      ValueError: moments of 8 bits with another method than AdamW; on `init`, a pattern of `rates`
        that matches nothing.
    """
    if config.moments == "int8" and config.method != "adamw":
        raise ValueError(
            f"optimizer.moments='int8' with optimizer.method={config.method!r}: only the moments "
            "of adamw are quantised; leave one of them out"
        )
    rate, weight_decay = learning_rate(config, steps), config.weight_decay
    decayed = functools.partial(matrices, model)
    adamw = functools.partial(
        optax.adamw,
        rate,
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=weight_decay,
        mask=decayed,
    )
    match config.method:
        case "adamw":
            method = adamw()
            if config.moments == "int8":
                method = low_precision.with_int8_moments(method, decayed)
        case "lion":
            method = optax.lion(
                rate, b1=config.b1, b2=config.b2, weight_decay=weight_decay, mask=decayed
            )
        case "adafactor":
            method = optax.chain(
                optax.scale_by_factored_rms(),
                optax.clip_by_block_rms(1.0),
                optax.add_decayed_weights(weight_decay, decayed),
                optax.scale_by_learning_rate(rate),
            )
        case "muon":
            # optax's own division has no mask for the decay of what AdamW trains
            axes = functools.partial(_axes, model)
            muon = optax.contrib.muon(
                rate,
                weight_decay=weight_decay,
                muon_weight_dimension_numbers=axes,
                consistent_rms=0.2,
            )
            method = optax.partition(
                {"muon": muon, "adamw": adamw(nesterov=True)},
                lambda params: jax.tree.map(
                    lambda leaf_axes: "muon" if leaf_axes else "adamw",
                    axes(params),
                    is_leaf=_is_axes,
                ),
            )
    if config.rates:
        method = optax.chain(method, _scale_by_path(config.rates))
    if not config.clip_norm:
        return method
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), method)


def in_float32(tree: Any) -> Any:
    """A tree of floating-point arrays, those of other dtypes cast to float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


def apply_updates(params: optax.Params, updates: optax.Updates, key: jax.Array) -> optax.Params:
    """`params + updates`, summed in float32; bfloat16 parameters are rounded stochastically.

    Args:
      params: float32 or bfloat16.
      updates: float32, of the same structure.
      key: of this update; each parameter folds its path into it.
    """

    def add(path: tuple[Any, ...], p: jax.Array, update: jax.Array) -> jax.Array:
        total = p.astype(jnp.float32) + update
        if p.dtype != jnp.bfloat16:
            return total.astype(p.dtype)
        parameter_key = jax.random.fold_in(key, zlib.crc32(_name(path).encode()))
        return low_precision.round_stochastically(total, parameter_key)

    return jax.tree_util.tree_map_with_path(add, params, updates)


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _scale_by_path(rates: Mapping[str, float]) -> optax.GradientTransformation:
    def init(params: optax.Params) -> optax.EmptyState:
        names = [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        for pattern in rates:
            if not fnmatch.filter(names, pattern):
                raise ValueError(
                    f"optimizer.rates has {pattern!r}, which matches none of {', '.join(names)}"
                )
        return optax.EmptyState()

    def scale(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
        matching_rates = (
            rate for pattern, rate in rates.items() if fnmatch.fnmatchcase(_name(path), pattern)
        )
        return update * next(matching_rates, 1.0)

    def update(
        updates: optax.Updates, state: optax.EmptyState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.EmptyState]:
        return jax.tree_util.tree_map_with_path(scale, updates), state

    return optax.GradientTransformation(init, update)


def applied(opt_state: optax.OptState) -> jax.Array:
    """Number of applied updates, the schedule's counter: scalar int32.

    An update that was skipped or refused is none of them, although the policy's version counts it.
    """

    def counts(state: Any) -> bool:
        return isinstance(state, optax.ScaleByScheduleState)

    return next(s.count for s in jax.tree.leaves(opt_state, is_leaf=counts) if counts(s))


def cleared(opt_state: optax.OptState) -> optax.OptState:
    """The optimizer state with moments set to 0; counters, and so the schedule, continue."""
    return jax.tree.map(lambda x: jnp.zeros_like(x) if x.ndim else x, opt_state)


def matrices(model: DecoderConfig, params: optax.Params) -> optax.Params:
    """Whether each parameter is a matrix; only matrices have weight decay.

    Args:
      model: the decoder's shape.
      params: any part of the decoder's parameters, of their adapters, or of a critic's.
    """
    layout = decoder.layout(model)

    def matrix(path: tuple[Any, ...], x: jax.Array) -> bool:
        keys = _keys(path)
        if leaf := layout.get(keys):
            return leaf.inputs > 0 or "vocab" in leaf.axes
        if leaf := layout.get(keys[:-1]):
            return lora.inputs(leaf, keys[-1]) > 0
        return x.ndim > 1  # of a value head

    return jax.tree_util.tree_map_with_path(matrix, params)


def _axes(model: DecoderConfig, params: optax.Params) -> optax.Params:
    """Which axes of each matrix are inputs and which outputs; None for what AdamW trains."""
    layout = decoder.layout(model)

    def axes(path: tuple[Any, ...], x: jax.Array) -> optax.contrib.MuonDimensionNumbers | None:
        leaf = layout.get(_keys(path))
        if leaf is None or not leaf.inputs or path[-1].key == "router":
            return None
        cut = leaf.batch + leaf.inputs
        return optax.contrib.MuonDimensionNumbers(
            tuple(range(leaf.batch, cut)), tuple(range(cut, x.ndim))
        )

    return jax.tree_util.tree_map_with_path(axes, params)


def _is_axes(x: Any) -> bool:
    return x is None or isinstance(x, optax.contrib.MuonDimensionNumbers)


def _keys(path: tuple[Any, ...]) -> tuple[str, ...]:
    """The path of a parameter in the decoder, which is one level down in a critic."""
    keys = tuple(step.key for step in path)
    return keys[1:] if keys[0] == "decoder" else keys
