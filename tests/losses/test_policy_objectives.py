"""Every policy objective against its float64 oracle, and the properties all of them share."""

import copy
import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.launch.listing import losses_table
from jaxrl.losses.imitation import experts, supervised
from jaxrl.losses.policy import (
    mirror,
    mixed,
    objectives,
    off_policy,
    sequence,
    surrogates,
    trust_region,
)
from jaxrl.losses.preference import equivalence
from jaxrl.losses.reduce import aggregate, shapes
from tests.losses import checks
from tests.losses.cases import CASES, SEQUENCE, Case, draw

FEW = settings(max_examples=4, deadline=None)
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@pytest.mark.sample(30, broad=20)
@pytest.mark.exact("value and gradient of every policy objective equal a float64 formula")
@each_case
@FEW
@given(seed=st.integers(0, 10_000), spread=st.sampled_from([0.05, 0.4, 1.5]))
def test_value_and_gradient_equal_the_formula(case: Case, seed: int, spread: float):
    with jax.enable_x64(True):
        d = checks.renamed(case, draw(seed, spread))
        expected = np.where(d.mask, case.oracle(d, d), 0.0)
        got = np.where(d.mask, checks.per_token(case, d), 0.0)
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10)

        weight = np.random.default_rng(seed).normal(size=d.logp.shape)
        grads = checks.gradients(case, d, weight)
        want = checks.oracle_gradient(case, d, weight)
        # Differences of a sum lose the digits that its greatest terms take.
        lost = 1e-6 + 5e-9 * np.abs(want).max()
        np.testing.assert_allclose(grads.pop("logp"), want, rtol=1e-5, atol=lost)
        for name, grad in grads.items():
            assert name in case.live or not np.any(grad), f"a gradient flows into {name}"


@pytest.mark.sample(16, broad=10)
@pytest.mark.exact("padding does not change a policy objective")
@each_case
def test_padding_changes_nothing(case: Case, x64):
    d = checks.renamed(case, draw(3))
    wide = copy.copy(d)
    for name, x in vars(d).items():
        if x.shape[0] == len(d.mask):
            tail = [(0, 2)] + [(0, 3)] * (x.ndim == 2 and x.shape[1] == d.mask.shape[1])
            fill = {"mask": False, "batch_mask": False, "expert": False, "group_ids": 0}.get(
                name, 0.7
            )
            setattr(wide, name, np.pad(x, tail + [(0, 0)] * (x.ndim - len(tail)),
                                       constant_values=fill))  # fmt: skip
    rows, length = d.mask.shape
    given = {
        name: np.pad(x, (0, 2)) if np.shape(x) == (rows,) else x for name, x in case.kwargs.items()
    }
    cases = {rows: case, rows + 2: dataclasses.replace(case, kwargs=given)}

    def loss(arrays, mode):
        mask = jnp.asarray(arrays.mask)
        losses = checks.per_token(cases[len(mask)], arrays, sanitize=True)
        return aggregate.aggregate(losses, mask, mode, aggregate.denominator(mask, mode))

    for mode in ("token-mean", "seq-mean-token-mean"):
        np.testing.assert_allclose(loss(wide, mode), loss(d, mode), rtol=1e-9)
    narrow = checks.gradients(case, d, np.ones_like(d.logp))["logp"]
    weights = np.ones_like(wide.logp)
    padded = checks.gradients(cases[rows + 2], wide, weights, sanitize=True)["logp"]
    np.testing.assert_allclose(padded[:rows, :length], narrow, rtol=1e-9, atol=1e-12)
    assert not np.any(padded[rows:]) and not np.any(padded[:, length:])


@pytest.mark.exact("a policy objective does not depend on the order of rows")
@each_case
def test_permuting_rows_permutes_the_loss(case: Case, x64):
    d = checks.renamed(case, draw(11))
    # red_drop without a key keeps the first of a group, so its order is part of its input.
    order = np.arange(6) if case.function is surrogates.red_drop else np.array([4, 2, 5, 0, 3, 1])
    shuffled = copy.copy(d)
    for name, x in vars(d).items():
        setattr(shuffled, name, x[order])
    a, b = checks.per_token(case, d), checks.per_token(case, shuffled)
    np.testing.assert_allclose(
        np.where(d.mask, a, 0)[order], np.where(shuffled.mask, b, 0), rtol=1e-12
    )


# The others take a statistic of the whole batch, and ask for its mask.
SEPARABLE = {
    name: case
    for name, case in CASES.items()
    if "batch_mask" not in inspect.signature(case.function).parameters
}


@pytest.mark.sample(30, broad=15)
@pytest.mark.exact("a policy objective adds up over micro-batches")
@pytest.mark.parametrize("case", SEPARABLE.values(), ids=SEPARABLE.keys())
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_micro_batches_add_up(case: Case, mode: str, x64):
    d = checks.renamed(case, draw(23))
    whole = aggregate.denominator(jnp.asarray(d.mask), mode)

    def loss(rows):
        part = copy.copy(d)
        for name, x in vars(d).items():
            setattr(part, name, x[rows])
        mask = jnp.asarray(part.mask)
        return aggregate.aggregate(checks.per_token(case, part), mask, mode, whole)

    # Split between groups: what couples the rows of a group needs them in one call.
    first = np.flatnonzero(d.group_ids == 0)
    rest = np.flatnonzero(d.group_ids != 0)
    np.testing.assert_allclose(loss(first) + loss(rest), loss(np.arange(6)), rtol=1e-9)


@pytest.mark.sample(16, broad=10)
@each_case
def test_metrics_are_unreduced_and_carry_no_gradient(case: Case):
    d = checks.renamed(case, draw(29))

    def metrics(logp):
        live = copy.copy(d)
        live.logp = logp
        return case.function(**checks.arguments(case.function, live), **case.kwargs)[1]

    logp = jnp.asarray(d.logp, jnp.float32)
    rows, length = logp.shape
    for name, x in metrics(logp).items():
        assert x.shape in {(rows, length), (rows, 1), (rows,)} or name == "lr_scale", name
        assert np.all(np.isfinite(x)), name
    total = jax.grad(lambda x: sum([jnp.sum(m) for m in metrics(x).values()], 0.0 * x.sum()))
    assert not total(logp).any()


@pytest.mark.sample(30, broad=15)
@pytest.mark.exact("masked tokens do not change a policy objective")
@each_case
@pytest.mark.parametrize("poison", [np.nan, -np.inf])
def test_masked_tokens_cannot_leak(case: Case, poison: float):
    d = checks.renamed(case, draw(5))
    dirty = copy.copy(d)
    for name in checks.FLOATS:
        x = getattr(d, name)
        if x.shape == d.mask.shape:
            setattr(dirty, name, np.where(d.mask, x, poison))
    weight = np.ones_like(d.logp)
    clean = checks.gradients(case, d, weight, jnp.float32)["logp"]
    grad = checks.gradients(case, dirty, weight, jnp.float32, sanitize=True)["logp"]
    assert np.all(np.asarray(grad)[~d.mask] == 0.0)
    losses = [
        np.where(d.mask, checks.per_token(case, arrays, jnp.float32, sanitize=True), 0.0)
        for arrays in (d, dirty)
    ]
    np.testing.assert_array_equal(*losses)
    np.testing.assert_allclose(grad, clean, rtol=1e-5, atol=1e-6)


@pytest.mark.sample(40, broad=10)
@each_case
@pytest.mark.parametrize("gap", [80.0, -80.0])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["fp32", "bf16"])
def test_extreme_log_ratios_stay_finite(case: Case, gap: float, dtype):
    d = checks.renamed(case, draw(7))
    for low in ("behavior_logp", "ref_logp", "proximal_logp"):
        extreme = copy.copy(d)
        # One of the two policies finds every token 80 nats less likely than the other does.
        if gap > 0:
            setattr(extreme, low, d.logp - gap)
        else:
            extreme.logp = d.logp + gap
        loss = checks.per_token(case, extreme, dtype)
        grads = checks.gradients(case, extreme, np.ones_like(d.logp), dtype)
        assert loss.dtype == jnp.float32
        assert np.all(np.isfinite(np.where(d.mask, loss, 0.0)))
        assert all(np.all(np.isfinite(np.asarray(g, np.float32))) for g in grads.values())


@each_case
def test_bfloat16_inputs_are_computed_in_float32(case: Case):
    d = checks.renamed(case, draw(13))
    rounded = copy.copy(d)
    for name in checks.FLOATS:
        x = jnp.asarray(getattr(d, name), jnp.bfloat16)
        setattr(rounded, name, np.asarray(x, np.float64))
    expected = np.where(d.mask, case.oracle(rounded, rounded), 0.0)
    got = np.where(d.mask, checks.per_token(case, rounded, jnp.bfloat16), 0.0)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


ON_POLICY = {name: case for name, case in CASES.items() if case.on_policy}


@pytest.mark.parametrize("case", ON_POLICY.values(), ids=ON_POLICY.keys())
def test_the_first_on_policy_step_is_reinforce(case: Case, x64):
    d = draw(17)
    target = jnp.asarray(getattr(d, case.advantages))
    d = checks.renamed(case, d)
    d.behavior_logp = d.proximal_logp = d.ref_logp = d.logp
    own, theirs = case.on_policy
    mask = jnp.asarray(d.mask)

    def reduce(losses, mode):
        return aggregate.aggregate(losses, mask, mode, aggregate.denominator(mask, mode))

    def loss(logp):
        live = copy.copy(d)
        live.logp = logp
        return reduce(checks.per_token(case, live), own)

    def reinforce(logp):
        return reduce(objectives.reinforce(logp, target)[0], theirs)

    logp = jnp.asarray(d.logp)
    np.testing.assert_allclose(
        jax.grad(loss)(logp), jax.grad(reinforce)(logp), rtol=1e-9, atol=1e-12
    )


def test_random_selection_follows_the_key():
    d = draw(2, rows=6, length=5)
    d.advantages = -np.abs(d.advantages)
    d.advantages[0] = 1.0
    key = jax.random.key(0)
    given_arrays = (d.logp, d.advantages)
    kept = surrogates.red_drop(
        *given_arrays, mask=d.mask, group_ids=np.zeros(6, int), key=key
    )[1]["kept"]  # fmt: skip
    assert kept[0] == 1 and kept[:5].sum() == 2  # one positive, so one of four negatives stays
    band = {"batch_mask": d.mask, "fraction": 0.1, "cov_low": -9.0, "cov_high": 9.0}
    drawn = [
        np.asarray(surrogates.clip_cov(d.logp, d.logp, d.advantages, key=k, **band)[1]["silenced"])
        for k in jax.random.split(key, 8)
    ]
    assert all(silenced.sum() == max(1, int(0.1 * d.mask.sum())) for silenced in drawn)
    assert any((silenced != drawn[0]).any() for silenced in drawn)


def test_the_kl_coefficients_follow_their_controllers():
    moved = objectives.adaptive_kl_coefficient(
        jnp.array([1.0, 1.0, 1.0]), jnp.array([0.2, 0.1, 0.05]), target=0.1
    )
    np.testing.assert_allclose(moved, [2.0, 1.0, 0.5])
    moved = objectives.proportional_kl_coefficient(
        jnp.array([1.0, 1.0, 1.0]), jnp.array([60.0, 6.6, 0.0]), target=6.0
    )
    np.testing.assert_allclose(moved, [1.02, 1.01, 0.98], rtol=1e-6)


def test_gspo_ignores_what_its_row_masks():
    d = draw(19)
    d.behavior_logp[~d.mask] = 1e3
    rename = Case(sequence.gspo, None, rename=SEQUENCE)
    loss = checks.per_token(rename, checks.renamed(rename, d), jnp.float32)
    assert np.all(np.abs(np.asarray(loss)[d.mask]) < 10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda d: objectives.ppo_dual_clip(d.logp, d.logp, d.advantages, dual_clip=1.0),
            "dual_clip",
        ),
        (lambda d: objectives.ppo_two_sided(d.logp, d.logp, d.advantages, delta=1.1), "delta=1.1"),
        (lambda d: objectives.grpo(d.logp, d.logp, d.advantages, beta=0.1), "ref_logp"),
        (lambda d: surrogates.rec(d.logp, d.logp, d.advantages, side="both"), "side='both'"),
        (lambda d: sequence.gmpo(d.logp, d.logp, d.advantages, mask=d.mask), "advantages of gmpo"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(draw(0))


GRADED = {
    name: case
    for name, case in CASES.items()
    if {"advantages", "rewards"} & set(inspect.signature(case.function).parameters)
}


@pytest.mark.parametrize("case", GRADED.values(), ids=GRADED.keys())
def test_misshapen_advantages_and_rewards_are_refused(case: Case):
    """`[B]` advantages would run along the tokens wherever B equals T."""
    d = checks.renamed(case, draw(0, rows=5, length=5))
    given = checks.arguments(case.function, d)
    for name, bad in {"advantages": jnp.ones(5), "rewards": jnp.ones((5, 1))}.items():
        if name in given:
            with pytest.raises(ValueError, match=f"{name}.*(shape|one a sequence)"):
                case.function(**given | {name: bad}, **case.kwargs)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_array_is_checked(case: Case):
    """One axis more, or floats for integers and bools, is refused with the argument's name."""
    d = checks.renamed(case, draw(0))
    given = checks.arguments(case.function, d) | case.kwargs
    wanted = shapes.expected(case.function)
    assert {name for name in wanted if not name.startswith("_")} >= {"logp"}
    for name in wanted.keys() & given.keys():
        wrong = jnp.asarray(given[name])[None]
        with pytest.raises(ValueError, match=f"{name} of {case.function.__name__} has shape"):
            case.function(**given | {name: wrong})
        if wanted[name].kind is not None:
            with pytest.raises(ValueError, match=f"{name} of .* has dtype float32"):
                case.function(**given | {name: jnp.asarray(given[name], jnp.float32)})


def test_every_policy_objective_is_checked():
    """Of each public function with a shape in its docstring, and there are no others."""
    for module in (
        objectives,
        surrogates,
        off_policy,
        sequence,
        mirror,
        mixed,
        equivalence,
        supervised,
        trust_region,
    ):
        for function in losses_table.functions(module):
            assert hasattr(function, "__wrapped__") == bool(shapes.expected(function)), function


def test_mid_training_decays_along_half_a_cosine(x64):
    """The whole rate up to step 20, then towards a tenth of it; the RL has the whole rate."""
    d = draw(17)

    def rate(step):
        return experts.annealed_expert_sft(d.logp, expert=d.expert, step=step)[1]["lr_scale"]

    want = [
        1.0,
        1.0,
        0.1 + 0.9 * np.cos(np.pi / 4) ** 2,
        0.1 + 0.9 * np.cos(0.45 * np.pi) ** 2,
        1.0,
    ]
    np.testing.assert_allclose([rate(step) for step in (0, 20, 25, 29, 30)], want, rtol=1e-6)


@pytest.mark.exact("the gradient of TEA into the entropy is its coefficient")
def test_the_entropy_bonus_of_tea_is_differentiated(x64):
    d = draw(17)
    given = {"batch_mask": d.mask, "alpha": 2.0, "bound": 0.9}

    def loss(entropy):
        per_token = surrogates.tea(d.logp, d.behavior_logp, d.advantages, entropy, **given)[0]
        return jnp.sum(jnp.where(d.mask, per_token, 0.0))

    metrics = surrogates.tea(d.logp, d.behavior_logp, d.advantages, d.entropy, **given)[1]
    grad = jax.grad(loss)(jnp.asarray(d.entropy))
    np.testing.assert_allclose(grad, -metrics["entropy_weight"], rtol=1e-12)
    assert (metrics["entropy_weight"].max(axis=1) == 0.9).any()


@pytest.mark.broad
def test_log_probabilities_must_be_of_the_same_tokens():
    with pytest.raises(ValueError, match="behavior_logp of ppo_clip"):
        objectives.ppo_clip(jnp.ones((2, 3)), jnp.ones((2, 4)), jnp.ones((2, 1)))
