"""reasoning-gym tasks: every generator, its parameters, splits, and what its verifier takes."""

import ast
import functools
import os
import pickle

import pytest
import reasoning_gym
import sympy
from reasoning_gym.factory import DATASETS

from jaxrl.data import tasks
from jaxrl.data.scoring.pool import score_completion
from jaxrl.data.tasks.math import gym_scorers


def mutations(answer: str) -> list[str]:
    return [answer + "7", "7" + answer, answer[1:], "", "no idea", "[[[", "1e999"]


every = pytest.mark.parametrize("name", sorted(set(DATASETS) - {"composite"}))


@functools.cache
def made(name):
    task = tasks.get(f"reasoning_gym/{name}")
    return task, task.problem("train", 0, 5)


def hostile(canary) -> list[str]:
    """Answers that leave a file if anything evaluates them, in the forms that parsers look for."""
    call = f"__import__('pathlib').Path('{canary}').touch()"
    forms = [
        "{}", "[{}]", "[[{}]]", "({}, 24)", "{{1: {}}}", "1 + {}", "x**2 + {} + C", "{} = 24",
        "'{}'", "f'{{{}}}'", "[c for c in [{}]]", "(lambda: {})()",
        "24 if not {} else 24", "\n{}\n",
        "{} #", "[print({}) or 1, 2, 3]", "sqrt({})", "Symbol('x').__class__({})", "1; {}", "{}\n1",
    ]  # fmt: skip
    return [form.format(call) for form in forms] + [
        f"!!python/object/apply:pathlib.Path.touch [{canary}]",
        f'{{"py/object": "os.system", "arg": "touch {canary}"}}',
        f"cos\nsystem\n(S'touch {canary}'\ntR.",
        f"$(touch {canary}) `touch {canary}`; touch {canary}",
        f'eval("{call}")',
        f"exec(\"import os\\nos.system('touch {canary}')\")",
    ]


@pytest.mark.sample(20, broad=1000)
@every
def test_no_generator_runs_what_an_answer_says(name, tmp_path):
    """All of the installed package: a new version that evaluates an answer is found here."""
    task, problem = made(name)
    for answer in hostile(tmp_path / "canary"):
        score = score_completion(task, problem, f"<answer>{answer}</answer>")
        assert score.error is None and score.value < 1.0, (answer, score)
        assert not list(tmp_path.iterdir()), answer


@pytest.mark.parametrize(
    "scorer",
    [
        lambda self, answer, entry: float(len(eval(answer))),
        lambda self, answer, entry: float(exec(answer) is None),
        lambda self, answer, entry: eval(compile(ast.parse(answer), "<answer>", "exec")) or 0.0,
        lambda self, answer, entry: float(sympy.parse_expr(answer) == 24),
        lambda self, answer, entry: float(os.system(answer)),
    ],
    ids=["eval", "exec", "ast", "sympy", "system"],
)
@pytest.mark.parametrize("hides", [True, False])
def test_a_scorer_that_evaluates_is_stopped_and_named(scorer, hides, tmp_path, monkeypatch):
    def hiding(*arguments):
        try:
            return scorer(*arguments)
        except Exception:
            return 1.0

    task, problem = made("chain_sum")
    kind = DATASETS["chain_sum"][0]
    monkeypatch.setattr(kind, "score_answer", hiding if hides else scorer)
    call = f"__import__('pathlib').Path('{tmp_path / 'canary'}').touch()"
    score = score_completion(task, problem, f"<answer>{call}</answer>")
    assert score.value is None and "runs what the answer says" in score.error
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@every
def test_no_constant_is_right_on_every_problem(name):
    task, first = made(name)
    problems = [first, *(task.problem("train", 0, i) for i in range(6, 12))]
    for constant in ("True", "no", "0", "1", "24", "x", "[]", "I do not know"):
        values = [score_completion(task, p, f"<answer>{constant}</answer>").value for p in problems]
        answers = {str(p.answer).strip().lower() for p in problems}
        assert min(values) < 1.0 or answers == {constant.lower()}, (constant, answers)


GAMES = {
    "game_of_life_halting": [("{}", 1.0), ("no", 0.0), ("True or False", 0.0)],
    "coin_flip": [("{}", 1.0), ("0", 0.0), ("about {}", 0.0), ("1/0", 0.0), ("1e999999999", 0.0)],
    "countdown": [("{}", 1.0), ("({})", 1.0), ("-(-({}))", 1.0), ("{}+0", 0.05), ("119", 0.05)],
    "puzzle24": [("{}", 1.0), ("6*4*1*1", 0.01), ("24", 0.01), ("{}*1", 0.01), ("({})/1", 0.01)],
    "string_insertion": [("{}", 1.0), ("list", 0.1), ("'{}'", 0.1), ("{}A", 0.0)],
    "spiral_matrix": [("{}", 1.0), ("list", 0.1), ("{} 1", 0.0)],
    "binary_matrix": [("{}", 1.0), ("list", 0.1), ("{} 1", 0.0)],
    "n_queens": [("{}", 1.0), ("list", 0.5), ("{} Q", 0.0)],
    "simple_integration": [
        ("{}", 1.0), ("2 + {}", 1.0), ("x + {}", 0.0), ("2*({})", 0.0),
        ("x**(10**9)", 0.0), ("9**9**9", 0.0), ("Integral(x, x)", 0.0), ("10**400", 0.0),
    ],
    "intermediate_integration": [("{}", 1.0), ("({}) - 1/3", 1.0), ("sin(x) + {}", 0.0)],
    "polynomial_multiplication": [("{}", 1.0), ("0 + {}", 1.0), ("{} + 1", 0.0), ("2*({})", 0.0)],
}  # fmt: skip


@pytest.mark.exact("scorers in place of reasoning-gym's give its scores, but where those are wrong")
@pytest.mark.parametrize("name", sorted(GAMES))
def test_scorers_of_ours_give_what_the_generators_own_give(name):
    assert set(GAMES) == set(gym_scorers.SCORERS)
    task = tasks.get(f"reasoning_gym/{name}")
    generator = reasoning_gym.create_dataset(name, seed=0, size=1)
    for index in range(4):
        problem = task.problem("train", 1, index)
        rows = [row.split() for row in str(problem.answer).split("\n")]
        listed = {"string_insertion": list(problem.answer), "spiral_matrix": rows[0]}
        for form, wanted in GAMES[name]:
            answer = str(listed.get(name, rows)) if form == "list" else form.format(problem.answer)
            answer = answer.replace("x", problem.metadata["metadata"].get("variable", "x"))
            score = task.reward(problem, f"<answer>{answer}</answer>")
            near = name == "coin_flip" and answer == "0" and 0 <= score.value < 0.5
            assert score.value == wanted or near, (problem.answer, answer, score)
            corrected = name in ("puzzle24", "game_of_life_halting", "coin_flip")
            monsters = ("Integral", "**(10", "9**9", "10**400")
            if not corrected and not any(monster in answer for monster in monsters):
                theirs = generator.score_answer(answer, dict(problem.metadata))
                assert theirs == wanted, (answer, theirs)


def test_a_mixture_of_generators_uses_the_same_scorers(tmp_path):
    spec = '[{"name": "puzzle24", "weight": 1, "config": {}}]'
    task = tasks.get("reasoning_gym/composite", datasets=spec)
    problem = task.problem("train", 0, 0)
    assert task.reward(problem, task.gold(problem)).value == 1.0
    for answer in [*hostile(tmp_path / "canary"), "6*4*1*1"]:
        assert task.reward(problem, f"<answer>{answer}</answer>").value < 1.0
    assert not list(tmp_path.iterdir())


@every
def test_every_generator_accepts_its_answer_and_survives_odd_ones(name):
    task, problem = made(name)
    assert problem == task.problem("train", 0, 5) and problem.prompt
    pickle.dumps(problem)
    if problem.answer is not None:
        assert score_completion(task, problem, task.gold(problem)).value == 1.0
        assert task.reward(problem, problem.answer).value == 0.0  # not in tags
    for wrong in mutations(str(problem.answer)):
        score = score_completion(task, problem, f"<answer>{wrong}</answer>")
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
