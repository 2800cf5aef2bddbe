"""Python's garbage collection during a run.

JAX keeps hundreds of thousands of objects for the programs that it has compiled. A full collection
visits all of them, which takes 0.1 s or more, and the objects of a step's completions trigger one
every few steps.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STEADY = 10
"""Steps without a new program after which a run's objects are taken to be permanent."""


@contextmanager
def exempting() -> Iterator[Callable[[float], None]]:
    """A function that exempts the permanent objects of a run from garbage collection.

    Call it after each step with the number of programs compiled so far. Once no program has been
    added for `_STEADY` steps, it collects what is unreachable and exempts all other objects. An
    exempt object is still freed when the last reference to it goes. The exemption ends with the
    context.
    """
    last, steady = -1.0, 0

    def stepped(compiled: float) -> None:
        nonlocal last, steady
        last, steady = compiled, 0 if compiled != last else steady + 1
        if steady == _STEADY:
            gc.unfreeze()  # what was exempt before may be unreachable now
            gc.collect()
            gc.freeze()

    try:
        yield stepped
    finally:
        gc.unfreeze()
