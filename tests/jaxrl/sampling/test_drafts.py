"""Drafts that are verified several at a time give the tokens of one pass a token."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxrl.models import decoder
from jaxrl.sampling import drafts, logits, requests, sampler, slots
from jaxrl.sampling.drafts import DraftModel
from jaxrl.sampling.slots import Features
from jaxrl.types import Completion, Request
from tests.jaxrl import sampler_oracle as oracle
from tests.jaxrl.sampling.test_sampler import MIXED
from tests.models.test_extend import FAMILIES


def text(tokens):
    return "".join(chr(64 + t) for t in tokens)


def looked_up(tokens: list[int], count: int) -> list[int] | None:
    """By the definition, place by place: what `drafts.lookup` should give."""
    size = len(tokens)
    for run in range(4, 1, -1):
        for place in range(size - 2, run - 2, -1):
            if tokens[place - run + 1 : place + 1] == tokens[size - run :] and run <= size:
                after = tokens[place + 1 :]
                return [after[i % len(after)] for i in range(count)]
    return None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=24), st.integers(0, 2))
def test_lookup_is_the_last_longest_match(tokens, beyond):
    padded = np.full(24, beyond, np.int32)
    padded[: len(tokens)] = tokens
    draft, present = drafts.lookup(jnp.asarray(padded), jnp.int32(len(tokens)), 5)
    expected = looked_up(tokens, 5)
    assert bool(present) == (expected is not None)
    assert expected is None or draft.tolist() == expected


def test_drafts_of_the_past_are_judged():
    row = [1, 2, 3, 1, 2, 3, 1, 2, 5, 1, 2]
    predictions = [(looked_up(row[:i], 1), row[i]) for i in range(1, len(row))]
    judged = [(p[0] == token) for p, token in predictions if p is not None]
    counts = drafts.judge(jnp.asarray([row + [0] * 5]), jnp.asarray([len(row)]))
    tried, right = counts[0, 0].tolist()
    assert (tried, right) == (len(judged), sum(judged)) and 0 < right < tried


def looked_up_beside(parts: list[list[int]], tokens: list[int], count: int) -> list[int] | None:
    """The same of texts beside the sequence: what `drafts.lookup_beside` should give."""
    for run in range(min(8, len(tokens)), 1, -1):
        for part in reversed(parts):
            for place in range(len(part) - 2, run - 2, -1):
                if part[place - run + 1 : place + 1] == tokens[len(tokens) - run :]:
                    return part[place + 1 : place + 1 + count]
    return None


def texts_by_prompt(texts: drafts.Texts) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """What is kept for the base, as lists of ids."""
    return {
        tuple(prompt.tolist()): [tuple(text.tolist()) for text in prompt_texts]
        for adapter, prompt, prompt_texts in drafts.get_state(texts)
        if adapter == 0
    }


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=4),
    st.lists(st.integers(0, 2), min_size=1, max_size=12),
)
def test_lookup_beside_is_the_last_longest_match_in_one_text(parts, tokens):
    prompt, texts = tuple(tokens[:1]), drafts.Texts()
    for part in parts:  # the prompt's token is the first of what is kept
        completion = Completion(Request(0, prompt, 9), np.array(part), None, None, None, True)
        drafts.remember(texts, completion, 48)
    rows = drafts.lay_out(texts, [None, Request(1, prompt, 9)], 48)
    assert (rows[0] == -1).all()
    kept = texts_by_prompt(texts).get(prompt, [])
    assert {(*prompt, *part) for part in parts} >= {*kept} and len({*kept}) == len(kept)
    again = drafts.Texts()
    drafts.set_state(again, drafts.get_state(texts))
    assert texts_by_prompt(again) == texts_by_prompt(texts)
    padded = np.full(24, 1, np.int32)
    padded[: len(tokens)] = tokens
    draft, size, run = drafts.lookup_beside(
        jnp.asarray(rows[1]), jnp.asarray(padded), jnp.int32(len(tokens)), 5
    )
    expected = looked_up_beside([list(text) for text in kept], tokens, 5)
    assert bool(run) == (expected is not None)
    assert expected is None or draft[: int(size)].tolist() == expected


def test_the_newest_texts_are_kept(monkeypatch):
    """Of a prompt as many as there is room for, and those of the prompts written last."""
    texts = drafts.Texts()
    for n, size in enumerate((3, 3, 2, 30)):
        completion = Completion(Request(n, (9,), 40), np.full(size, n), None, None, None, True)
        drafts.remember(texts, completion, 10)
        if n == 2:
            assert texts_by_prompt(texts) == {(9,): [(9, 1, 1, 1), (9, 2, 2)]}
            shorter = drafts.lay_out(texts, [None, completion.request], 5)  # than as it was kept
            assert shorter.tolist() == [[-1] * 5, [-1, 9, 2, 2, -1]]
    assert texts_by_prompt(texts) == {(9,): [(9, *[3] * 8)]}
    monkeypatch.setattr(drafts, "_TOKENS", 20)
    for prompt in ((1,), (2,)):
        completion = Completion(Request(1, prompt, 9), np.array([7]), None, None, None, True)
        drafts.remember(texts, completion, 10)
    assert texts_by_prompt(texts) == {(1,): [(1, 7)], (2,): [(2, 7)]}


@pytest.mark.sample(2, broad=2)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_drafts_that_do_not_pay_are_switched_off(right, beside):
    """Of a text that seldom goes on as it did before, against one that does; no model is asked."""
    rng, size = np.random.default_rng(0), 120
    text = np.tile(rng.integers(1, 9, 7), 20)[:size] if right else rng.integers(1, 9, size)
    if beside:  # nothing stands twice in the sequence
        text = np.arange(1, size + 1)
    # each pair of tokens stands there, and what follows is another
    pairs = [token for n in range(size - 1) for token in (text[n], text[n + 1], 500 + n)]
    texts = jnp.asarray([text[1:] if right else pairs], jnp.int32) if beside else None
    truth = jnp.asarray(text, jnp.int32)
    state = slots.empty_slots((oracle.CONFIG,), 1, size, 8, Features())
    start = state.tokens.at[0, :20].set(truth[:20])
    state = state.replace(
        tokens=start, length=jnp.array([20]), limit=jnp.array([size]), live=jnp.array([True])
    )

    def advance(s: slots.SlotState, draft: drafts.Draft) -> tuple[slots.SlotState, jax.Array]:
        ahead = jnp.arange(draft.tokens.shape[1])
        equal = (draft.tokens == truth[s.length[:, None] + ahead]) & (ahead < draft.size[:, None])
        count = 1 + jnp.sum(jnp.cumprod(equal, axis=1), axis=1)
        length = jnp.minimum(s.length + count, size)
        tokens = jnp.where(jnp.arange(size) < length[:, None], truth, 0)
        return s.replace(tokens=tokens, length=length, live=length < size), count

    done = drafts.run(
        advance, state, jnp.int32(size), jnp.int32(1), 1.5, draft_tokens=3, texts=texts
    )
    assert done.tokens[0].tolist() == text.tolist()
    verified, accepted = np.asarray(done.drafted[0, int(beside)]).tolist()
    if right:
        assert accepted > 2 * verified > 40
    else:
        assert verified <= 3
    assert not np.asarray(done.drafted[0, int(not beside)]).any()


LAYOUT = {"slots": 8, "bucket": 64}
DRAFTS = {"drafts": "lookup", "draft_tokens": 3}
PRICES = {"always": 1.0, "where it pays": 1.5, "never": float("inf")}
NEVER_ENDS = tuple((token, -float("inf")) for token in oracle.STOPS)
KINDS = [
    {"temperature": 0.0},
    {"temperature": 0.5},
    {"temperature": 0.0, "logit_bias": ((7, 6.0), (9, 6.0))},
    {"temperature": 0.4, "top_p": 0.8, "top_logprobs": 2},
    {"temperature": 0.0, "stop": ("GG", "II"), "logit_bias": ((7, 6.0), (9, 5.8))},
    *MIXED,
]


def repetitive(count: int, kinds: list[dict]) -> list[Request]:
    """Requests whose prompts repeat themselves, so that there are drafts from the start."""
    rng = np.random.default_rng(0)
    prompts = [tuple(np.tile(rng.integers(1, 40, 3 + i % 3), 4).tolist()) for i in range(count)]
    budgets = rng.integers(8, 40, count).tolist()
    return [Request(i, prompts[i // 2], budgets[i], **kinds[i % len(kinds)]) for i in range(count)]


SMALL = dataclasses.replace(oracle.CONFIG, hidden_size=16, num_layers=1)
DRAFTERS = {
    "lookup": {},
    "layers": {"drafts": "layers", "draft_layers": 1},
    "model": {"drafts": "model"},
}


def setup(*, hold: bool = False, draft: DraftModel | None = None, **layout) -> sampler.Setup:
    """Where a model is to draft and none is given, it is a small one that knows nothing."""
    features = dataclasses.replace(oracle.ALL, support=True)
    config = sampler.SamplerConfig(**LAYOUT | layout)
    if config.drafts == "model" and draft is None:
        draft = DraftModel(SMALL, decoder.unstack(oracle.weights(2, SMALL)))
    return sampler.Setup(
        oracle.CONFIG, oracle.KEY, oracle.STOPS, 64, 64, config, features,
        text=text, hold=hold, draft=draft,
    )  # fmt: skip


def sampled(
    items: list[Request], texts: drafts.Texts | None = None, **layout
) -> tuple[dict[int, Completion], sampler.Work]:
    """Completions by id, and the work, in which drafts and their accepted tokens are counted."""
    params, done = decoder.unstack(oracle.weights()), {}
    work = sampler.Work(texts=drafts.Texts() if texts is None else texts)
    made = setup(**layout)
    sampler.submit(made, work, items)
    while work:
        done |= {c.request.id: c for c in sampler.advance(made, params, work)}
    return done, work


def check_equal(expected: Completion, other: Completion) -> None:
    """Tokens and supports to the last bit, what is computed of the logits to 1e-5."""
    assert expected.tokens.tolist() == other.tokens.tolist(), expected.request.id
    assert expected.stopped == other.stopped
    np.testing.assert_array_equal(expected.support, other.support)
    for field in ("logp", "entropy", "top_logp"):
        if getattr(expected, field) is not None:
            np.testing.assert_allclose(
                getattr(other, field), getattr(expected, field), 1e-5, 1e-5, err_msg=field
            )


ITEMS = repetitive(30, KINDS)


@pytest.fixture(scope="module")
def plain():
    """What is sampled without drafts."""
    return sampled(ITEMS, chunk=16)[0]


@pytest.mark.exact(
    "drafts change no token, over any mix of settings, slots and chunks, wherever they are found"
)
@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("paying", PRICES)
def test_tokens_are_those_of_one_pass_a_token(monkeypatch, plain, paying):
    """Where drafts always pay, half of the completions stand in the texts at the start."""
    monkeypatch.setattr(drafts, "price", lambda *_: PRICES[paying])
    texts, beside = drafts.Texts(), paying == "always"
    for completion in list(plain.values())[::2] if beside else ():
        drafts.remember(texts, completion, 64)
    layout = DRAFTS | ({"drafts": "epochs"} if beside else {})
    done, work = sampled(ITEMS, texts, chunk=16, **layout)
    assert done.keys() == plain.keys()
    for name, completion in done.items():
        check_equal(plain[name], completion)
    if paying == "never":
        assert work.verified == work.accepted == 0
    else:
        assert work.accepted > 50 and work.verified > 20
    if beside:
        assert work.accepted > work.accepted_beside > 50
        prompts = {np.array(r.prompt, np.int32).tobytes() for r in ITEMS}
        assert texts.by_prompt.keys() == {(0, prompt) for prompt in prompts}
    else:
        assert work.verified_beside == 0 and not texts.by_prompt


@pytest.mark.sample(1, broad=3)
@pytest.mark.exact("drafts of a model and of the first layers change no token, in any company")
@pytest.mark.parametrize("drafter", DRAFTERS)
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_in_any_company_and_with_breaks(monkeypatch, plain, drafter, data):
    """Some requests in any order, with any chunks, budgets, and prices, which may change at every
    call, and continued from what was stored."""
    params = decoder.unstack(oracle.weights())
    chosen = data.draw(st.lists(st.sampled_from(ITEMS), min_size=1, max_size=12, unique=True))
    chunk = data.draw(st.integers(1, 20))
    made, work, done, calls = (
        setup(chunk=chunk, **DRAFTS | DRAFTERS[drafter]), sampler.Work(), {}, 0,
    )  # fmt: skip
    sampler.submit(made, work, chosen)
    while work:
        cost = data.draw(st.sampled_from(list(PRICES.values())))
        monkeypatch.setattr(drafts, "price", lambda *_: cost)  # noqa: B023
        before = lengths(work)
        budget = data.draw(st.sampled_from([None, None, 5, 40]))
        ended = sampler.advance(made, params, work, budget=budget)
        done |= {c.request.id: c for c in ended}
        grown = {name: size - before.get(name, size) for name, size in lengths(work).items()}
        assert max(grown.values(), default=0) <= chunk
        calls += 1
        if calls % 3 == 0:
            again = [requests.resume(c) for c in sampler.unfinished(made, work)]
            work = sampler.Work()
            sampler.submit(made, work, again)
    assert done.keys() == {r.id for r in chosen}
    for name, completion in done.items():
        assert completion.tokens.tolist() == plain[name].tokens.tolist()
        np.testing.assert_allclose(completion.logp, plain[name].logp, 1e-5, 1e-5)
        np.testing.assert_array_equal(completion.support, plain[name].support)


def lengths(work: sampler.Work) -> dict[int, int]:
    return {seat.request.id: seat.length for seat in work.seats if seat is not None}


def small_drafted(seed: int, items: list[Request]) -> tuple[list[int], sampler.Work]:
    """Lengths of what a small model of seed 2 samples where one of another seed drafts 3 tokens."""
    params, draft = (decoder.unstack(oracle.weights(n, SMALL)) for n in (2, seed))
    layout = sampler.SamplerConfig(slots=4, bucket=64, chunk=60, drafts="model", draft_tokens=3)
    made, work, lengths = (
        sampler.Setup(
            SMALL, oracle.KEY, oracle.STOPS, 16, 64, layout, Features(truncate=True, biases=4),
            draft=DraftModel(SMALL, draft),
        ),
        sampler.Work(), [],
    )  # fmt: skip
    sampler.submit(made, work, items)
    while work:
        lengths += [len(c.tokens) for c in sampler.advance(made, params, work)]
    return lengths, work


@pytest.mark.exact("a model that drafts for itself has every token accepted, greedy or not")
def test_a_model_that_drafts_for_itself_is_always_right(monkeypatch):
    """Its draft is drawn with the keys of the tokens: a pass gives all of it and one more."""
    monkeypatch.setattr(drafts, "price", lambda *_: 1.0)
    kinds = [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {}]
    items = [
        Request(n, (3, 5, 8 + n), 33 + n, **kind, logit_bias=NEVER_ENDS)
        for n, kind in enumerate(kinds)
    ]
    lengths, work = small_drafted(2, items)
    assert sorted(lengths) == [33, 34, 35, 36]
    # a last token alone has no draft
    assert (work.verified, work.accepted) == (8 + 3 * 9, 24 + 25 + 26 + 27)


def test_a_drafter_that_does_not_pay_is_switched_off(monkeypatch):
    """Once few of its tokens were right, for the rest of the chunk; one whose best draft would not
    pay is never asked."""
    items, counts = [Request(0, (3, 5, 8), 60, logit_bias=NEVER_ENDS)], {}
    for cost in (1.5, 4.0):
        monkeypatch.setattr(drafts, "price", lambda *_: cost)  # noqa: B023
        counts[cost] = small_drafted(1, items)[1].verified
    assert 0 < counts[1.5] < 25 and counts[4.0] == 0


def test_the_price_of_a_draft_counts_what_it_reads():
    """Of a model beside the policy, and of its first layers with the output head."""
    params, small = (decoder.unstack(oracle.weights(0, c)) for c in (oracle.CONFIG, SMALL))

    def read(p: decoder.Params, layers: int) -> int:
        leaves = jax.tree.leaves((p["layers"][:layers], p["norm"], p["head"]))
        return sum(leaf.nbytes for leaf in leaves)

    whole = read(params, 2) + read(small, 1)
    beside = drafts.share(drafts.Drafter(1, 1), (params, small))
    assert beside == pytest.approx(read(small, 1) / whole)
    first = drafts.share(drafts.Drafter(0, 1), (params,))
    assert first == pytest.approx(read(params, 1) / read(params, 2))
    looked_up_price = drafts.price((oracle.CONFIG,), 8, 3)
    assert drafts.price((oracle.CONFIG,), 8, 3, first) == pytest.approx(looked_up_price + 3 * first)


@pytest.mark.parametrize(
    ("layout", "draft", "message"),
    [
        (
            {"drafts": "layers", "draft_layers": 2},
            None,
            r"draft_layers=2: .*has 2 layers; .*1 to 1",
        ),
        ({"drafts": "layers"}, None, r"draft_layers=0"),
        ({"drafts": "lookup"}, DraftModel(SMALL, {}), r"drafts='lookup'.*set both"),
        (
            {"drafts": "model"},
            DraftModel(dataclasses.replace(SMALL, vocab_size=39), {}),
            r"39 tokens, the policy 40; .*same tokenizer",
        ),
    ],
)
def test_a_drafter_that_cannot_draft_is_refused(layout, draft, message):
    with pytest.raises(ValueError, match=message):
        sampler.submit(setup(draft=draft, **layout), sampler.Work(), ITEMS[:1])


@pytest.mark.broad
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.exact("drafts change no token of turns with observations between them")
def test_turns(monkeypatch, drafter):
    """Slots are held, and an observation is read over what a draft had left in the caches."""
    monkeypatch.setattr(drafts, "price", lambda *_: 1.0)
    items = [
        Request(i, (3, 5, 8, 3, 5, 8, 3, 5), 40, temperature=0.4, turn_tokens=9) for i in range(5)
    ]

    def played(**layout):
        made, work, params, done = (
            setup(hold=True, **layout),
            sampler.Work(),
            decoder.unstack(oracle.weights()),
            {},
        )
        sampler.submit(made, work, items)
        while work:
            for c in sampler.advance(made, params, work):
                done[c.request.id] = c
                if len(c.tokens) < 30:
                    sampler.extend(made, params, work, {c.request.id: [3, 5, 8, 3]})
        return done, work.accepted

    expected, _ = played()
    done, accepted = played(**DRAFTS | {"drafts": "group"} | DRAFTERS[drafter])
    assert accepted > (0 if drafter == "model" else 10)
    for name, completion in done.items():
        check_equal(expected[name], completion)
        assert completion.source.tolist() == expected[name].source.tolist()


BROAD = ("latent", "hybrid")


@pytest.mark.exact("drafts change no token of any family")
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=pytest.mark.broad if name in BROAD else pytest.mark.slow)
        for name in FAMILIES
    ],
)
def test_families(monkeypatch, family):
    """With recurrent layers too, whose states have not read what was refused of a draft."""
    monkeypatch.setattr(drafts, "price", lambda *_: 1.0)
    config, features = FAMILIES[family], Features(biases=4)
    stacked = decoder.init(config, jax.random.key(0))
    params = decoder.unstack(stacked)
    items = [
        Request(i, (3, 5, 8 + i) * 4, 20, temperature=0.3 * (i % 2), logit_bias=((2, -1e9),))
        for i in range(6)
    ]

    def finished(**layout):
        layout = sampler.SamplerConfig(slots=4, bucket=64, **layout)
        made, work, done = (
            sampler.Setup(config, oracle.KEY, (2,), 16, 64, layout, features), sampler.Work(), [],
        )  # fmt: skip
        sampler.submit(made, work, items)
        while work:
            done += sampler.advance(made, params, work)
        return sorted(done, key=lambda c: c.request.id), work

    expected, _ = finished()
    done, work = finished(drafts="lookup")
    assert [c.tokens.tolist() for c in done] == [c.tokens.tolist() for c in expected]
    assert 10 < work.accepted < work.verified * 4  # some were refused
    assert oracle.recorded_as_recomputed(done, stacked, config) > 60


@pytest.mark.exact("drafts of a model and of the first layers change no token of any family")
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(
            name,
            marks=pytest.mark.broad if name in ("local layers", "hybrid") else pytest.mark.slow,
        )
        for name in FAMILIES
    ],
)
def test_families_draft(monkeypatch, family):
    """A model of the same family and other weights, and all layers but the last."""
    monkeypatch.setattr(drafts, "price", lambda *_: 1.0)
    config, features = FAMILIES[family], Features(biases=4)
    params, other = (decoder.unstack(decoder.init(config, jax.random.key(n))) for n in (0, 1))
    items = [
        Request(i, (3, 5, 8 + i) * 4, 20, temperature=0.3 * (i % 2), logit_bias=((2, -1e9),))
        for i in range(6)
    ]

    def finished(draft=None, **layout):
        layout = sampler.SamplerConfig(slots=4, bucket=64, **layout)
        made, work, done = (
            sampler.Setup(config, oracle.KEY, (2,), 16, 64, layout, features, draft=draft),
            sampler.Work(), {},
        )  # fmt: skip
        sampler.submit(made, work, items)
        while work:
            done |= {c.request.id: c.tokens.tolist() for c in sampler.advance(made, params, work)}
        return done, work

    expected, _ = finished()
    done, work = finished(DraftModel(config, other), drafts="model")
    assert done == expected and work.verified > 20
    done, work = finished(DraftModel(config, params), drafts="model")
    assert done == expected and work.accepted > 3 * work.verified
    if config.num_layers > 1:
        done, work = finished(drafts="layers", draft_layers=config.num_layers - 1)
        assert done == expected and work.verified > 20


@pytest.mark.broad
def test_a_guide_reads_the_drafts(monkeypatch):
    """Whose model has caches of its own, and whose function sees a token and those before it; with
    a prefix cache too, of both models, and of a third that drafts."""
    monkeypatch.setattr(drafts, "price", lambda *_: 1.0)
    other = decoder.unstack(oracle.weights(1))

    def steered(scores, context, args):
        last = jax.vmap(lambda row, at: row[at])(context.tokens, context.length - 1)
        return scores + args * context.others[0] - 3.0 * jax.nn.one_hot(last, scores.shape[1])

    def tokens(**layout):
        guide = logits.Guide(steered, 0.5, (oracle.CONFIG,), (other,))
        done = oracle.run(ITEMS[:8], guide=guide, text=text, slots=8, **layout)
        return {name: c.tokens.tolist() for name, c in done.items()}

    expected = tokens()
    assert tokens(**DRAFTS) == expected
    assert tokens(**DRAFTS, prefix_cache=1, prefix_block=3) == expected
    small = DraftModel(SMALL, decoder.unstack(oracle.weights(2, SMALL)))
    drafted = DRAFTS | {"drafts": "model", "draft": small}
    assert tokens(**drafted, prefix_cache=1, prefix_block=3) == expected
