"""A batch of scored completions, as one pytree for training and as metrics for the log."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec

import numpy as np

from jaxrl.config import Config
from jaxrl.data.selection import curriculum
from jaxrl.data.types import Problem, Score, count_errors
from jaxrl.mesh.buckets import round_up
from jaxrl.training import objective, packing
from jaxrl.training.turns import TOKENS
from jaxrl.types import Completion, Source, Trajectory


class Experience(NamedTuple):
    """N sampled and scored completions; sequence n answers problem n // group size."""

    problems: list[Problem]
    completions: list[Completion]
    texts: list[str]
    scores: list[Score]
    greedy: list[Score]
    """Scores of the greedy answer to each problem, if the objective needs them; else empty."""


StepInputs = ParamSpec("StepInputs")


class Collector(NamedTuple, Generic[StepInputs]):
    """The experience of a run or of a stage of it, step by step: sampled, or read from a file.

    A collector of rollouts samples a step with weights, and a stage's takes them from a train
    state; all else is the same.
    """

    step: Callable[StepInputs, tuple[Experience, dict[str, float]]]
    """The experience of the next step, and metrics of how it was sampled or read."""
    get_state: Callable[[], dict[str, Any]]
    """The position and what is in flight, for a checkpoint."""
    set_state: Callable[[dict[str, Any]], None]
    """Continues from what `get_state` gave."""
    abandon: Callable[[], None]
    """Discards what has been sampled for later steps, and closes its episodes."""


def to_trajectory(config: Config) -> Callable[[Experience], Trajectory]:
    """A function from experience to one host-side pytree, of a length that does not vary from step
    to step."""
    return functools.partial(
        _trajectory,
        bucket=config.packing.bucket,
        weighed=objective.parts_weighed(config.objective),
    )


def _trajectory(experience: Experience, *, bucket: int, weighed: tuple[str, ...]) -> Trajectory:
    """The experience as arrays; `weighed` names the parts of rewards that they have, see
    `objective.parts_weighed`."""
    group = len(experience.completions) // len(experience.problems)
    longest = max(len(c.request.prompt) + len(c.tokens) for c in experience.completions)
    batch = packing.trajectory(
        experience.completions,
        [score.value for score in experience.scores],
        [n // group for n in range(len(experience.completions))],
        length=round_up(longest, bucket),
    )
    parts = [_parts(score, bool(weighed)) for score in experience.scores]
    stopped = np.array([c.stopped for c in experience.completions])
    batch = batch.replace(reward_parts=packing.reward_parts(parts, weighed), stopped=stopped)
    if any(c.turn is not None for c in experience.completions):
        batch = batch.replace(extra=turns(experience.completions, batch.tokens.shape))
    if experience.greedy:
        # a baseline that is missing leaves the reward as it is
        greedy = np.array([score.value or 0.0 for score in experience.greedy], np.float32)
        batch = batch.replace(greedy_rewards=np.repeat(greedy, group))
    return batch


def _parts(score: Score, needed: bool) -> Mapping[str, float] | None:
    """The parts of a reward; None where there is none, as it failed or came too late.

    Where parts are needed, a reward without any is no such case: it has the parts `{}`.
    """
    if score.error:
        return None
    return score.parts or ({} if needed and not score.timed_out else None)


def reconcile_turn_rewards(before: Experience, after: Experience) -> Experience:
    """Add what changed in the rewards of episodes to the last turn of agent 0.

    So the rewards of its turns sum to the reward of the episode, as credit by turn needs.

    Args:
      before: as the environments scored it.
      after: the same completions with other scores.
    """
    if after.scores == before.scores:
        return after

    def shift_reward(completion: Completion, old: Score, new: Score) -> Completion:
        rewards = list(completion.turn_rewards)
        agents = completion.turn_agents or (0,) * len(rewards)
        if 0 not in agents or old.value is None or new.value is None:
            return completion
        rewards[len(agents) - 1 - agents[::-1].index(0)] += new.value - old.value
        return dataclasses.replace(completion, turn_rewards=tuple(rewards))

    rows = zip(after.completions, before.scores, after.scores, strict=True)
    return after._replace(completions=[shift_reward(*row) for row in rows])


def table(experience: Experience, count: int) -> list[dict[str, str | float | None]]:
    """At most `count` completions, evenly spread, as rows of a table for display."""
    total = len(experience.texts)
    group = max(1, total // max(1, len(experience.problems)))
    names = sorted({name for score in experience.scores for name in score.parts})
    rows = []
    row_count = min(count, total)
    for n in (i * total // row_count for i in range(row_count)):
        problem, score = experience.problems[n // group], experience.scores[n]
        rows.append(
            {
                "prompt": problem.prompt,
                "completion": experience.texts[n],
                "answer": "" if problem.answer is None else str(problem.answer),
                "reward": score.value,
                **{f"reward/{name}": score.parts.get(name) for name in names},
                "error": score.error or "",
            }
        )
    return rows


def parents(completions: Sequence[Completion], shape: tuple[int, ...]) -> np.ndarray:
    """The token that each token of N sequences continues, -1 for none; int32 of `shape`, [N, T].

    See `Completion.parent`.
    """
    parent = np.tile(np.arange(-1, shape[1] - 1, dtype=np.int32), (shape[0], 1))
    for n, c in enumerate(completions):
        if c.parent is not None:
            start = len(c.request.prompt)
            parent[n, start : start + len(c.tokens)] = c.parent
    return parent


def turns(completions: Sequence[Completion], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The turns of N episodes as arrays of `shape`, [N, T].

    Returns:
      turn: int32, the turn of each token of a response, from 1; 0 elsewhere.
      turn_rewards: float32, the reward of a turn at its last token, 0 elsewhere.
      agent: int32, who took the turn of each token of a response; 0 elsewhere.
      parent: int32, see `parents`.
      turn_state: int32, at each token of a turn a digest of what was read just before that turn
        (`Completion.turn_reads`), which names the state that it was taken in; 0 outside the
        response. A turn that takes the place of another, after the same tokens, was taken in the
        state of the other.

    Raises:
      ValueError: one of them is no episode.
    """
    turn, rewards = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    state, agent = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    parent = parents(completions, shape)
    for n, c in enumerate(completions):
        if c.turn is None:
            raise ValueError(f"row {n} has no turns, but others have; see `episodes.single`")
        start = len(c.request.prompt)
        turn[n, start : start + len(c.tokens)] = c.turn
        turn_masks = c.turn == np.arange(1, len(c.turn_rewards) + 1)[:, None]
        states = dict[int, int]()  # by the place of the token that the turn continues
        for k, value in enumerate(c.turn_rewards):
            positions = np.flatnonzero(turn_masks[k])
            rewards[n, start + int(positions[-1])] = value
            digest = c.turn_reads[k] if c.turn_reads else _read(c, turn_masks[k] if k else None)
            first = np.flatnonzero(turn_masks[k] & c.actions)[:1]
            before = int(parent[n, start + (first if len(first) else positions)[0]])
            digest = states.setdefault(before, digest)
            state[n, start + positions] = np.uint32(digest).astype(np.int32)
            agent[n, start + positions] = c.turn_agents[k] if c.turn_agents else 0
    return dict(zip(TOKENS, (turn, rewards, state, agent), strict=True)) | {"parent": parent}


def _read(completion: Completion, turn: np.ndarray | None) -> int:
    """A digest of the tokens that are read before a turn, those of the prompt before the first.

    Args:
      completion: an episode.
      turn: bool, its tokens of the turn; None: the first turn.
    """
    observed = completion.source == Source.OBSERVATION
    read = completion.request.prompt if turn is None else completion.tokens[turn & observed]
    return zlib.crc32(np.asarray(read, np.int32).tobytes())


def rewards_by_group(experience: Experience) -> np.ndarray:
    """Rewards [P, G] of P problems; nan is a failed score."""
    values = [np.nan if s.value is None else s.value for s in experience.scores]
    return np.array(values, np.float64).reshape(len(experience.problems), -1)


def measure(experience: Experience) -> dict[str, float]:
    """Rewards, lengths and failures of a batch, for the log."""
    by_group = rewards_by_group(experience)
    rewards = by_group[~np.isnan(by_group)]
    lengths = np.array([len(c.tokens) for c in experience.completions])
    stopped = np.array([c.stopped for c in experience.completions])
    void = _void(experience)
    counted = ~void | void.all()
    parts: dict[str, list[float]] = {}
    for score in experience.scores:
        for name, value in score.parts.items():
            parts.setdefault(name, []).append(value)
    return {
        "reward/mean": float(rewards.mean()) if len(rewards) else float("nan"),
        "reward/std": float(rewards.std()) if len(rewards) else float("nan"),
        "reward/errors": float(sum(count_errors(experience.scores).values())),
        "reward/timeouts": float(sum(score.timed_out for score in experience.scores)),
        "reward/zero_variance_groups": float(np.mean(~curriculum.informative(by_group))),
        **{f"reward/{name}": float(np.mean(values)) for name, values in parts.items()},
        "completion_length": float(lengths[counted].mean()),
        "completion_length_max": float(lengths[counted].max()),
        "truncated": float(np.mean(~stopped[counted])),
        "tokens": float(lengths.sum()),
        **_episodes(experience, void),
        **_by_domain(experience.problems, by_group, lengths.reshape(by_group.shape)),
    }


def _void(experience: Experience) -> np.ndarray:
    """[N] bool: episodes that ended with an error, which are in no other figure of episodes."""
    return np.array([
        c.turn is not None and score.error is not None
        for c, score in zip(experience.completions, experience.scores, strict=True)
    ])  # fmt: skip


def _episodes(experience: Experience, void: np.ndarray) -> dict[str, float]:
    """Metrics of a batch's episodes: how many are void, and turns and tool calls of the others."""
    episodes = [c for c in experience.completions if c.turn is not None]
    if not episodes:
        return {}
    pairs = zip(experience.completions, void, strict=True)
    played = [c for c, lost in pairs if c.turn is not None and not lost] or episodes
    return {
        "episode/turns": float(np.mean([len(c.turn_rewards) for c in played])),
        "episode/tool_calls": float(np.mean([c.tool_calls for c in played])),
        "episode/errors": float(void.sum()),
    }


def _by_domain(
    problems: Sequence[Problem], rewards: np.ndarray, lengths: np.ndarray
) -> dict[str, float]:
    """Share and mean reward of each domain in a batch; rewards, lengths are [P, G]."""
    domains = np.array([problem.domain for problem in problems])
    out: dict[str, float] = {}
    for name in np.unique(domains) if len(set(domains)) > 1 else ():
        mask = domains == name
        scored = rewards[mask][~np.isnan(rewards[mask])]
        out[f"domain/{name}/share"] = float(mask.mean())
        out[f"domain/{name}/reward"] = float(scored.mean()) if len(scored) else float("nan")
        out[f"domain/{name}/completion_length"] = float(lengths[mask].mean())
    return out
