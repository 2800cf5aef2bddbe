"""What a run consists of: `assemble` before it starts, and `machine` on its mesh.

Parts check the settings that are theirs, before anything is compiled or written.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxrl import config as configs
from jaxrl import functions
from jaxrl.config import Config, conflicts, stages
from jaxrl.record.checkpoint import Saved
from jaxrl.rollout import policy, programs, reshard, tasks, written
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.rollout_log import HistoryLog
from jaxrl.run import (
    asynchronous,
    begin,
    generators,
    offline,
    placement,
    reference,
    sampled,
)
from jaxrl.run.context import Origin, RunContext, Stage, open_stage, stage_update
from jaxrl.run.extension import (
    Context,
    Extension,
    check_extensions,
    extension_state,
    open_extensions,
    provider,
    providers,
)
from jaxrl.run.extension import context as extension_context
from jaxrl.run.placement import Numbers, transfers
from jaxrl.run.reference import Reference
from jaxrl.training import optimizer, trainable, turns, validate
from jaxrl.training.train_step import Update
from jaxrl.types import TrainState

_PROGRAMS = 4
"""Programs of updates that are kept for stages that begin again."""


class Parts(NamedTuple):
    """What a run consists of, before anything is compiled or written."""

    origin: Origin
    """Where its experience comes from."""
    policy: Policy
    """The model's shape and tokenizer; its parameters are still to come."""
    extensions: dict[str, Extension]
    """By name, in order."""


def check(config: Config) -> None:
    """Refuse settings that cannot work together; nothing is opened or read but other runs.

    Raises:
      ValueError: naming the field, its value and the remedy.
    """
    configs.check(config)
    stages.check(config)
    conflicts.check(config)
    for done, staged in stages.all_of(config):
        with stages.of_stage(config, done):
            _check_rows(staged)
    asynchronous.check(config)
    generators.check(config)
    begin.check_fork(config)


def assemble(config: Config) -> Parts:
    """The parts of a run, each of which has accepted the config.

    Raises:
      ValueError: a config that cannot work, see `check`, or data or a model that cannot be used.
    """
    check(config)
    extensions = open_extensions(config)
    _check_extensions(config, extensions)
    _check_objectives(config, extensions)
    reference.check(config, extensions)
    model, tokenizer = policy.describe(config)
    trainable.part(model, config.lora, config.train)
    if not config.data.kinds:
        reshard.describe_draft(config.sampler, model, tokenizer)
    actor = Policy(model, {}, tokenizer)
    return Parts(
        (offline if config.data.kinds else sampled).origin(config, actor), actor, extensions
    )


class Machine(NamedTuple):
    """What a run computes with: programs, and where their arrays are."""

    begin: Callable[[], Saved]
    """The state to train from: fresh, of a checkpoint, or of another run."""
    like: TrainState
    """Shapes and shardings of the train state."""
    reference: Reference
    learning_rate: Callable[[int], float]
    """Of an update, by the number of those before it."""
    open_stage: Callable[[int, dict[str, Any] | None], Stage]
    """`(done, position)`: the stage in force after `done` steps, from a position in its experience;
    None for the start."""
    assess: Callable[[TrainState, int], dict[str, float]]
    """Held-out figures of a state after a number of steps."""


def machine(run: RunContext) -> Machine:
    """The programs of a run on the mesh in use; they are compiled when they are called first."""
    config, model = run.config, run.policy.model
    updates = config.steps * config.updates_per_batch
    optimize = optimizer.make(config.optimizer, updates, model)
    part = trainable.part(model, config.lora, config.train, config.param_dtype)
    the_reference = Reference(run.directory, config, model, run.extensions)

    def context(done: int) -> Context:
        staged = stages.at(config, done)
        return extension_context(
            staged,
            run.policy,
            part,
            run.extensions,
            directory=run.directory,
            reference=the_reference.params if the_reference.reads(staged) else None,
            renew_reference=lambda state, step: the_reference.renew(like, state, step),
        )

    complete = extension_state(context(0), run.extensions)
    like = placement.abstract_state(
        model, optimize, config.lora, part, complete, offload=config.optimizer.offload
    )
    meshes = (jax.sharding.get_mesh(), run.sampling_mesh)
    eval_params = reshard.sampler_weights(model, *meshes, config.compute_dtype)
    rollout_params = reshard.sampler_weights(
        model,
        *meshes,
        config.sampling.dtype or config.compute_dtype,
        int8=config.sampling.weights == "int8",
    )
    eval_params_of = provider(run.extensions, "eval_params")
    recorder: HistoryLog | None = None

    def varied_update(first: int, numbers: Numbers) -> Update:
        values: dict[str, Any] = numbers._asdict()
        seed = values.pop("seed")
        settings = dataclasses.replace(config.optimizer, **values)
        ctx = context(first)
        ctx = ctx._replace(config=dataclasses.replace(ctx.config, seed=seed))
        return stage_update(ctx, run.extensions, optimizer.make(settings, updates, model))

    @functools.lru_cache(maxsize=_PROGRAMS)
    def program(first: int) -> Update:
        if run.sharing is not None:
            make = functools.partial(varied_update, first)
            numbers = placement.numbers_of(config)
            return placement.shared_update(run.sharing, first, make, numbers, part, like)
        return placement.with_fixed_layout(
            stage_update(context(first), run.extensions, optimize), like
        )

    def stage_at(done: int, position: dict[str, Any] | None) -> Stage:
        assert recorder is not None  # `begin` comes first
        first = stages.first(config, done)
        return open_stage(
            run, context(first), first, position, recorder, program(first), rollout_params
        )

    def assess(state: TrainState, step: int) -> dict[str, float]:
        run.heart.beat("evaluate", step)
        ctx = context(0)
        with transfers():
            state = state.replace(params=eval_params_of(ctx, state)) if eval_params_of else state
            return run.origin.assess(run, ctx, state, eval_params, step)

    def first_state() -> Saved:
        nonlocal recorder
        saved = begin.begin(run, optimize, like, assess, part, complete)
        if run.sharing is not None:  # the base that it has loaded is let go
            trained, base = part.split(saved.state.params)
            params = part.join(trained, run.sharing.frozen(base))
            saved = saved._replace(state=saved.state.replace(params=params))
        the_reference.load(like, saved.host["step"])
        forked = bool(saved.host["lineage"])
        recorder = HistoryLog(run.directory, run.callbacks.note, forked=forked)
        return saved

    learning_rate = optimizer.learning_rate(config.optimizer, updates)
    return Machine(first_state, like, the_reference, learning_rate, stage_at, assess)


def _check_objectives(config: Config, extensions: dict[str, Extension]) -> None:
    """Refuse an objective, of any stage, that its first update could not compute."""
    arrays = [n for names in providers(extensions, "extra_arrays").values() for n in names]
    add_shapes = providers(extensions, "shapes").values()
    has_turns = not config.data.kinds and sampled.has_turns(config, extensions)
    if "stepwise" in config.data.kinds:
        arrays += ("turn", "turn_rewards")
    elif has_turns:
        arrays += turns.TOKENS
    for done, staged in stages.all_of(config):
        with stages.of_stage(config, done):
            if has_turns and provider(extensions, "opposed_params") is None:  # which trains one
                _check_agents(staged)
            validate.check(
                staged.objective,
                arrays,
                sequences=_sequences(staged),
                bucket=staged.packing.bucket,
                shapes=lambda b: functools.reduce(lambda b, add: add(b), add_shapes, b),
            )


def _sequences(config: Config) -> int:
    """The number of sequences of an update."""
    if config.data.kinds:
        return config.data.batch_size // config.updates_per_batch * written.answers(config.data)
    return config.rollout.prompts // config.updates_per_batch * config.rollout.group_size


def _check_extensions(config: Config, extensions: dict[str, Extension]) -> None:
    """Refuse a stage that an extension cannot work with."""
    for done, staged in stages.all_of(config):
        with stages.of_stage(config, done):
            check_extensions(staged, extensions)


def _check_agents(config: Config) -> None:
    """Refuse an advantage that does not tell agents apart where episodes have several."""
    advantage = config.objective.advantage
    if not functions.takes(functions.lookup(advantage), "agent_ids"):
        tasks.require_one_agent(config, f"objective.advantage={advantage!r}")


def _check_rows(config: Config) -> None:
    """Refuse rows that the longest response possible does not fit in.

    What is read from a file is as long as its texts are, and is refused when it is packed.
    """
    row_length, longest = config.packing.row_length, programs.limits(config.rollout)[1]
    if not config.data.kinds and 0 < row_length < longest - 1:  # the last token is no input
        raise ValueError(
            f"packing.row_length={row_length} is shorter than the longest sequence, which has "
            f"{longest} tokens (rollout.max_prompt_tokens + rollout.max_new_tokens); set it to "
            f"{longest} or to 0, which chooses it"
        )
