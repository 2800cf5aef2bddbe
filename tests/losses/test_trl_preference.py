"""Parity with TRL's own loss code, value and gradient, for preference losses and distillation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.losses import regularizers
from jaxrl.losses.imitation import distillation
from jaxrl.losses.preference import direct, reward_model
from jaxrl.losses.reduce import masking
from tests.losses.cases import draw

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")
from tests.losses import trl_stub  # noqa: E402


def same(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)


def pair_loss(d, function, reduce=masking.row_sum, ref=True):
    """Mean pair loss and its token gradient; rows are three chosen, then three rejected."""
    mask = jnp.asarray(d.mask)

    def loss(logp):
        given = [*reduce(mask, logp).reshape(2, 3)]
        if ref:
            given += [*reduce(mask, jnp.asarray(d.ref_logp)).reshape(2, 3)]
        return jnp.mean(function(*given)[0])

    return jax.value_and_grad(loss)(jnp.asarray(d.logp))


def batch(seed):
    d = draw(seed)
    d.mask[-1, :2] = True
    return d


DPO = {
    "sigmoid": (functools.partial(direct.dpo, beta=0.3), masking.row_sum, {}),
    "ipo": (functools.partial(direct.ipo, tau=0.3), masking.row_mean, {}),
    "robust": (
        functools.partial(direct.robust_dpo, beta=0.3, flip_rate=0.1),
        masking.row_sum,
        {"label_smoothing": 0.1},
    ),
}


@pytest.mark.exact("values and gradients of the DPO losses equal TRL's to 1e-5")
@pytest.mark.parametrize("name", DPO)
def test_dpo_trainer(name, x64):
    function, reduce, settings = DPO[name]
    for seed in range(3):
        d = batch(seed)
        want = trl_stub.preference_loss(trl.DPOTrainer, d, loss_types=[name], **settings)
        same(pair_loss(d, function, reduce), want)


@pytest.mark.exact("value and gradient of BCO equal TRL's to 1e-5")
def test_bco_pair(x64):
    def pair(chosen, rejected, ref_chosen, ref_rejected):
        good, _ = direct.bco(chosen, ref_chosen, jnp.ones(3, bool), beta=0.3)
        bad, _ = direct.bco(rejected, ref_rejected, jnp.zeros(3, bool), beta=0.3)
        return good + bad, {}

    d = batch(1)
    want = trl_stub.preference_loss(trl.DPOTrainer, d, loss_types=["bco_pair"])
    same(pair_loss(d, pair), want)


@pytest.mark.exact("value and gradient of KTO equal TRL's to 1e-5")
def test_kto_trainer(x64):
    for seed in range(3):
        d = batch(seed)
        labels = np.array([1, 0, 0, 1, 1, 0], bool)
        mismatched = np.random.default_rng(seed).normal(size=(2, 6))
        mask, ref = jnp.asarray(d.mask), jnp.asarray(d.ref_logp)
        answers = iter([trl_stub.tensor(mismatched[0]), trl_stub.tensor(mismatched[1])])
        want = trl_stub.preference_loss(
            trl.KTOTrainer,
            d,
            {"label": torch.tensor(labels)},
            loss_type="kto",
            calculate_KL=True,
            desirable_weight=1.3,
            undesirable_weight=0.7,
            _compute_kl_logps=lambda *_, answers=answers: next(answers),
        )
        kl = direct.kto_reference_point(*mismatched)

        def loss(logp, mask=mask, ref=ref, labels=labels, kl=kl):
            given = masking.row_sum(mask, logp), masking.row_sum(mask, ref), labels, kl
            weights = {"desirable_weight": 1.3, "undesirable_weight": 0.7}
            return jnp.mean(direct.kto(*given, beta=0.3, **weights)[0])

        same(jax.value_and_grad(loss)(jnp.asarray(d.logp)), want)


@pytest.mark.exact("values and gradients of reference-free losses equal TRL's to 1e-5")
@pytest.mark.parametrize("name", ["orpo", "simpo", "cpo"])
def test_reference_free_trainers(name, x64):
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

    function, trainer, settings = {
        "orpo": (functools.partial(direct.orpo, beta=0.3), ORPOTrainer, {"nll": True}),
        "simpo": (
            functools.partial(direct.simpo, beta=2.0, gamma=0.5),
            CPOTrainer,
            {"nll": False, "loss_type": "simpo", "simpo_gamma": 0.5, "cpo_alpha": 0.0, "beta": 2.0},
        ),
        "cpo": (
            functools.partial(direct.cpo, beta=0.3, alpha=0.5),
            CPOTrainer,
            {"nll": True, "loss_type": "sigmoid", "cpo_alpha": 0.5},
        ),
    }[name]
    for seed in range(3):
        chosen, rejected = -np.random.default_rng(seed).exponential(size=(2, 4)) - 0.05
        want = trl_stub.reference_free_loss(trainer, chosen, rejected, **{"beta": 0.3} | settings)
        value, grads = jax.value_and_grad(
            lambda a, b, f=function: jnp.mean(f(a, b)[0]), argnums=(0, 1)
        )(jnp.asarray(chosen), jnp.asarray(rejected))
        same((value, *grads), want)


@pytest.mark.exact("value and gradient of the reward model's loss equal TRL's to 1e-5")
def test_reward_trainer(x64):
    rewards = np.random.default_rng(0).normal(size=(8, 1))
    margin = np.random.default_rng(1).random(4)
    tensor = trl_stub.tensor(rewards, grad=True)
    trainer = trl_stub.bare(trl.RewardTrainer, args=trl_stub.Arrays(center_rewards_coefficient=0.1))
    want = trainer.compute_loss(
        lambda **_: trl_stub.Arrays(logits=tensor),
        {"margin": trl_stub.tensor(margin), "attention_mask": torch.ones(1)},
    )
    want.backward()

    def loss(r):
        pair = r[:4, 0], r[4:, 0]
        return jnp.mean(reward_model.bradley_terry(*pair, margin=margin, center=0.1)[0])

    same(jax.value_and_grad(loss)(jnp.asarray(rewards)), (want.item(), tensor.grad.numpy()))


@pytest.mark.exact("value and gradient of the generalised JS divergence equal TRL's to 1e-5")
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_generalized_js(beta, x64):
    from trl.experimental.gkd import GKDTrainer

    student, teacher = np.random.default_rng(0).normal(size=(2, 2, 3, 5))
    tensor = trl_stub.tensor(student, grad=True)
    want = GKDTrainer.generalized_jsd_loss(
        tensor, trl_stub.tensor(teacher), beta=beta, temperature=1.5, reduction="sum"
    )
    want.backward()

    def loss(z):
        return jnp.sum(distillation.generalized_js(z, teacher, beta=beta, temperature=1.5))

    same(jax.value_and_grad(loss)(jnp.asarray(student)), (want.item(), tensor.grad.numpy()))


@pytest.mark.exact("the mask of high-entropy tokens equals TRL's")
def test_high_entropy_tokens(x64):
    d = draw(3)
    entropy = np.random.default_rng(0).random(d.mask.shape)
    trainer = trl_stub.bare(trl.GRPOTrainer)
    trainer.accelerator.gather = lambda x: x
    trainer.accelerator.pad_across_processes = lambda x, **_: x
    want = trainer.get_high_entropy_mask(
        trl_stub.tensor(entropy), trl_stub.tensor(d.mask).long(), 0.8
    )
    got = regularizers.high_entropy_mask(entropy, mask=d.mask, fraction=0.2)
    np.testing.assert_array_equal(got, want.numpy().astype(bool))
