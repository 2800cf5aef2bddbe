"""Trained reward models as the reward of a run, computed on the mesh in batches.

A completion is read by each model as it was trained: in its own tokens, by the state of the last,
or of a process reward model by the state at the end of each line.
What was thought before `</think>` is not read, as in Bhaskar et al. 2025, "Language Models that
Think, Chat Better"; of a thought that never ends, nothing is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.config import Config
from jaxrl.data.rewards.steps import AGGREGATES
from jaxrl.data.sources import extract
from jaxrl.data.sources.rows import Row
from jaxrl.data.text import examples
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.data.types import Problem, Score
from jaxrl.mesh import mesh
from jaxrl.mesh.buckets import round_up
from jaxrl.rollout import policy, tasks
from jaxrl.rollout.experience import Experience
from jaxrl.rollout.written import as_completion
from jaxrl.run import placement
from jaxrl.run.extension import Context, Extension
from jaxrl.training import packing
from jaxrl.training.logprobs import make_score
from jaxrl.types import Params, TrainState


@dataclasses.dataclass(frozen=True)
class RewardModelConfig:
    """Reward models in place of the task's reward; `--reward RUN` sets the first field."""

    models: tuple[str, ...] = ()
    """Run directories of `jaxrl train reward`, or Hugging Face directories of classifiers with one
    label. The reward is the mean of their scores."""
    uncertainty: float = 0.0
    """How many standard deviations of the models' scores are taken off their mean, so that answers
    on which an ensemble disagrees earn less (Coste et al. 2024)."""
    steps: str = ""
    """Of process reward models, how the probabilities of a completion's lines become its score:
    `last`, `min`, `product` or `mean`. Empty: the state of the last token is scored."""
    task_weight: float = 0.0
    """Weight of the task's own reward, which is added."""


class OpenModel(NamedTuple):
    """One reward model, opened."""

    params: Params
    tokenizer: Tokenizer
    score: Callable[..., jax.Array]
    longest: int
    """Tokens that it has positions for."""


def reward_model(settings: RewardModelConfig) -> Extension:
    """The models' scores replace the task's, which are kept as the part `task`.

    The part `reward_model` is the mean of the models' scores; of several, `reward_spread` is their
    standard deviation. Evaluations report the mean as `reward_model` beside the task's figures, so
    that a run shows where the first keeps rising while the second falls (over-optimisation).

    Paper: Ouyang et al. 2022, "Training language models to follow instructions"; Coste et al. 2024,
    "Reward Model Ensembles Help Mitigate Overoptimization"
    """
    models: list[OpenModel] = []

    def check(config: Config) -> None:
        if not settings.models:
            raise ValueError("reward_model.models is empty; name reward models with --reward RUN")
        tasks.require_sampling(config, "reward_model")
        if not settings.task_weight:
            tasks.require_no_selection(config, "reward_model")
        if settings.steps and settings.steps not in AGGREGATES:
            raise ValueError(
                f"reward_model.steps={settings.steps!r} is none of {', '.join(AGGREGATES)}; choose "
                "one for process reward models, and leave it empty for others"
            )
        for model in settings.models:
            if policy.labels(model) != 1:
                raise ValueError(
                    f"reward_model.models has {model!r}, which is no reward model; train one with "
                    "`jaxrl train reward`"
                )

    def opened(config: Config) -> list[OpenModel]:
        if not models:
            models.extend(open_model(config, model) for model in settings.models)
        return models

    def scores(ctx: Context, experience: Experience) -> np.ndarray:
        models = opened(ctx.config)
        return np.stack([score(ctx.config, model, experience, settings.steps) for model in models])

    def reward(ctx: Context, state: TrainState, experience: Experience) -> Experience:
        return rewarded(settings, experience, scores(ctx, experience))

    def measure(ctx: Context, state: TrainState, experience: Experience) -> dict[str, float]:
        return {"reward_model": float(np.nanmean(scores(ctx, experience)))}

    return Extension(check=check, reward=reward, measure=measure)


def open_model(config: Config, model: str) -> OpenModel:
    """A reward model on the mesh in use, in the compute dtype of a run.

    Raises:
      ValueError: it cannot be read.
    """
    model_config = dataclasses.replace(
        policy.config_of(model), compute_dtype=config.compute_dtype, mesh=config.mesh
    )
    decoder, tokenizer = policy.describe(model_config)
    params = policy.first_params(model_config, decoder, jax.sharding.get_mesh())
    return OpenModel(params, tokenizer, make_score(decoder, temperature=1.0), decoder.max_positions)


def rewarded(settings: RewardModelConfig, experience: Experience, scores: np.ndarray) -> Experience:
    """The experience with the models' rewards; scores that failed stay so.

    Args:
      settings: how scores are combined.
      experience: N completions.
      scores: [M, N] of M models; nan where one cannot read a completion.
    """
    mean, spread = scores.mean(axis=0), scores.std(axis=0)

    def score_row(n: int, task: Score) -> Score:
        if task.error:
            return task
        if np.isnan(mean[n]):
            return Score(None, error="reward model: it cannot read the completion")
        parts = {**task.parts, "task": task.value, "reward_model": float(mean[n])}
        if len(scores) > 1:
            parts["reward_spread"] = float(spread[n])
        value = mean[n] - settings.uncertainty * spread[n] + settings.task_weight * task.value
        return Score(float(value), parts)

    return experience._replace(
        scores=[score_row(n, task) for n, task in enumerate(experience.scores)]
    )


def score(config: Config, model: OpenModel, experience: Experience, steps: str = "") -> np.ndarray:
    """[N] scores of the completions of an experience; nan of those that the model cannot read.

    Args:
      config: of the run; prompts are written as messages where it writes them so.
      model: from `open_model`.
      experience: N completions.
      steps: name of an aggregate of `jaxrl.data.rewards.steps`, for a process reward model.
    """
    size = len(experience.texts) // len(experience.problems)
    problems = [problem for problem in experience.problems for _ in range(size)]
    read = functools.partial(_lines, model) if steps else functools.partial(_read, config, model)
    model_examples = [read(*pair) for pair in zip(problems, experience.texts, strict=True)]
    completions = [as_completion(example) for example in model_examples if example is not None]
    completion_scores = np.full(len(model_examples), np.nan, np.float32)
    if not completions:
        return completion_scores
    longest = max(len(c.request.prompt) + len(c.tokens) for c in completions)
    batch = packing.trajectory(
        completions,
        [0.0] * len(completions),
        range(len(completions)),
        length=round_up(longest, config.packing.bucket),
    )
    scores = mesh.fetch(model.score(model.params, placement.pack_scored(batch, config)))
    readable = [n for n, example in enumerate(model_examples) if example is not None]
    if steps:
        rows = zip(scores, batch.action_mask, strict=True)
        completion_scores[readable] = [
            AGGREGATES[steps](1 / (1 + np.exp(-row[mask]))) for row, mask in rows
        ]
    else:
        completion_scores[readable] = np.sum(np.where(batch.action_mask, scores, 0.0), axis=1)
    return completion_scores


def _answer(problem: Problem, text: str) -> str:
    """A completion without what was thought in it."""
    full_text = extract.thinking(problem.prompt, text)
    rest = extract.after_thought(full_text)
    return text if rest == full_text else (rest or "").lstrip()


def _read(config: Config, model: OpenModel, problem: Problem, text: str) -> examples.Example | None:
    """A completion as the model has it; None if it has characters that the model does not know.

    What is too long for the model is cut off at its end, and None if that is all of the completion.
    """
    prompt: Any = problem.prompt
    if config.rollout.chat and problem.messages is not None:
        prompt = tuple(problem.messages)
    row = Row(problem.id, prompt, (_answer(problem, text),), (1.0,))
    chat = config.rollout.chat and model.tokenizer.chat is not None
    system = config.rollout.system if chat else ""
    try:
        row_examples = examples.encode(model.tokenizer, row, chat=chat, system=system)
    except ValueError:
        return None
    end = model.tokenizer.eos_ids[0]
    fitted = examples.fitting(row_examples, model.longest, "truncate", problem.id)
    return None if fitted is None else examples.scored_at_end(fitted[0], end)


def _lines(model: OpenModel, problem: Problem, text: str) -> examples.Example | None:
    """A completion whose lines are steps, as a process reward model has learned them; None if it
    has none, is too long, or has characters that the model does not know."""
    lines = tuple(line for line in _answer(problem, text).splitlines() if line.strip())
    row = Row(problem.id, problem.prompt, lines, (0.0,) * len(lines), stepwise=True)
    try:
        row_examples = examples.encode(model.tokenizer, row) if lines else []
    except ValueError:
        return None
    fitted = row_examples and examples.fitting(row_examples, model.longest, "drop", problem.id)
    return fitted[0] if fitted else None
