"""A policy as a program of NumPy alone: its jaxpr, written out an equation a line.

What does not depend on the observation is computed now, so that a policy which draws noise is
written with that of one key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

SIMPLE = {
    "add": "{0} + {1}", "add_any": "{0} + {1}", "sub": "{0} - {1}",
    "mul": "{0} * {1}", "div": "{0} / {1}",
    "max": "np.maximum({0}, {1})", "min": "np.minimum({0}, {1})", "neg": "-{0}",
    "exp": "np.exp({0})", "log": "np.log({0})", "log1p": "np.log1p({0})", "tanh": "np.tanh({0})",
    "sqrt": "np.sqrt({0})", "rsqrt": "1.0 / np.sqrt({0})", "abs": "np.abs({0})",
    "sign": "np.sign({0})", "square": "np.square({0})", "pow": "np.power({0}, {1})",
    "sin": "np.sin({0})", "cos": "np.cos({0})", "floor": "np.floor({0})", "ceil": "np.ceil({0})",
    "logistic": "1.0 / (1.0 + np.exp(-{0}))", "eq": "np.equal({0}, {1})",
    "ne": "np.not_equal({0}, {1})", "lt": "np.less({0}, {1})", "le": "np.less_equal({0}, {1})",
    "gt": "np.greater({0}, {1})", "ge": "np.greater_equal({0}, {1})",
    "and": "np.logical_and({0}, {1})", "or": "np.logical_or({0}, {1})",
    "not": "np.logical_not({0})", "is_finite": "np.isfinite({0})", "stop_gradient": "{0}",
    "copy": "{0}", "copy_p": "{0}", "clamp": "np.clip({1}, {0}, {2})", "expm1": "np.expm1({0})",
    "optimization_barrier": "{0}",
}  # fmt: skip
"""Primitives by their NumPy."""
CALLS = ("pjit", "jit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")
"""Primitives that hold a jaxpr of their own."""
REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_and": "all",
              "reduce_or": "any"}  # fmt: skip


def write(
    function: Callable[..., Any], size: int, dtype: Any = np.float32, memory: int = 0
) -> tuple[str, list[np.ndarray]]:
    """Source of `act(observation, c)` in NumPy, and the arrays that it reads as `c[0]`, `c[1]`, ...

    Args:
      function: an observation [size] -> an action.
      size: O.
      dtype: of the observation.
      memory: H; above 0 the function, and `act` after c, take a memory [H] float32 too, and return
        the action and the next memory.

    Raises:
      ValueError: an operation that is not translated.
    """
    inputs = [jnp.zeros(size, dtype), *([jnp.zeros(memory)] if memory else [])]
    closed = jax.make_jaxpr(function)(*inputs)
    constants: list[np.ndarray] = []
    lines: list[str] = []
    names = dict(zip(closed.jaxpr.invars, ("x", "m"), strict=False))
    const_values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    results = ", ".join(_translate(closed.jaxpr, const_values, names, lines, constants))
    body = "\n".join(f"    {line}" for line in lines)
    parameters = "x, c, m" if memory else "x, c"
    return f"def act({parameters}):\n{body}\n    return {results}\n", constants


def _translate(
    jaxpr: Any, const_values: dict, names: dict, lines: list[str], constants: list[np.ndarray]
) -> list[str]:
    """Write the equations of `jaxpr`; the expressions of its results."""

    def text(var: Any) -> str:
        if not isinstance(var, core.Literal) and var in names:
            return names[var]
        value = np.asarray(var.val if isinstance(var, core.Literal) else const_values[var])
        if value.ndim == 0 and value.dtype == np.float32 and np.isfinite(value):
            return f"np.float32({float(value)!r})"
        constants.append(value)
        return f"c[{len(constants) - 1}]"

    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, _inner(equation)
        fixed = all(isinstance(v, core.Literal) or v in const_values for v in equation.invars)
        if fixed:
            values = [
                v.val if isinstance(v, core.Literal) else const_values[v] for v in equation.invars
            ]
            if inner is not None:
                results = core.jaxpr_as_fun(inner)(*values)
            else:
                results = equation.primitive.bind(*values, **equation.params)
                results = results if equation.primitive.multiple_results else [results]
            const_values |= dict(zip(equation.outvars, results, strict=True))
            continue
        if name == "scan":
            texts = _unrolled(equation, lines, constants, text)
            names |= dict(zip(equation.outvars, texts, strict=True))
            continue
        if inner is not None:
            arguments = dict(zip(inner.jaxpr.invars, equation.invars, strict=True))
            inside = {v: names[o] for v, o in arguments.items() if _is_named(o, names)}
            inner_values = dict(zip(inner.jaxpr.constvars, inner.consts, strict=True))
            for var, outer in arguments.items():
                if var not in inside:
                    inner_values[var] = (
                        outer.val if isinstance(outer, core.Literal) else const_values[outer]
                    )
            results = _translate(inner.jaxpr, inner_values, inside, lines, constants)
            names |= dict(zip(equation.outvars, results, strict=True))
            continue
        if name == "split":
            source, start = text(equation.invars[0]), 0
            for var, size in zip(equation.outvars, equation.params["sizes"], strict=True):
                inside = ":, " * equation.params["axis"] + f"{start}:{start + size}"
                names[var], start = f"v{len(lines)}", start + size
                lines.append(f"v{len(lines)} = {source}[{inside}]")
            continue
        names[equation.outvars[0]] = f"v{len(lines)}"
        expression = _expression(name, equation, [text(v) for v in equation.invars])
        lines.append(f"v{len(lines)} = {expression}")
    return [text(var) for var in jaxpr.outvars]


def _unrolled(
    equation: Any, lines: list[str], constants: list[np.ndarray], text: Callable[[Any], str]
) -> list[str]:
    """The rounds of a scan, one after the other."""
    params, inner = equation.params, equation.params["jaxpr"]
    const_count, carry_count = params["num_consts"], params["num_carry"]
    consts, carry, xs = (
        equation.invars[:const_count],
        [text(v) for v in equation.invars[const_count : const_count + carry_count]],
        [text(v) for v in equation.invars[const_count + carry_count :]],
    )
    rounds = range(params["length"])
    rows = []
    for i in reversed(rounds) if params["reverse"] else rounds:
        texts = [*(text(v) for v in consts), *carry, *(f"{x}[{i}]" for x in xs)]
        inside = dict(zip(inner.jaxpr.invars, texts, strict=True))
        const_values = dict(zip(inner.jaxpr.constvars, inner.consts, strict=True))
        results = _translate(inner.jaxpr, const_values, inside, lines, constants)
        carry = results[:carry_count]
        rows.append(results[carry_count:])
    ordered = rows[::-1] if params["reverse"] else rows
    return [*carry, *(f"np.stack([{', '.join(column)}])" for column in zip(*ordered, strict=True))]


def _is_named(var: Any, names: dict) -> bool:
    return not isinstance(var, core.Literal) and var in names


def _inner(equation: Any) -> Any:
    """The closed jaxpr of a call, or None."""
    if equation.primitive.name not in CALLS:
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in equation.params:
            inner = equation.params[key]
            return inner if hasattr(inner, "consts") else core.ClosedJaxpr(inner, ())
    return None


def _takes_rows(equation: Any) -> bool:
    """Whether a gather is of whole rows of its first axis."""
    numbers, shape = equation.params["dimension_numbers"], equation.invars[0].aval.shape
    rank = len(equation.outvars[0].aval.shape)
    return (
        numbers.start_index_map == numbers.collapsed_slice_dims == (0,)
        and not numbers.operand_batching_dims
        and tuple(equation.params["slice_sizes"]) == (1, *shape[1:])
        and tuple(numbers.offset_dims) == tuple(range(rank - len(shape) + 1, rank))
    )


def _is_plain(params: dict[str, Any]) -> bool:
    """Whether a convolution is of [N, H, W, C] with [i, j, C, O], without padding or groups."""
    numbers = params["dimension_numbers"]
    return (
        tuple(numbers) == ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
        and not any(side for pair in params["padding"] for side in pair)
        and {*params["lhs_dilation"], *params["rhs_dilation"]} == {1}
        and params["feature_group_count"] == params["batch_group_count"] == 1
    )


def _expression(name: str, equation: Any, arguments: list[str]) -> str:
    """An equation in NumPy.

    Raises:
      ValueError: a primitive, or a form of one, that is not translated.
    """
    params, form = equation.params, equation.outvars[0].aval
    first = arguments[0]
    if name in SIMPLE:
        return SIMPLE[name].format(*arguments)
    if name == "integer_pow":
        return f"{first} ** {params['y']}"
    if name == "convert_element_type":
        return f"np.asarray({first}).astype(np.{np.dtype(params['new_dtype']).name})"
    if name in REDUCTIONS:
        return f"np.{REDUCTIONS[name]}({first}, axis={tuple(params['axes'])})"
    if name in ("argmax", "argmin"):
        kind = np.dtype(params["index_dtype"]).name
        return f"np.{name}({first}, axis={params['axes'][0]}).astype(np.{kind})"
    if name == "broadcast_in_dim":
        source = equation.invars[0].aval.shape
        wide = [1] * len(form.shape)
        for axis, place in enumerate(params["broadcast_dimensions"]):
            wide[place] = source[axis]
        return f"np.broadcast_to(np.reshape({first}, {tuple(wide)}), {form.shape})"
    if name in ("reshape", "squeeze", "expand_dims"):
        return f"np.reshape({first}, {form.shape})"
    if name == "transpose":
        return f"np.transpose({first}, {tuple(params['permutation'])})"
    if name == "concatenate":
        return f"np.concatenate([{', '.join(arguments)}], axis={params['dimension']})"
    if name == "slice":
        steps = params["strides"] or (1,) * len(params["start_indices"])
        bounds = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
        inside = ", ".join(f"{a}:{b}:{s}" for a, b, s in bounds)
        return f"{first}[{inside}]"
    if name == "select_n" and len(arguments) == 3:
        return f"np.where({first}, {arguments[2]}, {arguments[1]})"
    if name == "gather" and _takes_rows(equation):
        count = equation.invars[0].aval.shape[0]
        return f"np.take({first}, np.clip({arguments[1]}[..., 0], 0, {count - 1}), axis=0)"
    if name == "dot_general":
        (left, right), (left_batch, right_batch) = params["dimension_numbers"]
        ranks = [len(v.aval.shape) for v in equation.invars]
        letters = iter("abcdefghijklmnopqrstuvw")
        sides: list[list[str]] = [[""] * rank for rank in ranks]
        shared = [*zip(left_batch, right_batch, strict=True), *zip(left, right, strict=True)]
        for i, j in shared:
            sides[0][i] = sides[1][j] = next(letters)
        for side in sides:
            for axis, letter in enumerate(side):
                side[axis] = letter or next(letters)
        lead = [sides[0][i] for i in left_batch]
        rest = [x for k, side in enumerate(sides) for n, x in enumerate(side)
                if n not in ((*left_batch, *left), (*right_batch, *right))[k]]  # fmt: skip
        pattern = f"{''.join(sides[0])},{''.join(sides[1])}->{''.join(lead + rest)}"
        return f"np.einsum({pattern!r}, {arguments[0]}, {arguments[1]})"
    if name == "conv_general_dilated" and _is_plain(params):
        rows, columns = params["window_strides"]
        kernel = equation.invars[1].aval.shape[:2]
        windows = f"np.lib.stride_tricks.sliding_window_view({first}, {tuple(kernel)}, axis=(1, 2))"
        return (
            f"np.einsum('nhwcij,ijco->nhwo', {windows}[:, ::{rows}, ::{columns}], {arguments[1]})"
        )
    raise ValueError(
        f"this policy has the operation {name!r}, which is not written in NumPy; use "
        "policy.stablehlo, or jaxrl.control.load"
    )
