"""What a run writes of its rollouts: sampled groups token by token, and rewards prompt by prompt.

`HistoryLog` writes the latter. A line of `RUN/rollouts/STEP.jsonl` is one completion; its lists
have one entry a token:

    {"step": 10, "group": 0, "problem": "arithmetic/1+2", "prompt": "1+2=", "answer": "3",
     "completion": "3", "reward": 1.0, "parts": {"correct": 1.0}, "error": null, "stopped": true,
     "tokens": ["3", ""], "logp": [-0.2, -0.01], "entropy": [0.7, 0.1], "version": [9, 9],
     "source": ["policy", "policy"], "advantage": [0.5, 0.5], "log_ratio": [0.02, 0.0]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config import Config
from jaxrl.data.types import Problem
from jaxrl.mesh import distributed, mesh
from jaxrl.record import jsonl, storage
from jaxrl.rollout.experience import Experience
from jaxrl.training import objective, packing
from jaxrl.types import Completion, Source, TrainState, Trajectory

Record = Callable[[int, Experience, Trajectory, TrainState], None]
Decode = Callable[[Sequence[int]], str]


def recorder(
    directory: Path,
    config: Config,
    decode: Decode,
    score: Callable[[TrainState, Trajectory], jax.Array],
) -> Record:
    """What a loop calls after the updates of a step.

    Args:
      directory: of the run.
      config: its `rollout_log` says which steps, and how many groups of each, are kept.
      decode: ids to text.
      score: `(state, batch) -> logp [N, T]`; called at the steps that are kept alone.

    Returns:
      `record(step, experience, batch, state)`: the step's experience, the batch that begins with
      it, and the state after its updates.
    """
    keep = config.rollout_log

    @jax.jit
    def advantages(part: Trajectory, step: jax.Array) -> jax.Array:
        budget = config.rollout.max_new_tokens
        batch = objective.whole_batch(config.objective, part, budget, step=step)
        return jnp.broadcast_to(batch.advantages, part.tokens.shape)

    def trained_on(batch: Trajectory, sequence_count: int, after: int) -> np.ndarray:
        """[sequence_count, T]: advantages in the update that each sequence of the step was in."""
        count = config.updates_per_batch
        parts = packing.shares(batch, count)
        update_advantages = [
            mesh.fetch(advantages(part.replace(support=None), after - count + i))
            for i, part in enumerate(parts)
        ]
        return np.concatenate([part[: sequence_count // count] for part in update_advantages])

    def record(step: int, experience: Experience, batch: Trajectory, state: TrainState) -> None:
        if not keep.every or (step % keep.every and step not in (1, config.steps)):
            return
        batch = mesh.fetch(batch)
        advantage = trained_on(batch, len(experience.completions), int(state.step))
        logp = mesh.fetch(score(state, batch))
        if not distributed.first():
            return
        log_rows = rows(step, experience, batch, advantage, logp, decode, groups=keep.groups)
        path = directory / "rollouts" / f"{step:06d}.jsonl"
        storage.make_inside(path.parent)
        jsonl.write(path, log_rows)

    return record


def rows(
    step: int,
    experience: Experience,
    batch: Trajectory,
    advantage: np.ndarray,
    logp: np.ndarray,
    decode: Decode,
    *,
    groups: int,
) -> Iterator[dict[str, Any]]:
    """The first groups of a batch, a completion a row, as JSON-able values.

    Args:
      step: the training step.
      experience: the completions.
      batch: N sequences of T tokens, on the host; the first are the experience.
      advantage: [N, T] or of the experience's sequences alone.
      logp: [N, T], nats, under the parameters after the step's updates. `log_ratio` is this minus
        the sampler's log-probability: how far the updates, and any staleness before them, moved the
        policy on this token.
      decode: ids to text.
      groups: how many to take.
    """
    size = len(experience.completions) // len(experience.problems)
    for n in range(min(groups * size, len(experience.completions))):
        completion = experience.completions[n]
        start = len(completion.request.prompt)
        span = slice(start, start + len(completion.tokens))
        chosen = batch.action_mask[n, span]
        ratio = np.where(chosen, logp[n, span] - batch.behavior_logp[n, span], 0.0)
        yield {
            "step": step,
            "group": n // size,
            **sampled(experience, n, decode),
            "version": completion.version.tolist(),
            "advantage": _rounded(np.where(chosen, advantage[n, span], 0.0)),
            "log_ratio": _rounded(ratio),
        }


_NAMES = {
    Source.POLICY: "policy",
    Source.FORCED: "forced",
    Source.OBSERVATION: "tool",
    Source.EXPERT: "expert",
}


def sources(completion: Completion) -> list[str]:
    """Who wrote each token, in words."""
    if completion.source is None:
        return ["policy"] * len(completion.tokens)
    return [_NAMES[Source(mark)] for mark in completion.source]


def sampled(experience: Experience, n: int, decode: Decode) -> dict[str, Any]:
    """The fields of the n-th completion that are known once it is sampled and scored."""
    completion, score = experience.completions[n], experience.scores[n]
    problem = experience.problems[n * len(experience.problems) // len(experience.completions)]
    return {
        "problem": problem.id,
        "prompt": problem.prompt,
        "answer": str(problem.answer),
        "completion": experience.texts[n],
        "reward": score.value,
        "parts": dict(score.parts),
        **({"texts": dict(score.texts)} if score.texts else {}),
        "error": score.error,
        "stopped": completion.stopped,
        "tokens": pieces(decode, completion.tokens.tolist()),
        "logp": _rounded(completion.logp),
        "entropy": _rounded(completion.entropy),
        "source": sources(completion),
        **_support_sizes(completion),
        **_turns(completion),
    }


def _support_sizes(completion: Completion) -> dict[str, Any]:
    """Among how many tokens each was drawn, where that was recorded; 0: among all, or not drawn."""
    if completion.support is None:
        return {}
    return {"kept": np.bitwise_count(completion.support).sum(axis=1).tolist()}


def _turns(completion: Completion) -> dict[str, Any]:
    """Of an episode: the turn of each token, the turns' rewards, and how many tools were called."""
    if completion.turn is None:
        return {}
    return {
        "turn": completion.turn.tolist(),
        "turn_rewards": list(completion.turn_rewards),
        **({"turn_agents": list(completion.turn_agents)} if completion.turn_agents else {}),
        "tool_calls": completion.tool_calls,
        **({} if completion.parent is None else {"parent": completion.parent.tolist()}),
    }


def pieces(decode: Decode, tokens: Sequence[int]) -> list[str]:
    """The text that each token adds; together they are `decode(tokens)`.

    A token that ends inside a character adds no text; the token that completes the character adds
    all of it. Each token is decoded together with some tokens before it, from the last complete
    character but one on, since some tokenizers drop a space at the start of a text.
    """
    out: list[str] = []
    before = end = 0  # text up to `end` is out; it was decoded from `before` on
    for i in range(len(tokens)):
        prefix = decode(tokens[before:end])
        text = decode(tokens[before : i + 1])
        if text.endswith("�") and i + 1 < len(tokens):
            out.append("")
        else:
            out.append(text[len(prefix) :])
            before, end = end, i + 1
    return out


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


class HistoryLog:
    """The rewards of each prompt through a run, `RUN/history.jsonl`, a batch of prompts a line.

    As in `{"batch": 3, "problems": ["arithmetic/1+2", ...], "domains": [...], "rewards": [0.25,
    ...]}`, rewards being means over a prompt's completions, null where every score of it failed.
    Batches that a restored run will repeat are dropped. With several processes, the first alone
    writes.
    """

    def __init__(
        self, directory: Path, note: Callable[[str], None], *, forked: bool = False
    ) -> None:
        """Args: the run's directory, what is called with warnings, and whether the run began amid
        another, which has the first batches."""
        self._path, self._note, self.batches = directory / "history.jsonl", note, 0
        self._forked = forked

    def add(self, problems: Iterable[Problem], rewards: np.ndarray) -> None:
        """Record a batch of P problems and their rewards [P, G]."""
        mask = ~np.isnan(rewards)
        total = np.where(mask, rewards, 0.0).sum(axis=1)
        means = np.where(mask.any(axis=1), total / np.maximum(mask.sum(axis=1), 1), np.nan)
        if self.batches == 0:
            self.back_to(0)
        row = {
            "batch": self.batches,
            "problems": [problem.id for problem in problems],
            "domains": [problem.domain for problem in problems],
            "rewards": [None if np.isnan(m) else round(float(m), 6) for m in means],
        }
        self.batches += 1
        if distributed.first():
            self._log.add(row)

    def back_to(self, batches: int) -> None:
        """Drop all but the first `batches` batches."""
        self.batches = batches
        if not distributed.first():
            return
        present: set[int] = set()

        def keep(row: dict[str, Any]) -> bool:
            if row["batch"] < batches:
                present.add(row["batch"])
            return row["batch"] < batches

        self._log = jsonl.Log(self._path, self._note, keep)
        start = min(present, default=batches) if self._forked else 0
        jsonl.tell_missing(self._path, present, range(start, batches), "batches", self._note)
