"""Functions named in a config: looked up once, called with whatever they ask for.

A config that a user writes may name any function. A config that is read from a run directory is
data: it may name the functions of this package alone, see `jaxrl.untrusted`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import typing
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.data.tasks import is_function
from jaxrl.data.tasks.parameters import kinds

BUNDLED = (
    "jaxrl.losses.", "jaxrl.launch.recipes.",
    "jaxrl.data.selection.bandits", "jaxrl.data.selection.curriculum",
    "jaxrl.data.selection.guidance", "jaxrl.data.selection.replay",
)  # fmt: skip
"""Modules, and packages with their dot, whose public functions any config may name."""


def bundled(reference: str) -> bool:
    """Whether `module:name` is a public function that a module of `BUNDLED` defines."""
    module_name, _, name = reference.partition(":")
    is_bundled = any(
        module_name.startswith(home) if home.endswith(".") else module_name == home
        for home in BUNDLED
    )
    if not is_bundled or name.startswith("_"):
        return False
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError:
        return False
    # What a module imports is not its own.
    return getattr(getattr(module, name, None), "__module__", None) == module_name


def nearest(name: str, names: list[str]) -> str:
    """A hint for an unknown name: the closest known one, or the whole list when it is short."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(names))}"


def resolve(
    reference: str, args: Mapping[str, Any], supplied_names: set[str]
) -> Callable[..., Any]:
    """The function `module:name`, checked against how it will be called.

    Args:
      reference: see `lookup`.
      args: keyword arguments from the config.
      supplied_names: names of the arrays that the caller can supply.

    Raises:
      ValueError: no such function, an argument it does not take, a text for one that is a number,
        or one it needs that is neither in `args` nor supplied.
    """
    function = lookup(reference)
    parameters = inspect.signature(function).parameters
    for arg, value in args.items():
        if arg not in parameters or arg in supplied_names:
            free = [p for p in parameters if p not in supplied_names]
            raise ValueError(f"{reference} takes no argument {arg!r}; {nearest(arg, free)}")
        types = kinds(parameters[arg].annotation)
        if isinstance(value, str) and str not in types and {float, int, bool}.intersection(types):
            expected = "true or false" if bool in types else "a number"
            raise ValueError(f"{reference}: {arg}={value!r} must be {expected}")
    for p in parameters.values():
        if p.default is p.empty and p.name not in supplied_names and p.name not in args:
            raise ValueError(
                f"{reference} needs {p.name!r}, which this run does not provide; set it in the "
                "function's arguments, or choose another function"
            )
    return function


def is_installed(module: str) -> bool:
    """Whether a module, named by its packages and dots, can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that it is in
        return False


def lookup(reference: str) -> Callable[..., Any]:
    """The function of a name.

    Args:
      reference: the name of a function of `jaxrl.losses`, `jaxrl.data.selection.curriculum`,
      `bandits`,
        `guidance` or `replay`, such as `ppo_clip`; or `module:function`.

    Raises:
      ValueError: no such function, or several.
    """
    if not is_function(reference):
        references = _named().get(reference, [])
        if len(references) != 1:
            hint = (
                f"it may be {' or '.join(references)}"
                if references
                else nearest(reference, [*_named()])
            )
            raise ValueError(f"function {reference!r} is not one function; {hint}")
        (reference,) = references
    module_name, _, name = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if missing != module_name and not module_name.startswith(f"{missing}."):
            raise ValueError(
                f"function {reference!r}: its module needs {missing!r}, which is not there; "
                "install it"
            ) from error
        close = difflib.get_close_matches(module_name, _beside(module_name), n=1, cutoff=0.6)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(
            f"function {reference!r}: no module {module_name!r}; {hint}Write module:function, or a "
            "bundled name such as ppo_clip"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        public = [n for n, f in vars(module).items() if inspect.isfunction(f) and n[0] != "_"]
        raise ValueError(f"function {reference!r} does not exist; {nearest(name, public)}")
    return function


def _beside(module_name: str) -> list[str]:
    """The modules of the package that a module would be in; of the top level, those found there."""
    package, dot, _ = module_name.rpartition(".")
    try:
        where = importlib.import_module(package).__path__ if package else None
    except (ModuleNotFoundError, AttributeError):
        return []
    return [f"{package}{dot}{module.name}" for module in pkgutil.iter_modules(where)]


@functools.cache
def _named() -> dict[str, list[str]]:
    """The bundled functions as `module:function`, by their names."""
    losses = importlib.import_module("jaxrl.losses")
    homes = [
        module.name
        for module in pkgutil.walk_packages(losses.__path__, "jaxrl.losses.")
        if not module.ispkg
    ]
    homes += [home for home in BUNDLED if not home.endswith(".")]
    references: dict[str, list[str]] = {}
    for home in homes:
        for name, function in vars(importlib.import_module(home)).items():
            defined_here = inspect.isfunction(function) and function.__module__ == home
            if defined_here and not name.startswith("_"):
                references.setdefault(name, []).append(f"{home}:{name}")
    return references


def extension(reference: str) -> Callable[..., Any]:
    """The function of settings that makes an extension, see `jaxrl.run.extension`.

    Args:
      reference: `critic`, for one of `jaxrl.extensions`, or `module:function`.

    Raises:
      ValueError: no such extension.
    """
    if ":" not in reference:
        names = bundled_extensions()
        if reference not in names:
            raise ValueError(f"extension {reference!r} is unknown; {nearest(reference, names)}")
        reference = f"jaxrl.extensions.{reference}:{reference}"
    function = resolve(reference, {}, {"settings"})
    if not dataclasses.is_dataclass(settings_type(function)):
        raise ValueError(
            f"extension {reference!r} takes no settings; write it as a function of one argument "
            "`settings`, annotated with a frozen dataclass"
        )
    return function


def bundled_extensions() -> list[str]:
    """Names of the modules of `jaxrl.extensions`."""
    package = importlib.import_module("jaxrl.extensions")
    return [module.name for module in pkgutil.iter_modules(package.__path__)]


def extension_name(reference: str) -> str:
    """The name of an extension: of its state, and of its flags."""
    return reference.rpartition(":")[2]


def settings_type(function: Callable[..., Any]) -> Any:
    """The annotation of the function's argument `settings`; None without one."""
    return typing.get_type_hints(function).get("settings")


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether the function has an argument of this name."""
    return name in inspect.signature(function).parameters


def requires(function: Callable[..., Any], name: str) -> bool:
    """Whether the function cannot be called without this argument."""
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def call(function: Callable[..., Any], args: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """Call with the config's `args` and those of the `given` arrays that the function names."""
    parameters = inspect.signature(function).parameters
    return function(**{k: v for k, v in given.items() if k in parameters}, **args)
