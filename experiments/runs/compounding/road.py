"""A road of symbols, and its learners as pure functions: cloning, PPO, Q-learning, see PLAN.md."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl.losses.advantages.returns import gae
from jaxrl.losses.control import td_target
from jaxrl.losses.policy.objectives import ppo_clip

SYMBOLS, ACTIONS, DEPTH, HIDDEN = 48, 4, 2, 64
STATES = (DEPTH + 1) * SYMBOLS
"""A state is a depth off the road, 0 on it, and a symbol: `depth * SYMBOLS + symbol`."""
MANY = 512
"""Most steps of demonstrations."""
ITERATIONS, STEPS, ROWS, EPOCHS = 200, 512, 128, 4
"""Iterations, environment steps of each, rows of a gradient step, and passes over the steps."""
DISCOUNT, MIXING = 0.9, 0.95
DECAY, FRESH = 1e-4, 10
"""The discriminator's L2 weight and its steps an iteration."""
ADAM = optax.scale_by_adam()
Net = dict[str, jax.Array]


class Road(NamedTuple):
    """An environment."""

    right: jax.Array
    """[S], the action that stays on the road or leads back to it."""
    back: jax.Array | bool
    """Whether there is a way back."""
    horizon: int


def net(key: jax.Array, out: int) -> Net:
    """One hidden layer on the one-hot depth and symbol."""
    first, second = jax.random.split(key)
    return {
        "w": jax.random.normal(first, (DEPTH + 1 + SYMBOLS, HIDDEN)) * 0.7,
        "v": jax.random.normal(second, (HIDDEN, out)) * 0.01,
        "u": jnp.zeros(out),
    }


def table(params: Net) -> jax.Array:
    """Its outputs at all states [S, out]."""
    depth, symbol = params["w"][: DEPTH + 1], params["w"][DEPTH + 1 :]
    hidden = jnp.tanh(depth[:, None] + symbol).reshape(STATES, HIDDEN)
    return hidden @ params["v"] + params["u"]


def descend(params: Any, state: Any, grads: Any, rate: jax.Array | float) -> tuple[Any, Any]:
    """A step of Adam."""
    updates, state = ADAM.update(grads, state)
    return jax.tree.map(lambda p, u: p - rate * u, params, updates), state


def world(key: jax.Array) -> jax.Array:
    """The right action of each state [S]: off the road it differs from that on the road."""
    road, other = jax.random.split(key)
    ahead = jax.random.randint(road, (SYMBOLS,), 0, ACTIONS)
    back = ahead + jax.random.randint(other, (DEPTH, SYMBOLS), 1, ACTIONS)
    return jnp.concatenate([ahead, back.reshape(-1) % ACTIONS])


def demonstrated(key: jax.Array, right: jax.Array, steps: jax.Array) -> jax.Array:
    """Shares [S, A] of the steps of demonstrations: none is off the road."""
    symbols = jax.random.randint(key, (MANY,), 0, SYMBOLS)
    weight = (jnp.arange(MANY) < steps) / steps
    return jnp.zeros((STATES, ACTIONS)).at[symbols, right[symbols]].add(weight)


def moved(depth: jax.Array, hit: jax.Array, back: jax.Array | bool) -> jax.Array:
    """The depth after a right or wrong action; off the road, where there is a way back."""
    nearer = hit & ((depth == 0) | back)
    return jnp.clip(depth + jnp.where(nearer, -1, 1), 0, DEPTH)


def visited(probs: jax.Array, road: Road) -> jax.Array:
    """Exact share [DEPTH + 1] of the steps of a policy [S, A] at each depth after the action."""
    hit = jnp.take_along_axis(probs, road.right[:, None], 1).reshape(DEPTH + 1, SYMBOLS).mean(1)
    depths = jnp.arange(DEPTH + 1)
    good, bad = (jax.nn.one_hot(moved(depths, jnp.bool_(x), road.back), DEPTH + 1) for x in (1, 0))
    chain = hit[:, None] * good + (1 - hit[:, None]) * bad

    def ahead(at: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return at @ chain, at @ chain

    return jax.lax.scan(ahead, jax.nn.one_hot(0, DEPTH + 1), None, road.horizon)[1].mean(0)


def play(key: jax.Array, probs: jax.Array, road: Road) -> tuple[jax.Array, jax.Array]:
    """States [N, T + 1] and actions [N, T] of as many episodes as `STEPS` has."""
    draws, noise = jax.random.split(key)
    count = STEPS // road.horizon
    symbols = jax.random.randint(draws, (road.horizon + 1, count), 0, SYMBOLS)
    gumbel = jax.random.gumbel(noise, (road.horizon, count, ACTIONS))
    logp = jnp.log(probs + 1e-9)

    def step(depth: jax.Array, given: Any) -> tuple[jax.Array, Any]:
        state = depth * SYMBOLS + given[0]
        action = jnp.argmax(logp[state] + given[1], -1)
        return moved(depth, action == road.right[state], road.back), (state, action)

    depth, (states, actions) = jax.lax.scan(
        step, jnp.zeros(count, jnp.int32), (symbols[:-1], gumbel)
    )
    return jnp.concatenate([states, (depth * SYMBOLS + symbols[-1])[None]]).T, actions.T


def discriminate(
    logits: jax.Array, state: Any, expert: jax.Array, own: jax.Array, steps: int
) -> tuple[jax.Array, Any]:
    """Steps of a logistic regression [S, A] that tells shares of the expert's steps from others."""

    def loss(w: jax.Array) -> jax.Array:
        fit = jnp.sum(expert * jax.nn.softplus(-w) + own * jax.nn.softplus(w))
        return fit + DECAY * jnp.sum(w**2) / 2

    def step(carry: Any, _: None) -> tuple[Any, None]:
        return descend(*carry, jax.grad(loss)(carry[0]), 0.05), None

    return jax.lax.scan(step, (logits, state), None, steps)[0]


def shares(states: jax.Array, actions: jax.Array) -> jax.Array:
    """Shares [S, A] of the steps that were played."""
    return jnp.zeros((STATES, ACTIONS)).at[states, actions].add(1 / actions.size)


def clone(params: Net, expert: jax.Array) -> Net:
    """Maximum likelihood on the demonstrations, 300 steps of Adam at 0.01."""

    def loss(p: Net) -> jax.Array:
        return -jnp.sum(expert * jax.nn.log_softmax(table(p)))

    def step(carry: Any, _: None) -> tuple[Any, None]:
        return descend(*carry, jax.grad(loss)(carry[0]), 0.01), None

    return jax.lax.scan(step, (params, ADAM.init(params)), None, 300)[0][0]


def ppo_loss(
    nets: Any, state: jax.Array, action: jax.Array, rest: jax.Array, entropy: Any
) -> jax.Array:
    """Of rows [N]; `rest` [N, 3] has behaviour log-probabilities, advantages and returns."""
    logp = jax.nn.log_softmax(table(nets["policy"])[state])
    taken = jnp.take_along_axis(logp, action[:, None], 1)
    surrogate = ppo_clip(taken, rest[:, :1], rest[:, 1:2])[0].mean()
    value = jnp.mean((table(nets["value"])[state, 0] - rest[:, 2]) ** 2) / 2
    return surrogate + value + entropy * jnp.mean(jnp.sum(jnp.exp(logp) * logp, -1))


def ppo(
    key: jax.Array, policy: Net, road: Road, expert: Any, frozen: Any, rate: Any, entropy: Any
) -> tuple[jax.Array, jax.Array]:
    """PPO on a frozen reward [S, A], or on a discriminator's that is trained along.

    Returns the final probabilities [S, A], and `curve` after each iteration [2, I].
    """
    key, fresh = jax.random.split(key)
    nets = {"policy": policy, "value": net(fresh, 1)}
    logits = jnp.zeros((STATES, ACTIONS))
    first = (nets, ADAM.init(nets), logits, ADAM.init(logits))

    def iteration(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        nets, moments, logits, kept = carry
        keys = jax.random.split(key)
        logp = jax.nn.log_softmax(table(nets["policy"]))
        states, actions = play(keys[0], jnp.exp(logp), road)
        now = states[:, :-1]
        if frozen is None:
            logits, kept = discriminate(logits, kept, expert, shares(now, actions), FRESH)
        rewards = (jnp.tanh(logits / 2) if frozen is None else frozen)[now, actions]
        values = table(nets["value"])[states, 0]
        advantages, returns = gae(
            rewards, values[:, :-1], mask=jnp.ones_like(rewards), discount=DISCOUNT,
            mixing=MIXING, last_value=values[:, -1],
        )  # fmt: skip
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        rest = jnp.stack([logp[now, actions], advantages, returns], -1).reshape(-1, 3)
        order = jax.vmap(lambda k: jax.random.permutation(k, STEPS))(
            jax.random.split(keys[1], EPOCHS)
        )

        def step(carry: Any, rows: jax.Array) -> tuple[Any, None]:
            given = now.reshape(-1)[rows], actions.reshape(-1)[rows], rest[rows], entropy
            return descend(*carry, jax.grad(ppo_loss)(carry[0], *given), rate), None

        (nets, moments), _ = jax.lax.scan(step, (nets, moments), order.reshape(-1, ROWS))
        return (nets, moments, logits, kept), curve(table(nets["policy"]), road)

    last, curves = jax.lax.scan(iteration, first, jax.random.split(key, ITERATIONS))
    return jax.nn.softmax(table(last[0]["policy"])), curves.T


def curve(logits: jax.Array, road: Road) -> jax.Array:
    """True return [2] as a share of the expert's: of the softmax, and of its likeliest actions."""
    best = jax.nn.one_hot(jnp.argmax(logits, -1), ACTIONS)
    each = [visited(p, road)[0] for p in (jax.nn.softmax(logits), best)]
    return jnp.stack(each)


def q_learning(key: jax.Array, road: Road, frozen: Any, rate: Any, floor: Any) -> jax.Array:
    """Q-learning from a replay of all steps, with a target network of the last iteration.

    Epsilon falls from 1 to `floor` in a quarter of the iterations. Returns `curve` [2, I].
    """
    key, fresh = jax.random.split(key)
    params = net(fresh, ACTIONS)
    replay = jnp.zeros((ITERATIONS * STEPS, 3), jnp.int32)

    def iteration(carry: Any, given: Any) -> tuple[Any, jax.Array]:
        params, moments, replay = carry
        keys, i = jax.random.split(given[0]), given[1]
        target = table(params)
        epsilon = jnp.maximum(floor, 1 - (1 - floor) * i / (ITERATIONS // 4))
        best = jax.nn.one_hot(jnp.argmax(target, -1), ACTIONS)
        states, actions = play(keys[0], (1 - epsilon) * best + epsilon / ACTIONS, road)
        rows = jnp.stack([states[:, :-1], actions, states[:, 1:]], -1).reshape(-1, 3)
        replay = jax.lax.dynamic_update_slice(replay, rows, (i * STEPS, 0))
        drawn = jax.random.randint(keys[1], (EPOCHS * STEPS // ROWS, ROWS), 0, (i + 1) * STEPS)

        def loss(p: Net, batch: jax.Array) -> jax.Array:
            s, a, after = batch.T
            goal = td_target(
                frozen[s, a], jnp.zeros(ROWS), target.max(-1)[after], discount=DISCOUNT
            )
            return jnp.mean((table(p)[s, a] - goal) ** 2) / 2

        def step(carry: Any, at: jax.Array) -> tuple[Any, None]:
            return descend(*carry, jax.grad(loss)(carry[0], replay[at]), rate), None

        (params, moments), _ = jax.lax.scan(step, (params, moments), drawn)
        return (params, moments, replay), curve(table(params), road)

    given = (jax.random.split(key, ITERATIONS), jnp.arange(ITERATIONS))
    return jax.lax.scan(iteration, (params, ADAM.init(params), replay), given)[1].T
