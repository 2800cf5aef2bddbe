"""What the authors' code has, by its equations: targets, rescaling, networks, multipliers."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.control import algorithms, environments, rollout, train
from jaxrl.control.algorithms.offline import cql, dt, fql, rebrac, xql
from jaxrl.control.algorithms.online import sac
from jaxrl.control.algorithms.representations import fb
from jaxrl.control.environment import random_action
from jaxrl.control.environments import point_mass
from jaxrl.losses import control
from jaxrl.models.control import mlp

KEY = jax.random.PRNGKey(0)
SPACE = point_mass.make().space


@pytest.fixture(scope="module")
def data():
    env = point_mass.make(horizon=10)
    act = lambda key, params, observation: random_action(key, env.space)  # noqa: E731
    return rollout.gather(env, act, None, KEY, steps=120)


def batch_of(algorithm, data, key=KEY):
    """A batch with minibatches where the algorithm has some."""
    prepared = algorithm.prepare(data)
    draw = lambda k: algorithm.sample(k, prepared, algorithm.batch_size)  # noqa: E731
    keys = jax.random.split(key, max(algorithm.minibatches, 1))
    return jax.vmap(draw)(keys) if algorithm.minibatches else draw(key)


@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize("name,share", [("sac", 1.0), ("rlpd", 0.5), ("redq", 0.5), ("droq", 0.5)])
def test_the_temperature_holds_the_authors_entropy(name, share, data):
    """ikostrikov/rlpd has `target_entropy = -action_dim / 2`, Haarnoja et al. `-action_dim`."""
    module = algorithms.load(name)
    config = dataclasses.replace(module.config(), hidden=(8,), batch_size=16)
    algorithm = sac.make(SPACE, config)
    state = algorithm.init(KEY)
    after, metrics = algorithm.update(KEY, state, batch_of(algorithm, data))
    # d/dlog_alpha of -log_alpha (log pi + target) is the entropy less the target
    gradient = 10 * after.opt_state["temperature"][0].mu
    target = -share * SPACE.action
    assert float(gradient) == pytest.approx(float(metrics["entropy"]) - target, rel=1e-4)


def gumbel_rescale_loss(diff, alpha, clip):
    """Div-Infobase/XQL's function of that name, in NumPy."""
    z = np.minimum(diff / alpha, clip)
    max_z = max(z.max(), -1.0)
    return np.exp(z - max_z) - z * np.exp(-max_z) - np.exp(-max_z)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_gumbel_loss_is_rescaled_as_the_authors_do(scale):
    rng = np.random.default_rng(0)
    v, q = rng.normal(size=32), scale * rng.normal(size=32)
    got = control.gumbel_loss(jnp.asarray(v), jnp.asarray(q), temperature=0.5, rescale=True)
    np.testing.assert_allclose(got, gumbel_rescale_loss(q - v, 0.5, 7.0), rtol=1e-4, atol=1e-6)
    each = jax.vmap(jax.grad(lambda v, q: control.gumbel_loss(v, q, temperature=1.0).sum()))
    total = jax.grad(
        lambda v: control.gumbel_loss(v, jnp.asarray(q), temperature=1.0, rescale=True).sum()
    )
    assert np.abs(total(jnp.asarray(v))).max() <= 1.0 + np.e
    assert xql.config().rescale and np.all(np.isfinite(each(jnp.asarray(v), jnp.asarray(q))))


@pytest.mark.broad
def test_layer_norm_stands_after_the_activation_where_the_authors_have_it():
    layers = mlp.init(KEY, (4, 6, 2), norm_after=True)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    hidden = np.maximum(x @ np.array(layers[0]["weight"]) + np.array(layers[0]["bias"]), 0)
    centred = hidden - hidden.mean(-1, keepdims=True)
    hidden = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    expected = hidden @ np.array(layers[1]["weight"]) + np.array(layers[1]["bias"])
    np.testing.assert_allclose(mlp.apply(layers, jnp.asarray(x)), expected, atol=1e-5)
    for module in (fql, rebrac):
        env = point_mass.make()
        state = module.programs(env, module.config())[0].algorithm.init(KEY)
        first = state.params["critic"][0]
        assert "after_scale" in first and "scale" not in first


@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize("aggregation,normalise", [("mean", True), ("min", False)])
def test_fqls_choices_are_fields(aggregation, normalise, data):
    config = fql.Config(hidden=(8,), batch_size=16)
    assert (config.distillation, config.q_aggregation, config.normalise_q) == (0.1, "mean", True)
    changed = dataclasses.replace(config, q_aggregation=aggregation, normalise_q=normalise)
    losses = []
    for each in (config, changed):
        algorithm = fql.make(SPACE, each)
        _, metrics = algorithm.update(KEY, algorithm.init(KEY), batch_of(algorithm, data))
        losses.append((float(metrics["critic_loss"]), float(metrics["actor_loss"])))
    same = aggregation == "mean"
    assert (losses[0][0] == losses[1][0]) is same and (losses[0][1] == losses[1][1]) is normalise


@pytest.mark.broad
def test_cqls_multiplier_rises_where_the_gap_is_above_its_target(data):
    """Kumar et al. 2020, equation of the dual: the factor descends on `-factor (term - tau)`."""
    factors = {}
    for target in (1e-3, 50.0):
        config = cql.Config(hidden=(8,), batch_size=16, lagrange=target, learning_rate=0.1)
        algorithm = cql.make(SPACE, config)
        state = algorithm.init(KEY)
        for i in range(3):
            batch = batch_of(algorithm, data, jax.random.fold_in(KEY, i))
            state, metrics = algorithm.update(jax.random.fold_in(KEY, i), state, batch)
        factors[target] = float(state.params["factor"])
        assert np.isfinite(float(metrics["critic_loss"]))
    assert factors[1e-3] > 0 > factors[50.0]


@pytest.mark.broad
def test_the_maximum_of_several_next_actions_is_above_one(data):
    loss = {}
    for count in (1, 10):
        config = cql.Config(hidden=(8,), batch_size=64, weight=0.0, backup_actions=count)
        config = dataclasses.replace(config, actor_rate=1e-5)
        algorithm = cql.make(SPACE, config)
        state = algorithm.init(KEY)
        after, metrics = algorithm.update(KEY, state, batch_of(algorithm, data))
        loss[count] = float(metrics["critic_loss"])
        moved = jax.tree.map(lambda a, b: a - b, after.params["actor"], state.params["actor"])
        assert 0 < max(float(jnp.abs(x).max()) for x in jax.tree.leaves(moved)) < 2e-5
    assert loss[1] != loss[10]


@pytest.mark.broad
def test_a_decision_transformer_standardises_states_and_averages_over_the_action(data):
    config = dt.Config(width=8, batch_size=16)
    algorithm = dt.make(SPACE, config)
    state = algorithm.begin(algorithm.init(KEY), algorithm.prepare(data))
    np.testing.assert_allclose(
        state.params["moments"]["mean"], data.observations.mean(0), atol=1e-5
    )
    shifted = data._replace(observations=data.observations * 5.0 + 3.0)
    other = algorithm.begin(algorithm.init(KEY), algorithm.prepare(shifted))
    losses = [
        float(algorithm.update(KEY, s, batch_of(algorithm, d))[1]["actor_loss"])
        for s, d in ((state, data), (other, shifted))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    still = algorithm.sample(KEY, algorithm.prepare(data), 16)["offline"]
    assert losses[0] == pytest.approx(
        float(np.mean(np.square(still.actions[still.clock >= 0]))), rel=0.5
    )


@pytest.mark.broad
def test_fb_reads_actions_and_tasks_apart():
    """Touati et al. 2023: (s, a) and (s, z) each through linear, LayerNorm, tanh, linear, ReLU."""
    algorithm = fb.make(SPACE, fb.Config(hidden=(8, 8), features=4))
    forward = algorithm.init(KEY).params["maps"]["forward"]
    assert {name for name in forward} == {"of_action", "of_task", "head"}
    for name in ("of_action", "of_task"):
        first, last = forward[name]
        assert "scale" in first and "scale" not in last
    assert forward["head"][0]["weight"].shape == (2, 16, 8)


@pytest.mark.parametrize("name", algorithms.names())
def test_every_algorithm_has_its_rate_networks_and_discount(name):
    config = algorithms.load(name).config()
    fields = {field.name for field in dataclasses.fields(config)}
    assert "learning_rate" in fields
    assert fields & {"hidden", "width"}
    imitates = {"bc", "dt", "meta_dt"}
    assert ("discount" in fields) or name in imitates, name


@pytest.mark.broad
def test_one_rate_reaches_the_networks_of_a_variant(data):
    env = environments.get("point_mass", horizon=10)
    for name in ("edac", "ro2o", "weighted", "wsrl"):
        module = algorithms.load(name)
        config = dataclasses.replace(
            module.config(), hidden=(8,), batch_size=16, learning_rate=1e-9
        )
        program = module.programs(env, dataclasses.replace(config, steps=2))[0]
        first, last = train.train([program], env, seeds=[0], data=data, points=1, episodes=1)
        pair = (jax.tree.leaves(p.carry.learner.params) for p in (first, last))
        assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(*pair, strict=True)), name
