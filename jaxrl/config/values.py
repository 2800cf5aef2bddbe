"""Configs as plain values: reading and writing them, changing fields by name, and comparing two."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from jaxrl import functions, json_file
from jaxrl.config.schema import Config

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], values: dict[str, Any]) -> T:
    """The config with these values, as from `to_dict`.

    Raises:
      ValueError: a field that the config does not have.
    """
    hints = typing.get_type_hints(kind)
    unknown = values.keys() - hints.keys()
    if unknown:
        raise ValueError(
            f"{kind.__name__} has no field {sorted(unknown)}; was it written by another version? "
            "Since 0.2.0 a critic, replay, guidance and the like are extensions"
        )
    arguments = {k: _value(hints[k], v) for k, v in values.items() if k != "extensions"}
    if "extensions" in values:
        arguments["extensions"] = {
            name: _settings(name, fields) for name, fields in values["extensions"].items()
        }
    return kind(**arguments)


def _settings(reference: str, fields: Any) -> Any:
    """Settings of the extension `reference`, from plain values or as they are.

    A config that is read may be of unknown origin: settings of a `module:function` outside this
    package stay plain values, and the module is not imported, see `settings_of`.
    """
    if not isinstance(fields, dict) or (":" in reference and not functions.bundled(reference)):
        return fields
    return settings_of(reference, fields)


def settings_of(reference: str, fields: Any) -> Any:
    """Settings of an extension, from plain values or as they are; its module is imported.

    Raises:
      ValueError: no such extension, or no such field.
    """
    if not isinstance(fields, dict):
        return fields
    return from_dict(functions.settings_type(functions.extension(reference)), fields)


def check_name(reference: str) -> None:
    """Refuse an extension with the name of a field of the config: flags would be ambiguous.

    Raises:
      ValueError: it does.
    """
    name = functions.extension_name(reference)
    if name in {field.name for field in dataclasses.fields(Config)}:
        raise ValueError(
            f"extension {reference!r} has the name of the config's field {name!r}; rename it"
        )


def extended(config: Config, reference: str, **fields: Any) -> Config:
    """The config with an extension added, or with fields of one changed.

    Args:
      config: of a run.
      reference: a name of `jaxrl.extensions`, or `module:function`.
      fields: of its settings.

    Raises:
      ValueError: no such extension, or no such field.
    """
    kind = functions.settings_type(functions.extension(reference))
    check_name(reference)
    settings = config.extensions.get(reference, kind())
    for name, value in fields.items():
        settings = replaced(settings, name, value)
    return dataclasses.replace(config, extensions=config.extensions | {reference: settings})


def _value(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        kind = typing.cast(type, hint)
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"a {kind.__name__} holds fields, and this is {value!r}")
        return from_dict(kind, value)
    if typing.get_origin(hint) in (dict, tuple) and not isinstance(value, (Mapping, list, tuple)):
        raise ValueError(f"{value!r} stands where there must be several values")
    if typing.get_origin(hint) is dict:
        key, inner = typing.get_args(hint)
        return {key(k): _value(inner, v) for k, v in value.items()}  # JSON's keys are all strings
    return tuple(value) if typing.get_origin(hint) is tuple else value


def replaced(config: T, name: str, value: Any) -> T:
    """The config with the field of a dotted name changed, of entries of a dict too.

    Raises:
      ValueError: no such field.
    """
    first, _, rest = name.partition(".")
    if isinstance(config, Config):
        for reference in config.extensions:
            if rest and functions.extension_name(reference) == first:
                fields = {reference: replaced(config.extensions[reference], rest, value)}
                return dataclasses.replace(config, extensions=config.extensions | fields)
    if isinstance(config, dict):
        old = config.get(first) if rest else None
    elif first in {field.name for field in dataclasses.fields(typing.cast(Any, config))}:
        old = getattr(config, first)
    else:
        raise ValueError(f"{type(config).__name__} has no field {name!r}")
    new = replaced(old, rest, value) if rest else value
    if isinstance(config, dict):
        return typing.cast(T, config | {first: new})
    hint = typing.get_type_hints(type(config))[first]
    return dataclasses.replace(typing.cast(Any, config), **{first: _value(hint, new)})


def checked(hint: Any, value: Any, name: str) -> Any:
    """A value of a file or a stage, as its field has it; YAML reads 1e-5 as a text.

    Args:
      hint: the declared type of the field.
      value: to be checked.
      name: dotted name of the field, for messages.

    Raises:
      ValueError: a value of another type, or none of the choices.
    """
    if dataclasses.is_dataclass(hint) and not isinstance(value, typing.cast(type, hint)):
        if not isinstance(value, Mapping):
            raise ValueError(f"{name}={value!r}: must hold fields, as in {name}: {{...}}")
        hints = typing.get_type_hints(hint)
        return {k: checked(hints.get(k), v, f"{name}.{k}") for k, v in value.items()}
    if hint is float:
        try:
            number = None if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = None
        if number is None:
            raise ValueError(f"{name}={value!r}: must be a number")
        return number
    allowed = {int: int, str: str, bool: bool}.get(hint)
    if typing.get_origin(hint) is typing.Literal and value not in typing.get_args(hint):
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(typing.get_args(hint))}")
    if allowed and (
        not isinstance(value, allowed) or (isinstance(value, bool) and allowed is not bool)
    ):
        raise ValueError(f"{name}={value!r}: must be of type {allowed.__name__}")
    if typing.get_origin(hint) is dict and not isinstance(value, Mapping):
        raise ValueError(f"{name}={value!r}: must hold entries, as in {name}: {{...}}")
    return value


def load(path: Path) -> Config:
    """The config saved at `path`.

    Raises:
      ValueError: the file is damaged, or holds no config of this version; it names the file.
    """
    values = json_file.field(path, "config")
    try:
        return from_dict(Config, values)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error


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
