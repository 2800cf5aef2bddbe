"""Networks of control against NumPy, densities by integration, and the transformer's causality."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from jaxrl.control import algorithms
from jaxrl.control.environment import Space
from jaxrl.data.offline.transitions import Transitions
from jaxrl.models.control import critics, dynamics, encoders, mlp, policies, sequence

KEY = jax.random.PRNGKey(0)


def test_a_perceptron_is_what_numpy_computes():
    params = mlp.init(KEY, (3, 5, 2), norm=True)
    x = np.random.default_rng(0).normal(size=(4, 3))
    first, last = (jax.tree.map(np.asarray, layer) for layer in params)
    h = x @ first["weight"] + first["bias"]
    h = np.maximum((h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-6), 0)
    np.testing.assert_allclose(
        mlp.apply(params, x), h @ last["weight"] + last["bias"], rtol=1e-4, atol=1e-5
    )


def test_initial_layers_are_uniform_in_what_they_say():
    first, _, last = mlp.init(KEY, (64, 256, 256, 64), last=0.01)
    for layer, bound in ((first, 1 / 8), (last, 0.01 / 16)):
        for name in ("weight", "bias"):
            assert float(jnp.abs(layer[name]).max()) <= bound
            expected = pytest.approx(bound / 3**0.5, rel=0.2 if name == "bias" else 0.05)
            assert float(layer[name].std()) == expected


def test_fitted_q_iteration_from_fresh_values_does_not_diverge():
    """Bootstrapping from states further out grew without bound while biases began at zero."""
    params = critics.init(KEY, 4, (64, 64), members=1)
    target, states = params, 0.1 * jax.random.normal(KEY, (256, 4))
    fit = optax.adam(1e-3)

    @jax.jit
    def step(params, target, opt_state):
        wanted = 1.0 + 0.99 * critics.values(target, 1.2 * states)
        loss = lambda p: jnp.mean(jnp.square(critics.values(p, states) - wanted))  # noqa: E731
        move, opt_state = fit.update(jax.grad(loss)(params), opt_state)
        params = optax.apply_updates(params, move)
        return params, critics.polyak(target, params, 0.05), opt_state

    opt_state = fit.init(params)
    for _ in range(400):
        params, target, opt_state = step(params, target, opt_state)
    assert float(critics.values(params, states).max()) < 60.0  # 114 where biases begin at zero


def test_an_ensemble_is_its_members():
    params = jax.jit(lambda k: critics.init(k, 5, (8,), members=3, norm=True))(KEY)
    s, a = jax.random.normal(KEY, (7, 4)), jax.random.normal(KEY, (7, 1))
    together = critics.values(params, s, a)
    for i in range(3):
        one = jax.tree.map(lambda x, i=i: x[i], params)
        alone = mlp.apply(one, jnp.concatenate([s, a], -1))[:, 0]
        np.testing.assert_allclose(together[i], alone, rtol=1e-4, atol=1e-5)
    assert not np.allclose(together[0], together[1])


@pytest.mark.parametrize(
    "shape,count",
    [
        ((84, 84, 4), 3136),  # Mnih et al. 2015, and MinAtar's 1024
        ((10, 10, 4), 1024),
        ((36, 40, 1), 64 * 1 * 1),
        ((3, 5, 2), 16 * 1 * 3),
    ],
)
def test_an_encoder_is_what_numpy_computes(shape, count):
    """Windows that are cut out one by one; pictures of 0 to 255 count as 0 to 1."""
    assert encoders.features(shape) == count
    params = encoders.init(jax.random.PRNGKey(1), shape, orthogonal=shape[0] == 10)
    pictures = np.random.default_rng(0).integers(0, 256, (2, *shape)).astype(np.uint8)
    found = encoders.apply(params, jnp.asarray(pictures.reshape(2, -1)), shape)
    assert found.shape == (2, count) and found.dtype == jnp.float32
    alone = encoders.apply(params, jnp.asarray(pictures[0].ravel()), shape)
    np.testing.assert_allclose(alone, found[0], rtol=1e-4, atol=1e-5)
    x = pictures / 255.0
    for layer, stride in zip(params, {3: (4, 2, 1), 1: (1,)}[len(params)], strict=True):
        weight, bias = (np.asarray(layer[name], np.float64) for name in ("weight", "bias"))
        kernel = len(weight)
        rows, columns = (range(0, side - kernel + 1, stride) for side in x.shape[1:3])
        windows = np.array(
            [[x[:, i : i + kernel, j : j + kernel] for j in columns] for i in rows]
        )  # [rows, columns, N, k, k, C]
        x = np.maximum(np.einsum("hwnijc,ijco->nhwo", windows, weight) + bias, 0.0)
    np.testing.assert_allclose(found, x.reshape(2, -1), rtol=1e-3, atol=1e-4)


def test_moved_pictures_are_crops_of_the_picture_with_its_edge_repeated():
    """Every one of NumPy's crops is drawn, and nothing else."""
    shape, most = (5, 6, 2), 2
    picture = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    batch = jnp.broadcast_to(picture.ravel(), (600, picture.size))
    moved = encoders.shifted(KEY, batch, shape, most)
    assert moved.dtype == jnp.uint8
    padded = np.pad(picture, ((most, most), (most, most), (0, 0)), mode="edge")
    crops = {
        padded[i : i + 5, j : j + 6].tobytes()
        for i in range(2 * most + 1)
        for j in range(2 * most + 1)
    }
    assert len(crops) == 25
    assert {np.asarray(row).tobytes() for row in moved} == crops


@pytest.mark.parametrize("name", ["sac", pytest.param("iql", marks=pytest.mark.slow)])
def test_only_the_critics_loss_trains_the_encoder(name):
    """Without a gradient of the critic no convolution moves, and the actor sees by the critic's
    encoder, not by a copy."""
    shape = (6, 6, 1)
    space = Space(36, 2, shape=shape)
    module = algorithms.load(name)
    config = dataclasses.replace(module.config(), hidden=(8,), latent=4, shift=1)
    algorithm = module.make(space, config)
    state = algorithm.init(KEY)
    pictures = jax.random.randint(KEY, (2, 16, 36), 0, 256).astype(jnp.uint8)
    actions = jax.random.uniform(KEY, (16, 2), minval=-0.9, maxval=0.9)
    ones = jnp.ones(16)
    rows = Transitions(pictures[0], actions, ones, pictures[1], 0 * ones, 0 * ones)
    batch = {"online": jax.tree.map(lambda x: x[None], rows) if name == "sac" else rows}
    update = jax.jit(algorithm.update)
    moved = update(KEY, state, batch)[0].params

    def differs(part, params, other):
        pairs = zip(jax.tree.leaves(params[part]), jax.tree.leaves(other[part]), strict=True)
        return [bool(np.any(np.asarray(a) != np.asarray(b))) for a, b in pairs]

    assert all(differs("critic", moved, state.params))
    assert any(differs("actor", moved, state.params))
    if name == "sac":  # rows of no weight give the critic no gradient, and the actor one
        still = batch["online"]._replace(extra={"weight": jnp.zeros((1, 16))})
        kept = update(KEY, state, {"online": still})[0].params
        assert not any(differs("critic", kept, state.params))
        assert any(differs("actor", kept, state.params))
    seen = encoders.see(moved["critic"], rows.observations, shape)
    assert seen.shape == (16, 4) and float(jnp.max(jnp.abs(seen))) <= 1.0
    changed = moved | {"critic": state.params["critic"]}
    best = jax.vmap(algorithm.best, (None, None, 0))
    first, second = (best(KEY, p, rows.observations) for p in (moved, changed))
    assert np.any(np.asarray(first) != np.asarray(second))  # the actor sees by the critic's encoder


def test_the_encoder_of_a_critic_has_a_key_that_no_member_has():
    """`fold_in(key, i)` is key i of a split."""
    form = {"action": 1, "latent": 4, "members": 2}
    encoder = encoders.critic(KEY, 72, (6, 6, 2), (8,), **form)["encoder"]
    for key in jax.random.split(KEY, 4):
        other = encoders.init(key, (6, 6, 2), latent=4)
        assert not np.array_equal(encoder[0]["weight"], other[0]["weight"])


def test_pictures_without_room_for_a_kernel_are_refused():
    with pytest.raises(ValueError, match="a side of at least 3"):
        encoders.init(jax.random.PRNGKey(0), (2, 9, 1))


def test_dropout_keeps_the_mean_and_differs_between_members():
    one = mlp.init(KEY, (3, 512, 1))
    params = jax.tree.map(lambda x: jnp.stack([x, x]), one)
    x = jnp.ones((1, 3))
    drop = lambda k: critics.values(params, x, key=k, dropout=0.3)  # noqa: E731
    drawn = jax.jit(jax.vmap(drop))(jax.random.split(KEY, 400))
    assert np.any(drawn[:, 0] != drawn[:, 1])
    expected = critics.values(params, x)
    np.testing.assert_allclose(drawn.mean(axis=0), expected, atol=4 * float(drawn.std()) / 20)


def test_polyak_by_hand():
    out = critics.polyak({"w": jnp.array([0.0])}, {"w": jnp.array([10.0])}, 0.1)
    np.testing.assert_allclose(out["w"], [1.0])


def test_densities():
    mean, std = jnp.array([0.3, -0.2]), jnp.array([0.5, 1.5])
    at = np.array([0.1, 0.4])
    expected = stats.norm.logpdf(at, mean, std).sum()
    assert float(policies.gaussian_log_prob(mean, std, at)) == pytest.approx(expected, rel=1e-5)
    entropy = stats.norm.entropy(mean, std).sum()
    assert float(policies.gaussian_entropy(std)) == pytest.approx(entropy, rel=1e-5)
    grid = jnp.linspace(-0.9999, 0.9999, 20001)[:, None]
    density = jnp.exp(policies.squashed_log_prob(mean[:1], std[:1], grid))
    assert float(jnp.trapezoid(density, grid[:, 0])) == pytest.approx(1.0, abs=2e-3)
    action, logp = policies.squashed_sample(KEY, mean, std)
    np.testing.assert_allclose(policies.squashed_log_prob(mean, std, action), logp, rtol=1e-3)
    extreme = policies.squashed_sample(KEY, jnp.full(2, 50.0), std)[1]
    assert np.isfinite(extreme)
    logits = np.array([0.1, -1.0, 2.0])
    p = np.exp(logits) / np.exp(logits).sum()
    chosen, entropy = policies.categorical(jnp.asarray(logits), jnp.asarray(2))
    assert float(chosen) == pytest.approx(np.log(p[2]), rel=1e-5)
    assert float(entropy) == pytest.approx(-(p * np.log(p)).sum(), rel=1e-5)


def test_a_flow_follows_its_field_and_diffusion_stays_in_the_box():
    constant = jax.tree.map(jnp.zeros_like, policies.field_init(KEY, 2, (8,), 2))
    constant[-1]["bias"] = jnp.array([0.2, -0.1])
    noise = jnp.array([[0.1, 0.1], [-0.5, 0.3]])
    out = policies.flow(constant, jnp.zeros((2, 2)), noise, steps=7)
    np.testing.assert_allclose(out, noise + jnp.array([0.2, -0.1]), atol=1e-6)
    betas = policies.diffusion_schedule(10)
    assert np.all(np.diff(betas) > 0) and float(jnp.prod(1 - betas)) < 0.01
    drawn = policies.diffusion(KEY, constant, jnp.zeros((5, 2)), 2, steps=10)
    assert drawn.shape == (5, 2) and np.abs(drawn).max() <= 1.0


def test_the_transformer_sees_the_past_alone():
    form = sequence.shape(16, 2, 2)
    params = sequence.init(form, KEY, 3, 2)
    params["head"] = mlp.init(KEY, (16, 2))
    rng = np.random.default_rng(0)
    given = [rng.normal(size=(2, 5, *n)).astype(np.float32) for n in ((), (3,), (2,))]
    clock = np.tile(np.arange(5) - 1, (2, 1))  # the first moment is none
    predict = jax.jit(lambda *xs: sequence.actions(form, params, *xs, clock))
    before = predict(*given)

    def changed(part, at):
        other = [x.copy() for x in given]
        other[part][:, at] += 1.0
        return np.abs(predict(*other) - before).max(axis=(0, 2)) > 1e-6

    for part, moments in ((0, [3, 4]), (1, [3, 4]), (2, [4])):  # an action is seen one moment later
        np.testing.assert_array_equal(np.flatnonzero(changed(part, 3)[1:]) + 1, moments)
    assert not changed(1, 0)[1:].any()


def test_a_divergence_of_normals_is_the_mean_log_ratio():
    mean, std = jnp.array([0.3, -0.2]), jnp.array([0.5, 1.5])
    other = jnp.array([-0.1, 0.4]), jnp.array([0.9, 0.7])
    drawn = mean + std * jax.random.normal(KEY, (200_000, 2))
    ratio = policies.gaussian_log_prob(mean, std, drawn)
    ratio = ratio - policies.gaussian_log_prob(*other, drawn)
    found = float(policies.gaussian_kl(mean, std, *other))
    assert found == pytest.approx(float(ratio.mean()), rel=0.02)
    assert float(policies.gaussian_kl(mean, std, mean, std)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.broad
def test_a_model_of_a_task_scores_and_draws_from_one_density():
    params = dynamics.init(KEY, 3, 2, (8,), 4)
    s, a = jax.random.normal(KEY, (5, 3)), jax.random.normal(KEY, (5, 2))
    mean, std = dynamics.predict(params, s, a)
    at = np.zeros((5, 4))
    np.testing.assert_allclose(
        dynamics.surprise(params, s, a, at), -stats.norm.logpdf(at, mean, std).sum(-1), rtol=1e-4
    )
    draw = jax.jit(jax.vmap(lambda k: dynamics.imagine(k, params, s, a)))
    ahead, rewards, unsure = draw(jax.random.split(KEY, 4000))
    both = jnp.concatenate([ahead - s, rewards[..., None]], -1)
    spread = np.sqrt((std**2 + mean**2).mean(0) - mean.mean(0) ** 2)
    np.testing.assert_allclose(both.mean(0), mean.mean(0), atol=5 * float(spread.max()) / 60)
    np.testing.assert_allclose(both.std(0), spread, rtol=0.1)
    np.testing.assert_allclose(unsure[0], np.linalg.norm(std, axis=-1).max(0), rtol=1e-5)
