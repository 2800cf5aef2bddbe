"""A language model that judges, as the reward of a run: by a rubric, or by comparing answers.

The judge is a model or run of ours on the mesh, or the policy itself (self-rewarding). It writes
nothing: its verdict is how probable it finds `Yes` against `No`, or `A` against `B`, as the next
token.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxrl.config import Config
from jaxrl.data.rewards import rubrics
from jaxrl.data.rewards.rubrics import Criterion, Rubric
from jaxrl.data.tokenizers import Tokenizer
from jaxrl.data.types import Problem, Score
from jaxrl.mesh import mesh
from jaxrl.mesh.buckets import round_up
from jaxrl.rollout import policy
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.programs import written_by_expert
from jaxrl.run import placement
from jaxrl.run.extension import Context, Extension
from jaxrl.training import packing
from jaxrl.training.logprobs import make_score
from jaxrl.types import Params, Request, TrainState


@dataclasses.dataclass(frozen=True)
class JudgeConfig:
    """A language model's verdicts in place of the task's reward."""

    rubric: str = ""
    """YAML file of a rubric, see docs/own-data.md; its `judges` are not asked."""
    model: str = ""
    """Model or run that judges; empty: the policy itself, as it is at each step."""
    pairwise: bool = False
    """Compare answers of a group with each other; the reward is the mean probability of being
    the better one. Else each answer is judged by itself."""
    opponents: int = 2
    """Of a `pairwise` judge: other answers of the group that each is compared with."""
    task_weight: float = 0.0
    """Weight of the task's own reward, which is added."""


class Opened(NamedTuple):
    """A judge on the mesh."""

    params: Params
    tokenizer: Tokenizer
    score: Callable[..., jax.Array]
    longest: int
    """Tokens that it has positions for."""


def judge(settings: JudgeConfig) -> Extension:
    """The judge's verdicts replace the task's scores, which are kept as the part `task`.

    Evaluations report the mean verdict as `judge`, but of a pairwise judge, whose mean is one half.

    Paper: Zhang et al. 2024, "Generative Verifiers: Reward Modeling as Next-Token Prediction"; Yuan
    et al. 2024, "Self-Rewarding Language Models"
    """
    opened: list[Opened] = []
    rubric: list[Rubric] = []

    def check(config: Config) -> None:
        if not settings.rubric:
            raise ValueError("judge.rubric is empty; name a rubric with --judge.rubric FILE.yaml")
        wanted = rubrics.of(rubrics.load(settings.rubric), settings.rubric)
        if settings.model:
            policy.require_text(policy.describe(policy.named(settings.model))[0], settings.model)
        if config.data.kinds:
            raise ValueError("judge: this run learns from a file and has no reward; leave it out")
        if not settings.pairwise:
            return
        if (
            any(each.veto or each.weight < 0 for each in wanted.criteria.values())
            or wanted.interactions
        ):
            raise ValueError(
                f"judge.pairwise with vetoes, negative weights or interactions in "
                f"{settings.rubric}: answers are compared as a whole; leave these out"
            )
        if not 0 < settings.opponents < config.rollout.group_size:
            raise ValueError(
                f"judge.opponents={settings.opponents} with rollout.group_size="
                f"{config.rollout.group_size}: use from 1 to one less than the group's size"
            )

    def verdicts(ctx: Context, state: TrainState, experience: Experience) -> list[Score]:
        if not rubric:
            rubric.append(rubrics.of(rubrics.load(settings.rubric), settings.rubric))
        if not opened:
            opened.append(_open(ctx, settings.model, state))
        by = opened[0] if settings.model else opened[0]._replace(params=state.params)
        if settings.pairwise:
            return compared(ctx.config, by, rubric[0], experience, settings.opponents)
        return marked(ctx.config, by, rubric[0], experience)

    def reward(ctx: Context, state: TrainState, experience: Experience) -> Experience:
        found = verdicts(ctx, state, experience)
        return experience._replace(
            scores=[
                _combined(settings.task_weight, *each)
                for each in zip(experience.scores, found, strict=True)
            ]
        )

    def measure(ctx: Context, state: TrainState, experience: Experience) -> dict[str, float]:
        if settings.pairwise:
            return {}
        values = [s.value for s in verdicts(ctx, state, experience) if s.error is None]
        return {"judge": float(np.mean(values))} if values else {}

    return Extension(check=check, reward=reward, measure=measure)


def marked(config: Config, by: Opened, rubric: Rubric, experience: Experience) -> list[Score]:
    """Scores by a rubric: each mark is the probability of `Yes`.

    Args:
      config: of the run.
      by: the judge.
      rubric: what it judges by.
      experience: N completions.

    Returns:
      N scores from 0 to 1; an error where the judge cannot read the question.
    """
    asked = _asked(experience)
    wanted = [_criteria(rubric, problem) for problem in asked]
    mark = _mark(config, experience.texts)
    questions = [
        rubrics.question(each, problem, text, mark)
        for problem, text, criteria in zip(asked, experience.texts, wanted, strict=True)
        if not isinstance(criteria, Score)
        for each in criteria.values()
    ]
    found = iter(preferences(config, by, questions, ("Yes", "No")))

    def of(criteria: dict[str, Criterion] | Score) -> Score:
        if isinstance(criteria, Score):
            return criteria
        marks = {name: float(next(found)) for name in criteria}
        if any(map(np.isnan, marks.values())):
            return _UNREADABLE
        return rubrics.total(rubric, criteria, marks)

    return [of(criteria) for criteria in wanted]


def compared(
    config: Config, by: Opened, rubric: Rubric, experience: Experience, opponents: int
) -> list[Score]:
    """Scores by comparisons within a group, each made in both orders.

    Args:
      config: of the run.
      by: the judge.
      rubric: its criteria say what a good answer is.
      experience: N completions, in groups of G.
      opponents: answer i of a group meets answers i + 1, ..., i + opponents (modulo G).

    Returns:
      N scores: the mean probability of being the better answer.
    """
    asked, texts = _asked(experience), experience.texts
    size = len(texts) // len(experience.problems)
    mark = _mark(config, texts)
    wanted = [_criteria(rubric, problem) for problem in asked]
    pairs = [
        (n, n - n % size + (n % size + step) % size)
        for n in range(len(texts))
        if not isinstance(wanted[n], Score)
        for step in range(1, opponents + 1)
    ]
    questions = [
        rubrics.comparison(list(wanted[n].values()), asked[n], texts[a], texts[b], mark)
        for n, other in pairs
        for a, b in ((n, other), (other, n))
    ]
    first = preferences(config, by, questions, ("A", "B")).reshape(-1, 2)
    wins = (first[:, 0] + 1 - first[:, 1]) / 2
    won: list[list[float]] = [[] for _ in texts]
    for (n, other), win in zip(pairs, wins, strict=True):
        won[n].append(win)
        won[other].append(1 - win)
    means = [float(np.mean(each)) if each else np.nan for each in won]
    return [
        each if isinstance(each, Score) else _UNREADABLE if np.isnan(mean) else Score(mean)
        for each, mean in zip(wanted, means, strict=True)
    ]


def preferences(
    config: Config, by: Opened, questions: Sequence[str], answers: tuple[str, str]
) -> np.ndarray:
    """[N] probability of the first of two answers against the second, as the next token.

    Args:
      config: of the run, for packing.
      by: who is asked.
      questions: N texts, asked as a user's message where the model has a chat template.
      answers: two texts whose first tokens differ.

    Returns:
      [N] float32; nan where the question is too long, or has characters that are not known.

    Raises:
      ValueError: the answers begin with the same token, or cannot be encoded.
    """
    first, second = (by.tokenizer.encode(answer)[0] for answer in answers)
    if first == second:
        raise ValueError(
            f"judge: {answers} begin with the same token of this model, so it cannot judge"
        )
    found = np.full(len(questions), np.nan, np.float32)
    prompts = {n: ids for n, q in enumerate(questions) if (ids := _encoded(by, q)) is not None}
    if not prompts:
        return found
    made = [
        written_by_expert(Request(0, tuple(ids), 1), [token])
        for ids in prompts.values()
        for token in (first, second)
    ]
    length = round_up(max(len(c.request.prompt) + 1 for c in made), config.packing.bucket)
    groups = [n // 2 for n in range(len(made))]
    batch = packing.trajectory(made, [0.0] * len(made), groups, length=length)
    roomy = dataclasses.replace(  # questions may be longer than what the run trains on
        config.packing,
        row_length=0,
        micro_batch_tokens=max(
            config.packing.micro_batch_tokens, length * jax.sharding.get_mesh().size
        ),
    )
    packed = placement.pack(batch, dataclasses.replace(config, packing=roomy))[0]
    logp = mesh.fetch(by.score(by.params, packed))
    logp = np.sum(np.where(batch.action_mask, logp, 0.0), axis=1).reshape(-1, 2)
    found[list(prompts)] = 1 / (1 + np.exp(logp[:, 1] - logp[:, 0]))
    return found


_UNREADABLE = Score(None, error="judge: it cannot read the completion, by length or characters")


def _criteria(rubric: Rubric, problem: Problem) -> dict[str, Criterion] | Score:
    """What a problem's completions are judged by, or why they cannot be."""
    try:
        return rubrics.criteria(rubric, problem)
    except ValueError as error:
        return Score(None, error=f"gold: {error}")


def _encoded(by: Opened, text: str) -> Sequence[int] | None:
    try:
        if by.tokenizer.chat is None:
            ids = by.tokenizer.prompt(text)
        else:
            ids = policy.chat(by.tokenizer, "", [{"role": "user", "content": text}])
    except ValueError:  # characters outside an alphabet
        return None
    return ids if len(ids) < by.longest else None


def _open(ctx: Context, model: str, state: TrainState) -> Opened:
    if not model:
        shape, tokenizer = ctx.policy.model, ctx.policy.tokenizer
        return Opened(
            state.params, tokenizer, make_score(shape, temperature=1.0), shape.max_positions
        )
    config = dataclasses.replace(
        policy.named(model), compute_dtype=ctx.config.compute_dtype, mesh=ctx.config.mesh
    )
    shape, tokenizer = policy.describe(config)
    params = policy.first_params(config, shape, jax.sharding.get_mesh())
    return Opened(params, tokenizer, make_score(shape, temperature=1.0), shape.max_positions)


def _combined(weight: float, task: Score, verdict: Score) -> Score:
    if task.error or verdict.error:
        return task if task.error else verdict
    parts = {**verdict.parts, "task": task.value, "judge": verdict.value}
    return Score(verdict.value + weight * task.value, parts)


def _asked(experience: Experience) -> list[Problem]:
    size = len(experience.texts) // len(experience.problems)
    return [problem for problem in experience.problems for _ in range(size)]


def _mark(config: Config, texts: Sequence[str]) -> str:
    """What stands around answers: the same when a step is repeated, and no text can contain it."""
    given = json.dumps([config.seed, *texts]).encode()
    return f"====={hashlib.blake2b(given, digest_size=8).hexdigest()}"
