"""What a model of the service is, and its updates: weights, their moments and their gradient.

The weights are adapters on the base, or all of the decoder's.

The forward pass, the losses and AdamW are those of `jaxrl train`. Unlike there, a gradient is
summed over requests until a step is asked for.

Weights and snapshots are files in the run directory, written whole or not.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors
from safetensors import numpy as safe

from jaxrl.launch.server.tinker import losses
from jaxrl.launch.server.tinker.bodies import Adam, Lora
from jaxrl.launch.server.tinker.wire import Batch, Datum
from jaxrl.losses.reduce.masking import sanitize, where_valid
from jaxrl.mesh.buckets import round_to_eighth, round_up
from jaxrl.models import decoder, lora, lora_stack
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import LoraConfig
from jaxrl.record import storage
from jaxrl.training import optimizer
from jaxrl.training.logprobs import micro_logprobs
from jaxrl.types import Packed, Params

_TOKENS = 8192
"""Tokens of a forward and backward pass; gradients of several are added."""
_BUCKET = 64
"""Row lengths are multiples of it."""
_HEAD = "unembedding"
"""The adapter of the output head, `a` [D, R] and `b` [R, V]."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """Which matrices are adapted, and how; the change is scaled by 32 / rank."""

    lora: LoraConfig | None
    """None: there are no adapters, and all weights are trained."""
    unembedding: bool
    """Whether the output head is adapted too, apart from the embedding where they are tied."""


class Learner(NamedTuple):
    """The state of a model; a pytree."""

    adapters: Params
    """Float32; where there are none, all of the decoder's weights."""
    moments: Any
    """Of AdamW."""
    gradient: Params | None = None
    """The sum since the last step; None: there is none."""


class Rows(NamedTuple):
    """Data of one pass, one a row, padded on the right: [R, L] each."""

    tokens: np.ndarray
    targets: np.ndarray
    mask: np.ndarray
    """Where a datum has a target."""
    inputs: dict[str, np.ndarray]


def shape_of(model: DecoderConfig, config: Lora) -> Shape:
    """The adapters that a client asks for.

    Raises:
      ValueError: the model has no such matrices.
    """
    if not config.rank:
        return Shape(None, False)
    targets = ["*/attention/*"] * config.train_attn + ["*/mlp/*"] * config.train_mlp
    targets += ["*/mixer/*"] * (config.train_attn and model.recurrent)
    adapters = LoraConfig(rank=config.rank, targets=tuple(targets))
    lora.targets(model, adapters)
    return Shape(adapters, config.train_unembed)


def create(model: DecoderConfig, base: Params, shape: Shape, seed: int) -> Learner:
    """A model whose outputs are those of the base; without adapters, the seed changes nothing."""
    if shape.lora is None:
        weights = decoder.cast(base, "float32")
        return Learner(weights, fresh_moments(model, weights))
    key = jax.random.key(seed % 2**63)
    adapters = dict(lora.init(jax.random.fold_in(key, 0), model, base, shape.lora))
    if shape.unembedding:
        width, rank = model.hidden_size, shape.lora.rank
        bound = width**-0.5
        a = jax.random.uniform(
            jax.random.fold_in(key, 1), (width, rank), jnp.float32, -bound, bound
        )
        adapters[_HEAD] = {"a": a, "b": jnp.zeros((rank, model.vocab_size), jnp.float32)}
    return Learner(adapters, fresh_moments(model, adapters))


def memory(model: DecoderConfig, base: Params, config: Lora) -> int:
    """Bytes of a model beside the base: its weights, their gradient and moments."""
    like = _like(model, base, shape_of(model, config))
    leaves = jax.tree.leaves((like.adapters, like.adapters, like.moments))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def fresh_moments(model: DecoderConfig, adapters: Params) -> Any:
    """Those before the first step."""
    return _adamw(model, _numbers(Adam())).init(adapters)


def join(model: DecoderConfig, base: Params, adapters: Params, shape: Shape) -> Params:
    """The decoder's parameters with the adapters on; differentiable in `adapters`."""
    if shape.lora is None:
        return jax.tree.map(lambda trained, like: trained.astype(like.dtype), adapters, base)
    rest = {name: part for name, part in adapters.items() if name != _HEAD}
    params = lora.attach(model, base, rest, shape.lora)
    if _HEAD in adapters:
        head, small = base.get("head", base["embed"]), adapters[_HEAD]
        change = jnp.matmul(small["a"], small["b"], precision="highest").T * shape.lora.scale
        params["head"] = (head.astype(jnp.float32) + change).astype(head.dtype)
    return params


def put(model: DecoderConfig, params: Params, place: int, adapters: Params, shape: Shape) -> Params:
    """The sampler's parameters with a model's adapters in a place of a stack."""
    parts = {name: part for name, part in adapters.items() if name != _HEAD}
    if _HEAD in adapters:
        parts["head"] = adapters[_HEAD]
    return lora_stack.put(model, params, place, parts, shape.lora)


def forward_backward(
    model: DecoderConfig, base: Params, shape: Shape, learner: Learner, batch: Batch
) -> tuple[Learner, list[np.ndarray], float]:
    """Add a batch's gradient, unless it is forward only.

    Returns:
      The model, log-probabilities [T] of each datum's targets, and the loss, a sum over tokens.
    """
    loss = losses.find(batch.loss)
    settings = _numbers(loss.settings | batch.settings)
    names = [*loss.inputs, *(name for name in loss.optional if name in batch.data[0].inputs)]
    order = sorted(range(len(batch.data)), key=lambda i: (len(batch.data[i].tokens), i))
    logprobs: dict[int, np.ndarray] = {}
    total, gradient = 0.0, learner.gradient
    for part in _passes([len(batch.data[i].tokens) for i in order]):
        places = order[part]
        rows = _rows([batch.data[i] for i in places], names)
        arguments = (base, learner.adapters, rows, settings)
        if batch.forward_only:
            value, logp = _loss(model, shape, batch.loss, *arguments)
        else:
            value, logp, gradient = _gradient(model, shape, batch.loss, *arguments, gradient)
        fetched = np.asarray(logp)
        logprobs |= {i: fetched[r, : len(batch.data[i].tokens)] for r, i in enumerate(places)}
        total += float(value)
    learner = learner._replace(gradient=gradient)
    return learner, [logprobs[i] for i in range(len(batch.data))], total


def _passes(lengths: Sequence[int]) -> list[slice]:
    """Consecutive data of ascending lengths that go through the model together."""
    parts, start = list[slice](), 0
    for i in range(1, len(lengths) + 1):
        if i == len(lengths) or round_up(i + 1 - start, 1) * _length(lengths[i]) > _TOKENS:
            parts.append(slice(start, i))
            start = i
    return parts


def _length(longest: int) -> int:
    return round_to_eighth(longest, _BUCKET)


def _rows(data: Sequence[Datum], names: Sequence[str]) -> Rows:
    shape = (round_up(len(data), 1), _length(max(len(d.tokens) for d in data)))
    tokens, targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    mask = np.zeros(shape, bool)
    inputs = {name: np.zeros(shape, np.float32) for name in names}
    for r, datum in enumerate(data):
        cells = (r, slice(len(datum.tokens)))
        tokens[cells], targets[cells], mask[cells] = datum.tokens, datum.targets, True
        for name in names:
            inputs[name][cells] = datum.inputs[name]
    return Rows(tokens, targets, mask, inputs)


def _packed(rows: Rows) -> Packed:
    """Rows as the input of one micro-batch, with an action at every token."""
    count, length = rows.tokens.shape
    index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (count, length))
    size = jnp.sum(rows.mask, axis=1, keepdims=True, dtype=jnp.int32)
    inside = index < size
    return Packed(
        tokens=rows.tokens[None],
        positions=jnp.where(inside, index, 0)[None],
        visible_until=jnp.where(inside, size, 0)[None],
        predictor=index[None],
        target=rows.targets[None],
        sequence=jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32)[:, None], index.shape)[None],
        time=index[None],
        leaf=jnp.zeros((1, count, length), bool),
        computed=jnp.ones(count, bool),
        micro_batches=jnp.int32(1),
        length=length,
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _loss(
    model: DecoderConfig,
    shape: Shape,
    name: str,
    base: Params,
    adapters: Params,
    rows: Rows,
    settings: Mapping[str, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """The loss and log-probabilities [R, L]."""
    params = join(model, base, adapters, shape)
    logp, _ = micro_logprobs(
        model, params, _packed(rows), jnp.int32(0), temperature=1.0, remat="none"
    )
    logp = logp.reshape(rows.tokens.shape)
    safe = sanitize(rows.mask, logp=logp)["logp"]
    per_token = losses.find(name).per_token(safe, rows.inputs, settings)
    return jnp.sum(where_valid(rows.mask, per_token)), logp


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _gradient(
    model: DecoderConfig,
    shape: Shape,
    name: str,
    base: Params,
    adapters: Params,
    rows: Rows,
    settings: Mapping[str, jax.Array],
    before: Params | None,
) -> tuple[jax.Array, jax.Array, Params]:
    """As `_loss`, and the gradient in the adapters, added to the one before."""

    def loss(adapters: Params) -> tuple[jax.Array, jax.Array]:
        return _loss(model, shape, name, base, adapters, rows, settings)

    (value, logp), gradient = jax.value_and_grad(loss, has_aux=True)(adapters)
    if before is not None:
        gradient = jax.tree.map(jnp.add, before, gradient)
    return value, logp, gradient


def optim_step(
    model: DecoderConfig, learner: Learner, config: Adam
) -> tuple[Learner, dict[str, float]]:
    """One step of AdamW by the gradient that has been summed, which is then gone.

    Weight decay is on matrices alone, as in `jaxrl train`. Where the gradient or the update
    is not finite the step is skipped, and the metric `skipped` is 1.

    Returns:
      The model, and the metrics `grad_norm`, before clipping, and `skipped`; without those that are
      not finite, which JSON has no numbers for.
    """
    if learner.gradient is None:
        raise ValueError("there is no gradient; send a forward_backward first")
    adapters, moments, metrics = _step(model, *learner, _numbers(config))
    values = {name: float(value) for name, value in metrics.items()}
    return Learner(adapters, moments), {k: v for k, v in values.items() if math.isfinite(v)}


@functools.partial(jax.jit, static_argnums=0)
def _step(
    model: DecoderConfig,
    adapters: Params,
    moments: Any,
    gradient: Params,
    settings: Mapping[str, jax.Array],
) -> tuple[Params, Any, dict[str, jax.Array]]:
    norm = optax.global_norm(gradient)
    updates, next_moments = _adamw(model, settings).update(gradient, moments, adapters)
    finite = jnp.isfinite(norm) & jnp.isfinite(optax.global_norm(updates))
    proposed, before = (optax.apply_updates(adapters, updates), next_moments), (adapters, moments)
    after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), proposed, before)
    return *after, {"grad_norm": norm, "skipped": 1.0 - finite}


def _adamw(model: DecoderConfig, settings: Mapping[str, jax.Array]) -> optax.GradientTransformation:
    """AdamW whose settings may differ from step to step: arrays, not constants of the program."""
    clip = settings["grad_clip_norm"]
    method = optimizer.OptimizerConfig(
        learning_rate=settings["learning_rate"],
        b1=settings["beta1"],
        b2=settings["beta2"],
        eps=settings["eps"],
        weight_decay=settings["weight_decay"],
        clip_norm=0.0,
    )
    return optax.chain(
        optax.clip_by_global_norm(jnp.where(clip > 0, clip, math.inf)),
        optimizer.make(method, 1, model),
    )


def _numbers(settings: Mapping[str, Any] | Adam) -> dict[str, jax.Array]:
    values = settings.model_dump() if isinstance(settings, Adam) else settings
    return {name: jnp.float32(value) for name, value in values.items()}


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a pytree by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def from_arrays(like: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """A pytree of the structure of `like` from what `to_arrays` gave.

    Raises:
      ValueError: the arrays are of another structure.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    shapes = {name: jnp.shape(leaf) for name, (_, leaf) in zip(names, paths, strict=True)}
    if shapes != {name: array.shape for name, array in arrays.items()}:
        raise ValueError("the saved arrays are of a model of another shape")
    return jax.tree.unflatten(structure, [jnp.asarray(arrays[name]) for name in names])


class Snapshot(NamedTuple):
    """A model as it was after an operation."""

    state: Learner
    seq: int
    """Of the operation."""


def write(path: Path, state: Learner, seq: int, config: Lora, *, moments: bool) -> None:
    """Write adapters and gradient, and with `moments` the optimizer's; returns once it is on disk.

    Equal states give equal bytes.
    """
    parts = {"adapters": state.adapters, "gradient": state.gradient}
    if moments:
        parts["moments"] = state.moments
    arrays = {
        f"{name}{path_in}": np.asarray(array, order="C")
        for name, part in parts.items()
        if part is not None
        for path_in, array in to_arrays(part).items()
    }
    described = json.dumps({"seq": seq, "lora": config.model_dump()}, sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(safe.save(arrays, metadata={"jaxrl": described}))
    storage.sync(fresh)
    os.replace(fresh, path)
    storage.sync(path.parent)


def _read(path: Path) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """Arrays by the part of the state and by path, and what is said of them."""
    parts: dict[str, dict[str, np.ndarray]] = {}
    with safetensors.safe_open(path, "np") as file:
        described = json.loads(file.metadata()["jaxrl"])
        for key in file.keys():  # noqa: SIM118  it is no dict
            name = next(n for n in ("adapters", "gradient", "moments") if key.startswith(n))
            parts.setdefault(name, {})[key.removeprefix(name)] = file.get_tensor(key)
    return parts, described


def _like(model: DecoderConfig, base: Params, shape: Shape) -> Learner:
    return jax.eval_shape(lambda base: create(model, base, shape, 0), base)


def read_snapshot(path: Path, model: DecoderConfig, base: Params, shape: Shape) -> Snapshot | None:
    """The snapshot in a file; None where there is none that can be read."""
    if not path.exists():
        return None
    like = _like(model, base, shape)
    try:
        parts, described = _read(path)
        state = Learner(
            from_arrays(like.adapters, parts["adapters"]),
            from_arrays(like.moments, parts["moments"]),
            from_arrays(like.adapters, parts["gradient"]) if "gradient" in parts else None,
        )
        return Snapshot(state, described["seq"])
    except (ValueError, KeyError, StopIteration, safetensors.SafetensorError):
        return None  # what it held is computed anew from the journal


def read_weights(
    path: Path, model: DecoderConfig, base: Params, shape: Shape, *, moments: bool
) -> Learner:
    """A model of the weights in a file, with its moments or fresh ones."""
    like, parts = _like(model, base, shape), _read(path)[0]
    adapters = from_arrays(like.adapters, parts["adapters"])
    if moments:
        return Learner(adapters, from_arrays(like.moments, parts["moments"]))
    return Learner(adapters, fresh_moments(model, adapters))
