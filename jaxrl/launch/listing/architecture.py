"""`python -m jaxrl.launch.listing.architecture`: draw the figures of docs/architecture.md from the
imports.

The page is written by hand but for what stands between `<!-- NAME -->` and `<!-- end -->`: the
packages and what they import, the packages' summaries, and the modules of the core with their
imports. Imports that follow from other imports are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "architecture.md"
BASE = ("losses", "models", "data")
"""Packages that import no other package of jaxrl."""
OUTSIDE = (*BASE, "control", "launch")
"""Packages whose modules are not drawn one by one."""

Graph = Mapping[str, set[str]]
"""What each node imports."""


def files(root: Path = ROOT) -> dict[str, Path]:
    """Every module of jaxrl by its dotted name below `jaxrl`; a package by its own name."""
    paths = {}
    for folder in sorted(path for path in (root / "jaxrl").iterdir() if path.is_dir()):
        for path in folder.resolve().rglob("*.py"):
            parts = (folder.name, *path.relative_to(folder.resolve()).with_suffix("").parts)
            paths[".".join(parts).removesuffix(".__init__")] = path
    paths |= {path.stem: path for path in (root / "jaxrl").glob("*.py") if path.stem != "__init__"}
    return dict(sorted(paths.items()))


def imports(paths: Mapping[str, Path]) -> dict[str, set[str]]:
    """The modules that each module imports by a statement anywhere in its file."""
    return {name: _imported(path, paths) - {name} for name, path in paths.items()}


def _imported(path: Path, paths: Mapping[str, Path]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {
                name if name.removeprefix("jaxrl.") in paths else node.module for name in full
            }
    modules = (name.removeprefix("jaxrl.") for name in names if name.startswith("jaxrl."))
    return {name for name in modules if name in paths}


def by_package(graph: Graph) -> dict[str, set[str]]:
    """The packages and what they import of each other; modules that lie in none are left out."""
    packages: dict[str, set[str]] = {
        name: set() for name in graph if "." not in name and name in _tops(graph)
    }
    for name, dependencies in graph.items():
        package = name.partition(".")[0]
        if package in packages:
            tops = {dependency.partition(".")[0] for dependency in dependencies}
            packages[package] |= {top for top in tops if top in packages} - {package}
    return packages


def _tops(graph: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in graph if "." in name}


def reduced(graph: Graph) -> dict[str, set[str]]:
    """The graph without the edges that follow from others, its nodes in order of dependence.

    Raises:
      graphlib.CycleError: there is a cycle.
    """
    reach: dict[str, set[str]] = {}
    for name in TopologicalSorter(
        {name: sorted(graph[name]) for name in sorted(graph)}
    ).static_order():
        reach[name] = set(graph[name]).union(*(reach[dependency] for dependency in graph[name]))
    return {
        name: {o for o in graph[name] if not any(o in reach[p] for p in graph[name] - {o})}
        for name in reach
    }


def packages_figure(graph: Graph) -> str:
    """The packages as a Mermaid flow chart, an arrow from each to what it imports."""
    edges = reduced(by_package(graph))
    lines = [f"    {a} --> {b}" for a in reversed(edges) for b in sorted(edges[a])]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def packages_table(graph: Graph, paths: Mapping[str, Path]) -> str:
    """Each package with the first line of its docstring, those that import nothing last."""
    order = reversed(reduced(by_package(graph)))
    rows = [f"| `jaxrl.{name}` | {_summary(paths[name])} |" for name in order]
    return "\n".join(["| package | |", "|---|---|", *rows])


def _summary(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def modules_figure(graph: Graph) -> str:
    """The modules of the core by package, each with what it imports of the core.

    A package that re-exports names of its modules is drawn too, as a module of `jaxrl`.
    """
    packages = reduced(by_package(graph))
    core = {
        n: w
        for n, w in graph.items()
        if n.partition(".")[0] not in OUTSIDE and (w or n not in packages)
    }
    edges = reduced({name: dependencies & core.keys() for name, dependencies in core.items()})
    width = max(len(name.rpartition(".")[2]) for name in core)
    lines = []
    for package in ["", *(name for name in packages if name not in OUTSIDE)]:
        modules = [name for name in edges if name.rpartition(".")[0] == package]
        lines += ["", f"jaxrl/{package}"]
        for name in modules:
            import_list = ", ".join(
                sorted(_short(dependency, package) for dependency in edges[name])
            )
            lines.append(f"  {name.rpartition('.')[2]:{width}}  {import_list}".rstrip())
    return "\n".join(["```", *lines[1:], "```"])


def _short(name: str, package: str) -> str:
    """A module's name as another of `package` may call it."""
    home, _, last = name.rpartition(".")
    return last if home == package else name


def with_figures(text: str, root: Path = ROOT) -> str:
    """The page with its figures drawn anew."""
    paths = files(root)
    graph = imports(paths)
    figures = {
        "packages": packages_figure(graph),
        "summaries": packages_table(graph, paths),
        "modules": modules_figure(graph),
    }
    for name, figure in figures.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda m, f=figure: f"{m[1]}{f}\n{m[2]}", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    PAGE.write_text(with_figures(PAGE.read_text()))
