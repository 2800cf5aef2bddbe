"""Streams of random numbers have the numbers that runs were recorded with, and all have a name."""

import ast
from pathlib import Path

import jax
import numpy as np

import jaxrl
from jaxrl.random_streams import GroupStream, RunStream, UpdateStream

LIBRARY = Path(jaxrl.__file__).parent
FOLDERS = ("extensions", "rollout", "run", "sampling", "training")


def test_the_numbers_never_change():
    assert {s.name: s.value for s in RunStream} == {
        "PARAMS": 0, "SAMPLING": 1, "ADAPTERS": 3, "SCORE": 4,
    }  # fmt: skip
    assert {s.name: s.value for s in UpdateStream} == {"NOISE": 1, "ROUNDING": 2}
    assert {s.name: s.value for s in GroupStream} == {
        "LOGGED_GAMES": 1, "BRANCHES": 2, "SEAT": 3, "IMITATED": 17, "ENVIRONMENTS": 1048576,
    }  # fmt: skip


def test_a_stream_is_its_number():
    for stream in RunStream:
        key = jax.random.fold_in(jax.random.key(7), stream.value)
        assert (jax.random.key_data(stream.key(7)) == jax.random.key_data(key)).all()
    for stream in GroupStream:
        named, plain = (np.random.default_rng([3, 5, n]).random() for n in (stream, stream.value))
        assert named == plain


def test_no_stream_is_a_number_in_the_code():
    for folder in FOLDERS:
        for path in (LIBRARY / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("fold_in"):
                    for argument in node.args[1:]:
                        number = ast.unparse(argument)
                        assert not number.strip("_").replace("_", "").isupper(), (path, number)
                        assert not isinstance(argument, ast.Constant), (path, number)
