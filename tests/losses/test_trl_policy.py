"""Parity with TRL's own loss code, value and gradient, for the GRPO family."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.losses.divergence import kl as divergence
from jaxrl.losses.policy import objectives, off_policy, sequence, surrogates
from jaxrl.losses.reduce import aggregate
from tests.losses.cases import draw

pytestmark = pytest.mark.parity
pytest.importorskip("torch")
trl = pytest.importorskip("trl")
from tests.losses import trl_stub  # noqa: E402

CLIP = {"clip_low": 0.2, "clip_high": 0.28}
BOUNDS = {"epsilon_low": 0.2, "epsilon_high": 0.28}


def batch(seed: int = 0, spread: float = 0.4):
    d = draw(seed, spread)
    d.mask[-1, :2] = True  # TRL counts an empty row as a sequence; here it counts nowhere.
    return d


def ours(d, function, mode, *, weight=1.0, beta=0.0, kl=divergence.k3, **kwargs):
    mask = jnp.asarray(d.mask)
    whole = aggregate.denominator(mask, mode, max_length=9)

    def loss(logp):
        per_token, _ = function(logp, d.behavior_logp, d.sequence_advantages, **kwargs)
        per_token = weight * per_token + beta * kl(logp, d.ref_logp)
        return aggregate.aggregate(per_token, mask, mode, whole)

    return jax.value_and_grad(loss)(jnp.asarray(d.logp))


def same(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)


FAMILY = {
    "grpo": (objectives.ppo_clip, "seq-mean-token-mean", CLIP, BOUNDS),
    "bnpo": (objectives.ppo_clip, "token-mean", CLIP, BOUNDS),
    "dr_grpo": (objectives.dr_grpo, "seq-mean-token-sum-norm", CLIP, BOUNDS),
    "dapo": (objectives.dapo, "token-mean", CLIP, BOUNDS),
    "sapo": (surrogates.sapo, "seq-mean-token-mean", {}, {}),
    # TRL's bound is the largest weight itself, ours its distance above 1.
    "cispo": (surrogates.cispo, "token-mean", {"clip_high": 0.3}, {"epsilon_high": 1.3}),
}


@pytest.mark.exact("values and gradients of the GRPO losses equal TRL's to 1e-5")
@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_loss_types(name, beta, x64):
    function, mode, kwargs, bounds = FAMILY[name]
    for seed in range(3):
        d = batch(seed)
        want = trl_stub.grpo_loss(trl.GRPOTrainer, d, loss_type=name, beta=beta, **bounds)
        same(ours(d, function, mode, beta=beta, **kwargs), want)


def test_grpo_adds_the_kl_itself(x64):
    d = batch(4)
    want = trl_stub.grpo_loss(trl.GRPOTrainer, d, beta=0.1)
    with_kl = functools.partial(objectives.grpo, ref_logp=d.ref_logp, beta=0.1)
    same(ours(d, with_kl, "seq-mean-token-mean"), want)


@pytest.mark.exact("value and gradient of the two-sided clip equal TRL's to 1e-5")
def test_two_sided_delta(x64):
    for seed in range(3):
        d = batch(seed, 0.8)
        want = trl_stub.grpo_loss(trl.GRPOTrainer, d, args={"delta": 1.5})
        same(ours(d, objectives.ppo_two_sided, "seq-mean-token-mean", delta=1.5), want)


@pytest.mark.exact("value and gradient of GSPO equal TRL's to 1e-5")
def test_gspo(x64):
    for seed in range(3):
        d = batch(seed)
        want = trl_stub.grpo_loss(trl.GRPOTrainer, d, importance_sampling_level="sequence")
        narrow = {"clip_low": 0.2, "clip_high": 0.2}
        same(ours(d, sequence.gspo, "seq-mean-token-mean", mask=d.mask, **narrow), want)


@pytest.mark.exact("value and gradient of GMPO equal TRL's to 1e-5")
def test_gmpo(x64):
    gmpo = pytest.importorskip("trl.experimental.gmpo")
    for seed in range(3):
        d = batch(seed)
        want = trl_stub.grpo_loss(gmpo.GMPOTrainer, d, epsilon_low=0.3, epsilon_high=0.3)
        bounds = {"clip_low": 0.3, "clip_high": 0.3}
        same(ours(d, sequence.gmpo, "seq-mean-token-mean", mask=d.mask, **bounds), want)


@pytest.mark.exact("value and gradient under the off-policy sequence mask equal TRL's to 1e-5")
def test_off_policy_sequence_mask(x64):
    for seed in range(3):
        d = batch(seed)
        want = trl_stub.grpo_loss(trl.GRPOTrainer, d, off_policy_mask_threshold=0.05)
        same(ours(d, off_policy.opsm, "seq-mean-token-mean", mask=d.mask), want)


@pytest.mark.exact("value and gradient of the corrected KL equal TRL's to 1e-5")
def test_importance_corrected_kl(x64):
    d = batch(1)
    want = trl_stub.grpo_loss(trl.GRPOTrainer, d, beta=0.1, args={"use_bias_correction_kl": True})
    kl = functools.partial(divergence.k3_importance, behavior_logp=d.behavior_logp)
    same(ours(d, objectives.ppo_clip, "seq-mean-token-mean", beta=0.1, kl=kl), want)


@pytest.mark.exact("weights of the sampler correction equal TRL's to 1e-5")
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_sampler_correction(level, mode, x64):
    for seed in range(3):
        d = batch(seed)
        d.importance_ratio = trl_stub.importance_ratio(d, f"{level}_{mode}", 0.6, 1.6)
        weight = off_policy.importance_correction(
            d.proximal_logp, d.behavior_logp, mask=d.mask, level=level, mode=mode, low=0.6, high=1.6
        )
        want_weight = np.broadcast_to(d.importance_ratio.numpy(), d.mask.shape)
        np.testing.assert_allclose(
            np.broadcast_to(weight, d.mask.shape)[d.mask], want_weight[d.mask], rtol=1e-5
        )
        want = trl_stub.grpo_loss(trl.GRPOTrainer, d, use_vllm=True)
        same(ours(d, objectives.ppo_clip, "seq-mean-token-mean", weight=weight), want)
