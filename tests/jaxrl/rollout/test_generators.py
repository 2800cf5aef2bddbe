"""Generators that die and join: the tokens are those of one sampler, and little is sampled anew."""

import dataclasses
from concurrent.futures import Future

import jax
import numpy as np
import pytest

from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder
from jaxrl.rollout.engine import Local
from jaxrl.rollout.generators import Fleet, Generator, Gone, Handle
from jaxrl.sampling.logits import Guide, keep
from jaxrl.sampling.work import SamplerConfig, Setup
from jaxrl.types import Request
from tests.jaxrl.batches import MODEL

SETUP = Setup(
    MODEL, jax.random.key(1), (0,), 8, 40, SamplerConfig(8, prefill_rows=4, chunk=4, bucket=16)
)
REQUESTS = [
    Request(n, prompt=(1 + n // 2, 2), max_new_tokens=5 + 3 * n) for n in range(8)
]  # two of each prompt


@pytest.fixture(scope="module")
def params():
    return decoder.unstack(decoder.init(MODEL, jax.random.key(0)))


class World:
    """Generators in this process. One dies in its chunk of a number, if it has one."""

    def __init__(self, dies=None, wrong=(), offer=None, take=None):
        self.dies, self.wrong, self.notes, self.take = dies or {}, wrong, [], take
        self.sampled, self.shared = 0, []
        self.fleet = Fleet(self.start, 2, self.share, self.notes.append, 0.0, offer)

    def share(self, given):
        self.shared.append(given)
        return given

    def start(self, name):
        made = Generator(mesh.make(MeshConfig(), jax.devices()[:1]), str, self.take)
        chunks, left = 0, self.dies.get(name, -1)

        def call(method, *arguments):
            nonlocal chunks
            answer = Future()
            chunks += method == "chunk"
            if chunks == left:
                self.sampled += made.chunk(*arguments).decoded.tokens  # and nobody hears of it
                answer.set_exception(Gone("killed"))
                return answer
            got = getattr(made, method)(*arguments)
            if method == "chunk":
                self.sampled += got.decoded.tokens
            answer.set_result(got + 1 if name in self.wrong and method == "load" else got)
            return answer

        ready = Future()
        ready.set_result(7)
        return Handle(call, lambda: None), ready


def whole(engine):
    """Tokens, versions and log-probabilities of all requests by id."""
    engine.put(REQUESTS)
    found, version = {}, 0
    while engine:
        for c in engine.chunk(version).ended:
            found[c.request.id] = (c.tokens.tolist(), c.version.tolist(), c.logp)
    return found


def tokens(found):
    return {n: each[0] for n, each in found.items()}


@pytest.fixture(scope="module")
def alone(params):
    return whole(Local(SETUP, params))


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("dies", [{}, {"generator 0": 2}, {"generator 0": 1, "generator 1": 3}])
def test_tokens_are_those_of_one_sampler_whoever_dies(params, alone, dies):
    world = World(dies)
    found = whole(world.fleet.engine(SETUP, params))
    assert tokens(found) == tokens(alone)
    for n, (_, _, logp) in found.items():
        np.testing.assert_allclose(logp, alone[n][2], atol=1e-5)
    gone = [note.split(" (")[0] for note in world.notes if "is gone" in note]
    assert gone == [f"{name} is gone" for name in dies]
    lost = world.sampled - sum(map(len, tokens(alone).values()))
    assert lost <= len(dies) * SETUP.sampler.chunk * len(REQUESTS) / 2 and (lost > 0) == bool(dies)
    assert len(world.fleet.ready) == 2, "another has joined"


@pytest.mark.broad
def test_generators_verify_drafts_and_find_prefixes(params, alone):
    layout = dataclasses.replace(
        SETUP.sampler, drafts="group", draft_tokens=2, prefix_cache=1, prefix_block=1
    )
    found = whole(World().fleet.engine(SETUP._replace(sampler=layout), params))
    assert tokens(found) == tokens(alone)


def test_a_later_step_has_all_that_have_joined_and_its_own_weights(params, alone):
    world = World({"generator 1": 1})
    whole(world.fleet.engine(SETUP, params))
    other = jax.tree.map(lambda leaf: leaf * 1.5, params)
    found = whole(world.fleet.engine(SETUP, other))
    assert tokens(found) == tokens(whole(Local(SETUP, other))) != tokens(alone)


def test_what_is_unfinished_is_told_as_far_as_it_has_come(params, alone):
    engine = World().fleet.engine(SETUP, params)
    engine.put(REQUESTS)
    engine.chunk(0)
    told = {c.request.id: c.tokens.tolist() for c in engine.unfinished()}
    assert told and engine.context > 0
    assert all(alone[n][0][: len(begun)] == begun for n, begun in told.items())


def test_weights_that_arrive_changed_are_found(params):
    with pytest.raises(RuntimeError, match="arrived at generator 1 other than they were sent"):
        World(wrong=("generator 1",)).fleet.engine(SETUP, params)


def test_weights_that_are_taken_do_not_go_by_the_host(params, alone):
    world = World({"generator 0": 2}, offer=lambda offered: offered, take=lambda offered: offered)
    assert tokens(whole(world.fleet.engine(SETUP, params))) == tokens(alone)
    assert not world.shared


def test_weights_that_cannot_be_taken_go_by_the_host_from_then_on(params, alone):
    tried = []

    def take(offer):
        tried.append(offer)
        raise OSError("no route")

    world = World(offer=lambda offered: 7, take=take)
    for _ in range(2):
        assert tokens(whole(world.fleet.engine(SETUP, params))) == tokens(alone)
    assert tried == [7, 7] and len(world.shared) == 2, "each of two, in the first step alone"
    (note,) = (note for note in world.notes if "by the host" in note)
    assert note.endswith("generator 0: OSError: no route")


def test_generators_that_die_one_after_the_other_end_the_run(params):
    world = World({f"generator {n}": 1 for n in range(99)})
    engine = world.fleet.engine(SETUP, params)
    engine.put(REQUESTS)
    with pytest.raises(RuntimeError, match="generators died one after the other; last: killed"):
        for _ in range(99):
            engine.chunk(0)


def test_a_guide_is_refused(params):
    guided = SETUP._replace(guide=Guide(keep, (MODEL,), (params,)))
    with pytest.raises(ValueError, match="generators sample without a guide"):
        World().fleet.engine(guided, params)
