"""Chooses the prompts of a step: from the plain stream, by a curriculum, or from several domains.

A `Source` is where prompts come from, and a mixture is a source made of sources. Its state is a
small JSON value that names the source. A source ignores the state of another one, as after a stage
or a fork that changes the task, and begins at its start.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxrl import functions
from jaxrl.config import BanditConfig, Config, CurriculumConfig
from jaxrl.data.selection import bandits, curriculum
from jaxrl.data.sources import generate, stream
from jaxrl.data.types import Problem, Task
from jaxrl.rollout import history, policy, prompt_signals
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.rollout_log import HistoryLog
from jaxrl.types import Params

_GIVEN = {"state", "ranks", "count", "allowed", "accuracy", "concentration", "closeness"}

Keep = Callable[[Problem], bool] | None
Signal = Callable[[Params, Sequence[Problem]], np.ndarray]
"""Of N problems under parameters, [N] float64."""


class Drawn(NamedTuple):
    """A problem drawn from a source."""

    problem: Problem
    ticket: Any = None
    """Names the problem to its source, for `Source.learn`; JSON-able."""


class Draw(Protocol):
    """The next `count` problems; `params` are the sampler's, of the policy that will answer."""

    def __call__(
        self, count: int, params: Params, in_flight: Sequence[Drawn] = (), /
    ) -> list[Drawn]:
        """Prompts in flight, which were drawn and not yet learned from, count as visited."""


class Source(NamedTuple):
    """Where a run's prompts come from."""

    draw: Draw
    learn: Callable[[Sequence[Drawn], np.ndarray], None]
    """Receives the rewards [P, G] of P problems that were drawn; nan is a failed score."""
    get_state: Callable[[], dict[str, Any]]
    """The position, JSON-able, for a checkpoint."""
    set_state: Callable[[dict[str, Any]], None]


def check(config: Config) -> None:
    """Refuse a curriculum or a mixture that does not exist, or that cannot fill a batch.

    Raises:
      ValueError: naming the field.
    """
    by_field = {"curriculum": config.curriculum} | {
        f"domains.{name}.curriculum": domain.curriculum for name, domain in config.domains.items()
    }
    largest = config.rollout.prompts
    batch = f"rollout.prompts={largest}"
    if config.rollout.rounds == "adaptive":  # whose first round may be the whole budget
        largest = int(curriculum.quota(largest, oversampling=config.rollout.oversampling).budget)
        batch = f"{batch} times rollout.oversampling={config.rollout.oversampling}"
    for field, settings in by_field.items():
        _check_curriculum(field, settings, largest, batch)
    if config.domains and config.curriculum != CurriculumConfig():
        raise ValueError(
            "curriculum is for a run of one task; with domains, set --domains.NAME.curriculum of "
            "each, or leave --domain-column out"
        )
    budget = config.rollout.max_new_tokens
    for name, domain in config.domains.items():
        if domain.max_new_tokens > budget:
            raise ValueError(
                f"domains.{name}.max_new_tokens={domain.max_new_tokens} exceeds "
                f"rollout.max_new_tokens={budget}; raise the latter"
            )
    if config.bandit != BanditConfig() and not config.domains:
        raise ValueError(f"bandit={config.bandit} needs domains to weigh")
    if config.bandit.weigh:
        functions.resolve(config.bandit.weigh, config.bandit.args, {"state"})


def _check_curriculum(field: str, config: CurriculumConfig, size: int, batch: str) -> None:
    if config.history:
        functions.resolve(config.score, {}, {"state"})
    if not config.choose:
        if config.retain < 1:
            raise ValueError(
                f"{field}.retain={config.retain} needs {field}.choose, "
                "e.g. jaxrl.data.selection.curriculum:uniform"
            )
        return
    functions.resolve(config.choose, config.args, _GIVEN)
    name, value = ("keep", config.keep) if config.history else ("prompts", config.prompts)
    if value < size:
        raise ValueError(
            f"{field}.{name}={value} cannot fill a batch of {batch}; raise the one or lower the "
            "other"
        )
    if not 0 < config.retain <= 1 or config.retain_every < 1:
        raise ValueError(
            f"{field}.retain={config.retain}, retain_every={config.retain_every}: a share in "
            "(0, 1], and a positive number of batches"
        )


def open_source(config: Config, task: Task, actor: Policy) -> Source:
    """The prompts of a run, from their start.

    Args:
      config: of the run.
      task: its task; with domains, the mixture of them.
      actor: measures prompts, where the curriculum asks for it.
    """

    def leaf(settings: CurriculumConfig, task: Task) -> Source:
        seed = config.seed
        keep = policy.keeps(actor.tokenizer, config.rollout, task)
        origin = {"task": task.name, "params": dict(task.params), "seed": seed}
        origin["longest"] = config.rollout.max_prompt_tokens if keep else None
        if settings.history:
            task, seed = history.best(settings, task)
            origin |= {"history": settings.history, "score": settings.score, "keep": settings.keep}
        origin = json.loads(json.dumps(origin))  # as it will be when it is read from a checkpoint
        if settings.choose:
            arguments = (actor, config.rollout, task)
            return chosen(
                settings, task, origin, seed=seed, keep=keep,
                measure=functools.partial(prompt_signals.concentrations, *arguments),
                closeness=functools.partial(prompt_signals.closeness, *arguments),
                solution_fits=functools.partial(prompt_signals.fits, *arguments),
            )  # fmt: skip
        return ordered(task, origin, seed=seed, keep=keep)

    if not config.domains:
        return leaf(config.curriculum, task)
    parts = {name: leaf(d.curriculum, task.parts[name]) for name, d in config.domains.items()}
    weights = {name: domain.weight for name, domain in config.domains.items()}
    if config.bandit.history:
        factors = history.weaknesses(config.bandit.history, list(parts))
        weights = {n: w * f for (n, w), f in zip(weights.items(), factors, strict=True)}
    return mixed(parts, weights, config.bandit, config.seed)


def ordered(task: Task, of: dict[str, Any], *, seed: int, keep: Keep = None) -> Source:
    """The train split as it comes, see `data.stream.prompts`; `of` names what its state is of."""
    problems = stream.prompts(task, split="train", seed=seed, batch_size=1, keep=keep)
    data = stream.fingerprint(task)

    def set_state(saved: dict[str, Any]) -> None:
        if saved["of"] == of:
            problems.set_state(saved["position"])
            if saved.get("data", data) != data:
                warnings.warn(
                    f"the data of task {task.name!r} have changed since this state was saved: its "
                    "position is kept, but the problems from here on are other ones",
                    stacklevel=2,
                )

    return Source(
        lambda count, params, in_flight=(): [Drawn(next(problems)[0]) for _ in range(count)],
        lambda samples, rewards: None,
        lambda: {"of": of, "position": problems.get_state(), "data": data},
        set_state,
    )


class CurriculumState(NamedTuple):
    """State of a curriculum over N prompts, apart from the rewards of each."""

    allowed: np.ndarray
    """[N] bool: which may still be chosen."""
    batches: np.int64
    """scalar int64: drawn so far."""
    last: np.ndarray
    """[P] int64: prompts of the last batch."""
    accuracy: np.float64
    """scalar float64: mean reward of the last batch; nan before."""
    signal: np.ndarray
    """[N] float64: angle signal of each prompt, or closeness of its solution, before training; nan
    where none is needed. A prompt that may not be chosen is not measured, and lower than all."""


def chosen(
    config: CurriculumConfig,
    task: Task,
    of: dict[str, Any],
    *,
    seed: int,
    keep: Keep = None,
    solution_fits: Keep = None,
    measure: Signal,
    closeness: Signal,
) -> Source:
    """Prompts chosen among the first of the train split by the function `config.choose`.

    Args:
      config: the curriculum.
      task: makes the problems.
      of: says what the state is the state of.
      seed: of the problems and of random choices.
      keep: problems that may be chosen; None: all.
      solution_fits: problems whose solution can be measured; a function that goes by `closeness`
        chooses among them alone; None: all.
      measure: angle signals, for a function that goes by `ranks`.
      closeness: what solutions are worth, for a function that goes by `closeness`.

    Raises:
      ValueError: no problem may be chosen.
    """
    function = functions.resolve(config.choose, config.args, _GIVEN)
    by_rank = functions.takes(function, "ranks")
    by_closeness = functions.takes(function, "closeness")
    size = min(config.prompts, task.sizes.get("train", config.prompts))
    of = of | {"prompts": size, "window": config.window}

    def problems(ids: Iterable[int]) -> list[Problem]:
        return [task.problem("train", seed, int(i)) for i in ids]

    eligible = [
        (keep is None or keep(problem))
        and (not by_closeness or solution_fits is None or solution_fits(problem))
        for problem in problems(range(size))
    ]
    if not any(eligible):
        raise ValueError(
            f"none of the first {size} problems of task {task.name!r} fits; raise "
            "rollout.max_prompt_tokens or rollout.max_new_tokens"
        )
    state = curriculum.start(size, window=config.window, seed=seed)
    ranks = bandits.rank(np.zeros(size), seed=seed)
    progress = CurriculumState(
        np.array(eligible),
        np.int64(0),
        np.zeros(0, np.int64),
        np.float64("nan"),
        np.full(size, np.nan),
    )

    def measure_allowed(signal: Signal, params: Params) -> np.ndarray:
        signal_values = signal(params, problems(np.flatnonzero(progress.allowed)))
        out = np.full(size, signal_values.min() - 1)
        out[progress.allowed] = signal_values
        return out

    def draw(count: int, params: Params, in_flight: Sequence[Drawn] = ()) -> list[Drawn]:
        nonlocal state, ranks, progress
        in_flight_ids = [d.ticket for d in in_flight if d.ticket < size]  # others: of a longer file
        in_flight_counts = np.bincount(np.array(in_flight_ids, np.int64), minlength=size)
        angle_change = 0.0
        if by_rank and np.isnan(progress.signal).any():
            progress = progress._replace(signal=measure_allowed(measure, params))
            ranks = bandits.rank(progress.signal, seed=seed)
        elif by_closeness and np.isnan(progress.signal).any():
            progress = progress._replace(signal=measure_allowed(closeness, params))
        elif by_rank:
            signal = measure(params, problems(progress.last))
            angle_change = float(np.mean(signal - progress.signal[progress.last]))
        if config.retain < 1 and progress.batches and not progress.batches % config.retain_every:
            progress = progress._replace(allowed=_retained(config, state, progress, count))
        arguments = {
            "state": state._replace(visits=state.visits + in_flight_counts),
            "ranks": ranks,
            "count": count,
            "allowed": progress.allowed,
            "accuracy": float(progress.accuracy),
            "concentration": angle_change,
            "closeness": progress.signal,
        }
        after, ids = functions.call(function, config.args, arguments)
        if len(ids) < count:
            raise ValueError(
                f"{config.choose} has {len(ids)} prompts left for a batch of {count}; raise "
                "curriculum.prompts, or choose another function"
            )
        if by_rank:
            ranks = after
        else:
            state = after._replace(visits=np.maximum(after.visits - in_flight_counts, 0))
        progress = progress._replace(batches=progress.batches + 1, last=np.asarray(ids))
        return [Drawn(p, int(i)) for p, i in zip(problems(ids), ids, strict=True)]

    def learn(samples: Sequence[Drawn], rewards: np.ndarray) -> None:
        nonlocal state, progress
        ids = np.array([sample.ticket for sample in samples], np.int64)
        # groups that were drawn at several times may be of one prompt
        before = np.array([np.count_nonzero(ids[:n] == ids[n]) for n in range(len(ids))])
        for nth in range(before.max(initial=-1) + 1):
            state = curriculum.record(state, ids[before == nth], rewards[before == nth])
        scored = rewards[~np.isnan(rewards)]
        if len(scored):
            progress = progress._replace(accuracy=np.float64(scored.mean()))

    def get_state() -> dict[str, Any]:
        states = {"state": state, "ranks": ranks, "course": progress}
        return {"of": of} | {name: curriculum.to_json(v) for name, v in states.items()}

    def set_state(saved: dict[str, Any]) -> None:
        nonlocal state, ranks, progress
        if saved["of"] == of:
            state = curriculum.from_json(curriculum.Prompts, saved["state"])
            ranks = curriculum.from_json(bandits.Ranks, saved["ranks"])
            progress = curriculum.from_json(CurriculumState, saved["course"])

    return Source(draw, learn, get_state, set_state)


def _retained(
    config: CurriculumConfig,
    state: curriculum.Prompts,
    progress: CurriculumState,
    count: int,
) -> np.ndarray:
    """[N] bool: the hardest share of the allowed prompts, if these are enough for a batch."""
    size = max(count, int(config.retain * progress.allowed.sum()))
    _, ids = curriculum.hardest_retained(state, size, progress.allowed)
    return np.isin(np.arange(len(progress.allowed)), ids) if len(ids) >= count else progress.allowed


def mixed(
    parts: Mapping[str, Source], weights: Mapping[str, float], config: BanditConfig, seed: int
) -> Source:
    """Prompts of several sources, mixed by weights or by a bandit.

    Each part gets its expected number of a batch, rounded up or down, and the batch is shuffled.
    """
    names = list(parts)
    state = bandits.start(len(names), window=config.window, seed=seed)
    base = np.array([weights[name] for name in names])

    def draw(count: int, params: Params, in_flight: Sequence[Drawn] = ()) -> list[Drawn]:
        nonlocal state
        share = base
        if config.weigh:
            weigh = functions.resolve(config.weigh, config.args, {"state"})
            share = base * weigh(state, **config.args)
        places = generate.rng("mixed", seed, int(state.draws))
        state, counts = bandits.split(state, share, count)
        order = [d for d, n in counts.items() for _ in range(n)]
        places.shuffle(order)
        in_flight_parts = {d: _of_part(in_flight, d) for d in counts}
        batches = {
            d: iter(parts[names[d]].draw(n, params, in_flight_parts[d])) for d, n in counts.items()
        }
        return [
            Drawn(sample.problem, [int(d), sample.ticket])
            for d in order
            for sample in [next(batches[d])]
        ]

    def learn(samples: Sequence[Drawn], rewards: np.ndarray) -> None:
        nonlocal state
        group_domains = np.array([sample.ticket[0] for sample in samples])
        for d in np.unique(group_domains).tolist():
            parts[names[d]].learn(_of_part(samples, d), rewards[group_domains == d])
        signal = rewards if config.signal == "reward" else _advantages(rewards)
        domains = np.repeat(group_domains, rewards.shape[1])
        state = bandits.observe(state, domains, signal.reshape(-1), rate=config.rate)

    def get_state() -> dict[str, Any]:
        positions = {name: part.get_state() for name, part in parts.items()}
        return {"of": names, "domains": curriculum.to_json(state), "parts": positions}

    def set_state(saved: dict[str, Any]) -> None:
        nonlocal state
        if saved["of"] == names:
            state = curriculum.from_json(bandits.Domains, saved["domains"])
        for name in parts.keys() & saved.get("parts", {}).keys():
            parts[name].set_state(saved["parts"][name])

    return Source(draw, learn, get_state, set_state)


def _of_part(samples: Sequence[Drawn], part: int) -> list[Drawn]:
    """What a part of a mixture has drawn, with the part's own tickets."""
    return [
        sample._replace(ticket=sample.ticket[1]) for sample in samples if sample.ticket[0] == part
    ]


def recorded(source: Source, recorder: HistoryLog) -> Source:
    """The source, with all that it learns written to the run's history."""

    def learn(samples: Sequence[Drawn], rewards: np.ndarray) -> None:
        recorder.add([sample.problem for sample in samples], rewards)
        source.learn(samples, rewards)

    def set_state(saved: dict[str, Any]) -> None:
        recorder.back_to(saved["batches"])
        source.set_state(saved)

    return Source(
        source.draw, learn, lambda: source.get_state() | {"batches": recorder.batches}, set_state
    )


def _advantages(rewards: np.ndarray) -> np.ndarray:
    """[P, G]: |r - mean| / std of each group; 0 where all agree, nan for a failed score."""
    mask = ~np.isnan(rewards)
    count = np.maximum(mask.sum(axis=1, keepdims=True), 1)
    gap = rewards - np.where(mask, rewards, 0.0).sum(axis=1, keepdims=True) / count
    deviation = np.sqrt(np.where(mask, gap**2, 0.0).sum(axis=1, keepdims=True) / count)
    return np.abs(gap) / np.where(deviation > 0, deviation, 1.0)
