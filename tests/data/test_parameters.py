"""Parameters of bundled tasks: a value of the wrong type is refused by name."""

import importlib
import inspect
import typing
from collections.abc import Mapping
from typing import Any

import pytest

from jaxrl.data import tasks

WRONG = {
    int: ["long", True, 2.5, [2], None],
    float: ["long", True, [0.5], None],
    bool: ["no", 2, None],
    str: [3, False, None],
    int | None: ["long", True],
    Mapping[str, Any] | str: [3, None],
    Mapping[str, Any] | str | None: [3],
}
"""Values by the type that a parameter has."""


@pytest.mark.parametrize("name", tasks.BUNDLED)
def test_a_value_of_the_wrong_type_is_refused_by_name(name):
    make = importlib.import_module(tasks.BUNDLED[name]).task
    hints, parameters = typing.get_type_hints(make), inspect.signature(make).parameters
    needed = {field: "x" for field, p in parameters.items() if p.default is p.empty}
    if needed.pop("config", None):  # parameters of a generator
        del hints["config"]
    for field in parameters.keys() & hints.keys():
        choice = typing.get_origin(hints[field]) is typing.Literal
        for value in WRONG[str if choice else hints[field]]:
            with pytest.raises(ValueError) as refused:
                tasks.get(name, **needed | {field: value})
            said = str(refused.value)
            assert said.startswith(f"{field}={value!r}: task {name!r} needs "), said


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"digits": "long"}, "digits='long': task 'arithmetic' needs a whole number, such as 3"),
        ({"slips": "few"}, "slips='few': task 'arithmetic' needs a number, such as 0.5"),
        ({"worked": "True"}, "worked='True': task 'arithmetic' needs true or false"),
        (
            {"operators": 7},
            "operators=7: task 'arithmetic' needs a text, in quotes such as '\"7\"'",
        ),
    ],
    ids=["whole number", "number", "switch", "text"],
)
def test_the_error_says_what_to_write(params, says):
    with pytest.raises(ValueError) as refused:
        tasks.get("arithmetic", **params)
    assert str(refused.value).startswith(says)


def test_a_whole_number_is_a_number_and_a_parameter_may_be_absent():
    made = tasks.get("arithmetic", slips=1, operators="+", ood_digits=None, worked=1)
    assert made.params["slips"] == 1 and made.params["worked"]


@pytest.mark.parametrize("name", ["calibrated", "guarded"])
def test_parameters_of_a_task_within_a_task_may_be_a_mapping(name):
    made = tasks.get(name, of="arithmetic", args={"digits": 1})
    assert made.problem("train", 0, 0) == tasks.get(name, args='{"digits": 1}').problem(
        "train", 0, 0
    )
    with pytest.raises(ValueError, match=r"args=3: task .* needs a mapping or a text"):
        tasks.get(name, args=3)
    with pytest.raises(ValueError, match="digits='long': task 'arithmetic' needs"):
        tasks.get(name, args={"digits": "long"})


def test_parameters_of_a_generator_are_named():
    with pytest.raises(ValueError, match="min_terms='long': generator 'chain_sum' needs a whole"):
        tasks.get("reasoning_gym/chain_sum", min_terms="long")
    with pytest.raises(ValueError, match=r"'composite' with \{'datasets': 7\}: "):
        tasks.get("reasoning_gym/composite", datasets=7)
