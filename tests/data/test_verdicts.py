"""Right answers in other clothes pass, and what only looks like one fails."""

import json
import random
import re
import warnings

import pytest

from jaxrl.data import tasks
from jaxrl.data.rewards import math as math_rewards
from jaxrl.data.scoring import pool
from jaxrl.data.sources import extract, stream
from jaxrl.data.tasks.math import gsm8k, random_calculation
from jaxrl.data.tasks.writing import multiple_choice
from jaxrl.data.types import Problem
from jaxrl.rollout import selection
from tests.data.test_tasks import perturbed, truly_right


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18), ("$18", 18), ("-$5", -5), ("\u22125", -5), ("\\boxed{18}", 18), ("**18**", 18),
        ("18 dollars", 18), ("18%", 18), ("18\\%", 18), ("1,234", 1234), ("1,234.50", 1234.5),
        ("18.", 18), ("+18", 18), ("$\\boxed{18}$.", 18), ("18 \\text{ apples}", 18), ("(18)", 18),
        ("\\boxed{\\$18}", 18), ("1e3", 1000), (".5", 0.5), ("18 eggs per day", 18),
        ("1,8", None), ("18 or 19", None), ("3^5", None), ("about 18", None), ("", None),
        ("1,23,456", None), ("nan", None), ("inf", None), ("1_000", None), ("18/2", None),
        ("1e99999", None), ("0x12", None), ("--5", None), ("18 = 19", None), ("9" * 300, None),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(text, value):
    assert gsm8k.number(text) == value


def written(tmp_path, *records):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return str(path)


CHOICE = {"question": "6 x 7?", "choices": ["41", "42", "43"], "answer": 1}


def test_a_choice_is_its_letter_with_or_without_its_text(tmp_path):
    task = tasks.get("multiple_choice", path=written(tmp_path, CHOICE))
    problem = task.problem("train", 0, 0)
    right = problem.answer
    wrong = next(letter for letter in "ABC" if letter != right)
    for form in ("{}", "({})", "{}.", "{}. 42", "**{}**", "\\boxed{{{}}}",
                 "\\boxed{{\\text{{{}}}}}", "{}) 42", "Option {}", "The answer is {}",
                 "answer: ({})", "*{}. 42*"):  # fmt: skip
        assert task.reward(problem, f"<answer>{form.format(right)}</answer>").value == 1.0, form
        assert task.reward(problem, f"<answer>{form.format(wrong)}</answer>").value == 0.0, form
    for form in (
        "{} or " + wrong,
        "{}{}",
        "{}. 41",
        "A B C",
        "not {}",
        "{}, " + wrong,
        "ABC",
        "42",
    ):
        assert task.reward(problem, f"<answer>{form.format(right, wrong)}</answer>").value == 0.0


def test_choices_are_named_without_doubt(tmp_path):
    def right(answer, options):
        return multiple_choice._right(answer, options, "here")

    assert right(1, ["a", "b"]) == "b" and right("B", ["x", "y"]) == "y"
    assert right("y", ["x", "y"]) == "y" and right("1", ["0", "1"]) == "1"
    for answer, options in [
        ("BC", ["x", "y", "z"]), ("1", ["x", "y"]), (True, ["x", "y"]), (2, ["x", "y"]),
        (1, ["1", "2"]), ("", ["x", "y"]), (None, ["x", "y"]), ("C", ["x", "y"]),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="here: answer="):
            right(answer, options)
    twice = {"question": "6 x 7?", "choices": ["42", "42", "43"], "answer": "42"}
    task = tasks.get("multiple_choice", path=written(tmp_path, twice))
    problem = task.problem("train", 0, 0)
    scores = [task.reward(problem, f"<answer>{letter}</answer>").value for letter in "ABC"]
    assert sorted(scores) == [0.0, 1.0, 1.0]


def test_paths_mazes_and_countdown_take_the_signs_people_use():
    path = tasks.get("shortest_path", answer_format="text")
    problem = path.problem("train", 0, 0)
    places = problem.metadata["solution"].split()
    for between, end in [(" ", "."), (" \u2192 ", ""), ("->", "."), (", ", ""), (" - ", "")]:
        assert path.reward(problem, between.join(places) + end).value == 1.0, between
    labyrinth = tasks.get("maze", answer_format="text")
    problem = labyrinth.problem("train", 0, 0)
    moves = problem.metadata["solution"]
    for said in (moves.lower(), ", ".join(moves), " -> ".join(moves), " \u2192 ".join(moves) + "."):
        assert labyrinth.reward(problem, said).value == 1.0, said
    laid = tasks.get("countdown", answer_format="text")
    for index in range(20):
        problem = laid.problem("train", 0, index)
        solution = problem.metadata["solution"]
        fancy = solution.replace("*", "\u00d7").replace("/", "\u00f7").replace("-", "\u2212")
        for said in (fancy, f"{solution} = {problem.answer}", f"{fancy}={problem.answer}."):
            assert laid.reward(problem, said).value == 1.0, said
        for said in (f"{solution} = {problem.answer + 1}", f"{problem.answer} = {problem.answer}"):
            assert laid.reward(problem, said).value == 0.0, said


def test_false_equations_are_wrong():
    reward = math_rewards.equivalent()
    for gold, answer, right in [
        ("2", "1=2", 0), ("2", "1+1=2", 1), ("2", "x=2", 1), ("2", "x=1=2", 0), ("4", "2^2=4", 1),
        ("4", "3=4", 0), ("\\frac12", "\\frac{1}{2}=0.5", 1), ("0.5", "\\frac{1}{3}=0.5", 0),
    ]:  # fmt: skip
        assert reward(Problem("p", "", gold), f"\\boxed{{{answer}}}").value == right, answer


def test_gold_of_random_calculation_is_exact_however_large():
    """Six digits, as a general format writes, lose what tells right from wrong."""
    for changes in ({"largest": 1000, "operations": 3}, {"largest": 10**6, "operations": 4}, {}):
        task = tasks.get("random_calculation", **changes)
        for split in ("train", "ood"):
            for index in range(60):
                problem = task.problem(split, 0, index)
                assert task.reward(problem, task.gold(problem)).value == 1.0, task.gold(problem)
    assert [random_calculation.decimal(v) for v in (5.0, -0.25, 697670000.0, -0.0, 1.1)] == [
        "5", "-0.25", "697670000", "0", "1.1"
    ]  # fmt: skip


def test_no_constant_continues_the_stories():
    for changes in ({}, {"metric": "prefix"}):
        task = tasks.get("next_segment", **changes)
        problems = [task.problem("train", 0, i) for i in range(30)]
        for constant in ("On", "On day", "On day 3 there are 5 figs.", "there are figs on day", ""):
            values = [task.reward(p, constant).value for p in problems]
            assert sum(values) / len(values) < 0.2, (changes, constant)
        assert all(task.reward(p, task.gold(p)).value == 1.0 for p in problems)


def test_inputs_that_cannot_be_used_are_named(tmp_path):
    def train(name, *records):
        return tasks.get(name, path=written(tmp_path, *records)).problem("train", 0, 0)

    with pytest.raises(ValueError, match="record 0: answer=42"):
        train("gsm8k", {"question": "q", "answer": 42})
    for tests in ("1", [1], [{"stdin": "1"}], [{"stdin": "1", "stdout": 6}], None):
        with pytest.raises(ValueError, match="record 0: tests"):
            train("code", {"question": "q", "tests": tests})
    zero = train("math", {"problem": "q", "solution": "so", "answer": 0})
    assert zero.answer == "0"
    task = tasks.get("math", path=written(tmp_path))
    with pytest.raises(ValueError, match="has no problems: its file is empty"):
        stream.prompts(task, seed=0, batch_size=2)


@pytest.mark.parametrize(
    "hedge",
    ["18 or 19", "18, 19, 20", "1,8", "3^5", "18=19", "{18, 19}", "18\n19", "not 17 but 18 or 19"],
)
def test_hedged_numbers_score_nothing(hedge, tmp_path):
    record = {"question": "q", "answer": "so\n#### 18"}
    task = tasks.get("gsm8k", path=written(tmp_path, record))
    problem = task.problem("train", 0, 0)
    assert task.reward(problem, f"<answer>{hedge}</answer>").value == 0.0
    assert task.reward(problem, task.gold(problem)).value == 1.0


def test_a_thought_that_the_prompt_opened_is_a_thought():
    for opened in ("Q: 1+1?\n<think>", "Q<think>\n", "<think>a</think>Q\n<think>\n\n"):
        assert extract.plain(extract.thinking(opened, "it is 7")) is None
        assert extract.plain(extract.thinking(opened, "it is 7</think>2")) == "2"
    for closed in ("Q: 1+1?", "<think>a</think>", "say <think> first. Q"):
        assert extract.thinking(closed, "7") == "7"


def test_data_that_changed_since_a_state_was_saved_are_noticed(tmp_path):
    records = [{"question": f"q{i}", "answer": f"#### {i}"} for i in range(40)]
    path = written(tmp_path, *records)

    def source():
        task = tasks.get("gsm8k", path=path)
        return selection.ordered(task, {"task": "gsm8k"}, seed=0)

    first = source()
    drawn = [d.problem.id for d in first.draw(3, None)]
    state = json.loads(json.dumps(first.get_state()))
    again = source()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.set_state(state)
        again.set_state({k: v for k, v in state.items() if k != "data"})  # an older run's
    assert not set(drawn) & {d.problem.id for d in again.draw(3, None)}
    records[7]["answer"] = "#### 8"
    written(tmp_path, *records)
    with pytest.warns(UserWarning, match="have changed since"):
        source().set_state(state)
    assert stream.fingerprint(tasks.get("arithmetic")) == ""


def reformatted(name: str, problem: Problem, gold: str) -> list[str]:
    """A solution as others would write it."""
    match name:
        case "arithmetic":
            number = gold.removeprefix("-")
            return [f" {gold}\n", gold.replace(number, f"0{number}"), f"\t{gold} "]
        case "calibrated":
            answer, _, stated = gold.partition("<confidence>")
            q = stated.removesuffix("</confidence>")
            return [
                f"<confidence>{q}</confidence>{answer}",
                f"{answer}\n<confidence> {q} </confidence>\n",
                f"{answer} <confidence>{q.removeprefix('0')}</confidence>",
            ]
        case "countdown":
            laid = problem.metadata["solution"]
            forms = [laid.replace(" ", ""), f"({laid})", laid.replace("*", "\u00d7")]
            forms += [f"{laid} = {problem.answer}"]
        case "random_calculation":
            forms = [f"{problem.answer:.2f}", f"{problem.answer:,.2f}", f"**{problem.answer:.3f}**"]
    return [f"so\n<answer> {form} </answer> ." for form in forms]


def answers_right(name: str, problem: Problem, answer: str) -> bool:
    """Whether an answer is right, by Python's own reading of the prompt."""
    if name == "countdown":
        return truly_right(name, problem, answer)
    value = eval(re.split(r"[=\n]", problem.prompt)[0])
    if name == "random_calculation":
        shape = re.fullmatch(r"-?\d+(\.\d+)?", answer)
        return bool(shape) and float(answer) == round(value, 2)
    return bool(re.fullmatch(r"\s*[+-]?[0-9]+\s*", answer)) and int(answer) == value


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("arithmetic", {"operators": "+-*"}),
        ("calibrated", {"args": '{"operators": "+-"}', "asks": " <confidence>0.8</confidence>?"}),
        ("mixture", {"parts": '{"a": [1, "countdown", {}], "b": [1, "random_calculation", {}]}'}),
    ],
)  # fmt: skip
def test_changed_solutions_fail_and_reformatted_ones_pass(name, params):
    task, rng, rejected = tasks.get(name, **params), random.Random(0), 0
    kinds = {"a": "countdown", "b": "random_calculation"}
    for split in task.splits:
        for problem in [task.problem(split, 3, i) for i in range(12)]:
            kind, gold = kinds.get(problem.domain, name), task.gold(problem)
            answer, mark, stated = gold.partition("<confidence>")
            q = float(stated.removesuffix("</confidence>")) if mark else None
            full = 1.0 if q is None else 1 - (q - 1) ** 2
            none = 0.0 if q is None else -(q**2)
            for said in (gold, *reformatted(kind, problem, gold)):
                assert pool.score_completion(task, problem, said).value == pytest.approx(full), said
            before, _, inner = answer.rpartition("<answer>")
            inner, end, _ = inner.partition("</answer>")
            for other in (p for _ in range(4) for p in perturbed(inner, rng)):
                said = f"{before}{'<answer>' * bool(end)}{other}{end}{mark}{stated}"
                score, right = (
                    pool.score_completion(task, problem, said),
                    answers_right(kind, problem, other),
                )
                assert score.error is None
                if right and kind == "countdown":  # `2 + +3` has a sign that is not allowed
                    assert score.value in (full, none), said
                elif right:
                    assert score.value == pytest.approx(full), said
                elif kind == "random_calculation":  # graded by nearness
                    assert score.value < full, said
                else:
                    assert score.value == pytest.approx(none), said
                rejected += not right
    assert rejected > 400
