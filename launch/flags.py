"""Flags of a command from its dataclass: every field one, with its docstring as help."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, TypeVar

import tyro

from jaxrl import config as configs

T = TypeVar("T")


def parse(default: T, argv: list[str], *, prog: str, description: str = "") -> T:
    """`default` with the values that `argv` gives; exits with the nearest flag on an unknown one.

    A dict field takes any key: `--task-args.terms 3` or `--task-args.terms=3`, its value read as
    JSON where it is JSON and as text where it is not. `--from` is `--fork`. Fields of a group may
    be given together: `--mesh fsdp=64,tensor=4`.
    """
    default, rest = _take_dict_entries(default, _spelled_out(default, argv))
    return tyro.cli(type(default), default=default, args=rest, prog=prog, description=description)


def named(default: T, argv: list[str], *, usage: str, what: str) -> tuple[str, T]:
    """The name that arguments begin with, and `default` with the values of the rest.

    Args:
      default: as in `parse`.
      argv: the name and flags; --help in place of a name shows the flags and exits.
      usage: the command with the name's place, such as `jaxrl sample MODEL_OR_RUN`.
      what: can be named.

    Raises:
      ValueError: there is no name.
    """
    if argv and not argv[0].startswith("-"):
        command, _ = usage.rsplit(maxsplit=1)
        return argv[0], parse(default, argv[1:], prog=f"{command} {argv[0]}")
    if "--help" in argv or "-h" in argv:
        parse(default, ["--help"], prog=usage)
    raise ValueError(f"name {what}: {usage}")


def recipe(argv: list[str]) -> tuple[str, list[str]]:
    """The recipe that arguments begin with, `quickstart` where they name none, and the flags."""
    return (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("quickstart", argv)


def _spelled_out(default: Any, argv: list[str]) -> list[str]:
    flags: list[str] = []
    queue = list(argv)
    while queue:
        token = re.sub(r"^--from(?==|$)", "--fork", queue.pop(0))  # no field can be called that
        flag, has_value, value = token.partition("=")
        group = _at(default, flag.removeprefix("--").replace("-", "_"))
        if token.startswith("--") and dataclasses.is_dataclass(group) and (has_value or queue):
            fields = (value if has_value else queue.pop(0)).split(",")
            flags += [f"{flag}.{field}" for field in fields]
        else:
            flags.append(token)
    return flags


def _take_dict_entries(default: T, argv: list[str]) -> tuple[T, list[str]]:
    rest: list[str] = []
    queue = list(argv)
    while queue:
        token = queue.pop(0)
        flag, has_value, value = token.removeprefix("--").partition("=")
        path, _, key = flag.replace("-", "_").rpartition(".")
        if token.startswith("--") and isinstance(_at(default, path), dict):
            if not has_value:
                value = queue.pop(0) if queue and not queue[0].startswith("--") else "true"
            default = configs.replaced(default, f"{path}.{key}", _value(value))
        else:
            rest.append(token)
    return default, rest


def _at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name, None)
    return config


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
