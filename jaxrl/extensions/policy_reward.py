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
from jaxrl.data.tokenizers import Tokenizer
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

    Args:
      config: of the run.
      settings: where an answer begins.
      tokenizer: the policy's.
      score: from `logprobs.make_score`.
      params: the policy before the step's updates.
      experience: N completions.
    """
    marker, size = settings.marker, len(experience.texts) // len(experience.problems)
    asked = [problem for problem in experience.problems for _ in range(size)]
    reasoned = [
        _spliced(tokenizer, c.request.prompt, _reasoning(tokenizer, c, marker), problem)
        for c, problem in zip(experience.completions, asked, strict=True)
    ]
    bare = [
        _spliced(
            tokenizer, encode_prompt(tokenizer, config.rollout, problem), tokenizer.encode(marker),
            problem,
        )
        for problem in experience.problems
    ]  # fmt: skip
    given = _probabilities(config, score, params, reasoned)
    without = np.repeat(_probabilities(config, score, params, bare), size)
    values = group.debiased_probability(given, without)
    scores = [
        s if s.error else Score(float(v), {**s.parts, "task": s.value})
        for s, v in zip(experience.scores, values, strict=True)
    ]
    return experience._replace(scores=scores)


def _reasoning(tokenizer: Tokenizer, completion: Completion, marker: str) -> Sequence[int]:
    """The completion up to where its answer begins; with the marker at its end, if it has none."""
    tokens = completion.tokens.tolist()
    text = tokenizer.decode(tokens)
    if marker not in text:
        ends = tokens[-1:] and tokens[-1] in tokenizer.eos_ids
        return [*(tokens[:-1] if ends else tokens), *tokenizer.encode(marker)]
    wanted = text.rindex(marker) + len(marker)
    return next(
        tokens[:n] for n in range(len(tokens) + 1) if len(tokenizer.decode(tokens[:n])) >= wanted
    )


def _spliced(
    tokenizer: Tokenizer, prompt: Sequence[int], reasoning: Sequence[int], problem: Problem
) -> Completion:
    answer = tokenizer.encode(str(problem.answer))
    made = written_by_expert(Request(0, tuple(prompt), len(reasoning) + len(answer)), answer)
    before = forced(reasoning)
    joined = {
        name: np.concatenate([getattr(before, name), getattr(made, name)])
        for name in ("tokens", "logp", "entropy", "version", "source")
    }
    return dataclasses.replace(made, **joined)


def _probabilities(
    config: Config, score: Callable[..., jax.Array], params: Params, made: Sequence[Completion]
) -> np.ndarray:
    """[N] mean probability of each answer's tokens."""
    longest = max(len(c.request.prompt) + len(c.tokens) for c in made)
    length = round_up(longest, config.packing.bucket)
    batch = packing.trajectory(made, [0.0] * len(made), range(len(made)), length=length)
    logp = mesh.fetch(score(params, placement.pack_scored(batch, config)))
    return group.reference_probability(logp, batch.action_mask)
