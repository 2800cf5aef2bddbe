"""What each part of the train step buys: the update with one part taken out at a time.

    python -m tests.benchmarks.step_ablation

SmolLM2-135M in fp32 on the workloads of `tests.benchmarks.step`, and on `tree`, one prompt of 512
tokens with eight completions of 64, a small hybrid; random tokens. Each variant is
compiled, run once, and then timed; a line has the median seconds by the clock and of the processors
(less distorted where the machine is shared), and the temporary memory of the compiled program.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.models import attention, decoder, linear, load
from jaxrl.models.config import DecoderConfig, DeltaRule
from jaxrl.training import logprobs, optimizer, packing, train_step
from jaxrl.training.objective import ObjectiveConfig, worth_computing
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.packing import PackingConfig
from jaxrl.types import Completion, Packed, Params, Request, Trajectory
from tests.benchmarks.step import ROWS, Row

TREE = Row("hybrid", 1, 8, 512, (64,) * 8, 1024)
HYBRID = DecoderConfig(
    *(512, 256, 768, 4, 4, 2, 64),
    delta=DeltaRule(4, 8, key_dim=32, value_dim=32, taps=4, projections="joined"),
    recurrent_layers=(True, True, True, False),
)


def batch(row: Row, vocab: int, *, agreeing: int = 0) -> Trajectory:
    """Completions of the row's lengths; rewards of the first `agreeing` groups are all equal."""
    rng, made = np.random.default_rng(0), []
    for n, length in enumerate(row.lengths):
        group = np.random.default_rng(n // row.group_size)
        prompt = tuple(group.integers(3, vocab, row.prompt_tokens).tolist())
        zeros = np.zeros(length, np.float32)
        tokens = rng.integers(3, vocab, length).astype(np.int32)
        request = Request(n, prompt, length)
        made.append(Completion(request, tokens, zeros, zeros, zeros.astype(np.int32), True))
    groups = [n // row.group_size for n in range(len(made))]
    rewards = [0.0 if g < agreeing else float(rng.random()) for g in groups]
    return packing.trajectory(made, rewards, groups, length=row.prompt_tokens + max(row.lengths))


TREES = packing._trees


def unshared(branches: Any, most: int) -> list[Any]:
    """`packing._trees`, a tree for each branch."""
    return [tree for branch in branches for tree in TREES([branch], most)]


@contextmanager
def without(part: str) -> Iterator[None]:
    """The code as it is without a part."""
    match part:
        case "shared prompts":
            patch = mock.patch.object(packing, "_trees", unshared)
        case "shared prompts and packing":
            with (
                mock.patch.object(packing, "_trees", unshared),
                mock.patch.object(packing, "_fill", lambda trees, row_length: [[t] for t in trees]),
            ):
                yield
            return
        case "gradients in the layout of the weights":
            derived = lambda inputs, x, w: jnp.tensordot(x, w, axes=inputs)  # noqa: E731
            patch = mock.patch.object(linear, "_matmul", derived)
        case "attention in blocks":
            in_one_piece = lambda whole, *inputs: whole(*inputs)  # noqa: E731
            patch = mock.patch.object(attention, "_by_blocks", in_one_piece)
        case "the head in one piece":
            patch = mock.patch.object(logprobs, "_LOGIT_TOKENS", 256)
        case _:
            yield
            return
    with patch:
        yield


def spare(packed: Packed) -> Packed:
    """The same with an empty micro-batch behind it, so that gradients are summed in a loop."""
    more = {
        name: np.concatenate([a, np.zeros_like(a)])
        for name, a in vars(packed).items()
        if np.ndim(a) == 3
    }
    return packed.replace(**more)


VARIANTS: dict[str, tuple[str, ...]] = {
    "equal": (
        "nothing",
        "shared prompts",
        "attention in blocks",
        "gradients in the layout of the weights",
        "one program for one micro-batch",
        "the head in one piece",
        "recomputed activations",
        "skipping, half the groups agree",
        "nothing, half the groups agree",
    ),
    "tail": ("nothing", "attention in blocks", "shared prompts", "shared prompts and packing"),
    "long": ("nothing", "attention in blocks", "shared prompts"),
    "tree": ("nothing", "shared prompts and packing"),
}


def measure(row: Row, part: str, model: DecoderConfig, params: Params, repeats: int) -> list[float]:
    """Median seconds, processor seconds, temporary GB and padding of the update without a part."""
    half, width = part.endswith("agree"), row.row_length
    data = batch(row, model.vocab_size, agreeing=row.prompts // 2 if half else 0)
    objective = ObjectiveConfig(skip_zero_advantages=part.startswith("nothing,"))
    if part == "shared prompts and packing":
        width = row.prompt_tokens + max(row.lengths)
    optimize = optimizer.make(OptimizerConfig(), 10, model)
    with without(part):
        settings = PackingConfig(row_length=width, micro_batch_tokens=1 << 14)
        packed, cost = packing.pack(data, settings, keep=worth_computing(objective, data))
        if part == "one program for one micro-batch":
            packed = spare(packed)
        update = train_step.make_update(
            model,
            objective,
            optimize,
            temperature=1.0,
            max_new_tokens=max(row.lengths),
            remat="none" if part == "recomputed activations" else "dots",
        )
        state = train_step.init_state(jax.tree.map(jnp.copy, params), optimize)
        compiled = update.lower(state, data, packed, None).compile()
    wall, busy = [], []
    for _ in range(repeats + 1):
        start, before = time.perf_counter(), time.process_time()
        state, _ = jax.block_until_ready(compiled(state, data, packed, None))
        wall.append(time.perf_counter() - start)
        busy.append(time.process_time() - before)
    middle = [statistics.median(x[1:] or x) for x in (wall, busy)]
    memory = compiled.memory_analysis().temp_size_in_bytes / 1e9
    return [*middle, memory, cost["padding_share"]]


def main() -> None:
    """Time every variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", nargs="+", default=list(VARIANTS))
    arguments = parser.parse_args()
    models: dict[str, tuple[DecoderConfig, Params]] = {}
    print("| Row | Without | Update, s | Processor, s | Temporary, GB | Padding |")
    print("|---" * 6 + "|")
    for name in arguments.rows:
        row = TREE if name == "tree" else ROWS[name]
        if row.model not in models:
            fresh = row is TREE and (HYBRID, decoder.init(HYBRID, jax.random.key(0)))
            models[row.model] = fresh or load.load(row.model)
        for part in VARIANTS[name]:
            took, busy, memory, padding = measure(row, part, *models[row.model], arguments.repeats)
            print(
                f"| {name} | {part} | {took:.2f} | {busy:.2f} | {memory:.2f} | {padding:.0%} |",
                flush=True,
            )
            jax.clear_caches()


if __name__ == "__main__":
    main()
