"""Every generator of reasoning-gym, by name, with its own difficulty parameters and verifier.

Stojanovski et al. 2025, "Reasoning Gym: Reasoning Environments for Reinforcement Learning with
Verifiable Rewards".
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import hashlib
import json
import math
import typing
from collections.abc import Mapping
from typing import Any

import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import CURRICULA, DATASETS

from jaxrl.data.sources import extract, generate
from jaxrl.data.tasks import parameters
from jaxrl.data.tasks.math import gym_scorers
from jaxrl.data.types import Problem, Score, Task

_BLOCK = 64  # problems a generator object makes: some are slow to build
_TEST_SHARE = 0.25  # not less, as each test problem costs 1 / share draws
_ATTEMPTS = 200


def task(
    generator: str,
    answer_format: str = "tags",
    template: str = "",
    level: int | None = None,
    partial: bool = True,
    ood: Mapping[str, Any] | str | None = None,
    **config: Any,
) -> Task:
    """Problems of one generator.

    Train and test are disjoint in the text of the question, as well as in seeds.

    Args:
      generator: its name, such as "chain_sum".
      answer_format: how a completion states its answer, see `jaxrl.data.sources.extract`; "text",
        "last_line", "number", "tags" or "boxed".
      template: prompt with `{question}` in it; empty asks for the answer format in a sentence.
      level: difficulty from 0 upwards on the generator's own curriculum; None for its defaults.
      partial: keep the generator's partial credit; if not, a score below 1 becomes 0.
      ood: parameters that differ in the ood split, which exists only if this is given; a mapping
        or its JSON.
      **config: the generator's own parameters, over those of `level`. A string stands for a list
        or mapping that it spells in JSON.
    """
    if generator not in DATASETS:
        near = difflib.get_close_matches(generator, DATASETS, n=1, cutoff=0.0)
        raise ValueError(
            f"generator={generator!r} is unknown; did you mean {near[0]!r}? known: "
            f"{', '.join(sorted(DATASETS))}"
        )
    find = extract.extractor(answer_format)
    template = template or extract.INSTRUCTIONS[answer_format]
    extract.fill(template, "")
    settings = {"train": _settings(generator, level, config)}
    settings["test"] = settings["train"]
    if ood is not None:
        changes = json.loads(ood) if isinstance(ood, str) else dict(ood)
        settings["ood"] = _settings(generator, level, config | changes)

    @functools.lru_cache(maxsize=32)
    def dataset(split: str, seed: int) -> ProceduralDataset:
        return _build(generator, settings[split], seed)

    def entry(split: str, seed: int, index: int) -> dict[str, Any]:
        block, offset = divmod(index, _BLOCK)
        for attempt in range(_ATTEMPTS):
            candidate = dataset(split, _seed(generator, split, seed, block, attempt))[offset]
            held_out = generate.held_out(candidate["question"], _TEST_SHARE)
            if split == "ood" or held_out == (split == "test"):
                return candidate
        raise ValueError(
            f"split={split!r}: none of {_ATTEMPTS} draws of {generator!r} belongs to it; its "
            "parameters allow too few problems, so raise the difficulty"
        )

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        item = entry(split, seed, index)
        prompt = extract.fill(template, item["question"])
        digest = hashlib.blake2b(item["question"].encode(), digest_size=8).hexdigest()
        return Problem(
            id=f"{generator}/{digest}",
            prompt=prompt,
            answer=item["answer"],
            messages=({"role": "user", "content": prompt},),
            metadata=item,
            domain=generator,
        )

    def reward(problem: Problem, completion: str) -> Score:
        answer = find(completion)
        if answer is None:
            return Score(0.0, {"correct": 0.0, "format": 0.0})
        value = _score(generator, dataset("train", 0), answer, dict(problem.metadata))
        correct = float(value == 1.0)
        return Score(value if partial else correct, {"correct": correct, "format": 1.0})

    task = Task(
        name="reasoning_gym",
        problem=problem,
        reward=reward,
        gold=lambda problem: extract.write_answer(answer_format, str(problem.answer)),
        splits=tuple(settings),
        description=__doc__,
    )
    return task


def _score(name: str, dataset: ProceduralDataset, answer: str, item: dict[str, Any]) -> float:
    """The generator's score of an answer; only a right one gets 1.

    Raises:
      gym_scorers.Evaluated: the generator's scorer runs text.
    """
    if name == "composite":
        name = item["metadata"]["source_dataset"]
        dataset = dataset.datasets[name]
    reference = str(item["answer"]).lower()
    if any(word.lower() not in reference for word in gym_scorers.non_finite(answer)):
        return 0.0
    if name in gym_scorers.SCORERS:
        return min(gym_scorers.SCORERS[name](dataset, answer, item), 1.0)
    _settled(dataset, item)
    try:
        with gym_scorers.watched(item):
            value = float(dataset.score_answer(answer, item))
        if not math.isfinite(value):
            return 0.0
        # Partial credit summed in floating point can land beside 1 for a wrong answer.
        return value if value == 1.0 else min(value, 0.99)
    except gym_scorers.Evaluated:
        raise
    except Exception:
        # The generator's own answer tells a malformed answer, worth 0, from a defective dataset.
        if item["answer"] is not None:
            dataset.score_answer(item["answer"], item)
        return 0.0


def _settled(dataset: ProceduralDataset, item: dict[str, Any]) -> None:
    """Score the own answer once: what a scorer imports on first use compiles code."""
    kind = type(dataset)
    if kind not in _SETTLED and item["answer"] is not None:
        _SETTLED.add(kind)
        with contextlib.suppress(Exception):
            dataset.score_answer(item["answer"], item)


_SETTLED: set[type] = set()


def _settings(generator: str, level: int | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """The generator's parameters as given and as its curriculum has them, checked."""
    kind = DATASETS[generator][1]
    config_fields = {f.name: f for f in dataclasses.fields(kind) if f.name not in ("seed", "size")}
    hints = typing.get_type_hints(kind)
    chosen: dict[str, Any] = {}
    if level is not None:
        if generator not in CURRICULA:
            raise ValueError(f"level={level}: {generator!r} has no curriculum; set its parameters")
        curriculum = CURRICULA[generator]()
        for attribute in curriculum.attributes.values():
            curriculum.set_attr_level(attribute.name, min(level, len(attribute.levels) - 1))
        levelled = curriculum.generate_configuration({})
        chosen = {name: getattr(levelled, name) for name in config_fields}
    for name, value in config.items():
        if name not in config_fields:
            near = difflib.get_close_matches(name, config_fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"generator {generator!r} has no parameter {name!r}{hint}; "
                f"known: {', '.join(config_fields) or 'none'}"
            )
        spelled = isinstance(value, str) and value.startswith(("[", "{"))
        chosen[name] = json.loads(value) if spelled else value
        hint = hints[name] | type(config_fields[name].default)  # rearc has a float for an int
        parameters.check(hint, chosen[name], name, f"generator {generator!r}")
    try:
        if generator == "composite" and "datasets" in chosen:
            chosen["datasets"] = [DatasetSpec(**spec) for spec in chosen["datasets"]]
        _build(generator, chosen, seed=0)
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"generator {generator!r} with {chosen}: {error}") from error
    return chosen


def _build(generator: str, settings: Mapping[str, Any], seed: int) -> ProceduralDataset:
    return reasoning_gym.create_dataset(generator, seed=seed, size=_BLOCK, **settings)


def _seed(*parts: str | int) -> int:
    """31 bits, as some generators take no more."""
    return generate.rng("reasoning_gym", *parts).getrandbits(31)
