"""Constrained output: masks against brute force, and draws against the plain distribution."""

import dataclasses
import json
import re
import subprocess
import sys

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.data.text import tokenizers
from jaxrl.models import decoder
from jaxrl.sampling import constraints, requests, sampler, support
from jaxrl.sampling.slots import Features
from jaxrl.training.logprobs import make_score
from jaxrl.training.packing import PackingConfig, pack, trajectory
from jaxrl.types import OutputConstraint, Request
from tests.jaxrl import sampler_oracle as oracle
from tests.jaxrl.sampler_oracle import CONFIG, KEY, STOPS

PIECES = [
    "", "a", "b", "c", "ab", "abc", "ba", "1", "2", "12", "-", "", " ", "x", "true", "[", "]", ",",
    "{", "}", '"', '{"', '":', "", "t", "r", "u", "e", "q", "z",
]  # fmt: skip
"""By id; end tokens and those that are none of the vocabulary's have no text."""
PLAIN = Features(truncate=True, penalize=True, biases=4, top=3, support=True)


def decode(ids):
    return "".join(PIECES[i] if i < len(PIECES) else "" for i in ids)


TOKENIZER = tokenizers.Tokenizer(
    encode=lambda text: [PIECES.index(c) for c in text],
    decode=decode,
    vocab_size=len(PIECES),
    eos_ids=STOPS,
    token_bytes=lambda token: PIECES[token].encode() or None,
)
needs_llguidance = pytest.mark.extra


@pytest.fixture(scope="module")
def matchers():
    pytest.importorskip("llguidance")
    return constraints.matchers(TOKENIZER)


def next_of(matchers, constraint, before):
    """The tokens that may follow some tokens."""
    matcher = matchers(constraint)
    matcher.state.consume_tokens(list(before))
    words = constraints.next_tokens(matcher, 2, STOPS)
    return set(np.flatnonzero(np.asarray(support.of_words(words[None], CONFIG.vocab_size))[0]))


LANGUAGES = {
    "(a|ab)c?": ["a", "ac", "ab", "abc"],
    "a{1,3}b": ["ab", "aab", "aaab"],
    "true|tr?e": ["true", "te", "tre"],
    "1?2-": ["12-", "2-"],
}


@needs_llguidance
@pytest.mark.parametrize("regex", LANGUAGES)
def test_a_mask_has_every_token_after_which_a_text_is_possible(matchers, regex):
    """However a text is cut into tokens: not the usual tokens alone."""
    texts = LANGUAGES[regex]
    assert all(re.fullmatch(regex, text) for text in texts)
    for kind in (OutputConstraint("regex", regex), constraints.choices(texts)):
        waiting, reached = [()], set()
        while waiting:
            before = waiting.pop()
            text = decode(before)
            expected = set(STOPS) if text in texts else set()
            expected |= {
                i
                for i, piece in enumerate(PIECES)
                if piece and any(t.startswith(text + piece) for t in texts)
            }
            assert next_of(matchers, kind, before) == expected
            reached |= {text} & set(texts)
            waiting += [(*before, i) for i in expected - set(STOPS)]
        assert reached == set(texts)


@needs_llguidance
@settings(max_examples=20, deadline=None)
@given(texts=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=6, unique=True))
def test_choices_are_any_texts(texts):
    pytest.importorskip("llguidance")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return
    letters = sorted(set("".join(texts)))
    tokenizer = tokenizers.characters("".join(letters))
    begin = constraints.matchers(tokenizer)
    for text in texts:
        matcher = begin(constraints.choices(texts))
        assert matcher.state.consume_tokens(tokenizer.encode(text)) and matcher.state.is_accepting()


@needs_llguidance
def test_a_text_that_cannot_go_on_may_end(matchers):
    constraint = OutputConstraint("regex", "a{2}")
    for before in ([1, 1], [1, 2], [2], [1, 1, 1]):
        assert next_of(matchers, constraint, before) == set(STOPS)


def sample(matchers, items, **changes):
    return oracle.run(items, matchers=matchers, features=PLAIN, **changes)


CASES = {
    "regex": OutputConstraint("regex", "[ab]{2,9}(12|x)*-?"),
    "choice": constraints.choices(["abc", "ba12", "true", "[1]"]),
    "json": OutputConstraint("json_schema", '{"type": "array", "items": {"enum": [1, 2, true]}}'),
    "grammar": OutputConstraint("grammar", 'start: "a" start "b" | "1"'),
}
WAYS = [
    {}, {"temperature": 0.6}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.7, "min_p": 0.1},
    {"repetition_penalty": 1.3, "logit_bias": ((1, 1.5), (2, -2.0))}, {"top_logprobs": 3},
]  # fmt: skip


@pytest.fixture(scope="module")
def mixed(matchers):
    """Completions of constrained requests beside plain ones, and the requests."""
    items = [
        dataclasses.replace(request, constraint=constraint, **way)
        for request, constraint, way in zip(
            oracle.requests(3 * len(WAYS)),
            [list(CASES.values())[n % 4] if n % 3 else None for n in range(3 * len(WAYS))],
            WAYS * 3,
            strict=True,
        )
    ]
    return sample(matchers, items), items


@needs_llguidance
@pytest.mark.exact("what a constrained request is sampled beside has the tokens of the plain run")
def test_tokens_depend_on_the_request_alone(matchers, mixed):
    completions, items = mixed
    plain = [r for r in items if r.constraint is None]
    unconstrained = oracle.run(plain, features=PLAIN)
    for r in plain:
        for name in ("tokens", "support", "top_ids"):
            np.testing.assert_array_equal(
                getattr(completions[r.id], name), getattr(unconstrained[r.id], name)
            )
        np.testing.assert_allclose(completions[r.id].logp, unconstrained[r.id].logp, atol=1e-5)
    cache = {"prefix_cache": 1, "prefix_block": 4}
    again = sample(matchers, items[::-1], slots=4, chunk=3, **cache)
    for r in items:
        for name in ("tokens", "support"):
            np.testing.assert_array_equal(
                getattr(completions[r.id], name), getattr(again[r.id], name)
            )


@needs_llguidance
def test_draws_are_the_plain_ones_restricted_and_renormalised(matchers, mixed):
    """Each log-probability is that of the model over the tokens that the constraint allows."""
    completions, items = mixed
    params = oracle.weights()
    sequences = [[*completions[r.id].request.prompt, *completions[r.id].tokens] for r in items]
    scores, _ = oracle.forward(sequences, params)
    checked = 0
    for r, row, sequence in zip(items, scores, sequences, strict=True):
        completion, start = completions[r.id], len(r.prompt)
        for t, token in enumerate(completion.tokens):
            logits = row[start + t - 1].copy()
            if r.constraint is not None:
                allowed = next_of(matchers, r.constraint, completion.tokens[:t])
                logits[[i for i in range(40) if i not in allowed]] = -np.inf
            logp = oracle.distribution(logits, r, sequence[: start + t])
            assert abs(completion.logp[t] - logp[token]) < 1e-4
            recorded = np.asarray(support.of_words(completion.support[t][None], 40))[0]
            if r.temperature:
                np.testing.assert_array_equal(recorded, logp > -np.inf)
            checked += 1
    assert checked > 150
    assert sum(c.stopped and c.request.constraint is not None for c in completions.values()) > 5


@needs_llguidance
def test_what_has_ended_matches(mixed):
    for completion in mixed[0].values():
        if completion.stopped and completion.request.constraint is not None:
            text = decode(completion.tokens)
            kind, source = completion.request.constraint
            if kind == "regex":
                assert re.fullmatch(source, text)
            elif kind == "choice":
                assert text in json.loads(source)
            elif kind == "json_schema":
                jsonschema.validate(json.loads(text), json.loads(source))
            else:
                assert re.fullmatch("(a*)1(b*)", text) and text.count("a") == text.count("b")


@needs_llguidance
@pytest.mark.broad
def test_frequencies_are_those_of_the_restricted_distribution(matchers):
    """Chi-squared over the first token of many draws."""
    constraint = OutputConstraint("regex", "(a|ab|abc|b|1|12)[xz]")
    items = [Request(i, (5, 9), 1, constraint=constraint) for i in range(1000)]
    completions = sample(matchers, items, slots=64)
    counts = np.bincount([c.tokens[0] for c in completions.values()], minlength=40)
    row, _ = oracle.forward([[5, 9]], oracle.weights())
    allowed = sorted(next_of(matchers, constraint, []))
    weights = np.exp(row[0, 1, allowed])
    expected = 1000 * weights / weights.sum()
    assert counts[allowed].sum() == 1000
    assert ((counts[allowed] - expected) ** 2 / expected).sum() < 3 * len(allowed) + 20


@needs_llguidance
@pytest.mark.exact("log-probs of constrained draws equal those of the trainer to 1e-4")
def test_a_trainer_agrees_over_the_constrained_support(mixed):
    chosen = [c for c in mixed[0].values() if c.request.temperature == 1 and not
              (c.request.logit_bias or c.request.repetition_penalty != 1)]  # fmt: skip
    batch = trajectory(chosen, [1.0] * len(chosen), range(len(chosen)), length=64)
    score = make_score(CONFIG, temperature=1.0)
    packed = pack(batch, PackingConfig(4096))[0]
    scored = score(oracle.weights(), packed)
    np.testing.assert_allclose(scored, batch.behavior_logp, atol=1e-4)
    full = score(oracle.weights(), packed.replace(support=None))
    assert np.abs(full - batch.behavior_logp).max() > 0.5


@needs_llguidance
@pytest.mark.exact("a constrained sequence that was interrupted continues as an uninterrupted one")
def test_an_interrupted_sequence_continues(matchers, mixed):
    completions, items = mixed
    setup = sampler.Setup(
        CONFIG, KEY, STOPS, 64, 64, sampler.SamplerConfig(8, chunk=16, bucket=64), PLAIN,
        matchers=matchers,
    )  # fmt: skip
    params, work, done = decoder.unstack(oracle.weights()), sampler.Work(), []
    sampler.submit(setup, work, items)
    for _ in range(4):
        done += sampler.advance(setup, params, work)
    fresh = sampler.Work()
    sampler.submit(setup, fresh, [requests.resume(c) for c in sampler.unfinished(setup, work)])
    while fresh:
        done += sampler.advance(setup, params, fresh)
    assert len(done) == len(items)
    for c in done:
        np.testing.assert_array_equal(c.tokens, completions[c.request.id].tokens)
        np.testing.assert_array_equal(c.support, completions[c.request.id].support)


@needs_llguidance
def test_each_turn_is_constrained_and_observations_are_not(matchers):
    constraint = constraints.choices(["ab", "ba"])
    turns = []

    def observe(completion):
        turns.append(completion)
        return [14, 15, 8] if len(turns) < 3 else None

    items = [Request(0, (5, 9), 30, constraint=constraint)]
    (completion,) = sample(matchers, items, observe=observe).values()
    mine = completion.tokens[completion.actions]
    assert re.fullmatch("(ab|ba){3}", decode(mine)) and len(turns) == 3
    assert (completion.support[completion.actions] != 0).any(axis=1).all()
    assert not completion.support[~completion.actions].any()


@needs_llguidance
def test_stop_strings_and_budgets_end_a_constrained_sequence(matchers):
    constraint = OutputConstraint("regex", "a*")
    one = Request(
        0, (5, 9), 20, constraint=constraint, logit_bias=((0, -50.0), (11, -50.0), (23, -50.0))
    )
    long = sample(matchers, [one], text=decode)[0]
    assert decode(long.tokens) == "a" * 20 and not long.stopped
    short = sample(matchers, [dataclasses.replace(one, stop=("aaa",))], text=decode)[0]
    assert decode(short.tokens) == "aaa" and short.stopped


SCHEMAS = st.recursive(
    st.one_of(
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "integer"}]),
        st.builds(lambda a, b: {"type": "integer", "minimum": a, "maximum": a + b},
                  st.integers(-30, 30), st.integers(0, 30)),
        st.builds(lambda a, b: {"type": "string", "minLength": a, "maxLength": a + b},
                  st.integers(0, 2), st.integers(0, 2)),
        st.lists(st.sampled_from([1, "a", None, True, "b c", 2.5]), min_size=1, max_size=3,
                 unique_by=str).map(lambda values: {"enum": values}),
        st.just({"type": "string", "pattern": "^[ab]+1$"}),
    ),
    lambda inner: st.one_of(
        st.builds(lambda items, n: {"type": "array", "items": items, "maxItems": n},
                  inner, st.integers(0, 2)),
        st.lists(inner, min_size=1, max_size=2).map(lambda options: {"anyOf": options}),
        st.builds(
            lambda properties, count, closed: {
                "type": "object", "properties": properties,
                "required": sorted(properties)[:count], "additionalProperties": not closed,
            },
            st.dictionaries(st.sampled_from(["a", "b", "c d"]), inner, max_size=3),
            st.integers(0, 3), st.booleans(),
        ),
    ),
    max_leaves=4,
)  # fmt: skip


@needs_llguidance
@settings(max_examples=40, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32 - 1))
def test_what_ends_under_a_schema_parses_and_validates(schema, seed):
    """Random walks over masks, as of a policy of no training."""
    pytest.importorskip("llguidance")
    tokenizer = tokenizers.characters(' \n"\\{}[],:.-+0123456789abcdefghilnrstuz')
    matcher = constraints.matchers(tokenizer)(OutputConstraint("json_schema", json.dumps(schema)))
    rng, tokens, end = np.random.default_rng(seed), [], tokenizer.eos_ids[0]
    while len(tokens) < 60:
        words = constraints.next_tokens(matcher, 2, [end])
        allowed = np.flatnonzero(np.asarray(support.of_words(words[None], tokenizer.vocab_size))[0])
        token = end if end in allowed and rng.random() < 0.5 else int(rng.choice(allowed))
        if token == end:
            jsonschema.validate(json.loads(tokenizer.decode(tokens)), schema)
            return
        tokens.append(token)
        assert matcher.state.consume_token(token)


CALL = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"],
        "additionalProperties": False, "$defs": {"n": {"type": "integer"}}}  # fmt: skip


@needs_llguidance
@pytest.mark.parametrize(
    ("required", "many"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_calls_of_tools(required, many):
    pytest.importorskip("llguidance")
    tokenizer = tokenizers.characters(' \n"<>_/{}[],:.-+0123456789abcdefghijklmnopqrstuvwxyz')
    begin = constraints.matchers(tokenizer)
    constraint = constraints.tools({"add": CALL, "b": {}}, required=required, many=many)
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 12}}\n</tool_call>'

    def fits(text):
        matcher = begin(constraint)
        done = matcher.state.consume_tokens(tokenizer.encode(text))
        return bool(done and matcher.state.is_accepting())

    assert fits(call)
    assert fits(f"{call}\n{call}") == many
    assert fits("") == fits("hello <tool_cal") == fits(f"hello {call}") == (not required)
    assert fits(f"{call} and {call}") == (many and not required)
    for wrong in ("<tool_call>", call.replace("12", '"1"'), call.replace("add", "sub")):
        assert not fits(wrong)
    assert fits('<tool_call>\n{"name": "b", "arguments": [1]}\n</tool_call>')


def chain(count, **last):
    defs = {f"d{i}": {"properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(count)}
    return json.dumps({"$defs": defs | {f"d{count}": last}, "$ref": "#/$defs/d0"})


REFUSED = {
    ("json_schema", "{"): "json_schema: it is no JSON",
    ("json_schema", "[]"): "a JSON schema is an object",
    ("json_schema", '{"properties": {"a": {"type": "foo"}}}'): r"json_schema\.properties\.a\.type",
    ("json_schema", '{"items": {"$ref": "http://host/x"}}'): r"json_schema\.items\.\$ref.*never",
    ("json_schema", '{"$ref": "other.json"}'): r"json_schema\.\$ref: 'other.json' is of another",
    ("json_schema", '{"$ref": "#/$defs/x"}'): "/\\$defs/x",
    ("json_schema", '{"not": {"type": "string"}}'): '"not"',
    ("json_schema", '{"type": "array", "uniqueItems": true, "x-guidance": {"lenient": true}}'):
        '"uniqueItems"',
    ("json_schema", '{"allOf": [{"type": "string"}, {"type": "integer"}]}'): "Unsatisfiable",
    ("json_schema", '{"$ref": "#"}'): "no text that can",
    ("json_schema", '{"pattern": "(a", "type": "string"}'): r"json_schema\.pattern",
    ("json_schema", '{"pattern": "%s", "type": "string"}' % ("a?" * 601)): "601 of the characters",
    ("json_schema", "[" * 30_000): "json_schema: it is no JSON|too deep",
    ("json_schema", '{"items":' * 900 + "{}" + "}" * 900): "it is no JSON|too deep",
    ("json_schema", chain(400)): "objects and arrays, more than 1000",
    ("json_schema", " " * 40_000): "40000 characters, more than 32768",
    ("regex", ""): "regex: it is empty",
    ("regex", "(a"): "regex: .*unclosed group",
    ("regex", "a\\"): "ends with a backslash",
    ("regex", "a(?=b)"): "look-around",
    ("regex", "\ud800"): "half of a surrogate pair",
    ("regex", "(a|b)?" * 201): "more than 600",
    ("choice", "[]"): "choice: give a list",
    ("choice", '["a", ""]'): "choice: give a list",
    ("choice", json.dumps([str(n) for n in range(1001)])): "1001 choices, more than 1000",
    ("grammar", "start: foo"): 'grammar: unknown name: "foo"',
    ("grammar", 'other: "a"'): "no start rule",
    ("grammar", '%llguidance {}\nstart: "a"'): "%llguidance sets options",
    ("grammar", "start: start"): "no text that can",
    ("grammar", "".join(f"r{i}: r{i + 1}\n" for i in range(3000))): "more than",
}  # fmt: skip


@needs_llguidance
@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_bad_constraints_are_refused_with_the_place(matchers, case):
    (kind, text), message = list(REFUSED.items())[case]
    with pytest.raises(ValueError, match=message):
        matchers(OutputConstraint(kind, text))


@needs_llguidance
@pytest.mark.broad
def test_the_largest_that_are_accepted_exhaust_no_stack():
    """In a thread, as a server compiles them: a crash would end the process."""
    pytest.importorskip("llguidance")
    code = """
import json, threading
from tests.jaxrl.sampling.test_constraints import TOKENIZER, chain
from jaxrl.sampling import constraints
from jaxrl.types import OutputConstraint

def go():
    begin = constraints.matchers(TOKENIZER)
    rules = "start: r0\\n" + "".join(f"r{i}: r{i + 1}\\n" for i in range(598)) + 'r598: "a"'
    for constraint in (
        OutputConstraint("json_schema", chain(330)),
        OutputConstraint("grammar", rules),
        OutputConstraint("regex", "(a|b)?" * 150),
        OutputConstraint("regex", "(" * 100 + "a" + ")?" * 100),
        constraints.choices([f"a{n}" for n in range(1000)]),
    ):
        constraints.next_tokens(begin(constraint), 2, (0,))
    print("done")

thread = threading.Thread(target=go)
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@needs_llguidance
def test_a_request_that_cannot_be_constrained_is_refused(matchers):
    items = [Request(3, (1,), 4, constraint=OutputConstraint("regex", "a"))]
    with pytest.raises(ValueError, match="request 3: its constraint needs matchers"):
        oracle.run(items)
    with pytest.raises(ValueError, match="request 3: its constraint needs an end token"):
        sample(matchers, items, stop_ids=())
    with pytest.raises(ValueError, match="regex"):
        sample(matchers, [dataclasses.replace(items[0], constraint=OutputConstraint("regex", "("))])


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match=r"pip install 'jaxrl\[constrained\]'"):
        constraints.matchers(TOKENIZER)(OutputConstraint("regex", "a"))
