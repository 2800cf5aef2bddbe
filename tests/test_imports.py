"""Imports point down, and importing does nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "losses": {"losses"},
    "models": {"models"},
    "data": {"data"},
    "jaxrl": {"jaxrl", "losses", "models", "data"},
    "launch": {"launch", "jaxrl", "losses", "models", "data"},
}
"""What each top-level package may import of ours."""


def imported(path: Path) -> set[str]:
    """Top-level names of every import anywhere in a file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import; write it in full"
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_down(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        wrong = imported(path) & (ALLOWED.keys() | {"tests"}) - ALLOWED[package]
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_the_rule_would_catch_an_import_inside_a_function(tmp_path):
    file = tmp_path / "room.py"
    file.write_text("def f():\n    from jaxrl import loop\n    import data.tasks as t\n")
    assert imported(file) == {"jaxrl", "data"}


def test_data_runs_no_jitted_code():
    for path in sorted((ROOT / "data").rglob("*.py")):
        assert "jax" not in imported(path), path.relative_to(ROOT)


def test_importing_starts_no_backend():
    """`jax.distributed` must be able to start after the imports, and flags still count."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("losses", "models", "jaxrl")
        for path in sorted((ROOT / package).glob("*.py"))
        if path.stem != "__init__"
    ]
    program = (
        f"import importlib\nfor m in {modules!r}: importlib.import_module(m)\n"
        "from jax._src import xla_bridge\nassert not xla_bridge.backends_are_initialized()\n"
        "import jax\njax.devices()\nassert xla_bridge.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=300)
