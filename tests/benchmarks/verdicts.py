"""How often a verifier is wrong about what a real model writes.

    jaxrl export smollm2-135m --to hf --dtype bfloat16 --out MODEL
    python -m tests.benchmarks.verdicts sample OUT --data DATA --model MODEL
    python -m tests.benchmarks.verdicts score OUT --data DATA

`sample` asks SmolLM2-135M-Instruct (the `smollm2` and `parity` extras) for five completions of
each of 60 problems of a task at temperature 0.7, see `asked`, and writes OUT/TASK.jsonl. `score`
compares the verifier with a checker that shares no code with it, see `verdict_checkers`, and prints
each disagreement to be read: the checker may be the one that is wrong. DATA is a directory with
`gsm8k/train.jsonl` (as published) and `math/problems.jsonl` (fields problem, solution, answer).
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from jaxrl.data import tasks
from jaxrl.data.scoring import pool
from jaxrl.data.types import Task
from tests.benchmarks.verdict_checkers import CHECKERS

BUDGETS = {
    "arithmetic": 8, "calibrated": 24, "random_calculation": 20, "countdown": 24, "maze": 16,
    "translation": 16, "next_segment": 16, "shortest_path": 20, "multiple_choice": 16,
    "mixture": 20, "json_output": 32, "sql": 28, "format_following": 24, "sat": 28, "gsm8k": 24,
    "math": 40, "code": 56,
}  # fmt: skip
"""Tasks, and the most tokens of a completion."""
PROBLEMS, EACH = 60, 5
"""Problems of a task, and completions of each."""
SHOTS = (10_001, 10_002)
"""Train problems that are shown with their solutions; beyond a file's end, from its start."""


def arguments(name: str, data: Path) -> dict[str, Any]:
    """Parameters of a task."""
    match name:
        case "gsm8k":
            return {"path": str(data / "gsm8k/train.jsonl")}
        case "math":
            return {"path": str(data / "math/problems.jsonl")}
        case "calibrated":
            return {"asks": " State your confidence as <confidence>0.8</confidence> at the end."}
        case "maze":
            return {"size": 2}
        case "sat":
            return {"variables": 3, "clauses": 7, "width": 2}
        case "code":
            return {"steps": 1, "tests": 2}
        case "mixture":
            parts = {
                "numbers": [1, "random_calculation", {"operations": 1}],
                "words": [1, "multiple_choice", {}],
            }
            return {"parts": json.dumps(parts)}
    return {}


def asked(task: Task, index: int) -> list[dict[str, str]]:
    """The conversation that asks for the solution of train problem `index`.

    By turns: the problem alone; after two others with their solutions; and after these with its
    own answer added, as small models solve few problems and right answers shall be scored too.
    """
    problem, turns = task.problem("train", 0, index), []
    if index % 3:
        for other in SHOTS:
            size = task.sizes.get("train")
            shown = task.problem("train", 0, other if size is None else other % size)
            turns += [
                {"role": "user", "content": shown.prompt},
                {"role": "assistant", "content": _stated(task.of(shown).gold(shown))},
            ]
    text = problem.prompt
    if index % 3 == 2:
        answer = _stated(task.of(problem).gold(problem))
        answer = answer.removeprefix("<answer>").removesuffix("</answer>")
        text += f"\n(Hint: the right answer is {answer})"
    return [*turns, {"role": "user", "content": text}]


def _stated(gold: str) -> str:
    """A solution without the work before its answer."""
    return (re.findall(r"<answer>.*</answer>", gold) or [gold])[-1]


def sample(out: Path, data: Path, names: list[str], model: str) -> None:
    """Write completions of each task that has none yet, in batches of one kind of conversation."""
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model, padding_side="left")
    policy = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    for name in names:
        path = out / f"{name}.jsonl"
        if path.exists():
            continue
        start, used, count = time.monotonic(), time.process_time(), 0
        task = tasks.get(name, **arguments(name, data))
        lines: list[str] = []
        for kind in range(3):
            prompts = [
                tokenizer.apply_chat_template(
                    asked(task, i), add_generation_prompt=True, return_dict=False
                )
                for i in range(kind, PROBLEMS, 3)
            ]
            said = _generate(policy, tokenizer, prompts, BUDGETS[name])
            count += sum(map(len, said))
            for row, text in enumerate(tokenizer.batch_decode(said, skip_special_tokens=True)):
                index = kind + 3 * (row // EACH)
                lines.append(json.dumps({"index": index, "text": text}) + "\n")
        path.with_suffix(".part").write_text("".join(lines))
        path.with_suffix(".part").rename(path)
        seconds, used = time.monotonic() - start, time.process_time() - used
        print(
            f"{name}: {count} tokens in {seconds:.0f} s, {used:.0f} s of the processor", flush=True
        )


def _generate(
    policy: Any, tokenizer: Any, prompts: list[list[int]], budget: int
) -> list[list[int]]:
    """`EACH` completions of each prompt at temperature 0.7, as token ids.

    What all prompts begin with is computed once, and the rest of each prompt once.
    """
    import torch

    shortest = min(map(len, prompts)) - 1
    differs = (i for i in range(shortest) if len({p[i] for p in prompts}) > 1)
    shared = next(differs, shortest)
    width = max(map(len, prompts))
    pads = [width - len(p) for p in prompts]
    rows = torch.tensor(
        [
            p[:shared] + [tokenizer.pad_token_id] * pad + p[shared:]
            for p, pad in zip(prompts, pads, strict=True)
        ]
    )
    mask = torch.tensor([[1] * shared + [0] * pad + [1] * (width - shared - pad) for pad in pads])
    with torch.inference_mode():
        cache = policy(rows[:1, :shared], use_cache=True, logits_to_keep=1).past_key_values
        cache.batch_repeat_interleave(len(prompts))
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        policy(
            rows[:, shared:-1],
            attention_mask=mask[:, :-1],
            position_ids=places[:, shared:-1],
            past_key_values=cache,
            logits_to_keep=1,
        )
        cache.batch_repeat_interleave(EACH)
        ids = policy.generate(
            rows.repeat_interleave(EACH, 0),
            attention_mask=mask.repeat_interleave(EACH, 0),
            past_key_values=cache,
            max_new_tokens=budget,
            do_sample=True,
            temperature=0.7,
            top_k=0,
            pad_token_id=tokenizer.pad_token_id,
        )
    ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    said = [row[width:].tolist() for row in ids]
    return [list(itertools.takewhile(lambda token: token not in ends, row)) for row in said]


FULL = {"calibrated": 0.001}
"""The least reward of a right completion, where it is not 1."""


def score_all(out: Path, data: Path, names: list[str]) -> None:
    """Print how often verifier and checker agree, and each completion on which they do not."""
    for name in names:
        path = out / f"{name}.jsonl"
        if not path.exists():
            continue
        task = tasks.get(name, **arguments(name, data))
        counts: Counter[tuple[bool, bool]] = Counter()
        for line in path.read_text().splitlines():
            record = json.loads(line)
            problem = task.problem("train", 0, record["index"])
            score = pool.score_completion(task, problem, record["text"])
            truth = CHECKERS[name](problem, record["text"])
            full = FULL.get(name, 1.0)
            verdict, right = (score.value or 0.0) >= full, float(truth) >= full
            differ = abs((score.value or 0.0) - truth) > 1e-9 if type(truth) is float else False
            counts[verdict, right] += 1
            if verdict != right or differ or score.error:
                said = {"index": record["index"], "verdict": score.value, "checker": truth}
                said |= {"error": score.error, "answer": problem.answer, "text": record["text"]}
                print(json.dumps({"task": name, **said}))
        shown = {
            "right": counts[True, True],
            "wrong": counts[False, False],
            "refused": counts[False, True],
            "accepted": counts[True, False],
        }
        print(json.dumps({"task": name, "completions": counts.total(), **shown}), flush=True)


def main() -> None:
    """Read arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("sample", "score"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tasks", nargs="*", default=list(BUDGETS))
    parser.add_argument("--model", default="")
    args = parser.parse_args()
    if args.what == "sample":
        sample(args.out, args.data, args.tasks, args.model)
    else:
        score_all(args.out, args.data, args.tasks)


if __name__ == "__main__":
    main()
