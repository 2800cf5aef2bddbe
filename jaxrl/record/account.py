"""What this account has started: the entries of a run's config that need trust.

A run directory is data, and may come from anybody. What a `jaxrl train` of this account has started
is noted outside of it, in the state folder of the account.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection
from pathlib import Path

from jaxrl import config as configs
from jaxrl import untrusted
from jaxrl.config import Config, ranges
from jaxrl.record import storage


def config(run: str | Path, trusted: Collection[str] | None) -> Config:
    """The config of a run directory, which may be of unknown origin.

    What this account has started the run with is accepted. No other run decides that programs may
    run without a sandbox: that is for the user's own command to say.

    Args:
      run: the directory.
      trusted: what else it may name, see `untrusted.foreign`; None: anything.

    Raises:
      ValueError: it names other functions, files, addresses, keys or fields, or has a number that
        no run could have.
    """
    directory = storage.locate(run)
    loaded, noted = configs.load(directory / "config.json"), known_entries(directory)
    ranges.check(loaded)
    if loaded.sandbox.allow_weak and untrusted.WEAK not in noted:
        loaded = configs.replaced(loaded, "sandbox.allow_weak", False)
    if trusted is not None:
        untrusted.check(configs.to_dict(loaded), f"the config of {run}", noted | set(trusted))
    return loaded


def remember(directory: Path, entries: Collection[str]) -> None:
    """Note the entries that a run was started with; without a place for the note, nothing."""
    if not entries or set(entries) <= known_entries(directory):
        return
    with contextlib.suppress(OSError):
        _notes().parent.mkdir(parents=True, exist_ok=True)
        with _notes().open("a", encoding="utf-8") as file:
            note = {"run": place(directory), "functions": sorted(entries)}
            file.write(json.dumps(note) + "\n")


def known_entries(directory: Path) -> set[str]:
    """The entries that runs in this directory, or in one around it, were started with."""
    functions: set[str] = set()
    where = place(directory)
    with contextlib.suppress(OSError, ValueError):
        for line in _notes().read_text(encoding="utf-8").splitlines():
            note = json.loads(line)
            if where == note["run"] or where.startswith(note["run"] + "/"):
                functions |= set(note["functions"])
    return functions


def place(directory: Path) -> str:
    """The whole name of a directory, which may be in a store behind an address."""
    return str(directory.resolve()) if isinstance(directory, Path) else str(directory)


def _notes() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "jaxrl" / "runs.jsonl"
