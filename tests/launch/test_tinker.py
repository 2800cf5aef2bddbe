"""The Tinker API: by its real client where that is installed, and by plain requests.

`python -m tests.launch.test_tinker RUN_DIR PORT COMPACT_BYTES` serves a tiny model until it ends.
"""

import contextlib
import dataclasses
import functools
import http.client
import importlib
import inspect
import json
import pkgutil
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl.data.text import tokenizers
from jaxrl.launch.server import tinker as command
from jaxrl.launch.server.http import Refused, Server
from jaxrl.launch.server.tinker import (
    bodies,
    compaction,
    gradients,
    learner,
    ledger,
    losses,
    queueing,
    service,
    tenants,
    wire,
)
from jaxrl.launch.server.tinker import journal as journals
from jaxrl.launch.server.tinker.service import TinkerConfig
from jaxrl.losses import policy
from jaxrl.models import decoder, head
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout.policy import Policy
from jaxrl.training import optimizer, packing, train_step, trainable
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import Trajectory
from tests.jaxrl import tiny

LETTERS = "abcdefghijklmnopqrstuvwxyz .,:;"
MODEL = "tiny"
SHAPE = DecoderConfig(
    vocab_size=len(LETTERS) + 1, hidden_size=16, intermediate_size=24, num_layers=2,
    num_heads=2, num_kv_heads=1, head_dim=8, max_positions=128, tie_embeddings=True,
)  # fmt: skip


def actor() -> Policy:
    return Policy(SHAPE, decoder.init(SHAPE, jax.random.key(0)), tokenizers.characters(LETTERS))


def make(run_dir, port=0, **changes) -> Server:
    settings = {"max_context_tokens": 64, "slots": 8, "chunk": 8} | changes
    return command.make_server(
        actor(), TinkerConfig(run_dir=str(run_dir), port=port, **settings), MODEL
    )


@contextlib.contextmanager
def serving(run_dir, **changes) -> Iterator[Server]:
    with answering(make(run_dir, **changes)) as server:
        yield server


@contextlib.contextmanager
def answering(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


KEY = "tml-local"
FORM = wire._CLASSES["ForwardBackwardRequest"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as made:
        yield made


@pytest.fixture
def client(server, monkeypatch):
    tinker = pytest.importorskip("tinker", reason="needs the extra tinker")
    monkeypatch.setenv("TINKER_BASE_URL", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    return tinker


def directory(server) -> Path:
    return Path(server.RequestHandlerClass.args[0].config.run_dir)


def send(server, name, body=None, *, raw=None, method="POST", **headers):
    """Status and answer of a request to a server, or to a port."""
    port = server if isinstance(server, int) else server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    kind = "application/json" if raw is None else "application/x-protobuf"
    sent = {"Content-Type": kind, "X-API-Key": KEY}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    data = json.dumps(body or {}).encode() if raw is None else raw
    connection.request(method, f"/api/v1/{name}", data if method == "POST" else None, sent)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, answer


def ask(server, name, body=None, **more):
    """The JSON answer to a request that is served."""
    status, answer = send(server, name, body, **more)
    assert status == 200, answer
    return json.loads(answer)


def result(server, name, body=None, **more):
    """What becomes of a request that takes work, raw."""
    future = {"request_id": ask(server, name, body, **more)["request_id"]}
    keys = {field: value for field, value in more.items() if field == "X_API_Key"}
    while (got := send(server, "retrieve_future", future, **keys))[0] == 408:
        pass
    assert got[0] == 200, got
    return got[1]


def batch(model, seq, tokens, loss="cross_entropy", *, change=None, **inputs) -> bytes:
    """A request of `forward_backward` with one datum."""
    message = FORM(model_id=model, seq_id=seq, loss_fn=loss)
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.array(tokens[:-1], "<i4").tobytes()
    arrays = {"target_tokens": np.array(tokens[1:], "<i8")}
    arrays |= {k: np.array(v, "<f4") for k, v in (inputs or {"weights": [1.0] * 4}).items()}
    for name, array in arrays.items():
        tensor = datum.loss_fn_inputs.add(key=name).value
        tensor.dense, tensor.dtype = array.tobytes(), 2 if array.dtype.kind == "i" else 1
        tensor.shape.append(len(array))
    if change:
        change(message)
    return message.SerializeToString()


def session(server) -> str:
    return ask(server, "create_session", {"tags": [], "sdk_version": "0.38.0"})["session_id"]


def new_model(server, **lora) -> dict:
    body = {"session_id": session(server), "model_seq_id": 0, "base_model": MODEL}
    return body | {"lora_config": {"rank": 2, "seed": 1, **lora}}


def create(server, **lora) -> str:
    return json.loads(result(server, "create_model", new_model(server, **lora)))["model_id"]


def with_provenance(message):
    """Say where tokens come from, which changes nothing."""
    message.data[0].model_input_spans.append(b"\x12\x04\x0a\x02ab")
    message.data[0].loss_fn_input_spans.append(b"\x12\x04\x0a\x02ab")


def arrays_of(path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(path)


TOKENS = ([1, 2, 3, 4, 5, 6], [7, 8, 9], [3, 1, 4, 1, 5, 9, 2, 6])
LOSSES = {
    "cross_entropy": ("reinforce", {}),
    "importance_sampling": ("ppo_clip", {"clip_low": 1.0, "clip_high": 1e9}),
    "ppo": ("ppo_clip", {"clip_low": 0.2, "clip_high": 0.2}),
    "cispo": ("cispo", {"clip_low": 1.0, "clip_high": 3.0}),
    "gspo": ("gspo_token", {}),
    "sapo": ("sapo", {}),
}


def drawn(tokens, seed):
    """Log-probabilities far from the model's, so that bounds matter, and advantages."""
    rng = np.random.default_rng(seed)
    count = len(tokens) - 1
    return (-3.4 + rng.normal(size=count)).astype("f4"), rng.normal(size=count).astype("f4")


def of_train(loss, rank=2):
    """What is trained, after one update of `jaxrl train` on the same data."""
    policy, args = LOSSES[loss]
    width, count = max(map(len, TOKENS)), len(TOKENS)
    zeros = np.zeros((count, width), np.float32)
    tokens, mask, logp, advantages = zeros.astype(np.int32), zeros > 0, zeros.copy(), zeros.copy()
    for n, row in enumerate(TOKENS):
        cells = (n, slice(1, len(row)))
        tokens[n, : len(row)], mask[cells] = row, True
        logp[cells], advantages[cells] = drawn(row, n)
    trajectory = Trajectory(
        tokens=tokens, action_mask=mask, behavior_logp=logp,
        policy_version=np.zeros_like(tokens), rewards=zeros[:, 0], valid=np.ones(count, bool),
        group_ids=np.arange(count, dtype=np.int32), advantages=advantages,
    )  # fmt: skip
    shape = learner.shape_of(SHAPE, lora_of(rank))
    base = actor().params
    start = learner.create(SHAPE, base, shape, 5)
    part = trainable.WHOLE if shape.lora is None else trainable.part(SHAPE, shape.lora, ())
    adamw = optimizer.OptimizerConfig(learning_rate=1e-2, eps=1e-4, clip_norm=0.5, weight_decay=0.1)
    method = optimizer.make(adamw, 1, SHAPE)
    update = train_step.make_update(
        SHAPE, ObjectiveConfig(policy=policy, policy_args=args, aggregation="token-sum"), method,
        temperature=1.0, max_new_tokens=width, remat="none", part=part,
    )  # fmt: skip
    packed, _ = packing.pack(trajectory, packing.PackingConfig(micro_batch_tokens=256, bucket=16))
    state = train_step.init_state(learner.join(SHAPE, base, start.adapters, shape), method, part)
    state, metrics = update(state, jax.tree.map(jax.numpy.asarray, trajectory), packed, None)
    return learner.to_arrays(part.split(state.params)[0]), metrics


def lora_of(rank) -> bodies.Lora:
    return bodies.Lora(rank=rank, seed=5, train_unembed=not rank)


@pytest.mark.sample(4, broad=3)
@pytest.mark.extra
@pytest.mark.parametrize("rank", [2, 0])
@pytest.mark.parametrize("loss", LOSSES)
def test_an_update_is_that_of_train(server, client, loss, rank):
    """By the real client, its gradient summed over two requests, to 1e-5; rank 0: all weights."""
    types, lora = client.types, lora_of(rank).model_dump()
    model = client.ServiceClient().create_lora_training_client(base_model=MODEL, **lora).result()
    data = []
    for n, row in enumerate(TOKENS):
        logp, advantages = drawn(row, n)
        inputs = {"logprobs": logp, "advantages": advantages}
        if loss == "cross_entropy":
            inputs = {"weights": advantages}
        inputs["target_tokens"] = np.array(row[1:])
        data.append(types.Datum(types.ModelInput.from_ints(row[:-1]), inputs))
    first = model.forward_backward(data[:2], loss)
    second = model.forward_backward(data[2:], loss)
    adam = types.AdamParams(learning_rate=1e-2, eps=1e-4, grad_clip_norm=0.5, weight_decay=0.1)
    step = model.optim_step(adam)
    state = model.save_state(f"after-{loss}").result()
    total = first.result().metrics["loss:sum"] + second.result().metrics["loss:sum"]
    expected, metrics = of_train(loss, rank)
    assert total == pytest.approx(float(metrics["loss"]), abs=1e-4)
    assert step.result().metrics["grad_norm"] == pytest.approx(float(metrics["grad_norm"]), 1e-4)
    model_id = state.path.split("/")[2]
    saved = arrays_of(directory(server) / "models" / model_id.replace(":", "-") / "4.safetensors")
    assert {f"adapters{name}" for name in expected} == {n for n in saved if n[:8] == "adapters"}
    for name, array in expected.items():
        np.testing.assert_allclose(saved[f"adapters{name}"], array, atol=1e-5, err_msg=name)


def test_losses_of_train_are_those_that_a_datum_has_the_arrays_of():
    """All of log-probabilities, advantages and masks, whose settings are numbers."""
    arrays = {"logp", "behavior_logp", "advantages", "mask"}
    found = set()
    for module in pkgutil.iter_modules(policy.__path__, f"{policy.__name__}."):
        home = importlib.import_module(module.name)
        for name, function in inspect.getmembers(home, inspect.isfunction):
            parameters = inspect.signature(function).parameters
            rest = [p.default for n, p in parameters.items() if n not in arrays]
            if (
                function.__module__ == module.name
                and getattr(home, "KIND", None) == "policy"
                and {"logp", "advantages"} <= {*parameters}
                and all(isinstance(value, int | float) for value in rest)
            ):
                found.add(name)
    of_api, no_losses = {"cispo", "gspo"}, {"opsm_mask", "token_covariance"}
    one_advantage_a_sequence = {"gmpo", "kimi_opmd", "oapl"}
    assert found - of_api - no_losses - one_advantage_a_sequence == {*losses._OF_TRAIN}


@pytest.mark.parametrize("mask", [None, [0.0, 1.0, 1.0, 1.0]])
@pytest.mark.parametrize("name", losses.NAMES)
def test_a_loss_is_what_its_formula_says(name, mask):
    """Of a datum alone; where it has no mask, its actions are the tokens with an advantage."""
    rng = np.random.default_rng(3)
    logp, behavior = (-rng.uniform(0.5, 3, (1, 4)).astype("f4") for _ in range(2))
    advantages = np.array([[0.0, 0.7, 0.7, 0.7]], np.float32)
    loss = losses.find(name)
    inputs = {"logprobs": behavior, "advantages": advantages, "weights": advantages}
    if mask is not None:
        inputs["mask"] = np.array([mask], np.float32)
    settings = {key: np.float32(value) for key, value in loss.settings.items()}
    found = np.asarray(loss.per_token(logp, inputs, settings))
    ratio, action = np.exp(logp - behavior), advantages > 0
    sequence = np.exp(((logp - behavior) * action).sum() / 3)
    formulas = {
        "cross_entropy": -advantages * logp,
        "importance_sampling": -ratio * advantages,
        "ppo": -np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.2) * advantages),
        "cispo": -np.clip(ratio, 0, 4) * advantages * logp,
        "dro": -(advantages * logp - 0.5 * 0.05 * (logp - behavior) ** 2),
        "gspo": -np.minimum(sequence, np.clip(sequence, 0.9997, 1.0004)) * advantages,
    }
    assert found.shape == (1, 4) and np.isfinite(found).all()
    if name in formulas:
        np.testing.assert_allclose(found, formulas[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parity
def test_the_ratio_of_gspo_is_over_the_tokens_that_the_client_marks():
    """With the gradient of each token's own, as the documentation of the API has it."""
    torch = pytest.importorskip("torch", reason="needs the extra parity")
    rng = np.random.default_rng(4)
    logp, behavior, advantages = (rng.normal(size=(2, 6)).astype("f4") - 2 for _ in range(3))
    behavior, advantages = logp + 2e-4 * (behavior + 2), advantages + 2
    marks = np.array([[0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 0, 0]], np.float32)
    loss = losses.find("gspo")
    settings = {"clip_low_threshold": np.float32(0.9999), "clip_high_threshold": np.float32(1.0001)}
    inputs = {"logprobs": behavior, "advantages": advantages, "sequence_ratio_mask": marks}

    def total(logp):
        return loss.per_token(logp, inputs, settings).sum()

    found, gradient = jax.value_and_grad(total)(logp)
    p = torch.tensor(logp, requires_grad=True)
    inside = torch.tensor(marks)
    log_ratio = ((p.detach() - torch.tensor(behavior)) * inside).sum(1) / inside.sum(1)
    ratio = torch.exp(log_ratio[:, None] + p - p.detach())
    a = torch.tensor(advantages)
    expected = -torch.minimum(ratio * a, ratio.clamp(0.9999, 1.0001) * a).sum()
    expected.backward()
    assert float(found) == pytest.approx(expected.item(), rel=1e-5)
    assert (p.grad == 0).any() and (p.grad != 0).any()
    np.testing.assert_allclose(gradient, p.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.extra
def test_samples_have_the_forward_s_log_probabilities(server, client):
    """After updates of every adapter, and again from the state that was saved."""
    types = client.types
    remote = client.ServiceClient()
    model = remote.create_lora_training_client(base_model=MODEL, rank=4).result()
    row = TOKENS[2]
    learned = types.Datum(
        types.ModelInput.from_ints(row[:-1]),
        {"target_tokens": row[1:], "weights": [1.0] * (len(row) - 1)},
    )
    losses = []
    for _ in range(3):
        done = model.forward_backward([learned], "cross_entropy")
        model.optim_step(types.AdamParams(learning_rate=3e-2)).result()
        losses.append(done.result().metrics["loss:sum"])
    assert losses[2] < losses[0] - 1
    sampler = model.save_weights_and_get_sampling_client().result()
    prompt, settings = [1, 2, 3], types.SamplingParams(max_tokens=6, seed=7, stop=[])

    def texts_of(client):
        got = client.sample(
            types.ModelInput.from_ints(prompt), 3, settings, include_prompt_logprobs=True
        ).result()
        return got, [s.tokens for s in got.sequences]

    got, texts = texts_of(sampler)
    waiting = [
        sampler.sample(
            types.ModelInput.from_ints(prompt),
            3,
            types.SamplingParams(max_tokens=6, seed=seed, stop=[]),
        )
        for seed in (7, 8, 7, 9)
    ]
    assert (
        texts_of(sampler)[1] == texts and [s.stop_reason for s in got.sequences] == ["length"] * 3
    )
    together = [[s.tokens for s in future.result().sequences] for future in waiting]
    assert together[0] == together[2] == texts != together[1] != together[3]
    for sequence in got.sequences:
        whole = prompt + list(sequence.tokens)
        datum = types.Datum(
            types.ModelInput.from_ints(whole[:-1]),
            {"target_tokens": whole[1:], "weights": [1.0] * (len(whole) - 1)},
        )
        output = model.forward([datum], "cross_entropy").result().loss_fn_outputs[0]
        logprobs = output["logprobs"].to_numpy()
        np.testing.assert_allclose(logprobs[2:], sequence.logprobs, atol=1e-4)
        np.testing.assert_allclose(logprobs[:2], got.prompt_logprobs[1:], atol=1e-4)
    path = model.save_state("kept").result().path
    again = remote.create_training_client_from_state_with_optimizer(path).result()
    assert texts_of(again.save_weights_and_get_sampling_client().result())[1] == texts
    base = remote.create_sampling_client(base_model=MODEL).result()
    assert texts_of(base)[1] != texts


def kept_by(logits, top_k, top_p) -> np.ndarray:
    """Which tokens [V] may be drawn of logits [V]."""
    order = np.argsort(-logits)[: top_k if top_k > 0 else None]
    probabilities = np.exp(logits[order] - logits.max())
    before = np.cumsum(probabilities) - probabilities
    return np.isin(np.arange(len(logits)), order[before < top_p * probabilities.sum()])


@pytest.mark.extra
def test_a_truncated_sample_stays_inside_and_alone(server, client):
    """Its log-probabilities are those of what was left to draw from, as of `jaxrl train`."""
    types, prompt = client.types, [1, 2, 3]
    base = client.ServiceClient().create_sampling_client(base_model=MODEL).result()
    settings = {
        name: types.SamplingParams(max_tokens=6, seed=seed, stop=[], **more)
        for seed, (name, more) in enumerate(
            {
                "greedy": {"temperature": 0.0},
                "one": {"top_k": 1},
                "nucleus": {"top_p": 0.5},
                "both": {"top_k": 8, "top_p": 0.8, "temperature": 0.5},
                "free": {},
            }.items()
        )
    }

    def begin(name):
        return base.sample(types.ModelInput.from_ints(prompt), 8, settings[name])

    def rows(future):
        return [(list(s.tokens), list(s.logprobs)) for s in future.result().sequences]

    alone = {name: rows(begin(name)) for name in settings}
    waiting = {name: begin(name) for name in settings}
    assert {name: rows(future) for name, future in waiting.items()} == alone
    assert {tuple(tokens) for tokens, _ in alone["one"]} == {tuple(alone["greedy"][0][0])}
    np.testing.assert_array_equal([logprobs for _, logprobs in alone["one"]], 0)
    outside, params = 0, actor().params
    for name in ("nucleus", "both", "free"):
        whole = np.array([prompt + tokens for tokens, _ in alone[name]])
        places = np.broadcast_to(np.arange(whole.shape[1]), whole.shape)
        hidden = decoder.hidden(SHAPE, params, whole, places, np.full_like(whole, whole.shape[1]))
        scores = np.asarray(head.logits(hidden[:, 2:-1], decoder.unembedding(params)))
        draw = settings[name]
        for (tokens, logprobs), rows_of_one in zip(
            alone[name], scores / draw.temperature, strict=True
        ):
            for row, token, logprob in zip(rows_of_one, tokens, logprobs, strict=True):
                kept = kept_by(row, draw.top_k, draw.top_p)
                outside += name == "free" and not kept_by(row, -1, 0.5)[token]
                assert kept[token], name
                expected = row[token] - np.log(np.exp(row[kept]).sum())
                np.testing.assert_allclose(logprob, expected, atol=1e-4)
    assert outside  # truncation would have changed the samples without it


def test_all_weights_are_trained_where_no_adapters_are_asked_for(server):
    """Their samples come from them, and their saved weights go on in another model like them."""
    name = session(server)
    body = {"session_id": name, "model_seq_id": 0, "base_model": MODEL, "lora_config": None}
    model = json.loads(result(server, "create_model", body))["model_id"]
    about = ask(server, "get_info", {"model_id": model})
    assert about["is_lora"] is False and about["lora_rank"] is None
    raw = batch(model, 1, [1, 2, 3, 4, 5])
    result(server, "forward_backward", raw=raw)
    adam = {"model_id": model, "seq_id": 2, "adam_params": {"learning_rate": 0.05}}
    result(server, "optim_step", adam)
    saved = json.loads(result(server, "save_weights", {"model_id": model, "seq_id": 3}))["path"]
    load = {"session_id": name, "model_seq_id": 1, "path": saved, "optimizer": True}
    other = json.loads(result(server, "load_weights", load))["model_id"]
    forward = {"change": lambda message: setattr(message, "forward_only", True)}
    outputs = {
        m: result(server, "forward_backward", raw=batch(m, 4, [1, 2, 3, 4, 5], **forward))
        for m in (model, other)
    }
    assert (
        outputs[model]
        == outputs[other]
        != result(
            server, "forward_backward", raw=batch(create(server), 1, [1, 2, 3, 4, 5], **forward)
        )
    )
    sampler = {"model_id": model, "seq_id": 5, "sampling_session_seq_id": 0}
    about = json.loads(result(server, "save_weights_for_sampler", sampler))
    body = {"sampling_session_id": about["sampling_session_id"], "seq_id": 0}
    body |= {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3, 4, 5]}]}}
    body |= {"prompt_logprobs": True, "sampling_params": {"max_tokens": 1}}
    sample = wire._CLASSES["SampleResponse"].FromString(result(server, "asample", body))
    output = wire._CLASSES["ForwardBackwardOutput"].FromString(outputs[model])
    logprobs = np.frombuffer(output.loss_fn_outputs[0].fields[0].value.data, "<f4")
    found = np.frombuffer(sample.prompt_logprobs, "<f4")[1:]
    np.testing.assert_allclose(found, logprobs, atol=1e-4)
    status, answer = send(
        server, "load_weights", {"model_id": create(server), "seq_id": 1, **load_of(saved)}
    )
    assert status == 400 and b"create a model from the path" in answer


def load_of(path):
    return {"path": path, "optimizer": False}


@pytest.mark.extra
def test_a_custom_loss_is_computed_by_the_client(server, client):
    torch = pytest.importorskip("torch", reason="needs the extra parity")
    types = client.types
    model = client.ServiceClient().create_lora_training_client(base_model=MODEL, rank=2).result()
    datum = types.Datum(types.ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})

    def loss(data, logprobs):
        return torch.square(logprobs[0]).sum(), {"squares": 1.0}

    done = model.forward_backward_custom([datum], loss)
    step = model.optim_step(types.AdamParams()).result()
    assert done.result().metrics["squares"] == 1 and step.metrics["grad_norm"] > 0


@pytest.mark.extra
def test_clients_at_once_get_what_each_gets_alone(server, client):
    types, texts = client.types, {}

    def one(name, rank):
        sampler = client.ServiceClient()
        model = sampler.create_lora_training_client(base_model=MODEL, rank=rank, seed=rank).result()
        datum = types.Datum(
            types.ModelInput.from_ints([1, 2, 3]),
            {"target_tokens": [2, 3, 4], "weights": [1.0] * 3},
        )
        for _ in range(2):
            model.forward_backward([datum], "cross_entropy")
            model.optim_step(types.AdamParams(learning_rate=0.1)).result()
        settings = types.SamplingParams(max_tokens=8, seed=3)
        sampled = model.save_weights_and_get_sampling_client().result()
        got = sampled.sample(types.ModelInput.from_ints([1]), 2, settings).result()
        texts[name] = [(list(s.tokens), list(s.logprobs)) for s in got.sequences]

    for rank in (2, 4):
        one(f"alone {rank}", rank)
    threads = [threading.Thread(target=one, args=(f"together {r}", r)) for r in (2, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts["alone 2"] == texts["together 2"] != texts["alone 4"] == texts["together 4"]


def test_samples_of_one_seed_take_turns():
    """They have the same ids, and the sampler tells requests apart by these."""

    def job(seq, seed):
        prompt = {"chunks": [{"tokens": [1]}]}
        body = {"sampling_session_id": "s", "seq_id": seq, "prompt": prompt}
        return bodies.Sample.model_validate({**body, "sampling_params": {"seed": seed}})

    jobs = [job(0, 7), job(1, 8), job(2, 7), job(10**18, None), job(4, 7 + 2**31)]
    assert queueing.by_seed(jobs) == [[0, 1, 3], [2], [4]]


def sampling(server, prompt):
    """A function that samples after a prompt: what it draws, and why it ended."""
    name = session(server)
    body = {"session_id": name, "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = ask(server, "create_sampling_session", body)["sampling_session_id"]

    def tokens(seq, **settings):
        body = {"sampling_session_id": sampler, "seq_id": seq}
        body |= {"prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]}}
        body |= {"sampling_params": {"max_tokens": 30, "seed": 1, "temperature": 1.0, **settings}}
        message = wire._CLASSES["SampleResponse"].FromString(result(server, "asample", body))
        (sequence,) = message.sequences
        return np.frombuffer(sequence.tokens, "<i4").tolist(), sequence.stop_reason

    return tokens


@pytest.mark.broad
def test_beginnings_of_prompts_are_kept_from_sample_to_sample(server, tmp_path):
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    expected = sampling(server, prompt)(0, stop=[])
    with serving(tmp_path, prefix_cache=1, prefix_block=4) as other:
        tokens = sampling(other, prompt)
        assert tokens(0, stop=[]) == expected
        shard = other.RequestHandlerClass.args[0].prefixes.shards[0]
        assert shard.count == 2
        assert tokens(1, stop=[]) == expected and shard.count == 2
    with pytest.raises(ValueError, match="prefix_block=4 with prefix_cache=0"):
        make(tmp_path / "refused", prefix_block=4)


@pytest.mark.broad
def test_what_ends_a_sample(server):
    tokens = sampling(server, [1, 2, 3])
    free, reason = tokens(0, stop=[])
    assert len(free) == 30 and reason == wire.LENGTH
    token = free[5]
    cut = free[: free.index(token) + 1]
    assert tokens(1, stop=[token]) == (cut, wire.STOP)
    letter = actor().tokenizer.decode([token])
    text, reason = tokens(2, stop=letter)
    if letter:
        assert reason == wire.STOP and text == free[: len(text)] and len(text) <= len(cut)
    assert tokens(3, temperature=0.0, stop=[]) == tokens(4, temperature=0.0, stop=[], seed=9)


@pytest.mark.broad
def test_a_request_is_served_once_however_often_it_is_sent(tmp_path):
    """Also by a server that is started again, which takes up what was not answered."""
    with serving(tmp_path) as server:
        model = create(server)
        raw = batch(model, 1, [1, 2, 3, 4, 5])
        first = result(server, "forward_backward", raw=raw)
        assert result(server, "forward_backward", raw=raw) == first
        key = {"X_Idempotency_Key": "a"}
        assert len({ask(server, "create_session", {}, **key)["session_id"] for _ in "ab"}) == 1
        other = batch(model, 1, [1, 2, 3, 4, 6])
        status, answer = send(server, "forward_backward", raw=other)
        assert status == 400 and b"was another request" in answer
        with pytest.raises(ValueError, match="in use by another server"):
            make(tmp_path)
        server.RequestHandlerClass.args[0].journal.file.close()
    with (tmp_path / journals.JOURNAL).open("ab") as file:
        file.write(b'{"kind": "optim_step", "id": ')  # what a kill leaves
    with serving(tmp_path) as server:
        assert result(server, "forward_backward", raw=raw) == first
        step = {"model_id": model, "seq_id": 2, "adam_params": {"learning_rate": 0.1}}
        assert json.loads(result(server, "optim_step", step))["metrics"]["skipped"] == 0
        server.RequestHandlerClass.args[0].journal.file.close()
    with pytest.raises(ValueError, match="begun with other settings: model='tiny', now 'other'"):
        command.make_server(
            actor(),
            TinkerConfig(run_dir=str(tmp_path), port=0, max_context_tokens=64),
            "other",
        )


def test_a_snapshot_for_sampling_that_is_sent_again(server):
    """Clients take another sampling session for each attempt at the same request."""
    model = create(server)
    body = {"model_id": model, "seq_id": 1, "sampling_session_seq_id": 0}
    first = json.loads(result(server, "save_weights_for_sampler", body))
    again = json.loads(
        result(server, "save_weights_for_sampler", {**body, "sampling_session_seq_id": 1})
    )
    assert first == again and first["sampling_session_id"] == f"{model.partition(':')[0]}:sample:0"
    status, answer = send(server, "save_weights_for_sampler", {**body, "seq_id": 2})
    assert status == 400 and b"sampling_session_seq_id=0 is taken" in answer
    taken = {"session_id": model.partition(":")[0], "sampling_session_seq_id": 0}
    taken["base_model"] = MODEL
    status, answer = send(server, "create_sampling_session", taken)
    assert status == 400 and b"sampling_session_seq_id=0 is taken" in answer
    body = {"model_id": model, "seq_id": 2, "path": "a"}
    result(server, "save_weights", body)
    status, answer = send(server, "save_weights_for_sampler", body)
    assert status == 400 and b"was another request" in answer


def test_a_finished_session_takes_nothing_more(tmp_path):
    """Its models leave memory, also after a restart; what they saved stays, and so do answers."""
    with serving(tmp_path) as server:
        model = create(server)
        whose = model.partition(":")[0]
        raw = batch(model, 1, [1, 2, 3, 4, 5], change=with_provenance)
        answer = result(server, "forward_backward", raw=raw)
        save = {"model_id": model, "seq_id": 2, "path": "a"}
        path = json.loads(result(server, "save_weights", save))["path"]
        end = f"sessions/{whose}/finish"
        assert ask(server, end, {"reason": {"type": "success"}})["session_id"] == whose
        ask(server, end, {"reason": {"type": "errored"}, "detail": "sent again"})
        result(server, "create_model", new_model(server))  # which waits for what was before it
        served = server.RequestHandlerClass.args[0]
        assert model not in served.learners and len(served.learners) == 1
        status, text = send(server, "save_weights", save | {"seq_id": 3, "path": "b"})
        assert status == 400 and b"was finished by its client" in text
        served.journal.file.close()
    with serving(tmp_path) as server:
        served = server.RequestHandlerClass.args[0]
        assert result(server, "forward_backward", raw=raw) == answer
        load = {"session_id": session(server), "model_seq_id": 1, "path": path, "optimizer": True}
        again = json.loads(result(server, "load_weights", load))["model_id"]
        assert model not in served.learners and again in served.learners
        for where, body, message in (
            ("sessions/nobody/finish", {"reason": {"type": "success"}}, b"'nobody' is not known"),
            (end, {"reason": {"type": "great"}}, b"reason.type"),
            (end, {}, b"body.reason: Field required"),
        ):
            status, text = send(server, where, body)
            assert status in (400, 404) and message in text


def test_a_step_that_is_not_finite_is_skipped(server):
    """Its metrics are numbers that JSON has, and the model stays as it was."""
    model, losses = create(server), set()
    settings = [{"eps": 0.0}, {"beta1": 1 - 1e-12}, {"learning_rate": 1e39}, {}]
    for n, adam in enumerate(settings):
        weights = [1.0 if adam else 3e38] * 4
        raw = batch(model, 2 * n + 1, [1, 2, 3, 4, 5], weights=weights)
        output = wire._CLASSES["ForwardBackwardOutput"].FromString(
            result(server, "forward_backward", raw=raw)
        )
        losses |= {metric.value for metric in output.metrics} if adam else set()
        body = {"model_id": model, "seq_id": 2 * n + 2, "adam_params": adam}
        metrics = json.loads(result(server, "optim_step", body))["metrics"]
        assert metrics["skipped"] == 1 and ("grad_norm" in metrics) == bool(adam), adam
    assert len(losses) == 1 and np.isfinite(list(losses)).all()


def test_an_answer_waits_for_room_on_the_disk(server, monkeypatch):
    append, refusals = service.append, [1, 2]

    def full(journal, row, **more):
        if "ended" in row and refusals:
            refusals.pop()
            raise OSError(28, "No space left on device")
        return append(journal, row, **more)

    monkeypatch.setattr(service, "append", full)
    assert create(server) and not refusals


def test_a_model_that_cannot_be_computed_again_says_so(tmp_path):
    with serving(tmp_path, snapshot_every=2) as server:
        kept = create(server)
        result(server, "save_weights", {"model_id": kept, "seq_id": 1, "path": "a"})
        load = {"session_id": kept.partition(":")[0], "model_seq_id": 1, "optimizer": True}
        load["path"] = f"tinker://{kept}/weights/a"
        answer = result(server, "load_weights", load)
        lost = json.loads(answer)["model_id"]
        server.RequestHandlerClass.args[0].journal.file.close()
    (tmp_path / "models" / kept.replace(":", "-") / "1.safetensors").unlink()
    with serving(tmp_path, snapshot_every=2) as server:
        assert result(server, "load_weights", load) == answer
        result(server, "save_weights", {"model_id": kept, "seq_id": 2, "path": "b"})
        raw = batch(lost, 1, [1, 2, 3, 4, 5])
        status, answer = send(server, "forward_backward", raw=raw)
        assert status == 400 and b"load_weights" in answer and b"1.safetensors" in answer
        other = {"model_id": lost, "seq_id": 1, "optimizer": True}
        other["path"] = f"tinker://{kept}/weights/b"
        result(server, "load_weights", other)
        result(server, "forward_backward", raw=batch(lost, 2, [1, 2, 3, 4, 5]))


def script(model):
    """Requests of a training loop, in order."""
    rng = np.random.default_rng(0)
    for step in range(6):
        for part in range(2):
            row = rng.integers(0, SHAPE.vocab_size, 5).tolist()
            inputs = {"logprobs": [-3.0] * 4, "advantages": rng.normal(size=4).tolist()}
            raw = batch(model, 4 * step + part + 1, row, "importance_sampling", **inputs)
            yield "forward_backward", {"raw": raw}
        adam = {"learning_rate": 0.03, "weight_decay": 0.1}
        body = {"model_id": model, "seq_id": 4 * step + 3, "adam_params": adam}
        yield "optim_step", {"body": body}
        body = {"model_id": model, "seq_id": 4 * step + 4, "path": f"s{step}"}
        yield "save_weights", {"body": body}


EACH = tuple(range(1, 21))


def patient(port, name, more):
    """The answer, asked for again as long as nobody is there."""
    while True:
        try:
            return result(port, name, more.get("body"), raw=more.get("raw"))
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)


@pytest.mark.parametrize(
    "kills, rank, compact_bytes",
    [
        pytest.param((6, 17), 2, 1, marks=pytest.mark.broad),
        pytest.param((10,), 0, 1 << 26, marks=pytest.mark.broad),
        pytest.param(EACH, 2, 1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
        pytest.param(EACH, 2, 1 << 26, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_a_server_that_is_killed_continues_to_the_last_byte(kills, rank, compact_bytes, tmp_path):
    """By `kill -9`, each after so many answers, and up to 20 ms later; rank 0: all weights.

    With a `compact_bytes` of 1 the journal is compacted whenever it has doubled.
    """
    with serving(tmp_path / "whole", snapshot_every=3) as server:
        model = create(server, rank=rank)
        expected = [result(server, name, **more) for name, more in script(model)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    @contextlib.contextmanager
    def running() -> Iterator[subprocess.Popen]:
        arguments = [str(tmp_path / "killed"), str(port), str(compact_bytes)]
        process = tiny.spawn("tests.launch.test_tinker", *arguments)
        try:
            tiny.await_line(process, "ready")
            assert process.poll() is None, process.stderr.read()[-3000:]
            yield process
        finally:
            process.kill()
            process.wait()

    answers, rng = [], random.Random(1)
    ended = threading.Event()

    def loop():
        for name, more in script(model):
            answers.append(patient(port, name, more))
        ended.set()

    thread = threading.Thread(target=loop, daemon=True)
    for reached in kills:
        with running() as process:
            if not answers:
                assert create(port, rank=rank) == model
                thread.start()
            while len(answers) < reached:
                assert thread.is_alive() and process.poll() is None
                time.sleep(0.002)
            time.sleep(rng.random() * 0.02)
    with running():
        thread.join(300)
    assert ended.is_set() and answers == expected
    lines = (tmp_path / "killed" / journals.JOURNAL).read_text().splitlines()
    gradients = [row for row in map(json.loads, lines) if row.get("kind") == "forward_backward"]
    compacted = sum("body" not in row for row in gradients)
    assert len(gradients) == 12 and (compacted > 3 if compact_bytes == 1 else compacted == 0)
    written = sorted((tmp_path / "whole").rglob("*.safetensors"))
    assert len(written) == 7  # six that were saved and the snapshot
    for file in written:
        if file.name == "state.safetensors":  # which is of another time
            shape = learner.shape_of(SHAPE, bodies.Lora(rank=rank))
            base = actor().params
            assert learner.read_snapshot(file, SHAPE, base, shape).seq == 23
        else:
            other = tmp_path / "killed" / file.relative_to(tmp_path / "whole")
            assert file.read_bytes() == other.read_bytes(), file


def altered(field, value):
    return lambda message: setattr(message, field, value)


def image(message):
    message.data[0].model_input.add().image = b"x"


def sparse(message):
    message.data[0].loss_fn_inputs[0].value.sparse_csr.values = b"1234"


def unknown(message):
    message.MergeFromString(b"\x9a\x06\x01a")


def text(message):
    message.loss_fn_config_v2.add(key="kl").value.text = "a"


def setting(message):
    message.loss_fn_config.add(key="kl_coeff", value=1.0)


BATCHES = {
    "grpo": (altered("loss_fn", "grpo"), "loss_fn='grpo' is not supported"),
    "no data": (lambda m: m.ClearField("data"), "data: it is empty"),
    "image": (image, "data[0].model_input[1].image is not supported"),
    "sparse": (sparse, "only dense tensors"),
    "unknown field": (unknown, "field 99 is not supported"),
    "text": (text, "send a number"),
    "setting": (setting, "'kl_coeff'] is no setting of cross_entropy"),
    "model": (altered("model_id", "m"), "model_id='m' is not known"),
}


@pytest.fixture(scope="module")
def model(server):
    return create(server)


@pytest.mark.parametrize("case", BATCHES)
def test_a_batch_that_is_not_served_is_refused_by_name(server, model, case):
    change, message = BATCHES[case]
    raw = batch(model, 90, [1, 2, 3, 4, 5], change=change)
    status, answer = send(server, "forward_backward", raw=raw)
    assert 400 <= status < 500 and message in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize(
    "inputs, tokens, message",
    [
        ({"weights": [1.0] * 3}, [1, 2, 3, 4, 5], "has 3 entries, model_input 4 tokens"),
        ({"weights": [np.nan] * 4}, [1, 2, 3, 4, 5], "nan or infinite"),
        ({"mask": [1.0] * 4}, [1, 2, 3, 4, 5], "cross_entropy takes target_tokens, weights"),
        (
            {"weights": [1.0] * 4, "mask": [1.0] * 4},
            [1, 2, 3, 4, 5],
            "takes target_tokens, weights",
        ),
        ({"weights": [1.0] * 4}, [1, 2, 3, 4, 2**31], "entries that are no tokens"),
        ({"weights": [1.0] * 4}, [1, 2, 3, 4, 99], "the model's tokens are 0 to 31"),
        ({"weights": [1.0] * 64}, [1] * 66, "has 65 tokens, more than 64"),
        ({"weights": []}, [1], "it is empty"),
    ],
)
def test_data_that_is_wrong_is_refused(server, model, inputs, tokens, message):
    if len(tokens) == 66:
        inputs = {"weights": [1.0] * 65}
    raw = batch(model, 91, tokens, **inputs)
    status, answer = send(server, "forward_backward", raw=raw)
    assert status == 400 and message in json.loads(answer)["error"]["message"]


def test_noise_is_refused(server):
    rng = np.random.default_rng(0)
    whole = batch("session-0:train:0", 92, [1, 2, 3, 4, 5])
    for _ in range(40):
        raw = bytearray(whole)
        for _ in range(3):
            raw[rng.integers(len(raw))] = rng.integers(256)
        cut = bytes(raw[: rng.integers(1, len(raw))])
        assert send(server, "forward_backward", raw=cut)[0] in (400, 404)
    deep = b"{" * 50_000
    assert send(server, "asample", raw=deep, Content_Type="application/json")[0] == 400


@pytest.mark.parametrize(
    "name, body, message",
    [
        ("create_model", {"lora_config": {"rank": 0, "train_mlp": False}}, "rank=0 trains all"),
        ("create_model", {"lora_config": {"rank": -1}}, "lora_config.rank"),
        ("create_model", {"base_model": "x"}, "base_model='x' is not served"),
        ("create_model", {"optimizer_config": {"type": "dimuon"}}, "optimizer_config.type"),
        ("create_model", {"alpha": 1}, "body.alpha"),
        ("asample", {"sampling_params": {"top_k": -2}}, "sampling_params.top_k"),
        ("asample", {"sampling_params": {"top_p": 0.0}}, "sampling_params.top_p"),
        ("asample", {"sampling_params": {"temperature": -1}}, "temperature"),
        ("asample", {"topk_prompt_logprobs": 2}, "topk_prompt_logprobs=2 is not supported"),
        ("asample", {"sampling_params": {"max_tokens": 64}}, "more than 64"),
        ("asample", {"prompt": {"chunks": []}}, "prompt: it is empty"),
        ("optim_step", {}, "there is no gradient"),
        ("optim_step", {"optimizer_params": {"type": "dimuon"}}, "optimizer_params"),
        ("optim_step", {"adam_params": {"beta1": 1.5}}, "adam_params.beta1"),
        ("save_weights", {"path": "../../x"}, "body.path"),
        ("save_weights_for_sampler", {"path": "a", "kind": "inflight"}, "body.kind"),
        ("load_weights", {"path": "tinker://x/weights/y", "optimizer": True}, "is not known here"),
        ("create_custom_loss", {}, "there are GET healthz"),
    ],
)
def test_a_body_that_is_not_served_is_refused_by_name(server, model, name, body, message):
    sampler = f"{model.partition(':')[0]}:sample:0"
    start = {"session_id": model.partition(":")[0], "sampling_session_seq_id": 0}
    ask(server, "create_sampling_session", {**start, "base_model": MODEL})
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1]}]}
    bodies_served = {
        "create_model": {
            "session_id": start["session_id"], "model_seq_id": 1, "base_model": MODEL,
            "lora_config": {"rank": 2},
        },
        "asample": {
            "sampling_session_id": sampler, "seq_id": 5, "prompt": prompt, "sampling_params": {},
        },
        "optim_step": {"model_id": model, "seq_id": 93, "adam_params": {}},
    }  # fmt: skip
    whole = bodies_served.get(name, {"model_id": model, "seq_id": 94}) | body
    status, answer = send(server, name, whole)
    assert 400 <= status < 500 and message in json.loads(answer)["error"]["message"], answer


def test_keys_hosts_sizes_and_kinds(server, monkeypatch):
    assert send(server, "healthz", method="GET", X_API_Key="no")[0] == 200
    assert send(server, "get_server_capabilities", method="GET", X_API_Key="no")[0] == 401
    assert send(server, "create_session", {}, Host="evil.example")[0] == 403
    assert send(server, "create_session", {}, Content_Type="text/plain")[0] == 415
    assert send(server, "forward_backward", raw=b"x", Content_Encoding="zstd")[0] == 415
    assert send(server, "create_session", {}, Content_Length=str(1 << 35))[0] == 413
    future = {"request_id": "x"}
    assert send(server, "retrieve_future", future)[0] == 404
    future = {"request_id": session(server)}
    assert send(server, "retrieve_future", future)[0] == 404
    monkeypatch.delenv(tenants.KEY_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="JAXRL_TINKER_KEY must be set"):
        tenants.key_of("0.0.0.0")
    monkeypatch.setenv(tenants.KEY_VARIABLE, "tml-mine")
    assert tenants.key_of("0.0.0.0") == tenants.key_of("localhost") == "tml-mine"
    monkeypatch.setenv(tenants.KEY_VARIABLE, "mine")
    with pytest.raises(ValueError, match="must begin with tml-"):
        tenants.key_of("localhost")


def test_saved_weights_expire_and_names_are_taken_once():
    book = ledger.Ledger(MODEL, SHAPE, 64)

    def do(kind, time=0.0, **fields):
        raw = json.dumps(fields).encode()
        operation = ledger.prepare(book, kind, ledger.KINDS[kind](raw), "k", time)
        ledger.enter(book, operation, "k", ledger.digest(kind, raw))
        return operation

    do("create_session")
    fields = {"session_id": "session-0", "base_model": MODEL, "lora_config": {"rank": 2}}
    name = do("create_model", model_seq_id=0, **fields).owner
    do("save_weights", model_id=name, seq_id=1, path="a", ttl_seconds=60)
    path = f"tinker://{name}/weights/a"
    do("load_weights", 60.0, model_id=name, seq_id=3, path=path, optimizer=True)
    for message, when, kind, more in (
        ("has expired", 61.0, "load_weights", {"path": path, "optimizer": True}),
        ("'a' is taken", 0.0, "save_weights", {"path": "a"}),
    ):
        with pytest.raises(Refused, match=message):
            do(kind, when, model_id=name, seq_id=4, **more)
    do("save_weights_for_sampler", model_id=name, seq_id=4, path="c", ttl_seconds=60)
    sampler = {"session_id": "session-0", "sampling_session_seq_id": 0}
    sampler["model_path"] = f"tinker://{name}/sampler_weights/c"
    do("create_sampling_session", 60.0, **sampler)
    do("create_sampling_session", 61.0, **sampler)  # sent again
    with pytest.raises(Refused, match="has expired"):
        do("create_sampling_session", 61.0, **sampler | {"sampling_session_seq_id": 1})
    with pytest.raises(Refused, match="in order"):
        do("save_weights", model_id=name, seq_id=2, path="b")
    saved = do("save_weights", 5.0, model_id=name, seq_id=5, path="a", overwrite=True).saved
    assert saved.file.endswith("/5.safetensors") and saved.expires is None


class Killed(BaseException):
    """In the place of `kill -9`."""


BASE = functools.cache(actor)


def begun(run_dir) -> service.Service:
    config = TinkerConfig(run_dir=str(run_dir), max_context_tokens=64)
    return service.start(BASE(), MODEL, config)


def state_of(served):
    """What a client can learn of a service, and what it has yet to do."""
    answers = {}
    for name in served.ledgers[""].digests:
        with contextlib.suppress(Refused):
            answers[name] = service.answer(served, name, 0)
    queue = [(o.id, o.body) for queue in served.queues.values() for o in queue]
    states = {
        name: learner.to_arrays(state._asdict()) if state else None
        for name, state in served.learners.items()
    }
    shown = jax.tree.map(lambda a: np.asarray(a).tobytes(), states)
    return served.ledgers[""], answers, [str(entry) for entry in queue], shown, served.snapshots


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """A run directory with requests of each kind: done, failed, and yet to be done."""
    place = tmp_path_factory.mktemp("journal")
    served = begun(place)

    def accept(kind, raw=None, reply=b"r", failed=False, **fields):
        raw = json.dumps(fields).encode() if raw is None else raw
        operation = service.accept(served, kind, raw, "k" if kind == "create_session" else "")
        if reply and kind not in service._AT_ONCE:
            answer = service.Answer("protobuf", reply * 50)
            service.end(served, operation.id, answer, failed=failed)
        return operation.id

    whose = accept("create_session")
    create = {"session_id": whose, "model_seq_id": 0, "base_model": MODEL}
    name = accept("create_model", **create, lora_config={"rank": 2}).removesuffix(":0")
    start = {"session_id": whose, "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = accept("create_sampling_session", **start)
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1] * 40}]}
    for n in range(3):
        accept("forward_backward", batch(name, 4 * n + 1, [1, 2, 3, 4, 5]), b"f")
        accept("forward_backward", batch(name, 4 * n + 2, [1, 2, 3, 4, 5]), b"e", failed=n == 1)
        accept("optim_step", model_id=name, seq_id=4 * n + 3, adam_params={})
        accept("save_weights", model_id=name, seq_id=4 * n + 4, path=f"p{n}")
        body = {"sampling_session_id": sampler, "seq_id": n, "prompt": prompt}
        accept("asample", reply=b"s" if n else b"", **body, sampling_params={"max_tokens": 2})
    accept("forward_backward", batch(name, 13, [1, 2, 3, 4, 5]), b"")
    config = served.ledgers[""].models[name].config
    shape = learner.shape_of(SHAPE, config)
    state = learner.create(SHAPE, served.actor.params, shape, 3)
    learner.write(service.snapshot_path(served, name), state, 8, config, moments=True)
    served.journal.file.close()
    return place


def kill_at(point, patch) -> None:
    """Kill a compaction before its row `point`, or before or after what `point` names."""
    counts = [0]

    def dying(function, *, after=False, at=0):
        def call(*args, **more):
            counts[0] += 1
            if counts[0] <= at:
                return function(*args, **more)
            if after:
                function(*args, **more)
            raise Killed

        return call

    if isinstance(point, int):
        patch.setattr(compaction, "_shorter", dying(compaction._shorter, at=point))
        return
    when, name = point.split()
    owner = compaction.storage if name == "sync" else compaction.os
    patch.setattr(owner, name, dying(getattr(owner, name), after=when == "after"))


@pytest.mark.broad
@pytest.mark.parametrize("hours", [0, 2])
def test_a_journal_that_is_compacted_says_the_same(journal, hours, tmp_path, monkeypatch):
    """Killed at any point, too; what is left of answers goes after an hour."""
    shutil.copytree(journal, tmp_path / "whole")
    served = begun(tmp_path / "whole")
    before, size, now = state_of(served), served.journal.size, time.time() + 3600 * hours
    compaction.compact(served, now)
    compacted = (tmp_path / "whole" / journals.JOURNAL).read_bytes()
    assert len(compacted) == served.journal.size < size
    after = state_of(served)
    gone = {n for n in before[1] if after[1].get(n) != before[1][n]}
    done = {n for n, a in before[1].items() if a and a.raw[:1] in b"fes"}
    assert gone == (done if hours else set()) and len(done) == 8
    assert before[0] == after[0] and before[2:] == after[2:]
    compaction.compact(served, now)
    assert (tmp_path / "whole" / journals.JOURNAL).read_bytes() == compacted
    with pytest.raises(ValueError, match="in use by another server"):
        journals.open_journal(tmp_path / "whole", {})
    served.journal.file.close()
    again = begun(tmp_path / "whole")
    assert state_of(again) == after
    raw = batch("session-0:train:0", 1, [1, 2, 3, 4, 5])
    assert service.accept(again, "forward_backward", raw).id in before[0].digests
    with pytest.raises(Refused, match="was another request"):
        service.accept(again, "forward_backward", batch("session-0:train:0", 1, [1] * 5))
    again.journal.file.close()
    points = ["before fsync", "after fsync", "before replace", "after replace", "after sync"]
    for point in [5, *points]:
        place = tmp_path / str(point)
        shutil.copytree(journal, place)
        served = begun(place)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_at(point, patch)
            compaction.compact(served, now)
        served.journal.file.close()
        served = begun(place)
        renamed = point in ("after replace", "after sync")
        assert state_of(served) == (after if renamed else before), point
        assert not (place / journals.FRESH).exists()
        compaction.compact(served, now)
        assert (place / journals.JOURNAL).read_bytes() == compacted, point
        served.journal.file.close()


@pytest.mark.broad
def test_a_compacted_journal_needs_its_snapshot(journal, tmp_path):
    shutil.copytree(journal, tmp_path / "a")
    served = begun(tmp_path / "a")
    compaction.compact(served, time.time())
    served.journal.file.close()
    service.snapshot_path(served, "session-0:train:0").unlink()
    with pytest.raises(ValueError, match=r"state.safetensors is missing .* put the file back"):
        begun(tmp_path / "a")


@pytest.mark.broad
def test_a_large_pass_holds_the_activations_of_one_layer():
    """Data are as long as a client likes; those of all layers took 24 GB for SmolLM2-135M."""

    def memory(layers):
        model = dataclasses.replace(SHAPE, num_layers=layers, max_positions=1024)
        shape = learner.shape_of(model, bodies.Lora(rank=2, seed=0))
        base = jax.eval_shape(lambda: decoder.init(model, jax.random.key(0)))
        adapters = jax.eval_shape(lambda x: learner.create(model, x, shape, 0).adapters, base)
        ids, mask = (jax.ShapeDtypeStruct((8, 1024), kind) for kind in (np.int32, bool))
        weights = jax.ShapeDtypeStruct((8, 1024), np.float32)
        rows = gradients.Rows(ids, ids, mask, {"weights": weights})
        arguments = (model, shape, "cross_entropy", base, adapters, rows, {}, None)
        program = gradients._gradient.lower(*arguments).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert memory(6) < 1.5 * memory(2)


if __name__ == "__main__":
    served = make(sys.argv[1], int(sys.argv[2]), snapshot_every=3, compact_bytes=int(sys.argv[3]))
    print("ready", flush=True)
    served.serve_forever()
