"""Tensors that lie otherwise in files: all experts of a layer in one, or one in several parts."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.models.checkpoints.families import Stack
from jaxrl.models.checkpoints.forms.quantized_files import Slice


class Group(NamedTuple):
    """A tensor of a file, and the matrices or vectors that it holds."""

    names: list[str]
    """By expert, and of one expert in the order of the stack's parts."""
    stack: Stack | None
    """None: it is the one of that name, as it is."""


def split(stacks: Sequence[Stack], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a file, those of all experts as one for each expert, read when indexed.

    Args:
      stacks: how experts lie in the files.
      tensors: of the files, by name.
    """
    single: dict[str, Any] = {}
    for name, tensor in tensors.items():
        stack = next((s for s in stacks if name.endswith(f".{s.tensor}")), None)
        if stack is None:
            single[name] = tensor
            continue
        before = name.removesuffix(stack.tensor)
        experts, *shape = tensor.get_shape()
        shape = shape[::-1] if stack.inputs_first else shape
        shape[0] //= len(stack.parts)
        for expert in range(experts):
            for number, part in enumerate(stack.parts):
                read = _reader(stack, tensor, expert, number)
                form = Slice(tuple(shape), tensor.get_dtype(), read)
                single[before + part.format(expert=expert)] = form
    return single


def _reader(stack: Stack, tensor: Any, expert: int, number: int) -> Callable[[slice], np.ndarray]:
    def read(rows: slice) -> np.ndarray:
        value = np.asarray(tensor[expert : expert + 1])[0]
        value = value.T if stack.inputs_first else value
        count = len(stack.parts)
        if stack.interleaved:
            return value[number::count][rows]
        size = len(value) // count
        return value[number * size : (number + 1) * size][rows]

    return read


def with_joined(parts: Mapping[str, Sequence[str]], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a file, those that lie in parts as one, read when indexed.

    Args:
      parts: the end of a tensor's name, and those of its parts.
      tensors: of the files, by name.
    """
    joined = dict(tensors)
    for end, ends in parts.items():
        for name in [name for name in tensors if name.endswith(f".{ends[0]}")]:
            before = name.removesuffix(ends[0])
            pieces = [joined.pop(before + part) for part in ends if before + part in joined]
            shapes = [piece.get_shape() for piece in pieces]
            shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
            read = functools.partial(_read_joined, pieces)
            joined[before + end] = Slice(shape, pieces[0].get_dtype(), read)
    return joined


def _read_joined(pieces: Sequence[Any], rows: slice) -> np.ndarray:
    return np.concatenate([np.asarray(piece[:]) for piece in pieces])[rows]


def groups(stacks: Sequence[Stack], names: Iterable[str]) -> dict[str, Group]:
    """The tensors of a file by name, in the order in which their parts come.

    Args:
      stacks: how experts lie in the files.
      names: of the matrices and vectors, one for each expert.
    """
    plan: dict[str, Group] = {}
    order: dict[str, tuple[int, int]] = {}
    patterns = [
        (stack, number, re.compile(rf"(.*\.){re.escape(part).replace(_EXPERT, _NUMBER)}"))
        for stack in stacks
        for number, part in enumerate(stack.parts)
    ]
    for name in names:
        matches = ((s, n, match) for s, n, p in patterns if (match := p.fullmatch(name)))
        stack, number, match = next(matches, (None, 0, None))
        if match is None or stack is None:
            plan[name] = Group([name], None)
            continue
        order[name] = int(match[2]), number
        plan.setdefault(match[1] + stack.tensor, Group([], stack)).names.append(name)
    for group in plan.values():
        group.names.sort(key=lambda name: order.get(name, (0, 0)))
    return plan


_EXPERT, _NUMBER = re.escape("{expert}"), r"(\d+)"


def join(stack: Stack, values: Sequence[np.ndarray]) -> np.ndarray:
    """The tensor of a file from the matrices [outputs, inputs] or vectors that it holds, in order.

    Args:
      stack: how they lie in it.
      values: as in `Group.names`.
    """
    count = len(stack.parts)
    experts = []
    for first in range(0, len(values), count):
        parts = values[first : first + count]
        if stack.interleaved:
            expert = np.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])
        else:
            expert = np.concatenate(parts)
        experts.append(expert.T if stack.inputs_first else expert)
    return np.stack(experts)
