"""What one update computes, by its authors' formula, and what no update may depend on."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.control import algorithms, batches, environments, program, replay, train
from jaxrl.control.algorithms.offline import cql, fql, rebrac, riql, td3_bc
from jaxrl.control.algorithms.offline_to_online import expo, h2o, pa_rl, resfit, rlpd, wsrl
from jaxrl.control.algorithms.online import dsac_t, sac, td3
from jaxrl.control.algorithms.representations import hilp, mopo
from jaxrl.control.environments import point_mass
from jaxrl.data.offline import transitions
from jaxrl.data.offline.transitions import Transitions
from jaxrl.models.control import critics, mlp, policies

KEY = jax.random.PRNGKey(0)
SPACE = point_mass.make().space
TINY = {
    "steps": 8,
    "online_steps": 8,
    "model_steps": 8,
    "hidden": (8,),
    "batch_size": 16,
    "warmup": 16,
}


def tiny(module):
    """The module's config with everything that takes time made small."""
    config = module.config()
    fields = {f.name for f in dataclasses.fields(config)}
    return dataclasses.replace(config, **{k: v for k, v in TINY.items() if k in fields})


def where(module):
    discrete = getattr(module, "DISCRETE", False)
    return environments.get("cartpole" if discrete else "point_mass", horizon=10)


QUICK = ("mopo", "pa_rl", "sac")
MIXTURES = ("expo", "h2o", "hilp", "moorl", "oni", "recoil", "td3")
"""More whose batches have several parts or minibatches."""


def slow_but_mixtures(name):
    """A parameter of the slow tests, unless a batch has several parts or minibatches."""
    if name in QUICK:
        return name
    return pytest.param(name, marks=pytest.mark.broad if name in MIXTURES else pytest.mark.slow)


def rows(count, seed=0, lead=(), space=SPACE, **extra):
    """Random steps [*lead, count, ...], a third of them terminal."""
    rng = np.random.default_rng(seed)
    shape = (*lead, count)
    normal = lambda *more: rng.normal(size=(*shape, *more)).astype(np.float32)  # noqa: E731
    terminals = (rng.uniform(size=shape) < 1 / 3).astype(np.float32)
    actions = rng.uniform(-0.9, 0.9, (*shape, space.action)).astype(np.float32)
    seen, after = normal(space.observation), normal(space.observation)
    return Transitions(seen, actions, normal(), after, terminals, terminals, extra)


@pytest.fixture(scope="module")
def data():
    """Two dozen steps in trajectories of 4, of which every second ends by itself."""
    made = rows(24)
    ends = (np.arange(24) % 4 == 3).astype(np.float32)
    over = ends * (np.arange(24) // 4 % 2)
    return transitions.check(made._replace(terminals=over, ends=ends))


def filled(rng, path, leaf):
    """Numbers for a leaf of a batch, by the name of its field."""
    name = str(getattr(path[-1], "name", getattr(path[-1], "key", "")))
    if name in ("terminals", "ends", "expert"):
        return rng.integers(0, 2, leaf.shape).astype(np.float32)
    if np.issubdtype(leaf.dtype, np.integer):
        return rng.integers(0, 2, leaf.shape).astype(leaf.dtype)
    return rng.uniform(-1, 1, leaf.shape).astype(np.float32)


def alike(key, shape=(), dtype=jnp.float32, *, draw, **bounds):
    """A draw that is the same for all rows: it varies along the last of several axes alone."""
    one = (*(1 for _ in shape[:-1]), shape[-1]) if len(shape) > 1 else (1,) * len(shape)
    return jnp.broadcast_to(draw(key, one, **bounds), shape)


@pytest.mark.sample(1, broad=3)
@pytest.mark.exact("an update is the same, to rounding, for the rows of each part in any order")
@pytest.mark.parametrize("name", [slow_but_mixtures(n) for n in algorithms.names()])
def test_an_update_does_not_depend_on_the_order_of_rows(name, data, monkeypatch):
    """Where draws are the same for all rows, and steps are as long as the gradients."""
    module, rng = algorithms.load(name), np.random.default_rng(0)
    for kind in ("adam", "adamw"):
        monkeypatch.setattr(optax, kind, lambda rate, **kwargs: optax.sgd(rate))
    programs = module.programs(where(module), tiny(module))
    learners = [p.algorithm.init(KEY) for p in programs]
    shapes = [train.shapes(programs[: i + 1], seeds=[0], data=data) for i in range(len(programs))]
    forms = []
    for part, held in zip(programs, shapes, strict=True):
        alone = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), held)
        forms.append(jax.eval_shape(part.draw, KEY, alone, part.algorithm.prepare(data)))
    for kind in ("normal", "uniform"):
        draw = getattr(jax.random, kind)
        monkeypatch.setattr(
            jax.random,
            kind,
            lambda k, s=(), d=jnp.float32, draw=draw, **b: alike(k, s, draw=draw, **b),
        )
    integers, coins = jax.random.randint, jax.random.bernoulli
    monkeypatch.setattr(
        jax.random, "randint",
        lambda k, s, low, high: alike(k, s, draw=lambda k, s: integers(k, s, low, high)),
    )  # fmt: skip
    monkeypatch.setattr(
        jax.random, "bernoulli", lambda k, p, s: alike(k, s, draw=lambda k, s: coins(k, p, s))
    )
    monkeypatch.setattr(jax.random, "permutation", lambda key, x: x)
    for part, learner, form in zip(programs, learners, forms, strict=True):
        batch = jax.tree_util.tree_map_with_path(lambda p, x: filled(rng, p, x), form)
        axis = 1 if part.algorithm.minibatches else 0
        other = {}
        for source, each in batch.items():
            order = rng.permutation(jax.tree.leaves(each)[0].shape[axis])
            other[source] = jax.tree.map(lambda x, o=order, a=axis: np.take(x, o, axis=a), each)
        update = jax.jit(part.algorithm.update)
        first, second = (update(KEY, learner, b)[0].params for b in (batch, other))
        # what an annotator is asked is an unordered pair
        held = [{k: v for k, v in p.items() if k != "asked"} for p in (first, second)]
        for a, b in zip(*map(jax.tree.leaves, held), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
        before = {k: v for k, v in learner.params.items() if k != "asked"}
        pair = zip(jax.tree.leaves(before), jax.tree.leaves(held[0]), strict=True)
        assert any(np.any(a != b) for a, b in pair)


@pytest.mark.sample(6, broad=5)
@pytest.mark.exact("the next observation of a terminal row of a data set changes no batch")
@pytest.mark.parametrize("name", algorithms.names())
def test_what_follows_a_terminal_is_never_read(name, data):
    module = algorithms.load(name)
    garbage = data.next_observations.copy()
    garbage[data.terminals > 0] = np.nan
    variants = data, data._replace(next_observations=garbage)
    for part in module.programs(where(module), tiny(module)):
        if not part.needs_data:
            continue
        algorithm, found = part.algorithm, []
        for each in variants:
            prepared = jax.tree.map(jnp.asarray, algorithm.prepare(each))
            blank = jax.eval_shape(algorithm.init, KEY)
            blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), blank)
            learner = algorithm.begin(blank, prepared)
            found.append((learner, program.draw(algorithm, KEY, data=prepared, share=1.0)))
        for a, b in zip(*map(jax.tree.leaves, found), strict=True):
            assert np.all(np.isfinite(b))
            np.testing.assert_array_equal(a, b)


@pytest.mark.broad
def test_every_minibatch_of_rlpd_is_half_offline_and_so_is_the_actors():
    env, seen = point_mass.make(horizon=5), []
    config = dataclasses.replace(tiny(rlpd), critic_updates=4)

    def note(which):
        def term(key, trained, state, batch):
            kinds = {name: part.rewards for name, part in batch.items()}
            jax.debug.callback(lambda **k: seen.append((which, k)), **kinds)
            return 0.0

        return term

    algorithm = sac.make(
        env.space, dataclasses.replace(config), critic_term=note("critic"), actor_term=note("actor")
    )
    marked = rows(40)._replace(rewards=np.full(40, 1000.0, np.float32))
    part = program.online(algorithm, env, steps=1, warmup=8, prior=0.5)
    carry = jax.jit(part.init)(KEY, algorithm.init(KEY), marked)
    jax.jit(part.step)(carry, marked)
    jax.effects_barrier()
    assert sorted({which for which, _ in seen}) == ["actor", "critic"]
    assert len({tuple(k["online"].tolist()) for which, k in seen if which == "critic"}) == 4
    for _, kinds in seen:
        assert kinds["offline"].shape == kinds["online"].shape == (8,)
        assert np.all(kinds["offline"] == 1000.0) and not np.any(kinds["online"] == 1000.0)


@pytest.mark.broad
def test_fine_tuning_with_data_retained_mixes_every_minibatch():
    config = dataclasses.replace(tiny(wsrl), prior=0.25, critic_updates=3)
    _, part = wsrl.programs(point_mass.make(horizon=5), config)
    ring = replay.Replay(jax.tree.map(jnp.asarray, rows(32, seed=1)), jnp.int32(32))
    carry = program.Carry(None, KEY, replay=ring)
    batch = part.draw(KEY, carry, jax.tree.map(jnp.asarray, rows(32)))
    assert batch["offline"].rewards.shape == (3, 4) and batch["online"].rewards.shape == (3, 12)


def test_parts_that_hold_unlike_arrays_are_refused():
    pair = {"offline": rows(2, marks=np.ones(2)), "online": rows(2)}
    with pytest.raises(ValueError, match="'offline': \\['marks'\\], 'online': \\[\\]"):
        batches.mixed(pair)


def update(algorithm, batch, key=KEY):
    """States before and after an update, and its metrics."""
    if algorithm.minibatches:
        lead = algorithm.minibatches
        batch = {n: jax.tree.map(lambda x: np.stack([x] * lead), p) for n, p in batch.items()}
    before = algorithm.init(key)
    after, metrics = jax.jit(algorithm.update)(key, before, batch)
    return before.params, after.params, metrics


@pytest.mark.sample(0, broad=2)
@pytest.mark.exact(
    "losses of control algorithms equal their authors' formulas: TD3+BC and ReBRAC, to 1e-4"
)
@pytest.mark.parametrize("module", [td3_bc, rebrac])
def test_the_actor_of_td3_bc_and_of_rebrac(module):
    """TD3_BC.py: `-lmbda * Q1.mean() + F.mse_loss`; rebrac.py: `beta * sum(-1) - lmbda * min`."""
    batch = rows(12)
    if module is rebrac:
        batch = batch._replace(extra={"next_actions": rows(12, seed=3).actions})
    config = dataclasses.replace(module.config(), hidden=(8,), standardise=False)
    before, after, metrics = update(td3.make(SPACE, config), {"offline": batch})
    own = np.tanh(np.float64(mlp.apply(before["actor"], batch.observations)))
    q = np.float64(critics.values(after["critic"], batch.observations, np.float32(own)))
    squares = (own - batch.actions) ** 2
    if module is td3_bc:
        value, off, weight = q[0], squares.mean(-1), 1 / 2.5
    else:
        value, off, weight = q.min(0), squares.sum(-1), 0.1
    expected = (weight * off - value / np.abs(value).mean()).mean()
    assert float(metrics["actor_loss"]) == pytest.approx(expected, rel=1e-4)


def test_td3_bc_gives_the_loss_of_its_authors_on_their_numbers():
    """`-2.5 Q / |Q| + mse` for Q (2, -4, 6), actions of two dimensions, each 0.1, 0.2, 0.3 off."""
    q, off = np.array([2.0, -4.0, 6.0]), np.array([0.1, 0.2, 0.3])
    authors = -2.5 / 4.0 * (4.0 / 3.0) + (0.01 + 0.04 + 0.09) / 3.0
    config = td3_bc.config()
    penalty = config.actor_penalty * getattr(np, config.distance)(
        np.stack([off, off], -1) ** 2, axis=-1
    )
    ours = (penalty - q / np.abs(q).mean()).mean()
    assert ours / config.actor_penalty == pytest.approx(authors)


@pytest.mark.broad
@pytest.mark.exact("losses of control algorithms equal their authors' formulas: FQL, to 1e-4")
def test_the_actor_of_fql_takes_the_mean_over_dimensions():
    """agents/fql.py with `normalize_q_loss`: `alpha * mean((a - flow)^2) - mean(q) / mean|q|`."""
    batch, config = rows(12), fql.Config(hidden=(8,), distillation=3.0)
    before, after, metrics = update(fql.make(SPACE, config), {"offline": batch})
    noise = jax.random.normal(jax.random.split(KEY, 4)[3], batch.actions.shape)
    taught = np.float64(policies.flow(after["flow"], batch.observations, noise, steps=10))
    form, inputs = {"activation": jax.nn.gelu}, np.concatenate([batch.observations, noise], -1)
    raw = np.float64(mlp.apply(before["actor"], inputs, **form))
    acted = np.clip(raw, -1, 1).astype(np.float32)
    q = np.float64(critics.values(after["critic"], batch.observations, acted, **form)).mean(0)
    expected = 3.0 * ((raw - taught) ** 2).mean() - q.mean() / np.abs(q).mean()
    assert float(metrics["actor_loss"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.broad
@pytest.mark.exact("losses of control algorithms equal their authors' formulas: DroQ, to 1e-4")
def test_the_actor_of_droq_seeks_the_mean_under_dropout(monkeypatch):
    batch, drawn = rows(12), []
    config = sac.Config(hidden=(8,), norm=True, dropout=1e-9)
    inner = critics.values
    monkeypatch.setattr(critics, "values", lambda *a, **k: drawn.append(k) or inner(*a, **k))
    before, after, metrics = update(sac.make(SPACE, config), {"online": batch})
    monkeypatch.undo()
    assert [set(k) for k in drawn] == [{"dropout", "key"}] * 3  # target, prediction, actor
    own_keys = jax.random.split(KEY, (2, 5))[0]
    out = policies.squashed(before["actor"], batch.observations)
    actions, logp = policies.squashed_sample(own_keys[0], *out)
    q = critics.values(after["critic"], batch.observations, actions).mean(0)
    assert float(metrics["actor_loss"]) == pytest.approx(float((logp - q).mean()), rel=1e-4)


@pytest.mark.broad
def test_the_critics_of_resfit_see_no_action_outside_the_box(monkeypatch):
    algorithm, seen = resfit.make(SPACE, resfit.Config(hidden=(8,), critic_updates=2)), []
    state = algorithm.init(KEY)
    wide = jax.tree.map(lambda x: x, state.params)
    wide["base"]["net"][-1]["bias"] = jnp.full(2, 3.0)  # its action is 0.995
    for actor in (wide["actor"], wide["target"]["actor"]):
        actor[-1]["bias"] = jnp.full(2, 3.0)
    inner = critics.values

    def noted(params, states, actions, **kwargs):
        jax.debug.callback(lambda x: seen.append(float(x)), jnp.max(jnp.abs(actions)))
        return inner(params, states, actions, **kwargs)

    monkeypatch.setattr(critics, "values", noted)
    batch = {"online": jax.tree.map(lambda x: np.stack([x] * 2), rows(8))}
    jax.jit(algorithm.update)(KEY, state.replace(params=wide), batch)
    jax.effects_barrier()
    assert len(seen) == 5 and max(seen) == 1.0


def test_resfit_learns_from_the_action_that_was_executed():
    config = resfit.Config(hidden=(8,))
    algorithm = resfit.make(SPACE, config)
    params, seen = algorithm.init(KEY).params, rows(1).observations[0]
    base = policies.gaussian(params["base"], seen)[0]
    residual = policies.deterministic(params["actor"], jnp.concatenate([seen, base]))
    acted = algorithm.best(KEY, params, seen)
    np.testing.assert_allclose(acted, np.clip(base + 0.5 * residual, -1, 1), rtol=1e-5)


@pytest.mark.broad
@pytest.mark.exact("losses of control algorithms equal their authors' formulas: EXPO, to 1e-4")
def test_the_editor_of_expo_learns_at_the_batchs_actions_with_the_density_of_the_edit():
    """expo_learner.py: `log_probs -= A log scale`; actions are `batch + scale * sample`."""
    batch, config = rows(12), expo.Config(hidden=(8,), edit=0.3, critic_updates=2)
    before, after, metrics = update(expo.make(SPACE, config), {"online": batch})
    edit_key = jax.random.split(KEY, 5)[2]
    joined = np.concatenate([batch.observations, batch.actions], -1)
    shift, logp = policies.squashed_sample(edit_key, *policies.squashed(before["edit"], joined))
    logp = np.float64(logp) - 2 * np.log(0.3)
    moved = np.clip(batch.actions + 0.3 * np.float64(shift), -1, 1).astype(np.float32)
    q = np.float64(critics.values(after["critic"], batch.observations, moved)).mean(0)
    assert float(metrics["edit_loss"]) == pytest.approx((logp - q).mean(), rel=1e-4)
    assert float(metrics["entropy"]) == pytest.approx(-logp.mean(), rel=1e-4)


@pytest.mark.broad
def test_expo_chooses_and_bootstraps_by_the_least_of_a_few_target_critics(monkeypatch):
    config = expo.Config(hidden=(8,), members=3, subset=3, samples=3)
    algorithm = expo.make(SPACE, config)
    params, seen = algorithm.init(KEY).params, rows(1).observations[0]
    asked = []
    inner = critics.values

    def noted(critic, states, actions, **kwargs):
        asked.append((critic, actions, inner(critic, states, actions, **kwargs)))
        return asked[-1][2]

    monkeypatch.setattr(critics, "values", noted)
    other = params | {"critic": jax.tree.map(lambda x: -x, params["critic"])}
    acted = algorithm.act(KEY, other, seen)
    ((critic, actions, q),) = asked
    assert jax.tree.leaves(critic)[0].shape[0] == 3
    np.testing.assert_array_equal(acted, actions[int(np.argmin(-np.asarray(q).min(0)))])


def test_pa_rl_takes_steps_of_the_gradient_and_keeps_the_best(monkeypatch):
    """`a <- a + eta grad Q` for Q `-c (a - 0.2)^2`; at the second c every step overshoots."""
    start = jnp.array([[[0.7, -0.4]], [[0.7, -0.4]]])
    config = pa_rl.Config(hidden=(8,), samples=2, ascent=5, rate=0.01)
    algorithm = pa_rl.make(SPACE, config)
    steep = jnp.array([10.0, 10.0])

    def values(params, states, actions):
        return -jnp.sum(steep * (actions - 0.2) ** 2, -1)[None]

    monkeypatch.setattr(critics, "values", values)
    monkeypatch.setattr(policies, "diffusion", lambda *a, **k: start[:, 0])
    params = {"actor": None, "critic": None}
    found = algorithm.act(KEY, params, jnp.zeros(4))
    np.testing.assert_allclose(found, 0.2 + (start[0, 0] - 0.2) * (1 - 0.2) ** 5, rtol=1e-5)
    steep = jnp.array([10.0, 150.0])  # 1 - 2 eta c is -2: each step is twice as far away
    found = algorithm.act(KEY, params, jnp.zeros(4))
    np.testing.assert_allclose(found, start[0, 0], rtol=1e-5)


@pytest.mark.broad
@pytest.mark.exact("losses of control algorithms equal their authors' formulas: HILP, to 1e-3")
def test_the_target_of_hilp_is_0_where_a_goal_is_reached_and_a_step_more_before():
    """sf.py: success is `obs == goals`; `-1 + discount V(next, goal)` elsewhere, an expectile."""
    batch = rows(8)._replace(terminals=np.zeros(8, np.float32))
    goals = batch.next_observations.copy()
    goals[:4] = batch.observations[:4]
    config = hilp.Config(hidden=(8,), features=3)
    algorithm = hilp.make(SPACE, config)
    before, _, metrics = update(algorithm, {"offline": batch._replace(extra={"goals": goals})})

    def value_of(states):
        apart = mlp.apply(before["phi"], states) - mlp.apply(before["phi"], goals)
        return -np.sqrt((np.float64(apart) ** 2).sum(-1) + 1e-6)

    wanted = -1.0 + config.discount * value_of(batch.next_observations)
    wanted[:4] = 0.0
    error = wanted - value_of(batch.observations)
    tau = config.distance_expectile
    expected = (np.where(error > 0, tau, 1 - tau) * error**2).mean()
    found = float(metrics["phi_loss"])
    assert found == pytest.approx(expected, rel=1e-3) or found == pytest.approx(
        expected / 2, rel=1e-3
    )


def test_goals_of_hilp_are_states_of_the_data_and_sometimes_the_present_one(data):
    learner = hilp.make(SPACE, hilp.Config(ahead=1.0))
    batch = learner.sample(KEY, learner.prepare(data), 200)["offline"]
    own = np.all(batch.extra["goals"] == batch.observations, axis=-1)
    assert 0.2 < own.mean() < 0.9
    assert not np.any(batch.terminals)
    held = {tuple(x) for x in data.observations.tolist()}
    assert {tuple(x) for x in np.asarray(batch.extra["goals"]).tolist()} <= held


@pytest.mark.parametrize("shift", [0.0, -1.0, 5.0])
def test_the_goal_of_hilp_is_where_rewards_are_high_whatever_is_added_to_them(data, shift):
    rewards = np.zeros(24, np.float32)
    rewards[[1, 5]] = 1.0
    algorithm = hilp.make(SPACE, hilp.Config(hidden=(8,)))
    prepared = algorithm.prepare(data._replace(rewards=rewards + np.float32(shift)))
    goal = algorithm.begin(algorithm.init(KEY), prepared).params["goal"]
    np.testing.assert_allclose(goal, data.next_observations[[1, 5]].mean(axis=0), rtol=1e-5)


def test_hilp_refuses_data_whose_rewards_show_no_goal(data):
    algorithm = hilp.make(SPACE, hilp.Config(hidden=(8,)))
    with pytest.raises(ValueError, match=r"all rewards of the data are -1\.0"):
        algorithm.prepare(data._replace(rewards=np.full(24, -1.0, np.float32)))


@pytest.mark.broad
def test_cal_ql_floors_the_policys_actions_and_not_the_uniform_ones(monkeypatch):
    """conservative_sac.py: current and next actions are lifted to the returns, random ones not."""
    reached, floors = np.linspace(-1, 1, 12).astype(np.float32), []
    config = cql.Config(hidden=(8,), samples=2, calibrate=True)
    inner = cql.control.sampled_cql
    monkeypatch.setattr(
        cql.control, "sampled_cql",
        lambda *a, floor: jax.debug.callback(floors.append, floor) or inner(*a, floor=floor),
    )  # fmt: skip
    update(cql.make(SPACE, config), {"offline": rows(12, return_to_go=reached)})
    jax.effects_barrier()
    floor = np.asarray(floors[0]).reshape(-1, 12)[-6:]
    np.testing.assert_array_equal(floor[:4], np.tile(reached, (4, 1)))
    assert np.all(floor[4:] == -np.inf)


@pytest.mark.broad
def test_cal_ql_has_returns_to_go_online_once_an_episode_has_ended():
    env = point_mass.make(horizon=6)
    config = cql.Config(hidden=(8,), batch_size=16, calibrate=True, steps=1, online_steps=9)
    algorithm = cql.make(env.space, config)
    part = program.online(algorithm, env, steps=9, warmup=5, warm=algorithm.act, prior=0.5)
    data = algorithm.prepare(transitions.check(rows(12)))
    carry = jax.jit(part.init)(KEY, algorithm.init(KEY), data)
    step = jax.jit(part.step)
    for _ in range(9):
        carry, metrics = step(carry, data)
    assert all(np.all(np.isfinite(x)) for x in metrics.values())
    batch = part.draw(KEY, carry, data)
    assert np.all(np.isfinite(batch["offline"].extra["return_to_go"]))
    held = {}
    rewards, ends = np.asarray(carry.replay.data.rewards[:14]), carry.replay.data.ends[:14]
    for i in range(12):  # two whole episodes of 6; the third has not ended
        stop = 6 * (i // 6) + 6
        held[float(rewards[i])] = sum(0.99 ** (j - i) * rewards[j] for j in range(i, stop))
    assert ends.tolist().count(1.0) == 2
    drawn, reached = batch["online"].rewards.ravel(), batch["online"].extra["return_to_go"].ravel()
    for reward, found in zip(drawn.tolist(), reached.tolist(), strict=True):
        assert found == pytest.approx(held.get(reward, -np.inf), rel=1e-5)
    assert np.isfinite(reached).any()


@pytest.mark.exact("returns to go of the replay buffer equal those of a loop to 1e-4")
@pytest.mark.parametrize("worlds,capacity,horizon", [(1, 40, 5), (3, 12, 7), (2, 60, 50)])
def test_returns_of_the_replay_buffer_are_those_of_a_loop(worlds, capacity, horizon):
    rng = np.random.default_rng(worlds)
    one = jax.tree.map(lambda x: x[0], rows(1, return_to_go=np.zeros(1), finished=np.zeros(1)))
    ring = replay.empty(one, capacity // worlds * worlds)
    clock, log = np.zeros(worlds, int), []
    step = jax.jit(
        lambda ring, new, clock: replay.credit(
            replay.add(ring, new), clock, discount=0.9, horizon=horizon
        )
    )
    for _ in range(25):
        rewards = rng.normal(size=worlds).astype(np.float32)
        ends = ((rng.uniform(size=worlds) < 0.2) | (clock + 1 == horizon)).astype(np.float32)
        new = rows(worlds, return_to_go=np.zeros(worlds), finished=np.zeros(worlds))
        ring = step(ring, new._replace(rewards=rewards, ends=ends), clock)
        log.append((rewards, ends))
        clock = np.where(ends > 0, 0, clock + 1)
    kept = capacity // worlds
    for t in range(max(0, len(log) - kept), len(log)):
        for w in range(worlds):
            total, over, power = 0.0, False, 1.0
            for rewards, ends in log[t:]:
                total, power = total + power * rewards[w], power * 0.9
                if ends[w]:
                    over = True
                    break
            at = t % kept * worlds + w
            assert bool(ring.data.extra["finished"][at]) == over
            if over:
                assert float(ring.data.extra["return_to_go"][at]) == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("make", [
    lambda: riql.make(SPACE, riql.Config(hidden=(8,))),
    lambda: td3.make(SPACE, dataclasses.replace(td3_bc.config(), hidden=(8,))),
])  # fmt: skip
def test_moments_of_the_data_are_held_once_and_standardise_what_is_seen(make, data):
    algorithm = make()
    prepared = algorithm.prepare(data)
    assert not prepared.extra
    learner = algorithm.begin(algorithm.init(KEY), prepared)
    moments = learner.params["moments"]
    np.testing.assert_allclose(moments["mean"], data.observations.mean(0), atol=1e-6)
    np.testing.assert_allclose(moments["std"], data.observations.std(0) + 1e-3, rtol=1e-5)
    shifted = {"mean": moments["mean"] + 1.0, "std": moments["std"]}
    seen = data.observations[0]
    a = algorithm.best(KEY, learner.params, seen)
    b = algorithm.best(KEY, learner.params | {"moments": shifted}, seen + 1.0)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.broad
def test_neither_a_model_nor_a_classifier_learns_from_terminal_steps():
    batch = rows(16)
    over = batch.terminals > 0
    seen = batch.observations.copy()
    seen[over] += 5.0
    other = batch._replace(observations=seen)
    model = mopo.make(SPACE, mopo.Config(hidden=(8,), batch_size=8))[0]
    fitted = [update(model, {"offline": b})[1]["model"] for b in (batch, other)]
    for a, b in zip(*map(jax.tree.leaves, fitted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    simulator = rows(16, seed=2)._replace(terminals=np.zeros(16, np.float32))
    algorithm = h2o.make(SPACE, h2o.Config(hidden=(8,), batch_size=32))
    far = batch.next_observations.copy()
    far[over] += 5.0
    moved = batch._replace(next_observations=far)
    found = [
        update(algorithm, {"offline": b, "online": simulator})[1]["discriminators"]
        for b in (batch, moved)
    ]
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_dsac_t_moves_its_policy_at_every_second_update_of_the_critics():
    algorithm = dsac_t.make(SPACE, dsac_t.Config(hidden=(8,)))
    batch = {"online": jax.tree.map(lambda x: np.stack([x] * 2), rows(8))}
    state, _ = jax.jit(algorithm.update)(KEY, algorithm.init(KEY), batch)
    counts = {name: int(held[0].count) for name, held in state.opt_state.items()}
    assert counts == {"critic": 2, "actor": 1, "temperature": 1}


@pytest.mark.broad
def test_a_simulator_that_cannot_be_made_anew_is_refused():
    env = point_mass.make()._replace(name="point_mass/delay2")
    config = h2o.Config(simulator={"friction": 0.3})
    with pytest.raises(ValueError, match=r"point_mass/delay2.*give the simulator itself"):
        h2o.programs(env, config)
    assert h2o.programs(env, config, point_mass.make(friction=0.3))
