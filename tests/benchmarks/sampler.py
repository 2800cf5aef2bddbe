"""Useful tokens a second: our sampler, a static batch of our own, and transformers' generate.

    python -m tests.benchmarks.sampler --model small --requests 96
    python -m tests.benchmarks.sampler --model smollm2-135m --requests 32 --median 16

Two workloads of the same prompts: `tail`, whose response lengths are lognormal and at most 16 times
the median, and `equal`. Rates are given by the clock and by the processor time used, which a busy
machine distorts less. Lengths are a schedule given to every system, so all emit the same number
of tokens. One line of JSON a measurement, the best of `--repeats` after a warm-up, with the tokens
a second that this machine's measured arithmetic and memory would allow at most (`bound`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import logits, sampler, slots
from jaxrl.requests import settings_of
from jaxrl.types import Request
from models import decoder, load
from models.config import DecoderConfig

SMALL = DecoderConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=688,
    num_layers=5,
    num_heads=4,
    num_kv_heads=4,
    head_dim=64,
)


def workload(kind: str, count: int, median: int, vocab_size: int) -> list[Request]:
    """Requests with prompts of 8 to 32 tokens and scheduled response lengths."""
    rng = np.random.default_rng(0)
    lengths = np.full(count, median)
    if kind == "tail":
        lengths = np.exp(rng.normal(np.log(median), 1.2, count)).astype(int)
        lengths = np.clip(lengths, 1, 16 * median)
        lengths[0] = 16 * median
    return [
        Request(i, tuple(rng.integers(1, vocab_size, rng.integers(8, 33)).tolist()), int(n))
        for i, n in enumerate(lengths)
    ]


def ours(config: DecoderConfig, params: decoder.Params, requests: list[Request], batch: int) -> int:
    """Continuous batching, requests in the order they came."""
    done = sampler.generate(
        config,
        params,
        requests,
        stop_ids=(),
        key=jax.random.key(0),
        sampler=sampler.SamplerConfig(slots=batch),
    )
    return sum(len(c.tokens) for c in done)


def static(
    config: DecoderConfig, params: decoder.Params, requests: list[Request], batch: int
) -> int:
    """The same jitted functions, a batch at a time: each runs until its longest row has ended."""
    width = slots.round_up(max(len(r.prompt) for r in requests), 16)
    capacity = slots.round_up(max(len(r.prompt) + r.max_new_tokens for r in requests), 64)
    total = 0
    for first in range(0, len(requests), batch):
        part = requests[first : first + batch]
        tokens, length = np.zeros((batch, width), np.int32), np.zeros(batch, np.int32)
        limit = np.zeros(batch, np.int32)
        for row, r in enumerate(part):
            tokens[row, : len(r.prompt)], length[row] = r.prompt, len(r.prompt)
            limit[row] = len(r.prompt) + r.max_new_tokens
        rows = {
            "tokens": tokens,
            "length": length,
            "limit": limit,
            "request": np.arange(batch, dtype=np.uint32),
            "settings": settings_of(part, config.vocab_size, batch, 0),
        }
        prefix = slots.prefill((config,), (params,), tokens, length, piece=width)
        window = slots.round_up(int(length.max()) + 1, 64)
        state = slots.empty_slots((config,), batch, capacity, window, slots.Features())
        index = np.arange(batch, dtype=np.int32)
        target = np.where(index < len(part), index, batch).astype(np.int32)
        state = slots.insert(state, prefix, index, target, rows)
        while (live := np.array(state.live)).any():
            longest = int(np.array(state.length)[live].max())
            window = min(slots.round_up(longest + 1, 64), capacity)
            if window != state.width:
                state = slots.resize(state, index, np.int32(batch), width=window)
            state = slots.decode(
                (config,),
                (params,),
                state,
                key=jax.random.key(0),
                version=jnp.int32(0),
                stop_ids=jnp.zeros(0, jnp.int32),
                steps=jnp.int32(window - longest),
                min_live=jnp.int32(1),
                args=(),
                process=logits.keep,
                features=slots.Features(),
            )
        total += int(np.array(state.length).sum() - length.sum())
    return total


def transformers_generate(
    config: DecoderConfig, requests: list[Request], batch: int
) -> Callable[[], int]:
    """`generate` on a Llama of the same shape with random weights, rows padded on the left."""
    import torch
    import transformers

    shape = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        tie_word_embeddings=config.tie_embeddings,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(shape).eval()

    class Schedule(transformers.StoppingCriteria):
        def __init__(self, ends: torch.Tensor) -> None:
            self.ends = ends

        def __call__(self, ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
            return ids.shape[1] >= self.ends

    def run() -> int:
        total = 0
        for first in range(0, len(requests), batch):
            part = requests[first : first + batch]
            width = max(len(r.prompt) for r in part)
            ids = torch.zeros(len(part), width, dtype=torch.long)
            for row, r in enumerate(part):
                ids[row, width - len(r.prompt) :] = torch.tensor(r.prompt)
            ends = width + torch.tensor([r.max_new_tokens for r in part])
            with torch.no_grad():
                model.generate(
                    ids,
                    attention_mask=(ids != 0).long(),
                    do_sample=True,
                    top_k=0,
                    max_new_tokens=int(ends.max()) - width,
                    stopping_criteria=transformers.StoppingCriteriaList([Schedule(ends)]),
                )
            total += sum(r.max_new_tokens for r in part)
        return total

    return run


def bound(params: decoder.Params, batch: int) -> dict[str, float]:
    """What a step of `batch` tokens costs at least: its arithmetic, or reading the weights once."""
    size = sum(a.size for a in jax.tree.leaves(params))
    square = jnp.ones((1024, 1024))
    flops = 2 * 1024**3 / _seconds(lambda: (MATMUL(square)).block_until_ready())
    large = jnp.ones(1 << 25)
    bandwidth = large.nbytes / _seconds(lambda: (SUM(large)).block_until_ready())
    step = max(2 * size * batch / flops, 4 * size / bandwidth)
    return {
        "parameters": size,
        "gflops": round(flops / 1e9, 1),
        "gbytes_per_second": round(bandwidth / 1e9, 1),
        "bound_tokens_per_second": round(batch / step, 1),
    }


MATMUL, SUM = jax.jit(lambda a: a @ a), jax.jit(jnp.sum)


def _seconds(run: Callable[[], object], repeats: int = 5) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="small", choices=["small", "smollm2-135m"])
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--median", type=int, default=24, help="response length")
    parser.add_argument("--batch", type=int, default=32, help="slots, and rows of a static batch")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--systems", nargs="+", default=["ours", "static", "transformers"])
    parser.add_argument("--workloads", nargs="+", default=["tail", "equal"])
    arguments = parser.parse_args()
    if arguments.model == "small":
        config, params = SMALL, decoder.init(SMALL, jax.random.key(0))
    else:
        config, params = load.load(arguments.model)
    config = dataclasses.replace(config, max_positions=max(2048, 20 * arguments.median))
    params = jax.jit(lambda p: decoder.outputs_first(decoder.unstack(p)))(params)
    machine = {"model": arguments.model, "cores": len(os.sched_getaffinity(0))}
    print(json.dumps({**machine, **bound(params, arguments.batch)}), flush=True)
    for kind in arguments.workloads:
        requests = workload(kind, arguments.requests, arguments.median, config.vocab_size)
        expected = sum(r.max_new_tokens for r in requests)
        for system in arguments.systems:
            if system == "transformers":
                run = transformers_generate(config, requests, arguments.batch)
            else:
                function = {"ours": ours, "static": static}[system]

                def run(function: Callable[..., int] = function, requests=requests) -> int:
                    return function(config, params, requests, arguments.batch)

            wall, cpu = [], []
            for _ in range(arguments.repeats + 1):  # the first is the warm-up
                start, busy = time.perf_counter(), time.process_time()
                assert run() == expected, system
                wall.append(time.perf_counter() - start)
                cpu.append(time.process_time() - busy)
            row = {"benchmark": f"sampler/{kind}", "system": system, "tokens": expected}
            rate = {
                "tokens_per_second": round(expected / min(wall[1:]), 1),
                "tokens_per_cpu_second": round(expected / min(cpu[1:]), 1),
            }
            print(json.dumps({**row, "load": os.getloadavg()[0], **rate}), flush=True)


if __name__ == "__main__":
    main()
