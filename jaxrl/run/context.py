"""What the parts of a training run share: the run's fixed surroundings, and its callbacks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jax.sharding import Mesh

from jaxrl.config import Config
from jaxrl.data.scoring.pool import Pool
from jaxrl.data.types import Problem, Score, Task
from jaxrl.record.metrics import Timer
from jaxrl.record.process import Heartbeat
from jaxrl.record.writer import Writer
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.history import Recorder
from jaxrl.rollout.policy import Policy
from jaxrl.run.extension import Context, Extension
from jaxrl.run.signals import Gate
from jaxrl.types import Params, TrainState


class Callbacks(NamedTuple):
    """Functions that a run calls. The defaults do nothing."""

    stage: Callable[[str, int, int], None] = lambda name, done, total: None
    """Called when a phase (warm start, train) has done `done` of its `total` steps."""
    imitated: Callable[[int, float], None] = lambda step, loss: None
    """Called with the loss of a step of the warm start, twenty times at most."""
    step: Callable[[int, dict[str, float]], None] = lambda step, metrics: None
    """Called after a training step, with its metrics."""
    sampled: Callable[[int, Experience], None] = lambda step, experience: None
    """Called with scored completions: of an evaluation after `step` steps, and of the batch of
    each step."""
    note: Callable[[str], None] = lambda text: None
    """Called with a message for the user."""
    scored: Callable[[Problem, str, Score], None] = lambda problem, completion, score: None
    """Called with each completion as soon as it is scored, in another thread; not with episodes."""


class Batches(NamedTuple):
    """The experience of a stage, step by step."""

    step: Callable[[TrainState, int, Timer], tuple[Experience, dict[str, float]]]
    """`(state, its step, timer)`: the experience of the next step, and metrics of how it was
    sampled or read."""
    get_state: Callable[[], dict[str, Any]]
    """The position and what is in flight, for a checkpoint."""
    set_state: Callable[[dict[str, Any]], None]
    abandon: Callable[[], None]
    """Discard what has been sampled for later steps."""


ToSampler = Callable[[Params], Params]
"""Trained parameters as the sampler reads them, on the devices that sample."""


class Origin(NamedTuple):
    """Where a run's experience comes from, and what it is measured on.

    It is sampled and scored, see `jaxrl.run.sampled`, or read from a file, see
    `jaxrl.run.offline`.
    """

    open: Callable[[RunContext, Context, ToSampler, Recorder, int], Batches]
    """The experience of a stage, from its start; the number is that of the steps done by then."""
    assess: Callable[[RunContext, Context, TrainState, ToSampler, int], dict[str, float]]
    """Held-out figures of a state at a step."""
    figure: str
    """Name of the main figure."""
    held_out: str
    """Name of what the figures are measured on."""
    task: Task | None = None
    """Makes and scores problems; None where nothing is scored."""


class RunContext(NamedTuple):
    """What a run works with and never changes."""

    config: Config
    callbacks: Callbacks
    directory: Path
    origin: Origin
    policy: Policy
    """The model's shape and tokenizer; its parameters are in the train state."""
    extensions: dict[str, Extension]
    """By name, in order."""
    pools: dict[int | None, Pool]
    """By the step that a stage begins after; None: scores evaluations. Empty where nothing is
    scored."""
    sampling_mesh: Mesh
    """The devices that sample; the mesh in use has those that train."""
    writer: Writer
    gate: Gate
    heart: Heartbeat
    closing: contextlib.ExitStack
    """Closed when the run ends, in whatever way."""
