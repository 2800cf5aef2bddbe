"""What the tests share."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

COMPILED = str(Path(tempfile.gettempdir()) / "jaxrl-tests-cache")
"""Where they keep compiled programs, unless JAX_COMPILATION_CACHE_DIR says otherwise."""


def broad_except(ordinary: Iterable[str], cases: Iterable[str]) -> list[Any]:
    """The cases of a parametrised test; those that are not named get the marker `broad`."""
    kept = frozenset(ordinary)
    return [c if c in kept else pytest.param(c, marks=pytest.mark.broad) for c in cases]
