"""What the policy shows of a problem before it is sampled, for curricula that choose by it.

`concentrations` is the angle signal of prompts: how concentrated the policy's hidden states are
(GAIN-RL). `closeness` is what a problem's solution is worth to fine-tune on, by one update on it
alone (DONOD).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config import RolloutConfig
from jaxrl.data.selection import bandits
from jaxrl.data.types import Problem, Task
from jaxrl.losses.pruning import donod, output_gradient
from jaxrl.mesh import mesh
from jaxrl.mesh.buckets import round_up
from jaxrl.models import decoder, head
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import programs
from jaxrl.rollout.policy import Policy, encode_prompt
from jaxrl.types import Params

_ROWS = 16


def concentrations(
    actor: Policy, rollout: RolloutConfig, task: Task, params: Params, problems: Sequence[Problem]
) -> np.ndarray:
    """`jaxrl.data.selection.bandits.angle_concentration` of each problem's prompt, from one
    prefill of it.

    What all the prompts begin with, such as a system message, is one segment and the rest of a
    prompt the other.

    Args:
      actor: tokenizer and shape of the decoder.
      rollout: the form of the prompts.
      task: theirs. An episode's prompt may be longer than `rollout.max_prompt_tokens`, as the
        policy need not read it; then its last tokens are measured.
      params: as the sampler has them, see `policy.sampling_params`.
      problems: N of them.

    Returns:
      [N] float64.

    Raises:
      ValueError: as `encode_prompt`, for a problem that is answered in one turn.
    """
    cut = dataclasses.replace(rollout, long_prompts="truncate")
    forms = [rollout if task.of(problem).turns is None else cut for problem in problems]
    prompts = [
        encode_prompt(actor.tokenizer, form, problem)
        for form, problem in zip(forms, problems, strict=True)
    ]
    alike = itertools.takewhile(lambda at: len(set(at)) == 1, zip(*prompts, strict=False))
    shared = len(list(alike)) if len(set(prompts)) > 1 else 0
    width = round_up(rollout.max_prompt_tokens, 16)
    signals = []
    for start in range(0, len(prompts), _ROWS):
        batch = prompts[start : start + _ROWS]
        rows = [*batch, *[()] * (_ROWS - len(batch))]
        tokens = np.array([[*p, *[0] * (width - len(p))] for p in rows], np.int32)
        places = np.array([[*range(len(p)), *[width] * (width - len(p))] for p in rows], np.int32)
        hidden = mesh.fetch(hidden_states(actor.model, params, tokens, places))
        for states, prompt in zip(hidden, batch, strict=False):
            segments = np.arange(len(prompt)) >= shared
            prompt_states = np.asarray(states[: len(prompt)], np.float64)
            signals.append(bandits.angle_concentration(prompt_states, segments))
    return np.array(signals)


@functools.partial(jax.jit, static_argnums=0)
def hidden_states(
    model: DecoderConfig, params: Params, tokens: jax.Array, positions: jax.Array
) -> jax.Array:
    """Last hidden states [N, L, D] float32 of tokens [N, L]; padding is at position L.

    `params` are as the sampler has them.
    """
    rows, width = tokens.shape
    cache = decoder.empty_cache(model, rows, width)
    hidden, _ = decoder.extend(
        model, params, tokens, positions, cache, window=width, from_start=True
    )
    return hidden.astype(jnp.float32)


def closeness(
    actor: Policy, rollout: RolloutConfig, task: Task, params: Params, problems: Sequence[Problem]
) -> np.ndarray:
    """`jaxrl.losses.pruning.donod` of the task's own solutions, among each other.

    Args:
      actor: tokenizer and shape of the decoder.
      rollout: the form of the prompts.
      task: has solutions.
      params: as the sampler has them, see `policy.sampling_params`.
      problems: N of them, each of which `fits`.

    Returns:
      [N] float64.

    Raises:
      ValueError: no solutions, one that does not fit, or a decoder whose logits have a soft cap.
    """
    if task.gold is None:
        raise ValueError(
            f"curriculum.choose goes by solutions, but task {task.name!r} has none; choose a task "
            "that has"
        )
    if actor.model.logit_softcap is not None:
        raise ValueError(
            "curriculum.choose goes by gradients of the output layer, which are not computed for a "
            f"model with logit_softcap={actor.model.logit_softcap}; choose another function"
        )
    rows = []
    for problem in problems:
        prompt = encode_prompt(actor.tokenizer, rollout, problem)
        gold = programs.solution(actor.tokenizer, task, problem, rollout.max_new_tokens)
        rows.append((len(prompt), [*prompt, *gold]))
    width = round_up(rollout.max_prompt_tokens + rollout.max_new_tokens, 16)
    tokens = np.zeros((round_up(len(rows), _ROWS), width + 1), np.int32)
    places = np.full(tokens.shape, width)
    starts = np.zeros(len(tokens), int)
    for n, (start, row) in enumerate(rows):
        tokens[n, : len(row)], places[n, : len(row)], starts[n] = row, range(len(row)), start
    solution_mask = (places < width) & (places >= starts[:, None])
    inputs = (tokens[:, :-1], places[:, :-1].astype(np.int32), tokens[:, 1:], solution_mask[:, 1:])
    moments = [
        mesh.fetch(_moments(actor.model, params, *(a[i : i + _ROWS] for a in inputs)))
        for i in range(0, len(tokens), _ROWS)
    ]
    inner, square, norms = zip(*moments, strict=True)
    products = [jnp.concatenate(part)[: len(rows)] for part in (inner, square)]
    return np.asarray(donod(products[0], products[1], norms[0]), np.float64)


def fits(actor: Policy, rollout: RolloutConfig, task: Task, problem: Problem) -> bool:
    """Whether the task's own solution and its end are within `rollout.max_new_tokens`.

    One that is longer can be neither measured nor imitated. A task without solutions has none that
    is too long.
    """
    if task.gold is None:
        return True
    return len(actor.tokenizer.encode(task.gold(problem))) < rollout.max_new_tokens


@functools.partial(jax.jit, static_argnums=0)
def _moments(
    model: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    targets: jax.Array,
    mask: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`output_gradient` of 16 rows, and the norm of the weights."""
    hidden, table = hidden_states(model, params, tokens, positions), decoder.unembedding(params)
    products = output_gradient(hidden, head.logits(hidden, table), targets, mask=mask)
    return *products, jnp.linalg.norm(table.astype(jnp.float32))
