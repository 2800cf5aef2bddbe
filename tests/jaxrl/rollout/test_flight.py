"""Groups under way as JSON and arrays: what is read back is what was kept."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from jaxrl.data import tasks
from jaxrl.data.types import Problem, Score
from jaxrl.record import checkpoint, values
from jaxrl.rollout import flight
from jaxrl.rollout.drive import Group, OpenGroups
from jaxrl.rollout.programs import Row
from jaxrl.rollout.selection import Drawn
from jaxrl.sampling.requests import forced
from jaxrl.types import Completion, Request

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    arrays.arrays(st.sampled_from(["f4", "i8", "?"]), arrays.array_shapes(min_side=0)),
    st.builds(np.float32, st.floats(width=32)), st.frozensets(st.integers()),
)  # fmt: skip
KEYS = st.one_of(st.text(), st.integers(), st.booleans(), st.tuples(st.text(), st.integers()))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(KEYS, inner)
    ),
    max_leaves=12,
)


def kept(value):
    """Through the file that a checkpoint keeps it in."""
    text = json.dumps(values.to_state(value), default=checkpoint.to_json)
    return values.from_state(json.loads(text, object_hook=checkpoint.from_json))


def equal(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        same = np.asarray(a).tobytes() == np.asarray(b).tobytes()
        return a.dtype == b.dtype and a.shape == b.shape and same
    if dataclasses.is_dataclass(a):
        return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return equal(list(a), list(b)) and all(equal(a[k], b[k]) for k in a)
    return a == b or (isinstance(a, float) and a != a and b != b)


@pytest.mark.exact("groups under way are read back from a checkpoint as they were kept")
@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_a_problem_of_any_plain_values_is_read_back(value):
    problem = Problem("id", "1+1=", value, ({"role": "user", "content": "x"},), {"own": value})
    assert equal(kept(problem), problem)


@pytest.mark.parametrize("name", sorted({*tasks.BUNDLED} - {*tasks.NEED_PARAMETERS}))
def test_problems_of_every_task_can_be_kept(name):
    """So that runs with groups in progress can be continued on it."""
    try:
        problem = tasks.get(name).problem("train", 0, 0)
    except (ImportError, OSError) as missing:
        pytest.skip(f"{name} needs what is not installed: {missing}")
    assert kept(problem).prompt == problem.prompt


@pytest.mark.exact("groups under way are read back from a checkpoint as they were kept")
def test_a_flight_is_read_back():
    rng = np.random.default_rng(0)
    request = Request(7, (1, 2), 9, temperature=0.7, logit_bias=((3, -np.inf),), stop=("\ud800",))
    request = dataclasses.replace(request, prefix=forced([4, 5]))
    tokens = np.array([4, 5, 6], np.int32)
    logp, entropy = rng.normal(size=(2, 3)).astype(np.float32)
    version, source = np.array([0, 0, 3], np.int32), np.array([1, 1, 0], np.int8)
    done = Completion(request, tokens, logp, entropy, version, True, source)
    problem = Problem("p", "1+1=", {"a": (1, 2.5), 3: [None]}, metadata={"set": {1, 2}})
    row = Row(done, "text", Score(None, {"part": 0.1}, error="timeout: late"))
    going = Group(Drawn(problem, [1, 2]), 4, {(0, 1): [done, row.score]}, {(0, 2): done})
    open_groups = OpenGroups([going, Group(Drawn(problem), 8, rows=[row])], [Drawn(problem, 3)], 12)
    text = json.dumps(flight.groups_to_state(open_groups), default=checkpoint.to_json)
    again = flight.groups_from_state(json.loads(text, object_hook=checkpoint.from_json))
    assert equal(again, open_groups)


@pytest.mark.parametrize("value", [object(), {"a": [len]}, Score])
def test_what_cannot_be_kept_is_named(value):
    with pytest.raises(ValueError, match=r"Problem\.metadata, or rollout\.in_flight=1"):
        values.to_state(Problem("p", "x", value))


@pytest.mark.parametrize(
    "saved",
    [
        {"record": "Popen", "fields": {"args": "true"}},
        {"eval": ["1"]},
        {"record": "system", "fields": {}},
    ],
)
def test_a_state_makes_nothing_but_records_of_ours(saved):
    with pytest.raises(ValueError, match="of ours"):
        values.from_state(saved)
