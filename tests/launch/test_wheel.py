"""The built wheel beside a project whose own modules bear the names of jaxrl's folders."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest

from tests.jaxrl import tiny
from tests.jaxrl.run.test_extension import small

OWN = ("data/__init__.py", "launch/__init__.py", "models.py", "losses.py")


@pytest.mark.slow
def test_the_wheel_trains_beside_modules_of_the_same_names(tmp_path):
    """Installed into a fresh environment, which finds jaxrl's dependencies in this one."""
    source = tmp_path / "source"  # a build leaves files behind
    hidden = shutil.ignore_patterns(".*", "build", "*.egg-info", "runs", "__pycache__")
    shutil.copytree(tiny.ROOT, source, symlinks=True, ignore=hidden)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", tmp_path, source], check=True, timeout=300)
    (wheel,) = tmp_path.glob("jaxrl-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, timeout=300)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # not read again for .pth files, so an editable install of jaxrl there is not found
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    project = tmp_path / "project"
    for name in OWN:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("raise ImportError('the project imports this, not jaxrl')\n")
    few = ["--steps=2", "--eval.every=0", "--warm-start.steps=0"]
    given = [flag for flag in small(project / "run") if flag.partition("=")[0] != "--steps"]
    command = [python.with_name("jaxrl"), "train", "quickstart", *given, *few]
    done = subprocess.run(
        command, cwd=project, env=os.environ | tiny.environment() | {"PYTHONPATH": str(project)},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (project / "run" / "summary.json").exists()
    where = subprocess.run(
        [python, "-c", "import jaxrl.losses; print(jaxrl.losses.__file__)"],
        cwd=project, env=os.environ | {"PYTHONPATH": str(project)},
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert where.startswith(str(site))
