"""Over-optimisation of reward models, see PLAN.md in this folder.

PYTHONPATH=. python experiments/runs/over-optimisation/experiment.py WORK --seeds 0 1 2 3 4
PYTHONPATH=. python experiments/runs/over-optimisation/experiment.py WORK --limited --few 320
--many 0 \
    --out experiments/runs/over-optimisation/limited.json
PYTHONPATH=. python experiments/runs/over-optimisation/experiment.py WORK --limited --few 320
--many 0 \
    --arms one "one, KL" --seeds 5 ... 20 --out experiments/runs/over-optimisation/more-seeds.json
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Score, Task
from jaxrl.launch.settings import configs
from jaxrl.record import metrics
from jaxrl.run import loop

sys.path.insert(0, str(Path(__file__).parent))  # the task is named experiment:task

LETTERS = "abcdefgh"
LENGTH = 8
LIMIT = 2
TINY = [
    *("--model", "fresh", "--fresh.hidden-size", "64", "--fresh.intermediate-size", "128"),
    *("--fresh.num-layers", "2", "--fresh.num-heads", "2", "--fresh.num-kv-heads", "2"),
    *("--fresh.head-dim", "32", "--checkpoint.every", "100000", "--score-workers", "0"),
    *("--packing.row-length", "128", "--rollout-log.every", "0"),
]
ARMS = {
    "one": (1, []),
    "one, KL": (1, ["--kl-coef", "0.1"]),
    "ensemble": (3, ["--reward-model.uncertainty", "1.0"]),
}
"""Number of reward models, and flags."""


def weights(seed: int) -> dict[str, float]:
    """What each letter is worth."""
    drawn = np.random.default_rng([seed, 1]).normal(size=len(LETTERS))
    return dict(zip(LETTERS, (drawn - drawn.mean()) / drawn.std(), strict=True))


def gold(seed: int, text: str) -> float:
    """The sum of the letters' worth, less the squares of the occurrences over `LIMIT`."""
    worth, text = weights(seed), text[:LENGTH]
    excess = sum(max(0, text.count(letter) - LIMIT) ** 2 for letter in LETTERS)
    return (sum(worth.get(letter, 0.0) for letter in text) - excess) / LENGTH**0.5


def drawn(rng: random.Random, limited: bool) -> str:
    """A text as the first policy writes it; if limited, one without a letter beyond `LIMIT`."""
    if limited:
        return "".join(rng.sample(LETTERS * LIMIT, LENGTH))
    return "".join(rng.choice(LETTERS) for _ in range(LENGTH))


def task(seed: int, limited: bool) -> Task:
    """Write a text; the gold reward judges it."""

    def problem(split: str, _: int, index: int) -> Problem:
        return Problem(f"{split}{index}", f"{LETTERS[index % 8]}:", index)

    return Task(
        name="gold",
        problem=problem,
        reward=lambda _, text: Score(gold(seed, text)),
        gold=lambda each: drawn(generate.rng("texts", seed, each.id), limited),
        splits=("train", "test"),
        alphabet=f"{LETTERS}:",
        pure=True,
    )


def pairs(path: Path, seed: int, part: str, count: int, limited: bool) -> float:
    """Write noisy preferences; the share of them that the gold reward agrees with."""
    rng, lines, agreed = generate.rng("pairs", seed, part), [], 0
    while len(lines) < count:
        one, two = drawn(rng, limited), drawn(rng, limited)
        gap = 2 * (gold(seed, one) - gold(seed, two))
        if not gap:
            continue
        right = rng.random() < 1 / (1 + np.exp(-abs(gap)))
        agreed += right
        chosen, rejected = (one, two) if right == (gap > 0) else (two, one)
        row = {"prompt": f"{rng.choice(LETTERS)}:", "chosen": chosen, "rejected": rejected}
        lines.append(f"{json.dumps(row)}\n")
    path.write_text("".join(lines))
    return agreed / count


def train(*argv: str) -> dict:
    """The summary of a run, continued if it is there."""
    config, _ = configs.resolve([*argv, *TINY])
    saved = Path(config.run_dir) / "summary.json"
    return json.loads(saved.read_text()) if saved.exists() else loop.train(config)


def reward_model(work: Path, name: str, seed: int, init: int, steps: int) -> dict:
    """The held-out figures of a reward model."""
    given = ["--data", str(work / f"{name}.jsonl"), "--eval-data", str(work / "test.jsonl")]
    given += ["--data.batch-size", "32", "--steps", str(steps), "--lr", "3e-3"]
    given += ["--packing.micro-batch-tokens", "1024", "--eval-problems", "1000"]
    return train("reward", *given, "--seed", str(init), "--run-dir", str(work / f"{name}-{init}"))


def policy(work: Path, seed: int, arm: str, steps: int, limited: bool) -> list[dict[str, float]]:
    """Gold and proxy, as means over blocks of steps."""
    count, flags = ARMS[arm]
    models = [str(work / f"few-{init}") for init in range(count)]
    run = work / arm.replace(", ", "-")
    given = ["--task", "experiment:task", "--task-args.seed", str(seed), "--seed", str(seed)]
    given += ["--task-args.limited", str(limited).lower()]
    given += ["--prompts", "8", "--group-size", "16", "--max-prompt-tokens", "8"]
    given += ["--max-new-tokens", str(LENGTH + 1), "--steps", str(steps), "--lr", "5e-4"]
    given += ["--warm-start.steps", "100", "--eval-problems", "8", "--kl-coef", "1e-6"]
    given += ["--packing.micro-batch-tokens", "1024", "--sampler.slots", "128", *flags]
    given += ["--with", "reward_model", "--reward-model.models", *models]
    train("grpo", *given, "--run-dir", str(run))
    return [
        {
            "step": row["step"],
            "gold": row["reward/task"],
            "proxy": row["reward/reward_model"],
            "kl": row["kl"],
        }
        for row in metrics.read(run)
    ]


def measure(
    work: Path, seed: int, few: int, many: int, steps: int, limited: bool, arms: Sequence[str]
) -> dict:
    """All runs of a seed."""
    work = work / str(seed)
    work.mkdir(parents=True, exist_ok=True)
    attainable = pairs(work / "test.jsonl", seed, "test", 1000, limited)
    pairs(work / "few.jsonl", seed, "few", few, limited)
    found = {"seed": seed, "attainable": attainable}
    if many:
        pairs(work / "many.jsonl", seed, "many", many, limited)
        found["many"] = reward_model(work, "many", seed, 0, many * 3 // 32)["eval"]["after"]
    inits = range(max(ARMS[arm][0] for arm in arms))
    found["few"] = [reward_model(work, "few", seed, init, 40)["eval"]["after"] for init in inits]
    found["arms"] = {arm: policy(work, seed, arm, steps, limited) for arm in arms}
    return found


def main() -> None:
    """Measure seeds, one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=4000, help="0: not trained")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--limited", action="store_true", help="the second experiment")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.json")
    arguments = parser.parse_args()
    found = []
    for seed in arguments.seeds:
        given = (arguments.few, arguments.many, arguments.steps)
        found.append(measure(arguments.work, seed, *given, arguments.limited, arguments.arms))
        arguments.out.write_text(json.dumps(found))
        last = found[-1]
        print(seed, "attainable", last["attainable"], "many", last.get("many"), flush=True)
        print(" few", [round(each["accuracy"], 3) for each in last["few"]], flush=True)
        for arm, rows in last["arms"].items():
            blocks = [rows[n : n + 10] for n in range(0, len(rows), 10)]
            for name in ("gold", "proxy", "kl"):
                means = [round(statistics.mean(r[name] for r in block), 2) for block in blocks]
                print(" ", arm, name, means, flush=True)


if __name__ == "__main__":
    main()
