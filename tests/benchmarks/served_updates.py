"""Updates a second of the Tinker service against those of `jaxrl train`.

`python -m tests.benchmarks.served_updates` prints a line of JSON. Both sides make the same updates
of LoRA adapters on the same data: 16 sequences of 128 tokens, a gradient and a step of AdamW. The
service is asked by HTTP on loopback, writes its journal and its snapshots, and answers with
log-probabilities. `jaxrl train` packs the batch and calls its update. They take turns in one
process, and the first round, which compiles, is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import string
import tempfile
import time
from collections.abc import Callable

import jax
import numpy as np

from jaxrl.data.text import tokenizers
from jaxrl.launch.server import tinker as command
from jaxrl.launch.server.http import Server
from jaxrl.launch.server.tinker import bodies, learner
from jaxrl.launch.server.tinker.service import TinkerConfig
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout.policy import Policy
from jaxrl.training import optimizer, packing, train_step, trainable
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import Trajectory
from tests.launch import test_tinker as tinker

ROWS, LENGTH, RANK = 16, 128, 16
LETTERS = string.printable[:96]


def small(width: int) -> Policy:
    """A decoder of 4 layers."""
    model = DecoderConfig(
        vocab_size=len(LETTERS) + 1, hidden_size=width, intermediate_size=3 * width, num_layers=4,
        num_heads=width // 32, num_kv_heads=width // 64, head_dim=32, max_positions=2 * LENGTH,
        tie_embeddings=True,
    )  # fmt: skip
    tokenizer = tokenizers.characters(LETTERS)
    return Policy(model, decoder.init(model, jax.random.key(0)), tokenizer)


def drawn() -> Trajectory:
    """Sequences whose tokens, but for the first, are actions with an advantage of 1."""
    tokens = np.random.default_rng(0).integers(0, len(LETTERS), (ROWS, LENGTH)).astype(np.int32)
    mask = np.ones((ROWS, LENGTH), bool)
    mask[:, 0] = False
    zeros = np.zeros((ROWS, LENGTH), np.float32)
    return Trajectory(
        tokens=tokens, action_mask=mask, behavior_logp=zeros, rewards=zeros[:, 0],
        policy_version=np.zeros_like(tokens), valid=np.ones(ROWS, bool),
        group_ids=np.arange(ROWS, dtype=np.int32), advantages=mask.astype(np.float32),
    )  # fmt: skip


def trained(actor: Policy, batch: Trajectory) -> Callable[[], float]:
    """What makes an update of `jaxrl train`, and returns the norm of its gradient."""
    shape = learner.shape_of(actor.model, bodies.Lora(rank=RANK, train_unembed=False))
    assert shape.lora is not None
    part = trainable.part(actor.model, shape.lora, ())
    adamw = optimizer.OptimizerConfig(
        learning_rate=1e-3, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0, clip_norm=0.0
    )
    method = optimizer.make(adamw, 1, actor.model)
    update = train_step.make_update(
        actor.model, ObjectiveConfig(policy="reinforce", aggregation="token-sum"), method,
        temperature=1.0, max_new_tokens=LENGTH, remat="none", part=part,
    )  # fmt: skip
    start = learner.create(actor.model, actor.params, shape, 0)
    params = learner.join(actor.model, actor.params, start.adapters, shape)
    state = train_step.init_state(jax.tree.map(jax.numpy.array, params), method, part)
    config = packing.PackingConfig(micro_batch_tokens=8192, bucket=64)

    def step() -> float:
        nonlocal state
        packed, _ = packing.pack(batch, config)
        placed = jax.tree.map(jax.numpy.asarray, batch)
        state, metrics = update(state, placed, packed, None)
        return float(metrics["grad_norm"])

    return step


def served(server: Server, batch: Trajectory) -> Callable[[], float]:
    """What asks the service for the same update."""
    body = {"session_id": tinker.session(server), "model_seq_id": 0, "base_model": "small"}
    body |= {"lora_config": {"rank": RANK, "seed": 0, "train_unembed": False}}
    model = json.loads(tinker.result(server, "create_model", body))["model_id"]
    assert batch.advantages is not None
    rows = zip(np.asarray(batch.tokens), np.asarray(batch.advantages), strict=True)
    one = tinker.FORM(model_id=model, loss_fn="cross_entropy")
    for tokens, weights in rows:
        raw = tinker.batch(model, 1, tokens, weights=weights[1:])
        one.data.append(tinker.FORM.FromString(raw).data[0])
    seq = 0

    def step() -> float:
        nonlocal seq
        seq += 2
        one.seq_id = seq - 1
        tinker.result(server, "forward_backward", raw=one.SerializeToString())
        adam = {"learning_rate": 1e-3, "beta2": 0.999, "eps": 1e-8}
        answer = {"model_id": model, "seq_id": seq, "adam_params": adam}
        return json.loads(tinker.result(server, "optim_step", answer))["metrics"]["grad_norm"]

    return step


def main() -> None:
    """Print the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    batch, actor = drawn(), small(arguments.width)
    with tempfile.TemporaryDirectory() as directory:
        config = TinkerConfig(run_dir=directory, port=0, max_context_tokens=LENGTH)
        server = command.make_server(actor, config, "small")
        with tinker.answering(server):
            sides = {"train": trained(actor, batch), "service": served(server, batch)}
            seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
            norms: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(arguments.rounds + 1):
                for name, step in sides.items():
                    start, work = time.perf_counter(), time.process_time()
                    norms[name].append(step())
                    times = time.perf_counter() - start, time.process_time() - work
                    seconds[name].append(times)
    wall, processor = (
        {name: [times[i] for times in rows[1:]] for name, rows in seconds.items()} for i in (0, 1)
    )

    def ratio(of: dict[str, list[float]]) -> float:
        service, train = (statistics.median(of[name]) for name in ("service", "train"))
        return round(service / train, 3)

    line = {
        "benchmark": "served_updates", "width": arguments.width, "rows": ROWS, "length": LENGTH,
        "rank": RANK, "time of service by train": ratio(wall),
        "processor time of service by train": ratio(processor),
        "seconds": {name: [round(t, 3) for t in times] for name, times in wall.items()},
        "processor seconds": {n: [round(t, 3) for t in times] for n, times in processor.items()},
        "norms of gradients differ by": float(
            np.max(np.abs(np.array(norms["train"]) / np.array(norms["service"]) - 1))
        ),
        "parameters": sum(a.size for a in jax.tree.leaves(actor.params)),
    }  # fmt: skip
    print(json.dumps(line))


if __name__ == "__main__":
    main()
