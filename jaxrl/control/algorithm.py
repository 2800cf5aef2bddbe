"""What an algorithm is: a few pure functions around one train state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl.control import replay
from jaxrl.control.batches import Batch
from jaxrl.control.environment import Environment, Space
from jaxrl.control.rollout import Act
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses import control
from jaxrl.models.control import encoders
from jaxrl.types import TrainState

Metrics = Mapping[str, jax.Array]


def _offline(key: jax.Array, data: Any, size: int) -> Batch:
    return {"offline": replay.uniform(key, data, size)}


def _online(key: jax.Array, ring: replay.Replay, size: int) -> Batch:
    return {"online": replay.sample(key, ring, size)}


class Algorithm(NamedTuple):
    """A learner of control. Each module of `jaxrl/control/algorithms` has one."""

    init: Callable[[jax.Array], TrainState]
    """key -> the whole state; `params` and `opt_state` are dicts by the name of each network."""
    update: Callable[[jax.Array, TrainState, Batch], tuple[TrainState, Metrics]]
    """key, state, batch -> state, scalars. The batch has the parts that `sample` and `recall` name;
    what `update` does may not depend on the order of the rows of a part."""
    act: Callable[..., Any]
    """The policy that explores, an `Act`."""
    best: Callable[..., Any]
    """The policy that is evaluated."""
    batch_size: int = 256
    """Rows of a batch, or of a minibatch, all parts together."""
    minibatches: int = 0
    """When above 0, a batch is this many minibatches, drawn independently: its leaves are
    [minibatches, rows, ...], and each minibatch has the same share of every part."""
    prepare: Callable[[Any], Any] = lambda data: data
    """What an offline data set becomes before training, on the host: filtered, weighted, cut."""
    begin: Callable[[TrainState, Any], TrainState] = lambda state, data: state
    """state, what `prepare` gave -> the state before the first update, with what it takes from the
    whole data set."""
    sample: Callable[[jax.Array, Any, int], Batch] = _offline
    """key, what `prepare` gave, size -> the parts of a batch that come from it."""
    recall: Callable[[jax.Array, replay.Replay, int], Batch] = _online
    """key, replay buffer, size -> the parts of a batch that come from it."""
    returns: float | None = None
    """Discount of the returns to go that `prepare` puts into the `extra` of the data set as
    `return_to_go`. The replay buffer then holds them too: -inf until the episode has ended."""
    observe: Callable[[Environment], Environment] = lambda env: env
    """The environment as this policy sees it: with a history, for one that needs it."""
    memory: Any = ()
    """What the policy remembers before an episode, arrays without leading axis. Where there are
    any, `act` and `best` are a `rollout.Recall`, and the replay buffer's `extra` has the `memory`
    before each step."""
    success: Callable[[Any, jax.Array], jax.Array] | None = None
    """parameters, observation -> whether it is one of success, which is the reward then and ends
    the episode; None: the environment's own reward."""


def standardised(inner: Algorithm, space: Space) -> Algorithm:
    """`inner` on observations less the data set's mean, over its standard deviation plus 1e-3.

    The moments are the part `moments` of the parameters.
    """

    def init(key: jax.Array) -> TrainState:
        state = inner.init(key)
        size = space.observation
        moments = {"mean": jnp.zeros(size), "std": jnp.ones(size)}
        return state.replace(params=state.params | {"moments": moments})

    def begin(state: TrainState, data: Any) -> TrainState:
        observations = jnp.asarray(data.observations)
        moments = {
            "mean": jnp.mean(observations, axis=0),
            "std": jnp.std(observations, axis=0) + 1e-3,
        }
        return inner.begin(state.replace(params=state.params | {"moments": moments}), data)

    def normal(params: Any, observation: jax.Array) -> jax.Array:
        return (observation - params["moments"]["mean"]) / params["moments"]["std"]

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        def normalise_part(part: Transitions) -> Transitions:
            observations, next_observations = (
                normal(state.params, x) for x in (part.observations, part.next_observations)
            )
            return part._replace(observations=observations, next_observations=next_observations)

        return inner.update(
            key, state, {name: normalise_part(part) for name, part in batch.items()}
        )

    def sees(policy: Act) -> Act:
        return lambda key, params, observation: policy(key, params, normal(params, observation))

    return inner._replace(
        init=init, begin=begin, update=update, act=sees(inner.act), best=sees(inner.best)
    )


def of_actor(policy: Act, shape: tuple[int, ...] = ()) -> Act:
    """`policy` of the part `actor` of the parameters, on what the critic's encoder sees of pictures
    of a `shape`."""

    def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        read = encoders.see(params["critic"], observation, shape) if shape else observation
        return policy(key, params["actor"], read)

    return act


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
    state: TrainState,
    optimizer: optax.GradientTransformation,
    logp: jax.Array,
    space: Space,
    target: float = -1.0,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One step of SAC's temperature, the part `temperature` of the state, which holds its log.

    Args:
      state: with that part.
      optimizer: of it.
      logp: log-densities of the policy's own actions, which become their mean's negative, the
        entropy, among the metrics.
      space: of the actions.
      target: the entropy that is held, for each dimension of the action.
    """

    def loss(log_alpha: jax.Array) -> tuple[jax.Array, Metrics]:
        losses = control.temperature_loss(log_alpha, logp, target_entropy=target * space.action)
        return jnp.mean(losses), {"temperature": jnp.exp(log_alpha), "entropy": -jnp.mean(logp)}

    return descend(state, "temperature", optimizer, loss)
