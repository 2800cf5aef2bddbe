"""Adapters of a server, by real requests: each is a model, and all share the slots."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxrl.launch.server import command
from jaxrl.launch.server.http import ServeConfig
from jaxrl.launch.server.tinker import bodies, gradients, learner, queueing, service, wire, work
from jaxrl.launch.server.tinker.service import TinkerConfig
from jaxrl.models import lora
from jaxrl.models.checkpoints import peft
from jaxrl.models.config import DeltaRule, Experts
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

    def record(setup, params, jobs, places, *rest):
        batches.append(len({*places}))
        return sample(setup, params, jobs, places, *rest)

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


PLACES = 3


def job_of(model, base, loss, rank, place, forward_only=False, **settings):
    """A request of a model that was trained; seeds, data and lengths are of the place."""
    shape = learner.shape_of(model, bodies.Lora(rank=rank))
    start = learner.create(model, base, shape, place)
    rng = np.random.default_rng(place)
    adapters = jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape).astype("f4"), start[0])
    names = ("weights",) if loss == "cross_entropy" else ("logprobs", "advantages")
    data = []
    for length in rng.integers(2, 30, 3 + (place > 0)):
        tokens = rng.integers(0, model.vocab_size, length + 1).astype(np.int32)
        inputs = {name: rng.normal(size=length).astype("f4") - 1 for name in names}
        data.append(wire.Datum(tokens[:-1], tokens[1:], inputs))
    batch = wire.Batch("m", 1, loss, settings, forward_only, data)
    return gradients.PlacedRequest(place, shape, learner.Learner(adapters, None), batch)


def equal_results(got, expected, tolerance=0.0):
    """Gradients, which are sums over tokens, as parts of their greatest number."""
    (state, logprobs, loss), (other, other_logprobs, other_loss) = got, expected
    np.testing.assert_allclose(loss, other_loss, rtol=tolerance, atol=tolerance)
    for arrays in zip(logprobs, other_logprobs, strict=True):
        np.testing.assert_allclose(*arrays, rtol=0, atol=tolerance)
    gradients_of = [jax.tree.leaves(each.gradient) for each in (state, other)]
    for leaf, other_leaf in zip(*gradients_of, strict=True):
        greatest = np.abs(other_leaf).max()
        np.testing.assert_allclose(leaf, other_leaf, rtol=0, atol=tolerance * greatest)


@pytest.mark.exact(
    "gradients of several adapters in one program: each as alone in it, and to 1e-5 as by itself"
)
@pytest.mark.parametrize(
    "loss, forward_only",
    [
        ("cross_entropy", False),
        pytest.param("ppo", False, marks=pytest.mark.slow),
        pytest.param("gspo", True, marks=pytest.mark.slow),
    ],
)
def test_gradients_of_several_adapters_are_those_of_each(loss, forward_only):
    """To the last bit whoever is in the other places, even one whose numbers are not finite."""
    model, base = tinker.SHAPE, tinker.BASE().params
    settings = {} if loss == "cross_entropy" else {"clip_high_threshold": 1.01}
    jobs = [
        job_of(model, base, loss, 3, 2, forward_only),
        job_of(model, base, loss, 4, 0, forward_only, **settings),
        job_of(model, base, loss, 4, 1, forward_only),
    ]
    (alike,) = {gradients.pass_of(model, base, j.shape, j.batch, PLACES) for j in jobs}
    results = gradients.together(model, base, alike, jobs, PLACES)
    spoiled = jobs[2]._replace(
        state=jobs[2].state._replace(adapters=jax.tree.map(lambda x: x * 1e30, jobs[2].state[0]))
    )
    beside = gradients.together(model, base, alike, [jobs[1], spoiled], PLACES)
    assert not np.isfinite(beside[1][2])
    for job, got in zip(jobs, results, strict=True):
        expected = gradients.forward_backward(model, base, job.shape, job.state, job.batch)
        equal_results(got, expected, 1e-5)
        again = job._replace(state=got[0])
        single = gradients.together(model, base, alike, [job], PLACES)[0]
        equal_results(got, single)
        if not forward_only:
            assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(got[0].gradient)) > 0.1
            twice = gradients.together(model, base, alike, [again], PLACES)[0]
            summed = twice[0]._replace(gradient=jax.tree.map(lambda x: x / 2, twice[0].gradient))
            equal_results((summed, *twice[1:]), got)
    equal_results(beside[0], results[1])


def test_what_is_computed_in_places_is_said_of_a_request_alone():
    """One place, all weights, experts, recurrent layers and large requests are by themselves."""
    base = tinker.BASE().params
    job = job_of(tinker.SHAPE, base, "cross_entropy", 3, 2)

    def alike(count=PLACES, model=tinker.SHAPE, rank=3, data=job.batch.data):
        shape = learner.shape_of(model, bodies.Lora(rank=rank))
        return gradients.pass_of(model, base, shape, job.batch._replace(data=data), count)

    assert alike() == alike(rank=4) != alike(rank=5)
    assert alike(data=job.batch.data * 2) not in (None, alike())
    assert alike(data=job.batch.data * 8) is None
    assert alike(1) is None and alike(rank=0) is None
    experts = dataclasses.replace(tinker.SHAPE, experts=Experts(4, 2, 8))
    delta = DeltaRule(2, 4, key_dim=8, value_dim=6, taps=4, projections="joined")
    recurrent = dataclasses.replace(tinker.SHAPE, delta=delta, recurrent_layers=(True, False))
    assert alike(model=experts) is None and alike(model=recurrent) is None


def accept_updates(served, models, seqs):
    """Requests of several models, of each in its order."""
    for seq in seqs:
        for model in models:
            step = {"model_id": model, "seq_id": seq, "adam_params": {"learning_rate": 0.1}}
            match seq % 4:
                case 3:
                    service.accept(served, "optim_step", json.dumps(step).encode())
                case 0:
                    save = {"model_id": model, "seq_id": seq, "path": f"s{seq}"}
                    service.accept(served, "save_weights", json.dumps(save).encode())
                case _:
                    raw = tinker.batch(model, seq, [1 + int(model[-1]), 2, 3, seq, 5])
                    service.accept(served, "forward_backward", raw)


def create_models(served, ranks):
    """The names of new models of one session, with adapters of these ranks."""
    session = service.accept(served, "create_session", b"{}", "k").id
    for n, rank in enumerate(ranks):
        body = {"session_id": session, "model_seq_id": n, "base_model": tinker.MODEL}
        body |= {"lora_config": {"rank": rank, "seed": n}}
        service.accept(served, "create_model", json.dumps(body).encode())
    work_off(served)
    return [f"{session}:train:{n}" for n in range(len(ranks))]


def work_off(served, most=10**9):
    """Sizes of the groups in which what waits was worked on."""
    sizes = []
    while served.queues and len(sizes) < most:
        operations = queueing.take(served)
        assert work._attempt(served, operations)
        sizes.append(len(operations))
    return sizes


@pytest.mark.broad
@pytest.mark.exact(
    "weights of a service with several models do not depend on who waits, or on a kill"
)
def test_gradients_of_models_that_wait_are_computed_together(tmp_path):
    """Answers and saved weights are, byte by byte, those of requests that came one by one."""

    def begin(name):
        config = TinkerConfig(
            str(tmp_path / name), max_context_tokens=64, models_at_once=2, snapshot_every=3
        )
        return service.start(tinker.BASE(), tinker.MODEL, config)

    at_once, one_by_one, killed = map(begin, ("at once", "one by one", "killed"))
    for served in (at_once, killed):
        accept_updates(served, create_models(served, (3, 4, 4)), range(1, 13))
    models = create_models(one_by_one, (3, 4, 4))
    for seq in range(1, 13):
        for model in models:
            accept_updates(one_by_one, [model], [seq])
            assert work_off(one_by_one) == [1]
    for done in (1, 7, 5):
        assert len(work_off(killed, done)) == done
        killed.journal.file.close()
        killed = begin("killed")
    sizes = work_off(at_once)
    assert sizes.count(2) > 5 and set(sizes) == {1, 2} and 2 in work_off(killed)
    for name in one_by_one.places:
        expected = service.answer(one_by_one, name, 0)
        assert expected == service.answer(at_once, name, 0) == service.answer(killed, name, 0)
    saved = sorted((tmp_path / "one by one").rglob("models/*/[0-9]*.safetensors"))
    assert len(saved) == 9
    for file in saved:
        for other in ("at once", "killed"):
            path = tmp_path / other / file.relative_to(tmp_path / "one by one")
            assert path.read_bytes() == file.read_bytes(), path


@pytest.mark.parametrize("size", [1, 2])
def test_a_batch_waits_for_clients_that_work_in_step(size, tmp_path):
    """Where requests went together before, and not otherwise."""
    settings = {"max_context_tokens": 64, "models_at_once": 2}
    served = service.start(tinker.BASE(), tinker.MODEL, TinkerConfig(str(tmp_path), **settings))
    models = create_models(served, (2, 2))
    served.batches["forward_backward"] = collections.deque([(size, 8.0), (1, 0.1)], 2)

    def send(n):
        raw = tinker.batch(models[n], 1, [1, 2, 3, 4, 5])
        service.accept(served, "forward_backward", raw)

    send(0)
    with served.changed:
        thread = threading.Thread(target=send, args=(1,))
        thread.start()  # it is accepted as soon as the other waits
        queueing.wait_for_more(served, "forward_backward")
        assert len(queueing.take(served)) == size
    thread.join()
    assert work_off(served) == [1] * (2 - size)
    sizes = [count for count, _ in served.batches["forward_backward"]]
    assert sizes == [1, 1] if size == 1 else [2, 1]
    served.journal.file.close()


@pytest.mark.parametrize("place, name", [(queueing, "pass_of"), (wire, "write_output")])
def test_a_gradient_that_fails_is_answered_and_not_added(place, name, tmp_path, monkeypatch):
    """Wherever it fails, also before the work on it begins; and the thread goes on."""

    def fail(*_):
        raise RuntimeError("no memory")

    with tinker.serving(tmp_path, models_at_once=2) as server:
        model = tinker.create(server, rank=2)
        learners = server.RequestHandlerClass.args[0].learners
        before = learners[model]
        for seq in (1, 2):
            with monkeypatch.context() as patch:
                patch.setattr(place, name, fail)
                raw = tinker.batch(model, seq, [1, 2, 3, 4, 5])
                answer = json.loads(tinker.result(server, "forward_backward", raw=raw))
            assert answer == {"error": "RuntimeError: no memory", "category": "server"}
            assert learners[model] is before


def test_a_sample_is_not_drawn_before_its_weights_are_saved(tmp_path):
    """Though those of another model, which wait before it, are."""
    settings = {"max_context_tokens": 64, "models_at_once": 2}
    served = service.start(tinker.BASE(), tinker.MODEL, TinkerConfig(str(tmp_path), **settings))
    for n, model in enumerate(create_models(served, (2, 2))):
        session = model.partition(":")[0]
        name = {"model_id": model, "seq_id": 1, "sampling_session_seq_id": n}
        service.accept(served, "save_weights_for_sampler", json.dumps(name).encode())
        body = {"sampling_session_id": f"{session}:sample:{n}", "seq_id": 0}
        body |= {"prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {"seed": n}}
        service.accept(served, "asample", json.dumps(body).encode())
    taken = []
    while served.queues:
        operations = queueing.take(served)
        taken.append([operation.kind for operation in operations])
        for operation in operations:  # what saves does so at its turn
            if operation.saved is not None:
                (tmp_path / operation.saved.file).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / operation.saved.file).touch()
    assert taken == [["save_weights_for_sampler"], ["asample"]] * 2
    served.journal.file.close()
