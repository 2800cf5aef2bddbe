"""Which entries of a config that need trust a run directory may have, because its owner started it.

A run directory is data, and may come from anybody. What a `jaxrl train` of yours has started is
noted outside of it, in the state folder of your account, so that commands on that run work without
--trust, while a directory that you received from others still needs it.
"""

from __future__ import annotations

from pathlib import Path

from jaxrl import config as configs
from jaxrl import untrusted
from jaxrl.config import Config
from jaxrl.record import account, storage


def remember(directory: Path, config: Config) -> None:
    """Note what a run was started with that needs trust; without a place for it, nothing."""
    account.remember(directory, untrusted.foreign(configs.to_dict(config)))


def started(name: str, descendants: frozenset[str] = frozenset()) -> bool:
    """Whether this account started a run, and every run it begins from, with what they name.

    Args:
      name: a run directory, or a model.
      descendants: places of the runs that begin from it.
    """
    directory = storage.locate(name)
    saved = directory / "config.json"
    if not (saved.exists() and (directory / "checkpoints").exists()):
        return bool(descendants)  # a model, with no code of its own
    where = account.place(directory)
    if where in descendants:
        return False
    config = configs.load(saved)
    if not untrusted.foreign(configs.to_dict(config)) <= account.known_entries(directory):
        return False
    return started(config.model, descendants | {where})
