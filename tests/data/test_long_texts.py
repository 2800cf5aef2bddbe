"""What a completion repeats takes no more time than its length asks for, in every reader of it."""

import time

import pytest

from jaxrl.data import tasks
from jaxrl.data.rewards import named
from jaxrl.data.rewards.judged import claims, judge
from jaxrl.data.sources import extract

LENGTH = 300_000
UNITS = (
    " ", "\n", "\t\n", "-", "- ", " /", "^ ", "1", "1,", "1,111", "7 ", ".", "$", "{", "}", "(",
    "\\", "\\boxed{", "\\text{", "\\text", "<think>", "</think>", "<answer>", "```", "```\n",
    "```json", "~~~", "answer: ", "sorry ", "<confidence> ", "the ", "\u0660", "e", "1e1",
)  # fmt: skip
TEXTS = [start + unit * (LENGTH // len(unit)) + end for unit in UNITS for start, end in (
    ("", ""), ("x", "7"), ("```json", ""), ("<think>", "x"),
)]  # fmt: skip
SECONDS = 5.0
"""Of this process; what takes the square of the length takes longer."""


def reward_of(name):
    problem = tasks.get("arithmetic").problem("train", 0, 0)
    reward = named.BUNDLED[name]()
    return lambda text: reward(problem, text)


READERS = {
    "after a thought": extract.after_thought,
    "last line": extract.last_line,
    "last number": extract.last_number,
    "number": extract.number,
    "answer in tags": extract.answer_tag,
    "answer in a box": extract.boxed,
    "fenced block": extract.fenced,
    "claims of a thought": lambda text: claims.claims(claims.thought(text)),
    "reply of a judge": judge._FENCED.findall,
    "number reward": reward_of("number"),
    "nearness reward": reward_of("nearness"),
    "exact reward": reward_of("exact"),
}  # fmt: skip


@pytest.mark.sample(3, broad=4)
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_takes_the_square_of_a_length(reader):
    for text in TEXTS:
        start = time.process_time()
        READERS[reader](text)
        assert time.process_time() - start < SECONDS, (reader, text[:20])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 1 / 2", "1/2"), ("so 1 \n/\n 2", "1/2"), ("3 ^ 5", None), ("- $ 5", "-5"),
        ("-  \n $\t5", "-5"), ("a\n\n7", "7"), ("1 / / 2", None), ("7 \n", "7"),
    ],
)  # fmt: skip
def test_white_space_in_a_number_is_read_as_before(text, number):
    assert extract.last_number(text) == number


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("a<think>b</think>c</think>", "b"), ("<think><think>b</think>", "<think>b"),
        ("</think><think>", "</think><think>"), ("a", "a"), ("<think></think>", ""),
    ],
)  # fmt: skip
def test_the_first_thought_counts(text, inner):
    assert claims.thought(text) == inner
