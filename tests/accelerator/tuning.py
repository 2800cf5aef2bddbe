"""Steps of SFT and of DPO by the training loop."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

from jaxrl.config import Config
from jaxrl.launch.planning import roofline
from jaxrl.launch.settings import configs
from jaxrl.models.checkpoints import huggingface
from jaxrl.run import loop
from jaxrl.run.context import Callbacks
from tests.accelerator import grpo, models
from tests.accelerator.settings import Report, Settings, remaining

RECIPES = {"sft": 64, "dpo": 32}
"""Rows of a step; those of DPO are pairs."""
PROMPT, ANSWER = 128, 384
"""Tokens of each."""


def data(recipe: str, settings: Settings) -> Path:
    """A file with the rows of one step, written at first use."""
    path = settings.work / f"{recipe}.jsonl"
    if path.exists():
        return path
    count, (prompt, answer) = rows(recipe, settings), sizes(settings)
    prompts = models.texts(count, prompt, 1)
    first, second = models.texts(count, answer, 2), models.texts(count, answer, 3)
    names = ("completion",) if recipe == "sft" else ("chosen", "rejected")
    path.write_text(
        "".join(
            json.dumps({"prompt": p, **dict(zip(names, (a, b), strict=False))}) + "\n"
            for p, a, b in zip(prompts, first, second, strict=True)
        )
    )
    return path


def rows(recipe: str, settings: Settings) -> int:
    """Rows of a step."""
    return settings.sized(RECIPES[recipe], 4)


def sizes(settings: Settings) -> tuple[int, int]:
    """Tokens of a prompt and of an answer."""
    return settings.sized((PROMPT, ANSWER), (16, 32))


def config(recipe: str, settings: Settings, *, weights: bool = True) -> Config:
    """What a user would set for this workload."""
    folder = models.make(settings.work, "qwen3-0.6b", rehearse=settings.rehearse, weights=weights)
    prompt, answer = sizes(settings)
    row = 2 * (prompt + 2 * answer)
    run = settings.work / "runs" / f"{recipe}-{time.time_ns()}"
    path = str(data(recipe, settings))
    given = [
        "--data", path, "--eval-data", path, "--model", str(folder),
        "--data.batch-size", str(rows(recipe, settings)), "--steps", str(settings.sized(5, 3)),
        "--data.max-tokens", str(prompt + answer + 8),
        "--lr", "1e-6", "--run-dir", str(run), "--schedule", "constant", "--warmup-steps", "0",
        "--checkpoint.every", "1000000", "--compute-dtype", "bfloat16", "--remat", "dots",
        "--packing.row-length", str(row), "--packing.micro-batch-tokens", str(8 * row),
    ]  # fmt: skip
    return configs.resolve([recipe, *given])[0]


def measure(settings: Settings, report: Report) -> None:
    """Seconds of a step, and its share of the product's rate."""
    for recipe in RECIPES:
        if remaining() < 20:
            report.skip(recipe, "the limit of this part is near")
            continue
        with report.attempt(recipe), grpo.plain_steps():
            report.add(recipe, step_of(recipe, settings))


def step_of(recipe: str, settings: Settings) -> dict[str, Any]:
    """The recipe for a few steps."""
    made, rows_of, marks = config(recipe, settings), list[dict[str, float]](), [0.0]
    models.make(settings.work, "qwen3-0.6b", rehearse=settings.rehearse)
    start = time.perf_counter()

    def step(number: int, metrics: dict[str, float]) -> None:
        marks.append(time.perf_counter() - start)
        rows_of.append(metrics)

    loop.train(made, Callbacks(step=step, note=print))
    spent = statistics.median(b - a for a, b in itertools.pairwise(marks[1:]))
    model = huggingface.read_config(made.model)
    prompt, answer = sizes(settings)
    answers = 1 if recipe == "sft" else 2
    count = rows(recipe, settings)
    tokens = count * (prompt + answers * answer)
    weights = roofline.active(model) - model.vocab_size * model.hidden_size
    head = 2 * model.vocab_size * model.hidden_size * count * answers * answer
    pairs = count * (prompt**2 / 2 + answers * (answer * prompt + answer**2 / 2))
    inner = 4 * model.num_heads * model.head_dim * model.num_layers * pairs
    passes = 3 if recipe == "sft" else 4  # DPO's reference reads all once more
    flops, rate = passes * (2 * weights * tokens + inner + head), grpo.rates(settings)
    return {
        "step_seconds": spent,
        "first_step_seconds": marks[1],
        "tokens": tokens,
        "tokens_a_second": tokens / spent,
        "mfu_stated": flops / spent / rate["stated_flops"],
        "mfu_of_matmul": flops / spent / rate["flops"],
        "loss": [row.get("loss") for row in rows_of],
        "phases": {k: v for k, v in rows_of[-1].items() if k.startswith("time/")},
        "peak_device_bytes": max(row.get("memory/device", 0.0) for row in rows_of),
    }
