"""A step's experience: draws problems, drives their rollouts, and chooses the groups to train on.

Which groups begin and which make a batch is decided by `jaxrl.rollout.schedule`. Three settings of
`RolloutConfig` combine freely: `in_flight` (a step takes the groups that finish first, and the
others continue in the next step, without a bound on the lag), `oversampling` (groups whose rewards
are all equal are replaced, DAPO's dynamic sampling, in rounds) and `chunks`. Every finished group
is reported to the source of its problem, so curricula learn from all of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.config import Config, RolloutConfig
from jaxrl.data.scoring.pool import Pool
from jaxrl.data.selection import curriculum, sampling_rounds
from jaxrl.data.types import Problem, Task
from jaxrl.random_streams import RunStream
from jaxrl.record.metrics import Timer
from jaxrl.rollout import drive, episodes, programs, tasks
from jaxrl.rollout.drive import Chunk, Group, OpenGroups
from jaxrl.rollout.engine import Local, Open
from jaxrl.rollout.experience import Collector, Experience
from jaxrl.rollout.flight import Flight, trained
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Context, Program
from jaxrl.rollout.schedule import Admit, Limits, Trained
from jaxrl.rollout.selection import Drawn, Source
from jaxrl.sampling import constraints
from jaxrl.sampling.constraints import Matchers
from jaxrl.sampling.logits import Guide
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.sampling.slots import Features
from jaxrl.sampling.work import Setup
from jaxrl.sampling.worlds import World
from jaxrl.types import Params


class Weights(NamedTuple):
    """What a step samples with; constant during the step."""

    params: Params
    """As the sampler reads them."""
    guide: Guide
    version: int
    """Updates done, stamped on each token."""
    step: int
    """Steps done, the unit of the schedule."""


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
    log: Callable[[int, Sequence[Chunk]], None] = lambda step, chunks: None,
) -> Collector[[Weights, Timer]]:
    """The experience of a run or of a stage of it, from its start, in turns with training.

    A step has `rollout.prompts` groups, sampled with its weights.

    Args:
      config: of the stage.
      policy: its tokenizer and the decoder's shape.
      task: of the stage.
      pool: scores completions.
      source: of problems.
      program: makes a group of one.
      room: tokens that the program adds to prompts, at most.
      open_engine: what decodes.
      log: called with the steps done and what each chunk of decoding did, once a step.
    """
    settings = config.rollout
    prompts, size = settings.prompts, settings.group_size
    ctx = context(settings, config.seed, policy, task)
    own_key = key(config.seed)
    in_flight = round(prompts * settings.in_flight)
    flight = Flight(Limits(prompts, None, in_flight, "finished"), size)
    adaptive, partial = settings.rounds == "adaptive", in_flight > prompts
    acceptance = sampling_rounds.Acceptance()

    def batch(advance: Callable[[OpenGroups], None], params: Params) -> tuple[int, ...]:
        """Numbers of the groups of a round: the first that are finished."""
        numbers = trained(flight.tell(Trained()) if flight.state.held else flight.join(0))
        numbers = numbers or trained(flight.finish())
        for action in flight.between_chunks():
            if isinstance(action, Admit):
                while (missing := len(action.numbers) - len(flight.open.waiting)) > 0:
                    count = prompts if partial else missing
                    flight.open.waiting += source.draw(count, params, flight.drawn())
                flight.admit(action.numbers)
        while not numbers:
            advance(flight.open)
            numbers = trained(flight.finish())
        return numbers

    def step(weights: Weights, timer: Timer) -> tuple[Experience, dict[str, float]]:
        nonlocal acceptance
        chunks: list[Chunk] = []
        actor = policy._replace(guide=weights.guide)
        setup = sampler_setup(actor, settings, config.sampler, own_key, room, **turns_of(ctx))
        kept_groups: list[Group] = []
        rest: list[Group] = []
        biases: list[float] = []
        state = curriculum.quota(prompts, oversampling=settings.oversampling)
        advance = functools.partial(
            drive.advance, program=program, ctx=ctx, pool=pool,
            version=weights.version, timer=timer, log=chunks.append,
        )  # fmt: skip
        while True:
            left = int(state.budget - state.sampled)
            round_size = sampling_rounds.size(acceptance, state) if adaptive else min(prompts, left)
            flight.limits = flight.limits._replace(
                groups_per_step=round_size, in_flight=in_flight if partial else round_size
            )

            def decode(groups: OpenGroups, enough: int = round_size) -> None:
                advance(groups, engine=open_engine(setup, weights.params), enough=enough)

            numbers = batch(decode, weights.params)
            biases.append(flight.length_bias(numbers) if partial else 0.0)
            groups = flight.take(numbers)
            rewards = np.array(
                [[programs.reward(r) for r in g.finished_rows[:size]] for g in groups]
            )
            source.learn([g.drawn for g in groups], rewards)
            state, keep, resample_count = curriculum.dynamic(state, rewards)
            kept_groups += [g for g, k in zip(groups, keep, strict=True) if k]
            rest += [g for g, k in zip(groups, keep, strict=True) if not k]
            if adaptive:
                acceptance = sampling_rounds.observe(acceptance, rewards, last=not resample_count)
            if not resample_count:
                metrics = {"prompts_sampled": float(state.sampled)}
                if adaptive:
                    metrics["rounds"] = float(len(biases))
                if partial:
                    metrics["length_bias"] = float(np.mean(biases))
                if config.sampler.most_drafted:
                    metrics |= draft_metrics(chunks)
                with timer("record"):
                    log(weights.step, chunks)
                return experience([*kept_groups, *rest][:prompts], size), metrics

    def get_state() -> dict[str, Any]:
        acceptance_state = {"acceptance": acceptance.lowest} if adaptive else {}
        return {"source": source.get_state(), **acceptance_state, **flight.get_state()}

    def set_state(state: dict[str, Any]) -> None:
        nonlocal acceptance
        acceptance = sampling_rounds.Acceptance(state.get("acceptance", 1.0))
        source.set_state(state["source"])
        flight.set_state(state)

    def abandon() -> None:
        for row in flight.abandon():
            pool.over(row)

    return Collector(step, get_state, set_state, abandon)


def draft_metrics(chunks: Sequence[Chunk]) -> dict[str, float]:
    """How well drafts served in some chunks.

    Returns:
      `drafts/accepted`, mean number of tokens accepted of a draft that is verified, 0 where none
      is; and `drafts/share`, the share of sampled tokens that they are.
    """
    accepted = sum(chunk.accepted for chunk in chunks)
    verified, tokens = (sum(c.verified for c in chunks), sum(c.tokens for c in chunks))
    return {
        "drafts/accepted": accepted / max(1, verified),
        "drafts/share": accepted / max(1, tokens),
    }


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
    drive.advance(
        open_groups, program, ctx,
        Local(setup, params), pool, enough=len(problems), version=version, timer=timer,
        log=lambda done: None,
    )  # fmt: skip
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
        guide=policy.guide, text=policy.tokenizer.decode if turns else None,
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
