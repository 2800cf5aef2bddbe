"""An environment of one's own: a pendulum on a motor with two sensors, without jaxrl."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Rig(gymnasium.Env):
    """Swing up and hold; 0 a step at rest at the top, less elsewhere, 200 steps an episode."""

    observation_space = spaces.Dict(
        {"angle": spaces.Box(-1.0, 1.0, (2,)), "speed": spaces.Box(-8.0, 8.0, (1,))}
    )
    action_space = spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        """Hang anywhere, slowly."""
        super().reset(seed=seed)
        self.angle, self.speed = self.np_random.uniform([-np.pi, -1.0], [np.pi, 1.0])
        return self.sense(), {}

    def sense(self) -> dict:
        """What the sensors say."""
        angle = np.array([np.cos(self.angle), np.sin(self.angle)], np.float32)
        return {"angle": angle, "speed": np.array([self.speed], np.float32)}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """50 ms of torque."""
        torque = float(np.clip(action[0], -2.0, 2.0))
        off = (self.angle + np.pi) % (2 * np.pi) - np.pi
        cost = off**2 + 0.1 * self.speed**2 + 0.001 * torque**2
        pull = 15.0 * np.sin(self.angle) + 3.0 * torque
        self.speed = float(np.clip(self.speed + 0.05 * pull, -8.0, 8.0))
        self.angle += 0.05 * self.speed
        return self.sense(), -cost, False, False, {}


def make() -> gymnasium.Env:
    """A fresh rig with its time limit; `jaxrl control` is given `rig:make`."""
    return gymnasium.wrappers.TimeLimit(Rig(), 200)
