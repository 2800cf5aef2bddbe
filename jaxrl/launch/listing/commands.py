"""The commands that list things: recipes, tasks, losses, extensions; and a recipe's full config."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import json
import textwrap
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxrl import config as configs
from jaxrl import functions
from jaxrl.config import Config
from jaxrl.launch import algorithms, needs
from jaxrl.launch import recipes as library
from jaxrl.launch.cli import COMMANDS, REFUSALS, refused
from jaxrl.launch.listing import losses_table, tasks_table
from jaxrl.launch.settings import configs as recipe_files
from jaxrl.launch.settings import flags

_COLUMNS = ("name", "summary", "model", "steps")


@dataclasses.dataclass(frozen=True)
class Listing:
    """How a table is printed."""

    json: bool = False
    """Print a JSON list of objects."""


def recipes(argv: list[str]) -> int:
    """`jaxrl recipes [NAME] [--json] [--for FILE]`: algorithms, ready runs, and methods.

    `--for FILE` lists the methods that have what they need in a file of prompts, and what the
    others need.
    """
    recipe_rows = [{**row, "needs": needs.needs_of(str(row["name"]))} for row in library.rows()]
    if argv[:1] == ["--for"]:
        return _for_file(argv[1:])
    if argv and not argv[0].startswith("-"):
        for row in recipe_rows:
            row["measured"] = library.measurements().get(str(row["id"]), "not in the laboratory")
        return _one(argv[0], [*algorithms.rows(), *recipe_rows])
    listed = [
        {"kind": "algorithm", "needs": [], "source": "", "fidelity": "", **row}
        for row in algorithms.rows()
    ]
    if flags.parse(Listing(), argv, prog="jaxrl recipes [NAME]").json:
        print(json.dumps([*listed, *recipe_rows], indent=2))
        return 0
    console = Console()
    for title, columns, rows in (
        ("algorithms, on any model and data", ("name", "summary", "paper"), listed),
        ("ready runs", _COLUMNS, [row for row in recipe_rows if row["kind"] == "ready"]),
        ("fine-tuning from data", _COLUMNS, [row for row in recipe_rows if row["kind"] == "data"]),
        (
            "methods of the literature",
            _COLUMNS,
            [row for row in recipe_rows if row["kind"] == "method"],
        ),
    ):
        console.print(_table(rows, columns, title))
    console.print("train one: jaxrl train NAME --model DIR --data FILE --reward REWARD")
    return 0


def group(argv: list[str]) -> int:
    """`jaxrl help GROUP`: the flags of one group of the config, or of an extension.

    Without a group, all flags of `jaxrl train`.
    """
    if not argv:
        return _every_group()
    name = argv[0].replace("-", "_").removeprefix("__").split(".")[0]
    config = Config()
    if name in functions.bundled_extensions():
        config = configs.extended(config, name)
    part = flags.at(config, name)
    if not dataclasses.is_dataclass(part):
        groups = [
            f.name
            for f in dataclasses.fields(config)
            if dataclasses.is_dataclass(getattr(config, f.name))
        ]
        hint = functions.nearest(name, [*groups, *functions.bundled_extensions(), *COMMANDS])
        return refused(ValueError(f"there is no group {name!r} of flags; {hint}"))
    Console().print(_flags(part, _explained(part, f"--{name.replace('_', '-')}.")))
    return 0


def _every_group() -> int:
    """All flags of a run by group, those of no group first."""
    console, config = Console(), Config()
    console.print(_flags(config, _explained(config, "--", nested=False)))
    for field in dataclasses.fields(config):
        part = getattr(config, field.name)
        if dataclasses.is_dataclass(part):
            console.print(_flags(part, _explained(part, f"--{field.name.replace('_', '-')}.")))
    names = ", ".join(functions.bundled_extensions())
    console.print(f"--with NAME adds an extension, whose flags `jaxrl help NAME` lists: {names}")
    return 0


def _flags(part: Any, rows: Iterable[tuple[str, str, str]]) -> Table:
    """Flags as a table under what their dataclass says of itself."""
    table = Table("flag", "default", "meaning", title=" ".join((part.__doc__ or "").split()))
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _explained(part: Any, prefix: str, *, nested: bool = True) -> Iterator[tuple[str, str, str]]:
    """Flag, default and help of each field of a dataclass, with `nested` those inside it too."""
    helps = _helps(type(part))
    for field in dataclasses.fields(part):
        value, flag = getattr(part, field.name), prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            if nested:
                yield from _explained(value, f"{flag}.")
            continue
        kind = typing.get_type_hints(type(part))[field.name]
        choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
        text = " ".join(filter(None, (helps.get(field.name, ""), _choices(choices))))
        yield flag, json.dumps(value, default=str), text


def _choices(choices: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, choices))})" if choices else ""


def _helps(kind: type) -> dict[str, str]:
    """The texts below the fields of a dataclass."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def tasks(argv: list[str]) -> int:
    """`jaxrl tasks [NAME]`."""
    if argv and not argv[0].startswith("-"):
        return _one(argv[0], tasks_table.rows())
    return _print(tasks_table.rows(), ("name", "description"), argv, "tasks")


def losses(argv: list[str]) -> int:
    """`jaxrl losses [NAME]`."""
    if argv and not argv[0].startswith("-"):
        return _one(argv[0], losses_table.rows())
    return _print(losses_table.rows(), ("name", "kind", "paper"), argv, "losses")


def extensions(argv: list[str]) -> int:
    """`jaxrl extensions [NAME]`: those of `--with`, or the flags of one."""
    names = functions.bundled_extensions()
    if argv and not argv[0].startswith("-"):
        name = argv[0].replace("-", "_")
        if name not in names:
            hint = functions.nearest(name, names)
            return refused(ValueError(f"extension {name!r} is unknown; {hint}"))
        return group([name])
    rows = [{"name": name, "summary": _summary(f"jaxrl.extensions.{name}")} for name in names]
    return _print(rows, ("name", "summary"), argv, "extensions")


def _summary(module: str) -> str:
    """The first sentence of a module's docstring, on one line."""
    text = " ".join((importlib.import_module(module).__doc__ or "").split())
    sentence, end, _ = text.partition(". ")
    return sentence + end.strip()


def show(argv: list[str]) -> int:
    """`jaxrl show RECIPE [--yaml] [--check] [flags]`: the resolved config as JSON or YAML.

    `--check` checks instead all that `train` checks before it loads weights, and whether the
    recipe's method is what would be trained.
    """
    as_yaml, check = "--yaml" in argv, "--check" in argv
    try:
        config, _ = recipe_files.resolve(
            [a for a in argv if a not in ("--yaml", "--check")], "show"
        )
        if check:
            print(needs.verdict(config))
            return 0
    except REFUSALS as error:
        return refused(error)
    text = recipe_files.dump(config) if as_yaml else json.dumps(configs.to_dict(config), indent=2)
    print(text.rstrip("\n"))
    return 0


def _for_file(argv: list[str]) -> int:
    """The methods for a file."""
    try:
        rows = needs.for_file(*argv[:1]) if argv else []
    except REFUSALS as error:
        return refused(error)
    if not rows:
        return refused(ValueError("--for needs a FILE"))
    if "--json" in argv:
        print(json.dumps(rows, indent=2))
        return 0
    console = Console()
    ready = [row for row in rows if not row["missing"]]
    console.print(_table(ready, ("name", "summary"), f"methods for {escape(argv[0])}"))
    rest = [{**row, "missing": ", ".join(row["missing"])} for row in rows if row["missing"]]
    console.print(_table(rest, ("name", "missing"), "methods that need more"))
    for need, flag in needs.FLAGS.items():
        console.print(f"{need}: {flag}", markup=False)
    return 0


def _one(name: str, rows: list[dict[str, Any]]) -> int:
    """Print all that is known of one thing."""
    spelled = algorithms.canonical(name)
    row = next((row for row in rows if row["name"] in (name, spelled)), None)
    if row is None:
        hint = functions.nearest(spelled, [row["name"] for row in rows])
        return refused(ValueError(f"{name!r} is unknown; {hint}"))
    table = Table(show_header=False)
    for key, value in row.items():
        if isinstance(value, dict):
            for inner, entry in value.items():
                table.add_row(escape(f"{key}.{inner}"), escape(_flat(entry)))
        else:
            table.add_row(escape(key), escape(_flat(value)))
    Console().print(table)
    return 0


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {entry}" for name, entry in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _print(rows: list[dict[str, Any]], columns: tuple[str, ...], argv: list[str], name: str) -> int:
    if flags.parse(Listing(), argv, prog=f"jaxrl {name} [NAME]").json:
        print(json.dumps(rows, indent=2))
        return 0
    Console().print(_table(rows, columns))
    return 0


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...], title: str = "") -> Table:
    table = Table(*columns, row_styles=("", "dim"), title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*(escape(str(row[column])) for column in columns))
    return table
