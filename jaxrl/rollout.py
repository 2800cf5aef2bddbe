"""One batch of experience: prompts, sampled groups, scores. Scoring runs while decoding goes on."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import jax
import numpy as np

from data import curriculum, tokenizers
from data.scoring import Pool
from data.types import Problem, Score, Task, count_errors
from jaxrl import chunks, distributed, packing, sampler
from jaxrl.buckets import round_up
from jaxrl.config import Config, RolloutConfig
from jaxrl.metrics import Timer
from jaxrl.policy import Policy, encode_prompt
from jaxrl.requests import for_training
from jaxrl.types import Completion, Params, Request, Source, Trajectory


class Experience(NamedTuple):
    """N sampled and scored completions; sequence n answers problem n // group size."""

    problems: list[Problem]
    completions: list[Completion]
    texts: list[str]
    scores: list[Score]
    greedy: list[Score]
    """Of the greedy answer to each problem, where the objective asks for it; else empty."""


class Row(NamedTuple):
    """One sampled and scored completion."""

    completion: Completion
    text: str
    score: Score


def collect(
    policy: Policy,
    params: Params,
    problems: Sequence[Problem],
    pool: Pool,
    rollout: RolloutConfig,
    sampling: sampler.SamplerConfig,
    *,
    key: jax.Array,
    first_id: int,
    version: int,
    timer: Timer,
) -> Experience:
    """Sample a group for every problem and score it; each process scores its share for all.

    Args:
      policy: the tokenizer and the decoder's shape.
      params: the sampler's form of the parameters, see `policy.sampling_params`.
      problems: P of them.
      pool: scores completions.
      rollout: group size, temperature and budgets.
      sampling: memory layout of the sampler.
      key: the run's sampling key.
      first_id: id of the first sequence; they are numbered on from it.
      version: policy version of `params`.
      timer: given `sample` and `score` seconds, the latter being what scoring adds.
    """
    wanted = requests(policy, problems, rollout, first_id)
    asked = [problem for problem in problems for _ in range(rollout.group_size)]
    rows = sample(
        policy, params, wanted, asked, pool, rollout, sampling,
        key=key, version=version, timer=timer,
    )  # fmt: skip
    return experience(problems, rows)


def requests(
    policy: Policy, problems: Sequence[Problem], rollout: RolloutConfig, first_id: int
) -> list[Request]:
    """A group of requests for every problem, numbered on from `first_id`."""
    return [
        Request(
            id=first_id + p * rollout.group_size + g,
            prompt=prompt,
            max_new_tokens=budget(problem, rollout),
            temperature=rollout.temperature,
        )
        for p, problem in enumerate(problems)
        for prompt in [encode_prompt(policy.tokenizer, rollout, problem)]
        for g in range(rollout.group_size)
    ]


def sample(
    policy: Policy,
    params: Params,
    requests: Sequence[Request],
    problems: Sequence[Problem],
    pool: Pool,
    rollout: RolloutConfig,
    sampling: sampler.SamplerConfig,
    *,
    key: jax.Array,
    version: int,
    timer: Timer,
    longest_start: int = 0,
) -> list[Row]:
    """Sample requests, each scored as the answer to its problem while decoding goes on.

    Args:
      policy, params, pool, rollout, sampling, key, version, timer: see `collect`.
      requests: N of them, each of its own id.
      problems: N, those that they answer.
      longest_start: of any request's prompt and prefix; 0 stands for the rollout's longest prompt.
    """
    place = {request.id: n for n, request in enumerate(requests)}
    completions: list[Completion | None] = [None] * len(requests)
    texts = [""] * len(requests)
    futures: dict[int, Future[Score]] = {}
    start, size = longest_start or rollout.max_prompt_tokens, rollout.chunks.size

    def chunk(requests: Sequence[Request], turn: int) -> Iterator[Completion]:
        return sampler.generate(
            policy.model,
            params,
            requests,
            stop_ids=policy.tokenizer.eos_ids,
            key=jax.random.fold_in(key, turn) if turn else key,
            version=version,
            sampler=sampling,
            max_prompt=start + rollout.chunks.carry,
            max_length=start + min(size or rollout.max_new_tokens, rollout.max_new_tokens),
            guide=policy.guide,
        )

    with timer("sample"):
        for completion in chunks.generate(chunk, requests, rollout.chunks):
            n = place[completion.request.id]
            completions[n] = for_training(completion)
            texts[n] = policy.tokenizer.decode(completion.tokens.tolist())
            submit(futures, n, pool, problems[n], texts[n])
    with timer("score"):
        scores = results(futures)
    sampled = [c for c in completions if c is not None]
    return [Row(c, texts[n], scores[n]) for n, c in enumerate(sampled)]


def submit(
    futures: dict[int, Future[Score]], n: int, pool: Pool, problem: Problem, text: str
) -> None:
    """Have the n-th completion scored, if it falls to this process's share."""
    if n % jax.process_count() == jax.process_index():
        futures[n] = pool.submit(problem, text)


def results(futures: dict[int, Future[Score]]) -> dict[int, Score]:
    """The scores of all processes' shares, told to all."""
    own = {n: future.result() for n, future in futures.items()}
    return functools.reduce(operator.or_, distributed.gathered(own))


def experience(
    problems: Sequence[Problem], rows: Sequence[Row], greedy: Sequence[Row] = ()
) -> Experience:
    """The rows, problem by problem, and the greedy row of each, as one experience."""
    return Experience(
        list(problems),
        [row.completion for row in rows],
        [row.text for row in rows],
        [row.score for row in rows],
        [row.score for row in greedy],
    )


def as_trajectory(experience: Experience, config: Config) -> Trajectory:
    """The experience as one host-side pytree of a length that does not vary from step to step."""
    group = len(experience.completions) // len(experience.problems)
    longest = max(len(c.request.prompt) + len(c.tokens) for c in experience.completions)
    made = packing.trajectory(
        experience.completions,
        [score.value for score in experience.scores],
        [n // group for n in range(len(experience.completions))],
        length=round_up(longest, config.packing.bucket),
    )
    parts = [None if score.error else score.parts for score in experience.scores]
    made = made.replace(reward_parts=packing.reward_parts(parts))
    if experience.greedy:
        # a baseline that is missing leaves the reward as it is
        greedy = np.array([score.value or 0.0 for score in experience.greedy], np.float32)
        made = made.replace(greedy_rewards=np.repeat(greedy, group))
    return made


def demonstrations(
    policy: Policy, config: Config, task: Task, problems: Sequence[Problem]
) -> Trajectory:
    """The task's own solutions, each with reward 1 and alone in its group.

    Raises:
      ValueError: a prompt or solution over the rollout's budgets.
    """
    written = [
        written_by_expert(
            request, solution(policy.tokenizer, task, problem, config.rollout.max_new_tokens)
        )
        for problem in problems
        for prompt in [encode_prompt(policy.tokenizer, config.rollout, problem)]
        for request in [Request(0, prompt, config.rollout.max_new_tokens)]
    ]
    count = len(written)
    length = round_up(
        max(len(c.request.prompt) + len(c.tokens) for c in written), config.packing.bucket
    )
    return packing.trajectory(written, [1.0] * count, range(count), length=length)


def solution(
    tokenizer: tokenizers.Tokenizer, task: Task, problem: Problem, budget: int
) -> list[int]:
    """Token ids of the task's own solution, the end of sequence included.

    Raises:
      ValueError: it has more than `budget` tokens.
    """
    tokens = [*tokenizer.encode(task.gold(problem)), tokenizer.eos_ids[0]]
    if len(tokens) > budget:
        raise ValueError(
            f"problem {problem.id}: its solution has {len(tokens)} tokens, more than "
            f"rollout.max_new_tokens={budget}; raise the budget"
        )
    return tokens


def written_by_expert(request: Request, tokens: Sequence[int]) -> Completion:
    """The completion of a request that consists of given tokens, all trained on."""
    zeros = np.zeros(len(tokens), np.float32)
    marks = np.full(len(tokens), Source.EXPERT, np.int8)
    ids = np.array(tokens, np.int32)
    return Completion(request, ids, zeros, zeros, zeros.astype(np.int32), True, marks)


def budget(problem: Problem, rollout: RolloutConfig) -> int:
    """Tokens that a completion of the problem may have: its own budget, if it has one."""
    own = problem.metadata.get("max_new_tokens", rollout.max_new_tokens)
    return min(own, rollout.max_new_tokens)


def rewards_by_group(experience: Experience) -> np.ndarray:
    """Rewards [P, G] of P problems; nan is a failed score."""
    values = [np.nan if s.value is None else s.value for s in experience.scores]
    return np.array(values, np.float64).reshape(len(experience.problems), -1)


def measure(experience: Experience) -> dict[str, float]:
    """Rewards, lengths and failures of a batch, for the log."""
    by_group = rewards_by_group(experience)
    rewards = by_group[~np.isnan(by_group)]
    lengths = np.array([len(c.tokens) for c in experience.completions])
    parts: dict[str, list[float]] = {}
    for score in experience.scores:
        for name, value in score.parts.items():
            parts.setdefault(name, []).append(value)
    return {
        "reward/mean": float(rewards.mean()) if len(rewards) else float("nan"),
        "reward/std": float(rewards.std()) if len(rewards) else float("nan"),
        "reward/errors": float(sum(count_errors(experience.scores).values())),
        "reward/zero_variance_groups": float(np.mean(~curriculum.informative(by_group))),
        **{f"reward/{name}": float(np.mean(values)) for name, values in parts.items()},
        "completion_length": float(lengths.mean()),
        "completion_length_max": float(lengths.max()),
        "truncated": float(np.mean([not c.stopped for c in experience.completions])),
        "tokens": float(lengths.sum()),
        **_by_domain(experience.problems, by_group, lengths.reshape(by_group.shape)),
    }


def _by_domain(
    problems: Sequence[Problem], rewards: np.ndarray, lengths: np.ndarray
) -> dict[str, float]:
    """What a mixture's domains have of a batch, and how they fare; rewards, lengths are [P, G]."""
    domains = np.array([problem.domain for problem in problems])
    out: dict[str, float] = {}
    for name in np.unique(domains) if len(set(domains)) > 1 else ():
        own = domains == name
        scored = rewards[own][~np.isnan(rewards[own])]
        out[f"domain/{name}/share"] = float(own.mean())
        out[f"domain/{name}/reward"] = float(scored.mean()) if len(scored) else float("nan")
        out[f"domain/{name}/completion_length"] = float(lengths[own].mean())
    return out
