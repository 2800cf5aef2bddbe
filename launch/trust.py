"""Which functions of others a run directory may name, because its owner started it with them.

A run directory is data, and may come from anybody. What a `jaxrl train` of yours has started is
noted outside of it, in the state folder of your account, so that `jaxrl train RUN` goes on without
naming the reward again, while a directory that somebody sent you still needs --trust.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from jaxrl import config as configs
from jaxrl import functions
from jaxrl.config import Config


def remember(directory: Path, config: Config) -> None:
    """Note the functions of others that a run was started with; without a place for it, nothing."""
    names = sorted(functions.foreign(configs.to_dict(config)))
    if not names or set(names) <= known(directory):
        return
    with contextlib.suppress(OSError):
        _notes().parent.mkdir(parents=True, exist_ok=True)
        with _notes().open("a", encoding="utf-8") as file:
            file.write(json.dumps({"run": _name(directory), "functions": names}) + "\n")


def known(directory: Path) -> set[str]:
    """The functions that runs in this directory were started with on this account."""
    found: set[str] = set()
    with contextlib.suppress(OSError, ValueError):
        for line in _notes().read_text(encoding="utf-8").splitlines():
            note = json.loads(line)
            if note["run"] == _name(directory):
                found |= set(note["functions"])
    return found


def _notes() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "jaxrl" / "runs.jsonl"


def _name(directory: Path) -> str:
    return str(directory.resolve()) if isinstance(directory, Path) else str(directory)
