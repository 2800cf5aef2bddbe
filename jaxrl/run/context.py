"""What the parts of a training run share: the run's fixed surroundings, and its callbacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jax.sharding import Mesh

from jaxrl.config import Config
from jaxrl.data.scoring import Pool
from jaxrl.data.types import Problem, Task
from jaxrl.record.checkpoint import Writer
from jaxrl.record.heartbeat import Heartbeat
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.policy import Policy
from jaxrl.run.extension import Extension
from jaxrl.run.signals import Gate


class Callbacks(NamedTuple):
    """Functions that a run calls as it goes on. The defaults do nothing."""

    stage: Callable[[str, int, int], None] = lambda name, done, total: None
    """Called when a phase (warm start, train) has done `done` of its `total` steps."""
    step: Callable[[int, dict[str, float]], None] = lambda step, metrics: None
    """Called after a training step, with its metrics."""
    sampled: Callable[[int, Experience], None] = lambda step, experience: None
    """Called with scored completions: of an evaluation after `step` steps, and of the batch of
    each step."""
    note: Callable[[str], None] = lambda text: None
    """Called with a message for the user."""


class RunContext(NamedTuple):
    """What a run works with and never changes."""

    config: Config
    callbacks: Callbacks
    directory: Path
    task: Task
    held_out: list[Problem]
    policy: Policy
    """The model's shape and tokenizer; its parameters are in the train state."""
    extensions: dict[str, Extension]
    """By name, in order."""
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
