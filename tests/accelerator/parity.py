"""Sampler and trainer against each other, packed rows against single ones, the device against CPU.

The shape is that of Qwen3-0.6B with four layers and random weights.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import policy
from jaxrl.sampling import sampler
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.training import logprobs, packing
from jaxrl.training.packing import PackingConfig
from jaxrl.types import Completion, Params, Request, Trajectory
from tests.accelerator import models
from tests.accelerator.settings import Report, Settings, remaining

SLOTS = 7
"""Fewer than there are requests, so that slots are refilled; so few that their number stays."""
GREEDY = SamplerConfig(slots=SLOTS, prefill_rows=2, chunk=16, bucket=128)


def folder_of(settings: Settings) -> Path:
    """The model."""
    return models.make(settings.work, "qwen3-0.6b", rehearse=settings.rehearse, layers=4)


def measure(settings: Settings, report: Report) -> None:
    """All comparisons; the CPU computes its part beside."""
    folder = folder_of(settings)
    other = settings.work / "greedy.npz"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.accelerator.parity", str(folder), str(other)]
    on_cpu = subprocess.Popen(command, env=environment)
    model, params = huggingface.load(folder, dtype="float32")
    with jax.set_mesh(mesh.make(MeshConfig())):
        others = settings.sized([("bfloat16", "xla")], [])
        for dtype, attention in [("float32", "auto"), ("bfloat16", "auto"), *others]:
            name = f"sampler and trainer, {dtype}, attention={attention}"
            with report.attempt(name):
                shaped = dataclasses.replace(model, dtype=dtype, attention=attention)
                report.add(name, gaps(shaped, params, settings))
        for dtype in settings.sized(("float32", "bfloat16"), ("float32",)):
            with report.attempt(f"trie, {dtype}"):
                shaped = dataclasses.replace(model, dtype=dtype)
                report.add(f"trie, {dtype}", tried(shaped, params, settings))
    with report.attempt("greedy tokens as on CPU"):
        on_cpu.wait(max(5.0, remaining() - 12))
        with np.load(other) as expected:
            report.add("greedy tokens as on CPU", compared(greedy(folder), dict(expected)))


def gaps(model: DecoderConfig, params: Params, settings: Settings) -> dict[str, Any]:
    """Log-probabilities that were recorded while sampling, and those of the trainer.

    There are more requests than slots, of unequal lengths, in groups that share prompts.
    """
    groups, size, longest = settings.sized((6, 8, 192), (3, 4, 24))
    rng, requests = np.random.default_rng(0), []
    for group in range(groups):
        prompt = tuple(rng.integers(0, 256, rng.integers(longest // 4, longest)).tolist())
        requests += [
            Request(
                group * size + i,
                prompt=prompt,
                max_new_tokens=int(rng.integers(longest // 4, longest)),
            )
            for i in range(size)
        ]
    layout = SamplerConfig(slots=SLOTS, prefill_rows=2, chunk=32, bucket=2 * longest)
    sampling = policy.sampling_params(params, model.dtype)
    out = list(
        sampler.generate(
            model, sampling, requests, stop_ids=(), key=jax.random.key(1), sampler=layout
        )
    )
    out.sort(key=lambda c: c.request.id)
    length = 2 * longest
    batch = packing.trajectory(
        out, [1.0] * len(out), [c.request.id // size for c in out], length=length
    )
    acts = np.asarray(batch.action_mask)
    found: dict[str, Any] = {"tokens": int(acts.sum())}
    rows = length * (size // 2)
    single = settings.sized([("one row each", length)], [])
    for name, row in [("packed", rows), *single]:
        logp = scored(model, params, batch, PackingConfig(4 * rows, 64, row))
        gap = np.abs(logp - np.asarray(batch.behavior_logp))[acts]
        found |= {f"{name}, mean": gap.mean(), f"{name}, max": gap.max()}
        ratio = np.exp(logp - np.asarray(batch.behavior_logp))[acts]
        found[f"{name}, mean ratio"] = ratio.mean()
    return found


def scored(
    model: DecoderConfig, params: Params, batch: Trajectory, config: PackingConfig
) -> np.ndarray:
    """The trainer's log-probabilities [N, T] of a batch as it is packed."""
    packed, _ = packing.pack(batch, config)
    return np.asarray(logprobs.make_score(model, temperature=1.0)(params, packed))


def tried(model: DecoderConfig, params: Params, settings: Settings) -> dict[str, float]:
    """A sequence whose context was replaced, as a trie and as two sequences of their own."""
    unit = settings.sized(128, 16)
    rng = np.random.default_rng(5)
    prompt = rng.integers(0, 256, unit).astype(np.int32)
    first, second = (rng.integers(0, 256, 2 * unit).astype(np.int32) for _ in range(2))
    zeros = np.zeros(4 * unit, np.float32)

    def completion(tokens: np.ndarray, number: int) -> Completion:
        size = len(tokens)
        start = Request(number, prompt=tuple(prompt.tolist()), max_new_tokens=size)
        versions = np.zeros(size, np.int32)
        return Completion(start, tokens, zeros[:size], zeros[:size], versions, False)

    whole = packing.trajectory(
        [completion(np.concatenate([first, second]), 0)], [1.0], [0], length=5 * unit
    )
    parent = np.arange(5 * unit, dtype=np.int32)[None] - 1
    parent[0, 3 * unit] = unit // 2  # the second context begins within the prompt
    whole = whole.replace(extra={"parent": parent})
    config = PackingConfig(5 * unit, 64, 5 * unit)
    together = scored(model, params, whole, config)[0]
    shorter = prompt[: unit // 2 + 1]
    alone = []
    for start, tokens in ((prompt, first), (shorter, second)):
        request = Request(0, prompt=tuple(start.tolist()), max_new_tokens=len(tokens))
        single = dataclasses.replace(completion(tokens, 0), request=request)
        one = packing.trajectory([single], [1.0], [0], length=3 * unit)
        row = scored(model, params, one, PackingConfig(5 * unit, 64, 3 * unit))[0]
        alone.append(row[len(start) : len(start) + len(tokens)])
    gap = np.abs(together[unit:] - np.concatenate(alone))
    return {"tokens": len(gap), "mean": float(gap.mean()), "max": float(gap.max())}


def greedy(folder: Path) -> dict[str, np.ndarray]:
    """Greedy answers in fp32 and their log-probabilities, from half as many slots as requests."""
    model, params = huggingface.load(folder, dtype="float32")
    rng = np.random.default_rng(2)
    requests = [
        Request(
            i,
            prompt=tuple(rng.integers(0, 256, 24 + i).tolist()),
            max_new_tokens=32,
            temperature=0.0,
        )
        for i in range(16)
    ]
    out = sampler.generate(
        model, policy.sampling_params(params, "float32"), requests, stop_ids=(),
        key=jax.random.key(0), sampler=GREEDY,
    )  # fmt: skip
    ordered = sorted(out, key=lambda c: c.request.id)
    return {
        "tokens": np.stack([c.tokens for c in ordered]),
        "logp": np.stack([c.logp for c in ordered]),
    }


def compared(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, Any]:
    """Equal sequences and tokens, and the gap of log-probabilities while tokens are equal."""
    same = found["tokens"] == expected["tokens"]
    until = np.logical_and.accumulate(same, axis=1)
    gap = np.abs(found["logp"] - expected["logp"])[until]
    return {
        "sequences": len(same),
        "equal_sequences": int(same.all(axis=1).sum()),
        "equal_tokens": float(until.mean()),
        "logp_gap_max": float(gap.max()) if gap.size else None,
    }


if __name__ == "__main__":
    np.savez(sys.argv[2], **greedy(Path(sys.argv[1])))
