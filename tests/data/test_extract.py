"""Answers found in completions, by hand."""

import pytest

from data import extract


@pytest.mark.parametrize(
    ("find", "text", "answer"),
    [
        (extract.plain, "  a\nb ", "a\nb"),
        (extract.plain, "<think>x</think> y", "y"),
        (extract.plain, "<think>x", None),
        (extract.plain, "a <think>b</think> c <think>d", None),
        (extract.plain, " \n", None),
        (extract.last_line, "So:\n Answer: 4 \n\n", "4"),
        (extract.last_line, "final ANSWER = x=1", "x=1"),
        (extract.last_line, "Answer:", None),
        (extract.last_number, "1 and -2.50.", "-2.50"),
        (extract.last_number, "is 1,234,567!", "1234567"),
        (extract.last_number, "about 3/4 of", "3/4"),
        (extract.last_number, "none", None),
        (extract.last_number, "<think>7</think>so eight", None),
        (extract.answer_tag, "<answer>1</answer> no, <answer> 2\n</answer>", "2"),
        (extract.answer_tag, "<answer>1", None),
        (extract.answer_tag, "<answer> </answer>", None),
        (extract.answer_tag, "<think><answer>1</answer></think>", None),
        (extract.boxed, r"\boxed{1} then \boxed{\frac{1}{2}} end}", r"\frac{1}{2}"),
        (extract.boxed, r"\boxed{1", None),
        (extract.boxed, "1}", None),
        (extract.boxed, r"\boxed{}", None),
        (extract.fenced, "```\na\n```\n```py\nb\nc\n```", "b\nc\n"),
        (extract.fenced, "```py\nb", None),
        (extract.fenced, "x ```y``` z", None),
    ],
)
def test_found(find, text, answer):
    assert find(text) == answer


def test_fences_by_language():
    text = "```sql\n1\n```\n```python\n2\n```\n"
    assert extract.fenced(text, "sql") == "1\n" and extract.fenced(text, "python") == "2\n"
    assert extract.fenced(text, "c") is None and extract.fenced("```\n3\n```", "c") == "3\n"


@pytest.mark.parametrize("name", sorted(extract.EXTRACTORS))
def test_what_is_written_is_read(name):
    assert extract.EXTRACTORS[name](extract.written(name, "42")) == "42"
    assert "What?" in extract.fill(extract.INSTRUCTIONS[name], "What?")
