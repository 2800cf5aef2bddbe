"""Imports point down, every module has one name, and importing does nothing."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BASE = {"losses", "models", "data"}
SHARED = {"gguf_file"}
"""Modules that import nothing of ours, and that every package may use."""
CORE = {
    "mesh", "sampling", "training", "config", "record", "rollout", "run", "extensions", "control",
}  # fmt: skip
FOLDERS = {*BASE, "launch"}
"""Packages of jaxrl that the top of the repository names too, by symbolic links."""


def modules(folder: Path) -> list[Path]:
    """Python files of a folder, without those that it reaches through a symbolic link."""
    found = [Path(at) / file for at, _, files in os.walk(folder) for file in files]
    return sorted(path for path in found if path.suffix == ".py")


def imported(path: Path) -> set[str]:
    """Dotted names of every import anywhere in a file, imported names included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import; write it in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def packages(path: Path) -> set[str]:
    """Which packages of jaxrl a file imports from."""
    split = [name.split(".") for name in imported(path)]
    return {parts[1] for parts in split if parts[0] == "jaxrl" and len(parts) > 1}


@pytest.mark.parametrize("package", sorted(BASE))
def test_a_base_package_imports_nothing_else_of_ours(package):
    for path in modules(ROOT / "jaxrl" / package):
        wrong = packages(path) - {package} - SHARED
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_nothing_but_launch_and_tests_imports_launch_or_tests():
    for path in modules(ROOT / "jaxrl"):
        if path.relative_to(ROOT).parts[1] != "launch":
            assert "launch" not in packages(path), path.relative_to(ROOT)
            tops = {name.split(".")[0] for name in imported(path)}
            assert "tests" not in tops, path.relative_to(ROOT)


@pytest.mark.broad
def test_the_links_at_the_top_lead_into_the_package_and_nothing_imports_through_them():
    """A module that was imported through a link too would exist twice. A checkout without symbolic
    links holds files in their place, whose text is the path."""
    for folder in FOLDERS:
        link = ROOT / folder
        target = link.readlink() if link.is_symlink() else Path(link.read_text())
        assert target == Path("jaxrl") / folder
        assert (ROOT / target).is_dir()
    for path in modules(ROOT):
        if path.relative_to(ROOT).parts[0] in {"jaxrl", "tests"}:
            tops = {name.split(".")[0] for name in imported(path)}
            assert not tops & FOLDERS, f"{path.relative_to(ROOT)} imports {tops & FOLDERS}"


def test_the_core_has_no_other_package():
    found = {path.parent.name for path in (ROOT / "jaxrl").glob("*/__init__.py")}
    assert found == CORE | FOLDERS


def test_the_rule_sees_an_import_inside_a_function(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("def f():\n    from jaxrl.run import loop\n    import jaxrl.data.tasks as t\n")
    assert packages(file) == {"run", "data"}


def test_data_runs_no_jitted_code():
    for path in modules(ROOT / "jaxrl" / "data"):
        tops = {name.split(".")[0] for name in imported(path)}
        assert "jax" not in tops, path.relative_to(ROOT)


def test_importing_starts_no_backend_and_loads_each_file_once():
    """`jax.distributed` must be able to start after the imports, and flags still count."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in modules(ROOT / "jaxrl")
        if not {"data", "launch"} & {*path.parts}
    ]
    names = [name.removesuffix(".__init__") for name in names]
    program = (
        f"import importlib, os, sys\nfor m in {names!r}: importlib.import_module(m)\n"
        "from jax._src import xla_bridge\nassert not xla_bridge.backends_are_initialized()\n"
        f"root = {str(ROOT)!r}\n"
        "files = [os.path.realpath(m.__file__) for m in list(sys.modules.values())\n"
        "         if getattr(m, '__file__', None)]\n"
        "files = [f for f in files if f.startswith(root) and 'site-packages' not in f]\n"
        "assert len(files) == len(set(files)) > 100, len(files)\n"
        "import jax\njax.devices()\nassert xla_bridge.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=300)
