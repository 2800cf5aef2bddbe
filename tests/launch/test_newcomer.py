"""What a newcomer stumbled over, where no other test runs the command."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

from jaxrl.record import rundir
from tests.jaxrl import tiny


def test_a_project_may_have_modules_of_the_same_names(tmp_path):
    """The command, in a folder whose `models`, `losses` and `data` are not jaxrl's."""
    for name in ("models.py", "losses.py", "data/__init__.py", "data/types.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise ImportError('not of jaxrl')\n")
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl.launch.cli", "show", "quickstart"],
        cwd=tmp_path, env=tiny.environment() | {"PYTHONPATH": f"{tmp_path}:{tiny.ROOT}"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and '"recipe": "quickstart"' in done.stdout, done.stderr


def test_more_steps_under_a_schedule_are_told(tmp_path):
    config = tiny.config(tmp_path / "run")
    linear = dataclasses.replace(config.optimizer, schedule="linear")
    config = dataclasses.replace(config, optimizer=linear, steps=3)
    rundir.save_config(rundir.prepare(config, print).directory, config)
    saved = tmp_path / "run" / "checkpoints" / "3" / "manifest.json"
    saved.parent.mkdir(parents=True)
    saved.write_text("{}")
    said = []
    rundir.prepare(dataclasses.replace(config, steps=5), said.append)
    assert "the linear schedule of the learning rate now ends at step 5" in " ".join(said)


def test_what_no_command_needs_at_once_is_not_imported():
    """Imports are most of the time that a command takes before its first token."""
    code = (
        "import sys; from jaxrl.launch import cli\n"
        "def heavy(where, *names):\n"
        "    cli.command(where)\n"
        "    found = {'torch', 'chex', 'rlax', 'jsonschema', *names} & set(sys.modules)\n"
        "    assert not found, (where, found)\n"
        "heavy('jaxrl.launch.inspect.sample', 'jinja2', 'pydantic', 'orbax', 'grain',"
        " 'tensorboardX')\n"
        "heavy('jaxrl.launch.train', 'tensorboardX', 'sacrebleu', 'matplotlib', 'reasoning_gym')\n"
        "import gc; assert gc.isenabled() and gc.get_freeze_count()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tiny.ROOT, timeout=60)
