"""Gradients that requests ask for: of one model, and of several models on one base in one program.

The forward pass and the losses are those of `jaxrl train`.

Adapters of several models are computed together in a fixed number of places. Each place has a
model, its data and its own sums, and only products with the base's weights are of all places at
once. A model has the same place each time, and a program of the same size, also where it is alone
in it. So its result does not depend on who else is there, to the last bit.

Papers: Chen et al. 2023, "Punica: Multi-Tenant LoRA Serving"; Ye et al. 2023, "ASPEN:
High-Throughput LoRA Fine-Tuning of Large Language Models with a Single GPU"
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl.launch.server.tinker import losses
from jaxrl.launch.server.tinker.learner import HEAD, Learner, Shape, join, numbers
from jaxrl.launch.server.tinker.wire import Batch, Datum
from jaxrl.losses.reduce.masking import sanitize, where_valid
from jaxrl.mesh.buckets import round_to_eighth, round_up
from jaxrl.models import decoder, lora, lora_stack
from jaxrl.models.config import DecoderConfig
from jaxrl.models.linear import AdaptedRows
from jaxrl.models.remat import Remat
from jaxrl.training.logprobs import micro_logprobs
from jaxrl.types import Packed, Params

_TOKENS = 8192
"""Tokens of a forward and backward pass; gradients of several are added."""
_KEPT_TOKENS, _KEPT_PAIRS = 2048, 2**20
"""Most tokens, and pairs of tokens in rows, of a pass that keeps the activations of all layers for
its backward pass; a larger one computes those of a layer again, as its length is the client's."""
_TOKENS_OF_PLACES = 2048
"""Tokens of a pass of several models, those of all places together. A larger request is computed
alone: it keeps a device busy, and empty places beside it would cost more."""
_BUCKET = 64
"""Row lengths are multiples of it."""


class Rows(NamedTuple):
    """Data of one pass, one a row, padded on the right: [R, L] each, [N, R, L] in N places."""

    tokens: np.ndarray
    targets: np.ndarray
    mask: np.ndarray
    """Where a datum has a target."""
    inputs: dict[str, np.ndarray]


class Pass(NamedTuple):
    """What requests must agree in to be computed in one program."""

    shape: Shape
    """Of the adapters, their rank rounded up."""
    loss: str
    inputs: tuple[str, ...]
    forward_only: bool
    rows: int
    length: int


class PlacedRequest(NamedTuple):
    """A request for a gradient, in its place."""

    place: int
    shape: Shape
    state: Learner
    batch: Batch


def forward_backward(
    model: DecoderConfig, base: Params, shape: Shape, state: Learner, batch: Batch
) -> tuple[Learner, list[np.ndarray], float]:
    """Add a batch's gradient, unless it is forward only.

    Returns:
      The model, log-probabilities [T] of each datum's targets, and the loss, a sum over tokens.
    """
    settings, names = numbers(_settings(batch)), _inputs(batch)
    order = sorted(range(len(batch.data)), key=lambda i: (len(batch.data[i].tokens), i))
    logprobs: dict[int, np.ndarray] = {}
    total, gradient = 0.0, state.gradient
    for part in _passes([len(batch.data[i].tokens) for i in order]):
        places = order[part]
        rows = _rows([batch.data[i] for i in places], names)
        arguments = (base, state.adapters, rows, settings)
        if batch.forward_only:
            value, logp = _loss(model, shape, batch.loss, *arguments)
        else:
            value, logp, gradient = _gradient(model, shape, batch.loss, *arguments, gradient)
        fetched = np.asarray(logp)
        logprobs |= {i: fetched[r, : len(batch.data[i].tokens)] for r, i in enumerate(places)}
        total += float(value)
    state = state._replace(gradient=gradient)
    return state, [logprobs[i] for i in range(len(batch.data))], total


def _settings(batch: Batch) -> dict[str, float]:
    return losses.find(batch.loss).settings | batch.settings


def _inputs(batch: Batch) -> tuple[str, ...]:
    loss, sent = losses.find(batch.loss), batch.data[0].inputs
    return *loss.inputs, *(name for name in loss.optional if name in sent)


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
    return _value(model, join(model, base, adapters, shape), name, rows, settings)


def _value(
    model: DecoderConfig,
    params: Params,
    name: str,
    rows: Rows,
    settings: Mapping[str, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    count, length = rows.tokens.shape
    is_small = count * length <= _KEPT_TOKENS and count * length**2 <= _KEPT_PAIRS
    remat: Remat = "none" if is_small else "full"
    logp, _ = micro_logprobs(
        model, params, _packed(rows), jnp.int32(0), temperature=1.0, remat=remat
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


def pass_of(
    model: DecoderConfig, base: Params, shape: Shape, batch: Batch, count: int
) -> Pass | None:
    """What a request is computed in, if not alone.

    Whether it is alone depends on the request and on its model, and not on what else waits.

    Args:
      model: the decoder's shape.
      base: its parameters.
      shape: of the model's adapters.
      batch: the request.
      count: of the places.

    Returns:
      None: it is computed alone. So it is with one place, without adapters, with a base of experts
      or of recurrent layers or on several devices, with adapters of latent attention, and where it
      has too many tokens.
    """
    rows = round_up(len(batch.data), 1)
    length = _length(max(len(datum.tokens) for datum in batch.data))
    if count == 1 or rows * length * count > _TOKENS_OF_PLACES:
        return None
    if shape.lora is None or model.experts is not None or model.recurrent:
        return None
    if len(jax.tree.leaves(base)[0].devices()) > 1:
        return None
    if not lora.targets(model, shape.lora).keys() <= lora_stack.matrices(model).keys():
        return None
    rank = round_up(shape.lora.rank, 1)
    # a scale of 1 in the program: each place has its own
    common = dataclasses.replace(shape.lora, rank=rank, alpha=float(rank))
    shape = dataclasses.replace(shape, lora=common)
    return Pass(shape, batch.loss, _inputs(batch), batch.forward_only, rows, length)


def together(
    model: DecoderConfig, base: Params, alike: Pass, jobs: Sequence[PlacedRequest], count: int
) -> list[tuple[Learner, list[np.ndarray], float]]:
    """As `forward_backward`, of requests of several models in one program.

    Args:
      model: the decoder's shape.
      base: its parameters, which are shared and not copied.
      alike: the pass of each of them, from `pass_of`.
      jobs: requests, each in a place of its own.
      count: of the places.

    Returns:
      Of each job what `forward_backward` returns: to 1e-5, and to the last bit what it is where the
      job is the only one.
    """
    rows = {job.place: _rows(job.batch.data, alike.inputs) for job in jobs}
    empty = jax.tree.map(np.zeros_like, rows[jobs[0].place])
    in_places = {job.place: job for job in jobs}
    filled = [in_places.get(place, jobs[0]) for place in range(count)]  # their rows are empty
    shapes = _leaf_shapes(model, alike.shape)
    padded = {job.place: _pad(job.state.adapters, shapes) for job in jobs}
    arguments = (
        tuple(padded[job.place] for job in filled),
        np.array([_scale(job.shape) for job in filled], np.float32),
        jax.tree.map(lambda *x: np.stack(x), *(rows.get(place, empty) for place in range(count))),
        jax.tree.map(lambda *x: np.array(x, np.float32), *(_settings(job.batch) for job in filled)),
    )
    values, logp, gradient = _in_places(model, alike, base, *arguments)
    values, logp = np.asarray(values), np.asarray(logp)
    results = []
    for job in jobs:
        state, data = job.state, job.batch.data
        if gradient:
            state = state._replace(
                gradient=_add(state.gradient, gradient[job.place], state.adapters)
            )
        logprobs = [
            row[: len(datum.tokens)] for row, datum in zip(logp[job.place], data, strict=False)
        ]
        results.append((state, logprobs, float(values[job.place])))
    return results


def _scale(shape: Shape) -> float:
    assert shape.lora is not None
    return shape.lora.scale


def _leaf_shapes(model: DecoderConfig, shape: Shape) -> tuple[tuple[int, ...], ...]:
    """Those of a model's adapters."""
    assert shape.lora is not None
    adapters = dict(lora.abstract(model, shape.lora)[0])
    if shape.unembedding:
        a, b = (model.hidden_size, shape.lora.rank), (shape.lora.rank, model.vocab_size)
        adapters[HEAD] = {"a": jax.ShapeDtypeStruct(a, jnp.float32)}
        adapters[HEAD]["b"] = jax.ShapeDtypeStruct(b, jnp.float32)
    return tuple(leaf.shape for leaf in jax.tree.leaves(adapters))


@functools.partial(jax.jit, static_argnums=1)
def _pad(adapters: Params, shapes: Sequence[tuple[int, ...]]) -> Params:
    """Adapters of a greater rank, by its leaves' shapes, that change the same."""

    def leaf(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jnp.pad(x, [(0, size - n) for n, size in zip(x.shape, shape, strict=True)])

    leaves, structure = jax.tree.flatten(adapters)
    return structure.unflatten(map(leaf, leaves, shapes))


@jax.jit
def _add(before: Params | None, padded: Params, like: Params) -> Params:
    """A gradient, without what is beyond the shapes of `like`, added to the one before."""
    gradient = jax.tree.map(lambda x, leaf: x[tuple(map(slice, leaf.shape))], padded, like)
    return gradient if before is None else jax.tree.map(jnp.add, before, gradient)


def _in_place(
    model: DecoderConfig,
    shape: Shape,
    name: str,
    base: Params,
    adapters: Params,
    scale: jax.Array,
    rows: Rows,
    settings: Mapping[str, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """As `_loss`, of one place. All adapters stay beside their matrices, which are the base's."""
    assert shape.lora is not None
    scaled = {
        path: leaf * scale if path[-1] == "b" else leaf
        for path, leaf in nnx.traversals.flatten_mapping(adapters).items()
    }
    parts = nnx.traversals.unflatten_mapping(scaled)
    small = parts.pop(HEAD, None)
    params = lora.attach(model, base, parts, shape.lora)
    if small is not None:
        params["head"] = AdaptedRows(
            decoder.unembedding(base), small["a"].T[None], small["b"][None], jnp.ones((1, 1), bool)
        )
    return _value(model, params, name, rows, settings)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _in_places(
    model: DecoderConfig,
    alike: Pass,
    base: Params,
    adapters: Sequence[Params],
    scales: jax.Array,
    rows: Rows,
    settings: Mapping[str, jax.Array],
) -> tuple[jax.Array, jax.Array, tuple[Params, ...]]:
    """The loss [N] and log-probabilities [N, R, L] of N places, and the gradient of each in its own
    adapters; none where the pass is forward only."""
    function = functools.partial(_in_place, model, alike.shape, alike.loss, base)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *adapters)
    if alike.forward_only:
        return *jax.vmap(function)(stacked, scales, rows, settings), ()
    with_gradient = jax.value_and_grad(function, has_aux=True)
    (value, logp), gradient = jax.vmap(with_gradient)(stacked, scales, rows, settings)
    parts = [jax.tree.map(operator.itemgetter(i), gradient) for i in range(len(adapters))]
    return value, logp, tuple(parts)
