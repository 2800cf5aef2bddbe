"""Which functions of others a run directory may name, because its owner started it with them.

A run directory is data, and may come from anybody. What a `jaxrl train` of yours has started is
noted outside of it, in the state folder of your account, so that commands on that run work without
--trust, while a directory that you received from others still needs it.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from jaxrl import config as configs
from jaxrl import functions
from jaxrl.config import Config
from jaxrl.record import storage


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


def started(name: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether this account started a run, and every run it begins from, with what they name.

    Args:
      name: a run directory, or a model.
      seen: runs that it is a part of.
    """
    directory = storage.locate(name)
    saved = directory / "config.json"
    if not (saved.exists() and (directory / "checkpoints").exists()):
        return bool(seen)  # a model, with no code of its own
    if _name(directory) in seen:
        return False
    config = configs.load(saved)
    if not functions.foreign(configs.to_dict(config)) <= known(directory):
        return False
    return started(config.model, seen | {_name(directory)})


def _notes() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "jaxrl" / "runs.jsonl"


def _name(directory: Path) -> str:
    return str(directory.resolve()) if isinstance(directory, Path) else str(directory)
