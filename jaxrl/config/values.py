"""Configs as plain values: reading and writing them, and comparing two."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from jaxrl import functions, json_file
from jaxrl.config import fields
from jaxrl.config.schema import Config

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], values: Mapping[str, Any]) -> T:
    """The config with these values, as from `to_dict`; see `fields.typed`.

    Raises:
      ValueError: a field that the config does not have, or a value that it cannot have.
    """
    return fields.typed(kind, values, "")


def load(path: Path) -> Config:
    """The config saved at `path`.

    Raises:
      ValueError: the file is damaged, or holds no config of this version; it names the file.
    """
    values = json_file.field(path, "config")
    try:
        return from_dict(Config, values)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: {error} (was it written by another version? since 0.2.0 a critic, replay, "
            "guidance and the like are extensions)"
        ) from error


def _plain(settings: Any) -> dict[str, Any] | None:
    """Settings of an extension as plain values, as they are read from a file."""
    if settings is None or isinstance(settings, dict):
        return settings
    return json.loads(json.dumps(to_dict(settings)))


def changed(old: Any, new: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Fields that differ, by dotted name, as (old, new)."""
    out: dict[str, tuple[Any, Any]] = {}
    for field in dataclasses.fields(old):
        a, b = getattr(old, field.name), getattr(new, field.name)
        if dataclasses.is_dataclass(a):
            out |= changed(a, b, f"{prefix}{field.name}.")
        elif field.name == "extensions":
            for reference in sorted(a.keys() | b.keys()):
                name = prefix + functions.extension_name(reference)
                old_settings, new_settings = (_plain(side.get(reference)) for side in (a, b))
                fields = {}
                if old_settings is not None and new_settings is not None:
                    keys = sorted({*old_settings, *new_settings})
                    fields = {k: (old_settings.get(k), new_settings.get(k)) for k in keys}
                out |= {f"{name}.{k}": v for k, v in fields.items() if v[0] != v[1]}
                if not fields and old_settings != new_settings:
                    out[name] = (old_settings, new_settings)
        elif a != b:
            out[prefix + field.name] = (a, b)
    return out
