"""One batch of experience: prompts, sampled groups, scores. Scoring runs while decoding goes on."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import jax
import numpy as np

from data import curriculum
from data.scoring import Pool
from data.types import Problem, Score, Task, count_errors
from jaxrl import distributed, packing, sampler
from jaxrl.buckets import round_up
from jaxrl.config import Config, RolloutConfig
from jaxrl.metrics import Timer
from jaxrl.policy import Policy, encode_prompt
from jaxrl.types import Completion, Params, Request, Trajectory


class Experience(NamedTuple):
    """N sampled and scored completions; sequence n answers problem n // group size."""

    problems: list[Problem]
    completions: list[Completion]
    texts: list[str]
    scores: list[Score]


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
    requests = [
        Request(
            id=first_id + p * rollout.group_size + g,
            prompt=prompt,
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
        )
        for p, problem in enumerate(problems)
        for prompt in [encode_prompt(policy.tokenizer, rollout, problem)]
        for g in range(rollout.group_size)
    ]
    completions: list[Completion | None] = [None] * len(requests)
    texts = [""] * len(requests)
    shares = jax.process_count()
    futures: dict[int, Future[Score]] = {}
    with timer("sample"):
        for completion in sampler.generate(
            policy.model,
            params,
            requests,
            stop_ids=policy.tokenizer.eos_ids,
            key=key,
            version=version,
            sampler=sampling,
            max_prompt=rollout.max_prompt_tokens,
            max_length=rollout.max_prompt_tokens + rollout.max_new_tokens,
        ):
            n = completion.request.id - first_id
            completions[n] = completion
            texts[n] = policy.tokenizer.decode(completion.tokens.tolist())
            if n % shares == jax.process_index():
                futures[n] = pool.submit(problems[n // rollout.group_size], texts[n])
    with timer("score"):
        own = {n: future.result() for n, future in futures.items()}
        scores = functools.reduce(operator.or_, distributed.gathered(own))
    return Experience(
        list(problems),
        [c for c in completions if c is not None],
        texts,
        [scores[n] for n in range(len(requests))],
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
    return made.replace(reward_parts=packing.reward_parts(parts))


def demonstrations(
    policy: Policy, config: Config, task: Task, problems: Sequence[Problem]
) -> Trajectory:
    """The task's own solutions, each with reward 1 and alone in its group.

    Raises:
      ValueError: a prompt or solution over the rollout's budgets.
    """
    rollout, written = config.rollout, []
    for problem in problems:
        prompt = encode_prompt(policy.tokenizer, rollout, problem)
        solution = [*policy.tokenizer.encode(task.gold(problem)), policy.tokenizer.eos_ids[0]]
        if len(solution) > rollout.max_new_tokens:
            raise ValueError(
                f"problem {problem.id}: its solution has {len(solution)} tokens, more than "
                f"rollout.max_new_tokens={rollout.max_new_tokens}; raise the budget"
            )
        request = Request(0, prompt, rollout.max_new_tokens)
        zeros = np.zeros(len(solution), np.float32)
        tokens = np.array(solution, np.int32)
        written.append(Completion(request, tokens, zeros, zeros, zeros.astype(np.int32), True))
    count = len(written)
    length = round_up(
        max(len(c.request.prompt) + len(c.tokens) for c in written), config.packing.bucket
    )
    return packing.trajectory(written, [1.0] * count, range(count), length=length)


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
    }
