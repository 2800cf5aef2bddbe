"""Arithmetic: right and wrong answers, disjoint splits, sizes."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.data import tasks
from jaxrl.data.tasks.math.arithmetic import steps, without_carry

params = st.fixed_dictionaries(
    {
        "digits": st.integers(2, 5),
        "terms": st.integers(2, 4),
        "operators": st.sampled_from(["+", "+-", "*", "+-*"]),
    }
)


@settings(max_examples=25, deadline=None)
@given(params, st.sampled_from(["train", "test", "ood"]), st.integers(0, 10**6), st.data())
def test_accepts_the_value_and_rejects_every_mutation(params, split, index, data):
    task = tasks.get("arithmetic", **params)
    problem = task.problem(split, 0, index)
    gold = task.gold(problem)
    assert eval(problem.prompt[:-1]) == problem.answer  # Python's grammar is the oracle
    assert set(problem.prompt + gold) <= set(task.alphabet)
    assert task.reward(problem, gold).value == 1.0
    assert task.reward(problem, f" {gold}\n").value == 1.0
    at = data.draw(st.integers(0, len(gold) - 1))
    digit = data.draw(st.sampled_from("0123456789"))
    for wrong in [
        gold[:at] + digit + gold[at + 1 :],
        gold[:at] + digit + gold[at:],
        gold[:at] + gold[at + 1 :],
        "-" + gold,
        gold + "=",
        f"{gold} {gold}",
        problem.prompt + gold,
        "",
    ]:
        same = re.fullmatch(r"-?[0-9]+", wrong) and int(wrong) == problem.answer
        assert task.reward(problem, wrong).value == float(bool(same)), wrong
    assert problem == task.problem(split, 0, index)


def test_a_share_of_solutions_leaves_out_the_carry():
    task = tasks.get("arithmetic", operators="+", slips=0.6)
    problems = [task.problem("train", 0, i) for i in range(2000)]
    carries = [p for p in problems if without_carry(p.prompt) != p.answer]
    assert 0.45 < len(carries) / len(problems) < 0.55
    slipped = [p for p in carries if task.reward(p, task.gold(p)).value == 0.0]
    assert 0.55 < len(slipped) / len(carries) < 0.65
    assert all(task.gold(p) == str(without_carry(p.prompt)) for p in slipped)
    for expression, wrong in [("17+8", 15), ("99+99", 88), ("5+5", 0), ("12+34+7", 43)]:
        assert without_carry(expression) == wrong


def test_worked_solutions_drop_a_term_at_each_step():
    assert steps("9+6+3") == ["15+3", "18"]
    assert steps("3-10+2-1") == ["-7+2-1", "-5-1", "-6"]
    assert steps("17+8+5", without_carry) == ["15+5", "10"]
    task = tasks.get("arithmetic", digits=1, terms=5, operators="+-", worked=True)
    for problem in (task.problem("train", 0, i) for i in range(50)):
        work = task.gold(problem).split("=")
        assert len(work) == 4 and {eval(line) for line in work} == {problem.answer}
        assert task.reward(problem, task.gold(problem)).value == 1.0
        assert task.reward(problem, f"1+1={problem.answer}").value == 1.0
        assert task.reward(problem, f"{problem.answer}=").value == 0.0
    with pytest.raises(ValueError, match="worked=True"):
        tasks.get("arithmetic", operators="*", worked=True)


def test_splits_are_disjoint_and_ood_is_longer():
    task = tasks.get("arithmetic", digits=1, operators="+")
    made = {s: {task.problem(s, 0, i).prompt for i in range(1000)} for s in task.splits}
    assert not made["train"] & made["test"] and made["test"] and len(made["train"]) > 80
    assert len(made["train"] | made["test"]) == 100
    assert all(re.fullmatch(r"[1-9][0-9]\+[1-9][0-9]=", p) for p in made["ood"])


def test_the_verifier_is_unmoved_by_odd_strings():
    task = tasks.get("arithmetic")
    problem = task.problem("train", 0, 0)
    for odd in ["9" * 10_000, "١", "1e1", "0x1", "1_0", "--1", "+1", "1.0"]:
        assert task.reward(problem, odd).value == 0.0


def test_bad_parameters_are_named():
    for params, message in [
        (dict(digits=0), "digits=0"),
        (dict(terms=1), "terms=1"),
        (dict(operators="/"), "operators='/'"),
        (dict(ood_digits=2), "ood_digits=2"),
        (dict(slips=1.5), "slips=1.5"),
        (dict(slips=0.5), "slips=0.5 with"),
    ]:
        with pytest.raises(ValueError, match=message):
            tasks.get("arithmetic", **params)
    with pytest.raises(ValueError, match="split='valid'"):
        tasks.get("arithmetic").problem("valid", 0, 0)
