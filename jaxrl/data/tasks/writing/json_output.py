"""JSON output: turn a described record into JSON that a schema accepts and that says the same."""

from __future__ import annotations

import json
import random
from typing import Any

from jaxrl.data.rewards import schema as schemas
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Score, Task

_NAMES = ("Ada", "Bela", "Carl", "Dina", "Emil", "Fay", "Gus", "Hana", "Ivo", "Jun")
_CITIES = ("Oslo", "Lima", "Cairo", "Kyoto", "Quito", "Riga", "Perth", "Porto")
_THINGS = ("chess", "golf", "piano", "soup", "kites", "maps", "tea", "trains")
_FIELDS = ("name", "age", "city", "likes", "member", "height", "zip")


def task(
    fields: int = 3, partial: bool = False, ood_fields: int | None = None, template: str = ""
) -> Task:
    """Records in words to records in JSON.

    Args:
      fields: of a record in train and test.
      partial: the reward is the share of fields that are right, if the schema accepts the whole;
        else 1 for an exact record and 0 otherwise.
      ood_fields: fields in the ood split; None means one more than `fields`.
      template: prompt with `{question}` in it; empty is the question alone.
    """
    ood_fields = fields + 1 if ood_fields is None else ood_fields
    if not 1 <= fields < ood_fields <= len(_FIELDS):
        raise ValueError(
            f"fields={fields}, ood_fields={ood_fields}: need 1 <= fields < ood_fields <= "
            f"{len(_FIELDS)}"
        )
    template = template or "{question}"

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        record = generate.draw(
            lambda stream: _draw(stream, ood_fields if split == "ood" else fields),
            key=str,
            stream=generate.rng("json_output", split, seed, index),
            split=split,
        )
        schema = _schema(record)
        question = (
            f"{_describe(record)} Write this as JSON for the schema {json.dumps(schema)}. "
            "Give the JSON only."
        )
        prompt = extract.fill(template, question)
        return generate.user_problem("json_output", str(record), prompt, record, schema=schema)

    def reward(problem: Problem, completion: str) -> Score:
        text = extract.plain(completion) or ""
        value, fault = schemas.check(
            extract.fenced(text, "json") or text, problem.metadata["schema"]
        )
        right = 0.0
        if fault is None:
            right = sum(_same(value[k], v) for k, v in problem.answer.items()) / len(problem.answer)
        parts = {"correct": float(right == 1.0), "schema": float(fault is None), "fields": right}
        return Score(right if partial else parts["correct"], parts)

    task = Task(
        name="json_output",
        problem=problem,
        reward=reward,
        gold=lambda problem: json.dumps(problem.answer),
        alphabet=generate.ASCII,
        description=__doc__,
        pure=True,
    )
    return task


def _draw(stream: random.Random, count: int) -> dict[str, Any]:
    values = {
        "name": stream.choice(_NAMES),
        "age": stream.randint(1, 99),
        "city": stream.choice(_CITIES),
        "likes": stream.sample(_THINGS, stream.randint(1, 3)),
        "member": stream.random() < 0.5,
        "height": stream.randint(100, 210) / 100,
        "zip": f"{stream.randrange(100_000):05d}",  # a string, for its leading zeros
    }
    chosen = set(stream.sample(_FIELDS, count))
    return {name: values[name] for name in _FIELDS if name in chosen}


def _describe(record: dict[str, Any]) -> str:
    formatters = {
        "name": lambda v: f"The name is {v}.",
        "age": lambda v: f"The age is {v} years.",
        "city": lambda v: f"The city is {v}.",
        "likes": lambda v: f"Likes, in order: {', '.join(v)}.",
        "member": lambda v: "A member." if v else "Not a member.",
        "height": lambda v: f"The height is {v} metres.",
        "zip": lambda v: f"The zip code is {v}.",
    }
    return " ".join(formatters[name](value) for name, value in record.items())


def _schema(record: dict[str, Any]) -> dict[str, Any]:
    kinds = {"age": "integer", "member": "boolean", "height": "number"}
    properties: dict[str, Any] = {name: {"type": kinds.get(name, "string")} for name in record}
    if "likes" in record:
        properties["likes"] = {"type": "array", "items": {"type": "string"}}
    return {
        "type": "object",
        "properties": properties,
        "required": list(record),
        "additionalProperties": False,
    }


def _same(left: Any, right: Any) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and left == right
