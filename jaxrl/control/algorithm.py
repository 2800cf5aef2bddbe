"""What an algorithm is: a few pure functions around one train state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl.control import replay
from jaxrl.control.environment import Environment, Space
from jaxrl.control.rollout import Act
from jaxrl.types import TrainState
from losses import control

Metrics = Mapping[str, jax.Array]


class Algorithm(NamedTuple):
    """A learner of control. `launch/control` holds one a file."""

    init: Callable[[jax.Array], TrainState]
    """key -> the whole state; `params` and `opt_state` are dicts by the name of each network."""
    update: Callable[[jax.Array, TrainState, Any], tuple[TrainState, Metrics]]
    """key, state, batch -> state, scalars. The batch is as `sample` gives it."""
    act: Act
    """Explores."""
    best: Act
    """Is judged."""
    batch_size: int = 256
    prepare: Callable[[Any], Any] = lambda data: data
    """What an offline data set becomes before training, on the host: filtered, weighted, cut."""
    sample: Callable[[jax.Array, Any, int], Any] = replay.uniform
    """key, what `prepare` gave, size -> batch."""
    observe: Callable[[Environment], Environment] = lambda env: env
    """The environment as this policy sees it: with a history, for one that needs it."""


def of_actor(policy: Act) -> Act:
    """`policy` of the part `actor` of the parameters."""
    return lambda key, params, observation: policy(key, params["actor"], observation)


def fresh(
    params: dict[str, Any], optimizers: Mapping[str, optax.GradientTransformation]
) -> TrainState:
    """The state before the first update, with an optimizer state for each trained part."""
    opt_state = {name: optimizer.init(params[name]) for name, optimizer in optimizers.items()}
    return TrainState(params, opt_state, jnp.zeros((), jnp.int32))


def extend(
    state: TrainState, name: str, part: Any, optimizer: optax.GradientTransformation
) -> TrainState:
    """The state with one more trained part."""
    return state.replace(
        params=state.params | {name: part},
        opt_state=state.opt_state | {name: optimizer.init(part)},
    )


def descend(
    state: TrainState,
    name: str,
    optimizer: optax.GradientTransformation,
    loss: Callable[[Any], tuple[jax.Array, Metrics]],
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One optimizer step on the part `name` of the state.

    Args:
      state: with that part in `params` and `opt_state`.
      name: of the part.
      optimizer: of the part.
      loss: the part's parameters -> a scalar, and metrics.

    Returns:
      The state, and the metrics with `NAME_loss` among them.
    """
    (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(state.params[name])
    step, opt_state = optimizer.update(gradient, state.opt_state[name], state.params[name])
    params = state.params | {name: optax.apply_updates(state.params[name], step)}
    state = state.replace(params=params, opt_state=state.opt_state | {name: opt_state})
    return state, {f"{name}_loss": value, **metrics}


def temper(
    state: TrainState, optimizer: optax.GradientTransformation, logp: jax.Array, space: Space
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One step of SAC's temperature, the part `temperature` of the state, which holds its log.

    Args:
      state: with that part.
      optimizer: of it.
      logp: log-densities of the policy's own actions, which become their mean's negative, the
        entropy, among the metrics.
      space: the entropy is held at minus its dimensions of the action.
    """

    def loss(log_alpha: jax.Array) -> tuple[jax.Array, Metrics]:
        each = control.temperature_loss(log_alpha, logp, target_entropy=-float(space.action))
        return jnp.mean(each), {"temperature": jnp.exp(log_alpha), "entropy": -jnp.mean(logp)}

    return descend(state, "temperature", optimizer, loss)
