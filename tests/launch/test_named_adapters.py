"""Adapters of a server, by real requests: each is a model, and all share the slots."""

from __future__ import annotations

import contextlib
import http.client
import json
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxrl.launch.server import command
from jaxrl.launch.server.http import ServeConfig
from jaxrl.launch.server.tinker import work
from jaxrl.models import lora
from jaxrl.models.checkpoints import peft
from jaxrl.models.lora import LoraConfig
from tests.launch import test_tinker as tinker
from tests.launch.test_serve import actor, post, send, serving

ASKED = {"prompt": "hello", "max_tokens": 12, "seed": 5, "logprobs": 1}
RANKS = {"small": (1, ("*/attention/q",)), "wide": (5, ("*/mlp/*",))}


def write(folder, policy, rank, targets, seed=0):
    """An adapter in the form of PEFT; returns the policy with it merged in."""
    config = LoraConfig(rank=rank, alpha=8.0, targets=targets)
    fresh = lora.init(jax.random.key(seed), policy.model, policy.params, config)
    keys = iter(jax.random.split(jax.random.key(seed + 1), 30))
    adapters = jax.tree.map(lambda x: x + 0.5 * jax.random.normal(next(keys), x.shape), fresh)
    peft.save(folder, policy.model, adapters, config)
    return policy._replace(params=lora.merge(policy.model, policy.params, adapters, config))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def merged(folder):
    """Policies by the names of their adapters, and the base."""
    policies = {"tiny": actor()}
    for seed, (name, (rank, targets)) in enumerate(RANKS.items()):
        policies[name] = write(folder / name, policies["tiny"], rank, targets, seed)
    return policies


def choices(server, model, **more):
    answer = post(server, "/v1/completions", **ASKED, **more, model=model)
    assert answer["model"] == model
    return answer["choices"]


@pytest.fixture(scope="module")
def expected(merged):
    """What servers of the merged models answer, one after another."""
    answers = {}
    for name, policy in merged.items():
        with serving(policy) as server:
            answers[name] = post(server, "/v1/completions", **ASKED, n=3, echo=True)["choices"]
    return answers


@pytest.fixture(scope="module")
def server(folder, merged):
    named = tuple(f"{name}={folder / name}" for name in RANKS)
    with serving(merged["tiny"], adapters=named) as started:
        yield started


def equal(choices, expected):
    for got, wanted in zip(choices, expected, strict=True):
        assert got["text"] == wanted["text"]
        a, b = (c["logprobs"]["token_logprobs"] for c in (got, wanted))
        np.testing.assert_allclose(np.array(a, float), np.array(b, float), atol=1e-5)


def test_each_adapter_answers_as_its_merged_model_while_all_are_asked(server, expected):
    """Texts, log-probabilities of samples and of the prompt, at once and in any order."""
    order = [*expected, *reversed(expected)] * 2
    with ThreadPoolExecutor(len(order)) as pool:
        got = [pool.submit(choices, server, name, n=3, echo=True) for name in order]
        for name, future in zip(order, got, strict=True):
            equal(future.result(), expected[name])
    assert len({choices[0]["text"] for choices in expected.values()}) == 3


def test_models_are_listed_and_unknown_ones_refused(server):
    status, answer = send(server, "GET", "/v1/models")
    listed = json.loads(answer)["data"]
    assert [m["id"] for m in listed] == ["tiny", "small", "wide"]
    assert [m.get("parent") for m in listed] == [None, "tiny", "tiny"]
    assert send(server, "GET", "/v1/models/wide")[0] == 200
    assert send(server, "GET", "/v1/models/other")[0] == 404
    status, answer = send(server, "POST", "/v1/completions", {**ASKED, "model": "other"})
    assert status == 404 and "there are tiny, small, wide" in answer
    status, answer = send(server, "POST", "/v1/load_lora_adapter", {"lora_name": "a"} | PLACE)
    assert status == 403 and "--adapter-directory" in answer


PLACE = {"lora_path": "small"}


def test_adapters_are_loaded_and_unloaded(folder, merged, expected):
    """A call in progress keeps the adapter that it began with."""
    limits = {"adapter_directory": str(folder), "max_adapters": 2, "max_adapter_rank": 5}
    with serving(merged["tiny"], **limits) as server:

        def load(name, path, **more):
            body = {"lora_name": name, "lora_path": path, **more}
            return send(server, "POST", "/v1/load_lora_adapter", body)

        def unload(name):
            return send(server, "POST", "/v1/unload_lora_adapter", {"lora_name": name})

        assert load("x", "wide")[0] == 200
        equal(choices(server, "x", n=3, echo=True), expected["wide"])
        body = {**ASKED, "max_tokens": 60, "model": "x", "stream": True}
        before = send(server, "POST", "/v1/completions", body)[1]
        with begun(server, body) as stream:
            first = stream.readline()
            assert load("x", "small", load_inplace=True)[0] == 200
            equal(choices(server, "x", n=3, echo=True), expected["small"])
            assert text_of((first + stream.read()).decode()) == text_of(before)
        assert text_of(send(server, "POST", "/v1/completions", body)[1]) != text_of(before)
        assert load("y", str(folder / "wide"))[0] == 200
        for (status, answer), expected_status, words in (
            (load("y", "small"), 400, "the name is taken"),
            (load("tiny", "small"), 400, "the name is taken"),
            (load("z", "small"), 409, "unload one"),
            (load("z", "../other"), 403, "outside"),
            (load("z", "absent"), 404, "not there"),
            (load("a b", "small"), 400, "a name has 1 to 100"),
            (load("z", "small", rank=3), 400, "body has 'rank'"),
            (load("z", 3), 400, "lora_path"),
            (unload("z"), 404, "there are x, y"),
        ):
            assert status == expected_status and words in answer
            assert str(folder) not in answer
        assert unload("x")[0] == 200
        status, answer = send(server, "POST", "/v1/completions", {**ASKED, "model": "x"})
        assert status == 404
        assert load("z", "wide")[0] == 200
        equal(choices(server, "z", n=3, echo=True), expected["wide"])


@contextlib.contextmanager
def begun(server, body):
    """The answer to a request for a stream, as it comes."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=300)
    kind = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), kind)
    yield connection.getresponse()
    connection.close()


def text_of(stream):
    lines = [line.removeprefix("data: ") for line in stream.split("\n\n") if line][:-1]
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


def change(folder, **fields):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def tensors(folder, function):
    path = folder / "adapter_model.safetensors"
    arrays = {k: function(v) for k, v in safetensors.numpy.load_file(path).items()}
    safetensors.numpy.save_file({k: v.copy() for k, v in arrays.items()}, path)


WRONG = {
    "another rank": (lambda f: change(f, r=3), "shape .* r=3"),
    "no rank": (lambda f: change(f, r=None), "r=None; a rank is a whole number"),
    "another method": (lambda f: change(f, peft_type="IA3"), "peft_type='IA3'"),
    "dora": (lambda f: change(f, use_dora=True), "missing tensors"),
    "another base": (lambda f: tensors(f, lambda v: v[:, :3]), "shape .* base that the adapter"),
    "nan": (lambda f: tensors(f, lambda v: v * np.nan), "nan or infinite"),
    "damaged": (
        lambda f: (f / "adapter_model.safetensors").write_bytes(b"no"),
        "cannot be read: SafetensorError",
    ),
    "no adapter": (lambda f: (f / "adapter_config.json").unlink(), "holds neither"),
}


@pytest.mark.sample(3, broad=5)
@pytest.mark.parametrize("kind", WRONG)
def test_wrong_adapters_are_refused_when_the_server_starts(kind, tmp_path):
    policy, (spoil, words) = actor(), WRONG[kind]
    write(tmp_path / "a", policy, 2, ("*/attention/q", "*/attention/k"))
    spoil(tmp_path / "a")
    with pytest.raises(ValueError, match=words):
        command.make_server(
            policy, ServeConfig(port=0, adapters=(f"a={tmp_path / 'a'}",), **SHORT), "tiny"
        )


SHORT = {"max_prompt_tokens": 64, "max_new_tokens": 64}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"adapters": ("a",)}, "write NAME=DIRECTORY"),
        ({"adapters": ("tiny=x",)}, "the name is taken"),
        ({"adapters": ("a=absent",)}, "no directory 'absent'"),
        ({"adapter_directory": "absent"}, "adapter_directory='absent'"),
        ({"adapter_directory": ".", "max_adapters": 0}, "max_adapters=0"),
    ],
)
def test_wrong_settings_are_refused(fields, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        command.make_server(actor(), ServeConfig(port=0, **fields, **SHORT), "tiny")


def train(server, seed, rank):
    """A sampler of a model of the Tinker service that was trained."""
    model = tinker.create(server, rank=rank, seed=seed)
    raw = tinker.batch(model, 1, [1 + seed, 2, 3, 4, 5])
    tinker.result(server, "forward_backward", raw=raw)
    step = {"model_id": model, "seq_id": 2, "adam_params": {"learning_rate": 0.1}}
    tinker.result(server, "optim_step", step)
    body = {"model_id": model, "seq_id": 3, "sampling_session_seq_id": 0}
    return json.loads(tinker.result(server, "save_weights_for_sampler", body))[
        "sampling_session_id"
    ]


def ask_for_samples(server, sampler, number, seed):
    """The id of a request for samples."""
    body = {"sampling_session_id": sampler, "seq_id": number, "num_samples": 2}
    body |= {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}}
    body |= {"sampling_params": {"max_tokens": 20, "seed": seed, "temperature": 1.0}}
    body |= {"prompt_logprobs": True}
    return tinker.ask(server, "asample", body)["request_id"]


def samples_of(server, request):
    """Tokens and log-probabilities, and those of the prompt."""
    while (got := tinker.send(server, "retrieve_future", {"request_id": request}))[0] == 408:
        pass
    message = tinker.wire._CLASSES["SampleResponse"].FromString(got[1])
    arrays = [(np.frombuffer(s.tokens, "<i4"), np.frombuffer(s.logprobs, "<f4"))
              for s in message.sequences]  # fmt: skip
    return [*arrays, (np.zeros(0), np.frombuffer(message.prompt_logprobs, "<f4"))]


@pytest.mark.broad
def test_the_service_samples_for_several_models_in_one_batch(tmp_path, monkeypatch):
    """As each alone, though places are fewer than models, and as with the adapters added into the
    weights."""
    ranks, answers, batches = (3, 4, 4), {}, []
    sample = work.sample

    def record(setup, params, jobs, places):
        batches.append(len({*places}))
        return sample(setup, params, jobs, places)

    monkeypatch.setattr(work, "sample", record)
    for at_once in (1, 2):
        with tinker.serving(tmp_path / str(at_once), models_at_once=at_once) as server:
            samplers = [train(server, seed, rank) for seed, rank in enumerate(ranks)]
            alone = [
                samples_of(server, ask_for_samples(server, sampler, 0, seed))
                for seed, sampler in enumerate(samplers)
            ]
            assert max(batches) == 1
            waiting = [
                ask_for_samples(server, sampler, 1, seed) for seed, sampler in enumerate(samplers)
            ]
            for expected, request in zip(alone, waiting, strict=True):
                equal_samples(samples_of(server, request), expected)
            answers[at_once] = alone
    assert max(batches) == 2
    for merged, beside in zip(*answers.values(), strict=True):
        equal_samples(beside, merged)


def equal_samples(got, expected):
    for (tokens, logp), (other_tokens, other_logp) in zip(got, expected, strict=True):
        np.testing.assert_array_equal(tokens, other_tokens)
        np.testing.assert_allclose(logp, other_logp, atol=1e-5)
