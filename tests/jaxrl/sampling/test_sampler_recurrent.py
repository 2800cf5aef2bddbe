"""Layers of several kinds in the sampler, such as recurrent ones: what a slot remembers of these is
a state that cannot be cut back."""

from __future__ import annotations

import functools

import jax
import pytest

from jaxrl.models import decoder
from jaxrl.sampling import admission, sampler, search, slots
from jaxrl.types import Completion, Request
from tests.jaxrl import sampler_oracle as oracle
from tests.models.test_extend import FAMILIES, V

CONFIG = FAMILIES["hybrid"]
LAYOUT = sampler.SamplerConfig(slots=8, prefill_rows=4, prefill_piece=16, chunk=8, bucket=32)


FAMILY = pytest.mark.parametrize(
    "family",
    ["hybrid", "convolution", "mamba", "beside", "channels", "parts", "kinds", "chunks"],
)


@functools.cache
def params(family: str = "hybrid") -> decoder.Params:
    weights = decoder.init(FAMILIES[family], jax.random.key(0))
    return {**weights, "embed": 2 * weights["embed"]}


def spell(tokens) -> str:
    """Each token is a letter."""
    return "".join(chr(65 + int(token)) for token in tokens)


def setup(family: str = "hybrid", **changes) -> sampler.Setup:
    return sampler.Setup(FAMILIES[family], oracle.KEY, (2,), 32, 64, LAYOUT, text=spell, **changes)


@pytest.mark.sample(0, broad=2)
@pytest.mark.exact("a group's completions from one state of their prompt are the uncached model's")
@FAMILY
def test_groups_in_slots_that_are_used_again(family):
    """Twelve requests of three prompts, one longer than a piece, on eight slots and then four."""
    prompts = [(3,), tuple(range(3, 27)), (5, 9, 5, 9)]
    items = [
        Request(i, prompts[i // 4], 5 + 3 * i % 20, temperature=float(i % 2)) for i in range(12)
    ]
    done = sampler.generate(
        FAMILIES[family],
        decoder.unstack(params(family)),
        items,
        stop_ids=[2],
        key=oracle.KEY,
        sampler=LAYOUT,
        max_prompt=32,
        max_length=64,
    )
    assert oracle.recorded_as_recomputed(list(done), params(family), FAMILIES[family]) > 60


@pytest.mark.sample(0, broad=3)
@pytest.mark.exact("a turn behind a stop string is the uncached model's")
@FAMILY
def test_a_sequence_cut_back_is_read_again(family, monkeypatch):
    """A turn ends inside a chunk, whose other tokens its slot has read as well. Held sequences are
    moved to fewer slots, and to wider ones."""
    weights, config, shapes = params(family), FAMILIES[family], set()
    resize = slots.resize

    def resized(models, state, chosen, *, width):
        before = len(state.length), state.width
        shapes.update([before, (before[0] if chosen is None else len(chosen), width)])
        return resize(models, state, chosen, width=width)

    monkeypatch.setattr(slots, "resize", resized)
    completions, overread = turns_to_stop_strings(family)
    assert overread > 1 and {4, 8} == {size for size, _ in shapes}
    assert {32, 64} == {width for _, width in shapes}
    assert oracle.recorded_as_recomputed(completions, weights, config) > 60
    if not config.recurrent:
        return
    monkeypatch.setattr(admission, "_reread", lambda *arguments: None)
    completions, _ = turns_to_stop_strings(family)
    with pytest.raises(AssertionError):
        oracle.recorded_as_recomputed(completions, weights, config)


def turns_to_stop_strings(family: str) -> tuple[list[Completion], int]:
    """Whole episodes, and how many turns were cut back to a stop string."""
    machine, work = setup(family, hold=True), sampler.Work()
    weights = decoder.unstack(params(family))
    stops = tuple(spell([token]) for token in range(3, V, 4))
    sampler.submit(machine, work, [Request(i, (3, 4 + i), 40, stop=stops) for i in range(6)])
    over, overread = [], 0
    while work:
        turns = {}
        for c in sampler.advance(machine, weights, work):
            seats = sampler.held_slots(work)
            if c.request.id in seats and c.request.max_new_tokens - len(c.tokens) > 3:
                overread += work.seats[seats[c.request.id]].overread
                turns[c.request.id] = [7, 8]
            else:
                sampler.release(work, [c.request.id])
                over.append(c)
        sampler.extend(machine, weights, work, turns)
    return over, overread


@pytest.mark.exact("what is resumed is the uncached model's")
def test_a_sequence_is_resumed_from_its_tokens():
    machine, work = setup(), sampler.Work()
    weights = decoder.unstack(params())
    sampler.submit(machine, work, [Request(i, (3, 4 + i), 20) for i in range(3)])
    done = sampler.advance(machine, weights, work, budget=9)
    sampler.refresh(machine, weights, work)
    while work:
        done += sampler.advance(machine, weights, work)
    assert len(done) == 3
    assert oracle.recorded_as_recomputed(done, params(), CONFIG) > 20


@pytest.mark.broad
@pytest.mark.exact("beam search of width 1 over recurrent layers is greedy decoding")
def test_beams():
    weights, prompt = decoder.unstack(params()), (3, 9, 4)
    options = {"max_new_tokens": 6, "stop_ids": [2], "bucket": 16}
    best = search.beam(CONFIG, weights, prompt, width=1, **options)[0]
    items = [Request(0, prompt, 6, temperature=0.0)]
    greedy = next(
        sampler.generate(
            CONFIG,
            weights,
            items,
            stop_ids=[2],
            key=oracle.KEY,
            sampler=LAYOUT,
            max_prompt=32,
            max_length=64,
        )
    )
    assert best.tokens.tolist() == greedy.tokens.tolist()
    wide = search.beam(CONFIG, weights, prompt, width=3, **options)
    scores, _ = oracle.forward([(*prompt, *b.tokens.tolist()) for b in wide], params(), CONFIG)
    for beam, logits in zip(wide, scores, strict=True):
        logp = [
            oracle.distribution(logits[len(prompt) - 1 + t], items[0], ())[token]
            for t, token in enumerate(beam.tokens)
        ]
        assert abs(sum(logp) - beam.logp) < 1e-4
