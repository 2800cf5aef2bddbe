"""A tool that passes questions on to other models, which differ in price."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxrl.data.environments.tools.definition import Tool
from jaxrl.data.rewards.judged import judge
from jaxrl.data.sources import records

SECONDS = 30.0
"""Limit of a call, with the attempts that it takes."""
_FIELDS = ("name", "url", "model", "price", "about", "key_variable")


class Model(NamedTuple):
    """A model that can be asked."""

    endpoint: judge.Endpoint
    price: float
    """Of a reply."""
    about: str


def router(models: str) -> Tool:
    """Other models to ask, each at its price.

    What the replies of an episode cost is its part `spent`. A model that gives no reply costs
    nothing.

    Args:
      models: file of records, see `jaxrl.data.sources.records`, with the `name`, `url`, `model`
        and `price` of each: of its OpenAI-compatible endpoint, as that of `jaxrl serve`, and in
        any unit. They may have `about`, which the policy reads, and `key_variable`, the
        environment variable with the key.

    Raises:
      ValueError: a record is something else.
    """
    table, spent = _table(models), [0.0]

    def run(model: str, question: str) -> str:
        entry = table[model]
        try:
            reply = asyncio.run(judge.ask(entry.endpoint, question))
        except judge.JudgeError as error:
            raise ValueError(f"{model} gave no reply: {error}") from error
        spent[0] += entry.price
        return reply

    listed = "; ".join(
        f"{name}: costs {model.price:g}{', ' * bool(model.about)}{model.about}"
        for name, model in table.items()
    )
    properties = {
        "model": {"type": "string", "enum": list(table), "description": "which to ask."},
        "question": {"type": "string", "description": "all that the model is told."},
    }
    return Tool(
        "router",
        f"Asks another model. {listed}",
        {"properties": properties, "required": list(properties), "additionalProperties": False},
        run,
        parts=lambda: {"spent": spent[0]},
    )


@functools.lru_cache(maxsize=4)
def _table(models: str) -> dict[str, Model]:
    table = dict[str, Model]()
    for number, record in enumerate(records.read(models), 1):
        where = f"models={models!r}, record {number}"
        name = _text(record, "name", where)
        if name in table:
            raise ValueError(f"{where}: name={name!r} is that of another record; give it its own")
        table[name] = _model(record, where)
    if not table:
        raise ValueError(f"models={models!r} has no record; give one or more")
    return table


def _model(record: Mapping[str, Any], where: str) -> Model:
    if unknown := sorted(set(record) - set(_FIELDS)):
        raise ValueError(f"{where}: {unknown[0]!r} is none of {', '.join(_FIELDS)}")
    price, url = record.get("price"), _text(record, "url", where)
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
        raise ValueError(f"{where}: price={price!r} must be a number, 0 or more")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{where}: url={url!r} must begin with http:// or https://")
    endpoint = judge.Endpoint(
        url, _text(record, "model", where), _text(record, "key_variable", where, ""),
        timeout_s=SECONDS, attempts=3, total_s=SECONDS,
    )  # fmt: skip
    return Model(endpoint, float(price), _text(record, "about", where, ""))


def _text(record: Mapping[str, Any], field: str, where: str, default: str | None = None) -> str:
    value = record.get(field, default)
    if not isinstance(value, str) or (default is None and not value):
        raise ValueError(f"{where}: {field}={value!r} must be a text")
    return value
