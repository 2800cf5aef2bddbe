"""Rewards that look for an answer as it is written: numbers and words count whole."""

import time

import pytest

from jaxrl.data.rewards import named, verbatim
from jaxrl.data.types import Problem

LEFT = ["", "It is ", "x=", "$", "(", "**", "共", "3, ", "3,", "3 - ", "_", "__", "is..."]
RIGHT = ["", ".", "_", " apples", "kg", "%", ")", "**", "!", "个", ", 5", ",5", "\n"]
NUMBERS = ["4", "14", "4.0", "4.5", "-4", "0.4", "40", "1,234", "1234", "0", "12.50"]


def value(number):
    return float(number.replace(",", ""))


def score(reward, answer, text):
    made = named.combined([named.parse(reward)], ["answer"]).reward
    return made(Problem("p", "q", answer), text).value


@pytest.mark.parametrize("answer", NUMBERS)
def test_a_number_is_contained_where_one_of_its_value_stands_whole(answer):
    for number in NUMBERS:
        for left in LEFT:
            for right in RIGHT:
                if (left.endswith(",") and "," in number) or (right[:1] == "," and "," in number):
                    continue  # 3,1,234 is one list or another
                if left == "3," and len(number) == 3 and number.isdigit():
                    continue
                held = [value(number), *(3.0 for _ in range("3" in left))]
                held += (5.0 for _ in range("5" in right))
                text = f"{left}{number}{right}"
                assert verbatim.contains(text, answer) == (value(answer) in held), text


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("4", "14", 0), (4, "14", 0), (4.0, "14", 0), (4.0, "4", 1), (4, "4.0", 1), ("4", "4th", 1),
        ("4", "GPT4", 0), ("4", "3/4", 0), ("3/4", "It is 3/4.", 1), ("3/4", "13/4", 0),
        ("4", "No.4", 1), ("4", "_-4_", 0), ("-4", "_-4_", 1), ("4", "x_4", 0), ("4", "1..4", 1),
        ("4", "4e5", 0), ("4", "1.4.2", 0), ("1.4.2", "v1.4.2", 1), ("1.4.2", "11.4.2", 0),
        ("007", "Agent 007.", 1), ("007", "7", 0), ("-4", "\u22124", 1), (".5", "0.5", 1),
        ("cat", "a cat sat", 1), ("cat", "concatenate", 0), ("cat", "cats", 0), ("cat", "cat's", 1),
        ("Oslo", "(Oslo)", 1), ("Oslo", "Oslofjord", 0), ("北京", "我住在北京。", 1),
        ("New York", "in New York, NY", 1), ("A", "A) Oslo", 1), ("A", "Answer: B", 0),
        ("x + 1", "x + 1", 1), ("C++", "C++ it is", 1), ("4 apples", "14 apples", 0),
        ("2024-05-06", "on 2024-05-06.", 1), ("was", "<think>was", 0), (["4", "four"], "14", 0),
        (["4", "four"], "four", 1), (10**20, "1" + "0" * 20, 1), (1e20, "1" + "0" * 20, 1),
    ],
)  # fmt: skip
def test_contains(answer, text, expected):
    assert score("contains", answer, text) == expected


@pytest.mark.parametrize("answer", [4, 4.0, "4", "4.0", "4.", "$4"])
def test_exact_compares_numbers_by_value_whatever_type_the_reference_has(answer):
    right = ["4", "4.0", "4.", " 4 ", "+4", "**4**", "_4_", "__4__"]
    wrong = ["40", "4.1", "-4", "14", "", "4 5", "1/4", "04", ".4"]
    assert [score("exact", answer, text) for text in right] == [1.0] * len(right)
    assert [score("exact", answer, text) for text in wrong] == [0.0] * len(wrong)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("3.14", "314"), ("1/2", "12"), ("-4", "4"), ("10:30", "1030"), ("1.5 km", "15 km"),
        ("-1/2", "1/2"), ("1/2", "\u22121/2"), ("1/23", "12/3"), ("1.5e10", "15e10"),
        ("1e-5", "1e5"), ("-\\frac{1}{2}", "\\frac{1}{2}"), ("007", "07"),
    ],
)  # fmt: skip
def test_punctuation_is_a_part_of_a_number(answer, text):
    assert (score("exact", answer, text), score("exact", answer, answer)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("<", ["<", " < ", "`<`"], [">", "<=", "", "the"]),
        ("A", ["A", "a", "(A)", "**A**", "A.", "A:"], ["the", "...", "", "an", "B"]),
        ("**", ["**"], ["*", "", "//"]),
        ("...", ["..."], [".", "a"]),
    ],
)
def test_a_reference_without_words_equals_no_other(answer, right, wrong):
    assert [score("exact", answer, text) for text in right] == [1.0] * len(right)
    assert [score("exact", answer, text) for text in wrong] == [0.0] * len(wrong)


@pytest.mark.parametrize("operator", "+-*/^=<>")
@pytest.mark.parametrize("operands", [("x", "1"), ("2", "y"), ("a", "b"), ("(x)", "(y)")])
@pytest.mark.parametrize("space", ["", " "])
def test_operators_are_a_part_of_a_formula(operator, operands, space):
    reference = f"{space}{operator}{space}".join(operands)
    for other in "+-*/^=<>":
        text = f"{space}{other}{space}".join(operands)
        assert score("exact", reference, f"{text}.") == (other == operator), text


@pytest.mark.parametrize("word", ["well-known", "km/h", "T-shirt"])
def test_a_hyphen_in_a_word_is_no_operator(word):
    assert score("exact", word, word.replace("-", "").replace("/", "")) == 1


def test_long_texts_take_no_long():
    """Work that grows with the square of the length would take minutes."""
    start = time.process_time()
    for text in ("1" * 200_000, "1," * 100_000, "1/" * 100_000, "-" * 200_000, "a4" * 100_000):
        assert not verbatim.contains(text, "4.25") and not verbatim.contains(text, "word")
        assert not verbatim.is_answer(text, "1/2") and not verbatim.is_answer(text, "4.25")
    assert time.process_time() - start < 20
