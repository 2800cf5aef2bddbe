"""What the host reads of the slots: as little as there is to say, and nothing that is nan."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.mesh import mesh
from jaxrl.sampling import logits, requests, sampler, sampling, slots
from jaxrl.types import Request
from tests.jaxrl import sampler_oracle as oracle
from tests.jaxrl.sampling.test_sampler_partial import params, setup

INF = float("inf")
NEVER = tuple((token, -INF) for token in oracle.STOPS)
GREEDY, TRUNCATED = {"temperature": 0.0}, {"top_p": 0.9, "top_k": 3, "min_p": 0.01}


@pytest.mark.broad
def test_what_has_ended_is_fetched_and_nothing_else(monkeypatch):
    """Bytes go with the responses, not with the slots or their capacity."""
    fetched, transfers, fetch = [], [], mesh.fetch

    def counted(tree):
        got = fetch(tree)
        fetched.append(sum(a.nbytes for a in jax.tree.leaves(got)))
        transfers.append(len(jax.tree.leaves(got)))
        return got

    monkeypatch.setattr(mesh, "fetch", counted)
    layout = sampler.SamplerConfig(slots=64, chunk=4, bucket=16)
    made = setup(features=slots.Features(), text=str)._replace(sampler=layout, stop_ids=())
    items = [Request(i, (2, 3), 4 if i == 3 else 30) for i in range(64)]
    items[5] = dataclasses.replace(items[5], stop=("no such string",))
    work = sampler.Work()
    sampler.submit(made, work, items)
    (c,) = sampler.advance(made, params(), work)
    assert c.request.id == 3 and len(c.tokens) == 4
    ends, stops, record = fetched
    assert ends == 64 * (4 + 1 + 1)
    assert stops == 8 * 16 * 4  # eight rows of the least width, of tokens
    assert record == 4 * 8 * 16 * 4  # of tokens, log-probabilities, entropies and versions each
    rest = []
    while work:
        rest += sampler.advance(made, params(), work)
    assert len(rest) == 63 and all(len(c.tokens) == 30 for c in rest)
    assert fetched[-1] == 4 * 64 * made.capacity * 4  # when most end together, whole arrays:
    assert transfers[-1] == 6  # one transfer for each, and not for every eight rows


@pytest.mark.parametrize("chunk", [1, 16])
def test_stop_strings_are_looked_for_in_what_is_new(chunk):
    """Wherever chunks end, as the whole text says; what is decoded does not grow with the turn."""
    sizes = []

    def text(tokens):
        sizes.append(len(tokens))
        return "".join(f"<{t}>" if t % 3 else "" for t in tokens)  # a third of them say nothing

    base = [Request(i, (3, 1, 2), 60, logit_bias=NEVER) for i in range(4)]
    free = oracle.run(base)
    stops = {i: (text(c.tokens[i + 38 :].tolist())[:9], "~") for i, c in free.items()}
    items = [dataclasses.replace(r, stop=stops[r.id]) for r in base]
    sizes.clear()
    done = oracle.run(items, text=text, chunk=chunk)
    assert max(sizes) < 60
    for i, c in done.items():
        whole = free[i].tokens.tolist()
        ends = [n for n in range(1, 61) if any(s in text(whole[:n]) for s in stops[i])]
        assert c.tokens.tolist() == whole[: ends[0] if ends else 60]


@pytest.mark.parametrize("kind", [{}, GREEDY, TRUNCATED], ids=str)
@pytest.mark.parametrize("row", [(0, np.nan), (0, INF), (slice(None), np.nan), (slice(None), -INF)])
def test_logits_without_a_distribution_are_recorded_as_nan(kind, row):
    scores = np.random.default_rng(0).normal(size=(2, 40)).astype(np.float32)
    scores[1, row[0]] = row[1]
    settings = requests.settings_of([Request(0, (1,), 1, **kind)] * 2, 40, 2, 0)
    drawn = SAMPLE(scores, settings, jax.random.split(jax.random.key(0), 2))
    assert np.isnan(drawn.logp).tolist() == np.isnan(drawn.entropy).tolist() == [False, True]


SAMPLE = jax.jit(lambda scores, row, keys: sampling.sample(scores, row, keys, truncate=True))


def broken(scores, context, args):
    """One nan among the scores of sequences whose last token is 5."""
    last = context.tokens[jnp.arange(len(context.length)), context.length - 1]
    return jnp.where((last == 5)[:, None] & (jnp.arange(40) == 3), jnp.nan, scores)


def test_logits_without_a_distribution_end_their_sequence():
    """With an error that names the request; the others, among them those that ended beside it, go
    on once it has been released."""
    layout = sampler.SamplerConfig(slots=4, chunk=16)
    made, work = setup(guide=logits.Guide(broken))._replace(sampler=layout), sampler.Work()
    kinds = [{}, GREEDY, TRUNCATED]
    items = [Request(i, (i + 2,), 6, logit_bias=NEVER, **kinds[i % 3]) for i in range(7)]
    sampler.submit(made, work, items)
    done, gone = {}, set()
    while work:
        try:
            done |= {c.request.id: c for c in sampler.advance(made, params(), work, version=8)}
        except FloatingPointError as error:
            assert "policy version 8" in str(error)
            gone.add(int(str(error).split()[1].rstrip(":")))
            sampler.release(work, gone)
    assert 3 in gone and len(gone) < 7 and gone | set(done) == set(range(7))
    for c in done.values():
        assert np.isfinite(c.logp).all() and 5 not in c.tokens[:-1]
