"""Which code a row of control was measured with: a hash of what its algorithm computes."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import jaxrl
from jaxrl.control import algorithms

ROOT = Path(jaxrl.__file__).parent.parent
PARTS = ("jaxrl.control.algorithms.", "jaxrl.control.on_policy", "jaxrl.models.control.")
LOSSES = ("jaxrl.losses.control", "jaxrl.losses.value")
"""Modules that belong to an algorithm where it imports them: other algorithms, networks, losses.
The loop around it, which the tests hold to its results, does not."""


@functools.cache
def code_of(algorithm: str) -> str:
    """Twelve hex digits of the algorithm's files: their docstrings, comments and names aside.

    A name that the files bind themselves counts as the place at which it first stands, so that
    giving it another changes nothing; the names of others, such as `jnp.min`, count as they are.
    """
    modules, trees = [algorithms.load(algorithm).__name__], dict[str, ast.Module]()
    while modules:
        name = modules.pop()
        path = ROOT / (name.replace(".", "/") + ".py")
        if name in trees or not path.exists():
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules += [m for m in _imports(tree) if m.startswith(PARTS) or m in LOSSES]
        trees[name] = _without_texts(tree)
    return hash_of([trees[name] for name in sorted(trees)])


def hash_of(trees: Sequence[ast.Module]) -> str:
    """Twelve hex digits of modules, whatever they call what they bind."""
    bound = {name for tree in trees for name in _bound(tree)}
    numbers: dict[str, int] = {}

    def number(name: str) -> str:
        return f"_{numbers.setdefault(name, len(numbers))}" if name in bound else name

    bodies = [[s for s in t.body if not isinstance(s, (ast.Import, ast.ImportFrom))] for t in trees]
    for tree, body in zip(trees, bodies, strict=True):
        # imports last: their order follows the names
        imports = [s for s in tree.body if s not in body]
        for node in (n for statement in [*body, *imports] for n in _in_order(statement)):
            for field in ("id", "arg", "name", "attr"):
                if isinstance(getattr(node, field, None), str):
                    setattr(node, field, number(getattr(node, field)))
    texts = [ast.dump(s) for body in bodies for s in body]
    texts += sorted(ast.dump(s) for t, body in zip(trees, bodies, strict=True)
                    for s in t.body if s not in body)  # fmt: skip
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def _bound(tree: ast.Module) -> set[str]:
    """Every name that a module binds: variables, parameters, functions and classes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, as they stand in the text."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


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
