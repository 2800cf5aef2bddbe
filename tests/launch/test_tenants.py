"""Tenants of the Tinker service: each sees what is its own, within its limits, in its turn."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.launch.server.http import Refused
from jaxrl.launch.server.tinker import learner, ledger, queueing, service, tenants
from jaxrl.launch.server.tinker.bodies import Lora
from jaxrl.launch.server.tinker.service import TinkerConfig
from tests.launch import test_tinker as tinker

ANA, BEN = "tml-ana", "tml-ben"
SHORT = {"max_context_tokens": 64, "slots": 8}


def write_keys(place, **limits) -> str:
    """A file of two keys; the limits are Ana's."""
    rows = [{"name": "ana", "key": ANA, **limits}, {"name": "ben", "sha256": tenants.digest(BEN)}]
    place.mkdir(exist_ok=True)
    (place / "keys.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(place / "keys.jsonl")


def begun(place, models_at_once=1, **limits) -> service.Service:
    """A service whose thread does not run."""
    keys, run = write_keys(place, **limits), str(place / "run")
    config = TinkerConfig(run, keys=keys, models_at_once=models_at_once, **SHORT)
    return service.start(tinker.BASE(), tinker.MODEL, config)


@pytest.mark.parametrize(
    "lines, message",
    [
        ("", "has no keys"),
        ("nonsense", "line 1: it: Invalid JSON"),
        ('{"name": "ana"}', "line 1: it: .*give one of key and sha256"),
        ('{"name": "ana", "key": "tml-a", "sha256": "' + "0" * 64 + '"}', "give one of key and"),
        ('{"name": "Ana B", "key": "tml-a"}', "line 1: name: String should match pattern"),
        ('{"name": "ana", "key": "secret"}', "line 1: key: String should match pattern '.tml-"),
        ('{"name": "ana", "key": "tml-a", "model": 3}', "line 1: model: Extra inputs"),
        ('{"name": "ana", "key": "tml-a", "models": 0}', "line 1: models: .*greater than"),
        ('{"name": "ana", "key": "tml-a"}\n\n{"name": "ana", "key": "tml-b"}', "line 3: name 'ana"),
        ('{"name": "ana", "key": "tml-a"}\n{"name": "b", "key": "tml-a"}', "has the same key"),
    ],
)
def test_a_file_of_keys_that_is_wrong_is_refused_by_its_line(lines, message, tmp_path):
    (tmp_path / "keys").write_text(lines)
    with pytest.raises(ValueError, match=message) as error:
        tenants.load(str(tmp_path / "keys"), "localhost")
    assert "secret" not in str(error.value)  # a key must not end up in a log


def test_keys_come_from_one_place(tmp_path, monkeypatch):
    monkeypatch.setenv(tenants.KEY_VARIABLE, "tml-mine")
    with pytest.raises(ValueError, match="JAXRL_TINKER_KEY is set; unset one"):
        tenants.load(write_keys(tmp_path), "localhost")
    monkeypatch.delenv(tenants.KEY_VARIABLE)
    assert [*tenants.load(write_keys(tmp_path), "0.0.0.0")] == ["ana", "ben"]
    (sole,) = tenants.load("", "127.0.0.1").values()
    assert sole == tenants.find([sole], "tml-local") and tenants.find([sole], "tml-x") is None


def request(kind, session, seq, other=None):
    """A body of a kind, about one's own session or another's."""
    whose = other or session
    model, sampler = f"{whose}:train:0", f"{whose}:sample:0"
    path = f"tinker://{model}/weights/w"
    fields = {
        "create_session": {},
        "create_sampling_session": {
            "session_id": session, "sampling_session_seq_id": seq, "model_path": path
        },
        "base": {
            "session_id": whose, "sampling_session_seq_id": 0, "base_model": tinker.MODEL
        },
        "create_model": {
            "session_id": whose, "model_seq_id": 0, "base_model": tinker.MODEL,
            "lora_config": {"rank": 2},
        },
        "optim_step": {"model_id": model, "seq_id": seq, "adam_params": {}},
        "save_weights": {"model_id": model, "seq_id": seq, "path": "w"},
        "save_weights_for_sampler": {"model_id": model, "seq_id": seq, "path": "w"},
        "load_weights": {
            "session_id": session, "model_seq_id": seq, "path": path, "optimizer": True
        },
        "asample": {
            "sampling_session_id": sampler, "seq_id": seq,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]},
            "sampling_params": {"max_tokens": 2},
        },
    }  # fmt: skip
    if kind == "forward_backward":
        return kind, tinker.batch(model, seq, [1, 2, 3, 4, 5])
    name = "create_sampling_session" if kind == "base" else kind
    return name, json.dumps(fields[kind]).encode()


REQUESTS = (
    "create_session", "create_sampling_session", "base", "create_model", "forward_backward",
    "optim_step", "save_weights", "save_weights_for_sampler", "load_weights", "asample",
)  # fmt: skip


def reply(served, tenant, kind, seq, other=None):
    """What a tenant is told of a request: an id or a refusal, and then the answer."""
    name, raw = request(kind, f"{tenant}-session-0", seq, other)
    try:
        operation = service.accept(served, name, raw, f"{kind} {seq}", tenant)
    except Refused as error:
        return error.status, str(error)
    text = service.Answer("json", f"of {tenant} {kind} {seq}".encode())
    if name not in service._AT_ONCE:
        service.end(served, operation.id, text)
        return operation.id, service.answer(served, operation.id, 0, tenant)
    return operation.id


STEPS = st.lists(
    st.tuples(st.sampled_from(("ana", "ben")), st.sampled_from(REQUESTS), st.integers(1, 6)),
    min_size=4,
    max_size=30,
)


@settings(max_examples=12, deadline=None)
@given(STEPS)
def test_what_a_tenant_is_told_depends_on_its_own_requests_alone(tmp_path_factory, steps):
    """Names, numbers and refusals are those of a server that the other does not use."""
    starts = [
        (who, kind, 1) for who in ("ana", "ben") for kind in ("create_session", "create_model")
    ]
    rows = [*starts, *steps]
    both = begun(tmp_path_factory.mktemp("both"))
    told = [(who, reply(both, who, kind, seq)) for who, kind, seq in rows]
    for tenant in ("ana", "ben"):
        alone = begun(tmp_path_factory.mktemp("alone"))
        expected = [reply(alone, who, kind, seq) for who, kind, seq in rows if who == tenant]
        assert [r for who, r in told if who == tenant] == expected
        alone.journal.file.close()
    books = both.ledgers
    both.journal.file.close()
    again = service.start(tinker.BASE(), tinker.MODEL, both.config)
    assert again.ledgers == books and again.places.keys() == both.places.keys()
    again.journal.file.close()


@pytest.mark.parametrize("kind", [kind for kind in REQUESTS if kind != "create_session"])
def test_what_another_has_is_answered_like_what_nobody_has(kind, tmp_path):
    served = begun(tmp_path)
    for step in ("create_session", "create_model", "forward_backward", "save_weights", "base"):
        assert reply(served, "ben", step, {"save_weights": 2}.get(step, 1))[0] not in (400, 404)
    assert reply(served, "ana", "create_session", 1)
    size = served.journal.size
    real, nobody = "ben-session-0", "eve-session-0"
    answers = {other: reply(served, "ana", kind, 3, other) for other in (real, nobody)}
    assert answers[real][0] == 404
    assert answers[real][1].replace(real, nobody) == answers[nobody][1]
    assert served.journal.size == size
    for name in served.ledgers["ben"].digests:
        with pytest.raises(Refused, match="is not known here") as error:
            service.answer(served, name, 0, "ana")
        assert error.value.status == 404


def test_limits_of_a_tenant(tmp_path):
    size = learner.memory(tinker.SHAPE, tinker.BASE().params, Lora(rank=2))
    arrays = learner.to_arrays(
        learner.create(
            tinker.SHAPE, tinker.BASE().params, learner.shape_of(tinker.SHAPE, Lora(rank=2)), 0
        ).adapters
    )
    assert 4 * sum(a.nbytes for a in arrays.values()) <= size < 4.1 * 4 * 10**4

    def create(served, tenant, seq, rank=2):
        name = f"{tenant}-session-0"
        if name not in served.ledgers[tenant].sessions:
            service.accept(served, "create_session", b"{}", "k", tenant)
        body = {"session_id": name, "model_seq_id": seq, "base_model": tinker.MODEL}
        raw = json.dumps({**body, "lora_config": {"rank": rank}}).encode()
        return service.accept(served, "create_model", raw, tenant=tenant)

    for n, (limits, message) in enumerate(
        [
            ({"models": 2}, "may have 2 models and has them"),
            ({"memory_bytes": 2 * size + 1}, f"takes {size} bytes .* has {2 * size}"),
        ]
    ):
        served = begun(tmp_path / str(n), **limits)
        for seq in (0, 1, 1):  # sent again, it is the same model
            create(served, "ana", seq)
        with pytest.raises(Refused, match=message) as error:
            create(served, "ana", 2)
        assert error.value.status == 403
        for seq in range(3):
            create(served, "ben", seq)
        served.journal.file.close()
    served = begun(tmp_path / "waiting", waiting=3)
    for seq in range(3):
        create(served, "ana", seq)
    with pytest.raises(Refused, match="3 requests of this key wait") as error:
        create(served, "ana", 3)
    assert error.value.status == 429
    for seq in range(5):
        create(served, "ben", seq)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(("ana", "ben")), st.booleans()), max_size=40))
def test_tenants_take_turns(tmp_path_factory, steps):
    """Whoever waits is served next but one, however much of the other waits; and in order."""
    served = begun(tmp_path_factory.mktemp("turns"))
    for tenant in ("ana", "ben"):
        for kind in ("create_session", "create_model", "base"):
            reply(served, tenant, kind, 1)
    served.queues.clear()
    accepted = {"ana": [], "ben": []}
    for seq, (tenant, sample) in enumerate(steps, 1):
        kind, raw = request("asample" if sample else "save_weights_for_sampler",
                            f"{tenant}-session-0", seq)  # fmt: skip
        if not sample:
            raw = raw.replace(b'"w"', f'"w{seq}"'.encode())
        accepted[tenant].append(service.accept(served, kind, raw, tenant=tenant).id)
    taken, last = [], None
    while served.queues:
        waits = set(served.queues)
        operations = queueing.take(served)
        served_now = {ledger.tenant_of(o.owner) for o in operations}
        first = ledger.tenant_of(operations[0].owner)
        assert first != last or waits == {first}
        assert sum(o.body.num_samples for o in operations if o.kind == "asample") <= 16
        if operations[0].kind == "asample" and len(operations) == 16:
            assert len(served_now) == 1 or [
                sum(ledger.tenant_of(o.owner) == t for o in operations) for t in waits
            ] != [1, 15]
        last = first
        taken += [o.id for o in operations]
    assert sorted(taken) == sorted(accepted["ana"] + accepted["ben"])
    saved = {f"{t}-session-0:train:0:" for t in accepted}
    for prefix in saved:
        of_model = [name for name in taken if name.startswith(prefix)]
        assert of_model == sorted(of_model, key=lambda name: int(name.rpartition(":")[2]))


def test_a_flood_does_not_starve_the_other(tmp_path):
    """A request that comes after 200 samples of another's is among the first two."""
    served = begun(tmp_path)
    for tenant in ("ana", "ben"):
        for kind in ("create_session", "base", "create_model"):
            reply(served, tenant, kind, 1)
    served.queues.clear()
    for seq in range(200):
        service.accept(served, *request("asample", "ana-session-0", seq), tenant="ana")
    late = service.accept(served, *request("forward_backward", "ben-session-0", 1), tenant="ben")
    sample = service.accept(served, *request("asample", "ben-session-0", 1), tenant="ben")
    taken = [{o.id for o in queueing.take(served)} for _ in range(3)]
    assert len(taken[0]) == 16 and late.id in taken[1] and sample.id in taken[0] | taken[2]
    assert sum(len(queue) for queue in served.queues.values()) == 202 - sum(map(len, taken))


def test_gradients_of_two_tenants_go_together(tmp_path):
    """The names of these two give the first models of each two places."""
    served = begun(tmp_path, models_at_once=2)
    for tenant in ("ana", "ben"):
        for kind in ("create_session", "create_model"):
            reply(served, tenant, kind, 1)
    served.queues.clear()
    for tenant in ("ana", "ben"):
        for seq in (1, 2):
            raw = request("forward_backward", f"{tenant}-session-0", seq)
            service.accept(served, *raw, tenant=tenant)
    assert [len(queueing.take(served)) for _ in range(2)] == [2, 2] and not served.queues


def test_two_tenants_of_one_server(tmp_path):
    """By HTTP: results are those of one who is alone, and each key opens its own."""
    limits = {"models": 1, "max_body_bytes": 2000}
    keys = write_keys(tmp_path, **limits)
    with tinker.serving(tmp_path / "run", keys=keys) as server:
        assert tinker.send(server, "get_server_capabilities", method="GET")[0] == 401
        status, answer = tinker.send(server, "create_session", {}, X_API_Key="tml-eve")
        assert status == 401 and b"send a key that the server knows" in answer
        outputs, models = [], []
        for key, name in ((ANA, "ana"), (BEN, "ben")):
            more = {"X_API_Key": key}
            session = tinker.ask(server, "create_session", {}, **more)["session_id"]
            assert session == f"{name}-session-0"
            body = {"session_id": session, "model_seq_id": 0, "base_model": tinker.MODEL}
            body |= {"lora_config": {"rank": 2, "seed": 1}}
            models.append(json.loads(tinker.result(server, "create_model", body, **more)))
            raw = tinker.batch(models[-1]["model_id"], 1, [1, 2, 3, 4, 5])
            outputs.append(tinker.result(server, "forward_backward", raw=raw, **more))
        assert outputs[0] == outputs[1]
        info = {"model_id": models[1]["model_id"]}
        assert tinker.send(server, "get_info", info, X_API_Key=ANA)[0] == 404
        assert tinker.send(server, "get_info", info, X_API_Key=BEN)[0] == 200
        beat = {"session_id": "ben-session-0"}
        assert tinker.send(server, "session_heartbeat", beat, X_API_Key=ANA)[0] == 404
        raw = tinker.batch(models[0]["model_id"], 2, [1, 2] * 600, weights=[1.0] * 1199)
        status, answer = tinker.send(server, "forward_backward", raw=raw, X_API_Key=ANA)
        assert status == 413 and b"more than 2000; send less at once" in answer
        body |= {"session_id": "ana-session-0", "model_seq_id": 1}
        status, answer = tinker.send(server, "create_model", body, X_API_Key=ANA)
        assert status == 403 and b"this key may have 1 models" in answer
        server.RequestHandlerClass.args[0].journal.file.close()
    (tmp_path / "keys.jsonl").write_text(json.dumps({"name": "ben", "key": BEN}) + "\n")
    with tinker.serving(tmp_path / "run", keys=keys) as server:
        assert tinker.send(server, "get_info", info, X_API_Key=ANA)[0] == 401
        assert tinker.send(server, "get_info", info, X_API_Key=BEN)[0] == 200
