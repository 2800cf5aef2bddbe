"""Ceilings of the house: what a reader has to hold in mind. They may fall, and never rise."""

from __future__ import annotations

import ast
import collections
import subprocess
import sys
import threading
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "jaxrl"
VAGUE = frozenset({
    "made", "found", "given", "own", "each", "whole", "asked", "here", "shown", "kept", "known",
    "taken", "wanted", "drawn", "said", "seen", "held", "more", "some", "one", "several",
    "others", "other", "begun", "now", "named", "told", "taught", "written", "settled",
    "measured", "sent", "there", "of", "on", "by",
})  # fmt: skip
"""Participles and pronouns that name nothing when they stand alone."""
VAGUE_SHARE = {
    "config": 0.1, "control": 0.1, "data": 0.7, "extensions": 0.7, "launch": 0.1, "losses": 0.1,
    "mesh": 0.1, "models": 0.1, "record": 0.4, "rollout": 0.5, "run": 0.1, "sampling": 0.2,
    "training": 0.2,
}  # fmt: skip
"""Per cent of the names bound in a package. The aim is 0.5."""
MODULES = {"rollout": 25, "models": 20, "extensions": 24, "run": 17}
"""Modules of a folder that has more than 15, `__init__` aside."""
SAME_NAMES = 50
"""Module names that the library has twice or more."""
SAME_CLASSES = 40
"""Public class names that the library has twice or more."""
LONGEST = 440
"""Lines of a module."""
TRACKED = 1700
"""Files of a clone."""
STEP_FILES = 71
"""Files of the library with a function that runs in a plain training step."""


def modules() -> list[Path]:
    """The Python files of the library."""
    return sorted(LIBRARY.rglob("*.py"))


def dotted(path: Path) -> str:
    """The name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def bound_names(tree: ast.Module) -> list[str]:
    """Every name that a module binds: variables, parameters and functions."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
    return names


@pytest.mark.parametrize("package", sorted(VAGUE_SHARE))
def test_names_say_what_they_hold(package):
    names = [
        name
        for path in (LIBRARY / package).rglob("*.py")
        for name in bound_names(ast.parse(path.read_text()))
    ]
    share = 100 * sum(name in VAGUE for name in names) / len(names)
    assert share <= VAGUE_SHARE[package], f"{share:.2f} per cent"


def test_every_package_has_a_ceiling_of_vague_names():
    packages = {path.parent.name for path in LIBRARY.glob("*/__init__.py")}
    assert packages == VAGUE_SHARE.keys()


def test_a_folder_has_at_most_15_modules():
    for folder in sorted({path.parent for path in modules()}):
        count = sum(path.name != "__init__.py" for path in folder.glob("*.py"))
        ceiling = MODULES.get(folder.name, 15) if folder.parent == LIBRARY else 15
        assert count <= ceiling, f"{folder.relative_to(ROOT)} has {count}"


def test_few_modules_have_the_same_name():
    names = collections.Counter(path.stem for path in modules() if path.name != "__init__.py")
    twice = sorted(name for name, count in names.items() if count > 1)
    assert len(twice) <= SAME_NAMES, twice


def test_few_public_classes_have_the_same_name():
    classes = collections.Counter(
        node.name
        for path in modules()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    # A config of every algorithm of control is called Config.
    twice = sorted(name for name, count in classes.items() if count > 1)
    assert len(twice) <= SAME_CLASSES, twice


def test_a_module_can_be_read_at_a_sitting():
    lines = {path: len(path.read_text().splitlines()) for path in modules()}
    path = max(lines, key=lambda p: lines[p])
    assert lines[path] <= LONGEST, f"{path.relative_to(ROOT)}: {lines[path]}"


def test_a_clone_is_small():
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a Git checkout")
    assert len(listing.stdout.splitlines()) < TRACKED


def imports_of(path: Path, known: set[str]) -> set[str]:
    """The modules of the library that a module imports when it is imported itself."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in known else str(node.module) for name in full}
    return names & known


def test_no_modules_import_each_other():
    known = {dotted(path) for path in modules()}
    graph = {dotted(path): imports_of(path, known) - {dotted(path)} for path in modules()}
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.broad
def test_the_library_never_names_the_laboratory():
    for path in modules():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] != "experiments", path
            elif isinstance(node, ast.Import):
                assert all(a.name.partition(".")[0] != "experiments" for a in node.names), path


def test_each_requirement_names_its_oldest_version():
    """CI tests with these; a requirement without one would be tested with any."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for need in map(Requirement, project["dependencies"]):
        assert any(bound.operator in (">=", "==") for bound in need.specifier), need


def functions_of_a_step(directory: Path) -> dict[str, set[str]]:
    """The files of the library, each with its functions that run in the second step of the tests'
    smallest run with a KL penalty. Those that are traced in it are among them."""
    from jaxrl.run import loop
    from tests.jaxrl import tiny

    functions = collections.defaultdict(set)
    in_step = False

    def watch(frame, event, _):
        code = frame.f_code
        if in_step and event == "call" and code.co_filename.startswith(str(LIBRARY)):
            path = Path(code.co_filename).relative_to(LIBRARY)
            functions[str(path)].add(code.co_qualname)

    def stage(name, done, total):
        nonlocal in_step
        in_step = (name, done) == ("train", 1)

    changes = {"objective.kl_coef": 0.04, "warm_start.steps": 0, "steps": 3, "eval.every": 0}
    config = tiny.config(directory / "run", **changes, **{"checkpoint.every": 3})
    sys.setprofile(watch)
    threading.setprofile(watch)
    try:
        loop.train(config, loop.Callbacks(stage=stage))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return functions


@pytest.mark.broad
def test_a_step_runs_functions_of_few_files(tmp_path):
    functions = functions_of_a_step(tmp_path)
    assert len(functions) <= STEP_FILES, sorted(functions)
    assert {"run/step.py", "rollout/drive.py", "training/packing.py"} <= functions.keys()
