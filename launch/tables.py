"""The commands that list things: recipes, tasks, losses; and a recipe's full config."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxrl import config as configs
from jaxrl.launch import flags, losses_table, tasks_table
from jaxrl.launch import recipes as library
from jaxrl.launch.cli import refused


@dataclasses.dataclass(frozen=True)
class Listing:
    """How a table is printed."""

    json: bool = False
    """Print a JSON list of objects."""


def recipes(argv: list[str]) -> int:
    """`jaxrl recipes`."""
    return _print(library.rows(), ("name", "summary", "model", "steps"), argv, "recipes")


def tasks(argv: list[str]) -> int:
    """`jaxrl tasks`."""
    return _print(tasks_table.rows(), ("name", "description"), argv, "tasks")


def losses(argv: list[str]) -> int:
    """`jaxrl losses`."""
    return _print(losses_table.rows(), ("name", "kind", "paper"), argv, "losses")


def show(argv: list[str]) -> int:
    """`jaxrl show RECIPE [flags]`: the resolved config as JSON."""
    name, rest = flags.recipe(argv)
    try:
        config = flags.parse(library.load(name), rest, prog=f"jaxrl show {name}")
    except ValueError as error:
        return refused(error)
    print(json.dumps(configs.to_dict(config), indent=2))
    return 0


def _print(rows: list[dict[str, Any]], columns: tuple[str, ...], argv: list[str], name: str) -> int:
    if flags.parse(Listing(), argv, prog=f"jaxrl {name}").json:
        print(json.dumps(rows, indent=2))
        return 0
    table = Table(*columns, row_styles=("", "dim"))
    for row in rows:
        table.add_row(*(escape(str(row[column])) for column in columns))
    Console().print(table)
    return 0
