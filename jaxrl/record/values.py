"""Python values as JSON values and arrays, as a checkpoint keeps them, and back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from jaxrl.data.environments import Opening, Reply
from jaxrl.data.types import Problem, Score
from jaxrl.types import Completion, OutputConstraint, Prefix, Request

_PLAIN = frozenset({type(None), bool, int, float, str, np.ndarray})
_SCALARS = (bool, int, float, str, np.ndarray)
_RECORDS = {
    kind: tuple(kind.__annotations__)
    for kind in (Problem, Request, OutputConstraint, Prefix, Completion, Score, Opening, Reply)
}
"""Types and the names of their fields."""
_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": lambda items: {key: value for key, value in items},
}


def to_state(value: Any) -> Any:
    """Nested values as JSON values and arrays, which `from_state` reads back.

    Plain Python values, arrays, and the records of `_RECORDS` may be nested in any way.

    Raises:
      ValueError: a problem whose answer or metadata is neither of plain Python values nor arrays.
    """
    kind = type(value)
    if kind in _PLAIN or isinstance(value, _SCALARS):
        return value
    if isinstance(value, np.generic):
        return {"scalar": np.asarray(value)}
    if isinstance(value, bytes):
        return {"bytes": np.frombuffer(value, np.uint8)}
    if kind in _RECORDS:
        fields = {name: to_state(getattr(value, name)) for name in _RECORDS[kind]}
        return {"record": kind.__name__, "fields": fields}
    if isinstance(value, list):
        return _entries(value)
    if isinstance(value, Mapping):
        return {"dict": [[to_state(k), to_state(v)] for k, v in value.items()]}
    if kind.__name__ in _COLLECTIONS:
        return {kind.__name__: _entries(value)}
    raise ValueError(
        f"a problem holds {value!r:.100}, a {kind.__name__}, which a checkpoint cannot keep "
        "while the problem is unfinished; use plain values or arrays in Problem.answer and "
        "Problem.metadata, or rollout.in_flight=1"
    )


def _entries(values: Collection[Any]) -> list[Any]:
    """Each of a collection. A prompt's tokens are copied at once: this is done at every step."""
    if _PLAIN.issuperset(map(type, values)):
        return list(values)
    return [to_state(entry) for entry in values]


def from_state(state: Any) -> Any:
    """What `to_state` was given.

    Raises:
      ValueError: anything else.
    """
    if isinstance(state, list):
        return [from_state(entry) for entry in state]
    if not isinstance(state, dict):
        return state
    if "record" in state:
        kinds = {kind.__name__: kind for kind in _RECORDS}
        if state["record"] not in kinds:
            raise ValueError(
                f"a checkpoint holds a {state['record']!r}, which is no record of ours"
            )
        return kinds[state["record"]](**{k: from_state(v) for k, v in state["fields"].items()})
    ((kind, value),) = state.items()
    if kind == "scalar":
        return value[()]
    if kind == "bytes":
        return value.tobytes()
    if kind not in _COLLECTIONS:
        raise ValueError(f"a checkpoint holds a {kind!r}, which is no collection of ours")
    return _COLLECTIONS[kind](from_state(value))
