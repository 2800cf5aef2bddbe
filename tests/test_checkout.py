"""A checkout without symbolic links, as on Windows and from many zip tools, is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINKS = ("data", "launch", "losses", "models")


def clone(where: Path, *, links: bool) -> Path:
    """The last commit, cloned with or without symbolic links."""
    option = f"core.symlinks={str(links).lower()}"
    command = ["git", "clone", "-q", "-c", option, str(ROOT), str(where)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if run.returncode:
        pytest.skip(f"not a Git checkout: {run.stderr.strip()[:200]}")
    return where


def packaged(where: Path) -> list[str]:
    """The modules that a wheel of this checkout holds."""
    find_packages = pytest.importorskip("setuptools").find_packages
    folders = [name.replace(".", "/") for name in find_packages(str(where), include=["jaxrl*"])]
    return sorted(
        str(path.relative_to(where)) for folder in folders for path in (where / folder).glob("*.py")
    )


@pytest.mark.broad
def test_a_checkout_without_links_has_the_same_modules_and_imports(tmp_path):
    usual, without = clone(tmp_path / "usual", links=True), clone(tmp_path / "x", links=False)
    assert all((usual / name).is_dir() for name in LINKS)
    assert not any((without / name).is_dir() for name in LINKS)
    modules = packaged(without)
    assert modules == packaged(usual) and len(modules) > 500
    folders = {Path(module).parts[1] for module in modules if len(Path(module).parts) > 2}
    assert folders >= {*LINKS, "run", "rollout", "training", "sampling"}
    program = "; ".join(f"import jaxrl.{name}" for name in [*LINKS, "run.loop", "launch.cli"])
    check = f"{program}; assert jaxrl.losses.__file__.startswith({str(without)!r})"
    environment = os.environ | {"PYTHONPATH": str(without)}
    subprocess.run([sys.executable, "-c", check], check=True, cwd=tmp_path, env=environment)
