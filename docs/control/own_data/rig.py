"""An environment of one's own: a pole on a driven cart with two sensors, without jaxrl."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Rig(gymnasium.Env):
    """Keep the pole up; 1 a step, which is 20 ms, until it leans by 0.2 rad or the cart is off."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Dict(
        {"cart": spaces.Box(-10.0, 10.0, (2,)), "pole": spaces.Box(-10.0, 10.0, (2,))}
    )
    action_space = spaces.Box(-3.0, 3.0, (1,))

    def __init__(self, render_mode: str | None = None) -> None:
        """With `rgb_array` it can be filmed."""
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        """Almost upright, in the middle."""
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.05, 0.05, 4)
        return self.sense(), {}

    def sense(self) -> dict:
        """What the sensors say: place and speed of the cart, angle and rate of the pole."""
        cart, pole = self.state.astype(np.float32).reshape(2, 2)
        return {"cart": cart, "pole": pole}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """20 ms of force: a cart of 1 kg, a pole of 0.1 kg and 1 m."""
        _, speed, angle, rate = self.state
        force = 3.0 * float(np.clip(action[0], -3.0, 3.0)) + 0.5 * self.np_random.normal()
        push = (force + 0.05 * rate**2 * np.sin(angle)) / 1.1
        turn = 9.8 * np.sin(angle) - np.cos(angle) * push
        turn /= 0.5 * (4.0 / 3.0 - 0.1 * np.cos(angle) ** 2 / 1.1)
        drive = push - 0.05 * turn * np.cos(angle) / 1.1
        self.state = self.state + 0.02 * np.array([speed, drive, rate, turn])
        over = abs(self.state[2]) > 0.2 or abs(self.state[0]) > 2.0
        return self.sense(), 1.0, bool(over), False, {}

    def render(self) -> np.ndarray:
        """The cart as a block, the pole as a line, 2 cm a pixel."""
        picture = np.full((64, 224, 3), 255, np.uint8)
        foot = 112 + 50 * self.state[0]
        picture[54:60, int(np.clip(foot - 8, 0, 200)) : int(np.clip(foot + 8, 20, 224))] = 90
        for height in range(50):
            column = int(np.clip(foot + height * np.sin(self.state[2]), 1, 222))
            picture[53 - height, column - 1 : column + 2] = (200, 60, 40)
        return picture


def make(render_mode: str | None = None) -> gymnasium.Env:
    """A fresh rig with its time limit; `jaxrl control` is given `rig:make`."""
    return gymnasium.wrappers.TimeLimit(Rig(render_mode), 1000)
