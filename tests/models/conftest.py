"""Tiny models, made once a session and shared by all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import DecoderConfig
from tests.models import tiny


class Tiny(NamedTuple):
    """A torch model, the directory it is saved in, and what we loaded from there."""

    torch: Any
    directory: Path
    config: DecoderConfig
    params: dict[str, Any]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tiny]:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    made: dict[str, Tiny] = {}

    def get(variant: str) -> Tiny:
        if variant not in made:
            directory = tmp_path_factory.mktemp(variant)
            model = tiny.make(*tiny.VARIANTS[variant], directory)
            made[variant] = Tiny(model, directory, *huggingface.load(directory))
        return made[variant]

    return get
