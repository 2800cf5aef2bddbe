"""Which problems a seed trains on: the real loop's sources, over the problems of the lab."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import policy
from experiments.lab.tasks import Task, of_seed
from jaxrl import functions
from jaxrl.config import BanditConfig, CurriculumConfig
from jaxrl.data import types as data_types
from jaxrl.data.selection import bandits, curriculum
from jaxrl.data.types import Problem
from jaxrl.losses import pruning
from jaxrl.models import decoder, head
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import selection
from jaxrl.rollout.selection import Source
from jaxrl.types import Params


@dataclasses.dataclass(frozen=True)
class Choice:
    """How prompts are chosen; fields of the same names in the config of a run."""

    curriculum: CurriculumConfig
    """All of the train split may be chosen, up to `prompts` there."""
    bandit: BanditConfig
    weights: tuple[float, ...]
    """Of the task's domains; empty draws from all of them as one."""


def open_source(
    task: Task,
    model: DecoderConfig,
    choice: Choice,
    count: int,
    place: int,
    earlier: curriculum.Prompts | None,
) -> Source:
    """Where one seed's prompts come from; `answer` is each one's place in the train split.

    Args:
      task: of the lab.
      model: the policy's shape, for a choice by its hidden states.
      choice: among the prompts.
      count: prompts of a batch.
      place: of the seed among those of the task.
      earlier: rewards of all the train split in an earlier run. It leaves the best of them by
        `curriculum.score`, or with weights, multiplies those by what it failed.
    """
    domains = of_seed(task.train, place).domain
    seed = task.seeds[place] if task.seeds else place
    if choice.weights:
        weights = dict(enumerate(choice.weights))
        if earlier is not None:
            shares = bandits.weaknesses(curriculum.failing(earlier), domains, len(weights))
            weights = {d: w * share for (d, w), share in zip(weights.items(), shares, strict=True)}
        parts = {d: _part(task, model, choice, 1, place, domains == d) for d in weights}
        return selection.mixed(parts, weights, choice.bandit, seed)
    candidates = np.ones(len(domains), bool)
    if earlier is not None:
        score = functions.resolve(choice.curriculum.score, {}, {"state"})(earlier)
        _, ids = curriculum.highest(earlier, choice.curriculum.keep, candidates, score)
        candidates = np.isin(np.arange(len(domains)), ids)
    return _part(task, model, choice, count, place, candidates)


def _part(
    task: Task, model: DecoderConfig, choice: Choice, count: int, place: int, candidates: np.ndarray
) -> Source:
    """Prompts among those marked by `candidates`; too few for a batch come round again in it."""
    ids = np.flatnonzero(candidates).tolist()
    problems = data_types.Task(
        "lab",
        lambda split, seed, index: Problem(str(ids[index]), "", ids[index]),
        reward=lambda problem, completion: data_types.Score(0.0),
        sizes={"train": len(ids)},
    )
    of = {"candidates": ids}
    settings = choice.curriculum
    seed = task.seeds[place] if task.seeds else place
    if not settings.choose and len(ids) < count:
        return selection.ordered(problems, of, seed=seed)
    if not settings.choose:
        settings = dataclasses.replace(settings, choose="jaxrl.data.selection.curriculum:uniform")
    signals = {
        name: functools.partial(function, task, model, place)
        for name, function in (("measure", _angles), ("closeness", closeness))
    }
    return selection.chosen(settings, problems, of, seed=seed, **signals)


def _angles(
    task: Task, model: DecoderConfig, place: int, params: Params, problems: Sequence[Problem]
) -> np.ndarray:
    """Angle signals of problems under one of the policies [S, ...], as in
    `jaxrl.rollout.prompt_signals`."""
    rows = of_seed(task.train, place).prompt[[problem.answer for problem in problems]]
    hidden = np.asarray(_hidden(model, params, place, rows), np.float64)
    whole = np.zeros(rows.shape[1], int)  # one segment: nothing is common to all prompts
    return np.array([bandits.angle_concentration(row, whole) for row in hidden])


def closeness(
    task: Task, model: DecoderConfig, place: int, params: Params, problems: Sequence[Problem]
) -> np.ndarray:
    """What solutions are worth under one of the policies [S, ...], as in
    `jaxrl.rollout.prompt_signals`."""
    rows = [problem.answer for problem in problems]
    own = of_seed(task.train, place)
    texts = np.concatenate([own.prompt[rows], own.gold[rows]], axis=1)
    mask = (texts > 0) & (np.arange(texts.shape[1]) >= task.prompt_length)
    return np.asarray(_closeness(model, params, place, texts, mask), np.float64)


@functools.partial(jax.jit, static_argnums=0)
def _closeness(
    model: DecoderConfig, params: Params, seed: int, tokens: jax.Array, mask: jax.Array
) -> jax.Array:
    own = jax.tree.map(lambda a: a[seed], params)
    hidden = policy.states(model, own, tokens[:, :-1])
    table = decoder.unembedding(own)
    given = (hidden, head.logits(hidden, table), tokens[:, 1:])
    inner, square = pruning.output_gradient(*given, mask=mask[:, 1:])
    return pruning.donod(inner, square, jnp.linalg.norm(table))


@functools.partial(jax.jit, static_argnums=0)
def _hidden(model: DecoderConfig, params: Params, seed: int, tokens: jax.Array) -> jax.Array:
    return policy.states(model, jax.tree.map(lambda a: a[seed], params), tokens)
