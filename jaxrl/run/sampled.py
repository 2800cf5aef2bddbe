"""Experience that the policy samples and a task scores; held-out problems that it answers.

Each chunk of decoding is a row of `chunks.jsonl`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from jaxrl.config import Config, stages
from jaxrl.data.sources import stream
from jaxrl.data.text import examples
from jaxrl.data.types import Problem, Task
from jaxrl.record import jsonl
from jaxrl.record.metrics import Timer
from jaxrl.record.storage import best_effort
from jaxrl.rollout import collect, episodes, history, policy, programs, selection, tasks
from jaxrl.rollout.experience import Collector, Experience
from jaxrl.rollout.flight import Weights
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Program
from jaxrl.rollout.rollout_log import HistoryLog
from jaxrl.run import asynchronous, evaluate, generators, guards, warm_start
from jaxrl.run.context import Origin, RunContext, StageCollector, ToSampler
from jaxrl.run.extension import Context, Extension, provider, providers
from jaxrl.sampling.constraints import Matchers
from jaxrl.training import objective
from jaxrl.training.logprobs import guide_of
from jaxrl.types import OutputConstraint, TrainState

CHUNKS = "chunks.jsonl"
"""What each chunk of decoding of a synchronous run did, from which its costs can be told. An
asynchronous run writes the same fields into `schedule.jsonl`, with what was decided."""


def origin(config: Config, actor: Policy) -> Origin:
    """The origin of a run that samples.

    Raises:
      ValueError: prompts that cannot be drawn or answered, of any stage or held out.
    """
    for _, staged in stages.all_of(config):
        check_prompts(staged, actor)
    task = tasks.of_config(config)
    keep = policy.keeps(actor.tokenizer, config.rollout, task)
    warm_start.check(config, task)
    held_out = evaluate.problems(task, config.eval.split, config.eval.problems, keep=keep)
    for problem in held_out:
        policy.check_prompt(actor.tokenizer, config.rollout, task, problem)
    if not held_out:
        raise ValueError(
            f"rollout.max_prompt_tokens={config.rollout.max_prompt_tokens} drops every held-out "
            "problem; raise it"
        )

    def assess(
        run: RunContext, ctx: Context, state: TrainState, to_sampler: ToSampler, step: int
    ) -> dict[str, float]:
        params = to_sampler(state.params)
        steering = provider(run.extensions, "steering")
        guide = steering(ctx, state, to_sampler) if steering else None
        actor = run.policy if guide is None else run.policy._replace(guide=guide)
        with jax.set_mesh(run.sampling_mesh):
            figures, sampled = evaluate.evaluate(
                actor, params, held_out, task, run.pools[None], config.rollout, config.sampler
            )
        for extension in run.extensions.values():
            figures |= extension.measure(ctx, state, sampled)
        with best_effort("the evaluation", run.callbacks.note):
            evaluate.save(run.directory, step, sampled, run.policy.tokenizer.decode)
        run.callbacks.sampled(step, sampled)
        if step == 0:
            guards.check_scores(sampled.scores, "the evaluation before training")
        return figures

    return Origin(open_collector, assess, "pass@1", f"{len(held_out)} held-out problems", task)


def open_collector(
    run: RunContext, ctx: Context, to_sampler: ToSampler, recorder: HistoryLog, start: int
) -> StageCollector:
    """The rollouts of a stage: its collector, given the weights of a train state.

    Args:
      run: the run.
      ctx: of the stage.
      to_sampler: see `reshard.sampler_weights`.
      recorder: keeps the run's history.
      start: see `jaxrl.config.stages.first`.
    """
    config = ctx.config
    dtype = config.sampling.dtype or config.compute_dtype
    model = dataclasses.replace(run.policy.model, dtype=dtype)
    run = run._replace(policy=run.policy._replace(model=model))
    task = tasks.of_config(config)
    for line in task.notes:
        run.callbacks.note(line)
    parts = (task, *task.parts.values())
    turns = any(part.turns is not None for part in parts)
    rollout: Program = episodes.group if turns else programs.single_turn
    for extension in run.extensions.values():
        rollout = extension.program(rollout)
    if objective.needs_greedy(config.objective):
        rollout = programs.with_greedy(rollout)
    open_engine = generators.open_engine(run, config)
    with jax.set_mesh(run.sampling_mesh):
        source = selection.recorded(selection.open_source(config, task, run.policy), recorder)
        room = sum(n(config) for n in providers(run.extensions, "extra_prompt_tokens").values())
        note = run.callbacks.note
        if config.asynchronous.staleness is None:
            record = jsonl.StepLog(run.directory / CHUNKS, note, sync=False)
            way = functools.partial(collect.in_turns, config, record)
        else:
            record = jsonl.StepLog(run.directory / asynchronous.FILE, note)
            way = functools.partial(asynchronous.sampled_meanwhile, run, config, record)
        collector = collect.open_rollouts(
            config, run.policy, task, run.pools[start], source, rollout,
            room=room, open_engine=open_engine, open_way=way, log=record.add,
        )  # fmt: skip
    samples = provider(run.extensions, "sampling_params")
    opposes = provider(run.extensions, "opposed_params")
    restricts = provider(run.extensions, "restriction") is not None

    def step(state: TrainState, version: int, timer: Timer) -> tuple[Experience, dict[str, float]]:
        steps = version // config.updates_per_batch
        with timer("sync"):
            params, version = samples(ctx, state) if samples else (state.params, version)
            params = opposes(ctx, state, to_sampler) if opposes else to_sampler(params)
            guide = run.policy.guide
            if restricts and (restriction := ctx.restriction(state)) is not None:
                guide = guide_of(run.policy.model, restriction, to_sampler)
        with jax.set_mesh(run.sampling_mesh):
            return collector.step(Weights(params, guide, version, steps), timer)

    def set_state(saved: dict[str, Any]) -> None:
        if "source" in saved:  # else of a run that learned from a file, which this one forked
            collector.set_state(saved)

    return Collector(step, collector.get_state, set_state, collector.abandon)


def has_turns(config: Config, extensions: Mapping[str, Extension]) -> bool:
    """Whether a run's problems are episodes, or some of them, in any of its stages.

    Raises:
      ValueError: they are, and the config asks for what episodes cannot have.
    """
    played = [
        task.name
        for _, staged in stages.all_of(config)
        for root_task in [tasks.of_config(staged)]
        for task in (root_task, *root_task.parts.values())
        if task.turns is not None
    ]
    if not played:
        return False
    plain = Extension().program
    playing = providers(extensions, "plays_turns")
    alone = [n for n, e in extensions.items() if e.program is not plain and not playing.get(n)]
    refused = {
        "rollout.chunks": config.rollout.chunks.size,
        f"extensions {alone}, which write answers of their own": alone,
    }
    for _, staged in stages.all_of(config):
        name = staged.objective.advantage
        refused[f"objective.advantage={name!r}, which needs greedy answers"] = (
            objective.needs_greedy(staged.objective)
        )
    if conflicts := [name for name, value in refused.items() if value]:
        raise ValueError(
            f"task {played[0]!r} is played in turns, which do not go with {conflicts[0]}; "
            "leave it out, or use a task that is answered in one, such as --data FILE"
        )
    return True


def _of_rows(task: Task) -> Iterator[Problem]:
    """All problems of a task whose problems are the rows of a file."""
    if task.name == "file":
        for split, size in task.sizes.items():
            yield from (task.problem(split, 0, index) for index in range(size))


def _accept(matchers: Matchers, constraint: OutputConstraint, where: str) -> None:
    """Refuse a constraint that cannot be kept.

    Raises:
      ValueError: naming where it stands.
    """
    try:
        matchers(constraint)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def check_prompts(config: Config, actor: Policy) -> None:
    """Refuse what prompts a config asks for where they cannot be drawn, or not be answered.

    Raises:
      ValueError: naming the field.
    """
    selection.check(config)
    examples.end(actor.tokenizer)  # else no completion would end
    root_task = tasks.of_config(config)
    ctx = collect.context(config.rollout, config.seed, actor, root_task)
    if ctx.matchers is not None and ctx.constraint is not None:
        _accept(ctx.matchers, ctx.constraint, f"rollout.constraint={config.rollout.constraint!r}")
    curricula = [domain.curriculum for domain in config.domains.values()] or [config.curriculum]
    for curriculum, task in zip(curricula, root_task.parts.values() or [root_task], strict=True):
        if curriculum.history:
            history.best(curriculum, task)
        first = next(
            stream.prompts(task, split="train", seed=config.seed, batch_size=config.rollout.prompts)
        )
        keep = policy.keeps(actor.tokenizer, config.rollout, task)
        size = task.sizes.get("train")
        rest = (task.problem("train", config.seed, i) for i in range(size or 0))
        if keep and not any(map(keep, itertools.chain(first, rest))):
            raise ValueError(
                f"rollout.max_prompt_tokens={config.rollout.max_prompt_tokens} drops "
                f"{'all' if size else f'the first {len(first)}'} prompts of task {task.name!r}; "
                "raise it"
            )
        every = itertools.chain(first, _of_rows(task))
        for problem in every if keep is None else filter(keep, every):
            policy.check_prompt(actor.tokenizer, config.rollout, task, problem)
            constraint = programs.constraint_of(config.rollout, problem)
            if ctx.matchers is not None and constraint is not None:
                _accept(ctx.matchers, constraint, f"problem {problem.id}: constraint")
    settings = config.rollout
    total = settings.chunks.longest(
        settings.max_prompt_tokens, settings.max_prompt_tokens + settings.max_new_tokens
    )
    if total > actor.model.max_positions:
        raise ValueError(
            f"rollout.max_prompt_tokens + rollout.max_new_tokens = {total} exceed the model's "
            f"{actor.model.max_positions} positions; lower one of them, or set rollout.chunks"
        )
