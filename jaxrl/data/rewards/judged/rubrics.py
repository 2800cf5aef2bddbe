"""Rubrics: criteria with weights, vetoes, saturation and interactions; checklists; anchors.

A rubric is a YAML file. `--reward rubric:FILE.yaml` asks judges behind OpenAI-compatible addresses,
and the extension `judge` a model of ours on the mesh.

    criteria:
      correct: {text: agrees with the reference answer, weight: 3, veto: 0.3}
      brief: {text: no longer than needed, saturation: 0.8}
    checklist: {column: checks, weight: 2}
    anchors:
      - {answer: "Paris.", marks: {correct: 10, brief: 10}}
    judges:
      main: {url: "http://localhost:8000/v1", model: qwen}

Paper: Huang et al. 2025, "Reinforcement Learning with Rubric Anchors" (weights, vetoes, saturation,
interactions, and the stretch of the upper range; their forms are ours)
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml
from pydantic import Field

from jaxrl.data.rewards.judged import judge
from jaxrl.data.types import Problem, Reward, Score

CHECK = "check"
"""Names of the items of a checklist begin with it, as in `check 1`."""


class _Part(pydantic.BaseModel, frozen=True, extra="forbid"):
    """Part of a rubric; a field that is not known is refused."""


class Criterion(_Part):
    """What one mark is given for."""

    text: str = Field(min_length=1)
    """What deserves the full mark."""
    weight: float = 1.0
    """Of its mark in the mean; below 0 for a fault, whose mark takes reward away."""
    veto: float = Field(0.0, ge=0, le=1)
    """A mark below it makes the whole reward 0; marks count from 0 to 1 here."""
    saturation: float = Field(1.0, gt=0, le=1)
    """Marks from here on count as full marks, so that more of the same earns nothing."""
    judge: str = ""
    """Which of `judges` gives the mark; empty: the first."""


class Interaction(_Part):
    """Two criteria that count together: what one is worth depends on the other."""

    of: tuple[str, str]
    """Names of two criteria."""
    weight: float
    """Of the product of their marks, in the mean of all; below 0 where they should not meet."""


class Checklist(_Part):
    """Items that a column of each row lists, each of which is met or not."""

    column: str
    """Its value is a list of texts, or of mappings with `text` and `weight`."""
    weight: float = Field(1.0, gt=0)
    """Of the share of items met, beside the criteria."""
    judge: str = ""


class Anchor(_Part):
    """An answer whose marks are known; judges see it, so that marks mean the same everywhere."""

    answer: str
    marks: dict[str, float]
    """From 0 to 10, by criterion."""


class Endpoint(_Part):
    """A judge, see `judge.Endpoint`."""

    url: str
    model: str
    key_variable: str = ""
    cache: str = ""
    temperature: float = 0.0
    max_tokens: int = 512


class Rubric(_Part):
    """What completions are judged by."""

    criteria: dict[str, Criterion] = {}
    interactions: tuple[Interaction, ...] = ()
    stretch: float = Field(1.0, ge=1)
    """Power of the mean that is the reward: above 1, good answers differ by more than bad ones."""
    checklist: Checklist | None = None
    anchors: tuple[Anchor, ...] = ()
    judges: dict[str, Endpoint] = {}


def load(path: str) -> dict[str, Any]:
    """The contents of a rubric's file, as plain values that `of` takes.

    Raises:
      ValueError: there is no such file, or it is no rubric; with the field that is wrong.
    """
    try:
        plain = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"rubric {path!r} cannot be read: {error}") from error
    return parse(plain, path).model_dump(exclude_defaults=True)


def parse(plain: Any, where: str = "rubric") -> Rubric:
    """A rubric from plain values.

    Args:
      plain: from YAML or JSON.
      where: they were read, for messages.

    Raises:
      ValueError: they are no rubric; with the field that is wrong.
    """
    try:
        rubric = Rubric.model_validate(plain)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{where}: {field}: {first['msg']}") from error
    if not rubric.criteria and rubric.checklist is None:
        raise ValueError(f"{where}: name criteria or a checklist")
    if (
        rubric.checklist is None
        and sum(c.weight for c in rubric.criteria.values() if c.weight > 0) <= 0
    ):
        raise ValueError(f"{where}: no criterion has a weight above 0")
    if reserved_names := [name for name in rubric.criteria if name.startswith(CHECK + " ")]:
        raise ValueError(
            f"{where}: criteria.{reserved_names[0]}: items of checklists have such names"
        )
    for pair in rubric.interactions:
        if set(pair.of) - set(rubric.criteria) or pair.of[0] == pair.of[1]:
            raise ValueError(
                f"{where}: interactions: of={list(pair.of)} must be two of "
                f"{', '.join(rubric.criteria)}"
            )
    for anchor in rubric.anchors:
        if set(anchor.marks) - set(rubric.criteria) or not all(
            map(judge.is_mark, anchor.marks.values())
        ):
            raise ValueError(
                f"{where}: anchors: marks={anchor.marks} must be from 0 to 10, of "
                f"{', '.join(rubric.criteria)}"
            )
    judged_parts = [*rubric.criteria.values(), *([rubric.checklist] if rubric.checklist else [])]
    for part in judged_parts:
        if part.judge and part.judge not in rubric.judges:
            raise ValueError(
                f"{where}: judge={part.judge!r} is not among judges ({', '.join(rubric.judges)})"
            )
    return rubric


def criteria(rubric: Rubric, problem: Problem) -> dict[str, Criterion]:
    """What a problem's completions are marked for: the criteria and the items of its checklist.

    Raises:
      ValueError: the column of the checklist is missing, or holds no list of items, or an empty one
        where no criterion has a weight above 0.
    """
    problem_criteria = dict(rubric.criteria)
    if rubric.checklist is None:
        return problem_criteria
    column = rubric.checklist.column
    row = problem.metadata.get("row", problem.metadata)
    items = row.get(column)
    if not isinstance(items, list | tuple) or not (items or problem_criteria):
        raise ValueError(f"column {column!r} of {problem.id!r} must be a list of items to check")
    plain = [{"text": item} if isinstance(item, str) else item for item in items]
    try:
        checklist_items = [Criterion.model_validate(item) for item in plain]
    except pydantic.ValidationError as error:
        raise ValueError(
            f"column {column!r} of {problem.id!r}: an item is a text, or has text and weight"
        ) from error
    total = sum(item.weight for item in checklist_items)
    for n, item in enumerate(checklist_items, 1):
        if item.weight <= 0:
            raise ValueError(f"column {column!r} of {problem.id!r}: weights must be above 0")
        weight = rubric.checklist.weight * item.weight / total
        problem_criteria[f"{CHECK} {n}"] = item.model_copy(
            update={"weight": weight, "judge": rubric.checklist.judge}
        )
    if not any(criterion.weight > 0 for criterion in problem_criteria.values()):
        raise ValueError(
            f"column {column!r} of {problem.id!r}: it lists nothing, and no criterion has a weight "
            "above 0; list an item, or give a criterion such a weight"
        )
    return problem_criteria


def total(rubric: Rubric, wanted: Mapping[str, Criterion], marks: Mapping[str, float]) -> Score:
    """The reward of marks: 0 where a criterion vetoes, else a power of their mean, at least 0.

    A mark counts as `min(mark, saturation) / saturation`, and an interaction as the product of two
    such. The mean is over the positive weights; what has a negative weight takes its share away.
    The parts are the marks as given, `checklist`, the share of its items, and `vetoed`.

    Formula: `max(0, (sum_k w_k m_k + sum_(j, k) w_jk m_j m_k) / sum of positive w)^stretch`

    Args:
      rubric: with the interactions and the stretch.
      wanted: from `criteria`.
      marks: from 0 to 1, by the same names.

    Returns:
      A score from 0 to 1.
    """
    items = [name for name in wanted if name.startswith(CHECK + " ")]
    parts = {name: float(marks[name]) for name in wanted if name not in items}
    if items:
        share = sum(wanted[name].weight * marks[name] for name in items)
        parts["checklist"] = share / sum(wanted[name].weight for name in items)
    vetoed = any(marks[name] < criterion.veto for name, criterion in wanted.items())
    if any(criterion.veto for criterion in wanted.values()):
        parts["vetoed"] = float(vetoed)
    if vetoed:
        return Score(0.0, parts)
    counted = {
        name: min(marks[name], criterion.saturation) / criterion.saturation
        for name, criterion in wanted.items()
    }
    terms = [(criterion.weight, counted[name]) for name, criterion in wanted.items()]
    terms += [
        (pair.weight, counted[pair.of[0]] * counted[pair.of[1]]) for pair in rubric.interactions
    ]
    mean = sum(weight * mark for weight, mark in terms) / sum(max(0.0, w) for w, _ in terms)
    return Score(max(0.0, mean) ** rubric.stretch, parts)


def by_endpoints(rubric: Rubric) -> Reward:
    """A rubric's reward by its judges, each asked once a completion for all marks that it gives.

    A judge that cannot be reached, or whose reply is not the marks asked for, is an error.

    Raises:
      ValueError: the rubric names no judge.
    """
    if not rubric.judges:
        raise ValueError(
            "the rubric names no judge; give it judges: {main: {url: http://..., model: NAME}}, or "
            "have a model of yours judge with --with judge --judge.rubric FILE"
        )
    first = next(iter(rubric.judges))
    endpoints = {
        name: judge.Endpoint(**settings.model_dump()) for name, settings in rubric.judges.items()
    }

    async def marks_by(
        name: str, judge_criteria: Mapping[str, Criterion], problem: Problem, completion: str
    ) -> dict[str, float]:
        mark = f"====={secrets.token_hex(8)}"  # so that no completion can write the closing line
        text = prompt(rubric, judge_criteria, problem, completion, mark)
        return judge.marks(await judge.ask(endpoints[name], text, mark), list(judge_criteria))

    async def reward(problem: Problem, completion: str) -> Score:
        try:
            problem_criteria = criteria(rubric, problem)
        except ValueError as error:
            return Score(None, error=f"gold: {error}")
        axes: dict[str, dict[str, Criterion]] = {}
        for name, criterion in problem_criteria.items():
            axes.setdefault(criterion.judge or first, {})[name] = criterion
        try:
            axis_marks = await asyncio.gather(
                *(marks_by(name, part, problem, completion) for name, part in axes.items())
            )
        except judge.JudgeError as error:
            return Score(None, error=f"judge: {error}")
        return total(
            rubric,
            problem_criteria,
            {name: mark for part in axis_marks for name, mark in part.items()},
        )

    return reward


def prompt(
    rubric: Rubric,
    wanted: Mapping[str, Criterion],
    problem: Problem,
    completion: str,
    mark: str,
) -> str:
    """What a judge is asked for all marks of one completion; it replies with JSON.

    Args:
      rubric: with the anchors.
      wanted: what is marked.
      problem: the question, with its reference answer.
      completion: it stands between two lines of `mark`, which it cannot know.
      mark: random.
    """
    listed = "\n".join(f"- {name}: {criterion.text}" for name, criterion in wanted.items())
    examples = [
        f"An answer and its marks, as an example:\n{anchor.answer}\n"
        + json.dumps({name: anchor.marks[name] for name in wanted if name in anchor.marks})
        for anchor in rubric.anchors
        if set(wanted) & set(anchor.marks)
    ]
    instruction = f"Mark each of these from 0 to 10:\n{listed}"
    return judge.fill(
        judge.TEMPLATE,
        mark=mark,
        question=problem.prompt,
        reference="" if problem.answer is None else str(problem.answer),
        completion=completion,
        criteria="\n\n".join([*examples, instruction]),
        shape=json.dumps(dict.fromkeys(wanted, "0 to 10")),
    )
