"""Useful tokens a second: our sampler, a static batch of our own, transformers and Tunix.

    python -m tests.benchmarks.sampler --model small
    python -m tests.benchmarks.sampler --model smollm2-135m --venvs /tmp/venvs
    python -m tests.benchmarks.sampler --drafts 4 --temperature 0.2 --systems ours drafts
    python -m tests.benchmarks.sampler --workloads agents --requests 16 --systems ours prefix warm

Two workloads: `tail`, whose response lengths are lognormal and at most 16 times the median, and
`equal`, half as many requests of four times the median, which is about as many tokens. Prompts and
lengths are a schedule given to every system, so all emit the same number
of tokens; all hold `--batch` sequences at once, in fp32. Each system runs in a process of its own,
warms up, and is timed at least once and until `--repeats` or `--seconds` are reached. The table
gives medians, beside the tokens a second that this machine's arithmetic and memory, measured in
the same run, would allow a full batch at most. Tunix gets its own environment in `--venvs`,
made at the first run.

With `--drafts K` our sampler is measured as the system `drafts` too, with K tokens of drafts by
lookup. They are accepted where a text repeats itself, which that of a model with fresh weights does
at low temperatures alone.

A third workload, `agents`, has prompts of one system prompt of 800 tokens and 50 of their own, and
`--median` tokens of response. The system `prefix` is our sampler with a prefix cache that is empty
at the start of each repeat, `warm` the same with one that has seen all prompts; both print how many
tokens they did not read.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.mesh.buckets import round_up
from jaxrl.models import decoder, linear, load
from jaxrl.models.config import DecoderConfig
from jaxrl.sampling import admission, decode, logits, prefixes, sampler, slots
from jaxrl.sampling.requests import settings_of
from jaxrl.types import Request
from tests.benchmarks.timing import timed

SMALL = DecoderConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=688,
    num_layers=5,
    num_heads=4,
    num_kv_heads=4,
    head_dim=64,
)
HERE = Path(__file__).parent
PEERS = {
    "transformers": "sampler_transformers.py",
    "transformers-static-cache": "sampler_transformers.py",
    "transformers-continuous": "sampler_transformers.py",
    "tunix": "sampler_tunix.py",
}


def workload(
    kind: str, count: int, median: int, vocab_size: int, temperature: float = 1.0
) -> list[Request]:
    """Requests with prompts of 8 to 32 tokens and scheduled response lengths, or of `agents`."""
    rng = np.random.default_rng(0)
    if kind == "agents":
        system = rng.integers(1, vocab_size, 800)
        ends = rng.integers(1, vocab_size, (count, 50))
        return [
            Request(i, (*system.tolist(), *end.tolist()), median, temperature=temperature)
            for i, end in enumerate(ends)
        ]
    lengths = np.full(count // 2, 4 * median)
    if kind == "tail":
        lengths = np.exp(rng.normal(np.log(median), 1.2, count)).astype(int)
        lengths = np.clip(lengths, 1, 16 * median)
        lengths[0] = 16 * median
    return [
        Request(
            i,
            tuple(rng.integers(1, vocab_size, rng.integers(8, 33)).tolist()),
            int(n),
            temperature=temperature,
        )
        for i, n in enumerate(lengths)
    ]


def ours(
    config: DecoderConfig,
    params: decoder.Params,
    requests: list[Request],
    batch: int,
    draft_tokens: int = 0,
) -> int:
    """Continuous batching, requests in the order they came."""
    layout = sampler.SamplerConfig(slots=batch)
    if draft_tokens:
        layout = dataclasses.replace(layout, drafts="lookup", draft_tokens=draft_tokens)
    done = sampler.generate(
        config,
        params,
        requests,
        stop_ids=(),
        key=jax.random.key(0),
        sampler=layout,
    )
    return sum(len(c.tokens) for c in done)


def cached(
    config: DecoderConfig,
    params: decoder.Params,
    requests: list[Request],
    batch: int,
    known: prefixes.Prefixes | None = None,
) -> int:
    """Ours with a prefix cache, which is empty at first where none is known."""
    setup = sampler.Setup(
        config,
        jax.random.key(0),
        (),
        max(len(r.prompt) for r in requests),
        max(len(r.prompt) + r.max_new_tokens for r in requests),
        sampler.SamplerConfig(slots=batch, prefix_cache=256),
    )
    work, count = sampler.Work(prefixes=known or prefixes.Prefixes()), 0
    sampler.submit(setup, work, requests)
    while work:
        count += sum(len(c.tokens) for c in sampler.advance(setup, params, work))
    print(json.dumps({"prompt_tokens": _read(requests), "cached_tokens": work.cached}), flush=True)
    return count


def _read(requests: list[Request]) -> int:
    return sum(len(prompt) for prompt in {r.prompt for r in requests})


def static(
    config: DecoderConfig, params: decoder.Params, requests: list[Request], batch: int
) -> int:
    """The same jitted functions, a batch at a time: each runs until its longest row has ended."""
    width = round_up(max(len(r.prompt) for r in requests), 16)
    capacity = round_up(max(len(r.prompt) + r.max_new_tokens for r in requests), 64)
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
            "draw": np.zeros(batch, np.uint32),
            "adapter": np.zeros(batch, np.int32),
            "settings": settings_of(part, config.vocab_size, batch, 0),
        }
        prefix = admission.prefill((config,), (params,), tokens, length, piece=width)
        window = round_up(int(length.max()) + 1, 64)
        state = slots.empty_slots((config,), batch, capacity, window, slots.Features())
        index = np.arange(batch, dtype=np.int32)
        state = slots.insert((config,), state, prefix, index, index < len(part), rows)
        while (live := np.array(state.live)).any():
            longest = int(np.array(state.length)[live].max())
            window = min(round_up(longest + 1, 64), capacity)
            if window != state.width:
                state = slots.resize((config,), state, None, width=window)
            state = decode.decode(
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


def bound(parameters: int, batch: int) -> dict[str, float]:
    """What a step of `batch` tokens costs at least: its arithmetic, or reading the weights once."""
    square = jnp.ones((1024, 1024))
    flops = 2 * 1024**3 / _fastest(lambda: (MATMUL(square)).block_until_ready())
    large = jnp.ones(1 << 25)
    bandwidth = large.nbytes / _fastest(lambda: (SUM(large)).block_until_ready())
    step = max(2 * parameters * batch / flops, 4 * parameters / bandwidth)
    return {
        "gflops": round(flops / 1e9, 1),
        "gbytes_per_second": round(bandwidth / 1e9, 1),
        "bound_tokens_per_second": round(batch / step, 1),
    }


MATMUL, SUM = jax.jit(lambda a: a @ a), jax.jit(jnp.sum)


def _fastest(run: Callable[[], object], repeats: int = 9) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def shape_of(model: str, median: int) -> DecoderConfig:
    """The decoder that is measured, with room for the longest response."""
    config = SMALL if model == "small" else load.read_config(model)
    return dataclasses.replace(config, max_positions=max(2048, 20 * median))


def measure_ours(arguments: argparse.Namespace) -> None:
    """Time one of our systems on all workloads; a line of JSON each."""
    config = shape_of(arguments.model, arguments.median)
    if arguments.model == "small":
        params = decoder.init(config, jax.random.key(0))
    else:
        params = load.load(arguments.model)[1]
    params = jax.jit(lambda p: linear.outputs_first(decoder.unstack(p)))(params)
    drafted = functools.partial(ours, draft_tokens=arguments.drafts)
    warm = functools.partial(cached, known=prefixes.Prefixes())
    systems = {"ours": ours, "drafts": drafted, "static": static, "prefix": cached, "warm": warm}
    function = systems[arguments.one]
    for kind in arguments.workloads:
        requests = workload(
            kind, arguments.requests, arguments.median, config.vocab_size, arguments.temperature
        )

        def run(requests: list[Request] = requests) -> int:
            return function(config, params, requests, arguments.batch)

        timed(kind, run, run, arguments.repeats, arguments.seconds)


def main() -> None:
    """Measure what the command line asks for, each system in its own process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="small", choices=["small", "smollm2-135m"])
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--median", type=int, default=16, help="response length")
    parser.add_argument("--batch", type=int, default=16, help="sequences at once")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="of repeats, a measurement")
    parser.add_argument("--temperature", type=float, default=1.0, help="of our systems")
    parser.add_argument("--drafts", type=int, default=0, help="tokens of a draft")
    parser.add_argument("--systems", nargs="+", default=["ours", "static", *PEERS])
    parser.add_argument("--workloads", nargs="+", default=["tail", "equal"])
    parser.add_argument("--venvs", type=Path, default=Path("/tmp/jaxrl-venvs"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure_ours(arguments)
        return
    if arguments.drafts and "drafts" not in arguments.systems:
        arguments.systems.append("drafts")
    if "drafts" in arguments.systems and not arguments.drafts:
        parser.error("the system drafts needs --drafts, the tokens of a draft")
    config = shape_of(arguments.model, arguments.median)
    tree = jax.eval_shape(lambda: decoder.init(config, jax.random.key(0)))
    parameters = sum(a.size for a in jax.tree.leaves(tree))
    limits = {"parameters": parameters, **bound(parameters, arguments.batch)}
    print(json.dumps({"model": arguments.model, "cores": os.cpu_count(), **limits}), flush=True)
    work = {
        kind: [
            (r.prompt, r.max_new_tokens)
            for r in workload(kind, arguments.requests, arguments.median, config.vocab_size)
        ]
        for kind in arguments.workloads
    }
    rates: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "work.json"
        asked.write_text(json.dumps({"model": dataclasses.asdict(config), "work": work}))
        for system in arguments.systems:
            rates[system] = _measured(system, asked, arguments)
    _table(rates, limits["bound_tokens_per_second"], arguments.workloads)


def _measured(system: str, asked: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Median tokens a second of one system by workload."""
    limits = ["--repeats", str(arguments.repeats), "--seconds", str(arguments.seconds)]
    if system in PEERS:
        python = _tunix_python(arguments.venvs) if system == "tunix" else sys.executable
        command = [python, str(HERE / PEERS[system]), system, str(asked), str(arguments.batch)]
    else:
        command = [sys.executable, "-m", "tests.benchmarks.sampler", "--one", system]
        command += ["--workloads", *arguments.workloads]
        for name in ("model", "requests", "median", "batch", "temperature", "drafts"):
            command += [f"--{name}", str(getattr(arguments, name))]
    done = subprocess.run([*command, *limits], stdout=subprocess.PIPE, text=True, check=False)
    rates = {}
    lines = done.stdout.splitlines()
    for line in [line for line in lines if line.startswith('{"prompt_tokens"')][-1:]:
        print(json.dumps({"system": system, **json.loads(line)}), flush=True)
    for line in lines:
        if line.startswith('{"workload"'):
            row = json.loads(line)
            print(json.dumps({"system": system, **row}), flush=True)
            rates[row["workload"]] = row["tokens"] / statistics.median(row["seconds"])
    if done.returncode:
        print(f"{system}: failed with {done.returncode}", flush=True)
    return rates


def _tunix_python(venvs: Path) -> str:
    """The interpreter of an environment that has Tunix."""
    home = venvs / "tunix"
    if not (home / "bin" / "tunix-is-here").exists():
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin" / "pip", "install", "-q", "google-tunix==0.1.7"], check=True)
        (home / "bin" / "tunix-is-here").touch()
    return str(home / "bin" / "python")


def _table(rates: dict[str, dict[str, float]], limit: float, kinds: list[str]) -> None:
    print("| System | " + " | ".join(f"{k}, tokens/s | ours over it" for k in kinds) + " |")
    print("| --- |" + " --- | --- |" * len(kinds))
    for system, row in {**rates, "bound": dict.fromkeys(kinds, limit)}.items():
        cells = [system]
        for kind in kinds:
            own = rates.get("ours", {}).get(kind)
            cells.append(f"{row[kind]:.0f}" if kind in row else "failed")
            cells.append(f"{own / row[kind]:.2f}" if own and kind in row else "")
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
