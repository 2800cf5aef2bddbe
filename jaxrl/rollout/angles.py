"""The angle signal of prompts: how concentrated the policy's hidden states are (GAIN-RL)."""

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
from jaxrl.mesh import mesh
from jaxrl.mesh.buckets import round_up
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
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
