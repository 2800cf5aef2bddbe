"""A step's experience: draws problems, drives their rollouts, and chooses the groups to train on.

Which groups begin and which make a batch is decided by `jaxrl.rollout.schedule`. A step is sampled
in turns with training, which is a schedule without a bound on the lag, or as
`jaxrl.rollout.asynchronous` has it. In turns, three settings of `RolloutConfig` combine freely:
`in_flight` (a step takes the groups that finish first, and the others continue in the next step),
`oversampling` (groups whose rewards are all equal are replaced, DAPO's dynamic sampling, in rounds)
and `chunks`. Every finished group is reported to the source of its problem, so curricula learn from
all of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.config import Config, RolloutConfig
from jaxrl.data.scoring.pool import Pool
from jaxrl.data.selection import curriculum, sampling_rounds
from jaxrl.data.types import Problem, Task
from jaxrl.random_streams import RunStream
from jaxrl.record.jsonl import StepLog
from jaxrl.record.metrics import Timer
from jaxrl.rollout import drive, episodes, programs, tasks
from jaxrl.rollout.drive import Chunk, Drive, Group, OpenGroups, Pending, RequestId
from jaxrl.rollout.engine import Local, Open
from jaxrl.rollout.experience import Collector, Experience
from jaxrl.rollout.flight import Batch, Flight, Row, Weights
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Context, Program
from jaxrl.rollout.schedule import Limits
from jaxrl.rollout.selection import Drawn, Source
from jaxrl.sampling import constraints, drafts, prefixes
from jaxrl.sampling.constraints import Matchers
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.sampling.slots import Features
from jaxrl.sampling.work import Setup
from jaxrl.sampling.worlds import World
from jaxrl.types import Params


class Way(NamedTuple):
    """How the steps of a flight are sampled."""

    sample: Callable[[Weights, Timer], tuple[list[Group], dict[str, float]]]
    """The groups of a step, those whose rewards differ first, and metrics of how they were
    sampled."""
    halt: Callable[[], None] = lambda: None
    """Ends what is sampled while the policy is trained; until then the flight changes."""
    get_state: Callable[[], dict[str, Any]] = dict
    """What a checkpoint holds beside the state of the flight."""
    set_state: Callable[[dict[str, Any]], None] = lambda saved: None


def limits(config: Config) -> Limits:
    """The limits of a run's schedule; in turns, the lag has no bound."""
    prompts, settings = config.rollout.prompts, config.asynchronous
    if settings.staleness is None:
        return Limits(prompts, None, round(prompts * config.rollout.in_flight), "finished")
    return Limits(prompts, settings.staleness, settings.in_flight, settings.order)


def open_rollouts(
    config: Config,
    policy: Policy,
    task: Task,
    pool: Pool,
    source: Source,
    program: Program,
    *,
    room: int = 0,
    open_engine: Open = Local,
    open_way: Callable[[Flight], Way] | None = None,
    log: Callable[[Row], None] = lambda row: None,
) -> Collector[[Weights, Timer]]:
    """The experience of a run or of a stage of it, from its start.

    A step has `rollout.prompts` groups.

    Args:
      config: of the stage.
      policy: its tokenizer and the decoder's shape.
      task: of the stage.
      pool: scores completions.
      source: of problems.
      program: makes a group of one.
      room: tokens that the program adds to prompts, at most.
      open_engine: what decodes.
      open_way: how steps are sampled; None: by `in_turns`, without a record.
      log: see `Flight`.
    """
    settings, sampler = config.rollout, config.sampler
    if mib := sampler.prefix_cache:
        prefixes.check(mib, sampler.prefix_block, (policy.model,))
    ctx, texts = context(settings, config.seed, policy, task), drafts.Texts()
    if sampler.drafts == "epochs":
        open_engine = functools.partial(Local, texts=texts)
    staleness, bounds = config.asynchronous.staleness, limits(config)
    quota = curriculum.quota(settings.prompts, oversampling=settings.oversampling)
    together = staleness is None and bounds.in_flight <= settings.prompts  # groups start together

    setup = sampler_setup(
        policy, settings, sampler, key(config.seed), room,
        **turns_of(ctx), resumes=bool(staleness),
    )  # fmt: skip

    def open_drive(weights: Weights, pending: Mapping[RequestId, Pending | None]) -> Drive:
        engine = open_engine(setup._replace(guide=weights.guide), weights.params)
        return Drive(program, ctx, engine, pool, pending)

    flight = Flight(
        bounds, settings.group_size, source, open_drive, pool.over, log,
        drawn_at_once=0 if together else settings.prompts,
        together=staleness == 0 and settings.replies == "together",
        spare=0 if staleness is None else int(quota.budget - quota.wanted),
    )  # fmt: skip
    way = in_turns(config, None, flight) if open_way is None else open_way(flight)

    def step(weights: Weights, timer: Timer) -> tuple[Experience, dict[str, float]]:
        groups, metrics = way.sample(weights, timer)
        return experience(groups, settings.group_size), metrics

    def get_state() -> dict[str, Any]:
        way.halt()
        kept = {"texts": drafts.get_state(texts)} if sampler.drafts == "epochs" else {}
        return flight.get_state() | way.get_state() | kept

    def set_state(saved: dict[str, Any]) -> None:
        drafts.set_state(texts, saved.get("texts", ()))
        flight.set_state(saved)
        way.set_state(saved)

    def abandon() -> None:
        way.halt()
        flight.abandon()

    return Collector(step, get_state, set_state, abandon)


def in_turns(config: Config, record: StepLog | None, flight: Flight) -> Way:
    """Sampling and training in turns; groups of equal rewards are replaced in rounds.

    Args:
      config: of the stage.
      record: given a row for each chunk of decoding, those of a step together.
      flight: of the stage.
    """
    settings, bounds = config.rollout, flight.limits
    prompts, adaptive = settings.prompts, settings.rounds == "adaptive"
    partial = bounds.in_flight > prompts
    acceptance = sampling_rounds.Acceptance()

    def sample(weights: Weights, timer: Timer) -> tuple[list[Group], dict[str, float]]:
        nonlocal acceptance
        chunks: list[Chunk] = []
        kept_groups: list[Group] = []
        rest: list[Group] = []
        biases: list[float] = []
        state = curriculum.quota(prompts, oversampling=settings.oversampling)
        while True:
            left = int(state.budget - state.sampled)
            count = sampling_rounds.size(acceptance, state) if adaptive else min(prompts, left)
            flight.limits = bounds._replace(
                groups_per_step=count, in_flight=bounds.in_flight if partial else count
            )
            batch = _one_round(flight, weights, timer, chunks.append)
            biases.append(batch.length_bias)
            state, keep, resample_count = curriculum.dynamic(state, batch.rewards)
            kept_groups += [g for g, k in zip(batch.groups, keep, strict=True) if k]
            rest += [g for g, k in zip(batch.groups, keep, strict=True) if not k]
            if adaptive:
                acceptance = sampling_rounds.observe(
                    acceptance, batch.rewards, last=not resample_count
                )
            if not resample_count:
                break
        metrics = {"prompts_sampled": float(state.sampled)}
        if adaptive:
            metrics["rounds"] = float(len(biases))
        if partial:
            metrics["length_bias"] = float(np.mean(biases))
        if config.sampler.most_drafted:
            metrics |= draft_metrics(chunks, beside=config.sampler.drafts_beside)
        if config.sampler.prefix_cache:
            metrics |= prefix_metrics(chunks)
        if record is not None:
            with timer("record"):
                record.begin(weights.step)
                counts = (chunk._asdict() for chunk in chunks)
                record.add(*({"step": weights.step, "chunk": n, **c} for n, c in enumerate(counts)))
        return [*kept_groups, *rest][:prompts], metrics

    def get_state() -> dict[str, Any]:
        return {"acceptance": acceptance.lowest} if adaptive else {}

    def set_state(saved: dict[str, Any]) -> None:
        nonlocal acceptance
        acceptance = sampling_rounds.Acceptance(saved.get("acceptance", 1.0))

    return Way(sample, get_state=get_state, set_state=set_state)


def _one_round(
    flight: Flight, weights: Weights, timer: Timer, log: Callable[[Chunk], None]
) -> Batch:
    """A batch that training waits for; nothing is sampled after it.

    Args:
      flight: changed in place.
      weights: of the step.
      timer: given the seconds of `sample` and `score`, see `drive.advance`.
      log: called with each chunk of decoding.
    """
    with timer("sample"):
        flight.start(weights)
        flight.admit()
        sampler = flight.drive if flight.batch is None else None
    if sampler is not None:
        enough = flight.limits.groups_per_step
        drive.advance(sampler, enough=enough, version=weights.version, timer=timer, log=log)
    flight.stop()
    assert flight.batch is not None  # `drive.advance` ends when enough groups are complete
    return flight.batch


def draft_metrics(chunks: Sequence[Chunk], *, beside: bool = False) -> dict[str, float]:
    """How well drafts served in some chunks.

    Args:
      chunks: of decoding.
      beside: drafts were looked up in completions of the same prompt too.

    Returns:
      `drafts/accepted`, mean number of tokens accepted of a draft that is verified, 0 where none
      is; and `drafts/share`, the share of sampled tokens that they are. With `beside`, the same of
      drafts from there, `drafts/beside/accepted` and `drafts/beside/share`.
    """
    further = {}
    if beside:
        others = [
            c._replace(verified=c.verified_beside, accepted=c.accepted_beside) for c in chunks
        ]
        metrics = draft_metrics(others)
        further = {name.replace("/", "/beside/"): value for name, value in metrics.items()}
    accepted = sum(chunk.accepted for chunk in chunks)
    verified, tokens = (sum(c.verified for c in chunks), sum(c.tokens for c in chunks))
    return {
        "drafts/accepted": accepted / max(1, verified),
        "drafts/share": accepted / max(1, tokens),
        **further,
    }


def prefix_metrics(chunks: Sequence[Chunk]) -> dict[str, float]:
    """What the prefix cache saved in some chunks.

    Returns:
      `prefixes/cached`, tokens of prompts that were not read, as it had them; and
      `prefixes/share`, the share of the tokens to read that they are.
    """
    cached, read = sum(chunk.cached for chunk in chunks), sum(chunk.read for chunk in chunks)
    return {"prefixes/cached": float(cached), "prefixes/share": cached / max(1, cached + read)}


def collect(
    policy: Policy,
    params: Params,
    problems: Sequence[Problem],
    task: Task,
    pool: Pool,
    rollout: RolloutConfig,
    sampling: SamplerConfig,
    *,
    key: jax.Array,
    first_id: int,
    version: int,
    timer: Timer,
    program: Program = episodes.group,
) -> Experience:
    """Sample a group of answers to every problem, and score them.

    Args:
      policy: the tokenizer and the decoder's shape.
      params: the sampler's form of the parameters, see `policy.sampling_params`.
      problems: P of them.
      task: makes and scores them.
      pool: scores completions.
      rollout: group size, temperature and budgets.
      sampling: memory layout of the sampler.
      key: the sampling key.
      first_id: id of the first sequence; they are numbered on from it.
      version: policy version of `params`.
      timer: given the seconds of `sample`, and of `score`: the time spent waiting for scores.
      program: makes a group.
    """
    rollout = dataclasses.replace(rollout, in_flight=1.0)
    ctx = context(rollout, 0, policy, task)
    open_groups = OpenGroups(waiting=[Drawn(problem) for problem in problems], next_id=first_id)
    open_groups.admit(len(problems), rollout.group_size)
    setup = sampler_setup(policy, rollout, sampling, key, **turns_of(ctx))
    with timer("sample"):
        sampler = Drive(program, ctx, Local(setup, params), pool)
        sampler.begin(open_groups.groups)
    drive.advance(
        sampler, enough=len(problems), version=version, timer=timer, log=lambda done: None
    )
    return experience(open_groups.groups, rollout.group_size)


def key(seed: int) -> jax.Array:
    """The sampling key of a run with this seed."""
    return RunStream.SAMPLING.key(seed)


def context(rollout: RolloutConfig, seed: int, policy: Policy, task: Task) -> Context:
    """The context that programs receive; `seed` is the run's.

    Raises:
      ValueError: the task has episodes that the tokenizer's chat template cannot carry exactly, or
        the file of a constraint cannot be read.
    """
    dialogue = tasks.dialogue(task, policy.tokenizer, rollout)
    arrays = tasks.arrays(task, policy.tokenizer, rollout)
    ctx = Context(rollout, seed, policy.tokenizer, task, dialogue, arrays)
    if not rollout.constraint:
        return ctx
    ctx = ctx._replace(matchers=constraints.matchers(policy.tokenizer))
    if rollout.constraint == "problem":
        return ctx
    return ctx._replace(constraint=constraints.of_file(rollout.constraint))


def turns_of(ctx: Context) -> dict[str, Any]:
    """What the sampler has to know of programs, for `sampler_setup`."""
    world = None
    if ctx.arrays is not None:
        world = World(ctx.arrays.step, programs.dialogue_of(ctx).end, ctx.rollout.turn_tokens)
    return {"turns": ctx.dialogue is not None, "world": world, "matchers": ctx.matchers}


def sampler_setup(
    policy: Policy,
    rollout: RolloutConfig,
    sampling: SamplerConfig,
    key: jax.Array,
    room: int = 0,
    *,
    turns: bool = False,
    world: World | None = None,
    matchers: Matchers | None = None,
    resumes: bool = False,
) -> Setup:
    """The sampler's setup for programs whose prompts have `room` more tokens than the task's.

    Args:
      policy, rollout, sampling, key, room: see `collect`.
      turns: the programs sample episodes, whose environments may ask for stop strings, and whose
        slots are held between turns.
      world: their environment, where they are played within the decode loop.
      matchers: begins to match constraints, where there are some.
      resumes: unfinished sequences leave their slots and are prefilled again later.
    """
    prompt, length = programs.limits(rollout, room, again=turns or resumes)
    return Setup(
        policy.model, key, tuple(policy.tokenizer.eos_ids), prompt, length, sampling,
        features=Features(truncate=bool(rollout.truncated), support=rollout.records_support),
        guide=policy.guide, draft=policy.draft, text=policy.tokenizer.decode if turns else None,
        matchers=matchers, hold=turns and world is None, world=world,
    )  # fmt: skip


def experience(groups: Sequence[Group], size: int) -> Experience:
    """The rows of groups in order; a row after the group's `size` is its greedy answer."""
    rows = [row for group in groups for row in group.finished_rows[:size]]
    return Experience(
        [group.drawn.problem for group in groups],
        [row.completion for row in rows],
        [row.text for row in rows],
        [row.score for row in rows],
        [row.score for group in groups for row in group.finished_rows[size:]],
    )
