"""The page on the architecture shows the imports as they are, and names what exists."""

import ast
import dataclasses
import re
from graphlib import CycleError

import numpy as np
import pytest

from jaxrl.launch.listing import architecture
from jaxrl.run.extension import Extension

TEXT = architecture.PAGE.read_text()


def test_the_figures_are_up_to_date():
    assert architecture.with_figures(TEXT) == TEXT, (
        "run `python -m jaxrl.launch.listing.architecture`"
    )


def test_links_lead_to_files_that_define_what_they_name():
    links = re.findall(r"\[`?([^]`]+)`?\]\((\.\./[^)]+|[\w/]+\.md)\)", TEXT)
    assert len(links) > 25
    for text, target in links:
        path = architecture.PAGE.parent / target
        assert path.exists(), target
        if path.suffix == ".py" and "/" not in text:
            names = {getattr(node, "name", "") for node in ast.parse(path.read_text()).body}
            assert text.rpartition(".")[2] in names, (text, target)


def test_examples_make_extensions():
    sources = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    scopes: list[dict] = [{}, {}]
    for source, scope in zip(sources, scopes, strict=True):
        exec(source, scope)
    penalised, twice = scopes
    made = penalised["length_penalty"](penalised["LengthPenalty"](per_token=0.5))

    @dataclasses.dataclass
    class Batch:
        rewards: np.ndarray
        action_mask: np.ndarray

        def replace(self, **changes):
            return dataclasses.replace(self, **changes)

    batch = Batch(np.ones(2), np.array([[0, 1, 1], [0, 0, 1]], bool))
    assert made.prepare(None, None, batch).rewards.tolist() == [0.0, 0.5]
    assert isinstance(twice["better_of_two"](twice["BetterOfTwo"]()), Extension)


def test_imports_that_follow_from_others_are_left_out():
    graph = {"a": set(), "b": {"a"}, "c": {"a", "b"}}
    assert architecture.reduced(graph) == {"a": set(), "b": {"a"}, "c": {"b"}}
    with pytest.raises(CycleError):
        architecture.reduced({"a": {"b"}, "b": {"a"}})


def test_every_module_is_found_once():
    found = architecture.files()
    assert {"config", "run.loop", "launch.listing.architecture", "losses"} <= found.keys()
    assert len(set(found.values())) == len(found)
