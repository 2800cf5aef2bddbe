"""Arithmetic: right and wrong answers, disjoint splits, sizes."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import tasks

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


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(2, 5), st.integers(0, 10**6))
def test_working_is_free_and_its_result_is_judged(digits, terms, index):
    task = tasks.get("arithmetic", digits=digits, terms=terms, working=1.0)
    problem = task.problem("train", 0, index)
    gold = task.gold(problem)
    totals = [int(n) for n in gold.split(",")]
    operands = re.findall("[0-9]+|[+-]", problem.prompt)
    assert totals == [eval("".join(operands[: 2 * k + 1])) for k in range(1, terms)]
    assert task.reward(problem, gold).value == task.reward(problem, str(totals[-1])).value == 1.0
    assert task.reward(problem, f"7,-3,{totals[-1]}").value == 1.0
    assert task.reward(problem, f"{gold},").value == 0.0
    assert task.reward(problem, f"{gold},{totals[-1] + 1}").value == 0.0
    assert set(problem.prompt + gold) <= set(task.alphabet)


def test_modulus_applies_to_every_total():
    task = tasks.get("arithmetic", digits=2, terms=4, modulus=10, working=1.0)
    for index in range(50):
        problem = task.problem("train", 0, index)
        whole = task.gold(problem).split(",")
        assert int(whole[-1]) == problem.answer == eval(problem.prompt[:-1]) % 10
        assert len(whole) == 3 and all(len(total) == 1 for total in whole)
        assert task.reward(problem, task.gold(problem)).value == 1.0
        assert task.reward(problem, str(problem.answer + 10)).value == 0.0


def test_working_is_shown_in_its_share_of_solutions():
    task = tasks.get("arithmetic", digits=1, terms=4, working=0.25)
    solutions = [task.gold(task.problem("train", 0, i)) for i in range(1000)]
    assert 0.2 < sum("," in s for s in solutions) / 1000 < 0.3


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
        (dict(operators="+*", working=1.0), "working=1.0"),
        (dict(modulus=1), "modulus=1"),
        (dict(working=2.0), "working=2.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            tasks.get("arithmetic", **params)
    with pytest.raises(ValueError, match="split='valid'"):
        tasks.get("arithmetic").problem("valid", 0, 0)
