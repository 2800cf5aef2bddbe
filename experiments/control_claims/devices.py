"""Does a filter by values beat the imitation of successes, from logs and then online?"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from experiments.control_claims import Arm, Claim, Experiment, Setting
from jaxrl.control import rollout
from jaxrl.control.environment import random_action
from jaxrl.control.environments import device
from jaxrl.data.offline.statistics import Bounds

SKILL = 0.25
"""Part of the logged actions that are the best ones; the rest are random."""


def experiment() -> Experiment:
    """Screens to open on a device with pop-ups, 100 where every one is opened."""

    def make() -> Setting:
        env = device.make()

        def logged(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
            coin, choice = jax.random.split(key)
            right = jax.random.uniform(coin) < SKILL
            return jnp.where(right, device.skilled(observation), random_action(choice, env.space))

        data = rollout.gather(env, logged, None, jax.random.PRNGKey(0), steps=2000)
        return Setting(env, Bounds(0.0, 1.0), {"logs": data})

    small = {"hidden": (32, 32), "batch_size": 64}
    online = small | {"steps": 2000, "online_steps": 4000}
    plain = {"step_value": False, "instruction_value": False}
    arms = (
        Arm("DigiRL", "digirl", online, "logs"),
        Arm("filtered imitation", "digirl", online | plain, "logs"),
        Arm("without step values", "digirl", online | {"step_value": False}, "logs"),
        Arm("without instruction values", "digirl", online | {"instruction_value": False}, "logs"),
        Arm("DigiRL, logs alone", "digirl", small | {"steps": 4000}, "logs"),
        Arm("AWR, logs alone", "digirl", small | {"steps": 4000, "temperature": 0.1}, "logs"),
    )
    claims = (
        Claim("DigiRL is above filtered imitation (Bai et al. 2024)", "DigiRL", arms[1].label),
        Claim("step values help (Bai et al. 2024)", "DigiRL", arms[2].label),
        Claim("instruction values help (Bai et al. 2024)", "DigiRL", arms[3].label),
        Claim("going on online helps (Bai et al. 2024)", "DigiRL", arms[4].label),
        Claim("on the logs DigiRL is above AWR (Bai et al. 2024)", arms[4].label, arms[5].label),
    )
    note = (
        "2000 logged steps, of which a quarter are the best action and the rest random. Filtered "
        "imitation goes on online too."
    )
    title = "Offline to online, discrete: screens of a device"
    return Experiment(title, make, arms, claims, note, points=5, episodes=64)
