"""Advantages against plain loops over groups, and TRL's own lines."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.losses.advantages import batch_advantages, credit, difficulty, pass_rate, thoughts
from jaxrl.losses.advantages import groups as advantages

FEW = settings(max_examples=10, deadline=None)
seeds = st.integers(0, 9999)


def batch(seed, binary=False):
    """Ten samples of up to four interleaved groups (ids with gaps); two are invalid and NaN."""
    rng = np.random.default_rng(seed)
    rewards = rng.integers(0, 2, 10).astype(float) if binary else rng.normal(size=10)
    valid = np.ones(10, bool)
    valid[rng.choice(10, 2, replace=False)] = False
    dirty = np.where(valid, rewards, np.nan)
    return dirty, rng.choice([0, 1, 3, 6], 10), valid


def by_group(rewards, groups, valid, f):
    """`f` on the valid rewards of each group; 0 elsewhere."""
    out = np.zeros(len(rewards))
    for g in set(groups):
        rows = np.flatnonzero((groups == g) & valid)
        if len(rows):
            out[rows] = f(rewards[rows])
    return out


def std(x, ddof=1):
    return x.std(ddof=ddof) if len(x) > ddof else 0.0


def normalised(x, eps=1e-8):
    return (x - x.mean()) / (std(x) + eps)


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9)


@pytest.mark.sample(4, broad=4)
@pytest.mark.exact("group advantages of every baseline and scale equal a formula in NumPy")
@pytest.mark.parametrize("baseline", advantages.BASELINES)
@pytest.mark.parametrize("scale", advantages.SCALES)
@FEW
@given(seed=seeds)
def test_every_combination_of_baseline_and_scale(baseline, scale, seed):
    rewards, groups, valid = batch(seed)
    r = rewards[valid]
    others = by_group(
        rewards, groups, valid, lambda x: [x[i] - np.delete(x, i).mean() if len(x) > 1 else 0.0
                                           for i in range(len(x))]
    )  # fmt: skip
    centred = {
        "group": by_group(rewards, groups, valid, lambda x: x - x.mean()),
        "batch": np.where(valid, rewards - r.mean(), 0.0),
        "none": np.where(valid, rewards, 0.0),
        "leave_one_out": others,
    }[baseline]
    deviation = {
        "group": by_group(rewards, groups, valid, lambda x: np.full(len(x), std(x))) + 1e-4,
        "batch": std(r) + 1e-4,
        "none": 1.0,
    }[scale]
    with jax.enable_x64(True):
        got = advantages.group_advantages(
            rewards, groups, num_groups=10, baseline=baseline, scale=scale, valid=valid
        )
    close(got, centred / deviation)


@pytest.mark.exact("advantages by name equal formulas in NumPy")
@FEW
@given(seed=seeds)
def test_named_baselines(seed):
    rewards, groups, valid = batch(seed)
    lengths = np.random.default_rng(seed).integers(1, 9, 10)
    given_groups = {"group_ids": groups, "num_groups": 10, "valid": valid}
    centred = by_group(rewards, groups, valid, lambda x: x - x.mean())
    mixed = by_group(rewards, groups, valid, lambda x: np.full(len(x), float(np.ptp(x) > 0)))
    with jax.enable_x64(True):
        want = np.where(valid, rewards, 0.0)
        want[valid] = normalised(rewards[valid])
        close(batch_advantages.reinforce_pp(rewards, valid=valid), want)

        want, tokens = np.zeros(10), np.repeat(centred[valid], lengths[valid])
        want[valid] = (centred[valid] - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)
        close(
            batch_advantages.reinforce_pp_baseline(rewards, lengths=lengths, **given_groups), want
        )

        loo = by_group(
            rewards, groups, valid, lambda x: len(x) * (x - x.mean()) / max(len(x) - 1, 1)
        )
        close(advantages.rloo(rewards, **given_groups), loo)

        greedy = np.random.default_rng(seed + 1).normal(size=10)
        want = np.where(valid, rewards - greedy, 0.0)
        close(advantages.remax(rewards, np.where(valid, greedy, np.nan), valid=valid), want)

        got = advantages.informative(rewards, groups, num_groups=10, valid=valid)
        np.testing.assert_array_equal(got, mixed > 0)
        alpha = valid.sum() / max(mixed.sum(), 1)
        close(advantages.gpg_advantages(rewards, **given_groups), alpha * centred)

        soft = by_group(rewards, groups, valid, lambda x: x - 0.3 * np.log(np.exp(x / 0.3).mean()))
        close(advantages.soft_advantages(rewards, beta=0.3, **given_groups), soft)

        want = np.zeros(10)
        for g in set(groups):
            rows = np.flatnonzero((groups == g) & valid)
            if len(rows):
                want[rows] = rewards[rows] - np.average(rewards[rows], weights=lengths[rows])
        close(advantages.opo(rewards, lengths=lengths, **given_groups), want)


@FEW
@given(seed=seeds)
def test_gdpo_normalises_each_reward_before_the_sum(seed):
    rewards, groups, valid = batch(seed)
    parts = np.stack([rewards, 100 * np.roll(np.nan_to_num(rewards), 3)], 1)
    weights = np.array([1.0, 0.5])

    def unit(x):
        return (x - x.mean()) / (std(x) + 1e-4)

    mixed = sum(w * by_group(p, groups, valid, unit) for w, p in zip(weights, parts.T, strict=True))
    want = np.zeros(10)
    want[valid] = normalised(mixed[valid], 1e-4)
    with jax.enable_x64(True):
        got = batch_advantages.gdpo(
            parts, groups, num_groups=10, weights="brief=1,right=0.5", valid=valid
        )
    close(got, want)


def test_whitening_sees_action_tokens_only(x64):
    rng = np.random.default_rng(0)
    x, mask = rng.normal(3.0, 2.0, (4, 5)), rng.random((4, 5)) < 0.6
    got = batch_advantages.whiten(np.where(mask, x, np.nan), mask=mask)
    want = np.zeros_like(x)
    want[mask] = normalised(x[mask])
    close(got, want)


@pytest.mark.exact("the advantage of pass@k equals the average over all subsets")
@pytest.mark.parametrize("k", [1, 2, 3])
@FEW
@given(seed=seeds)
def test_pass_at_k_is_the_average_over_all_subsets(k, seed):
    rewards, groups, valid = batch(seed, binary=True)

    def advantage(x):
        n = len(x)
        if n < k:
            return np.zeros(n)
        subsets = list(itertools.combinations(range(n), k))
        score = np.array([max(x[list(s)]) for s in subsets])
        if score.std() == 0:
            return np.zeros(n)
        unit = (score - score.mean()) / score.std()
        return [np.mean([u for u, s in zip(unit, subsets, strict=True) if i in s])
                for i in range(n)]  # fmt: skip

    with jax.enable_x64(True):
        got = pass_rate.pass_at_k(rewards, groups, num_groups=10, k=k, valid=valid)
    want = by_group(rewards, groups, valid, advantage)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@FEW
@given(seed=seeds)
def test_pass_rate_weights(seed):
    rewards, groups, valid = batch(seed, binary=True)
    given_groups = {"group_ids": groups, "num_groups": 10, "valid": valid}

    def maxrl(x):
        return (x - x.mean()) / x.mean() if x.any() else np.zeros(len(x))

    def weight(x):
        p = x.mean()
        kl = sum(q * math.log(q / 0.5) for q in (p, 1 - p) if q > 0)
        return np.full(len(x), math.exp(-1.5 * kl))

    def mgpo(x):
        return weight(x) * (x - x.mean()) / (std(x) + 1e-4)

    with jax.enable_x64(True):
        close(pass_rate.maxrl(rewards, **given_groups), by_group(rewards, groups, valid, maxrl))
        got = pass_rate.mgpo_weight(rewards, strength=1.5, **given_groups)
        close(np.where(valid, got, 0.0), by_group(rewards, groups, valid, weight))
        got = pass_rate.mgpo(rewards, strength=1.5, **given_groups)
        close(got, by_group(rewards, groups, valid, mgpo))


def test_maxrl_follows_the_log_of_the_pass_rate():
    """One group holding every outcome once per its probability: the exact gradient of log p."""
    counts = np.array([3, 5, 2])  # outcomes a, b, c sampled in proportion; a passes
    outcome = np.repeat(np.arange(3), counts)
    p = counts / counts.sum()
    a = pass_rate.maxrl((outcome == 0).astype(float), np.zeros(10, int), num_groups=1)
    score = np.eye(3)[outcome] - p  # grad log p(y) in the logits
    np.testing.assert_allclose(
        (np.asarray(a)[:, None] * score).mean(0), np.eye(3)[0] - p, atol=1e-6
    )


@pytest.mark.exact("advantages do not depend on the order of samples")
@FEW
@given(seed=seeds)
def test_advantages_do_not_depend_on_the_order_of_samples(seed):
    rewards, groups, valid = batch(seed)
    order = np.random.default_rng(seed).permutation(10)
    for f in (
        advantages.group_advantages,
        advantages.rloo,
        advantages.gpg_advantages,
        advantages.soft_advantages,
        pass_rate.mgpo,
    ):
        a = f(rewards, groups, num_groups=10, valid=valid)
        b = f(rewards[order], groups[order], num_groups=10, valid=valid[order])
        np.testing.assert_allclose(np.asarray(a)[order], b, rtol=1e-5, atol=1e-6)
    lengths = np.random.default_rng(seed).integers(1, 9, 10)
    a, b = (
        batch_advantages.reinforce_pp_baseline(
            rewards[rows], groups[rows], lengths[rows], num_groups=10, valid=valid[rows]
        )
        for rows in (np.arange(10), order)
    )
    np.testing.assert_allclose(np.asarray(a)[order], b, rtol=1e-5, atol=1e-6)


def test_discounted_returns_by_hand():
    got = credit.discounted_returns(
        jnp.array([[1.0, 2.0, 4.0], [1.0, jnp.nan, 3.0]]),
        step_mask=jnp.array([[1, 1, 1], [1, 0, 0]]),
        discount=0.5,
    )
    np.testing.assert_allclose(got, [[3.0, 4.0, 4.0], [1.0, 0.0, 0.0]])


@pytest.mark.exact("advantages of steps and turns equal formulas in NumPy")
@FEW
@given(seed=seeds)
def test_step_and_turn_credit(seed):
    rng = np.random.default_rng(seed)
    rewards, steps = rng.normal(size=6), rng.normal(size=(6, 3))
    mask = np.arange(3) < rng.integers(1, 4, (6, 1))
    groups = np.array([0, 0, 1, 1, 1, 0])
    states = np.where(groups[:, None] == 0, rng.integers(0, 2, (6, 3)), rng.integers(2, 5, (6, 3)))
    dirty = np.where(mask, steps, np.nan)

    def unit(x):
        return (x - x.mean()) / (std(x) + 1e-4)

    going = np.zeros((6, 3))
    for i in range(6):
        for k in range(mask[i].sum()):
            going[i, k] = sum(0.9 ** (j - k) * steps[i, j] for j in range(k, mask[i].sum()))
    step = by_group(going.ravel(), states.ravel(), mask.ravel(), unit).reshape(6, 3)
    episode = by_group(rewards, groups, np.ones(6, bool), unit)
    want = np.where(mask, episode[:, None] + 0.7 * step, 0.0)

    turns = np.stack([by_group(steps[:, k], groups, mask[:, k], unit) for k in range(3)], 1)
    sums = np.zeros((6, 3))
    for i, k in zip(*np.nonzero(mask), strict=True):
        sums[i, k] = sum(0.9 ** (j - k) * turns[i, j] for j in range(k, mask[i].sum()))
    with jax.enable_x64(True):
        got = credit.gigpo(rewards, groups, dirty, states, num_groups=2, num_states=5,
                           step_mask=mask, discount=0.9, weight=0.7)  # fmt: skip
        close(got, want)
        got = credit.turn_advantages(dirty, groups, num_groups=2, step_mask=mask, discount=0.9)
        close(got, sums)


@pytest.mark.exact("advantages of agents equal formulas in NumPy")
@FEW
@given(seed=seeds)
def test_agents_are_compared_with_the_same_agent_of_other_episodes(seed):
    rng = np.random.default_rng(seed)
    steps, agents = rng.normal(size=(6, 4)), rng.integers(0, 3, (6, 4))
    mask, valid = np.arange(4) < rng.integers(0, 5, (6, 1)), rng.random(6) < 0.8
    groups = np.array([0, 1, 0, 1, 1, 0])
    want = np.zeros((6, 4))
    for agent in range(3):
        own = mask & (agents == agent)
        returns = np.where(own, steps, 0.0).sum(1)
        took = own.any(1) & valid
        made = by_group(returns, groups, took, lambda x: (x - x.mean()) / (std(x) + 1e-4))
        want[own] = np.broadcast_to(made[:, None], own.shape)[own]
    with jax.enable_x64(True):
        got = credit.agent_advantages(
            np.where(mask, steps, np.nan), groups, agents, num_groups=2, num_agents=3,
            step_mask=mask, valid=valid,
        )  # fmt: skip
    close(got, want)


def test_thor_compares_calls_with_calls_from_the_same_state():
    """By hand: two episodes of a group, one right; the first call of the wrong one failed twice."""
    steps = np.array([[0.0, 0.0, 1.0, np.nan], [-1.0, -1.0, 0.0, 0.0]])
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
    states = np.array([[0, 1, 2, 0], [0, 0, 0, 2]])  # the last turns are no calls
    with jax.enable_x64(True):
        got = credit.thor(
            np.zeros(2, int), steps, states, num_groups=1, num_states=3, step_mask=mask, weight=0.5,
            eps=1e-9,
        )  # fmt: skip
    half = np.sqrt(0.5)  # of outcomes 1 and 0: their deviation is sqrt(1/2), so +-0.5 / sqrt(1/2)
    call = 0.5 * 0.5 / np.sqrt(1 / 3)  # of 0, -1, -1, 0: the mean is -1/2, the deviation sqrt(1/3)
    want = [[half + call, half, half, 0], [-half - call, -half - call, -half + call, -half]]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_questions_earn_their_gain_and_share_in_a_right_answer():
    """By hand: 2 questions and a right answer against a question and a wrong one; then a row that
    is alone with its turns."""
    steps = jnp.array([[0.5, 0.25, 1.0], [0.5, 0.0, jnp.nan], [1.0, jnp.nan, jnp.nan]])
    given = {"num_groups": 2, "step_mask": jnp.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]])}
    groups = jnp.array([0, 0, 1])
    got = credit.promed(steps, groups, scale="none", **given)
    # the rewards are 1, 0.5, 3 and 0.5, 0; with what follows 4.5, 3.5, 3 and 0.5, 0
    np.testing.assert_allclose(got, [[2, 1.75, 0], [-2, -1.75, 0], [0, 0, 0]], atol=1e-6)
    alone = credit.promed(steps, groups, scale="none", process=0.0, outcome=0.0, **given)
    np.testing.assert_allclose(alone, [[1.5, 1.5, 0], [-1.5, -1.5, 0], [0, 0, 0]], atol=1e-6)
    scaled = credit.promed(steps, groups, **given)
    np.testing.assert_allclose(scaled[:2, :2], [[2**-0.5] * 2, [-(2**-0.5)] * 2], rtol=1e-3)


def test_what_a_policy_writes_as_found_has_no_advantage():
    """By hand: rewards 1 and 0; of each turn but the first, the first two own tokens are masked."""
    turn = jnp.array([[0, 1, 1, 0, 2, 2, 2, 2, 0, 3], [1, 1, 1, 2, 2, 2, 0, 0, 0, 0]])
    given = {"num_groups": 1, "mask": turn > 0, "scale": "none"}
    rewards, groups = jnp.array([1.0, 0.0]), jnp.zeros(2, int)
    got = credit.ssrl(rewards, groups, turn, **given)
    want = np.array([[0, 1, 1, 0, 0, 0, 1, 1, 0, 0], [-1, -1, -1, 0, 0, -1, 0, 0, 0, 0]]) / 2
    np.testing.assert_allclose(got, want, atol=1e-6)
    everything = credit.ssrl(rewards, groups, turn, information=0, **given)
    np.testing.assert_allclose(everything, np.where(turn > 0, [[0.5], [-0.5]], 0), atol=1e-6)


def test_each_turn_of_an_episode_weighs_the_same_in_m_grpo():
    """By the mean over tokens that the aggregation takes, turns of any length."""
    turn = np.array([[1, 1, 1, 0, 2, 2], [1, 0, 0, 2, 3, 3], [1, 1, 1, 1, 1, 0], [0] * 6])
    mask = turn > 0
    rewards, groups = np.array([1.0, 0.0, 3.0, 2.0]), np.array([0, 0, 1, 1])
    with jax.enable_x64(True):
        got = np.asarray(credit.m_grpo(rewards, groups, turn, num_groups=2, mask=mask))
        plain = np.asarray(advantages.group_advantages(rewards, groups, num_groups=2))
    values = np.random.default_rng(0).normal(size=turn.shape)
    for n in range(3):
        turns = [values[n][turn[n] == k].mean() for k in range(1, turn[n].max() + 1)]
        np.testing.assert_allclose(
            (got * values)[n][mask[n]].mean(), plain[n] * np.mean(turns), rtol=1e-6
        )
    assert not got[~mask].any()


def test_tokens_take_the_advantage_of_their_step():
    got = credit.to_tokens(
        jnp.array([[1.0, 2.0]]), jnp.array([[0, 0, 9, 1]]), mask=jnp.array([[1, 1, 0, 1]])
    )
    np.testing.assert_array_equal(got, [[1.0, 1.0, 0.0, 2.0]])


def test_bfloat16_rewards_and_extreme_rewards_are_finite():
    groups = jnp.array([0, 0, 1, 1])
    for r in (jnp.array([1, 0, 0, 0], jnp.bfloat16), jnp.array([80.0, -80.0, 1e30, 1e30])):
        for f in (advantages.group_advantages, advantages.soft_advantages, pass_rate.maxrl):
            out = f(r, groups, num_groups=2)
            assert out.dtype == jnp.float32 and np.all(np.isfinite(out))


def test_unknown_options_are_named():
    for name in ("baseline", "scale"):
        with pytest.raises(ValueError, match=f"{name}='median'"):
            advantages.group_advantages(
                jnp.ones(2), jnp.zeros(2, int), num_groups=1, **{name: "median"}
            )


def test_rewards_must_be_one_a_sample():
    with pytest.raises(ValueError, match="rewards of group_advantages has shape"):
        advantages.group_advantages(jnp.ones((2, 1)), jnp.zeros(2, int), num_groups=1)
    with pytest.raises(ValueError, match="valid"):
        batch_advantages.reinforce_pp(jnp.ones(3), valid=jnp.ones(2))


@pytest.mark.exact("group advantages equal TRL's")
@pytest.mark.parity
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("decoupled", [False, True])
def test_trl(scale, decoupled, x64):
    torch = pytest.importorskip("torch")
    pytest.importorskip("trl")
    from trl.trainer import grpo_trainer

    from tests.losses import trl_stub

    code = trl_stub.block(
        grpo_trainer.GRPOTrainer._generate_and_score_completions,
        "self.multi_objective_aggregation == 'sum_then_normalize'",
    )
    parts = np.random.default_rng(0).normal(size=(12, 2))
    parts[5] = np.nan  # no reward function could score it
    weights = np.array([1.0, 0.3])
    how = "normalize_then_sum" if decoupled else "sum_then_normalize"
    scope = {
        "self": trl_stub.Arrays(multi_objective_aggregation=how, scale_rewards=scale,
                                reward_weights=trl_stub.tensor(weights), reward_funcs=[0, 1]),
        "rewards_per_func": trl_stub.tensor(parts), "device": "cpu", "num_generations": 4,
        "unscorable_mask": torch.isnan(trl_stub.tensor(parts)).all(dim=1),
    }  # fmt: skip
    exec(code, vars(grpo_trainer) | scope, result := {})
    want = np.nan_to_num(result["advantages"].numpy())
    valid, groups = ~np.isnan(parts[:, 0]), np.arange(12) // 4
    if decoupled:
        got = batch_advantages.gdpo(
            parts, groups, num_groups=3, weights="brief=1,right=0.3", valid=valid
        )
    else:
        got = advantages.group_advantages(
            parts @ weights, groups, num_groups=3, scale=scale, valid=valid
        )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-8)


@FEW
@given(seeds)
def test_samples_are_compared_among_themselves(seed):
    rewards, groups, valid = batch(seed)
    expert = np.random.default_rng(seed).random(10) < 0.3
    got = advantages.sampled_advantages(
        jnp.asarray(rewards), groups, num_groups=7, expert=expert, valid=valid
    )
    want = by_group(rewards, groups, valid & ~expert, lambda r: (r - r.mean()) / (std(r) + 1e-4))
    np.testing.assert_allclose(got, want, atol=1e-5)


def grpo_s_by_hand(rewards, groups, tokens, mask, expert, valid):
    """Group by group: distances from the demonstration, then factors around the batch's mean."""
    features = np.zeros((len(rewards), 7))
    for n in range(len(rewards)):
        for token in tokens[n][mask[n]]:
            features[n, token % 7] += 1
    shown = {g: np.flatnonzero((groups == g) & expert & valid) for g in set(groups)}
    own = {g: np.flatnonzero((groups == g) & ~expert & valid) for g in set(groups)}
    far, gap = {}, {}
    for g, rows in shown.items():
        if len(rows) and len(own[g]):
            unit = [f / np.linalg.norm(f) for f in features]
            cosines = [np.mean([unit[i] @ unit[y] for y in rows]) for i in own[g]]
            far[g] = 1 - np.mean(cosines)
            gap[g] = rewards[rows].mean() - rewards[own[g]].mean()
    sizes = [len(own[g]) for g in far]
    out = np.zeros(len(rewards))
    for g, rows in own.items():
        if not len(rows):
            continue
        scale = 1.0
        if g in far:
            for distance, slope in ((far, 2.0), (gap, 3.0)):
                centre = np.average([*distance.values()], weights=sizes)
                scale *= 2 / (1 + np.exp(-slope * (distance[g] - centre)))
        out[rows] = scale * normalised(rewards[rows], 1e-4)
    return out


@pytest.mark.exact("GRPO-S equals a float64 loop over groups")
@FEW
@given(seed=seeds)
def test_grpo_s_scales_what_is_unlike_its_demonstration(seed):
    with jax.enable_x64(True):
        rewards, groups, valid = batch(seed)
        rng = np.random.default_rng(seed)
        tokens, expert = rng.integers(0, 12, (10, 5)), rng.random(10) < 0.3
        mask = np.arange(5) < rng.integers(1, 6, (10, 1))
        given = {"num_groups": 10, "expert": expert, "valid": valid, "features": 7}
        slopes = {"hardness": 2.0, "responsiveness": 3.0}
        got = difficulty.grpo_s(rewards, groups, tokens, mask, **given, **slopes)
        close(got, grpo_s_by_hand(rewards, groups, tokens, mask, expert, valid))
        flat = {"hardness": 0.0, "responsiveness": 0.0}
        plain = difficulty.grpo_s(rewards, groups, tokens, mask, **given, **flat)
        own = {"expert": expert, "valid": valid}
        close(plain, advantages.sampled_advantages(rewards, groups, num_groups=10, **own))


def test_a_scale_of_the_rewards_of_a_prompt_is_lost_in_the_group():
    """Why GRPO-S scales advantages: a factor of a group's rewards leaves GRPO's as they were."""
    rewards, groups = np.array([0.0, 1.0, 1.0, 0.0, 0.0, 1.0]), np.array([0, 0, 0, 1, 1, 1])
    factor = np.array([3.0, 0.5])[groups]
    plain, scaled = (
        advantages.group_advantages(r, groups, num_groups=2, eps=0.0)
        for r in (rewards, rewards * factor)
    )
    np.testing.assert_allclose(scaled, plain, rtol=1e-6)


def test_the_value_of_a_prefix_is_the_mean_reward_of_those_that_begin_with_it():
    """Two groups with the same tokens, and an invalid sample that counts nowhere."""
    tokens = jnp.array([[1, 2], [1, 3], [2, 2], [1, 2], [1, 2]])
    groups, valid = jnp.array([0, 0, 0, 1, 0]), jnp.array([True, True, True, True, False])
    mask = jnp.array([[1, 1], [1, 1], [1, 0], [1, 1], [1, 1]], bool)
    rewards = jnp.array([1.0, 0.0, 1.0, 0.25, 9.0])
    got = thoughts.prefix_values(rewards, groups, tokens, mask, valid=valid)
    close(got, [[0.5, 1.0], [0.5, 0.0], [1.0, 0.0], [0.25, 0.25], [0.0, 0.0]])


def tp_grpo_by_hand(rewards, groups, tokens, mask, valid, weight):
    """Sample by sample: values of prefixes, runs of rises and falls, and their weights."""
    out = np.zeros(mask.shape)
    outcome = by_group(rewards, groups, valid, lambda x: normalised(x, 1e-4))
    said = [tuple(t[m]) for t, m in zip(tokens, mask, strict=True)]
    for n in np.flatnonzero(valid):
        mates = [m for m in np.flatnonzero(valid) if groups[m] == groups[n]]
        able = np.mean([rewards[m] for m in mates])
        values = [able]
        for length in range(1, len(said[n]) + 1):
            alike = [m for m in mates if len(said[m]) >= length]
            alike = [m for m in alike if said[m][:length] == said[n][:length]]
            values.append(np.mean([rewards[m] for m in alike]))
        change = np.diff(values)
        runs = [list(run) for _, run in itertools.groupby(change, np.sign)]
        credit = []
        for run in runs:
            total = sum(run)
            share = 1 - able if total > 0 else able
            credit += [outcome[n] + weight * total * share] * len(run)
        out[n, mask[n]] = credit
    return out


@pytest.mark.broad
@pytest.mark.exact("TP-GRPO equals a float64 loop over samples and prefixes")
@FEW
@given(seed=seeds)
def test_tp_grpo_rewards_runs_of_rising_prospects(seed):
    with jax.enable_x64(True):
        rewards, groups, valid = batch(seed, binary=True)
        rng = np.random.default_rng(seed)
        groups = np.where(groups > 3, 3, groups)  # larger groups, so that prefixes are shared
        tokens = rng.integers(3, 5, (10, 7))
        place = np.arange(7)
        mask = (place >= 2) & (place < rng.integers(3, 8, (10, 1))) & (place != 4)
        given = {"num_groups": 10, "valid": valid, "weight": 0.6}
        got = thoughts.tp_grpo(rewards, groups, tokens, mask, **given)
        close(got, tp_grpo_by_hand(rewards, groups, tokens, mask, valid, 0.6))
