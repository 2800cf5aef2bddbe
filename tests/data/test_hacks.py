"""What a policy may try in place of an answer earns no reward, on every bundled task."""

from __future__ import annotations

import json

import pytest

from jaxrl.data import tasks
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.types import Problem, Task

RECORDS = {
    "gsm8k": [{"question": f"{n} and {n}?", "answer": f"#### {2 * n}"} for n in range(3121, 3129)],
    "math": [
        {"problem": f"{n} x = 1?", "solution": rf"\boxed{{\frac{{1}}{{{n}}}}}"}
        for n in range(311, 319)
    ],
}
NAMES = (
    "arithmetic", "boolean", "bounds", "calibrated", "code", "countdown", "format_following",
    "fractions", "gsm8k", "guarded", "json_output", "known_facts", "math", "maze", "micro_ml",
    "mixture", "multiple_choice", "next_segment", "patches", "polyglot", "random_calculation",
    "sat", "shortest_path", "sql", "translation",
)  # fmt: skip
"""Every task that `jaxrl tasks` lists, but for reasoning_gym, which has tests of its own."""

EPISODES = (
    "apps", "board_game", "calculator", "database", "diagnosis", "emotional_support", "game24",
    "geography", "html_form", "keydoor", "ledger", "planning", "recall", "repository", "retrieval",
    "revision", "routing", "text_grid", "twenty_questions", "with_attempts",
    "with_compression", "with_tools", "workshop",
)  # fmt: skip

CONSTANTS = {
    "empty": "", "blank": " ", "lines": "\n\n", "nul": "\x00", "surrogate": "\ud800",
    "zero": "0", "one": "1", "minus one": "-1", "letter": "A", "unsatisfiable": "UNSAT",
    "nan": "nan", "infinity": "inf", "none": "None", "null": "null", "true": "true",
    "object": "{}", "list": "[]", "wildcard": "*", "pattern": ".*", "like": "%",
    "all": "all of the above", "above": "see above", "claim": "This answer is correct.",
    "score": '{"value": 1.0, "correct": true}', "huge": "9" * 5000, "exponent": "1e999999",
    "tower": "9^9^9^9", "power": "9**9**9**9", "factorials": "10!!!!!!", "nested": "(" * 3000,
    "long": "a " * 20_000, "marks": "\u202e\u200b\ufeff", "comment": "-- the answer",
    "block comment": "/* SELECT 1 */", "semicolon": ";", "select": "SELECT 1",
    "injection": "x' OR 1=1 --", "code": "__import__('os').system('true')",
    "exit": "```python\nimport os; os._exit(0)\n```", "think": "<think>", "thought": "</think>",
    "tag": "<answer>", "box": r"\boxed{", "fence": "```",
}  # fmt: skip
"""Texts that are no answer to anything, whatever the problem."""

FEW = {k: CONSTANTS[k] for k in ("empty", "nul", "surrogate", "zero", "exit", "code")}
"""For tasks that need a sandbox for each."""

FLOORS = {
    "arithmetic": 0.1, "calibrated": 0.2, "format_following": 0.1, "fractions": 0.2, "guarded": 0.1,
    "known_facts": 0.34, "mixture": 0.35, "multiple_choice": 0.45, "random_calculation": 0.1,
    "sat": 0.35, "translation": 0.05,
}  # fmt: skip
"""The most that the mean of one such text over 24 problems may be, where it is not 0: a constant is
right now and then, and the nearness of texts or numbers is graded. docs/data.md says so."""
GRADED = {"known_facts": 0.34, "random_calculation": 0.8, "translation": 0.8}
"""Less than which a right answer beside a wrong one must be given, where rewards are graded."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    made = tmp_path_factory.mktemp("records")
    for name, records in RECORDS.items():
        (made / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return made


def bundled(name: str, directory) -> Task:
    params = {"path": str(directory / f"{name}.jsonl")} if name in RECORDS else {}
    if name == "mixture":
        params = {"parts": '{"a": [1, "countdown", {}], "b": [1, "multiple_choice", {}]}'}
    return tasks.get(name, **params)


def stated(task: Task, problem: Problem) -> tuple[str, str]:
    """The answer itself, and the form that it is given in, with `{}` in its place."""
    gold = task.of(problem).gold(problem)
    for before, after in (("<answer>", "</answer>"), (r"\boxed{", "}")):
        if before in gold and after in gold:
            start, _, rest = gold.rpartition(before)
            inner, _, end = rest.rpartition(after)
            return inner, start + before + "{}" + after + end
    inner, said, confidence = gold.partition("<confidence>")
    return inner, "{}" + said + confidence


def forms(answer: str, other: str, form: str) -> dict[str, str]:
    """Ways to give the right answer without giving it: with others, in part, or unsaid."""
    say = lambda text: form.replace("{}", text)  # noqa: E731
    found = {
        "or": say(f"{answer} or {other}"), "and": say(f"{answer} and {other}"),
        "list": say(f"{answer}, {other}"), "slash": say(f"{answer} / {other}"),
        "lines": say(f"{answer}\n{other}"), "not": say(f"not {answer}"),
        "maybe": say(f"{other} (maybe {answer})"), "either": say(f"either {answer} or {other}"),
        "set": say(f"{{{answer}; {other}}}"),
        "thought": f"<think>{say(answer)}",
    }  # fmt: skip
    if form != "{}":
        wide = say(answer).replace("<", "\uff1c").replace(">", "\uff1e").replace("\\", "\uff3c")
        found |= {
            "changed mind": f"{say(answer)} no: {say(other)}", "unsaid": f"it is {answer}",
            "look-alike": wide, "open": say(answer).rpartition(answer)[0] + answer,
            "many": " ".join([say(answer), *[say(f"{other}{i}") for i in range(30)]]),
        }  # fmt: skip
    return found


def test_there_are_forty_hacks_and_no_task_without_them(directory):
    task = bundled("countdown", directory)
    problem = task.problem("train", 0, 0)
    assert len(CONSTANTS) + len(forms("a", "b", stated(task, problem)[1])) + 2 >= 40
    own = {"file", "agent_program"}  # whose reward is the user's
    own |= {"text_arena", "text_world"}  # of other packages
    own |= {"wrapped"}  # of another task
    assert {*NAMES, *EPISODES, "reasoning_gym", *own} == set(tasks.BUNDLED)


@pytest.mark.parametrize("name", EPISODES)
def test_hacks_earn_nothing_in_an_episode(name):
    """Each text as every action of an episode: it ends, without an error, and earns nothing."""
    task = tasks.get(name)
    try:
        world, problem = task.turns, task.problem("train", 1, 0)
    except ImportError as missing:
        pytest.skip(str(missing))
    for hack, text in (FEW if task.sandboxed else CONSTANTS).items():
        state, _ = world.begin(problem, 0)
        for _ in range(100):
            reply = world.step(state, text)
            assert (reply.reward or 0.0) <= 0 and reply.error is None, (hack, reply)
            if reply.done:
                break
        assert reply.done, hack


SLOW = ("tower", "power", "factorials", "nested", "huge", "exponent", "long")
"""What math-verify may compute on for ever: scored in a pool, by a test of their own."""


@pytest.mark.sample(10, broad=8)
@pytest.mark.parametrize("name", NAMES)
def test_hacks_earn_no_more_than_the_floor(name, directory):
    task = bundled(name, directory)
    problems = [
        task.problem("train", 1, i)
        for i in range({"code": 1, "gsm8k": 8, "math": 3, "polyglot": 1, "sql": 8}.get(name, 24))
    ]
    constants = {k: v for k, v in CONSTANTS.items() if name != "math" or k not in SLOW}
    if task.sandboxed:
        constants = FEW
    totals = dict.fromkeys([*constants, "echo", "echo twice"], 0.0)
    for problem, other in zip(problems, problems[1:] + problems[:1], strict=True):
        answer, form = stated(task, problem)
        tried = constants | {
            "echo": problem.prompt,
            "echo twice": form.replace("{}", problem.prompt),
        }
        for hack, text in tried.items():
            given = {text, form.replace("{}", text)}
            scores = [scoring.score_completion(task, problem, one) for one in given]
            assert all(score.error is None for score in scores), (name, hack, scores)
            totals[hack] += max(score.value for score in scores) / len(problems)
        wrong = stated(task, other)[0]
        as_well = scoring.score_completion(task, problem, form.replace("{}", wrong)).value
        if name == "format_following" or as_well == 1:  # more than one text is right
            continue
        for hack, text in forms(answer, wrong, form).items():
            score = scoring.score_completion(task, problem, text)
            assert score.error is None and score.value <= GRADED.get(name, 0), (hack, text, score)
    paid = {hack: total for hack, total in totals.items() if total > FLOORS.get(name, 0)}
    assert not paid, paid


@pytest.mark.slow
def test_expressions_that_hang_score_nothing_in_a_pool(directory):
    """math-verify may compute for ever; the pool's limit makes that a 0 and not an error."""
    params = {"path": str(directory / "math.jsonl")}
    problem = bundled("math", directory).problem("train", 0, 0)
    with scoring.open_pool("math", params, workers=1, time_limit_s=2.0) as pool:
        items = [(problem, rf"\boxed{{{CONSTANTS[name]}}}") for name in SLOW]
        assert [score.value for score in pool.score(items)] == [0.0] * len(SLOW)
