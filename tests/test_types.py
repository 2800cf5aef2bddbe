"""What the core declares to take and to return is so: mypy finds no error in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_types_of_the_core_have_no_error(tmp_path):
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
