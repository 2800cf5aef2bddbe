"""Small regression tables for which a configuration is chosen, fitted in a sandbox and scored."""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jaxrl.data.rewards import milestones
from jaxrl.data.rewards.milestones import Thresholds
from jaxrl.data.sandbox import runner
from jaxrl.data.sandbox.runner import Limits
from jaxrl.data.sources import generate
from jaxrl.data.tasks.programs import micro_ml_fit
from jaxrl.data.types import Problem, Score, Task

NAMES = "abcde"
_ANSWER = re.compile(r"([a-e]{1,5}) ([12]) ([0-9])")
_SCRIPT = Path(micro_ml_fit.__file__)
_SILVER, _BRONZE = 1.05, 1.15  # of the reference's error


def task(
    rows: int = 100,
    ood_rows: int = 1000,
    reward: Literal["dense", "sparse"] = "dense",
    slips: float = 0.0,
    wall_s: float = 30.0,
) -> Task:
    """`a81 b00 c17 d02 e00` asks which features of a table to fit, how, and with which penalty.

    A table has five features and a target that depends on one to three of them, or on their
    squares, with noise. The prompt has for each feature the first digit of the absolute correlation
    of the target with it, and with its square. An answer such as `ac 1 3` takes the features a and
    c, degree 1 (2 adds squares) and the ridge penalty 10^(3 - 4). It is fitted in a sandbox, which
    never has the labels that predictions are scored by, by root mean squared error.

    Thresholds are from two references: the true features at the true degree with a penalty of 0.1,
    and the mean of the target. Gold is within 1% of the former, silver within 5%, bronze within
    15%, and the median is half way between the two.

    Args:
      rows: of train tables, on average; from half of it to half as many again.
      ood_rows: of tables of the ood split.
      reward: `dense`, by the tier reached, or `sparse`, for gold alone; see
        `jaxrl.data.rewards.milestones`.
      slips: share of the solutions for supervised fine-tuning that take one feature at degree 1.
      wall_s: time limit of a fit.
    """
    if rows < 20 or ood_rows < rows:
        raise ValueError(f"rows={rows}, ood_rows={ood_rows}: need 20 <= rows <= ood_rows")
    if reward not in ("dense", "sparse") or not 0 <= slips <= 1:
        raise ValueError(f"reward={reward!r}, slips={slips}: use dense or sparse, and a share")
    limits = Limits(wall_s=wall_s, cpu_s=math.ceil(wall_s))
    earned = {"dense": milestones.dense, "sparse": milestones.sparse}[reward]

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        stream = generate.rng("micro_ml", split, seed, index)
        count = ood_rows if split == "ood" else stream.randint(rows // 2, rows + rows // 2)
        degree = stream.randint(1, 2)
        table_seed = generate.draw(
            lambda stream: stream.getrandbits(64), key=str, stream=stream, split=split
        )
        columns = sorted(stream.sample(range(len(NAMES)), stream.randint(1, 3)))
        made_of = random.Random(table_seed)
        weights = [made_of.choice((-1, 1)) * made_of.uniform(1, 2) for _ in columns]
        train, test = (
            [_row(made_of, columns, weights, degree) for _ in range(n)] for n in (count, 100)
        )
        inputs, labels = [row[:-1] for row in test], [row[-1] for row in test]
        best = error(micro_ml_fit.predictions(train, inputs, columns, degree, 0.1), labels)
        mean = sum(row[-1] for row in train) / len(train)
        thresholds = Thresholds(
            1.01 * best, _SILVER * best, _BRONZE * best, (best + error([mean] * 100, labels)) / 2
        )
        letters = "".join(NAMES[c] for c in columns)
        return Problem(
            id=f"micro_ml/{table_seed}/{count}/{letters}/{degree}",
            prompt=f"{profile(train)}\n",
            answer=labels,
            metadata={
                "files": {"train.csv": _csv(train), "test.csv": _csv(inputs)},
                "thresholds": tuple(thresholds),
                "solution": f"{letters} {degree} 3",
                "slip": f"{letters[0]} 1 3",
            },
            domain="micro_ml",
        )

    def gold(problem: Problem) -> str:
        slipped = generate.rng("slip", problem.id).random() < slips
        return problem.metadata["slip" if slipped else "solution"]

    def judged(problem: Problem, completion: str) -> Score:
        match = _ANSWER.fullmatch(completion)
        if match is None or len(set(match[1])) < len(match[1]):
            return _scored(None, 0.0, problem)
        outcome = runner.run(
            [sys.executable, "-I", "-S", "fit.py", *match.groups()],
            files={**problem.metadata["files"], "fit.py": _SCRIPT.read_text()},
            limits=limits,
        )
        try:
            predictions = [float(line) for line in outcome.stdout.splitlines()]
        except ValueError:
            predictions = []
        valid = outcome.status == 0 and len(predictions) == len(problem.answer)
        score = error(predictions, problem.answer) if valid else None
        return _scored(score, 1.0, problem, timed_out=outcome.end == "timeout")

    def _scored(
        score: float | None, form: float, problem: Problem, *, timed_out: bool = False
    ) -> Score:
        thresholds = Thresholds(*problem.metadata["thresholds"])
        reached = "" if score is None else milestones.tier(score, thresholds, lower_better=True)
        parts = {
            "format": form,
            "valid": float(score is not None),
            "medal": float(reached in ("gold", "silver", "bronze")),
            "gold": float(reached == "gold"),
        }
        value = earned(score, thresholds, form=form, lower_better=True)
        return Score(value, parts, timed_out=timed_out)

    task = Task(
        name="micro_ml",
        problem=problem,
        reward=judged,
        gold=gold,
        alphabet=NAMES + "0123456789 \n",
        description=__doc__,
        sandboxed=True,
        seconds=lambda problem: wall_s + runner.START_S,
    )
    return task


def error(predicted: Sequence[float], labels: Sequence[float]) -> float:
    """Root mean squared error."""
    pairs = zip(predicted, labels, strict=True)
    return math.sqrt(sum((p - y) ** 2 for p, y in pairs) / len(labels))


def profile(table: Sequence[Sequence[float]]) -> str:
    """First digits of the absolute correlations of the target with each feature and its square."""
    target = [row[-1] for row in table]
    parts = []
    for column, name in enumerate(NAMES):
        values = [row[column] for row in table]
        both = (_correlation([v**p for v in values], target) for p in (1, 2))
        parts.append(name + "".join(str(int(min(9.0, 10 * abs(c)))) for c in both))
    return " ".join(parts)


def _correlation(left: Sequence[float], right: Sequence[float]) -> float:
    count = len(left)
    centred = [[v - sum(side) / count for v in side] for side in (left, right)]
    product = sum(a * b for a, b in zip(*centred, strict=True))
    norm = math.sqrt(sum(a * a for a in centred[0]) * sum(b * b for b in centred[1]))
    return product / norm if norm else 0.0


def _row(
    stream: random.Random, columns: Sequence[int], weights: Sequence[float], degree: int
) -> list[float]:
    features = [round(stream.gauss(0, 1), 4) for _ in NAMES]
    signal = sum(w * features[c] ** degree for c, w in zip(columns, weights, strict=True))
    return [*features, round(signal + stream.gauss(0, 0.5), 4)]


def _csv(table: Sequence[Sequence[float]]) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in table)
