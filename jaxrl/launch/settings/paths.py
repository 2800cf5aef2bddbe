"""Whole paths in a config, so that a run does not depend on the directory that it is used from."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.config import Config
from jaxrl.models import catalog
from jaxrl.run import begin

_FIELDS = ("model", "models", "path", "eval_path", "fork", "history", "rubric")
"""Fields of a config, its groups and its extensions that name models, runs or files."""


def with_whole_paths(config: Config) -> Config:
    """The config with whole paths of local models and files, so that a run does not depend on the
    directory that it is used from, and a path never becomes a name on the Hub."""
    return _with_whole(config)


def whole_path(spec: str) -> str:
    """A local file, folder or glob with its whole path; anything else as it is."""
    folder = Path(spec).parent if glob.has_magic(spec) else Path(spec)
    if not spec or spec == "fresh" or spec in catalog.PACKAGED or not folder.exists():
        return spec
    return str(Path(spec).absolute() if glob.has_magic(spec) else Path(spec).resolve())


def _with_whole(value: Any) -> Any:
    """A dataclass, or a mapping of them, with whole paths in the fields that name files."""
    if isinstance(value, Mapping):
        return {name: _with_whole(entry) for name, entry in value.items()}
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changes = dict[str, Any]()
    for field in dataclasses.fields(value):
        before = getattr(value, field.name)
        after = _whole_field(field.name, before)
        if after != before:
            changes[field.name] = after
    return dataclasses.replace(value, **changes) if changes else value


def _whole_field(name: str, value: Any) -> Any:
    """The value of a field with whole paths: its texts are some where its name says so."""
    if name == "fork" and isinstance(value, str):
        run, step = begin.fork_names(value)
        return f"{whole_path(run)}@{step}" if step else whole_path(run)
    if name in _FIELDS and isinstance(value, str):
        return whole_path(value)
    if name in _FIELDS and type(value) in (list, tuple):
        return type(value)(whole_path(part) if isinstance(part, str) else part for part in value)
    return _with_whole(value)
