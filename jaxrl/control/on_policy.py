"""Rounds of an on-policy method: a segment of all worlds, then epochs of minibatches over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.control import replay
from jaxrl.control.algorithm import Algorithm, Metrics
from jaxrl.control.batches import Batch
from jaxrl.control.environment import Environment
from jaxrl.control.program import Carry, Play, Program, playing
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses.advantages import returns
from jaxrl.models.control import actor_critic
from jaxrl.types import TrainState

Annotate = Callable[[Any, Transitions], Transitions]
"""parameters, steps [W, T, ...] -> the steps, with what updates need of the policy that took
them."""


def advantages(
    steps: Transitions, values: jax.Array, after: jax.Array, *, discount: float, mixing: float
) -> tuple[jax.Array, jax.Array]:
    """GAE's advantages and value targets [W, T] of segments that hold ends of episodes.

    An episode that was cut off is worth what its last state promises; one that ended by itself is
    worth nothing more.

    Args:
      steps: [W, T, ...].
      values, after: [W, T], of the observations and of what followed the actions.
      discount: gamma.
      mixing: lambda.
    """
    cut = steps.ends * (1.0 - steps.terminals) * after
    return returns.gae(
        steps.rewards + discount * cut,
        values,
        mask=jnp.ones_like(cut, bool),
        discount=discount * (1.0 - steps.ends),
        mixing=mixing,
        last_value=after[:, -1],
    )


def moments(observation: int, worlds: int) -> dict[str, Any]:
    """What normalisation keeps: moments of observations and of returns, and the returns so far."""
    return {
        "observation": actor_critic.start_moments((observation,)),
        "return": actor_critic.start_moments(()),
        "total": jnp.zeros(worlds),
    }


def count_observations(moments: dict[str, Any], observations: jax.Array) -> dict[str, Any]:
    """The moments with observations [W, T, O]."""
    flat = observations.reshape(-1, observations.shape[-1])
    return moments | {"observation": actor_critic.update_moments(moments["observation"], flat)}


def scale_rewards(
    moments: dict[str, Any], steps: Transitions, discount: float
) -> tuple[dict[str, Any], Transitions]:
    """The moments with the returns of steps [W, T], and the steps with scaled rewards.

    Formula: `r / std(R)`, at most 10 in size; `R_t = r_t + gamma R_(t-1)`, 0 before an episode.
    """

    def add(total: jax.Array, step: tuple) -> tuple[jax.Array, jax.Array]:
        reward, end = step
        total = reward + discount * total
        return total * (1.0 - end), total

    total, reached = jax.lax.scan(add, moments["total"], (steps.rewards.T, steps.ends.T))
    moments = moments | {
        "return": actor_critic.update_moments(moments["return"], reached.ravel()),
        "total": total,
    }
    scaled = steps.rewards / jnp.sqrt(moments["return"]["variance"] + 1e-8)
    return moments, steps._replace(rewards=jnp.clip(scaled, -10.0, 10.0))


def see(config: Any, params: Any, observations: jax.Array) -> jax.Array:
    """Observations as the networks take them.

    Args:
      config: with `normalise_observations`.
      params: with a part `moments`.
      observations: [..., O].
    """
    if not config.normalise_observations:
        return observations
    return actor_critic.standardise(params["moments"]["observation"], observations)


def read(
    config: Any, both: Any, steps: Transitions, observations: jax.Array, shape: tuple[int, ...]
) -> jax.Array:
    """What policy and value read of steps: observations, or the memories [W, T, H] after them.

    Args:
      config: with `recurrent` and `activation`.
      both: parameters of an actor and critic.
      steps: [W, T, ...] where there is a memory.
      observations: of the steps, as networks take them.
      shape: of pictures.
    """
    if config.recurrent == "none":
        return observations
    form = {"activation": config.activation, "shape": shape}
    return actor_critic.unroll(both, steps.extra["memory"][:, 0], observations, steps.ends, **form)


def policy(
    choose: Callable[..., jax.Array], config: Any, shape: tuple[int, ...]
) -> Callable[..., Any]:
    """An `Act`, or a `Recall` where `config.recurrent` says so, of parts `both` and `moments`.

    Args:
      choose: key, parameters of an actor and critic, what they read -> an action.
      config: with `recurrent`, `activation` and `normalise_observations`.
      shape: of pictures.
    """

    def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        return choose(key, params["both"], see(config, params, observation))

    def recall(key: jax.Array, params: Any, observation: jax.Array, memory: Any) -> tuple:
        both, inputs = params["both"], see(config, params, observation)
        form = {"activation": config.activation, "shape": shape}
        memory = actor_critic.remember(both, memory, inputs, **form)
        return choose(key, both, memory), memory

    return act if config.recurrent == "none" else recall


def rounds(algorithm: Algorithm, env: Environment, annotate: Annotate, config: Any) -> Program:
    """The phase.

    Args:
      algorithm: whose `update` takes a minibatch, and whose parameters have a part `moments`.
      env: where it plays.
      annotate: see `Annotate`.
      config: with `steps`, `worlds`, `segment`, `epochs`, `minibatches`, `discount`,
        `normalise_observations` and `normalise_rewards`.

    A minibatch is of single steps [N, ...]; of a policy with a memory it is of worlds, with all
    their steps [W, T, ...].

    Raises:
      ValueError: pictures whose moments would be needed.
    """
    count, memory = config.worlds * config.segment, algorithm.memory
    recurrent = bool(jax.tree.leaves(memory))
    units = config.worlds if recurrent else count
    if config.normalise_observations and env.space.shape:
        raise ValueError(
            f"observations of env={env.name!r} are pictures, which are not standardised by their "
            "moments; choose --algorithm.no-normalise-observations"
        )

    def start(key: jax.Array, learner: TrainState, data: Any, example: Transitions) -> Carry:
        if recurrent:
            example = example._replace(extra={**example.extra, "memory": memory})
        return Carry(learner, key, replay=replay.empty(example, count))

    def absorb(carry: Carry, clock: jax.Array, played: Transitions) -> Carry:
        return carry._replace(replay=replay.add(carry.replay, played))

    def segment(carry: Carry) -> tuple[TrainState, Transitions, Batch]:
        """The learner that has counted its rewards, the steps [W, T, ...], and what minibatches
        are drawn from."""
        shape = (config.segment, config.worlds)
        steps = jax.tree.map(
            lambda x: jnp.swapaxes(x.reshape(*shape, *x.shape[1:]), 0, 1), carry.replay.data
        )
        learner = carry.learner
        if config.normalise_rewards:
            moments, steps = scale_rewards(learner.params["moments"], steps, config.discount)
            learner = learner.replace(params=learner.params | {"moments": moments})
        rows = annotate(learner.params, steps)
        if not recurrent:
            rows = jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), rows)
        return learner, steps, {"online": rows}

    def learn(carry: Carry, key: jax.Array, data: Any) -> tuple[Carry, Metrics]:
        learner, steps, rows = segment(carry)

        def epoch(learner: TrainState, key: jax.Array) -> tuple[TrainState, Metrics]:
            order = jax.random.permutation(key, units).reshape(config.minibatches, -1)
            parts = jax.tree.map(lambda x: x[order], rows)
            return jax.lax.scan(lambda s, rows: algorithm.update(key, s, rows), learner, parts)

        learner, metrics = jax.lax.scan(epoch, learner, jax.random.split(key, config.epochs))
        if config.normalise_observations:
            # only now: the round's densities are of what the policy saw as it played
            moments = count_observations(learner.params["moments"], steps.observations)
            learner = learner.replace(params=learner.params | {"moments": moments})
        return carry._replace(learner=learner), jax.tree.map(jnp.mean, metrics)

    parts = Play(config.worlds, config.segment, 0, algorithm.act, start, absorb, learn)
    draw = lambda key, carry, data: segment(carry)[2]  # noqa: E731
    return playing(algorithm, env, parts, steps=-(-config.steps // count), draw=draw)
