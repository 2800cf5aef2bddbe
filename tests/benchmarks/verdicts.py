"""How often a verifier is wrong about what a real model writes.

    python -m tests.benchmarks.verdicts sample OUT --data DATA
    python -m tests.benchmarks.verdicts judge OUT

`sample` asks SmolLM2-135M-Instruct (the `smollm2` extra) for one completion of each of 300 problems
of a task, temperature 0.7, in its chat template, and writes OUT/TASK.jsonl. `judge` compares the
verifier with a checker that shares no code with it, see `CHECKERS`, and prints each disagreement to
be read: the checker may be the one that is wrong. DATA is a directory with `gsm8k/train.jsonl` (as
published) and `math/problems.jsonl` (fields problem, solution, answer).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxrl.data import scoring, tasks
from jaxrl.data.types import Problem

BUDGETS = {
    "arithmetic": 24, "multiple_choice": 32, "json_output": 64, "sql": 40, "countdown": 40,
    "translation": 24, "next_segment": 24, "gsm8k": 120, "random_calculation": 40,
    "shortest_path": 40, "maze": 32, "sat": 40, "format_following": 40, "calibrated": 32,
    "code": 128, "math": 160,
}  # fmt: skip
"""Tasks, and tokens of a completion."""
COUNT = 300


def arguments(name: str, data: Path) -> dict[str, Any]:
    """Parameters of a task."""
    match name:
        case "gsm8k":
            return {"path": str(data / "gsm8k/train.jsonl")}
        case "math":
            return {"path": str(data / "math/problems.jsonl")}
        case "calibrated":
            return {"asks": " State your confidence as <confidence>0.8</confidence> at the end."}
    return {}


def sample(out: Path, data: Path, names: list[str]) -> None:
    """Write completions of each task that has none yet."""
    import jax

    from jaxrl.config import Config
    from jaxrl.mesh import mesh
    from jaxrl.rollout import policy
    from jaxrl.sampling import sampler
    from jaxrl.types import Request

    out.mkdir(parents=True, exist_ok=True)
    actor = policy.create(policy.named("smollm2-135m"), mesh.make(Config().mesh))
    params = policy.sampling_params(actor.params, "float32")
    for name in names:
        path = out / f"{name}.jsonl"
        if path.exists():
            continue
        start = time.monotonic()
        task = tasks.get(name, **arguments(name, data))
        problems = [task.problem("train", 0, i) for i in range(COUNT)]
        requests = []
        for i, problem in enumerate(problems):
            ids = policy.chat(actor.tokenizer, "", [{"role": "user", "content": problem.prompt}])
            requests.append(
                Request(i, prompt=tuple(ids), max_new_tokens=BUDGETS[name], temperature=0.7)
            )
        generated = sampler.generate(
            actor.model,
            params,
            requests,
            stop_ids=actor.tokenizer.eos_ids,
            key=jax.random.key(0),
            sampler=sampler.SamplerConfig(slots=32, chunk=16),
        )
        done = list(generated)
        texts = {c.request.id: actor.tokenizer.decode(c.tokens.tolist()) for c in done}
        lines = [json.dumps({"index": i, "text": texts[i]}) + "\n" for i in range(COUNT)]
        path.with_suffix(".part").write_text("".join(lines))
        path.with_suffix(".part").rename(path)
        tokens = sum(len(c.tokens) for c in done)
        print(f"{name}: {tokens} tokens in {time.monotonic() - start:.0f} s", flush=True)


def _whole_number(problem: Problem, text: str) -> bool:
    return bool(re.fullmatch(r"\s*[+-]?[0-9]+\s*", text)) and int(text) == int(problem.answer)


def _letter(problem: Problem, text: str) -> bool:
    """One letter in the last line, which with any number beside it is the sum's option."""
    lines = [line for line in text.split("\n") if line.strip()]
    a, b = map(int, re.findall(r"What is (\d+) \+ (\d+)", problem.prompt)[0])
    options = dict(re.findall(r"^([A-D])\. (\d+)$", problem.prompt, re.MULTILINE))
    letters = set(re.findall(r"\b[A-D]\b", lines[-1])) if lines else set()
    if len(letters) != 1:
        return False
    (letter,) = letters
    return int(options[letter]) == a + b and set(re.findall(r"\d+", lines[-1])) <= {str(a + b)}


def _object(problem: Problem, text: str) -> bool:
    """The record, alone or in a fence, types as the schema has them."""
    fenced = re.findall(r"```(?:json)?\n(.*?)\n```", text, re.DOTALL)
    try:
        found = json.loads(fenced[-1] if fenced else text)
    except ValueError:
        return False
    return repr(sorted(found.items())) == repr(sorted(problem.answer.items()))


def _rows(problem: Problem, text: str) -> bool:
    """The rows of the reference on every hidden database."""
    fenced = re.findall(r"```(?:sql|sqlite)?\n(.*?)```", text, re.DOTALL | re.IGNORECASE)
    for script in problem.metadata["databases"]:
        database = sqlite3.connect(":memory:")
        database.executescript(script)
        wanted = database.execute(problem.answer).fetchall()
        try:
            rows = database.execute(fenced[-1] if fenced else text).fetchall()
        except (sqlite3.Error, sqlite3.Warning):
            return False
        if (rows if "order by" in problem.answer.lower() else Counter(rows)) != (
            wanted if "order by" in problem.answer.lower() else Counter(wanted)
        ):
            return False
    return True


def _value(node: ast.AST, used: list[int]) -> float:
    match node:
        case ast.Expression(body=body):
            return _value(body, used)
        case ast.Constant(value=int() as number):
            used.append(number)
            return number
        case ast.BinOp(left=left, op=op, right=right):
            x, y = _value(left, used), _value(right, used)
            kinds = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
            return {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else float("nan")}[
                kinds[type(op)]
            ]
    raise ValueError(ast.dump(node))


def _expression(problem: Problem, text: str) -> bool:
    """What follows "=" aside, an expression of exactly the numbers whose value is the target."""
    *numbers, target = map(int, re.findall(r"\d+", problem.prompt.split("\n")[0]))
    said = text.strip().split("\n")[-1].split("=")
    used: list[int] = []
    try:
        value = _value(ast.parse(said[0].strip(), mode="eval"), used)
        ends = all(float(side) == target for side in said[1:])
    except (ValueError, SyntaxError, KeyError):
        return False
    return ends and abs(value - target) < 1e-9 and sorted(used) == sorted(numbers)


def _same_words(problem: Problem, text: str) -> bool:
    return text.split() == problem.answer.split()


def _last_number(problem: Problem, text: str) -> bool:
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return bool(found) and float(found[-1].replace(",", "")) == float(problem.answer)


CHECKERS: dict[str, tuple[dict[str, Any], Callable[[Problem, str], bool]]] = {
    "arithmetic": ({}, _whole_number),
    "multiple_choice": ({"answer_format": "last_line"}, _letter),
    "json_output": ({}, _object),
    "sql": ({}, _rows),
    "countdown": ({"answer_format": "last_line"}, _expression),
    "translation": ({}, _same_words),
    "gsm8k": ({"answer_format": "number"}, _last_number),
}
"""By task: parameters that its completions are judged under, and a reader of its own.

The model seldom puts its answer between tags, so that without these parameters nearly all of what
it says would be refused by its form and nothing would be learned of the rest."""


def judge(out: Path, data: Path, names: list[str]) -> None:
    """Print how often verifier and checker agree, and each completion on which they do not."""
    for name in names:
        path = out / f"{name}.jsonl"
        if name not in CHECKERS or not path.exists():
            continue
        changes, check = CHECKERS[name]
        task = tasks.get(name, **arguments(name, data) | changes)
        counts: Counter[tuple[bool, bool]] = Counter()
        for line in path.read_text().splitlines():
            record = json.loads(line)
            problem = task.problem("train", 0, record["index"])
            score = scoring.judge(task, problem, record["text"])
            verdict, truth = score.value == 1.0, check(problem, record["text"])
            counts[verdict, truth] += 1
            if verdict != truth or score.error:
                said = {"index": record["index"], "verdict": score.value, "checker": truth}
                said |= {"error": score.error, "answer": problem.answer, "text": record["text"]}
                print(json.dumps({"task": name, **said}))
        shown = {
            "right": counts[True, True],
            "wrong": counts[False, False],
            "refused": counts[False, True],
            "accepted": counts[True, False],
        }
        print(json.dumps({"task": name, "completions": counts.total(), **shown}))


def main() -> None:
    """Read arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("sample", "judge"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tasks", nargs="*", default=list(BUDGETS))
    args = parser.parse_args()
    {"sample": sample, "judge": judge}[args.what](args.out, args.data, args.tasks)


if __name__ == "__main__":
    main()
