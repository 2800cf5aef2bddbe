"""Numbers without an end, and too large to hold, earn nothing from any verifier."""

from __future__ import annotations

import asyncio
import inspect
import json

import pytest
from reasoning_gym.factory import DATASETS

from jaxrl.data import tasks
from jaxrl.data.rewards import math, named
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.tasks.math import gym_scorers
from jaxrl.data.types import Problem
from tests import broad_except
from tests.data.test_hacks import NAMES, bundled, directory  # noqa: F401

ENDLESS = (
    "nan", "NaN", "-nan", "inf", "-inf", "+Infinity", "infinity", "1e999", "-1e999", "1.5E+400",
    "nan+nanj", "nanj", "infj", "1+infj", "inf-inf", "[nan, nan]", "(nan, inf)", "{nan}",
    '{"a": NaN}', "nan/nan", "nan%", "$nan$", "x=nan", "nan nan nan", "1e1_000", "９" * 400,
    "1e٩٩٩", "ｎａｎ", "9" * 400, "-" + "9" * 400, "9" * 400 + ".5", "9" * 400 + "j",
)  # fmt: skip
"""Each has a number that no float holds, in digits of some script."""
LARGE = (
    "1e308",
    "-1e308",
    "1e308+1e308j",
    "9" * 300,
    "٩" * 30,
    "0x" + "f" * 300,
    "1e-999",
    "１２３４５６７８９０１",
)
SAMPLE = (
    "complex_arithmetic", "chain_sum", "decimal_arithmetic", "simple_geometry", "power_function",
    "coin_flip", "countdown", "fraction_simplification", "time_intervals", "number_sorting",
)  # fmt: skip
GENERATORS = sorted(set(DATASETS) - {"composite"})


@pytest.mark.parametrize("text", ENDLESS)
def test_what_is_no_number_is_seen(text):
    assert gym_scorers.non_finite(text)


@pytest.mark.parametrize(
    "text", ["12", "1e10", "nand", "info", "banana", "1e-999", "9" * 300, "x_inf1", "one"]
)
def test_what_is_a_number_or_a_word_is_left(text):
    assert not gym_scorers.non_finite(text)


@pytest.mark.parametrize("generator", broad_except(SAMPLE, GENERATORS))
def test_no_generator_credits_them(generator):
    try:
        task = tasks.get(f"reasoning_gym/{generator}")
        problems = [task.problem("train", 0, index) for index in range(3)]
    except ValueError as error:
        pytest.skip(f"needs parameters: {error}")
    for problem in problems:
        for text in ENDLESS:
            score = scoring.score_completion(task, problem, f"<answer>{text}</answer>")
            assert score.error is not None or score.value == 0, (text, score)
        near = {"1e-999"} if generator == "polynomial_equations" else set()  # of the root 0
        for text in {*LARGE} - near:
            score = scoring.score_completion(task, problem, f"<answer>{text}</answer>")
            assert score.error is not None or score.value < 0.5, (text, score)


GOLDS = ("7", "-0.5", "1/3", "0", r"\frac{1}{2}", "x+1", "12345678901234567890")
REWARDS = {
    "number": named.number(), "exact": named.exact(), "math": math.equivalent("text"),
    "closeness prefix": named.closeness("prefix"),
}  # fmt: skip


@pytest.mark.sample(8, broad=5)
@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("gold", GOLDS)
def test_no_reward_of_ours_credits_them(name, gold):
    # math-verify rounds to six digits, and reads 0xf as a product with 0
    zero = {"1e-999", "0x" + "f" * 300} if name == "math" and gold == "0" else set()
    for text in {*ENDLESS, *LARGE} - zero:
        value = REWARDS[name](Problem("p", "?", gold), text)
        if inspect.isawaitable(value):
            value = asyncio.run(value)
        assert value.error is not None or value.value == 0, (text, value)


def test_a_reward_of_the_user_that_is_not_finite_is_an_error(tmp_path):
    from jaxrl.data.scoring import user_functions as own

    for value in (float("nan"), float("inf"), {"a": float("nan")}, {"a": 1e308, "b": 1e308}):
        with pytest.raises((ValueError, OverflowError)):
            own.score(value)


SANDBOXED = {"code", "guarded", "patches", "polyglot", "micro_ml", "mixture"}


@pytest.mark.parametrize(
    "name",
    broad_except(("arithmetic", "gsm8k", "math", "fractions", "random_calculation", "bounds"),
                         [n for n in NAMES if n not in SANDBOXED])
)  # fmt: skip
def test_no_bundled_task_credits_them(name, directory):  # noqa: F811
    task = bundled(name, directory)
    dull = "an answer of words"
    for problem in (task.problem("train", 5, index) for index in range(4)):
        floor = scoring.score_completion(task, problem, dull).value or 0.0
        for text in (*ENDLESS, *LARGE):
            for form in (text, f"<answer>{text}</answer>", rf"\boxed{{{text}}}", f"#### {text}"):
                score = scoring.score_completion(task, problem, form)
                assert score.error is not None or score.value <= max(floor, 0.05), (form, score)


def test_json_has_no_such_numbers():
    from jaxrl.data.rewards import schema

    for text in ("NaN", "Infinity", "-Infinity", "1e999", "[NaN]", '{"a": 1e999}'):
        score = schema.json_schema()(Problem("p", "?", None), text)
        assert score.value == 0 and score.parts["json"] == 0
    assert schema.json_schema()(Problem("p", "?", None), json.dumps({"a": 1})).value == 1
