"""One verifier for several languages: what tests become, and programs that are right or not."""

import json

import pytest

from jaxrl.data import tasks
from jaxrl.data.sources import io_examples
from jaxrl.data.tasks.programs.polyglot import solution

STEPS = (("+", 3), ("*", 2))


def test_assertions_become_lines_of_input_and_output():
    source = (
        "assert f(3, [1, 2]) == 5\nassert f(-1, []) == (1.5, 2)\nassert f('a b', True) == 'c d'"
    )
    assert io_examples.of_asserts(source) == [
        ("3\n1 2\n", "5\n"), ("-1\n\n", "1.5 2\n"), ("a b\nTrue\n", "c d\n"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "source, said",
    [
        ("assert f([[1]]) == 1", "in a list"),
        ("assert f({'a': 1}) == 1", "no plain spelling"),
        ("assert f(1) == None", "no plain spelling"),
        ("assert f(['a b']) == 1", "split at blanks"),
        ("assert f('a\\nb') == 1", "no plain spelling"),
        ("assert f(x=1) == 1", "positional"),
        ("assert f(1) == 1\nassert g(1) == 1", "one function"),
        ("assert f(1)", "not `assert"),
    ],
)
def test_what_has_no_plain_spelling_is_refused(source, said):
    with pytest.raises(ValueError, match=said):
        io_examples.of_asserts(source)
    assert not io_examples.usable(source.splitlines())
    assert io_examples.usable(["assert f(1) == 1"])


def test_solutions_by_hand():
    assert solution("stack", STEPS) == "3 + 2 *"
    assert solution("awk", STEPS) == "{print ($1+3)*2}"
    assert solution("bash", STEPS) == "read x; echo $(((x+3)*2))"
    assert solution("python", STEPS) == "x=int(input());print((x+3)*2)"


def test_each_language_is_judged_by_the_same_examples():
    names = "python,bash,awk,stack"
    task, slipping = (tasks.get("polyglot", languages=names, slips=s) for s in (0.0, 1.0))
    first = {}
    for index in range(60):
        problem = task.problem("train", 0, index)
        first.setdefault(problem.metadata["language"], problem)
    assert set(first) == set(names.split(","))
    for name, problem in first.items():
        assert task.reward(problem, task.gold(problem)).value == 1.0, problem
        assert problem.domain == ("new" if name == "stack" else "known")
        expected = 0.0 if name == "stack" else 1.0
        assert task.reward(problem, slipping.gold(problem)).value == expected
    other = first["awk"].metadata["solution"]
    assert task.reward(first["stack"], f"```stack\n{other}\n```").value == 0.0
    with pytest.raises(ValueError, match="no solutions in cobol"):
        tasks.get("polyglot", languages="python,cobol")
    with pytest.raises(ValueError, match="share"):
        tasks.get("polyglot", slips=2.0)


def test_a_data_set_of_assertions_serves_any_language(tmp_path):
    """As MBPP's `test_list`."""
    path = tmp_path / "mbpp.jsonl"
    record = {"question": "Double a number.", "tests": ["assert f(4) == 8", "assert f(0) == 0"]}
    path.write_text(json.dumps(record) + "\n")
    task = tasks.get("code", path=str(path), language="stack")
    problem = task.problem("train", 0, 0)
    assert problem.metadata["tests"] == [("4\n", "8\n"), ("0\n", "0\n")]
    assert io_examples.CONVENTION in problem.prompt and "postfix" in problem.prompt
    assert task.reward(problem, "```stack\n2 *\n```").value == 1.0
    path.write_text(json.dumps(record | {"tests": ["assert f({}) == 1"]}) + "\n")
    with pytest.raises(ValueError, match="leave it out"):
        tasks.get("code", path=str(path)).problem("train", 0, 0)
