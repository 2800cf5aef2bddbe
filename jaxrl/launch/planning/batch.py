"""The batch that a plan is of: one update's input, sequences as long as the budgets allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxrl.config import Config
from jaxrl.data.text.examples import Example
from jaxrl.data.types import Problem, Score
from jaxrl.mesh.buckets import round_up
from jaxrl.rollout import experience
from jaxrl.rollout.programs import Row
from jaxrl.rollout.written import answers, as_completion, gathered
from jaxrl.run import placement
from jaxrl.run.extension import Extension, providers
from jaxrl.training import objective, packing
from jaxrl.types import Completion, Packed, Request, Trajectory


class Batch(NamedTuple):
    """One update's input."""

    trajectory: Trajectory
    packed: Packed

    @property
    def row(self) -> int:
        """Length of a row."""
        return self.packed.tokens.shape[-1]

    @property
    def micro_batches(self) -> int:
        """Forward and backward passes of an update."""
        return int(self.packed.micro_batches)

    @property
    def micro_tokens(self) -> int:
        """Tokens of one of them, on all devices."""
        return self.packed.tokens.shape[1] * self.row


def input_of(config: Config, extensions: Mapping[str, Extension]) -> Batch:
    """The input of an update of a run; extensions are by name, see `open_extensions`."""
    batch = _of_rows(config) if config.data.kinds else _sampled(config)
    if objective.needs_proximal(config.objective):
        batch = batch.replace(proximal_logp=batch.behavior_logp)
    packed = placement.on_host(batch, config)[0]
    for add_shapes in providers(extensions, "shapes").values():
        batch = add_shapes(batch)
    return Batch(batch, packed)


def _of_rows(config: Config) -> Trajectory:
    """Rows of a file, each answer as long as `data.max_tokens` allows; two to a comparison."""
    data = config.data
    length, count = data.max_tokens, data.batch_size // config.updates_per_batch
    example = Example((1,), (1,) * (length - 1), (True,) * (length - 1))
    row = Row(as_completion(example), "", Score(1.0))
    groups = [(Problem(str(n), "", None), [row] * answers(data)) for n in range(count)]
    return experience.to_trajectory(config)(gathered(groups))


def _sampled(config: Config) -> Trajectory:
    """Completions as long as the budgets allow."""
    rollout = config.rollout
    prompt = (1,) * rollout.max_prompt_tokens
    zeros = np.zeros(rollout.max_new_tokens, np.float32)
    completion = Completion(
        Request(0, prompt, rollout.max_new_tokens), zeros.astype(np.int32) + 1, zeros, zeros,
        zeros.astype(np.int32), True,
    )  # fmt: skip
    groups = rollout.prompts // config.updates_per_batch
    count = groups * rollout.group_size
    batch = packing.trajectory(
        [completion] * count,
        [0.0] * count,
        list(np.repeat(np.arange(groups), rollout.group_size)),
        length=round_up(len(prompt) + len(zeros), config.packing.bucket),
    )
    greedy = batch.rewards if objective.needs_greedy(config.objective) else None
    names = len(objective.parts_weighed(config.objective)) or 2  # as many as a reward often has
    parts = np.zeros((count, names), np.float32)
    return batch.replace(stopped=batch.valid, greedy_rewards=greedy, reward_parts=parts)
