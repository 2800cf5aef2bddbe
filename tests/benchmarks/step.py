"""Seconds of a whole GRPO step: ours, TRL's GRPOTrainer and Tunix's GRPOLearner on one workload.

    python -m tests.benchmarks.step measure --rows equal tail --systems jaxrl trl tunix
    python -m tests.benchmarks.step table

`measure` runs one process after another, each in an environment of its own (made on first use under
`--work`, or given: `--python trl=/path/to/python`), and writes one JSON file a run there; `table`
joins all files into Markdown. Weights, tokenizer, prompts and the length of every completion are
the same for all: peers' sampling emits EOS exactly where the schedule says and nowhere else.
TRL and Tunix run as their documentation has it (TRL in fp32 with its default gradient
checkpointing; Tunix with its vanilla rollout), with no divergence to a reference.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl import gguf_file
from jaxrl.data.gguf import gguf_vocab
from jaxrl.models import catalog, decoder, load
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import DecoderConfig

SMALL = DecoderConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=688,
    num_layers=5,
    num_heads=4,
    num_kv_heads=4,
    head_dim=64,
    norm_eps=1e-5,
)
PACKAGES = {"trl": ("torch", "trl"), "tunix": ("google-tunix",)}
TEXT = (
    "the river carries old wood down to a slow bend where two boats wait and children count "
    "every stone they find while an engine hums under light rain that falls on green hills"
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One workload."""

    model: str
    prompts: int
    group_size: int
    prompt_tokens: int
    """About so many; each prompt differs by up to a tenth."""
    lengths: tuple[int, ...]
    """Tokens of each completion, its last one included."""
    row_length: int
    """Of our packed rows."""


def long_tail(count: int, total: int, longest: int) -> tuple[int, ...]:
    """Lognormal lengths (sigma 1.2) of a given sum and maximum, in no order."""
    rng = np.random.default_rng(0)
    raw = np.sort(np.exp(1.2 * rng.normal(size=count - 1)))
    rest = np.clip(np.round(raw * (total - longest) / raw.sum()), 2, longest).astype(int)
    rest[-1] += total - longest - rest.sum()
    return tuple(int(n) for n in rng.permutation([*rest, longest]))


ROWS = {
    "equal": Row("smollm2-135m", 4, 8, 40, (32,) * 32, 296),
    "tail": Row("smollm2-135m", 4, 8, 40, long_tail(32, 1024, 256), 640),
    "small": Row("small", 4, 8, 40, (32,) * 32, 296),
    "long": Row("smollm2-135m", 1, 8, 1000, (64,) * 8, 1616),
}


def export(name: str, directory: Path) -> None:
    """The model as a Hugging Face directory that all systems read."""
    if (directory / "tokenizer_config.json").exists():
        return
    meta = gguf_vocab.metadata(gguf_file.header(catalog.locate("smollm2-135m")).fields)
    if name == "small":
        config, params = SMALL, decoder.init(SMALL, jax.random.key(0))
        for field in ("tokens", "token_type"):
            meta[field] = meta[field][: config.vocab_size]
        known = set(meta["tokens"])
        meta["merges"] = [m for m in meta["merges"] if m.replace(" ", "") in known]
    else:
        config, params = load.load(name)
    huggingface.save(directory, config, params, extra={"eos_token_id": 2, "pad_token_id": 0})
    gguf_vocab.byte_level(meta).save(str(directory / "tokenizer.json"))
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(kind | special))


def prompts(row: Row, directory: Path, count: int) -> tuple[list[str], int]:
    """`count` different texts of the row's length, and the longest's tokens."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    rng, texts, longest = np.random.default_rng(1), [], 0
    for _ in range(count):
        wanted = int(row.prompt_tokens * rng.uniform(0.9, 1.1))
        text = ""
        while len(ids := tokenizer.encode(text).ids) < wanted:
            text = f"{text} {rng.choice(TEXT.split())}".strip()
        texts.append(text)
        longest = max(longest, len(ids))
    return texts, longest


def python_of(system: str, given: Mapping[str, str], work: Path) -> str:
    """The interpreter to run a system with."""
    if system in given:
        return given[system]
    name = system.split("-")[0]
    if name not in PACKAGES:
        return sys.executable
    home = work / f"venv-{name}"
    if not (home / "installed").exists():
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin/python", "-m", "pip", "install", *PACKAGES[name]], check=True)
        (home / "installed").touch()
    return str(home / "bin/python")


SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "jaxrl": ("ours", {"remat": "dots"}),
    "trl": ("trl_grpo", {}),
    "trl-no-checkpointing": ("trl_grpo", {"gradient_checkpointing": False}),
    "tunix": ("tunix_grpo", {}),
    "tunix-micro": ("tunix_grpo", {"train_micro_batch_size": 1}),
}
"""A script of `peers`, and options that it is given."""


def measure(arguments: argparse.Namespace) -> None:
    """Run systems on rows, one after another."""
    work, here = arguments.work, Path(__file__).resolve()
    given = dict(pair.split("=", 1) for pair in arguments.python)
    print(HEADER, flush=True)
    for name in arguments.rows:
        row = ROWS[name]
        model = work / row.model
        export(row.model, model)
        texts, longest = prompts(row, model, row.prompts * (arguments.steps + 2))
        for system in arguments.systems:
            script, options = SYSTEMS[system]
            stem = f"{name}-{system}"
            scratch = work / f"run-{stem}-{time.time_ns()}"
            job = {
                "row": name,
                "system": system,
                "model": str(model),
                "prompts": texts,
                "max_prompt": -(-longest // 8) * 8,
                "group_size": row.group_size,
                "lengths": row.lengths,
                "row_length": row.row_length,
                "steps": arguments.steps + 1,
                "threads": len(os.sched_getaffinity(0)),
                "options": options,
                "run_dir": str(scratch / "run"),
                "out": str(work / f"{stem}.json"),
                "started": time.time(),
            }
            scratch.mkdir()
            (scratch / "job.json").write_text(json.dumps(job))
            python = python_of(system.split("-")[0], given, work)
            entry = [str(here.parent / f"peers/{script}.py")]
            if script == "ours":
                entry = ["-m", "tests.benchmarks.peers.ours"]
            threads = str(job["threads"])
            environment = os.environ | {
                "OMP_NUM_THREADS": threads,
                "JAX_COMPILATION_CACHE_DIR": arguments.cache or str(scratch / "cache"),
                "JAX_PLATFORMS": "cpu",
            }
            print(f"{stem}: {arguments.steps} steps and a warm-up", flush=True)
            Path(job["out"]).unlink(missing_ok=True)
            with (work / f"{stem}.log").open("w") as log, suppress(subprocess.TimeoutExpired):
                command = [python, *entry, str(scratch / "job.json")]
                subprocess.run(
                    command,
                    cwd=here.parents[2],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=arguments.limit,
                )
            subprocess.run(["rm", "-rf", str(scratch)], check=True)
            if Path(job["out"]).exists():
                print(line(summary(json.loads(Path(job["out"]).read_text()))), flush=True)
            else:
                tail = (work / f"{stem}.log").read_text()[-1500:]
                print(f"{stem} failed:\n{tail}", flush=True)


def useful_flops(row: Row, config: DecoderConfig) -> dict[str, float]:
    """Operations that a step needs if nothing is computed twice, padded or masked.

    A weight costs 2 operations a token forward and 4 backward; each prompt is read once for its
    group; a completion's last token is no input; attention counts pairs that see each other.
    """
    d, layers = config.hidden_size, config.num_layers
    heads = config.num_heads + config.num_kv_heads
    weights = layers * (2 * heads * config.head_dim * d + 3 * d * config.intermediate_size)
    inner = 4 * config.num_heads * config.head_dim * layers  # scores and values of one pair
    p = row.prompt_tokens
    tokens = row.prompts * p + sum(n - 1 for n in row.lengths)
    pairs = row.prompts * p * (p + 1) / 2
    pairs += sum((n - 1) * p + n * (n - 1) / 2 for n in row.lengths)
    head = 2 * d * config.vocab_size * sum(row.lengths)
    forward = 2 * weights * tokens + inner * pairs + head
    return {"train": 3 * forward, "sample": forward}


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Medians over the steps after the first, and bounds."""
    row = ROWS[result["row"]]
    config = SMALL if row.model == "small" else load.read_config(row.model)
    flops = useful_flops(row, config)
    steps = result["steps"][1:] or result["steps"]
    median = {k: statistics.median(s.get(k, 0.0) for s in steps) for k in steps[0]}
    tokens, rate = sum(row.lengths), result["matmul"]
    return {
        "row": result["row"],
        "system": result["system"],
        "step": median["step"],
        "sample": median["sample"],
        "train": median["train"],
        "sync": median.get("sync", 0.0),
        "tokens": tokens / median["step"],
        "peak": result["peak_gb"],
        "steady": result.get("steady_gb"),
        "first": result["first_step"],
        "gflops": rate / 1e9,
        "bound": sum(flops.values()) / rate,
        "share": flops["train"] / rate / median["train"],
        "count": len(steps),
    }


HEADER = (
    "| Row | System | Step, s | Sample | Train | Sync | Tokens/s | Useful train FLOPs | Bound, s "
    "| Peak, GB | Peak of later steps | First step, s | Matmul, GFLOP/s | Steps |\n"
    + "|---" * 14
    + "|"
)


def line(s: dict[str, Any]) -> str:
    """A row of the table."""
    return (
        f"| {s['row']} | {s['system']} | {s['step']:.3g} | {s['sample']:.3g} | {s['train']:.3g} "
        f"| {s['sync']:.2g} | {s['tokens']:.0f} | {s['share']:.0%} | {s['bound']:.3g} "
        f"| {s['peak']:.2f} | {s['steady'] or math.nan:.2f} | {s['first']:.0f} "
        f"| {s['gflops']:.0f} | {s['count']} |"
    )


def table(arguments: argparse.Namespace) -> None:
    """Print all results, and how many times as long each peer takes."""
    found = [json.loads(p.read_text()) for p in sorted(arguments.work.glob("*-*.json"))]
    made = [summary(r) for r in found]
    order = list(ROWS)
    made.sort(key=lambda s: (order.index(s["row"]), s["system"]))
    print(HEADER)
    for s in made:
        print(line(s))
    ours = {s["row"]: s for s in made if s["system"] == "jaxrl"}
    for s in made:
        if s["row"] in ours and s["system"] != "jaxrl":
            ratio = s["step"] / ours[s["row"]]["step"]
            memory = ours[s["row"]]["peak"] / s["peak"]
            print(f"{s['row']}: {s['system']} takes {ratio:.2f} x; our peak is {memory:.2f} of its")


def main() -> None:
    """Measure or print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("do", choices=["measure", "table"])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--systems", nargs="+", default=["jaxrl", "trl", "tunix"])
    parser.add_argument("--steps", type=int, default=5, help="after the first, which compiles")
    parser.add_argument("--python", nargs="*", default=[], help="SYSTEM=PATH of an interpreter")
    parser.add_argument("--work", type=Path, default=Path("runs/step-benchmark"))
    parser.add_argument("--cache", default="", help="a compilation cache to use; empty: a cold one")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds a run may take")
    arguments = parser.parse_args()
    arguments.work = arguments.work.resolve()
    arguments.work.mkdir(parents=True, exist_ok=True)
    {"measure": measure, "table": table}[arguments.do](arguments)


if __name__ == "__main__":
    main()
