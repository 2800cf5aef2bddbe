"""The sampler alone: its options one by one, each against the same base."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.launch.planning import roofline
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import policy
from jaxrl.sampling import sampler
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.types import Params, Request
from tests.accelerator import grpo, models
from tests.accelerator.settings import Report, Settings, remaining


class Load(NamedTuple):
    """What is sampled."""

    count: int = 128
    prompt: int = 128
    new: int = 128
    tail: bool = False
    """Lengths are lognormal, with the longest eight times `new`; the sum is about the same."""


BASE = SamplerConfig(slots=128, prefill_rows=32, chunk=128, bucket=256)
OPTIONS: dict[str, dict[str, Any]] = {
    "base": {},
    "weights=int8": {"int8": True},
    "slots=32": {"sampler": {"slots": 32}},
    "bucket=64": {"sampler": {"bucket": 64}},
    "chunk=16": {"sampler": {"chunk": 16}},
    "top_p=0.9": {"request": {"top_p": 0.9}},
    "temperature=0": {"request": {"temperature": 0.0}},
    "top_logprobs=5": {"request": {"top_logprobs": 5}},
    "tail": {"load": {"tail": True}, "sampler": {"bucket": 128, "chunk": 32, "slots": 64}},
    "dtype=float32": {"dtype": "float32"},
    "count=512 slots=512": {"sampler": {"slots": 512}, "load": {"count": 512}},
    "repetition_penalty=1.1": {"request": {"repetition_penalty": 1.1}},
}
"""Changes to the base, by name."""


def measure(settings: Settings, report: Report) -> None:
    """Tokens a second of each option, twice after a warm-up; and the copy of the weights."""
    folder = models.make(settings.work, "qwen3-0.6b", rehearse=settings.rehearse)
    model, stored = huggingface.load(folder, dtype="float32")
    rate = grpo.rates(settings)
    with report.attempt("sync"):
        report.add("sync", sync(model, stored))
    for number, (name, changes) in enumerate(OPTIONS.items()):
        if remaining() < 14 or (settings.rehearse and number >= 4):
            report.skip(name, "the limit of this part is near" if remaining() < 14 else "rehearsal")
            continue
        with report.attempt(name):
            report.add(name, option(model, stored, settings, rate, changes))


def sync(model: DecoderConfig, stored: Params) -> dict[str, float]:
    """Seconds that making the sampler's weights of the trained ones takes."""
    from tests.accelerator.device import seconds

    spent = {
        name: seconds(
            functools.partial(policy.sampling_params, dtype="bfloat16", rounded=rounded),
            stored,
            repeats=3,
        )
        for name, rounded in (("bfloat16", None), ("int8", model))
    }
    return spent | {"bytes_read": sum(leaf.nbytes for leaf in jax.tree.leaves(stored))}


def requests(load: Load, **fields: Any) -> list[Request]:
    """Prompts of random bytes, none of which is shared."""
    rng, lengths = np.random.default_rng(0), [load.new] * load.count
    if load.tail:
        raw = np.exp(1.2 * rng.normal(size=load.count))
        scaled = np.clip(raw * load.new / raw.mean(), 2, 8 * load.new)
        lengths = [int(n) for n in scaled]
    return [
        Request(i, prompt=tuple(rng.integers(0, 256, load.prompt).tolist()), max_new_tokens=n)
        if not fields
        else Request(
            i,
            prompt=tuple(rng.integers(0, 256, load.prompt).tolist()),
            max_new_tokens=n,
            **fields,
        )
        for i, n in enumerate(lengths)
    ]


def option(
    model: DecoderConfig,
    stored: Params,
    settings: Settings,
    rate: dict[str, float],
    changes: dict[str, Any],
) -> dict[str, float]:
    """One option: first call, later calls, and the bound of reading weights and caches."""
    dtype = changes.get("dtype", "bfloat16")
    load = Load(**changes.get("load", {}))
    layout = dataclasses.replace(BASE, **changes.get("sampler", {}))
    if settings.rehearse:
        load, layout = Load(8, 16, 16, load.tail), dataclasses.replace(layout, slots=8, bucket=32)
    rounded = model if changes.get("int8") else None
    params = policy.sampling_params(stored, dtype, rounded)
    shaped = dataclasses.replace(model, dtype=dtype)
    asked = requests(load, **changes.get("request", {}))
    times, tokens = [], 0
    for key in range(3):
        start = time.perf_counter()
        out = list(
            sampler.generate(
                shaped, params, asked, stop_ids=(), key=jax.random.key(key), sampler=layout
            )
        )
        times.append(time.perf_counter() - start)
        tokens = sum(len(c.tokens) for c in out)
    spent = statistics.median(times[1:])
    steps = max(-(-load.count // layout.slots) * load.new, max(len(c.tokens) for c in out))
    live = tokens / steps
    one = {"float32": 4, "bfloat16": 2}[dtype]
    weights = roofline.active(model) * (1 if rounded else one)
    cache = 2 * one * model.num_layers * model.num_kv_heads * model.head_dim
    bound = (weights + live * cache * (load.prompt + load.new / 2)) / rate["bandwidth"]
    return {
        "tokens": tokens,
        "first_seconds": times[0],
        "seconds": spent,
        "tokens_a_second": tokens / spent,
        "least_steps": steps,
        "tokens_a_second_bound": live / bound,
        "of_bound": bound * steps / spent,
    }
