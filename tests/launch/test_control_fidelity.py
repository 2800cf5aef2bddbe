"""What the authors' code has, by its equations: targets, rescaling, networks, multipliers."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.control import algorithms, environments, on_policy, rollout, train
from jaxrl.control.algorithms.offline import cql, dt, fql, rebrac, xql
from jaxrl.control.algorithms.online import ppo, sac
from jaxrl.control.algorithms.representations import fb
from jaxrl.control.environment import Environment, Space, Step, random_action
from jaxrl.control.environments import point_mass
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses import control
from jaxrl.models.control import actor_critic, mlp

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


def minibatch(space, rows, seed):
    """A minibatch of a rollout whose policy has moved a little since."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    choices = rng.integers(0, space.action, rows).astype(np.int32)
    actions = choices if space.discrete else normal(rows, space.action)
    return normal(rows, space.observation), actions, normal(rows), normal(rows), normal(rows)


def cleanrl(params, batch, old_logp, config, discrete, read=lambda params, x: x):
    """CleanRL's loss (ppo.py, ppo_continuous_action.py) and its clipped gradient, in float64.

    `read` gives what its networks take of the observations.
    """
    torch = pytest.importorskip("torch")
    leaf = lambda x: torch.tensor(np.array(x, np.float64), requires_grad=True)  # noqa: E731
    params = jax.tree.map(leaf, params)
    tensors = [torch.tensor(np.array(x, np.float64)) for x in (batch[0], *batch[2:], old_logp)]
    observations, advantages, returns, values, old_logp = tensors
    actions = torch.tensor(np.array(batch[1]))

    def network(layers, x):
        for layer in layers[:-1]:
            x = torch.tanh(x @ layer["weight"] + layer["bias"])
        return x @ layers[-1]["weight"] + layers[-1]["bias"]

    observations = read(params, observations)
    out = network(params["actor"]["net"], observations)
    if discrete:
        policy = torch.distributions.Categorical(logits=out)
        logp, entropy = policy.log_prob(actions.long()), policy.entropy()
    else:
        policy = torch.distributions.Normal(out, params["actor"]["log_std"].exp().expand_as(out))
        logp, entropy = policy.log_prob(actions.double()).sum(1), policy.entropy().sum(1)
    critic = [{k: v[0] for k, v in layer.items()} for layer in params["critic"]]
    newvalue = network(critic, observations)[:, 0]

    ratio = (logp - old_logp).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    pg_loss = torch.max(
        -advantages * ratio, -advantages * torch.clamp(ratio, 1 - config.clip, 1 + config.clip)
    ).mean()
    v_loss = (newvalue - returns) ** 2
    if config.value_clip:
        near = values + torch.clamp(newvalue - values, -config.clip, config.clip)
        v_loss = torch.max(v_loss, (near - returns) ** 2)
    loss = pg_loss - config.entropy * entropy.mean() + config.value_weight * 0.5 * v_loss.mean()
    loss.backward()
    leaves = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, torch.Tensor))
    torch.nn.utils.clip_grad_norm_(leaves, config.max_norm)
    gradients = [np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in leaves]
    return loss.item(), gradients


@pytest.mark.broad
@pytest.mark.exact("an update of PPO equals CleanRL's loss and gradients")
@pytest.mark.parametrize("value_clip", [False, True])
@pytest.mark.parametrize("discrete", [False, True])
def test_an_update_is_cleanrls(discrete, value_clip):
    space = Space(5, 3, discrete)
    config = ppo.Config(hidden=(16, 16), value_clip=value_clip, entropy=0.01, log_std=0.0)
    learner = ppo.make(space, config)
    state = learner.init(KEY)
    params = moved_apart(state)
    batch = minibatch(space, 64, 1)
    observations, actions, advantages, targets, values = batch
    kind = {"activation": "tanh", "discrete": discrete}
    logp, _ = ppo.actor_critic.density(params["both"], observations, jnp.asarray(actions), **kind)
    old_logp = np.array(logp) + np.random.default_rng(2).normal(size=64).astype(np.float32) * 0.3
    zeros = np.zeros(64, np.float32)
    extra = {"logp": old_logp, "advantages": advantages, "targets": targets, "values": values}
    rows = Transitions(observations, actions, zeros, observations, zeros, zeros, extra)
    after, metrics = learner.update(KEY, state.replace(params=params), {"online": rows})
    loss, gradients = cleanrl(params["both"], batch, old_logp, config, discrete)
    assert float(metrics["both_loss"]) == pytest.approx(loss, abs=1e-5)
    # Adam's first moment after one step is a tenth of the gradient it was given
    moments = jax.tree.leaves(after.opt_state["both"][1][0].mu)
    for ours, theirs in zip(moments, gradients, strict=True):
        np.testing.assert_allclose(10 * np.array(ours), theirs, atol=1e-5)


def moved_apart(state):
    """Parameters away from their start, so that the ratio is clipped on some rows."""
    noise = lambda x: x + 0.3 * jax.random.normal(jax.random.fold_in(KEY, x.size), x.shape)  # noqa: E731
    return state.params | {"both": jax.tree.map(noise, state.params["both"])}


@pytest.mark.sample(1, broad=1)
@pytest.mark.exact("an update of recurrent PPO equals CleanRL's loss and gradients over a GRUCell")
@pytest.mark.parametrize("discrete", [False, True])
def test_an_update_with_a_memory_is_cleanrls_over_torchs_gru(discrete):
    """The memory is zero after an end, as in CleanRL's ppo_atari_lstm, here of a GRU."""
    torch = pytest.importorskip("torch")
    worlds, length, size = 4, 7, 6
    space, count = Space(5, 3, discrete), worlds * length
    config = ppo.Config(
        hidden=(size, 16), value_clip=True, entropy=0.01, recurrent="gru",
        normalise_observations=False,
    )  # fmt: skip
    learner = ppo.make(space, config)
    state = learner.init(KEY)
    params = moved_apart(state)
    batch, rng = minibatch(space, count, 1), np.random.default_rng(3)
    ends = (rng.random((worlds, length)) < 0.3).astype(np.float32)
    assert 0 < ends[:, :-1].sum() < ends[:, :-1].size
    memory = rng.normal(size=(worlds, length, size)).astype(np.float32)
    old_logp = rng.normal(size=count).astype(np.float32) * 0.3 - 2.0

    def read(params, observations):
        gru = params["memory"]["gru"]
        (layer,) = params["memory"]["layer"]
        none = torch.zeros(2 * size, dtype=torch.float64)
        cell, weights = torch.nn.GRUCell(size, size).double(), {
            "weight_ih": gru["input"].T, "weight_hh": gru["state"].T, "bias_ih": gru["bias"],
            "bias_hh": torch.cat([none, gru["state_bias"]]),
        }  # fmt: skip
        x = observations.reshape(worlds, length, -1)
        x = torch.tanh(x @ layer["weight"] + layer["bias"])
        carry, out = torch.tensor(memory[:, 0].astype(np.float64)), []
        for t in range(length):
            carry = torch.func.functional_call(cell, weights, (x[:, t], carry))
            out.append(carry)
            carry = carry * (1 - torch.tensor(ends[:, t : t + 1].astype(np.float64)))
        return torch.stack(out, 1).reshape(count, size)

    loss, gradients = cleanrl(params["both"], batch, old_logp, config, discrete, read)
    observations, actions, advantages, targets, values = (
        x.reshape(worlds, length, *x.shape[1:]) for x in batch
    )
    extra = {"logp": old_logp.reshape(worlds, length), "advantages": advantages, "memory": memory}
    extra |= {"targets": targets, "values": values}
    rows = Transitions(observations, actions, None, None, None, jnp.asarray(ends), extra)
    after, metrics = learner.update(KEY, state.replace(params=params), {"online": rows})
    assert float(metrics["both_loss"]) == pytest.approx(loss, abs=1e-5)
    moments = jax.tree.leaves(after.opt_state["both"][1][0].mu)
    for ours, theirs in zip(moments, gradients, strict=True):
        np.testing.assert_allclose(10 * np.array(ours), theirs, atol=1e-5)


RECURRENT = ppo.Config(
    steps=96, worlds=4, segment=12, epochs=1, minibatches=2, hidden=(8,), recurrent="gru"
)


@pytest.mark.sample(1, broad=1)
@pytest.mark.parametrize(
    "name,args",
    [("cartpole", {"horizon": 5}), ("gym/Pendulum-v1", {"max_episode_steps": 5})],
)
def test_what_was_remembered_in_play_is_what_the_update_unrolls(name, args):
    """The ratio is 1 before any update, in a round that begins and ends within episodes."""
    if name.startswith("gym/"):
        pytest.importorskip("gymnasium")
    env = environments.get(name, **args)
    (program,) = ppo.programs(env, RECURRENT)
    points = [*train.train([program], env, seeds=[0, 1], points=2, episodes=1)]
    params = points[1].carry.learner.params  # the second round was played with them
    carry = points[2].carry._replace(learner=points[1].carry.learner)
    rows = jax.vmap(lambda carry: program.draw(KEY, carry, None))(carry)["online"]
    ends, memory = np.array(rows.ends), np.array(rows.extra["memory"])
    assert memory.shape == (2, 4, 12, 8) and np.all(np.any(memory[:, :, 0] != 0, -1))
    assert 0 < ends.mean() < 1 and not ends[..., -1].any()
    kind = {"activation": "tanh"}

    def step(params, rows):
        seen = on_policy.see(RECURRENT, params, rows.observations)
        after = actor_critic.remember(params["both"], rows.extra["memory"], seen, **kind)
        form = kind | {"discrete": env.space.discrete}
        return after, actor_critic.density(params["both"], after, rows.actions, **form)[0]

    after, logp = jax.vmap(step)(params, rows)
    following = np.where(ends[..., None] > 0, 0.0, after)
    np.testing.assert_allclose(memory[:, :, 1:], following[:, :, :-1], atol=1e-6)
    np.testing.assert_allclose(points[2].carry.memory, following[:, :, -1], atol=1e-6)
    np.testing.assert_allclose(np.exp(rows.extra["logp"] - logp), 1.0, atol=1e-6)


def test_no_gradient_crosses_the_end_of_an_episode():
    both = actor_critic.init(KEY, 3, (4,), 2, log_std=0.0, orthogonal=True, recurrent=True)
    x, start = jax.random.normal(KEY, (1, 6, 3)), jnp.ones((1, 4))
    ends = jnp.array([[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])

    def late(x, start, ends):
        return actor_critic.unroll(both, start, x, ends, activation="tanh")[:, 4].sum()

    of_x, of_start = jax.grad(late, (0, 1))(x, start, ends)
    assert not np.any(of_x[:, [0, 1, 2, 5]]) and not np.any(of_start)
    assert np.all(np.any(of_x[:, [3, 4]] != 0, -1))
    of_x, of_start = jax.grad(late, (0, 1))(x, start, 0 * ends)
    assert np.all(np.any(of_x[:, :5] != 0, -1)) and np.any(of_start)


def cue(horizon=4):
    """Which of two actions pays at the last step is seen at the first alone."""

    def seen(state):
        side, clock = state
        return jnp.stack([jnp.where(clock == 0, side, 0.0), clock / horizon])

    def reset(key):
        state = (jax.random.rademacher(key, (), jnp.float32), jnp.float32(0))
        return state, seen(state)

    def step(key, state, action):
        side, clock = state
        over = clock == horizon - 1
        reward = jnp.where(over, side * (2.0 * action - 1.0), 0.0)
        return Step((side, clock + 1), seen((side, clock + 1)), reward, over)

    return Environment("cue", Space(2, 2, True), horizon, reset, step)


@pytest.mark.parametrize("recurrent", ["gru", pytest.param("none", marks=pytest.mark.broad)])
def test_a_memory_solves_what_no_policy_of_the_present_can(recurrent):
    env = cue()
    config = ppo.Config(
        steps=16_384, worlds=32, segment=16, epochs=4, minibatches=4, hidden=(16,),
        learning_rate=1e-2, recurrent=recurrent, entropy=0.01,
    )  # fmt: skip
    *_, last = train.train(ppo.programs(env, config), env, seeds=[0, 1], points=1, episodes=256)
    assert np.all(last.returns > 0.95 if recurrent == "gru" else np.abs(last.returns) < 0.3)


@pytest.mark.broad
@pytest.mark.parametrize("recurrent", ["gru", "none"])
def test_ppo_sees_the_pictures_of_minatar(recurrent):
    pytest.importorskip("gymnax")
    env = environments.get("gymnax/Breakout-MinAtar", pictures=True)
    env = env._replace(horizon=20)
    config = dataclasses.replace(
        RECURRENT, recurrent=recurrent, normalise_observations=False, activation="relu"
    )
    first, *_, last = train.train(ppo.programs(env, config), env, seeds=[0], points=2, episodes=1)
    pair = (p.carry.learner.params["both"] for p in (first, last))
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), *pair)
    assert all(jax.tree.leaves(moved["encoder"])) and np.isfinite(last.metrics["both_loss"])
    assert ("memory" in moved) is (recurrent == "gru")
    assert all(jax.tree.leaves(moved.get("memory", True)))


def test_advantages_know_an_end_from_a_time_limit():
    """Four steps, worked out by hand: a terminal, a time limit, both at once, and neither."""
    row = lambda *xs: jnp.asarray([xs], jnp.float32)  # noqa: E731
    rewards, values, after = row(1, 2, 3, 4), row(10, 20, 30, 40), row(11, 21, 31, 41)
    steps = Transitions(None, None, rewards, None, row(1, 0, 1, 0), row(1, 1, 1, 0))
    advantages, targets = on_policy.advantages(steps, values, after, discount=0.5, mixing=0.5)
    expected = [1 - 10, 2 + 0.5 * 21 - 20, 3 - 30, 4 + 0.5 * 41 - 40]
    np.testing.assert_allclose(advantages[0], expected)
    np.testing.assert_allclose(targets[0], np.add(expected, [10, 20, 30, 40]))
    flowing = steps._replace(terminals=row(0, 0, 0, 0), ends=row(0, 0, 0, 0))
    chained, _ = on_policy.advantages(flowing, values, after, discount=0.5, mixing=0.5)
    last = 4 + 0.5 * 41 - 40
    assert float(chained[0, 2]) == pytest.approx(3 + 0.5 * 40 - 30 + 0.25 * last)


@pytest.mark.broad
def test_the_rate_falls_from_round_to_round():
    config = ppo.Config(
        steps=32, worlds=2, segment=4, epochs=2, minibatches=2, hidden=(4,), anneal=True
    )
    env = environments.get("cartpole")
    still = dataclasses.replace(config, anneal=False)
    moved = {}
    for name, each in (("falling", config), ("constant", still)):
        *_, last = train.train(ppo.programs(env, each), env, seeds=[0], points=4, episodes=1)
        moved[name] = last.carry.learner.params["both"]["actor"]["net"][0]["weight"]
    assert np.any(moved["falling"] != moved["constant"])


def test_moments_of_a_stream_are_those_of_the_whole():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (60, 4)).astype(np.float32)
    moments = actor_critic.start_moments((4,))
    for part in np.split(rows, [7, 30]):
        moments = actor_critic.update_moments(moments, jnp.asarray(part))
    np.testing.assert_allclose(moments["mean"], rows.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moments["variance"], rows.var(0), rtol=1e-4)


def test_rewards_are_scaled_by_the_spread_of_discounted_returns():
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(2, 5)).astype(np.float32)
    ends = np.array([[0, 1, 0, 0, 0], [0, 0, 0, 1, 0]], np.float32)
    steps = Transitions(None, None, jnp.asarray(rewards), None, ends, jnp.asarray(ends))
    held, scaled = on_policy.scale_rewards(on_policy.moments(3, 2), steps, 0.9)
    reached = []
    for w in range(2):
        total = 0.0
        for t in range(5):
            total = rewards[w, t] + 0.9 * total
            reached.append(total)
            total *= 1 - ends[w, t]
    np.testing.assert_allclose(scaled.rewards, rewards / np.std(reached), rtol=1e-3)
    assert held["total"].shape == (2,)


@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize("preset", sorted(ppo.PRESETS))
def test_a_policy_that_normalises_trains_and_plays(preset):
    both = {"normalise_observations": True, "normalise_rewards": True}
    small = {"steps": 64, "worlds": 4, "segment": 8, "epochs": 1, "minibatches": 2, "hidden": (4,)}
    config = dataclasses.replace(ppo.PRESETS[preset], **small, **both)
    env = environments.get("pendulum", horizon=6)
    *_, last = train.train(ppo.programs(env, config), env, seeds=[0, 1], points=1, episodes=2)
    held = last.carry.learner.params["moments"]
    assert np.all(np.isfinite(jax.tree.leaves(held["return"])))
    np.testing.assert_allclose(held["observation"]["count"], 64, rtol=1e-3)
