"""How plain values become fields of a config: those of flags, files, stages, saved runs and Python.

`typed` says what a field may hold, `replaced` sets one field by its dotted name, and `merged` sets
those of a nested mapping. Errors give the dotted name, the value and the remedy. `to_dict`,
`from_dict` and `load` write and read a config, and `changed` compares two.
"""

from __future__ import annotations

import dataclasses
import json
import numbers
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from jaxrl import functions, json_file
from jaxrl.config.schema import Config

T = TypeVar("T")


def typed(hint: Any, value: Any, name: str) -> Any:
    """A plain value as a field of a type has it; a value that has the type already is returned.

    Mappings become dataclasses, lists become tuples, a whole float becomes an integer where the
    field is of integers, and a text that is a number becomes one where the field is of numbers, as
    YAML reads 1e-5 as a text. Of a union of several types the value stays as it is, and so do the
    settings of extensions outside this package.

    Args:
      hint: the declared type of the field.
      value: a JSON value, or one of the type.
      name: dotted name of the field, for messages.

    Raises:
      ValueError: a value of another type, none of the choices, or a field that does not exist.
    """
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _fields(typing.cast(type, hint), value, name)
    if origin in (types.UnionType, typing.Union):
        alternatives = [member for member in members if member is not types.NoneType]
        if len(alternatives) > 1 or (value is None and len(alternatives) < len(members)):
            return value
        return typed(alternatives[0], value, name)
    if hint is float:
        return float(_number(value, name))
    if hint is int and _is_whole(value):
        return int(value)
    if origin is typing.Literal and value not in members:
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(map(str, members))}")
    if hint in (int, str, bool) and (
        not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool)
    ):
        raise ValueError(f"{name}={value!r}: must be of type {hint.__name__}")
    if origin is dict:
        return _entries(members, value, name)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name}={value!r}: must hold several values, as in {name}: [...]")
        return tuple(typed(members[0], v, name) for v in value) if ... in members else tuple(value)
    return value


def _fields(kind: type, value: Any, name: str) -> Any:
    """A dataclass from its fields; those that are left out have their defaults."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        name = name or kind.__name__
        raise ValueError(f"{name}={value!r}: must hold fields, as in {name}: {{...}}")
    hints = typing.get_type_hints(kind)
    arguments = {}
    for key, plain in value.items():
        field, full = str(key).replace("-", "_"), f"{name}.{key}".removeprefix(".")
        _require(field, list(hints), full)
        if kind is Config and field == "extensions" and isinstance(plain, Mapping):
            plain = {reference: _known_settings(reference, v) for reference, v in plain.items()}
        arguments[field] = typed(hints[field], plain, full)
    return kind(**arguments)


def _known_settings(reference: str, values: Any) -> Any:
    """Settings of an extension in a config that is read, which may be of unknown origin.

    Those of a `module:function` outside this package stay plain values: the module is not imported.
    """
    foreign = ":" in reference and not functions.bundled(reference)
    return values if foreign else settings_of(reference, values)


def _entries(members: tuple[Any, Any], value: Any, name: str) -> dict[Any, Any]:
    """A dict with keys and values of two types."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}={value!r}: must hold entries, as in {name}: {{...}}")
    return {
        _key(members[0], key, f"{name}.{key}"): _entry(members[1], entry, f"{name}.{key}")
        for key, entry in value.items()
    }


def _entry(hint: Any, value: Any, name: str) -> Any:
    """A value of a dict. A whole number stays one, and so do true and false: those of arguments of
    functions may be counts and switches."""
    if hint is not float:
        return typed(hint, value, name)
    return value if isinstance(value, bool) else _number(value, name)


def _key(kind: type, key: Any, name: str) -> Any:
    """A key of a dict; JSON's keys are all texts."""
    try:
        return kind(key)
    except ValueError:
        raise ValueError(f"{name}: {key!r} must be of type {kind.__name__}") from None


def _number(value: Any, name: str) -> int | float:
    """A number as it is, or from a text."""
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None:
        raise ValueError(f"{name}={value!r}: must be a number")
    return value if isinstance(value, int) else number


def _is_whole(value: Any) -> bool:
    """Whether a value is an integer of any kind of number: of Python, of NumPy, or a float."""
    if isinstance(value, bool):
        return False
    return isinstance(value, numbers.Integral) or (isinstance(value, float) and value.is_integer())


def _require(field: str, names: list[str], path: str) -> None:
    """Refuse a field that is none of the names."""
    if field not in names:
        raise ValueError(f"{path}: there is no field {field!r}; {functions.nearest(field, names)}")


def _step_into(owner: Any, hint: Any, key: str, path: str, *, last: bool) -> tuple[Any, Any]:
    """The declared type and the value of a field of a dataclass, or of an entry of a dict.

    Args:
      owner: the dataclass or dict.
      hint: its declared type.
      key: the field, or the key of the entry.
      path: dotted name in a config, for messages.
      last: whether this is the field that is to be set; only then may an entry of a dict be new.
    """
    if isinstance(owner, dict):
        kind, inner = typing.get_args(hint) or (str, Any)
        if not last:
            _require(key, list(map(str, owner)), path)
        return inner, owner.get(_key(kind, key, path))
    hints = typing.get_type_hints(type(owner)) if dataclasses.is_dataclass(owner) else {}
    _require(key, list(hints), path)
    return hints[key], getattr(owner, key)


def field_of(config: Any, name: str) -> tuple[Any, Any]:
    """The declared type and the value of the field of a dotted name; None where an entry is new.

    Raises:
      ValueError: no such field, or no such entry above it.
    """
    value, hint = config, type(config)
    *groups, last = name.split(".")
    for group in groups:
        hint, value = _step_into(value, hint, group, name, last=False)
    return _step_into(value, hint, last, name, last=True)


def replaced(config: T, name: str, value: Any, where: str = "") -> T:
    """The config with the field of a dotted name changed, of extensions and entries of dicts too.

    Args:
      config: a dataclass.
      name: such as `rollout.group_size`, `critic.clip` or `task_args.digits`.
      value: see `typed`.
      where: dotted name of `config` and a dot, for messages.

    Raises:
      ValueError: no such field, or a value that it cannot have.
    """
    return _set(config, type(config), name, value, where + name)


def _set(owner: Any, hint: Any, name: str, value: Any, path: str) -> Any:
    first, _, rest = name.partition(".")
    if isinstance(owner, Config) and rest:
        for reference, settings in owner.extensions.items():
            if functions.extension_name(reference) == first:
                settings = _set(settings, type(settings), rest, value, path)
                return dataclasses.replace(
                    owner, extensions=owner.extensions | {reference: settings}
                )
    inner, old = _step_into(owner, hint, first, path, last=not rest)
    if isinstance(owner, dict):
        kind, _ = typing.get_args(hint) or (str, Any)
        new = _set(old, inner, rest, value, path) if rest else _entry(inner, value, path)
        return owner | {_key(kind, first, path): new}
    new = _set(old, inner, rest, value, path) if rest else typed(inner, value, path)
    return dataclasses.replace(owner, **{first: new})


def merged(config: T, values: Mapping[str, Any], where: str = "") -> T:
    """The config with nested values, as of a file; what they leave out stays.

    Fields that are dicts, such as `task_args`, are replaced as a whole. The fields of a group are
    set at once, as one may be allowed with another alone.

    Args:
      config: a dataclass.
      values: by field.
      where: dotted name of `config` and a dot, for messages.

    Raises:
      ValueError: no such field, or a value that it cannot have.
    """
    hints, changes = typing.get_type_hints(type(config)), dict[str, Any]()
    for key, value in values.items():
        name, full = str(key).replace("-", "_"), f"{where}{key}"
        _require(name, list(hints), full)
        group = getattr(config, name)
        if dataclasses.is_dataclass(group) and isinstance(value, Mapping):
            changes[name] = merged(group, value, f"{full}.")
        elif isinstance(config, Config) and name == "extensions" and isinstance(value, Mapping):
            changes[name] = {ref: _on_defaults(ref, fields or {}) for ref, fields in value.items()}
        else:
            changes[name] = typed(hints[name], value, full)
    return dataclasses.replace(typing.cast(Any, config), **changes)


def _on_defaults(reference: str, values: Any) -> Any:
    """Settings of an extension, from those that differ from its defaults."""
    check_name(reference)
    kind = functions.settings_type(functions.extension(reference))
    name = functions.extension_name(reference)
    if not isinstance(values, Mapping):
        return typed(kind, values, name)
    return merged(kind(), values, f"{name}.")


def extended(config: Config, reference: str, /, **values: Any) -> Config:
    """The config with an extension added, or with fields of one changed.

    Args:
      config: of a run.
      reference: a name of `jaxrl.extensions`, or `module:function`.
      values: of fields of its settings.

    Raises:
      ValueError: no such extension, or no such field, or a value that it cannot have.
    """
    kind = functions.settings_type(functions.extension(reference))
    check_name(reference)
    settings = config.extensions.get(reference, kind())
    for name, value in values.items():
        settings = replaced(settings, name, value, f"{functions.extension_name(reference)}.")
    return dataclasses.replace(config, extensions=config.extensions | {reference: settings})


def settings_of(reference: str, values: Any) -> Any:
    """Settings of an extension, from plain values or as they are; its module is imported.

    Raises:
      ValueError: no such extension, or no such field, or a value that it cannot have.
    """
    if not isinstance(values, dict):
        return values
    kind = functions.settings_type(functions.extension(reference))
    return typed(kind, values, functions.extension_name(reference))


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


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], values: Mapping[str, Any]) -> T:
    """The config with these values, as from `to_dict`; see `typed`.

    Raises:
      ValueError: a field that the config does not have, or a value that it cannot have.
    """
    return typed(kind, values, "")


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
