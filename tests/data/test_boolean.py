"""Boolean expressions: truth tables by hand, and what the task accepts."""

import itertools

import pytest

from jaxrl.data import tasks
from jaxrl.data.rewards import boolean
from jaxrl.data.tasks.logic.boolean import described, write_expression


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("a", 0b1010), ("~a", 0b0101), ("a&b", 0b1000), ("a|b", 0b1110), ("a^b", 0b0110),
        ("~a&b", 0b0100), ("~(a&b)", 0b0111), ("~~a", 0b1010), ("(a) | ( b )", 0b1110),
        ("a|b&~b", 0b1010), ("a^b&b", 0b0110), ("a|a^a", 0b1010), ("(a|a)^a", 0b0000),
    ],
)  # fmt: skip
def test_tables_by_hand(expression, expected):
    assert boolean.table(expression, "ab") == expected


@pytest.mark.parametrize(
    "text", ["", "c", "ab", "a&", "&a", "a~", "(a", "a)", "()", "a(b)", "a=b", "(" * 3000, "a\n"]
)
def test_what_is_no_expression(text):
    assert boolean.table(text, "ab") is None


def test_tables_agree_with_python():
    """Python has the same operators with the same ranks."""
    task = tasks.get("boolean", variables=4, gates=5)
    for index in range(50):
        expression = task.problem("ood", 0, index).metadata["solution"]
        rows = [dict(zip("dcba", r, strict=True)) for r in itertools.product((0, 1), repeat=4)]
        values = [eval(expression, {}, row) & 1 for row in rows]
        assert boolean.table(expression, "abcd") == sum(v << i for i, v in enumerate(values))


def test_too_many_variables_are_refused():
    with pytest.raises(ValueError, match="at most 10"):
        boolean.table("a", "abcdefghijk")


def test_any_equivalent_expression_is_right():
    tree = ("^", ("&", "a", "b"), ("~", "c"))
    assert described(tree) == "XAabNc" and write_expression(tree) == "(a&b)^~c"
    assert write_expression(("~", ("|", "a", ("~", ("&", "a", "b"))))) == "~(a|~(a&b))"
    task = tasks.get("boolean")
    problem = next(
        p for i in range(500) for p in [task.problem("train", 0, i)] if p.prompt == "Xab="
    )
    for right in ("a^b", "b^a", "(a&~b)|(~a&b)", "~(a^~b)"):
        assert task.reward(problem, right).value == 1.0
    score = task.reward(problem, "a|b")
    assert score.value == 0.0 and score.parts == {"correct": 0.0, "format": 1.0}
    assert task.reward(problem, "Xab").parts["format"] == 0.0


def test_slips_are_always_the_same_and_gold_is_right():
    task, slipping = tasks.get("boolean"), tasks.get("boolean", slips=1.0)
    wrong = 0
    for index in range(40):
        problem = task.problem("train", 0, index)
        assert task.reward(problem, task.gold(problem)).value == 1.0
        slip = slipping.gold(problem)
        assert "~" not in slip and "^" not in slip
        wrong += task.reward(problem, slip).value == 0.0
    assert wrong > 20


@pytest.mark.parametrize(
    "given", [{"variables": 7}, {"gates": 0}, {"gates": 2, "ood_gates": 2}, {"slips": 1.5}]
)
def test_parameters_out_of_range_are_refused(given):
    with pytest.raises(ValueError, match="="):
        tasks.get("boolean", **given)
