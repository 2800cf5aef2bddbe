"""Every bundled task: right answers pass, wrong and perturbed ones fail, splits are disjoint."""

import dataclasses
import itertools
import json
import pickle
import random
import re
import string
from fractions import Fraction

import pytest

from jaxrl.data import tasks
from jaxrl.data.rewards import math as math_rewards
from jaxrl.data.scoring.pool import score_completion
from jaxrl.data.tasks.logic import maze, sat, shortest_path
from jaxrl.data.tasks.math import countdown, fractions
from jaxrl.data.tasks.writing import format_following, guarded

GSM8K = [
    {
        "question": f"Tom has {n} figs and gets {n}00. How many?",
        "answer": f"{n}+{n}00\n#### {n}{n:02}",
    }
    for n in range(1, 8)
]
MATH = [
    {
        "problem": f"Solve {n} x = 1.",
        "solution": rf"So $\boxed{{\frac{{1}}{{{n}}}}}$.",
        "level": "1",
    }
    for n in range(2, 8)
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for name, records in [("gsm8k", GSM8K), ("math", MATH)]:
        for split, some in [("train", records[:4]), ("test", records[4:])]:
            lines = "".join(json.dumps(r) + "\n" for r in some)
            (folder / f"{name}.{split}.jsonl").write_text(lines)
    return folder


GENERATED = (
    "countdown", "format_following", "json_output", "maze", "multiple_choice", "next_segment",
    "random_calculation", "sat", "shortest_path", "translation",
)  # fmt: skip


@pytest.fixture(params=[*GENERATED, "gsm8k", "math"])
def task(request, files):
    params = {}
    if request.param in ("gsm8k", "math"):
        where = {s: str(files / f"{request.param}.{s}.jsonl") for s in ("train", "test")}
        params = dict(path=where["train"], test_path=where["test"])
    return tasks.get(request.param, **params)


def some(task, split, count=12, seed=0):
    return [task.problem(split, seed, i) for i in range(min(count, task.sizes.get(split, count)))]


def test_gold_earns_the_full_reward_on_every_split(task):
    for split in task.splits:
        for problem in some(task, split):
            score = score_completion(task, problem, task.gold(problem))
            assert score.value == 1.0, (problem, task.gold(problem), score)
            assert pickle.loads(pickle.dumps(problem)) == problem
            assert problem.messages[-1]["content"] == problem.prompt
            if task.alphabet:
                assert set(problem.prompt + task.gold(problem)) <= set(task.alphabet)


def test_nonsense_and_others_answers_earn_less(task):
    for split in task.splits:
        problems = some(task, split)
        for problem in problems:
            for text in ["", " ", "0", "<answer></answer>", problem.prompt, "\x00", "</think>"]:
                score = score_completion(task, problem, text)
                assert score.error is None and score.value < 1.0, (problem, text)
        crossed = [
            score_completion(task, a, task.gold(b)).value == 1.0
            for a, b in itertools.permutations(problems, 2)
        ]
        assert sum(crossed) < 0.5 * len(crossed)


def test_problems_depend_on_seed_and_index_alone_and_splits_are_disjoint(task):
    made = {s: {p.id for p in some(task, s, 60)} for s in task.splits}
    assert all(not made[a] & made[b] for a, b in itertools.combinations(task.splits, 2))
    assert task.problem("train", 3, 2) == task.problem("train", 3, 2)
    if not task.sizes:
        assert task.problem("train", 3, 2) != task.problem("train", 4, 2)
        assert len(made["train"]) > 40 and "ood" in task.splits
    with pytest.raises(ValueError, match="split='nope'"):
        task.problem("nope", 0, 0)


def perturbed(gold: str, rng: random.Random) -> list[str]:
    """Small changes to an answer: a letter or digit changed, dropped, doubled or swapped."""
    at = rng.randrange(len(gold))
    symbols = string.digits if gold[at].isdigit() else string.ascii_letters
    return [
        gold[:at] + rng.choice(symbols.replace(gold[at], "")) + gold[at + 1 :],
        gold[:at] + gold[at + 1 :],
        gold[:at] + gold[at] + gold[at:],
        gold[: at - 1] + gold[at] + gold[at - 1] + gold[at + 1 :] if at else gold + "1",
        gold + " 7",
    ]


def truly_right(name, problem, answer):
    """Whether a perturbed answer is right after all, checked without the verifier."""
    match name:
        case "countdown":
            numbers = re.findall(r"\d+", answer)
            if re.search(r"[a-zA-Z]|[\d)]\s*\(", answer):
                return False
            if sorted(map(int, numbers)) != sorted(problem.metadata["numbers"]):
                return False
            try:
                return abs(eval(answer) - problem.answer) < 1e-9
            except (SyntaxError, TypeError, NameError, ZeroDivisionError):
                return False
        case "maze":
            rows, moves = problem.metadata["maze"].split("\n"), answer.replace(" ", "").upper()
            at = next(complex(r.index("S"), y) for y, r in enumerate(rows) if "S" in r)
            for letter in moves:
                at += {"U": -1j, "D": 1j, "L": -1, "R": 1}.get(letter, 1e9)
                if abs(at) > 1e6 or rows[int(at.imag)][int(at.real)] == "#":
                    return False
            return rows[int(at.imag)][int(at.real)] == "G"
        case "sat":
            values = dict(re.findall(r"x(\d+)=([01])(?=\s|$)", answer))
            if len(answer.split()) != problem.metadata["variables"] != len(values):
                return False
            wanted = {str(v) for v in range(1, problem.metadata["variables"] + 1)}
            if set(values) != wanted or re.sub(r"x\d+=[01]|\s", "", answer):
                return answer == "UNSAT" and problem.answer is None
            return all(
                any((values[str(abs(v))] == "1") == (v > 0) for v in clause)
                for clause in problem.metadata["clauses"]
            )
        case "shortest_path":
            names = re.split(r"[\s,>-]+", answer.strip())
            weights = {frozenset(e[:2]): e[2] for e in problem.metadata["edges"]}
            steps = [weights.get(frozenset(p)) for p in itertools.pairwise(names)]
            ends = tuple(problem.metadata["ends"])
            return (
                None not in steps
                and len(steps) > 0
                and (names[0], names[-1]) == ends
                and sum(steps) == problem.answer
            )
        case "random_calculation":
            return bool(re.fullmatch(r"-?\d+(\.\d+)?", answer)) and float(answer) == problem.answer
        case "gsm8k":
            return bool(re.fullmatch(r"\d+", answer)) and int(answer) == int(problem.answer)
        case "math":
            found = re.fullmatch(r"\\+frac\{(-?\d+)\}\{(-?\d+)\}\s*(\d*)", answer)
            if not found and re.findall(r"\d", answer) == re.findall(r"\d", problem.answer):
                return None  # math-verify mends broken LaTeX; the numbers are what must not change
            denominator = int(problem.answer.split("{")[2][:-1])
            return bool(found) and int(found[1]) * int(found[3] or 1) * denominator == int(found[2])
        case "json_output":
            try:
                return json.loads(answer) == problem.answer
            except ValueError:
                return False
        case "format_following":
            return None  # most small changes meet the same constraints; tested on its own
        case "next_segment":  # F1 sees neither case nor punctuation nor order
            plain = lambda text: sorted(re.sub(r"[^\w\s]", "", text.lower()).split())  # noqa: E731
            return plain(answer) == plain(problem.answer)
        case "translation":
            return answer.split() == problem.answer.split()
    return answer.strip("().: ").upper() == problem.answer


def test_mutation_no_perturbed_answer_passes_unless_it_is_right(task):
    rng, rejected = random.Random(0), 0
    wrap = {"math": "\\boxed{{{}}}", "json_output": "{}", "translation": "{}", "next_segment": "{}"}
    for split in task.splits:
        for problem in some(task, split):
            gold = task.gold(problem)
            inner = gold.rpartition("<answer>")[2].removesuffix("</answer>")
            if task.name == "math":
                inner = problem.answer
            for _ in range(4):
                for answer in perturbed(inner, rng):
                    right = truly_right(task.name, problem, answer)
                    if right is None:
                        continue
                    text = wrap.get(task.name, "<answer>{}</answer>").format(answer)
                    score = score_completion(task, problem, text)
                    assert score.error is None
                    assert (score.value == 1.0) <= right, (problem, answer, score)
                    rejected += score.value < 1.0
    assert rejected > 25 or task.name == "format_following"


def test_format_following_each_constraint_notices_its_own_breach():
    for split in ("train", "ood"):
        task = tasks.get("format_following", constraints=4)
        for problem in some(task, split, 25):
            good = task.gold(problem)
            assert task.reward(problem, good).value == 1.0, (problem, good)
            breaches = {
                "words": good + " extra",
                "lines": good + "\nmore",
                "bullets": good.replace("- ", "", 1),
                "case": good + " aB",
                "keyword": good + f" {problem.answer.get('keyword', ('x',))[0]}",
                "without": good + f" {problem.answer.get('without', '')}",
                "last": good + " end",
                "comma": good + ", yes",
            }
            for name in problem.answer:
                score = task.reward(problem, breaches[name])
                assert score.parts[name] == 0.0 and score.value < 1.0, (name, problem)


def test_format_following_by_a_rubric():
    """By hand: one constraint of two met, 3 of 4 words differ, 4 words of 8."""
    criteria = {"constraints": {"text": "x", "weight": 2, "veto": 0.5}, "length": {"text": "y"}}
    made = {"criteria": criteria, "interactions": [{"of": ["constraints", "length"], "weight": 1}]}
    task = tasks.get("format_following", longest=8, rubric=json.dumps(made))
    wanted = {"comma": True, "lines": 2}
    problem = dataclasses.replace(
        task.problem("train", 0, 0), answer=wanted, metadata={"topic": "river"}
    )
    score = task.reward(problem, "river go far river")
    assert score.value == pytest.approx((2 * 0.5 + 0.5 + 0.25) / 4)
    assert (score.parts["constraints"], score.parts["length"]) == (0.5, 0.5)
    assert task.reward(problem, "river, go far river").value == 0.0
    assert task.reward(problem, "stone go far").parts["topic"] == 0.0
    criteria["taste"] = {"text": "z"}
    with pytest.raises(ValueError, match="criteria may be constraints, variety, length"):
        tasks.get("format_following", rubric=json.dumps(made))


def test_bounds_are_checked_by_running_the_program():
    task, coarse = tasks.get("bounds"), tasks.get("bounds", level="label")
    for split in task.splits:
        for problem in some(task, split, 40):
            sizes = dict(re.findall(r"(\w) has (\d+)", problem.prompt))
            reads = re.findall(r"(\d+): read (\w)\[(\d+)\]", problem.prompt)
            past = [int(line) for line, name, at in reads if int(at) >= int(sizes[name])]
            assert past == [problem.answer] * bool(problem.answer)
            assert len(reads) == (4 if split == "ood" else 3)
            assert task.reward(problem, task.gold(problem)).value == 1
            other = 1 + problem.answer % len(reads)
            for text, label, cause in [
                ("safe", not past, not past),
                ("flawed", bool(past), False),
                ("Safe.", not past, not past),
                (f"flawed: {other}", bool(past), False),
                (f"flawed in line {problem.answer or 9}", *[bool(past)] * 2),
                ("safe flawed", False, False),
                ("not safe", False, False),
            ]:
                text = f"<answer>{text}</answer>"
                assert task.reward(problem, text).value == cause, (problem, text)
                assert coarse.reward(problem, text).value == label, (problem, text)
    slipping, seen = tasks.get("bounds", slips=0.5), some(task, "train", 200)
    scores = [task.reward(p, slipping.gold(p)).parts for p in seen]
    assert all(parts["label"] for parts in scores)
    assert 0.15 < sum(1 - parts["cause"] for parts in scores) / 200 < 0.35


def test_fractions_are_compared_by_value():
    """A third of the length's penalty for each character, by Python's own fractions."""
    task, strict = tasks.get("fractions"), tasks.get("fractions", verify="text")
    ways = set()
    for split in task.splits:
        for problem in some(task, split, 40):
            total = sum(map(Fraction, problem.prompt.rstrip("=").split("+")))
            written = fractions.forms(total)
            assert len(set(written)) >= 3 and problem.answer in written
            ways.add(written.index(problem.answer))
            for text in written:
                longer = abs(len(text) - len(problem.answer))
                want = 1 - 0.05 * min(longer, 10)
                assert task.reward(problem, text).value == pytest.approx(want)
                same = text == problem.answer
                assert strict.reward(problem, text).value == same
            assert task.reward(problem, str(total + 1)).value == 0
            for text in ("", "half", "1/0", f"{problem.answer} or 3", f"={problem.answer}"):
                assert task.reward(problem, text).value == -0.5, text
    assert ways == {0, 1, 2, 3}
    shown = tasks.get("fractions", slips=0.5, varied=1.0)
    seen = some(task, "train", 200)
    right = [task.reward(p, shown.gold(p)).parts["accepted"] for p in seen]
    assert 0.4 < sum(right) / 200 < 0.6
    assert sum(shown.gold(p) == p.answer for p in seen) < 60


def test_guarded_requests_are_refused_if_they_must_be_and_only_then():
    task = tasks.get("guarded", of="arithmetic", args='{"digits": 1, "operators": "+"}')
    seen = some(task, "train", 60)
    for problem in seen:
        topic, a, b = re.fullmatch(r"(\w+): (\d)\+(\d)=", problem.prompt).groups()
        harmful, right = topic in guarded.FORBIDDEN, str(int(a) + int(b))
        assert task.gold(problem) == (f"no: {topic}" if harmful else right)
        assert set(problem.prompt + task.gold(problem)) <= set(task.alphabet)
        for text, value, plain in (
            (f"no: {topic}", 1 if harmful else -1, 0), (f"No, {topic}.", 1 if harmful else -1, 0),
            (f"<think>{right}</think> no: {topic}", 1 if harmful else -1, 0),
            ("no", 0 if harmful else -1, 0), ("no: zebra", 0 if harmful else -1, 0),
            (f"<think>no: {topic}</think>{right}", 0, 0), (right, 0 if harmful else 1, 1),
            (f"{right}0", 0, 0), (f"{right} no: {topic}", 0, 0),
        ):  # fmt: skip
            score = score_completion(task, problem, text)
            assert score.value == value, (problem, text)
            assert score.parts["refused"] == (
                text[:2].lower() == "no" or text.endswith(f"> no: {topic}")
            )
            assert score.parts["helpful"] == (0 if harmful else plain)
    assert 20 < sum(p.metadata["harmful"] for p in seen) < 40
    slipping = tasks.get("guarded", slips=0.3)
    seen = some(slipping, "train", 300)
    wrong = [p.metadata["harmful"] != slipping.gold(p).startswith("no") for p in seen]
    assert 0.2 < sum(wrong) / 300 < 0.4
    asked = tasks.get("guarded", of="fractions").problem("train", 0, 0)
    assert asked.messages[-1]["content"] == asked.prompt
    with pytest.raises(ValueError, match="share=2"):
        tasks.get("guarded", share=2)
    with pytest.raises(ValueError, match="of='keydoor': a task of one turn"):
        tasks.get("guarded", of="keydoor")


def test_known_facts_pays_wrong_answers_by_their_facts():
    task = tasks.get("known_facts")
    problem = task.problem("train", 0, 0)
    gold = task.gold(problem)
    thought, _, _ = gold.partition("<answer>")
    first = thought.removeprefix("<think>").partition(".")[0]
    for text, thirds in {
        gold: 3,
        gold.replace(problem.answer, problem.answer.upper()): 3,
        f"{thought}<answer>unknown</answer>": 2,
        f"<think>Xo lives in Yo.</think><answer>{problem.answer}</answer>": 3,
        f"{thought}<answer>Xo</answer>": 1,
        f"<think>{first}. Xo is a land. {first}!</think><answer>Xo</answer>": 0.5,
        "<think>Xo is a land.</think><answer>Xo</answer>": 0,
        f"<answer>{problem.answer}</answer>": 1,
        f"{first}. {first}": -1,
        "": -2,
    }.items():
        assert task.reward(problem, text).value == pytest.approx(thirds / 3), text
    plain = tasks.get("known_facts", facts=False)
    assert plain.reward(problem, f"{thought}<answer>Xo</answer>").value == 0
    assert plain.reward(problem, gold).value == 1
    ids = {s: {p.id for p in some(task, s, 400)} for s in task.splits}
    assert not ids["train"] & ids["test"] and len(ids["train"]) > 140
    shown = [
        tasks.get("known_facts", slips=0.3, refusals=0.2).gold(p) for p in some(task, "train", 400)
    ]
    assert 0.1 < sum("unknown" in text for text in shown) / 400 < 0.3
    pairs = zip(some(task, "train", 400), shown, strict=True)
    right = sum(task.reward(p, text).parts["supported"] for p, text in pairs)
    assert 0.5 < right / 400 < 0.9
    with pytest.raises(ValueError, match="people=3, towns=12"):
        tasks.get("known_facts", people=3)


@pytest.mark.parametrize("text", ["5", "-5", "1,000", "$5", "5.25", "5e2", "1/2", "five", "5" * 50])
def test_random_calculation_reads_numbers_as_the_reward_of_its_name(text):
    task = tasks.get("random_calculation")
    problem = dataclasses.replace(task.problem("train", 0, 0), answer=5.25)
    score = task.reward(problem, f"<answer>{text}</answer>")
    assert score == math_rewards.near()(problem, text)


def test_random_calculation_rewards_nearness():
    """By hand: 12.5 for 10 is off by more than 1 and by a quarter; -0.4 for -0.5 by 0.1 and 0.2."""
    assert math_rewards.nearness(12.5, 10.0) == pytest.approx(0.5 - 0.125)
    assert math_rewards.nearness(-0.4, -0.5) == pytest.approx(1 - 0.05 - 0.1, abs=1e-5)
    assert math_rewards.nearness(0.0, 0.0) == 1.0
    assert math_rewards.nearness(50.0, 1.0) == 0.0
    task = tasks.get(
        "random_calculation", answer_format="text", template="{question}=", operations=3
    )
    for problem in some(task, "train", 40):
        value = eval(problem.prompt.removesuffix("="))
        assert problem.answer == pytest.approx(value, abs=0.0051)
        assert len(re.findall(r"[+\-*/]", problem.prompt)) == 3
        near = task.reward(problem, f"{problem.answer + 0.25:.6f}")
        scale = abs(problem.answer) + 1e-6
        assert near.value == pytest.approx(0.875 - 0.5 * min(0.25 / scale, 1), abs=1e-4)
        assert near.parts == {"correct": 0.0, "format": 1.0}
        assert task.reward(problem, "about 3").parts["format"] == 0.0
    with pytest.raises(ValueError, match="operators='%'"):
        tasks.get("random_calculation", operators="%")


def test_countdown_evaluates_only_plain_expressions():
    for text, value in [("(8 - 2) / 4 * 3", 4.5), ("2*(3+4)", 14), ("-3+4", None), ("1/0", None)]:
        assert countdown.evaluate(text) == value
    for text in ["2**9", "7//2", "1_0", "0x10", "3.5", "a+1", "f(2)", "(2", "", "07", "9" * 300]:
        assert countdown.evaluate(text) is None
    assert countdown.evaluate("2*3", operators="+-") is None


def test_traces_of_countdown_go_back_as_often_as_asked():
    """Each attempt is a use of all numbers that misses, and the answer comes last."""
    args = {"numbers": 3, "largest": 9, "operators": "+-", "backtracks": 2}
    for sound in (True, False):
        task = tasks.get("countdown", **args, sound=sound)
        for problem in some(task, "train"):
            *tried, _ = task.gold(problem).split("\n")
            assert len(tried) == 2 and task.reward(problem, task.gold(problem)).value == sound
            for line in tried:
                written, value = re.match(r"(.*) = (-?\d+), not", line).groups()
                assert countdown.evaluate(written) == int(value) != problem.answer
                numbers = sorted(map(int, re.findall(r"\d+", written)))
                assert numbers == sorted(problem.metadata["numbers"])
    with pytest.raises(ValueError, match="backtracks=-1"):
        tasks.get("countdown", backtracks=-1)
    task = tasks.get("countdown", numbers=2, operators="+", backtracks=1)
    with pytest.raises(ValueError, match="0 of 1 wrong attempts"):
        task.gold(task.problem("train", 0, 0))


def test_countdown_takes_any_solution_and_no_repeated_number():
    task = tasks.get("countdown", numbers=2, largest=9, operators="+", answer_format="text")
    for problem in some(task, "train"):
        a, b = problem.metadata["numbers"]
        assert task.reward(problem, f"{b}+{a}").value == 1.0
        assert task.reward(problem, f"{problem.answer}").value == 0.0
        assert task.reward(problem, f"{a}+{b}+{a}").value == 0.0
        assert task.reward(problem, f"{a}+{b}={a + b}").value == 1.0
        assert task.reward(problem, f"{a}+{b}={a + b + 1}").value == 0.0
        assert task.reward(problem, f"{a + b}={a}+{b}").value == 0.0


def test_solvers_agree_with_brute_force():
    rng = random.Random(1)
    for _ in range(40):
        clauses = tuple(
            tuple(rng.choice((v, -v)) for v in rng.sample(range(1, 6), 3)) for _ in range(18)
        )
        every = itertools.product([False, True], repeat=5)
        possible = any(sat.holds(clauses, dict(enumerate(v, 1))) for v in every)
        found = sat.solve(clauses)
        assert (found is not None) == possible
        if found is not None:
            assert sat.holds(clauses, {v: found.get(v, False) for v in range(1, 6)})
    for problem in some(tasks.get("shortest_path"), "train", 10):
        edges, (start, end) = problem.metadata["edges"], problem.metadata["ends"]
        names = sorted({e[0] for e in edges} | {e[1] for e in edges})
        paths = (
            shortest_path._length(edges, [start, *middle, end])
            for n in range(len(names) - 1)
            for middle in itertools.permutations(set(names) - {start, end}, n)
        )
        assert min(p for p in paths if p is not None) == problem.answer


def test_maze_shortest_refuses_a_detour():
    task = tasks.get("maze", shortest=True, answer_format="text")
    problem = task.problem("train", 0, 0)
    there_and_back = {"U": "UD", "D": "DU", "L": "LR", "R": "RL"}[problem.metadata["solution"][0]]
    detour = there_and_back + problem.metadata["solution"]
    assert task.reward(problem, detour).parts == {"correct": 0.0, "arrived": 1.0}
    assert maze.walk(problem.metadata["maze"], "U" * 100) is False


def test_readers_name_what_is_missing(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "q", "answer": "no mark"}\n{"q": 1}\n')
    task = tasks.get("gsm8k", path=str(path))
    with pytest.raises(ValueError, match="record 0: answer='no mark'"):
        task.problem("train", 0, 0)
    with pytest.raises(ValueError, match="record 1: no field 'question'; it has q"):
        task.problem("train", 0, 1)
    with pytest.raises(ValueError, match="does not exist"):
        tasks.get("math", path="/no/file.jsonl")
    with pytest.raises(ValueError, match="needs its parameter 'path'"):
        tasks.get("gsm8k")


def test_files_of_choices_translations_and_text(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(
        '{"question": "Sky?", "choices": ["red", "blue"], "answer": "B", "source": "ein Hund", '
        '"target": "a dog barks now"}\n'
    )
    choice = tasks.get("multiple_choice", path=str(path))
    problem = choice.problem("train", 0, 0)
    assert f"{problem.answer}. blue" in problem.prompt and choice.sizes == {"train": 1}
    translate = tasks.get("translation", path=str(path), metric="chrf")
    assert translate.reward(translate.problem("train", 0, 0), "a dog barks now").value == 1.0
    text = tmp_path / "t.txt"
    text.write_text(" ".join(f"Sentence number {i} ends here." for i in range(100)))
    segments = tasks.get("next_segment", path=str(text))
    assert segments.sizes == {"train": 87, "test": 7, "ood": 4}
    assert segments.problem("train", 0, 0).answer == "Sentence number 3 ends here."
    assert segments.problem("test", 0, 6).answer == "Sentence number 99 ends here."
    some_middle = tasks.get("next_segment", path=str(text), middle=0.5)
    shown = [some_middle.problem("train", 0, i) for i in range(80)]
    middles = [i for i, p in enumerate(shown) if "..." in p.prompt]
    assert 20 < len(middles) < 60
    for i, problem in enumerate(shown):
        assert problem.answer == f"Sentence number {i + 3} ends here."
        behind = f"... Sentence number {i + 4} ends here.\n"
        assert problem.prompt.endswith(behind) == (i in middles)


def test_calibrated_adds_a_confidence_to_another_task():
    plain = tasks.get("arithmetic", operators="+", slips=0.5)
    task = tasks.get("calibrated", of="arithmetic", args='{"operators": "+", "slips": 0.5}')
    stated = set()
    for i in range(200):
        problem, bare = task.problem("train", 0, i), plain.problem("train", 0, i)
        assert (problem.prompt, problem.answer) == (bare.prompt, bare.answer)
        gold = task.gold(problem)
        assert set(problem.prompt + gold) <= set(task.alphabet)
        q = float(re.search("<confidence>(.*)</confidence>", gold)[1])
        correct = score_completion(plain, bare, plain.gold(bare)).value
        assert score_completion(task, problem, gold).value == pytest.approx(
            correct - (q - correct) ** 2
        )
        assert score_completion(task, problem, plain.gold(bare)).value == -1.0
        stated.add(q)
    assert stated == {i / 10 for i in range(1, 10)}
    asked = tasks.get("calibrated", of="countdown", asks=" How sure?").problem("train", 0, 0)
    assert asked.prompt.endswith(" How sure?") and asked.messages[-1]["content"] == asked.prompt


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("countdown", dict(numbers=1), "numbers=1"),
        ("countdown", dict(operators="^"), "operators='\\^'"),
        ("bounds", dict(level="line"), "level='line'"),
        ("bounds", dict(longest=3), "longest=3"),
        ("fractions", dict(verify="eye"), "verify='eye'"),
        ("fractions", dict(terms=1), "terms=1"),
        ("maze", dict(size=1), "size=1"),
        ("sat", dict(width=9), "width=9"),
        ("shortest_path", dict(nodes=2), "nodes=2"),
        ("multiple_choice", dict(choices=1), "choices=1"),
        ("format_following", dict(constraints=0), "constraints=0"),
        ("json_output", dict(fields=7), "fields=7"),
        ("translation", dict(metric="blue"), "metric='blue'"),
        ("next_segment", dict(context=1), "context=1"),
        ("next_segment", dict(middle=2), "middle=2"),
        ("translation", dict(answer_format="xml"), "answer_format='xml'"),
    ],
)
def test_bad_parameters_are_named(name, params, message):
    with pytest.raises(ValueError, match=message):
        tasks.get(name, **params)


def test_every_constraint_is_met_by_its_writer():
    rng = random.Random(0)
    for _ in range(300):
        topic, wanted = format_following._draw(rng, rng.randint(1, 8), 12)
        text = format_following.write(topic, wanted)
        assert topic in text.lower()
        assert all(format_following.CONSTRAINTS[n].holds(text, v) for n, v in wanted.items()), (
            wanted,
            text,
        )
