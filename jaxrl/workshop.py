"""What the parts of a training run share: an onlooker, and the things that never change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jax.sharding import Mesh

from data.scoring import Pool
from data.types import Problem, Task
from jaxrl.checkpoint import Writer
from jaxrl.config import Config
from jaxrl.heartbeat import Heartbeat
from jaxrl.policy import Policy
from jaxrl.signals import Gate


class Watch(NamedTuple):
    """What an onlooker is told. The defaults say nothing."""

    stage: Callable[[str, int, int], None] = lambda name, done, total: None
    """A stage (warm start, train) has done so many of its steps."""
    step: Callable[[int, dict[str, float]], None] = lambda step, metrics: None
    """A training step is finished, with its metrics."""
    note: Callable[[str], None] = lambda text: None
    """Something worth a line."""


class Workshop(NamedTuple):
    """What a run works with and never changes."""

    config: Config
    watch: Watch
    directory: Path
    task: Task
    held_out: list[Problem]
    actor: Policy
    """The model's shape and tokenizer; its parameters are in the train state."""
    pools: dict[int, Pool]
    """By the step that a stage begins after; the first also scores evaluations."""
    sampling_mesh: Mesh
    """The devices that sample; the mesh in use has those that train."""
    writer: Writer
    gate: Gate
    heart: Heartbeat

    @property
    def pool(self) -> Pool:
        """Scores what is not of a later stage."""
        return self.pools[0]
