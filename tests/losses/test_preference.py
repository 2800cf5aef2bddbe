"""Preference losses, reward models and distillation against float64 formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.losses.imitation import distillation
from jaxrl.losses.preference import direct, reward_model
from tests.losses import checks
from tests.losses.cases import draw

FEW = settings(max_examples=8, deadline=None)


def log_sigmoid(x):
    return -np.logaddexp(0.0, -x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gap(chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp):
    return chosen_logp - rejected_logp - (ref_chosen_logp - ref_rejected_logp)


def log_odds(x):
    return np.log(np.exp(x) / (1 - np.exp(x)))


PAIRS = {
    "dpo": (
        functools.partial(direct.dpo, beta=0.3, label_smoothing=0.1),
        lambda **d: -0.9 * log_sigmoid(0.3 * gap(**d)) - 0.1 * log_sigmoid(-0.3 * gap(**d)),
    ),
    "robust_dpo": (
        functools.partial(direct.robust_dpo, beta=0.3, flip_rate=0.2),
        lambda **d: (-0.8 * log_sigmoid(0.3 * gap(**d)) + 0.2 * log_sigmoid(-0.3 * gap(**d))) / 0.6,
    ),
    "ipo": (
        functools.partial(direct.ipo, tau=0.4),
        lambda **d: (gap(**d) - 1 / (2 * 0.4)) ** 2,
    ),
}
FREE = {
    "orpo": (
        functools.partial(direct.orpo, beta=0.2),
        lambda chosen_logp, rejected_logp: (
            -chosen_logp - 0.2 * log_sigmoid(log_odds(chosen_logp) - log_odds(rejected_logp))
        ),
    ),
    "simpo": (
        functools.partial(direct.simpo, beta=2.0, gamma=0.7),
        lambda chosen_logp, rejected_logp: -log_sigmoid(2 * (chosen_logp - rejected_logp) - 0.7),
    ),
    "cpo": (
        functools.partial(direct.cpo, beta=0.3, alpha=0.5),
        lambda chosen_logp, rejected_logp: (
            -log_sigmoid(0.3 * (chosen_logp - rejected_logp)) - 0.5 * chosen_logp
        ),
    ),
    "slic": (
        functools.partial(direct.slic, margin=0.8, weight=0.2),
        lambda chosen_logp, rejected_logp: (
            np.maximum(0, 0.8 - chosen_logp + rejected_logp) - 0.2 * chosen_logp
        ),
    ),
}


def logps(seed, names):
    rng = np.random.default_rng(seed)
    return {n: -rng.exponential(1.5, 7) - 0.01 for n in names}


@pytest.mark.sample(1, broad=2)
@pytest.mark.exact("preference losses with a reference equal float64 formulas")
@pytest.mark.parametrize("name", PAIRS)
@FEW
@given(seed=st.integers(0, 9999))
def test_pairs_with_a_reference(name, seed):
    f, oracle = PAIRS[name]
    with jax.enable_x64(True):
        checks.agree(
            f,
            oracle,
            logps(seed, ("chosen_logp", "rejected_logp")),
            logps(seed + 1, ("ref_chosen_logp", "ref_rejected_logp")),
        )


@pytest.mark.exact("preference losses without a reference equal float64 formulas")
@pytest.mark.parametrize("name", FREE)
@FEW
@given(seed=st.integers(0, 9999))
def test_pairs_without_a_reference(name, seed):
    f, oracle = FREE[name]
    with jax.enable_x64(True):
        checks.agree(f, oracle, logps(seed, ("chosen_logp", "rejected_logp")))


@pytest.mark.exact("preference losses of single verdicts equal float64 formulas")
@FEW
@given(seed=st.integers(0, 9999))
def test_single_verdicts(seed):
    good = np.arange(7) % 2 == 0
    live, fixed = logps(seed, ("logp",)), logps(seed + 1, ("ref_logp",)) | {"desirable": good}

    def kto(logp, ref_logp, desirable, kl):
        gain = 0.3 * np.where(desirable, logp - ref_logp - kl, kl - logp + ref_logp)
        return np.where(desirable, 1.5, 0.5) * (1 - sigmoid(gain))

    def bco(logp, ref_logp, desirable, shift):
        reward = 0.3 * (logp - ref_logp) - shift
        return -np.log(np.where(desirable, sigmoid(reward), 1 - sigmoid(reward)))

    with jax.enable_x64(True):
        ours = functools.partial(direct.kto, beta=0.3, desirable_weight=1.5, undesirable_weight=0.5)
        checks.agree(ours, kto, live, fixed | {"kl": np.float64(0.2)})
        ours = functools.partial(direct.bco, beta=0.3)
        checks.agree(ours, bco, live, fixed | {"shift": np.float64(0.1)})


def test_kto_reference_point_is_a_nonnegative_constant():
    a, b = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.5])
    assert direct.kto_reference_point(a, b) == 0.5
    assert direct.kto_reference_point(b, a) == 0.0
    assert not jax.grad(lambda x: direct.kto_reference_point(x, b))(a).any()


def test_bco_shift_is_midway_between_the_classes():
    shift = direct.bco_shift(jnp.array([1.0, 3.0, -2.0]), jnp.array([True, True, False]))
    assert shift == (2.0 - 2.0) / 2


def test_slic_regularises_towards_a_given_target(x64):
    a, b, target = np.array([[-1.0, -2.0], [-3.0, -1.0], [-0.5, -0.7]])
    loss, _ = direct.slic(a, b, target_logp=target, margin=1.0, weight=0.1)
    np.testing.assert_allclose(loss, [0.05, 2.07])


@FEW
@given(seed=st.integers(0, 9999))
def test_online_dpo_pairs_the_best_with_the_worst(seed):
    d = draw(seed)

    def oracle(logp, ref_logp, rewards, mask, group_ids):
        ratio = np.where(mask, logp - ref_logp, 0).sum(1)
        loss = np.zeros(logp.shape)
        for g in set(group_ids):
            rows = [i for i in np.flatnonzero(group_ids == g) if mask[i].any()]
            best, worst = max(rows, key=lambda i: rewards[i]), min(rows, key=lambda i: rewards[i])
            if rewards[best] > rewards[worst]:
                loss[[best, worst]] = -0.5 * log_sigmoid(0.3 * (ratio[best] - ratio[worst]))
        return loss

    with jax.enable_x64(True):
        fixed = {n: getattr(d, n) for n in ("ref_logp", "rewards", "mask", "group_ids")}
        ours = functools.partial(direct.online_dpo, beta=0.3)
        checks.agree(ours, oracle, {"logp": d.logp}, fixed)


@pytest.mark.broad
@pytest.mark.exact("losses of reward models equal float64 formulas")
@FEW
@given(seed=st.integers(0, 9999))
def test_reward_models(seed):
    rng = np.random.default_rng(seed)
    live = {"chosen": rng.normal(size=5), "rejected": rng.normal(size=5)}

    def oracle(chosen, rejected, margin):
        return -np.log(sigmoid(chosen - rejected - margin)) + 0.1 * (chosen + rejected) ** 2

    def luce(rewards, valid):
        loss = np.zeros(len(rewards))
        for i, row in enumerate(rewards):
            row = row[valid[i]]
            for k in range(len(row)):
                loss[i] -= np.log(np.exp(row[k]) / np.exp(row[k:]).sum())
        return loss

    with jax.enable_x64(True):
        ours = functools.partial(reward_model.bradley_terry, center=0.1)
        checks.agree(ours, oracle, live, {"margin": rng.random(5)})
        valid = np.arange(4)[None] < rng.integers(0, 5, (3, 1))
        checks.agree(
            reward_model.plackett_luce, luce, {"rewards": rng.normal(size=(3, 4))}, {"valid": valid}
        )
        pair = np.stack([live["chosen"], live["rejected"]], 1)
        np.testing.assert_allclose(
            reward_model.plackett_luce(pair, np.ones(pair.shape, bool)),
            reward_model.bradley_terry(**live)[0],
        )


@pytest.mark.exact("losses of distillation equal float64 formulas")
@FEW
@given(seed=st.integers(0, 9999), beta=st.sampled_from([0.0, 0.3, 1.0]))
def test_distillation(seed, beta):
    rng = np.random.default_rng(seed)

    def softmax(z):
        e = np.exp(z / 1.7)
        return e / e.sum(-1, keepdims=True)

    def kl(p, q):
        return np.sum(p * np.log(p / q), -1)

    def js(student_logits, teacher_logits):
        p, q = softmax(student_logits), softmax(teacher_logits)
        if beta in (0.0, 1.0):
            return kl(p, q) if beta else kl(q, p)
        m = beta * q + (1 - beta) * p
        return beta * kl(q, m) + (1 - beta) * kl(p, m)

    live = {"student_logits": rng.normal(size=(2, 3, 4))}
    fixed = {"teacher_logits": rng.normal(size=(2, 3, 4))}
    with jax.enable_x64(True):
        ours = functools.partial(distillation.generalized_js, beta=beta, temperature=1.7)
        checks.agree(ours, js, live, fixed)
    with pytest.raises(ValueError, match=r"beta=1\.5"):
        distillation.generalized_js(jnp.ones(3), jnp.ones(3), beta=1.5)


def test_on_policy_distillation_follows_the_reverse_kl(x64):
    student, teacher = np.random.default_rng(0).normal(size=(2, 6))
    p = np.exp(student) / np.exp(student).sum()
    log_teacher = jax.nn.log_softmax(teacher)[None]

    def expected(logits):
        logp = jax.nn.log_softmax(logits)[None]
        return jnp.sum(p * distillation.on_policy(logp, np.log(p)[None], log_teacher)[0][0])

    exact = jax.grad(lambda z: distillation.reverse(z, teacher))(jnp.asarray(student))
    np.testing.assert_allclose(jax.grad(expected)(jnp.asarray(student)), exact, rtol=1e-8)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("low", ["chosen_logp", "rejected_logp"])
def test_extreme_pairs_are_finite(dtype, low):
    arrays = {n: jnp.full(2, -1e-4, dtype) for n in ("chosen_logp", "rejected_logp")}
    arrays |= {n: jnp.zeros(2, dtype) for n in ("ref_chosen_logp", "ref_rejected_logp")}
    arrays[low] = jnp.full(2, -80.0, dtype)
    for name, (f, _) in (PAIRS | FREE).items():
        given_arrays = arrays if name in PAIRS else {n: arrays[n] for n in list(arrays)[:2]}
        value, grads = jax.value_and_grad(lambda a, f=f: jnp.sum(f(**a)[0]))(given_arrays)
        assert np.isfinite(value) and value.dtype == jnp.float32
        assert all(np.all(np.isfinite(np.asarray(g, np.float32))) for g in grads.values())


def test_robust_dpo_refuses_useless_labels():
    with pytest.raises(ValueError, match=r"flip_rate=0\.5"):
        direct.robust_dpo(*np.zeros((4, 1)), flip_rate=0.5)
