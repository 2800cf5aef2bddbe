"""Flags of a command from its dataclass: every field one, with its docstring as help."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import types
from typing import Any, TypeVar, get_args, get_type_hints

import tyro

from jaxrl import config as configs
from jaxrl import functions
from jaxrl.config import Config
from jaxrl.launch.settings import trust

T = TypeVar("T")


def parse(default: T, argv: list[str], *, prog: str, description: str = "") -> T:
    """`default` with the values that `argv` gives; an unknown flag is refused with the nearest.

    A dict field takes any key: `--task-args.terms 3` or `--task-args.terms=3`, its value read as
    JSON where it is JSON and as text where it is not. `--from` is `--fork`, and `--data FILE`
    is `--data.path FILE`. Fields of a group may be given together: `--mesh fsdp=64,tensor=4`.
    A field of type `bool | None` is a switch: `--chat` or `--no-chat`.
    """
    argv = ["--help" if token == "--help-all" else token for token in argv]
    default, argv = _with_extensions(default, argv)
    argv = _with_values(default, _spelled_out(default, argv))
    if isinstance(default, Config):
        default, argv = _set_extensions(default, argv, prog)
    default, rest = _take_dict_entries(default, argv)
    if isinstance(default, Config):
        _check_known(default, rest)
        if default.course:  # whole configs, which are no flags
            plain = dataclasses.replace(default, course={})
            config = tyro.cli(
                type(plain), default=plain, args=rest, prog=prog, description=description
            )
            return dataclasses.replace(config, course=default.course)
    return tyro.cli(type(default), default=default, args=rest, prog=prog, description=description)


def _with_extensions(default: T, argv: list[str]) -> tuple[T, list[str]]:
    """The extensions that `--with NAME` or `--with=NAME` add, and the other arguments.

    Raises:
      ValueError: no such extension.
    """
    if not isinstance(default, Config):
        return default, argv
    rest: list[str] = []
    queue = list(argv)
    while queue:
        token = queue.pop(0)
        flag, has_value, value = token.partition("=")
        if flag != "--with":
            rest.append(token)
            continue
        if not has_value and not queue:
            raise ValueError("--with needs the name of an extension, such as --with critic")
        default = configs.extended(default, value if has_value else queue.pop(0))
    return default, rest


def _set_extensions(config: Config, argv: list[str], prog: str) -> tuple[Config, list[str]]:
    """The config with the flags of its extensions, `--NAME.FIELD`, and the other arguments."""
    for reference, settings in config.extensions.items():
        prefix = "--" + functions.extension_name(reference).replace("_", "-") + "."
        extension_flags, rest, queue = list[str](), list[str](), list(argv)
        while queue:
            token = queue.pop(0)
            if not token.replace("_", "-").startswith(prefix):
                rest.append(token)
                continue
            extension_flags.append("--" + token[len(prefix) :])
            while "=" not in token and queue and not queue[0].startswith("--"):
                extension_flags.append(queue.pop(0))
        if extension_flags:
            settings = parse(settings, extension_flags, prog=f"{prog} {prefix.removesuffix('.')}")
            fields = config.extensions | {reference: settings}
            config = dataclasses.replace(config, extensions=fields)
        argv = rest
    _check_groups(config, argv)
    return config, argv


def _check_groups(config: Config, argv: list[str]) -> None:
    """Refuse a flag `--GROUP.FIELD` whose group looks like that of an extension and is none.

    Raises:
      ValueError: naming the nearest, or `--with` for an extension that the run does not have.
    """
    fields = {field.name for field in dataclasses.fields(config)} | {"from"}
    extensions = [functions.extension_name(reference) for reference in config.extensions]
    bundled = functions.bundled_extensions()
    for token in argv:
        group = token.removeprefix("--").partition(".")[0].replace("-", "_")
        if not re.match(r"--[a-z][\w-]*\.", token) or group in fields:
            continue
        flag = token.partition("=")[0]
        if group in bundled:
            raise ValueError(f"{flag}: the run has no extension {group!r}; add --with {group}")
        close = difflib.get_close_matches(group, [*fields, *extensions, *bundled], n=1, cutoff=0.6)
        if close and close[0] in fields:
            continue  # an unknown flag of the config, which the parser tells
        if close:
            meant = close[0].replace("_", "-") + token[len(group) + 2 :].partition("=")[0]
            raise ValueError(f"{flag} is unknown; did you mean '--{meant}'?")
        raise ValueError(
            f"{flag} is unknown: the run has no extension {group!r}; --with NAME adds a bundled "
            "one, and --with module:function one of your own"
        )


def _check_known(config: Config, argv: list[str]) -> None:
    """Refuse a flag that no field has.

    Raises:
      ValueError: naming those that are meant.
    """
    flag_names = names(config)
    for token in argv:
        flag = token.partition("=")[0].removeprefix("--").replace("_", "-")
        if not re.match(r"--[A-Za-z]", token) or flag in flag_names or flag in ("help", "with"):
            continue
        endings = {name.rpartition(".")[2] for name in flag_names}
        close = [name for name in flag_names if name.rpartition(".")[2] == flag][:3]
        close = close or difflib.get_close_matches(flag, flag_names, n=1, cutoff=0.6)
        if not close:
            near = difflib.get_close_matches(flag.rpartition(".")[2], endings, n=1, cutoff=0.75)
            close = [name for name in flag_names if name.rpartition(".")[2] in near][:3]
        meant = " or ".join(f"'--{name}'" for name in close)
        raise ValueError(
            f"--{flag} is unknown; {f'did you mean {meant}? ' if meant else ''}"
            "`jaxrl train --help` shows the flags people use, --help-all every one"
        )


def names(config: Any, prefix: str = "") -> list[str]:
    """The flags of all fields of a config, without their dashes, `no-` forms included."""
    flags: list[str] = []
    for field in dataclasses.fields(config):
        name, value = field.name.replace("_", "-"), getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flags += names(value, f"{prefix}{name}.")
        elif not isinstance(value, dict):
            flags.append(prefix + name)
            flags += [f"{prefix}no-{name}"] if isinstance(value, bool) else []
    return flags


def name_and_settings(default: T, argv: list[str], *, usage: str, what: str) -> tuple[str, T]:
    """The name that arguments begin with, and `default` with the values of the rest.

    Settings that have a field `trust` get it for a run that this account has started.

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
        settings = parse(default, argv[1:], prog=f"{command} {argv[0]}")
        if getattr(settings, "trust", None) is False and trust.started(argv[0]):
            settings = dataclasses.replace(settings, trust=True)
        return argv[0], settings
    if "--help" in argv or "-h" in argv:
        parse(default, ["--help"], prog=usage)
    raise ValueError(f"name {what}: {usage}")


def leading(argv: list[str]) -> tuple[list[str], list[str]]:
    """The names that arguments begin with, and the rest."""
    count = next((i for i, token in enumerate(argv) if token.startswith("-")), len(argv))
    return argv[:count], argv[count:]


def recipe(argv: list[str]) -> tuple[str, list[str]]:
    """The recipe that arguments begin with, `quickstart` where they name none, and the flags."""
    return (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("quickstart", argv)


def value_of(flag: str, argv: list[str]) -> str | None:
    """What follows a flag, or its `=`; empty where nothing does, and None without the flag."""
    for place, token in enumerate(argv):
        name, has_value, value = token.partition("=")
        if name == flag:
            return value if has_value else "".join(argv[place + 1 : place + 2])
    return None


_SHORT = {"--from": "--fork", "--data": "--data.path"}


def _spelled_out(default: Any, argv: list[str]) -> list[str]:
    short = _SHORT if isinstance(default, Config) else {}
    flags: list[str] = []
    queue = list(argv)
    while queue:
        token = re.sub(r"^--[a-z-]+(?==|$)", lambda m: short.get(m[0], m[0]), queue.pop(0))
        flag, has_value, value = token.partition("=")
        group = at(default, flag.removeprefix("--").replace("-", "_"))
        if token.startswith("--") and dataclasses.is_dataclass(group) and (has_value or queue):
            fields = (value if has_value else queue.pop(0)).split(",")
            flags += [f"{flag}.{field}" for field in fields]
        else:
            flags.append(token)
    return flags


def _with_values(default: Any, argv: list[str]) -> list[str]:
    """The arguments; a switch of a field of type `bool | None` is followed by its value."""
    flags: list[str] = []
    for token, after in zip(argv, [*argv[1:], ""], strict=False):
        match = re.fullmatch(r"--((?:.*\.)?)(no-)?([^.=]+)", token)
        if match and after not in ("True", "False", "None"):
            group, no, name = match.groups()
            if _hint(default, (group + name).replace("-", "_")) == bool | None:
                flags += [f"--{group}{name}", str(no is None)]
                continue
        flags.append(token)
    return flags


def _take_dict_entries(default: T, argv: list[str]) -> tuple[T, list[str]]:
    rest: list[str] = []
    queue = list(argv)
    while queue:
        token = queue.pop(0)
        flag, has_value, value = token.removeprefix("--").partition("=")
        path, _, key = flag.replace("-", "_").rpartition(".")
        if token.startswith("--") and isinstance(at(default, path), dict):
            if not has_value:
                value = queue.pop(0) if queue and not queue[0].startswith("--") else "true"
            entry, entry_types = _value(value), _entry_types(default, path)
            if entry_types == (str,) or (isinstance(entry, dict | list) and str in entry_types):
                entry = value  # JSON in a text, such as the parameters of a task within a task
            default = configs.replaced(default, f"{path}.{key}", entry)
        else:
            rest.append(token)
    return default, rest


def at(config: Any, path: str) -> Any:
    """The value of a dotted field, in extensions too; None where there is none."""
    first, _, rest = path.partition(".")
    for reference, settings in getattr(config, "extensions", {}).items():
        if functions.extension_name(reference) == first:
            return at(settings, rest) if rest else settings
    for name in path.split("."):
        config = getattr(config, name, None)
    return config


def _hint(config: Any, path: str) -> Any:
    """The declared type of a dotted field; None where there is no such field."""
    group, _, name = path.rpartition(".")
    owner = at(config, group) if group else config
    return get_type_hints(type(owner)).get(name) if dataclasses.is_dataclass(owner) else None


def _entry_types(config: Any, path: str) -> tuple[Any, ...]:
    """The types that the values of a dict field may have; none if they are not known."""
    _, *inner = get_args(_hint(config, path)) or (None,)
    return tuple(
        member
        for hint in inner
        for member in (get_args(hint) if isinstance(hint, types.UnionType) else (hint,))
    )


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or a number of too many digits, or too deep
        return text
