"""Our functions against numbers that the authors' own functions gave.

A fixture holds inputs, constants and outputs of a public function, and names its repository,
commit and file; the code itself is not here. Gradients are of the loss in `logp`.
"""

import functools
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.losses.advantages import batch_advantages, credit, pass_rate, returns
from jaxrl.losses.policy import (
    lagged,
    mirror,
    mixed,
    off_policy,
    sequence,
    surrogates,
    trust_region,
)
from jaxrl.losses.reduce import aggregate

FIXTURES = Path(__file__).with_name("authors.json")
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}
promised = pytest.mark.exact("losses and gradients equal the authors' code, to 1e-5")


def fixture(name: str) -> tuple[SimpleNamespace, SimpleNamespace]:
    """Inputs as arrays, and outputs, some of whose names are not identifiers."""
    found = json.loads(FIXTURES.read_text())[name]
    assert found.keys() == {"source", "commit", "function", "constants", "inputs", "outputs"}
    given = {k: np.array(v) for k, v in found["inputs"].items()}
    return SimpleNamespace(**given), SimpleNamespace(**found["outputs"])


def reduced(per_token: jax.Array, mask: np.ndarray, mode: str) -> jax.Array:
    mask = jnp.asarray(mask)
    return aggregate.aggregate(per_token, mask, mode, aggregate.denominator(mask, mode))


def compiled(function, *args, **kwargs):
    """One program instead of an operation at a time, which takes seconds less."""
    return jax.jit(lambda: function(*args, **kwargs))()


def agrees(function, given, mode, loss, gradient, **arguments):
    """Value and gradient of our function, reduced by `mode`, are those of the fixture."""

    def total(logp: jax.Array) -> jax.Array:
        per_token = function(logp, given.behavior_logp, **arguments)[0]
        return reduced(per_token, given.mask, mode)

    value, slope = jax.jit(jax.value_and_grad(total))(jnp.asarray(given.logp))
    np.testing.assert_allclose(value, loss, **TOLERANCE)
    np.testing.assert_allclose(slope, gradient, **TOLERANCE)


@promised
def test_m2po(x64):
    """The kept tokens are Trinity-RFT's; the region is that of the authors' repository."""
    given, want = fixture("m2po")
    arguments = {"advantages": given.advantages, "batch_mask": given.mask}
    agrees(off_policy.m2po, given, "token-mean", want.loss, want.gradient, **arguments)
    metrics = compiled(off_policy.m2po, given.logp, given.behavior_logp, **arguments)[1]
    np.testing.assert_array_equal(metrics["kept"] * given.mask, np.array(want.kept))
    moments = np.asarray(metrics["second_moment"])
    np.testing.assert_allclose(np.sort(moments[moments > 0]), want.region_second_moments, rtol=1e-6)
    assert 0 < (given.mask & (metrics["kept"] == 0)).sum() < len(want.region_second_moments)


def test_a3po(x64):
    """The proximal policy is the authors': theirs is a version before the one that is made."""
    given, want = fixture("a3po")
    lag = given.current_version - 1 - given.version
    advantages = np.array([[1.0, -1.0, 2.0, -2.0, 0.5, 1.5]])
    ours = compiled(lagged.a3po, given.logp, given.behavior_logp, advantages, lag=lag)[0]
    proximal = np.array(want.proximal_logp)
    theirs = compiled(
        off_policy.decoupled_ppo, given.logp, given.behavior_logp, advantages,
        proximal_logp=proximal,
    )[0]  # fmt: skip
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@promised
@pytest.mark.parametrize("balanced", [True, False])
def test_pacs(balanced, x64):
    given, want = fixture("pacs")
    loss = want.loss if balanced else want.loss_unweighted
    gradient = want.gradient if balanced else want.gradient_unweighted
    arguments = {"rewards": given.rewards, "mask": given.mask, "group_ids": given.group_ids}
    agrees(
        mirror.pacs, given, "seq-mean-token-mean", loss, gradient, balanced=balanced, **arguments
    )


@promised
def test_vcpo(x64):
    """The number of tokens stands for the squared gradient norm on both sides."""
    given, want = fixture("vcpo")
    arguments = {
        "rewards": given.rewards,
        "batch_mask": given.mask,
        "group_ids": given.group_ids,
        "weight_high": 1.5,
    }
    agrees(off_policy.vcpo, given, "seq-mean-token-mean", want.loss, want.gradient, **arguments)
    metrics = compiled(off_policy.vcpo, given.logp, given.behavior_logp, **arguments)[1]
    np.testing.assert_allclose(metrics["weight"], want.weight, **TOLERANCE)
    np.testing.assert_allclose(metrics["baseline"], np.repeat(want.baseline, 4), **TOLERANCE)
    np.testing.assert_allclose(metrics["lr_scale"], want.lr_scale, **TOLERANCE)
    given_logp = (given.logp, given.behavior_logp)
    effective = compiled(off_policy.effective_sample_size, *given_logp, mask=given.mask)
    np.testing.assert_allclose(effective, want.ess_ratio, **TOLERANCE)


@promised
@pytest.mark.parametrize(
    ("name", "function", "low", "high"),
    [("dppo_tv", trust_region.dppo_tv, 0.05, 0.1), ("dppo_kl", trust_region.dppo_kl, 0.02, 0.05)],
)
def test_dppo(name, function, low, high, x64):
    given, want = fixture(name)
    arguments = {
        "advantages": given.advantages,
        "threshold_low": low,
        "threshold_high": high,
        "weight_high": 1.5,
    }
    agrees(function, given, "token-mean", want.loss, want.gradient, **arguments)
    metrics = compiled(function, given.logp, given.behavior_logp, **arguments)[1]
    assert metrics["masked"].any() and (metrics["ratio"] > 1.5).any()  # both bounds are at work


@promised
def test_chord(x64):
    """Their two losses have a denominator each, so ours is reduced for each kind of row."""
    given, want = fixture("chord")
    schedule = {"peak": 0.9, "valley": 0.05, "warmup_steps": 10, "decay_steps": 100}
    got = compiled(mixed.chord_mu, jnp.array(want.steps), **schedule)
    np.testing.assert_allclose(got, want.mu, **TOLERANCE)

    def total(logp: jax.Array, **arguments) -> jax.Array:
        function = mixed.chord_annealed if "step" in arguments else mixed.chord
        loss = function(logp, given.behavior_logp, given.advantages, expert=given.expert,
                        **arguments)[0]  # fmt: skip
        rows = (given.mask & given.expert[:, None], given.mask & ~given.expert[:, None])
        return sum(reduced(loss, mask, "token-mean") for mask in rows)

    for arguments, loss, gradient in (
        ({"step": jnp.asarray(60)}, want.loss_mu, want.gradient_mu),
        ({"mu": 0.1, "phi": True}, want.loss_phi, want.gradient_phi),
    ):
        graded = jax.jit(jax.value_and_grad(functools.partial(total, **arguments)))
        value, slope = graded(given.logp)
        np.testing.assert_allclose(value, loss, **TOLERANCE)
        np.testing.assert_allclose(slope, gradient, **TOLERANCE)


@promised
def test_rl_plus(x64):
    """With the defaults."""
    given, want = fixture("rl_plus")
    arguments = {"advantages": given.advantages, "expert": given.expert}
    agrees(mixed.rl_plus, given, "token-mean", want.loss, want.gradient, **arguments)


@promised
@pytest.mark.parametrize("key", [None, 0, 1])
def test_clip_cov(key, x64):
    """All eligible tokens are silenced, so whatever is drawn is the same."""
    given, want = fixture("clip_cov")
    arguments = {
        "advantages": given.advantages,
        "batch_mask": given.mask,
        "fraction": 1.0,
        "cov_low": 0.1,
        "cov_high": 2.0,
        "key": None if key is None else jax.random.key(key),
    }
    agrees(surrogates.clip_cov, given, "token-mean", want.loss, want.gradient, **arguments)


@promised
@pytest.mark.parametrize(
    ("name", "function", "mode", "arguments"),
    [
        ("kl_cov", surrogates.kl_cov, "token-mean", {"fraction": 0.2, "beta": 0.7}),
        ("gspo", sequence.gspo, "seq-mean-token-mean", {"clip_low": 0.1, "clip_high": 0.2}),
        ("sapo", surrogates.sapo, "seq-mean-token-mean", {}),
        ("gmpo", sequence.gmpo, "seq-mean-token-mean", {}),
    ],
)
def test_objectives_of_verl(name, function, mode, arguments, x64):
    given, want = fixture(name)
    arguments = arguments | {"advantages": given.advantages}
    if name != "sapo":
        arguments["batch_mask" if name == "kl_cov" else "mask"] = given.mask
    agrees(function, given, mode, want.loss, want.gradient, **arguments)


@promised
@pytest.mark.parametrize("importance", [False, True])
@pytest.mark.parametrize(
    ("theirs", "ours"), [("one-side", "one"), ("two-side", "two"), ("ring", "ring"), ("none",) * 2]
)
def test_rec(theirs, ours, importance, x64):
    given, want = fixture("rec")
    weight = "importance_sampling" if importance else "none"
    loss, gradient = (vars(want)[f"{x} {theirs} {weight}"] for x in ("loss", "gradient"))
    arguments = {"advantages": given.advantages, "side": ours, "importance": importance}
    agrees(surrogates.rec, given, "token-mean", loss, gradient, **arguments)


@promised
def test_red_weight_and_opmd(x64):
    given, want = fixture("rec")
    loss, gradient = (vars(want)[f"{x} red-weight"] for x in ("loss", "gradient"))
    agrees(
        lambda logp, _: surrogates.red_weight(logp, given.advantages, temperature=2.0),
        given, "token-mean", loss, gradient,
    )  # fmt: skip
    given, want = fixture("opmd")
    agrees(
        lambda logp, _: mirror.opmd(logp, given.advantages, tau=0.5),
        given, "token-mean", want.loss, want.gradient,
    )  # fmt: skip


@promised
def test_advantages(x64):
    given, want = fixture("reinforce_pp_baseline")
    got = compiled(batch_advantages.reinforce_pp_baseline, **vars(given), num_groups=2)
    np.testing.assert_allclose(got, want.advantages, **TOLERANCE)
    given, want = fixture("maxrl")
    got = compiled(pass_rate.maxrl, **vars(given), num_groups=2)
    np.testing.assert_allclose(got, want.advantages, **TOLERANCE)


@promised
@pytest.mark.parametrize(("theirs", "scale"), [("mean_norm", "none"), ("mean_std_norm", "group")])
def test_gigpo(theirs, scale, x64):
    given, want = fixture("gigpo")
    got = compiled(
        credit.gigpo,
        **vars(given),
        num_groups=2,
        num_states=7,
        step_mask=np.ones((8, 2), bool),
        scale=scale,
        eps=1e-6,
    )
    np.testing.assert_allclose(got, vars(want)[theirs], **TOLERANCE)


@promised
def test_bilevel_gae():
    """Theirs is in float32."""
    given, want = fixture("bilevel_gae")
    given.turn_ids = given.turn_ids.astype(np.int32)
    got = compiled(
        returns.bilevel_gae,
        **vars(given),
        turn_discount=0.95,
        turn_mixing=0.9,
        discount=0.99,
        mixing=0.9,
    )
    np.testing.assert_allclose(got[0], want.advantages, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(got[1], want.returns, rtol=1e-5, atol=2e-6)
