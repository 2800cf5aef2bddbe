"""Value-guided search: several candidates for each turn, of which a value function keeps one.

Recalled from: Databricks 2026, "KARL: Knowledge Agents via Reinforcement Learning"
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.data.types import Problem
from jaxrl.mesh import mesh
from jaxrl.mesh.buckets import round_up
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout.programs import Context, Fork, Program, Row, Sample, Wanted, with_samples
from jaxrl.types import Completion, Params, Request

Judge = Callable[[Sequence[Sequence[int]]], np.ndarray]
"""`token ids of sequences -> [N]`, how good it is to have come so far."""

_APART = 40  # bits of an id that no row has; the sampler's streams take the lower 32
_DRAW = 24  # bits of a draw that no chunk or context reaches


def searched(program: Program, width: int, judge: Judge) -> Program:
    """`program`, each of whose samples is the best of several.

    A sample is a turn of an episode, or an answer. What is best is judged before the environment
    replies. Programs wait for the judge, so it is for evaluation. As the candidates of a turn are
    sequences of their own, each turn reads its history again.

    Args:
      program: whose requests have a temperature above 0, or else all candidates are the same.
      width: candidates, 2 to 255.
      judge: of a prompt with all that follows it, in one context.
    """
    if not 2 <= width < 256:
        raise ValueError(f"search={width}: have 2 to 255 candidates")

    def best(request: Request) -> Generator[Wanted, Any, Completion]:
        candidates = yield Fork([_candidate(request, number) for number in range(1, width + 1)])
        values = judge([(*request.prompt, *candidate.tokens.tolist()) for candidate in candidates])
        return dataclasses.replace(candidates[int(np.argmax(values))], request=request)

    def group(ctx: Context, problem: Problem, first_id: int) -> Generator[Wanted, Any, list[Row]]:
        return (yield from with_samples(program(ctx, problem, first_id), best))

    return group


def _candidate(request: Request, number: int) -> Generator[Wanted, Any, Completion]:
    name, draw = request.id + (number << _APART), request.draw + ((number - 1) << _DRAW)
    return (yield Sample(dataclasses.replace(request, id=name, draw=draw)))


def token_values(model: DecoderConfig, params: Params) -> Judge:
    """The value of the last token of each sequence, the least that its heads give.

    Args:
      model: shape of its decoder.
      params: `decoder`, and `q` [H, V, D], as from `jaxrl.extensions.ilql.saved`.
    """

    @jax.jit
    def values(params: Params, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        visible_until = jnp.full_like(tokens, tokens.shape[1])
        states = decoder.hidden(model, params["decoder"], tokens, positions, visible_until)
        rows = jnp.arange(len(tokens))
        before, last = states[rows, lengths - 2], tokens[rows, lengths - 1]
        heads = params["q"][:, last]
        exact = jax.lax.Precision.HIGHEST
        return jnp.min(jnp.einsum("nd,hnd->hn", before, heads, precision=exact), axis=0)

    def judge(sequences: Sequence[Sequence[int]]) -> np.ndarray:
        longest = round_up(max(map(len, sequences)), 32)
        tokens = np.zeros((len(sequences), longest), np.int32)
        for row, ids in zip(tokens, sequences, strict=True):
            row[: len(ids)] = ids
        lengths = np.array([len(ids) for ids in sequences], np.int32)
        return mesh.fetch(values(params, tokens, lengths))

    return judge
