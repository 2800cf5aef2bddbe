import jax
import pytest


@pytest.fixture
def x64():
    """Float64 inside the test: the losses promote to at least float32 and never below the input."""
    with jax.enable_x64(True):
        yield
