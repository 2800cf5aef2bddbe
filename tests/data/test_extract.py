"""Answers found in completions, by hand."""

import pytest

from jaxrl.data.sources import extract


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
        (extract.last_number, "it is \u22125", "-5"),
        (extract.last_number, "-$5", "-5"),
        (extract.last_number, ".5", ".5"),
        (extract.last_number, "**18** dollars", "18"),
        (extract.last_number, "18%", "18"),
        (extract.last_number, "x = 1e5", "1e5"),
        (extract.last_number, "x=3^5", None),
        (extract.last_number, "7, or 3 ^ 5", None),
        (extract.last_number, "1,8", None),
        (extract.last_number, "1,2345", None),
        (extract.last_number, "3^5=243", "243"),
        (extract.last_number, "none", None),
        (extract.last_number, "<think>7</think>so eight", None),
        (extract.answer_tag, "<answer>1</answer> no, <answer> 2\n</answer>", "2"),
        (extract.answer_tag, "<answer>1", None),
        (extract.answer_tag, "<answer>1 <answer>2</answer>", "2"),
        (extract.answer_tag, "</answer><answer>", None),
        (extract.answer_tag, "<answer>" * 200_000, None),
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


@pytest.mark.parametrize(
    "label",
    ["python", "py", "Python3", "py3", "python title='a b'", "{python}", "python {1,2}", " py"],
)
def test_labels_of_a_language(label):
    assert extract.fenced(f"```{label}\nx\n```", "python") == "x\n"
    assert extract.fenced(f"```{label}\nx\n```", "sql") is None


def test_a_program_is_found_among_other_blocks_and_in_a_list():
    shown = "```python\nprint(1)\n```\nOutput:\n```\n1\n```\nor\n```text\n1\n```\n"
    assert extract.fenced(shown, "python") == "print(1)\n"
    assert extract.fenced("```sqlite\nSELECT 1\n```", "sql") == "SELECT 1\n"
    listed = "1. Do\n   ```python\n   if x:\n       y\n\n   z\n   ```\n"
    assert extract.fenced(listed, "python") == "if x:\n    y\n\nz\n"
    assert extract.fenced("````python\n```\n````", "python") == "```\n"
    assert extract.fenced("~~~py\nx\n~~~", "python") == "x\n"


def test_fences_by_language():
    text = "```sql\n1\n```\n```python\n2\n```\n"
    assert extract.fenced(text, "sql") == "1\n" and extract.fenced(text, "python") == "2\n"
    assert extract.fenced(text, "c") is None and extract.fenced("```\n3\n```", "c") == "3\n"


@pytest.mark.parametrize("name", sorted(extract.EXTRACTORS))
def test_what_is_written_is_read(name):
    assert extract.EXTRACTORS[name](extract.write_answer(name, "42")) == "42"
    assert "What?" in extract.fill(extract.INSTRUCTIONS[name], "What?")
