"""Rewards that the policy computes itself: how probable it finds the reference answer.

A completion is cut where its answer begins, the reference answer stands in the answer's place, and
the reward is the mean probability of its tokens, less what it is without any reasoning ("RLPR:
Extrapolating RLVR to General Domains without Verifiers", 2025).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from jaxrl.config import Config
from jaxrl.data.rewards import group
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.data.types import Problem, Score
from jaxrl.mesh import mesh
from jaxrl.mesh.buckets import round_up
from jaxrl.rollout import tasks
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.policy import encode_prompt
from jaxrl.rollout.programs import written_by_expert
from jaxrl.run import placement
from jaxrl.run.extension import Context, Extension
from jaxrl.sampling.requests import forced
from jaxrl.training import packing
from jaxrl.types import Completion, Params, Request, TrainState

_NO_ANSWER = "gold: the problem {!r} has no reference answer (it is {!r})"
"""The error of a problem's completions, where its reference answer has no token."""


@dataclasses.dataclass(frozen=True)
class PolicyRewardConfig:
    """Rewards without a verifier: the policy's own probability of the reference answer."""

    marker: str = "Answer: "
    """Where in a completion its answer begins; what comes before is the reasoning."""


def policy_reward(settings: PolicyRewardConfig) -> Extension:
    """The policy's rewards replace the task's, which are kept as the part `task`."""

    def check(config: Config) -> None:
        tasks.require_one_turn(config, "policy_reward")

    def reward(ctx: Context, state: TrainState, experience: Experience) -> Experience:
        return rewarded(
            ctx.config, settings, ctx.policy.tokenizer, ctx.score, state.params, experience
        )

    return Extension(check=check, reward=reward)


def rewarded(
    config: Config,
    settings: PolicyRewardConfig,
    tokenizer: Tokenizer,
    score: Callable[..., jax.Array],
    params: Params,
    experience: Experience,
) -> Experience:
    """The experience with the policy's rewards; the task's are kept as the part `task`.

    Where a problem has no reference answer, its completions have an error and no reward.

    Args:
      config: of the run.
      settings: where an answer begins.
      tokenizer: the policy's.
      score: from `logprobs.make_score`.
      params: the policy before the step's updates.
      experience: N completions.
    """
    marker, size = settings.marker, len(experience.texts) // len(experience.problems)
    answers = [_answer(tokenizer, problem) for problem in experience.problems]
    problem_indices = [n for n, answer in enumerate(answers) if answer]
    rows = [n * size + i for n in problem_indices for i in range(size)]
    values = np.zeros(len(experience.texts))
    if problem_indices:
        reasoned = [
            _spliced(c.request.prompt, _reasoning(tokenizer, c, marker), answers[n // size])
            for n, c in ((n, experience.completions[n]) for n in rows)
        ]
        bare = [
            _spliced(
                encode_prompt(tokenizer, config.rollout, experience.problems[n]),
                tokenizer.encode(marker),
                answers[n],
            )
            for n in problem_indices
        ]
        reasoned_probabilities = _probabilities(config, score, params, reasoned)
        bare_probabilities = np.repeat(_probabilities(config, score, params, bare), size)
        values[rows] = group.debiased_probability(reasoned_probabilities, bare_probabilities)

    def score_row(n: int, task: Score) -> Score:
        if task.error:
            return task
        if not answers[n // size]:
            problem = experience.problems[n // size]
            return Score(None, error=_NO_ANSWER.format(problem.id, problem.answer))
        return Score(float(values[n]), {**task.parts, "task": task.value})

    return experience._replace(
        scores=[score_row(n, task) for n, task in enumerate(experience.scores)]
    )


def _answer(tokenizer: Tokenizer, problem: Problem) -> list[int]:
    """Tokens of the reference answer; none where the problem has no answer."""
    return [] if problem.answer is None else list(tokenizer.encode(str(problem.answer)))


def _reasoning(tokenizer: Tokenizer, completion: Completion, marker: str) -> Sequence[int]:
    """The completion up to where its answer begins; with the marker at its end, if it has none."""
    tokens = completion.tokens.tolist()
    text = tokenizer.decode(tokens)
    if marker not in text:
        ends = tokens[-1:] and tokens[-1] in tokenizer.eos_ids
        return [*(tokens[:-1] if ends else tokens), *tokenizer.encode(marker)]
    marker_end = text.rindex(marker) + len(marker)
    return next(
        tokens[:n]
        for n in range(len(tokens) + 1)
        if len(tokenizer.decode(tokens[:n])) >= marker_end
    )


def _spliced(prompt: Sequence[int], reasoning: Sequence[int], answer: Sequence[int]) -> Completion:
    completion = written_by_expert(Request(0, tuple(prompt), len(reasoning) + len(answer)), answer)
    before = forced(reasoning)
    joined = {
        name: np.concatenate([getattr(before, name), getattr(completion, name)])
        for name in ("tokens", "logp", "entropy", "version", "source")
    }
    return dataclasses.replace(completion, **joined)


def _probabilities(
    config: Config,
    score: Callable[..., jax.Array],
    params: Params,
    completions: Sequence[Completion],
) -> np.ndarray:
    """[N] mean probability of each answer's tokens."""
    longest = max(len(c.request.prompt) + len(c.tokens) for c in completions)
    length = round_up(longest, config.packing.bucket)
    batch = packing.trajectory(
        completions, [0.0] * len(completions), range(len(completions)), length=length
    )
    logp = mesh.fetch(score(params, placement.pack_scored(batch, config)))
    return group.reference_probability(logp, batch.action_mask)
