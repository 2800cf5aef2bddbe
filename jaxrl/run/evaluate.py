"""Held-out evaluation: pass@1, pass@k without bias, majority vote, with confidence intervals."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from jaxrl.config import RolloutConfig
from jaxrl.data.scoring.pool import Pool
from jaxrl.data.types import Problem, Task
from jaxrl.mesh import distributed
from jaxrl.record import jsonl, storage
from jaxrl.record.metrics import Timer
from jaxrl.rollout import episodes, rollout_log
from jaxrl.rollout.collect import collect
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.programs import Program
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.types import Params

_TRIES = 16
_FIRST_ID = 1 << 31  # streams of evaluation and of training never meet


def problems(
    task: Task,
    split: str,
    count: int,
    seed: int = 0,
    keep: Callable[[Problem], bool] | None = None,
) -> list[Problem]:
    """The first `count` problems of a split that are kept, the same for every run.

    Of a split without end, as many problems as `_TRIES` for each of them are looked at.
    """
    available = task.sizes.get(split, count * _TRIES)
    every = (task.problem(split, seed, i) for i in range(available))
    return list(itertools.islice(filter(keep, every) if keep else every, count))


def evaluate(
    policy: Policy,
    params: Params,
    held_out: Sequence[Problem],
    task: Task,
    pool: Pool,
    rollout: RolloutConfig,
    sampling: SamplerConfig,
    *,
    k: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    program: Program = episodes.group,
) -> tuple[dict[str, float], Experience]:
    """Sample `k` completions of every problem and score them.

    Args:
      policy: the tokenizer and the decoder's shape.
      params: the sampler's form of the parameters.
      held_out: the problems.
      task: makes and scores them.
      pool: scores completions.
      rollout: prompt form, budgets and, unless greedy, truncation.
      sampling: memory layout of the sampler.
      k: completions a problem.
      temperature: 0 is greedy.
      seed: of the sampling.
      program: makes a group.

    Returns:
      The figures of `figures`, and the completions themselves.
    """
    rollout = dataclasses.replace(rollout, group_size=k, temperature=temperature, support="full")
    if not temperature:
        rollout = dataclasses.replace(rollout, top_k=0, top_p=1.0, min_p=0.0)
    experience = collect(
        policy,
        params,
        held_out,
        task,
        pool,
        rollout,
        sampling,
        key=jax.random.key(seed),
        first_id=_FIRST_ID,
        version=0,
        timer=Timer(),
        program=program,
    )
    return figures(experience, k, answers(experience, policy.tokenizer.decode)), experience


def answers(experience: Experience, decode: rollout_log.Decode) -> list[str | None]:
    """What each completion votes for: its text, or the policy's last turn of an episode.

    None: the episode was cut off, or is void, so that its last turn is no answer.
    """
    votes: list[str | None] = []
    for n, c in enumerate(experience.completions):
        if c.turn is None:
            votes.append(experience.texts[n].strip())
        elif experience.scores[n].error is not None or not c.stopped:
            votes.append(None)
        else:
            mask = c.actions & (c.turn == len(c.turn_rewards))
            votes.append(decode(c.tokens[mask].tolist()).strip())
    return votes


def figures(experience: Experience, k: int, votes: Sequence[str | None]) -> dict[str, float]:
    """pass@1, pass@k and maj@k with 95% intervals from 2000 bootstrap draws over problems.

    Args:
      experience: P problems and P * k completions.
      k: completions a problem.
      votes: of the completions, for maj@k: the first that gives the most frequent answer counts.

    Where problems are of several domains, each figure is also given by domain. A completion
    passes with a reward of 1 or more. One whose scoring failed counts as not passed,
    and is counted in `errors`: an evaluation must not gain from failures of its scorer.
    """
    passed = np.array([(s.value or 0.0) >= 1.0 for s in experience.scores]).reshape(-1, k)
    per_problem = {"pass@1": passed.mean(axis=1)}
    if k > 1:
        per_problem[f"pass@{k}"] = pass_at_k(passed.sum(axis=1), k, k)
        chosen = [_majority(votes[i : i + k]) for i in range(0, passed.size, k)]
        per_problem[f"maj@{k}"] = passed[np.arange(len(passed)), chosen].astype(float)
    out: dict[str, float] = {}
    draws = np.random.default_rng(0).integers(len(passed), size=(2000, len(passed)))
    for name, values in per_problem.items():
        low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
        out |= {name: float(values.mean()), f"{name}/low": float(low), f"{name}/high": float(high)}
    domains = np.array([problem.domain for problem in experience.problems])
    if len(set(domains)) > 1:
        for figure, name in itertools.product(list(per_problem), np.unique(domains)):
            out[f"{figure}/{name}"] = float(per_problem[figure][domains == name].mean())
    lengths = [len(c.tokens) for c in experience.completions]
    return out | {
        "reward": float(np.mean([s.value for s in experience.scores if s.value is not None] or 0)),
        "errors": float(sum(s.error is not None for s in experience.scores)),
        "timeouts": float(sum(s.timed_out for s in experience.scores)),
        "completion_length": float(np.mean(lengths)),
        "problems": float(len(passed)),
    }


def save(directory: Path, step: int, experience: Experience, decode: rollout_log.Decode) -> None:
    """Write the completions of an evaluation to `evals/STEP.jsonl`, one object a line.

    They are as those of `jaxrl.rollout.rollout_log`, without what only training knows of a token.
    Greedy tokens have their log-probabilities and entropies under temperature 1.
    """
    if not distributed.first():
        return
    path = directory / "evals" / f"{step:06d}.jsonl"
    storage.make_inside(path.parent)
    count = len(experience.completions)
    rows = (rollout_log.sampled(experience, n, decode) for n in range(count))
    jsonl.write(path, rows)


def pass_at_k(correct: np.ndarray, n: int, k: int) -> np.ndarray:
    """Unbiased pass@k of each problem (Chen et al. 2021): `1 - C(n - c, k) / C(n, k)`.

    Args:
      correct: [P] int, how many of the `n` samples passed.
      n: samples a problem.
      k: at most n.
    """
    # Product form: no overflow, and exactly 1 where fewer than k samples failed.
    i = np.arange(k)
    factors = (n - correct[:, None] - i) / (n - i)
    return 1.0 - np.prod(np.maximum(factors, 0.0), axis=1)


def _majority(votes: Sequence[str | None]) -> int:
    """Index of the first completion that gives the most frequent answer; 0 if none gives any."""
    counts = Counter(vote for vote in votes if vote is not None)
    return votes.index(counts.most_common(1)[0][0]) if counts else 0
