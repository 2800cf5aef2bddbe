"""reasoning-gym tasks: every generator, its parameters, splits, and what its verifier takes."""

import pickle

import pytest
from reasoning_gym.factory import DATASETS

from data import tasks
from data.scoring import judge


def mutations(answer: str) -> list[str]:
    return [answer + "7", "7" + answer, answer[1:], "", "no idea", "[[[", "1e999"]


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"composite"}))
def test_every_generator_accepts_its_answer_and_survives_odd_ones(name):
    task = tasks.get(f"reasoning_gym/{name}")
    problem = task.problem("train", 0, 5)
    assert problem == task.problem("train", 0, 5) and problem.prompt
    pickle.dumps(problem)
    if problem.answer is not None:
        assert judge(task, problem, task.gold(problem)).value == 1.0
        assert task.reward(problem, problem.answer).value == 0.0  # not in tags
    for wrong in mutations(str(problem.answer)):
        score = judge(task, problem, f"<answer>{wrong}</answer>")
        assert score.error is None and score.value <= 1.0, (wrong, score)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("chain_sum", dict(max_terms=3, max_digits=2)),
        ("simple_equations", {}),
        ("prime_factorization", {}),
        ("spell_backward", {}),
        ("bitwise_arithmetic", {}),
    ],
)
def test_mutated_answers_fail(name, params):
    task = tasks.get("reasoning_gym", generator=name, **params)
    for index in range(20):
        problem = task.problem("test", 1, index)
        for wrong in mutations(problem.answer):
            assert task.reward(problem, f"<answer>{wrong}</answer>").value < 1.0
        assert task.reward(problem, f"so <answer>{problem.answer}</answer>").value == 1.0


def test_splits_share_no_question_and_ood_has_its_own_parameters():
    task = tasks.get(
        "reasoning_gym/chain_sum",
        max_terms=2,
        max_digits=1,
        ood='{"min_digits": 4, "max_digits": 4}',
    )
    made = {s: {task.problem(s, 0, i).prompt for i in range(150)} for s in task.splits}
    assert len(made["train"]) > 50 and len(made["test"]) > 20
    assert not made["train"] & made["test"] and not (made["train"] | made["test"]) & made["ood"]
    assert "ood" not in tasks.get("reasoning_gym/chain_sum").splits


@pytest.mark.parametrize(
    ("answer_format", "completion"),
    [
        ("text", " {} \n"),
        ("last_line", "I add them.\n\nAnswer: {}\n"),
        ("number", "First 3, so the answer is {}."),
        ("tags", "<think>is it <answer>0</answer></think> <answer> {} </answer>"),
        ("boxed", "So $\\boxed{{{}}}$."),
    ],
)
def test_answer_formats(answer_format, completion):
    task = tasks.get("reasoning_gym/chain_sum", answer_format=answer_format)
    for index in range(5):
        problem = task.problem("train", 0, index)
        assert task.reward(problem, completion.format(problem.answer)).value == 1.0
        assert task.reward(problem, completion.format("123456789")).value < 1.0
        assert task.reward(problem, task.gold(problem)).value == 1.0
        unended = f"<think>{completion.format(problem.answer)}"
        if "<think>" not in completion:
            assert task.reward(problem, unended).value == 0.0


def test_level_template_and_lists():
    easy = tasks.get("reasoning_gym/chain_sum", level=0).problem("train", 0, 0)
    hard = tasks.get("reasoning_gym/chain_sum", level=3).problem("train", 0, 0)
    assert hard.metadata["metadata"]["difficulty"] != easy.metadata["metadata"]["difficulty"]
    task = tasks.get(
        "reasoning_gym/basic_arithmetic", operators='["+"]', template="Q: {question} {x}\nA:"
    )
    problem = task.problem("train", 0, 0)
    assert problem.prompt.startswith("Q: ") and problem.prompt.endswith(" {x}\nA:")
    assert not set("*/") & set(problem.metadata["question"])
    both = tasks.get(
        "reasoning_gym/composite",
        datasets='[{"name": "gcd", "weight": 1, "config": {}}, '
        '{"name": "lcm", "weight": 1, "config": {}}]',
    )
    sources = {both.problem("train", 0, i).metadata["metadata"]["source_dataset"] for i in range(9)}
    assert sources == {"gcd", "lcm"}


def test_partial_credit_can_be_left_out():
    for partial in (True, False):
        task = tasks.get("reasoning_gym/spell_backward", partial=partial)
        problem = task.problem("train", 0, 0)
        value = task.reward(problem, f"<answer>{problem.answer[:-1]}</answer>").value
        assert (0 < value < 1) if partial else value == 0
        assert task.reward(problem, task.gold(problem)).value == 1.0


def test_names_are_checked():
    for name, params, message in [
        ("reasoning_gym/chainsum", {}, "did you mean 'chain_sum'"),
        ("reasoning_gym/chain_sum", dict(max_digit=1), "did you mean 'max_digits'"),
        ("reasoning_gym/chain_sum", dict(max_digits=0), "max_digits must be >= min_digits"),
        ("reasoning_gym/chain_sum", dict(answer_format="xml"), "answer_format='xml'"),
        ("reasoning_gym/chain_sum", dict(template="hi"), "template='hi'"),
        ("reasoning_gym/gsm_symbolic", dict(level=1), "no curriculum"),
        ("reasoning_gym", {}, "needs its parameter 'generator'"),
    ]:
        with pytest.raises(ValueError, match=message):
            tasks.get(name, **params)
