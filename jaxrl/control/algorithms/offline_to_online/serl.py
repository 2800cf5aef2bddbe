"""SERL: RLPD from pictures, played in a process of its own, a classifier of success as reward.

Paper: Luo et al. 2024, "SERL: A Software Suite for Sample-Efficient Robotic RL".
Idea: in the paper the learner never waits for the robot nor the robot for it (here they agree after
`every` steps); pictures are moved at random, half of a batch is demonstrations, and what a person
labels is pictures of success and of failure.
Formula: RLPD's with `r = 1[c(s') >= 0]`, where an episode ends; `c` by cross-entropy of its logits.
Claim: insertion, cable routing and relocation on a robot after 25 to 50 minutes of training each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl.control import replay, spaces
from jaxrl.control.algorithm import Algorithm
from jaxrl.control.algorithms.online import sac
from jaxrl.control.algorithms.online.sac import PICTURES
from jaxrl.control.batches import Batch
from jaxrl.control.environment import Environment
from jaxrl.control.program import Program, online
from jaxrl.data.offline import transitions
from jaxrl.models.control import encoders
from jaxrl.types import TrainState

__all__ = ["APART", "PICTURES", "PRESETS", "Config", "config", "make", "programs"]

APART = True
"""`jaxrl control` plays it in a process of its own."""


@dataclass(frozen=True)
class Config(sac.Config):
    """Hyperparameters, beside those of SAC."""

    every: int = 30
    """Steps of each world that the actor takes with the same parameters."""
    updates: int = 10
    """Updates for these steps, while the actor takes them."""
    most_updates: int = 100
    """Updates that the learner goes on to where the actor is slower, or gone, in whole multiples of
    `updates`. Where it is below two of these, a run depends on its seed alone."""
    classifier_steps: int = 0
    """Updates of the classifier of success before training; 0: the environment's own reward."""
    classifier_rate: float = 1e-4
    classifier_batch: int = 256
    """Half of success, half of failure, so an even number."""
    labels: str = ""
    """Data whose steps with a reward above 0 come to a picture of success, all others to one of
    failure; the demonstrations when empty. Only with `classifier_steps`."""


_SHARED: dict[str, Any] = {
    "subset": 2, "critic_updates": 4, "norm": True, "target_entropy": -0.5, "temperature": 0.01,
    "backup_entropy": False, "shift": 4,
}  # fmt: skip
PRESETS = {
    "serl": Config(
        **_SHARED, steps=100_000, members=10, hidden=(256, 256), learning_rate=3e-4,
        batch_size=256, discount=0.96, latent=256, warmup=300, updates=1, most_updates=1_000_000,
        classifier_steps=100,
    )
}  # fmt: skip
"""Values of the authors' code (`make_drq_agent` and the examples)."""


def config() -> Config:
    """For small tasks: fewer critics, small networks, and the rate that suits them."""
    return Config(**_SHARED, steps=6000, members=4, learning_rate=5e-4, discount=0.96, warmup=300)


def make(env: Environment, config: Config) -> Algorithm:
    """RLPD's, and with `classifier_steps` the classifier beside it."""
    base = sac.make(env.space, config)
    if not config.classifier_steps:
        return base
    size, shape = env.space.observation, env.space.shape
    adam = optax.adam(config.classifier_rate)
    none = np.zeros((0,), np.float32)

    def logits(params: Any, observations: jax.Array, **kwargs: Any) -> jax.Array:
        actions = jnp.broadcast_to(none, (*observations.shape[:-1], 0))
        return encoders.values(params, observations, actions, shape, **kwargs)[0]

    def init(key: jax.Array) -> TrainState:
        form = {"action": 0, "latent": config.latent, "members": 1, "norm": True}
        # far from the numbers of the keys that `base` splits off
        first, draws = jax.random.split(jax.random.fold_in(key, 0x5E715E71))
        classifier = encoders.critic(first, size, shape, (256,), **form)
        state = base.init(key)
        return state.replace(
            params=state.params | {"classifier": classifier},
            opt_state=state.opt_state | {"classifier": draws},  # until `begin`
        )

    def prepare(data: Any) -> dict[str, Any]:
        labelled, source = data, "data"
        if config.labels:
            from jaxrl.data.offline import readers

            source = f"algorithm.labels={config.labels!r}"
            try:
                labelled = readers.read(config.labels, *spaces.of_files(env.layouts))
                spaces.check_sizes(labelled, env.space, env.name)
            except ValueError as error:
                raise ValueError(f"{source}: {error}") from error
        success = transitions.success_labels(labelled, source)
        reached = np.asarray(data.rewards) > 0
        if not reached.any():
            raise ValueError(
                f"data: none of {len(reached)} steps has a reward above 0, so no demonstration "
                "succeeds; give --data demonstrations that do, or choose "
                "--algorithm.classifier-steps 0"
            )
        terminals = np.maximum(data.terminals, reached).astype(np.float32)
        demonstrations = data._replace(rewards=reached.astype(np.float32), terminals=terminals)
        pictures = np.asarray(labelled.next_observations)
        parts = {
            "demonstrations": demonstrations,
            "good": pictures[success],
            "bad": pictures[~success],
        }
        return jax.tree.map(jnp.asarray, parts)

    def begin(state: TrainState, prepared: Any) -> TrainState:
        state, half = base.begin(state, prepared["demonstrations"]), config.classifier_batch // 2
        labels = jnp.repeat(jnp.array([1.0, 0.0]), half)

        def improve(carry: Any, key: jax.Array) -> tuple[Any, None]:
            params, opt_state = carry
            good, bad, move, drop = jax.random.split(key, 4)
            successes = replay.uniform(good, prepared["good"], half)
            observations = jnp.concatenate([successes, replay.uniform(bad, prepared["bad"], half)])
            if shape and config.shift:
                observations = encoders.shifted(move, observations, shape, config.shift)

            def loss(params: Any) -> jax.Array:
                out = logits(params, observations, dropout=0.1, key=drop)
                return jnp.mean(optax.sigmoid_binary_cross_entropy(out, labels))

            step, opt_state = adam.update(jax.grad(loss)(params), opt_state, params)
            return (optax.apply_updates(params, step), opt_state), None

        params, opt_state = state.params["classifier"], dict(state.opt_state)
        keys = jax.random.split(opt_state.pop("classifier"), config.classifier_steps)
        (params, _), _ = jax.lax.scan(improve, (params, adam.init(params)), keys)
        return state.replace(params=state.params | {"classifier": params}, opt_state=opt_state)

    def sample(key: jax.Array, prepared: Any, count: int) -> Batch:
        return {"offline": replay.uniform(key, prepared["demonstrations"], count)}

    def success(params: Any, observation: jax.Array) -> jax.Array:
        return logits(params["classifier"], observation) >= 0.0

    return base._replace(init=init, prepare=prepare, begin=begin, sample=sample, success=success)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Online, with demonstrations in half of each minibatch."""
    names = "steps", "worlds", "every", "updates", "warmup"
    settings = {name: getattr(config, name) for name in names}
    return (online(make(env, config), env, prior=0.5, **settings),)
