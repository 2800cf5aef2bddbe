"""Rewards against hand-worked numbers, their definitions and hostile completions."""

import asyncio
import json
import math
import random
import time

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.data.rewards import combine, group, schema, shape, text
from jaxrl.data.rewards import math as math_rewards
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.scoring import user_functions
from jaxrl.data.types import Problem, Score, Task, exact_sum

P = Problem("p", "q", "a")


def constant(value, **parts):
    return lambda problem, completion: Score(value, parts)


def failing(problem, completion):
    return Score(None, error="timeout: no")


async def slowly(problem, completion):
    await asyncio.sleep(0.001)
    return Score(float(len(completion)))


# Text metrics


def test_text_metrics_by_hand():
    assert text.exact(" a b ", "a b") == 1 and text.exact("A b", "a b") == 0
    assert text.exact_match("The  Cat!", "cat") == 1 and text.exact_match("cats", "cat") == 0
    assert text.f1("the cat sat", "a cat ran off") == pytest.approx(2 * 1 / (2 + 3))
    assert text.f1("", "x") == 0 and text.f1("", "") == 1
    # 3 of 4 unigrams, 1 of 3 bigrams, longest common subsequence 3
    for said, holds in [("Two dogs", 1), ("two dogs bark!", 1), ("dogs", 0), ("", 0), ("tw", 0)]:
        assert text.prefix(said, "Two dogs bark.") == holds
    assert text.prefix("two dogs bark now", "Two dogs bark.") == 0
    assert text.prefix("a", "A") == 1  # articles are no words to it, and the two are equal
    assert text.rouge_n("a b c x", "a c b c") == pytest.approx(3 / 4)
    assert text.rouge_n("a b c x", "a c b c", 2) == pytest.approx(1 / 3)
    assert text.rouge_l("a b c x", "a c b c") == pytest.approx(3 / 4)
    assert text.edit_distance("kitten", "sitting") == 3
    assert text.edit_similarity("kitten", "sitting") == pytest.approx(4 / 7)
    assert text.edit_similarity("", "") == 1


@pytest.mark.exact("BLEU and chrF equal sacrebleu's")
def test_bleu_and_chrf_are_sacrebleus():
    said, meant = "the cat sat on a mat today", "the cat sat on the mat"
    bleu = sacrebleu.sentence_bleu(said, [meant], use_effective_order=True).score
    assert text.bleu(said, meant) == pytest.approx(bleu / 100) and 0.3 < bleu / 100 < 0.8
    assert text.chrf(said, meant) == pytest.approx(
        sacrebleu.sentence_chrf(said, [meant]).score / 100
    )


words = st.lists(st.sampled_from("abc"), max_size=6).map(" ".join)


@settings(max_examples=25, deadline=None)
@given(words, words)
def test_metrics_are_bounded_and_full_for_equal_texts(left, right):
    for name, metric in text.METRICS.items():
        assert 0.0 <= metric(left, right) <= 1.0, name
        if right:
            assert metric(right, right) == 1.0, name

    def slow(a, b):  # the recursive definition
        if not a or not b:
            return len(a) + len(b)
        change = slow(a[1:], b[1:]) + (a[0] != b[0])
        return min(change, slow(a[1:], b) + 1, slow(a, b[1:]) + 1)

    a, b = left.replace(" ", ""), right.replace(" ", "")
    assert text.edit_distance(a, b) == slow(a, b)


def test_closeness_refuses_the_over_long_and_unknown_metrics():
    reward = text.closeness("edit", longest=10)
    assert reward(P, "a").value == 1.0 and reward(P, "a" * 11).value == 0.0
    assert reward(P, "").parts["format"] == 0.0
    with pytest.raises(ValueError, match="metric='bleurt'"):
        text.closeness("bleurt")


# Combinators


def test_weighted_sum_gate_and_veto():
    both = combine.weighted_sum({"x": (2.0, constant(0.5, z=3.0)), "y": (-1.0, constant(0.25))})
    assert both(P, "") == Score(0.75, {"x": 0.5, "x/z": 3.0, "y": 0.25})
    assert combine.gate(constant(1.0), constant(0.7))(P, "").value == 0.7
    assert combine.gate(constant(0.9), constant(0.7), closed=-2.0)(P, "").value == -2.0
    assert combine.veto(constant(0.7), constant(0.0))(P, "").value == 0.7
    assert combine.veto(constant(0.7), constant(1.0), value=-3.0)(P, "").value == -3.0


@pytest.mark.parametrize(
    "weights",
    [[0.6, 0.3, 0.1], [0.1] * 10, [0.7, 0.2, 0.1], [0.3, 0.3, 0.3, 0.1], [0.05] * 20],
    ids=str,
)
def test_parts_that_come_to_1_are_a_reward_of_1(weights):
    """A completion passes from 1 on, and plain sums of these are a bit below or above it."""
    assert sum(weights) != 1.0 == exact_sum(weights)
    names = [f"part {n}" for n in range(len(weights))]
    assert user_functions.score(dict(zip(names, weights, strict=True))).value == 1.0
    rewards = {name: (w, constant(1.0)) for name, w in zip(names, weights, strict=True)}
    assert combine.weighted_sum(rewards)(P, "").value == 1.0
    given = dict(zip(names[::-1], weights, strict=True))
    heads = combine.heads({name: constant(1.0) for name in names}, lambda problem: given)
    assert heads(P, "").value == 1.0


def test_sums_that_are_not_finite_are_no_scores():
    assert exact_sum([1e308, 1e308]) == exact_sum([math.inf]) == math.inf
    assert math.isnan(exact_sum([math.inf, -math.inf])) and exact_sum([]) == 0.0
    with pytest.raises(ValueError, match="not a finite number"):
        user_functions.score({"a": 1e308, "b": 1e308})


def test_a_score_of_zero_is_a_score_and_an_error_is_passed_on():
    zero, error = constant(0.0), Score(None, error="timeout: no")
    assert combine.weighted_sum({"x": (1.0, zero)})(P, "").value == 0.0
    for reward in [
        combine.weighted_sum({"x": (1.0, zero), "y": (0.0, failing)}),
        combine.gate(zero, failing),
        combine.veto(failing, zero),
        combine.mapped(failing, combine.clip(0, 1)),
        combine.noise(failing, seed=0),
        combine.heads({"x": failing}, lambda p: {"x": 1.0}),
        shape.cosine(failing, 10),
        shape.calibrated(failing),
    ]:
        assert reward(P, "") == error


def test_maps_and_heads():
    assert [combine.clip(-1, 2)(x) for x in (-3.0, 0.5, 9.0)] == [-1, 0.5, 2]
    assert combine.mapped(constant(8.0), combine.saturate(4.0))(P, "").value == math.tanh(2)
    by_domain = combine.heads(
        {"x": constant(1.0), "y": constant(0.0)}, lambda p: {"x": 1.0, "y": 3.0}
    )
    assert by_domain(P, "").value == 0.25
    with pytest.raises(ValueError, match="positive sum"):
        combine.heads({"x": constant(1.0)}, lambda p: {})(P, "")
    with pytest.raises(ValueError, match="low=2"):
        combine.clip(2, 1)


def test_noise_is_fixed_by_the_completion_and_has_the_rate_asked_for():
    flipped = combine.noise(constant(1.0), seed=1, flip=0.3)
    values = [flipped(P, str(i)).value for i in range(2000)]
    assert values == [flipped(P, str(i)).value for i in range(2000)]
    assert abs(np.mean(values) - 0.7) < 0.04 and set(values) == {0.0, 1.0}
    blurred = combine.noise(constant(1.0), seed=1, gaussian=0.5)
    values = [blurred(P, str(i)).value for i in range(2000)]
    assert abs(np.mean(values) - 1) < 0.04 and abs(np.std(values) - 0.5) < 0.03
    assert blurred(P, "0").parts["clean"] == 1.0


def test_coroutines_combine_run_together_and_score_in_bulk():
    mixed = combine.weighted_sum({"slow": (1.0, slowly), "now": (1.0, constant(1.0))})
    assert asyncio.run(mixed(P, "abc")).value == 4.0
    nested = combine.gate(combine.mapped(slowly, combine.clip(0, 1)), mixed)
    assert asyncio.run(nested(P, "abc")).value == 4.0
    items = [(P, "x" * n) for n in range(20)]

    async def fragile(problem, completion):
        if len(completion) == 3:
            raise RuntimeError("three")
        return await slowly(problem, completion)

    scores = asyncio.run(combine.score_all(fragile, items, concurrency=4))
    assert scores[3].error == "exception: RuntimeError: three"
    assert [s.value for s in scores if s.error is None] == [n for n in range(20) if n != 3]
    assert asyncio.run(combine.score_all(constant(1.0), items))[19].value == 1.0


# Form


def test_overlong_is_daposs_ramp():
    reward = shape.overlong(10, 4)
    said = {n: reward(P, "w " * n).value for n in (0, 6, 7, 8, 10, 30)}
    assert said == {0: 0, 6: 0, 7: -0.25, 8: -0.5, 10: -1, 30: -1}
    assert shape.length_penalty(constant(1.0), 0.1)(P, "a b c").value == pytest.approx(0.7)
    characters = shape.overlong(10, 5, length=len)
    assert characters(P, "a" * 10).value == -1
    with pytest.raises(ValueError, match="buffer=0"):
        shape.overlong(10, 0)


def test_cosine_at_its_ends_and_middle():
    right, wrong = shape.cosine(constant(1.0), 100), shape.cosine(constant(0.0), 100)
    assert [right(P, "w " * n).value for n in (0, 50)] == pytest.approx([2.0, 1.5])
    assert [wrong(P, "w " * n).value for n in (0, 50)] == pytest.approx([-10.0, -5.0])
    assert right(P, "w " * 99).value == pytest.approx(1.0, abs=1e-3)
    assert right(P, "w " * 100).value == -10.0


def test_repetition_counts_repeated_grams():
    assert shape.repetition(2)(P, "a b a b").value == pytest.approx(-1 / 3)
    assert shape.repetition(3)(P, "a b c d").value == 0 and shape.repetition(3)(P, "a").value == 0
    assert shape.repetition(1, worst=-2)(P, "a A a a").value == pytest.approx(-1.5)


def test_calibrated_is_correct_less_brier_and_cannot_be_stuffed():
    tag = "<confidence>{}</confidence>".format
    right, wrong = shape.calibrated(constant(1.0)), shape.calibrated(constant(0.0))
    assert right(P, tag("0.7")).value == pytest.approx(1 - 0.09)
    assert wrong(P, tag(0.7)).value == pytest.approx(-0.49)
    for bad in ["", tag("7"), tag("-1"), tag("nan"), tag("1.5"), tag(1) + tag(0), tag("")]:
        assert right(P, bad).value == -1.0
    # a proper score: at accuracy p, stating p is best
    for p in (0.1, 0.5, 0.8):
        q = np.linspace(0, 1, 101)
        assert q[np.argmax(p * (1 - (q - 1) ** 2) - (1 - p) * q**2)] == pytest.approx(p)


# Arrays


def test_reference_probability():
    logp = np.log([[0.5, 0.25, 0.9], [0.1, 0.2, 0.3]])
    logp[1, 2] = np.nan  # padding must not leak
    mask = np.array([[True, True, False], [True, False, False]])
    np.testing.assert_allclose(group.reference_probability(logp, mask), [0.375, 0.1])
    assert np.isnan(group.reference_probability(logp, mask & False)).all()
    np.testing.assert_allclose(
        group.debiased_probability(np.array([0.5, 0.2]), np.array([0.2, 0.5])), [0.3, 0.0]
    )


# Structure


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0}},
    "required": ["n"],
    "additionalProperties": False,
}


def test_json_schema_and_strictness():
    reward = schema.json_schema(SCHEMA)
    for good in [
        '{"n": 3}',
        ' {"n":0}\n',
        'Yes:\n```json\n{"n": 1}\n```',
        '<think>x</think>{"n": 1}',
    ]:
        assert reward(P, good).value == 1.0, good
    for bad in ['{"n": -1}', '{"n": "3"}', "{}", '{"n": 1, "m": 2}', "[]"]:
        assert reward(P, bad) == Score(0.0, {"schema": 0.0, "json": 1.0}), bad
    for broken in ['{"n": 1', '{"n": 1, "n": 2}', '{"n": NaN}', '{"n": 1} ok', "", "[" * 10**5]:
        assert reward(P, broken).parts["json"] == 0.0, broken[:20]
    own = Problem("p", "", None, metadata={"schema": {"type": "array"}})
    assert schema.json_schema()(own, "[]").value == 1.0


def test_patterns():
    assert schema.pattern(r"[a-z]+\d")(P, " ab1\n").value == 1.0
    assert schema.pattern(r"[a-z]+\d")(P, "ab12").value == 0.0
    assert schema.pattern(r"\d", whole=False)(P, "ab12").value == 1.0
    form = schema.think_answer()
    assert form(P, "<think>a\nb</think>\n<answer>c</answer>").value == 1.0
    for bad in [
        "<think></think><answer>c</answer>", "<think>a</think>",
        "x<think>a</think><answer>c</answer>",
        "<think>a</think><answer>c</answer>!", "<think>a</think><answer>b<answer>c</answer>",
        "<think>a<think>b</think></think><answer>c</answer>",
    ]:  # fmt: skip
        assert form(P, bad).value == 0.0, bad


# Mathematics


@pytest.mark.parametrize(
    ("gold", "same", "different"),
    [
        (r"\frac{1}{2}", ["0.5", "1/2", r"\dfrac{2}{4}", r"\frac12"], ["2", "0.05", "1"]),
        ("x^2+2x+1", ["(x+1)^2", "1+2x+x^2"], ["(x-1)^2", "x^2+2x"]),
        (r"2\sqrt{3}", [r"\sqrt{12}"], [r"\sqrt{6}", r"2\sqrt{2}"]),
        (r"\{1,2,3\}", [r"\{3,2,1\}"], [r"\{1,2\}", r"\{1,2,4\}"]),
        ("1000", ["1,000", "10^3"], ["100", "10000"]),
    ],
)
def test_math_equivalence(gold, same, different):
    reward, problem = math_rewards.equivalent(), Problem("p", "", gold)
    for answer in same:
        assert reward(problem, f"So $\\boxed{{{answer}}}$").value == 1.0, answer
    for answer in different:
        assert reward(problem, f"So $\\boxed{{{answer}}}$").value == 0.0, answer
    assert reward(problem, gold).value == 0.0  # not boxed
    assert reward(problem, "\\boxed{" + "(" * 5000 + "}").value == 0.0


@pytest.mark.parametrize("make", [math_rewards.near, math_rewards.equivalent])
def test_a_large_number_of_a_table_is_a_reference(make):
    form = "\\boxed{1" + "0" * 16 + "}"
    assert make()(Problem("p", "q", 1e16), form).value == 1.0


def math_task() -> Task:
    return Task("m", lambda s, k, i: P, math_rewards.equivalent())


@pytest.mark.broad
def test_math_in_the_pool_ends_what_would_not_end():
    gold, monster = Problem("p", "", "1"), r"\boxed{9^{9^{9^{9}}}}"
    with scoring.open_pool("tests.data.test_rewards:math_task", workers=1, time_limit_s=2) as pool:
        scores = pool.score([(gold, r"\boxed{1}"), (gold, monster), (gold, r"\boxed{2}")])
        unreadable = pool.score([(Problem("p", "", ""), r"\boxed{1}")])[0]
    assert [s.value for s in (scores[0], scores[2])] == [1.0, 0.0]
    assert scores[1].value is None or scores[1].value == 0.0
    assert unreadable.error.startswith("gold:")


# What a completion must not be able to make slow


def slow_distance(left, right):
    """Levenshtein by its definition."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def slow_common(left, right):
    """Length of the longest common subsequence, by its definition."""
    row = [0] * (len(right) + 1)
    for a in left:
        before = 0
        for j, b in enumerate(right, 1):
            before, row[j] = row[j], before + 1 if a == b else max(row[j], row[j - 1])
    return row[-1]


@settings(max_examples=200, deadline=None)
@given(st.text("abc \u00e9", max_size=70), st.text("abc \u00e9", max_size=70))
def test_distances_are_those_of_the_definition(left, right):
    assert text.edit_distance(left, right) == slow_distance(left, right)
    assert text._common(left, right) == slow_common(left, right)


def test_text_metrics_are_quick_on_the_longest_answer():
    rng = random.Random(0)
    long = "".join(rng.choice("abcdefgh  ") for _ in range(10_000))
    other = "".join(rng.choice("abcdefgh  ") for _ in range(10_000))
    words = " ".join(rng.choice("abcdefgh") for _ in range(5_000))
    for name in text.METRICS:
        start = time.monotonic()
        text.METRICS[name](long, other)
        text.METRICS[name](words, words[::-1])
        assert time.monotonic() - start < 4, name


@pytest.mark.parametrize(
    ("value", "unique"),
    [
        ("[1, 2]", True), ("[1, 1.0]", False), ("[1, true]", True), ('[0, false, "0"]', True),
        ('[{"a": 1, "b": 2}, {"b": 2, "a": 1.0}]', False), ("[[1], [1]]", False),
        ('[{"a": [1]}, {"a": [1, 1]}]', True), ("[]", True), ('["a", "A"]', True),
        ("[-0.0, 0]", False),
    ],
)  # fmt: skip
def test_unique_items(value, unique):
    reward = schema.json_schema({"type": "array", "uniqueItems": True})
    assert reward(P, value).value == float(unique)


def test_schemas_are_quick_and_numbers_finite():
    start = time.monotonic()
    many = json.dumps([{"n": i} for i in range(7_000)])
    unique = schema.json_schema({"uniqueItems": True})
    assert unique(P, many).value == 1.0 and time.monotonic() - start < 2
    assert unique(P, many[:-1] + ', {"n": 3.0}]').value == 0.0
    number = schema.json_schema({"type": "number"})
    for infinite in ("1e999", "-1e999", "1E400"):
        assert number(P, infinite) == Score(0.0, {"schema": 0.0, "json": 0.0})
    assert number(P, "1e300").value == 1.0
    for huge in ("1e300", "1" + "0" * 400):
        score = schema.json_schema({"multipleOf": 0.1})(P, huge)
        assert score.error is None
    deep = {"$ref": "#/$defs/t", "$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}}
    assert schema.json_schema(deep)(P, "[" * 900 + "]" * 900).error is None
