"""Which code a row of control was measured with: a hash of what its algorithm computes."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import jaxrl
from jaxrl.control import algorithms

ROOT = Path(jaxrl.__file__).parent.parent
PARTS = ("jaxrl.control.algorithms.", "jaxrl.control.on_policy", "jaxrl.models.control.")
LOSSES = ("jaxrl.losses.control", "jaxrl.losses.value")
"""Modules that belong to an algorithm where it imports them: other algorithms, networks, losses.
The loop around it, which the tests hold to its results, does not."""


def code_of(algorithm: str) -> str:
    """Twelve hex digits of the algorithm's files, docstrings and comments aside."""
    modules, found = [algorithms.load(algorithm).__name__], dict[str, str]()
    while modules:
        name = modules.pop()
        path = ROOT / (name.replace(".", "/") + ".py")
        if name in found or not path.exists():
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules += [m for m in _imports(tree) if m.startswith(PARTS) or m in LOSSES]
        found[name] = ast.dump(_without_texts(tree))
    whole = "\n".join(f"{name} {found[name]}" for name in sorted(found))
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


def _imports(tree: ast.Module) -> list[str]:
    """Every module that a file may import, and `module.name` of every name that it takes."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


def _without_texts(tree: ast.Module) -> ast.Module:
    """The tree without statements that are strings alone."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [s for s in body if not _is_text(s)]  # type: ignore[attr-defined]
    return tree


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
