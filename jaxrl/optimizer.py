"""The optimizer and its learning-rate schedule, from optax."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from models import decoder
from models.config import DecoderConfig


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """A method with a warm-up, a schedule and global-norm clipping."""

    method: Literal["adamw", "lion", "muon", "adafactor"] = "adamw"
    """Lion takes a learning rate about a third of AdamW's; the others take AdamW's."""
    learning_rate: float = 1e-6
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Decay after the warm-up, to zero at the last step; `wsd` decays in the last part only."""
    decay_share: float = 0.2
    """Of the steps, over which `wsd` decays."""
    warmup_steps: int = 0
    b1: float = 0.9
    """Decay of the momentum; Adafactor keeps none."""
    b2: float = 0.95
    """Decay of the second moment; in Lion, of the momentum that is kept."""
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Decoupled; norms and other vectors are never decayed."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0 turns clipping off."""
    rates: dict[str, float] = dataclasses.field(default_factory=dict)
    """Factors on the updates, decay included, of the parameters whose paths match a pattern, such
    as 0.1 for `layers/attention/*`; the first pattern that matches holds."""
    offload: bool = False
    """Keep moments in host memory between updates: room for sampling, and a copy each way."""


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


def make(
    config: OptimizerConfig, steps: int, model: DecoderConfig | None = None
) -> optax.GradientTransformation:
    """The transformation for a run of `steps` updates.

    AdamW (Loshchilov and Hutter 2019); Lion (Chen et al. 2023); Adafactor (Shazeer and Stern 2018)
    with AdamW's step size; Muon (Jordan 2024) for the matrices of the layers, with AdamW for the
    rest and updates scaled to AdamW's (Liu et al. 2025, "Muon is Scalable for LLM Training").

    Args:
      config: the method.
      steps: of the whole run.
      model: the decoder's shape, which tells Muon what the axes of a matrix are.

    Raises:
      ValueError: Muon without a model; on `init`, a pattern of `rates` that matches nothing.
    """
    rate, weight_decay = learning_rate(config, steps), config.weight_decay
    match config.method:
        case "adamw":
            method = optax.adamw(
                rate,
                b1=config.b1,
                b2=config.b2,
                eps=config.eps,
                weight_decay=weight_decay,
                mask=_decayed,
            )
        case "lion":
            method = optax.lion(
                rate, b1=config.b1, b2=config.b2, weight_decay=weight_decay, mask=_decayed
            )
        case "adafactor":
            method = optax.chain(
                optax.scale_by_factored_rms(),
                optax.clip_by_block_rms(1.0),
                optax.add_decayed_weights(weight_decay, _decayed),
                optax.scale_by_learning_rate(rate),
            )
        case "muon":
            if model is None:
                raise ValueError("optimizer.method='muon' needs the model's shape; pass it")
            method = optax.contrib.muon(
                rate,
                weight_decay=weight_decay,
                adam_b1=config.b1,
                adam_b2=config.b2,
                muon_weight_dimension_numbers=functools.partial(_matrices, model),
                consistent_rms=0.2,
            )
    if config.rates:
        method = optax.chain(method, _scale_by_path(config.rates))
    if not config.clip_norm:
        return method
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), method)


def _scale_by_path(rates: Mapping[str, float]) -> optax.GradientTransformation:
    def name(path: tuple[Any, ...]) -> str:
        return jax.tree_util.keystr(path, simple=True, separator="/")

    def init(params: optax.Params) -> optax.EmptyState:
        names = [name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        for pattern in rates:
            if not fnmatch.filter(names, pattern):
                raise ValueError(
                    f"optimizer.rates has {pattern!r}, which matches none of {', '.join(names)}"
                )
        return optax.EmptyState()

    def scale(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
        found = (
            rate for pattern, rate in rates.items() if fnmatch.fnmatchcase(name(path), pattern)
        )
        return update * next(found, 1.0)

    def update(
        updates: optax.Updates, state: optax.EmptyState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.EmptyState]:
        return jax.tree_util.tree_map_with_path(scale, updates), state

    return optax.GradientTransformation(init, update)


def cleared(opt_state: optax.OptState) -> optax.OptState:
    """Moments begun anew; counts, and with them the schedule, go on."""
    return jax.tree.map(lambda x: jnp.zeros_like(x) if x.ndim else x, opt_state)


def _decayed(params: optax.Params) -> optax.Params:
    def matrix(path: tuple[Any, ...], _: Any) -> bool:
        name = jax.tree_util.keystr(path)
        return not any(vector in name for vector in ("norm", "bias", "correction"))

    return jax.tree_util.tree_map_with_path(matrix, params)


def _matrices(model: DecoderConfig, params: optax.Params) -> optax.Params:
    """Which axes of each matrix are inputs and which outputs; None for what AdamW trains."""
    layout = decoder.layout(model)

    def axes(path: tuple[Any, ...], x: jax.Array) -> optax.contrib.MuonDimensionNumbers | None:
        leaf = layout.get(tuple(step.key for step in path))
        if leaf is None or not leaf.inputs or path[-1].key == "router":
            return None
        cut = leaf.batch + leaf.inputs
        return optax.contrib.MuonDimensionNumbers(
            tuple(range(leaf.batch, cut)), tuple(range(cut, x.ndim))
        )

    return jax.tree_util.tree_map_with_path(axes, params)
