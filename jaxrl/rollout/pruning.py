"""What each problem's solution is worth to fine-tune on, by one update on it alone (DONOD)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config import RolloutConfig
from jaxrl.data.types import Problem, Task
from jaxrl.losses.pruning import donod, output_gradient
from jaxrl.mesh import mesh
from jaxrl.mesh.buckets import round_up
from jaxrl.models import decoder, head
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import programs
from jaxrl.rollout.angles import hidden_states
from jaxrl.rollout.policy import Policy, encode_prompt
from jaxrl.types import Params

_ROWS = 16


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
