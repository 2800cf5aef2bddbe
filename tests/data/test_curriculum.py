"""Curricula: formulas by hand, statistics of the choices, states that survive a checkpoint."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.data.selection import bandits, curriculum

NAN = float("nan")


def filled(curves, seed=0):
    """A store whose prompts have these curves."""
    state = curriculum.start(len(curves), window=len(curves[0]), seed=seed)
    for epoch in np.array(curves).T:
        ids = np.flatnonzero(~np.isnan(epoch))
        state = curriculum.record(state, ids, epoch[ids, None])
    return state


def everything(state):
    return np.ones(len(state.visits), bool)


def test_the_store_keeps_the_last_window_and_leaves_failures_out():
    state = curriculum.start(3, window=2)
    state = curriculum.record(state, [0, 2], [[1, 0], [NAN, 1]])
    state = curriculum.record(state, [0], [[0, 0]])
    state = curriculum.record(state, [0, 1], [[1, 1], [NAN, NAN]])
    np.testing.assert_array_equal(state.visits, [3, 0, 1])
    np.testing.assert_array_equal(state.curve, [[0, 1], [NAN, NAN], [NAN, 1]])
    np.testing.assert_array_equal(curriculum.pass_rate(state), [0.5, NAN, 1.0])
    with pytest.raises(ValueError, match="repeat"):
        curriculum.record(state, [1, 1], [[0], [0]])


def test_difficulty_ranks_the_worst_prompts_first():
    state = filled([[0.5, 0.7], [0.0, 0.2], [NAN, NAN], [1.0, 1.0]])
    np.testing.assert_allclose(curriculum.difficulty(state), [-0.6, -0.1, NAN, -1.0], rtol=1e-6)
    _, ids = curriculum.highest(state, 2, everything(state), curriculum.difficulty(state))
    assert ids.tolist() == [1, 0]


def test_passes_go_from_what_was_easiest_at_the_last_visit():
    state = filled([[0.0, 0.2], [1.0, 0.9], [0.5, 0.5], [NAN, 0.0], [0.9, 0.7]])
    everyone = everything(state)
    state, first = curriculum.easiest_first(state, 2, everyone)
    assert first.tolist() == [3, 1]  # visited once; then the easiest of the others
    state = curriculum.record(state, first, [[0.4], [0.1]])
    _, second = curriculum.easiest_first(state, 5, everyone)
    assert second.tolist() == [4, 2, 3, 0, 1]
    _, allowed = curriculum.easiest_first(state, 1, np.arange(5) == 2)
    assert allowed.tolist() == [2]


@pytest.mark.exact("choices of a curriculum are the same after a checkpoint")
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 10), st.integers(0, 5))
def test_choices_are_pure_unrepeated_allowed_and_survive_a_checkpoint(seed, count, before):
    state = curriculum.start(20, seed=seed)
    allowed = np.arange(20) % 2 == 0
    for _ in range(before):
        state, _ = curriculum.uniform(state, 3, allowed)
    restored = curriculum.from_json(
        curriculum.Prompts, json.loads(json.dumps(curriculum.to_json(state)))
    )
    for a, b in zip(state, restored, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.asarray(a).dtype == np.asarray(b).dtype
    for choose in (curriculum.uniform, curriculum.difficulty_targeted):
        after, ids = choose(state, count, allowed)
        np.testing.assert_array_equal(ids, choose(restored, count, allowed)[1])
        assert len(set(ids.tolist())) == count and allowed[ids].all()
        assert after.draws == state.draws + 1
    with pytest.raises(ValueError, match="only 10 prompts may be chosen"):
        curriculum.uniform(state, 11, allowed)


def test_sampling_follows_the_weights():
    state, weights = curriculum.start(4), np.array([0.0, 1.0, 2.0, 5.0])
    counts = np.zeros(4)
    for _ in range(4000):
        state, (chosen,) = curriculum.sample(state, 1, weights)
        counts[chosen] += 1
    np.testing.assert_allclose(counts / 4000, weights / 8, atol=0.03)


def test_difficulty_targeted_prefers_the_middle_and_the_unseen():
    state = filled([[0.0, 0.0], [0.5, 0.5], [1.0, 1.0], [NAN, NAN]])
    counts = np.zeros(4)
    for _ in range(500):
        state, (chosen,) = curriculum.difficulty_targeted(state, 1, everything(state))
        counts[chosen] += 1
    assert counts[1] > 180 and counts[3] > 180 and counts[0] + counts[2] < 60
    state, ids = curriculum.difficulty_targeted(state, 4, everything(state), width=0.01)
    assert sorted(ids) == [0, 1, 2, 3]  # no weight underflows to never


def test_the_frontier_is_what_is_passed_at_times_then_what_is_new_then_the_rest():
    state = filled([[NAN, 1.0], [NAN, 0.0], [NAN, 0.5], [NAN, NAN], [0.0, 0.2], [0.5, 0.0]])
    everyone = everything(state)
    for visits, order in (
        (2, [2, 3, 0, 1, 4, 5]),
        (3, [2, 4, 3, 0, 1, 5]),
        (1, [3, 0, 1, 2, 4, 5]),
    ):
        _, ids = curriculum.frontier(state, 6, everyone, visits=visits)
        assert ids.tolist() == order
    after = curriculum.record(state, [1], [[0, 1]])  # an improved policy tries it again
    assert curriculum.frontier(after, 2, everyone, visits=3)[1].tolist() == [2, 1]
    assert curriculum.frontier(state, 1, np.arange(6) == 5)[1].tolist() == [5]
    with pytest.raises(ValueError, match="only 5 prompts"):
        curriculum.frontier(state, 6, np.arange(6) > 0)


def test_informative_groups():
    rewards = np.array([[0, 0, 1], [1, 1, 1], [0, 0, 0], [NAN, 1, 1], [NAN, 0, 1], [NAN] * 3])
    np.testing.assert_array_equal(
        curriculum.informative(rewards), [True, False, False, False, True, False]
    )


def test_dynamic_sampling_fills_the_batch_within_its_budget():
    good, bad = [0.0, 1.0], [1.0, 1.0]
    state = curriculum.quota(4, oversampling=3)
    state, keep, more = curriculum.dynamic(state, np.array([good, bad, bad, bad]))
    assert keep.tolist() == [True, False, False, False] and more == 8  # 3 / (1/4) is 12, 8 are left
    state, keep, more = curriculum.dynamic(state, np.array([bad, good, good, good, good]))
    assert keep.tolist() == [False, True, True, True, False] and more == 0
    state = curriculum.quota(2, oversampling=2)
    state, _, more = curriculum.dynamic(state, np.array([bad, bad]))
    assert more == 2
    state, keep, more = curriculum.dynamic(state, np.array([bad, good]))
    assert more == 0 and int(state.kept) == 1 and int(state.sampled) == 4


@pytest.mark.parametrize(
    ("wanted", "oversampling", "budget"),
    [(3, 1.1, 4), (10, 1.1, 11), (100, 1.15, 115), (3, 5 / 3, 5), (8, 1, 8), (8, 1.001, 9)],
)
def test_a_budget_is_rounded_up_and_no_whole_number_is_missed(wanted, oversampling, budget):
    """In floating point, 10 times 1.1 is above 11, and 100 times 1.15 below 115."""
    assert int(curriculum.quota(wanted, oversampling=oversampling).budget) == budget


def test_historical_variance_and_impact_by_hand():
    curves = [[0.0, 0.5, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.5], [NAN, NAN, 0.3]]
    state = filled(curves)
    np.testing.assert_allclose(
        curriculum.historical_variance(state),
        [np.var(curves[0]), 0, np.var(curves[2]), NAN],
        rtol=1e-5,
    )
    average = np.array([1 / 3, 1 / 2, 2.5 / 3])
    expected = [
        1 - sum((r - a) ** 2 for r, a in zip(c, average, strict=True)) / sum((1 - average) ** 2)
        for c in curves[:3]
    ]
    np.testing.assert_allclose(curriculum.learning_impact(state), [*expected, NAN], rtol=1e-4)
    _, best = curriculum.highest(state, 1, everything(state), curriculum.historical_variance(state))
    assert best.tolist() == [0]
    with pytest.raises(ValueError, match="only 3 prompts have a score"):
        curriculum.highest(state, 4, everything(state), curriculum.historical_variance(state))


def test_passes_show_every_prompt_before_any_again():
    state, shown = curriculum.start(10, seed=4), []
    for _ in range(10):
        state, ids = curriculum.passes(state, 3, np.arange(10) != 7)
        state = curriculum.record(state, ids, np.ones((3, 2)))
        shown += ids.tolist()
    for first in range(0, 27, 9):
        assert sorted(shown[first : first + 9]) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert shown[:9] != shown[9:18]


def test_what_is_failed_hardly_solved_or_within_reach():
    """Failed: never above a half, and not rising; slopes by NumPy's own fit."""
    curves = np.array(
        [
            [0.0, 0.0, 0.0], [0.4, 0.2, 0.1], [0.1, 0.2, 0.4], [0.0, 0.6, 0.0], [0.5, 0.5, 0.5],
            [0.3, 0.0, 0.3], [1.0, 1.0, 1.0],
        ]
    )  # fmt: skip
    slopes = np.polyfit(np.arange(3), curves.T, 1)[0]
    failed = (curves.max(axis=1) <= 0.5) & (slopes <= 1e-9)
    assert failed.tolist() == [True, True, False, False, True, True, False]
    state = filled(curves)
    np.testing.assert_array_equal(curriculum.failing(state), failed)
    np.testing.assert_array_equal(curriculum.failing(curriculum.start(2)), [False, False])
    part = filled([[NAN, NAN, 0.4], [NAN, 0.2, 0.3], [NAN, 0.3, 0.2]])
    np.testing.assert_array_equal(curriculum.failing(part), [True, False, True])

    some = filled([[0.2, 0.0], [0.0, 0.0], [0.9, 0.8], [0.6, 0.5], [NAN, NAN]])
    _, ids = curriculum.highest(some, 4, everything(some), curriculum.least_solved(some))
    assert ids.tolist() == [0, 3, 2, 1]
    live = curriculum.solvable_at_random(some)
    rate = curriculum.pass_rate(some)
    assert ((live >= 0) == ((rate > 0) & (rate < 1))).all() and len(np.unique(live)) > 2
    _, ids = curriculum.highest(some, 4, everything(some), curriculum.within_reach(some))
    assert ids.tolist() == [3, 2, 0, 1]


def test_the_central_band_leaves_out_what_earns_most_and_least():
    """Of rates 0 to 0.8 in steps of 0.1, the quartiles are 0.2 and 0.6; the middle first."""
    rates = np.array([0.4, 0.0, 0.8, 0.6, 0.1, 0.2, 0.7, 0.3, 0.5])
    state = filled([[NAN, rate] for rate in [*rates, NAN]])
    score = curriculum.central(state)
    assert np.isnan(score).tolist() == [*(~((rates > 0.15) & (rates < 0.65))).tolist(), True]
    _, ids = curriculum.highest(state, 5, everything(state), score)
    assert rates[ids].tolist() == [0.4, 0.3, 0.5, 0.6, 0.2]
    assert np.isnan(curriculum.central(curriculum.start(3))).all()


def test_new_problems_go_where_the_failures_are():
    domains = np.array([0, 0, 1, 1, 1, 2])
    failing = np.array([True, False, True, True, True, False])
    got = bandits.weaknesses(failing, domains, 3, synthesized=0.6)
    np.testing.assert_allclose(got, [0.4 + 1.8 / 4, 0.4 + 1.8 * 3 / 4, 0.4])
    assert got.mean() == pytest.approx(1)
    np.testing.assert_array_equal(bandits.weaknesses(failing & False, domains, 3), [1, 1, 1])


def test_hardest_are_retained_and_solved_ones_leave():
    state = filled([[0.9], [0.1], [1.0], [0.4], [NAN]])
    _, ids = curriculum.hardest_retained(state, 3, everything(state))
    assert ids.tolist() == [4, 1, 3]
    kept = np.isin(np.arange(5), ids)
    _, ids = curriculum.hardest_retained(state, 2, kept)
    assert ids.tolist() == [4, 1]
    _, ids = curriculum.hardest_retained(state, 5, everything(state))
    assert 2 not in ids and len(ids) == 4


def test_stages_hold_until_changed():
    stages = [(0, {"length": 8, "group": 4}), (10, {"length": 16}), (20, {"group": 8})]
    said = [curriculum.stage_at(stages, s) for s in (0, 9, 10, 25)]
    assert [(s["length"], s["group"]) for s in said] == [(8, 4), (8, 4), (16, 4), (16, 8)]
    with pytest.raises(ValueError, match="must rise from 0"):
        curriculum.stage_at([(5, {})], 0)


def test_sec_is_a_boltzmann_choice_over_averaged_advantages():
    state = bandits.start(3)
    state = bandits.observe(state, [0, 0, 1], [1.0, 3.0, NAN], rate=0.5)
    state = bandits.observe(state, [0, 2], [2.0, 4.0], rate=0.5)
    np.testing.assert_allclose(state.value, [1.5, 0.0, 2.0])
    weights = np.exp([1.5, 0.0, 2.0])
    np.testing.assert_allclose(bandits.sec(state), weights / weights.sum())


def test_dump_adds_the_bonus_of_the_unseen():
    state = bandits.observe(bandits.start(2, window=2), [0, 0, 0], [9.0, 1.0, 3.0])
    bound = np.array([2.0 + np.sqrt(2 * np.log(4) / 4), np.sqrt(2 * np.log(4) / 1)])
    weights = np.exp(bound / 0.5)
    np.testing.assert_allclose(bandits.dump(state, temperature=0.5), weights / weights.sum())


def test_recap_leaves_what_improves_already():
    """Equation 1 of losses 1 - r: two domains of the paper's kind, one that rises and one flat."""
    rising, flat = np.linspace(0.3, 0.9, 20), np.full(20, 0.6)
    state = bandits.start(2, window=20)
    for domain, rewards in enumerate((rising, flat)):
        state = bandits.observe(state, np.full(20, domain), rewards)
    scores = []
    for losses in (1 - rising, 1 - flat):
        early, late = losses[:10].mean(), losses[10:].mean()
        scores.append(late / early + losses[10:].std() / (late + early))
    expected = np.exp(np.array(scores) / 5) / np.exp(np.array(scores) / 5).sum()
    np.testing.assert_allclose(bandits.recap(state), expected)
    np.testing.assert_allclose(bandits.recap(state), [0.477, 0.523], atol=5e-4)


def test_recap_where_nothing_is_left_to_learn_or_nothing_is_known():
    """Solved throughout: as one that does not move. Seen once: as the most urgent."""
    state = bandits.start(4, window=8)
    for domain, rewards in ((0, [1.0] * 8), (1, [0.5] * 8), (2, [0.5])):
        state = bandits.observe(state, np.full(len(rewards), domain), np.array(rewards))
    np.testing.assert_allclose(bandits.recap(state), [0.25] * 4)
    np.testing.assert_allclose(bandits.recap(bandits.start(2)), [0.5, 0.5])


def test_dads_gives_failing_domains_weight_and_all_a_floor():
    state = bandits.observe(bandits.start(2), [0, 1], [1.0, 0.2], rate=1.0)
    weights = np.exp(np.array([0.0, 0.8]) / 0.1)
    expected = 0.9 * weights / weights.sum() + 0.05
    np.testing.assert_allclose(bandits.dads(state, temperature=0.1, floor=0.1), expected)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(1, 40), st.integers(0, 99))
def test_split_rounds_each_share_and_sums_up(weights, count, seed):
    weights = np.array(weights)
    state, counts = bandits.split(bandits.start(len(weights), seed=seed), weights, count)
    expected = weights / weights.sum() * count
    assert sum(counts.values()) == count and state.draws == 1
    assert all(abs(counts.get(d, 0) - e) < 1 + 1e-6 for d, e in enumerate(expected))


def test_split_is_unbiased():
    state, total = bandits.start(3), np.zeros(3)
    for _ in range(3000):
        state, counts = bandits.split(state, np.array([0.5, 0.3, 0.2]), 3)
        for d, n in counts.items():
            total[d] += n
    np.testing.assert_allclose(total / 9000, [0.5, 0.3, 0.2], atol=0.01)


def test_angles_by_hand_and_ranked_sampling_that_moves():
    hidden = np.array([[1.0, 0], [2.0, 0], [0, 3.0]])
    assert bandits.angle_concentration(hidden, np.array([0, 0, 1])) == pytest.approx(1.0 + 0.0)
    assert bandits.angle_concentration(hidden, np.zeros(3, int)) == pytest.approx(1 / 3)
    state = bandits.rank(np.arange(100.0), seed=1)
    _, early = bandits.gaussian(state, 10, width=5)
    assert early.mean() > 85
    moved = state
    for _ in range(30):
        moved = bandits.move(moved, 1.0, 0.1, speed=10)
    _, late = bandits.gaussian(moved, 10, width=5)
    assert late.mean() < 15 and moved.centre == 99
    assert bandits.move(moved, 0.0, -1.0, speed=10).centre == 99  # never back
    restored = curriculum.from_json(bandits.Ranks, curriculum.to_json(moved))
    np.testing.assert_array_equal(bandits.gaussian(restored, 10, width=5)[1], late)
    half = np.arange(100) < 50
    assert (bandits.gaussian(state, 10, width=5, allowed=half)[1] < 50).all()
    given = {"allowed": half, "concentration": 0.0, "width": 5, "speed": 10}
    assert bandits.gain(state, 4, accuracy=float("nan"), **given)[0].centre == 0
    first, ids = bandits.gain(state, 4, accuracy=float("nan"), **given)
    angle = state.signal[ids].mean() + 0.0
    step = np.clip(5 * np.tanh(2 * (1.0 - 0.5)) + 5 * np.tanh(2 * angle), 0, 10)
    assert bandits.gain(first, 4, accuracy=1.0, **given)[0].centre == pytest.approx(step)
    with pytest.raises(ValueError, match="Domains has"):
        curriculum.from_json(bandits.Domains, curriculum.to_json(moved))


@pytest.mark.parametrize(("accuracy", "angle"), [(0.75, 0.3), (0.1, 0.9), (0.0, 0.05), (1.0, 2.0)])
def test_the_centre_moves_as_in_the_released_code(accuracy, angle):
    """`clamp(500 tanh(2 (acc / 2 - .5)) + 500 tanh(2 angle), 0, 1000)`, acc from 0 to 2."""
    acc = 2 * accuracy
    move = np.clip(500 * np.tanh(2 * (acc / 2 - 0.5)) + 500 * np.tanh(2 * angle), 0, 1000)
    state = bandits.rank(np.arange(5000.0))._replace(centre=np.float64(70))
    assert bandits.move(state, accuracy, angle, speed=1000).centre == pytest.approx(70 + move)


def test_ranks_of_an_earlier_version_can_be_read():
    """They lack what the last batch was: then the angle is its change alone."""
    saved = curriculum.to_json(bandits.rank(np.arange(4.0)))
    old = {name: saved[name] for name in ("seed", "draws", "order", "centre")}
    read = curriculum.from_json(bandits.Ranks, old)
    given = {"allowed": np.ones(4, bool), "concentration": 0.5, "width": 5, "speed": 1}
    moved = bandits.gain(read, 2, accuracy=0.5, **given)[0]
    assert moved.centre == pytest.approx(np.tanh(1.0) / 2)


def test_a_bandit_finds_the_domain_that_teaches():
    rng, state = np.random.default_rng(0), bandits.start(3)
    for _ in range(60):
        state, counts = bandits.split(state, bandits.dump(state), 12)
        domains = np.repeat(list(counts), list(counts.values()))
        signal = np.where(domains == 1, 0.8, 0.1) + 0.05 * rng.normal(size=len(domains))
        state = bandits.observe(state, domains, np.abs(signal))
    assert bandits.dump(state)[1] > 0.8 and state.pulls.min() > 0
