"""The table of everything in `losses`, read from the functions themselves.

Every public function of a module of `losses` is a row: its docstring gives the summary, the formula
and the paper, its module the kind (the module's `KIND`, or its name). Nothing is registered.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from types import ModuleType

from jaxrl import losses

HELPERS = ("masking", "parts", "shapes")
"""Modules of arithmetic that objectives share; their functions are not objectives."""

_HEADER = """# Losses

Generated from the docstrings by `python -m jaxrl.launch.listing.losses_table > docs/losses.md`; do
not edit.

Arrays in, unreduced arrays out: reduce with `jaxrl.losses.reduce.aggregate`. `[B, T]` is batch by
tokens.

Shapes and dtypes that a docstring gives are checked at each call, or at each trace under `jax.jit`.
Five functions have none to check: `masked_mean` and `conjugate` take any shape; `chord_mu`,
`adaptive_kl_coefficient` and `proportional_kl_coefficient` take scalars.
"""


def rows() -> list[dict[str, str]]:
    """One object per public function, ordered by kind, module and place in the file.

    Returns:
      Objects with `name`, `kind`, `paper`, `module`, `summary` and `formula`; a field that the
      docstring does not give is empty.
    """
    return [_row(module, function) for module in modules() for function in functions(module)]


def modules() -> Iterator[ModuleType]:
    """The modules of `losses`, helpers left out, ordered by kind and then by name."""
    names = [
        module.name
        for module in pkgutil.walk_packages(losses.__path__, f"{losses.__name__}.")
        if not module.ispkg and module.name.rpartition(".")[2] not in HELPERS
    ]
    yield from sorted(map(importlib.import_module, names), key=lambda m: (_kind(m), m.__name__))


def functions(module: ModuleType) -> list[Callable]:
    """The public functions that a module defines (not those it imports), in order."""
    return [
        f
        for name, f in vars(module).items()
        if inspect.isfunction(f) and f.__module__ == module.__name__ and not name.startswith("_")
    ]


def markdown() -> str:
    """The table as a document: one section a kind, one row a function."""
    parts, kind = [_HEADER], None
    for row in rows():
        if row["kind"] != kind:
            kind = row["kind"]
            parts.append(f"\n## {kind[0].upper()}{kind[1:]}\n")
            parts.append("| function | what it is | formula | paper |\n|---|---|---|---|")
        function = f"`{row['module']}.{row['name']}`"
        cells = (function, row["summary"], row["formula"], row["paper"])
        parts.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(parts) + "\n"


def _row(module: ModuleType, function: Callable) -> dict[str, str]:
    doc = inspect.getdoc(function) or ""
    return {
        "name": function.__name__,
        "kind": _kind(module),
        "paper": _field(doc, "Paper"),
        "module": module.__name__,
        "summary": doc.partition("\n")[0],
        "formula": _field(doc, "Formula"),
    }


def _kind(module: ModuleType) -> str:
    return getattr(module, "KIND", module.__name__.rpartition(".")[2])


def _field(doc: str, name: str) -> str:
    """The text after `name:`, with its indented continuation lines joined."""
    match = re.search(rf"^{name}: (.*(?:\n +.*)*)", doc, re.MULTILINE)
    return re.sub(r"\s+", " ", match[1]).strip() if match else ""


if __name__ == "__main__":
    print(markdown(), end="")
