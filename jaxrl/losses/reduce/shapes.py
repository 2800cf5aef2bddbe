"""Checks of the arrays that a loss is given, by what its docstring says of them.

`[N, K]` is a shape of named axes: an axis has the same size in all arguments. `...` stands for any
number of axes, the same in all arguments. `[B, T] or [B, 1]` allows either shape. `int32` or `bool`
behind a shape is the dtype, where any width of integer will do. An entry that does not begin with a
shape is not checked.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax.numpy as jnp
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

_ARGUMENT = re.compile(r"^  ([a-z_]+(?:, [a-z_]+)*): (`\[[^\n]*)", re.MULTILINE)
_SHAPE = re.compile(r"`\[([^`\]]+)\]`")
_KINDS = {"int32": jnp.integer, "bool": jnp.bool_}


class Expected(NamedTuple):
    """What a docstring says of an argument."""

    shapes: tuple[tuple[str, ...], ...]
    """Names of the axes, `1` or `...`, in each form that the argument may have."""
    kind: Any
    """Abstract dtype; None for any number."""


def expected(function: Callable[..., Any]) -> dict[str, Expected]:
    """Shapes and dtypes of the arguments whose docstring entry begins with a shape.

    An entry is `names: [A, B] or [A, 1], remark`, each shape in backquotes; `int32` or `bool`
    behind it is the dtype.
    """
    entries = (inspect.getdoc(function) or "").partition("Args:")[2].partition("Returns:")[0]
    requirements: dict[str, Expected] = {}
    for names, text in _ARGUMENT.findall(entries):
        head = re.match(r"`[^`]+`(?: or `[^`]+`)*", text)
        assert head is not None
        shapes = tuple(tuple(s.split(", ")) for s in _SHAPE.findall(head.group()))
        word = text[head.end() :].strip(" ,.;:").split(" ")[0].strip(",.;:")
        for name in names.split(", "):
            requirements[name] = Expected(shapes, _KINDS.get(word))
    return requirements


def checked(function: F) -> F:
    """`function`, with its array arguments checked at each call, or each trace under `jax.jit`.

    `None` is not checked.

    Raises:
      ValueError: naming the argument, what it is and what it must be.
    """
    requirements, signature = expected(function), inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        sizes: dict[str, int | tuple[int, ...]] = {}
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in requirements and value is not None:
                array = value if hasattr(value, "shape") else np.asarray(value)
                _check(function.__name__, name, array, requirements[name], sizes)
        return function(*args, **kwargs)

    return cast(F, call)


def _check(
    function: str,
    name: str,
    value: Any,
    want: Expected,
    sizes: dict[str, int | tuple[int, ...]],
) -> None:
    """Compare one argument, and note the sizes of the axes that it is the first to have."""
    for axes in want.shapes:
        of_value = _matched(axes, value, sizes)
        if of_value is not None:
            sizes.update(of_value)
            break
    else:
        forms = " or ".join(f"[{', '.join(axes)}]" for axes in want.shapes)
        at = ", ".join(f"{axis}={n}" for axis, n in sizes.items())
        raise ValueError(
            f"{name} of {function} has shape {jnp.shape(value)}; pass {forms}"
            + (f" with {at}" if at else "")
            + (", one a sequence as x[:, None]" if "1" in want.shapes[-1] else "")
        )
    if want.kind is not None:
        import chex

        try:
            chex.assert_type(value, want.kind)
        except AssertionError as error:
            actual = jnp.result_type(value)
            raise ValueError(f"{name} of {function} has dtype {actual}; {error}") from error


def _matched(
    axes: tuple[str, ...], value: Any, sizes: dict[str, int | tuple[int, ...]]
) -> dict[str, int | tuple[int, ...]] | None:
    """The sizes of a value's axes; None where its shape is another."""
    import chex  # its test helpers take a while, which a program without losses need not

    expected_shape = [{"...": ..., "1": 1}.get(axis, sizes.get(axis)) for axis in axes]
    try:
        chex.assert_shape(value, expected_shape)
    except AssertionError:
        return None
    shape, axis_sizes = jnp.shape(value), dict(sizes)
    parts: Sequence[int | tuple[int, ...]] = shape
    if "..." in axes:
        first = axes.index("...")
        last = len(shape) - (len(axes) - first - 1)
        parts = [*shape[:first], shape[first:last], *shape[last:]]
    for axis, n in zip(axes, parts, strict=True):
        if axis != "1" and axis_sizes.setdefault(axis, n) != n:
            return None
    return axis_sizes
