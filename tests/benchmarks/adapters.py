"""Tokens a second of several adapters in one batch, and of one after another, in one process.

    python -m tests.benchmarks.adapters --model small
    python -m tests.benchmarks.adapters --model smollm2-135m --rank 16
    python -m tests.benchmarks.adapters --served --model smollm2-135m --rows 2 --train-length 128

`--adapters` adapters have `--requests` requests each, all of the same length. Together they decode
beside the base, each row with its own adapter. Apart, each adapter is added into the weights and
its requests are sampled alone; the time of adding it in is told beside. Both are in fp32 with as
many slots as they have requests, warm up, and take turns `--repeats` times; medians are told.

With `--served` the same is asked of `jaxrl serve --tinker`, by a client for each adapter, all at
once: of a server with `--models-at-once` as many as there are adapters, and of one with 1, which
does the work of one adapter after another, as servers of one adapter each would in turn. Each
client has its requests sampled, and then a gradient of `--rows` sequences of `--train-length`
tokens and a step of AdamW. The ratios are of medians, apart by together: above 1, together is
faster. Losses of both must agree. Each client has a seed of its own, as equal ones take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxrl.data.text import tokenizers
from jaxrl.launch.server import tinker as command
from jaxrl.launch.server.http import Server
from jaxrl.launch.server.tinker import wire
from jaxrl.launch.server.tinker.service import TinkerConfig
from jaxrl.models import decoder, load, lora, lora_stack
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import LoraConfig
from jaxrl.rollout import policy
from jaxrl.sampling import sampler
from jaxrl.types import Params, Request
from tests.benchmarks.sampler import SMALL
from tests.benchmarks.served_updates import LETTERS
from tests.launch import test_tinker as tinker


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


def client(
    server: Server, number: int, *, rank: int, requests: int, length: int, rows: int,
    train_length: int,
) -> dict[str, Callable[[], float]]:  # fmt: skip
    """What has an adapter of its own sampled from, and updated; both return a figure to compare."""
    body = {"session_id": tinker.session(server), "model_seq_id": 0, "base_model": "model"}
    body |= {"lora_config": {"rank": rank, "seed": number, "train_unembed": False}}
    model = json.loads(tinker.result(server, "create_model", body))["model_id"]
    stream = np.random.default_rng(number)
    gradient = tinker.FORM(model_id=model, loss_fn="cross_entropy")
    for _ in range(rows):
        tokens = stream.integers(0, len(LETTERS), train_length + 1).tolist()
        raw = tinker.batch(model, 1, tokens, weights=[1.0] * train_length)
        gradient.data.append(tinker.FORM.FromString(raw).data[0])
    prompt = stream.integers(0, len(LETTERS), 8).tolist()
    seq = samples = 0

    def update() -> float:
        nonlocal seq
        seq += 2
        gradient.seq_id = seq - 1
        raw = tinker.result(server, "forward_backward", raw=gradient.SerializeToString())
        adam = {"learning_rate": 1e-3, "beta2": 0.999, "eps": 1e-8}
        step = {"model_id": model, "seq_id": seq, "adam_params": adam}
        tinker.result(server, "optim_step", step)
        metrics = wire._CLASSES["ForwardBackwardOutput"].FromString(raw).metrics
        return next(metric.value for metric in metrics if metric.key == "loss:sum")

    def saved() -> str:
        nonlocal seq, samples
        seq, samples = seq + 1, samples + 1
        names = {"model_id": model, "seq_id": seq, "sampling_session_seq_id": samples}
        answer = json.loads(tinker.result(server, "save_weights_for_sampler", names))
        return answer["sampling_session_id"]

    first = saved()
    asked = 0

    def sample() -> float:
        nonlocal asked
        asked += 1
        body = {"sampling_session_id": first, "seq_id": asked, "num_samples": requests}
        body |= {"prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]}}
        body |= {"sampling_params": {"max_tokens": length, "seed": number, "stop": []}}
        raw = tinker.result(server, "asample", body)
        sequences = wire._CLASSES["SampleResponse"].FromString(raw).sequences
        assert [len(s.tokens) for s in sequences] == [4 * length] * requests
        return float(sum(np.frombuffer(s.logprobs, "<f4").sum() for s in sequences))

    return {"sampling": sample, "updates": update}


def measure_served(
    config: DecoderConfig, base: Params, *, adapters: int, requests: int, rank: int, length: int,
    repeats: int, rows: int, train_length: int,
) -> dict[str, Any]:  # fmt: skip
    """Seconds of each repeat of both kinds of work, of both servers, and how far they differ."""
    actor = policy.Policy(config, base, tokenizers.characters(LETTERS))
    work = {"rank": rank, "requests": requests, "length": length, "rows": rows}
    seconds: dict[str, dict[str, list[float]]] = {"sampling": {}, "updates": {}}
    figures: dict[str, dict[str, list[float]]] = {"sampling": {}, "updates": {}}
    sides = {"together": adapters, "apart": 1}
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(adapters) as threads:
        servers = {
            side: command.make_server(
                actor,
                TinkerConfig(
                    run_dir=f"{directory}/{side}", port=0, models_at_once=count,
                    slots=adapters * requests if count > 1 else requests,
                    max_context_tokens=max(8 + length, train_length + 1),
                ),
                "model",
            )
            for side, count in sides.items()
        }  # fmt: skip
        with tinker.answering(servers["together"]), tinker.answering(servers["apart"]):
            clients = {
                side: [
                    client(server, n, train_length=train_length, **work) for n in range(adapters)
                ]
                for side, server in servers.items()
            }
            for repeat in range(repeats + 1):  # the first compiles
                for kind, of_sides in seconds.items():
                    for side in sides:
                        start = time.perf_counter()
                        values = list(threads.map(lambda c, k=kind: c[k](), clients[side]))
                        if repeat:
                            took = round(time.perf_counter() - start, 3)
                            of_sides.setdefault(side, []).append(took)
                        figures[kind].setdefault(side, []).extend(values)
    result: dict[str, Any] = {"seconds": seconds}
    for kind, of_sides in seconds.items():
        medians = {side: statistics.median(times) for side, times in of_sides.items()}
        count = requests * length if kind == "sampling" else rows * train_length
        result[f"{kind}, apart by together"] = round(medians["apart"] / medians["together"], 2)
        result[f"{kind}, tokens a second"] = {
            side: round(adapters * count / took, 1) for side, took in medians.items()
        }
        one, two = (np.array(figures[kind][side]) for side in sides)
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6, err_msg=kind)
        result[f"{kind}, figures differ by"] = float(np.max(np.abs(one - two)))
    return result


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="small", help="small, or whatever jaxrl can load")
    for name, default in (("adapters", 8), ("requests", 4), ("rank", 16), ("length", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--served", action="store_true", help="by servers of the Tinker API")
    parser.add_argument("--rows", type=int, default=2, help="with --served, of an update")
    parser.add_argument("--train-length", type=int, default=128, help="with --served, of a row")
    args = vars(parser.parse_args())
    name, served = args.pop("model"), args.pop("served")
    training = {field: args.pop(field) for field in ("rows", "train_length")}
    if name == "small":
        config, base = SMALL, decoder.init(SMALL, jax.random.key(0))
    else:
        config, base = load.load(name)
    load_before = os.getloadavg()[0]
    machine = {
        "device": jax.devices()[0].device_kind, "cores": os.cpu_count(),
        "machine": platform.processor(), "jax": jax.__version__,
    }  # fmt: skip
    if served:
        result = {"model": name, **args, **training}
        result |= measure_served(config, base, **args, **training)
        result |= machine | {"load": [round(load_before, 1), round(os.getloadavg()[0], 1)]}
        print(json.dumps(result))
        return
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
        **machine,
        "load": [round(load_before, 1), round(os.getloadavg()[0], 1)],
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
