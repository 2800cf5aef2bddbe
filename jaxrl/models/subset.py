"""Training part of the parameters: chosen by patterns of their paths."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from flax import nnx

from jaxrl.models.decoder import Params


def split(params: Params, patterns: Sequence[str]) -> tuple[Params, Params]:
    """The parameters to train, and the frozen rest.

    Args:
      params: a nested dict.
      patterns: of paths such as `layers/mlp/down` or `embed`, with `*` for any run of characters.

    Raises:
      ValueError: a pattern that matches no parameter.
    """
    flat = nnx.traversals.flatten_mapping(params, sep="/")
    for pattern in patterns:
        if not fnmatch.filter(flat, pattern):
            raise ValueError(f"pattern {pattern!r} matches none of {', '.join(flat)}")
    chosen = {path for pattern in patterns for path in fnmatch.filter(flat, pattern)}
    parts = (
        {path: value for path, value in flat.items() if (path in chosen) == is_trained}
        for is_trained in (True, False)
    )
    trained, frozen = (nnx.traversals.unflatten_mapping(part, sep="/") for part in parts)
    return trained, frozen


def join(trained: Params, frozen: Params) -> Params:
    """The parameters that were split."""
    flatten = nnx.traversals.flatten_mapping
    return nnx.traversals.unflatten_mapping(flatten(trained) | flatten(frozen))
