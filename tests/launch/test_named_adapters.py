"""Adapters of a server, by real requests: each is a model, and all share the slots."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxrl.launch.server import command
from jaxrl.launch.server.http import ServeConfig
from jaxrl.models import lora
from jaxrl.models.checkpoints import peft
from jaxrl.models.lora import LoraConfig
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
        streamed = {**ASKED, "max_tokens": 60, "model": "x", "stream": True}
        before = send(server, "POST", "/v1/completions", streamed)[1]
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(send(server, "POST", "/v1/completions", streamed)[1])
        )
        thread.start()
        assert load("x", "small", load_inplace=True)[0] == 200
        equal(choices(server, "x", n=3, echo=True), expected["small"])
        thread.join()
        texts = [_text(answer) for answer in (before, *answers)]
        assert texts[1] in (texts[0], _text(send(server, "POST", "/v1/completions", streamed)[1]))
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


def _text(stream):
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
