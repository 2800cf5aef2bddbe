"""Tokens a second of several adapters in one batch, and of one after another, in one process.

    python -m tests.benchmarks.adapters --model small
    python -m tests.benchmarks.adapters --model smollm2-135m --rank 16

`--adapters` adapters have `--requests` requests each, all of the same length. Together they decode
beside the base, each row with its own adapter. Apart, each adapter is added into the weights and
its requests are sampled alone; the time of adding it in is told beside. Both are in fp32 with as
many slots as they have requests, warm up, and take turns `--repeats` times; medians are told.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from typing import Any

import jax

from jaxrl.models import decoder, load, lora, lora_stack
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import LoraConfig
from jaxrl.rollout import policy
from jaxrl.sampling import sampler
from jaxrl.types import Params, Request
from tests.benchmarks.sampler import SMALL


def sample(config: DecoderConfig, params: Params, requests: list[Request], length: int) -> None:
    """Sample all requests, in as many slots."""
    done = sampler.generate(
        config, params, requests, stop_ids=[], key=jax.random.key(0), max_prompt=16,
        max_length=16 + length, sampler=sampler.SamplerConfig(slots=len(requests)),
    )  # fmt: skip
    assert sum(len(c.tokens) for c in done) == length * len(requests)


def measure(
    config: DecoderConfig, base: Params, *, adapters: int, requests: int, rank: int, length: int,
    repeats: int,
) -> dict[str, Any]:  # fmt: skip
    """Seconds of each repeat: together, apart, and of adding the adapters into the weights."""
    how = LoraConfig(rank=rank)
    fresh = [lora.init(jax.random.key(i), config, base, how) for i in range(adapters)]
    small = [jax.tree.map(lambda x: x + 0.01, tree) for tree in fresh]
    stack = lora_stack.attach(
        config, policy.sampling_params(base, "float32"), list(lora.targets(config, how)),
        count=adapters, rank=rank,
    )  # fmt: skip
    for place, tree in enumerate(small, 1):
        stack = lora_stack.put(config, stack, place, tree, how)
    every = [
        Request(i, (1 + i % 7, 2, 3, 4), length, adapter=1 + i % adapters)
        for i in range(adapters * requests)
    ]
    alone = [Request(i, (1 + i % 7, 2, 3, 4), length) for i in range(requests)]
    seconds: dict[str, list[float]] = {"together": [], "apart": [], "adding": []}
    for repeat in range(repeats + 1):  # the first warms up
        start = time.perf_counter()
        sample(config, stack, every, length)
        together, apart, adding = time.perf_counter() - start, 0.0, 0.0
        for tree in small:
            start = time.perf_counter()
            params = policy.sampling_params(lora.attach(config, base, tree, how), "float32")
            jax.block_until_ready(params)
            begun = time.perf_counter()
            sample(config, params, alone, length)
            adding, apart = adding + begun - start, apart + time.perf_counter() - begun
        if repeat:
            for name, value in {"together": together, "apart": apart, "adding": adding}.items():
                seconds[name].append(round(value, 3))
    return seconds


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="small", help="small, or whatever jaxrl can load")
    for name, default in (("adapters", 8), ("requests", 4), ("rank", 16), ("length", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--repeats", type=int, default=3)
    args = vars(parser.parse_args())
    name = args.pop("model")
    if name == "small":
        config, base = SMALL, decoder.init(SMALL, jax.random.key(0))
    else:
        config, base = load.load(name)
    load_before = os.getloadavg()[0]
    seconds = measure(config, base, **args)
    tokens = args["adapters"] * args["requests"] * args["length"]
    medians = {part: statistics.median(times) for part, times in seconds.items()}
    result = {
        "model": name, **args, "tokens": tokens, "seconds": seconds,
        "tokens a second together": round(tokens / medians["together"], 1),
        "tokens a second apart": round(tokens / medians["apart"], 1),
        "tokens a second apart, adding counted": round(
            tokens / (medians["apart"] + medians["adding"]), 1
        ),
        "device": jax.devices()[0].device_kind, "cores": os.cpu_count(),
        "load": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "machine": platform.processor(), "jax": jax.__version__,
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
