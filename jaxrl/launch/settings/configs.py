"""What `jaxrl train` may begin with: a recipe, a config file, a Python file, or a run directory."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from jaxrl import config as configs
from jaxrl import functions, json_file
from jaxrl.config import Config
from jaxrl.launch import algorithms, method, recipes
from jaxrl.launch.settings import course, flags, paths, short
from jaxrl.record import account, storage
from jaxrl.run import begin
from jaxrl.run import course as courses
from jaxrl.training import companions

SUFFIXES = (".yaml", ".yml", ".json", ".toml")
MOST_VALUES = 100_000
"""Values of a config file."""


def resolve(argv: list[str], command: str = "train") -> tuple[Config, short.Options]:
    """The config that a command names and changes, and what else it asks for.

    Args:
      argv: a recipe, an algorithm, a file or a run directory, and flags. Without a name, it is
        the run that `--fork` names, `grpo` where data are given, or `quickstart`.
      command: for messages.

    Raises:
      ValueError: no such recipe, file, field or flag; or a run of others that names functions.
    """
    name, rest = flags.recipe(argv)
    forks = [fork for flag in ("--fork", "--from") if (fork := flags.value_of(flag, rest))]
    if argv == rest and forks:
        return _of_fork(forks[0], rest, command)
    path = Path(name)
    if path.suffix in SUFFIXES and (stages := course.stages(values_of(path), path)):
        return course.resolve(path, stages, rest, functools.partial(_of_stage, path, command))
    if name == "quickstart" and argv == rest and any(t.startswith("--data") for t in rest):
        name = "grpo"
    if name in ("-", ""):
        raise ValueError(f"name a recipe: jaxrl {command} RECIPE")
    if (meant := flags.value_of("--recipe", rest)) is not None:
        raise ValueError(
            f"--recipe {meant}: a recipe is named without a flag, before all flags, as in "
            f"jaxrl {command} {meant}"
        )
    config, file_flags = opened(name, trusted="--trust" in rest, model=short.model_of(rest))
    return _parsed(config, rest, file_flags, f"jaxrl {command} {name}")


def _parsed(
    before: Config, argv: list[str], file_flags: list[str], prog: str
) -> tuple[Config, short.Options]:
    """The config with flags, whole paths, its epochs, and its method's stages where they belong."""
    config, rest, options = short.expand(before, argv, file_flags)
    config = paths.with_whole_paths(flags.parse(config, rest, prog=prog))
    config, options = short.with_epochs(config, options)
    return recipes.refitted(config, before), options


def _of_fork(fork: str, argv: list[str], command: str) -> tuple[Config, short.Options]:
    """The config of a run that is forked, in a directory of its own, and what flags change in it.

    Args:
      fork: RUN or RUN@STEP.
      argv: flags.
      command: for messages.

    Raises:
      ValueError: there is no such run, or it names functions of others.
    """
    run, _ = begin.fork_names(fork)
    source = storage.locate(run)
    if not (source / "config.json").exists():
        raise ValueError(
            f"fork={fork!r}: there is no config.json in {run}, so name a recipe as well: "
            f"jaxrl {command} RECIPE --fork {fork}"
        )
    config, _ = opened(run, trusted="--trust" in argv)
    config = courses.resolved(config, source)
    config = dataclasses.replace(config, run_dir=f"{str(source).rstrip('/')}-fork", fork="")
    config, rest, options = short.expand(config, argv)
    config = paths.with_whole_paths(flags.parse(config, rest, prog=f"jaxrl {command}"))
    return short.with_epochs(config, options)


def opened(
    name: str, *, trusted: bool = False, model: str | None = None
) -> tuple[Config, list[str]]:
    """The config of a name, and the flags that its file gives besides.

    Args:
      name: a recipe, an algorithm, a file or a run directory.
      trusted: whether a run directory may name functions of others.
      model: that is to be trained, see `recipes.load`.

    Raises:
      ValueError: see `resolve`.
    """
    path = Path(name)
    if path.suffix in SUFFIXES:
        return of_values(values_of(path), path, model)
    if path.suffix == ".py":
        return _of_python(path, model), []
    if (storage.locate(name) / "config.json").exists():
        config = account.config(name, None if trusted else ())
        return dataclasses.replace(config, run_dir=name), []
    if "/" in name or path.exists():
        raise ValueError(f"{name!r} is neither a recipe nor a run directory with a config.json")
    return recipes.load(name, model), []


def dump(config: Config) -> str:
    """The config as YAML, which `opened` reads back as an equal one."""
    plain = json.loads(json.dumps(configs.to_dict(config)))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def values_of(path: Path) -> dict[str, Any]:
    """What a file holds.

    Raises:
      ValueError: there is none, or it holds no fields.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except FileNotFoundError:
        raise ValueError(f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; name a file that can be read") from error
    except RecursionError as error:
        raise ValueError(f"{path}: its values are nested too deep; have fewer levels") from error
    except (yaml.YAMLError, ValueError) as error:  # of numbers and dates, and of the encoding too
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: must hold fields of a config, as `jaxrl show RECIPE --yaml`")
    _check_plain(values, path)
    if path.suffix == ".json" and isinstance(values.get("config"), dict):
        return values["config"]  # the config.json of a run
    return values


def _check_plain(values: dict[Any, Any], path: Path) -> None:
    """Refuse values that no config has, and so many of them that they could not even be printed.

    An alias of YAML repeats what it names, so that a short file may hold any number of values.
    """
    level: list[tuple[str, Any]] = [("", values)]
    count = 0
    for _ in range(json_file.DEEPEST):
        inner = list[tuple[str, Any]]()
        for name, value in level:
            if isinstance(value, dict | list) and (count := count + len(value)) > MOST_VALUES:
                raise ValueError(f"{path}: holds over {MOST_VALUES} values; leave some out")
            if isinstance(value, dict):
                inner += ((f"{name}.{key}".removeprefix("."), v) for key, v in value.items())
            elif isinstance(value, list):
                inner += ((name, v) for v in value)
            elif not isinstance(value, str | int | float | None):
                kind = type(value).__name__
                raise ValueError(f"{path}: {name}={value!r:.200} is a {kind}; write it in quotes")
        level = inner
    if level:
        raise ValueError(
            f"{path}: {level[0][0]:.200} holds over {json_file.DEEPEST} lists or mappings within "
            "each other; have fewer"
        )


def _of_stage(
    path: Path, command: str, values: Mapping[str, Any], argv: list[str]
) -> tuple[Config, short.Options]:
    """The config of one stage of a course, from its values in the file and the flags."""
    config, file_flags = of_values(values, path, short.model_of(argv))
    return _parsed(config, argv, file_flags, f"jaxrl {command} {values['recipe']}")


def of_values(
    values: Mapping[str, Any], path: Path, model: str | None = None
) -> tuple[Config, list[str]]:
    """Fields of a file on top of those of their `recipe`; short names become flags.

    Args:
      values: by field or short name.
      path: of the file, for messages.
      model: that is to be trained, in place of the file's.

    Raises:
      ValueError: an unknown recipe, unless the file holds a whole config; or see `config.merged`.
    """
    values = dict(values)
    name = str(values.get("recipe", ""))
    try:
        base = recipes.load(name or "grpo", model or values.get("model"))
    except ValueError as error:
        if not _is_whole(values):
            raise ValueError(f"{path}: {error}") from error
        base = Config()
    fields = {field.name for field in dataclasses.fields(Config)}
    file_flags: list[str] = []
    if isinstance(values.get("data"), str):
        fields -= {"data"}  # the path of a file, as the flag takes it
    rollout = values.get("rollout")
    if not base.model and not (isinstance(rollout, Mapping) and "chat" in rollout):
        fields -= {"model"}  # as the flag takes it, which looks for a chat template
    for key in [k for k in values if str(k).replace("-", "_") not in fields]:
        flag = str(key).replace("_", "-")
        if flag not in (*short.NAMES, "model"):
            hint = functions.nearest(str(key), [*fields, *short.NAMES])
            raise ValueError(f"{path}: there is no field {str(key)!r}; {hint}")
        value = values.pop(key)
        for entry in value if isinstance(value, list) else [value]:
            file_flags += [f"--{flag}"] if entry is True else [f"--{flag}={entry}"]
    if isinstance(part := values.get("objective"), Mapping) and "policy" in part:
        objective = companions.with_policy(base.objective, str(part["policy"]))
        base = dataclasses.replace(base, objective=objective)
    try:
        config = configs.merged(base, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    recipe_method = recipes.method_of(config)
    if recipe_method is not None and recipes.has_stages_of(base, config):
        config = method.placed(config, recipe_method)
    return dataclasses.replace(config, recipe=name or path.stem), file_flags


def _is_whole(values: Mapping[str, Any]) -> bool:
    """Whether a file holds a config as `dump` writes it, whose recipe is only a name.

    One of an older version lacks the newer fields, and one that somebody wrote has few.
    """
    fields = {field.name for field in dataclasses.fields(Config)}
    return 2 * len(fields & values.keys()) > len(fields)


def _of_python(path: Path, model: str | None) -> Config:
    """What the function `config` of a file returns, or its `METHOD` on the model to be trained."""
    if not path.exists():
        raise ValueError(f"there is no file {str(path)!r}")
    sys.path.insert(0, str(path.resolve().parent))  # functions of it are named STEM:function
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    file_method = recipes.method_in(module)
    if file_method is not None:
        if model in (None, "fresh"):
            return recipes.of_module(module, path.stem)
        return dataclasses.replace(method.applied(algorithms.BASE, file_method), recipe=path.stem)
    make = getattr(module, "config", None)
    config = make() if callable(make) else None
    if not isinstance(config, Config):
        raise ValueError(
            f"{path} needs a METHOD, a jaxrl.launch.method.Method, or a function `config()` that "
            "returns a jaxrl.config.Config"
        )
    recipe_names = {*recipes.names(), *map(recipes.identity, recipes.names())}
    shipped = config.recipe in recipe_names or config.recipe == Config().recipe
    return dataclasses.replace(config, recipe=path.stem) if shipped else config
