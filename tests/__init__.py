"""What the tests share."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

COMPILED = str(Path(tempfile.gettempdir()) / "jaxrl-tests-cache")
"""Where they keep compiled programs, unless JAX_COMPILATION_CACHE_DIR says otherwise."""

FEWER_FUSIONS = "--xla_cpu_use_fusion_emitters=false" if jax.__version_info__ < (0, 12) else ""
"""A flag of XLA: two thirds less time in the compiler. Later versions end at a flag they do not
know, and no longer have this one."""


def broad_except(ordinary: Iterable[str], cases: Iterable[str]) -> list[Any]:
    """The cases of a parametrised test; those that are not named get the marker `broad`."""
    import pytest  # which a machine that is measured by `tests.accelerator` may lack

    kept = frozenset(ordinary)
    return [c if c in kept else pytest.param(c, marks=pytest.mark.broad) for c in cases]
