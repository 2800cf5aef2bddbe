"""A device whose screens form a tree: open the one that is asked for; pop-ups get in the way."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.control.environment import Environment, Space, Step

DEPTH, BUTTONS = 3, 4
BACK = BUTTONS
"""The action that closes a pop-up, or else goes up one screen; those below it are buttons."""
INSTRUCTION = DEPTH * (BUTTONS + 1)
"""Entries of the observation that are the instruction; the last ones."""


class Device(NamedTuple):
    """Where it is, and what it is asked for."""

    path: jax.Array
    """[DEPTH] int32: the button of each level that was pressed; `BUTTONS` below the screen."""
    target: jax.Array
    """[DEPTH] int32, likewise."""
    blocked: jax.Array
    """Bool: whether a pop-up is shown."""


def make(popups: float = 0.15, horizon: int = 10) -> Environment:
    """Screens of up to three buttons' depth; 1 for opening the one that is asked for.

    A button opens a screen one level deeper, and does nothing on the deepest; `BACK` closes a
    pop-up, or goes up one level. While a pop-up is shown, buttons do nothing. Seen is, one hot:
    the path [3 x 5], the pop-up [1], and the target [3 x 5].

    Args:
      popups: probability that a step ends with a pop-up.
      horizon: steps.

    Raises:
      ValueError: not a probability.
    """
    if not 0 <= popups < 1:
        raise ValueError(f"popups={popups} is a probability, from 0 to below 1")

    def reset(key: jax.Array) -> tuple[Device, jax.Array]:
        deep, which = jax.random.split(key)
        depth = jax.random.randint(deep, (), 1, DEPTH + 1)
        pressed = jax.random.randint(which, (DEPTH,), 0, BUTTONS)
        target = jnp.where(jnp.arange(DEPTH) < depth, pressed, BUTTONS)
        device = Device(jnp.full(DEPTH, BUTTONS), target, jnp.asarray(False))
        return device, observed(device)

    def step(key: jax.Array, device: Device, action: jax.Array) -> Step:
        level = jnp.sum(device.path < BUTTONS)
        at = jnp.arange(DEPTH)
        pressed = jnp.where(at == level, action, device.path)
        up = jnp.where(at == level - 1, BUTTONS, device.path)
        moved = jnp.where(action == BACK, up, pressed)
        path = jnp.where(device.blocked, device.path, moved)
        popup = jax.random.bernoulli(key, popups) | (device.blocked & (action != BACK))
        opened = jnp.all(path == device.target)
        device = Device(path, device.target, popup)
        return Step(device, observed(device), opened.astype(jnp.float32), opened)

    return Environment(
        "device", Space(2 * INSTRUCTION + 1, BUTTONS + 1, discrete=True), horizon, reset, step
    )


def observed(device: Device) -> jax.Array:
    """What is seen, [2 INSTRUCTION + 1] float32; the instruction stands last."""
    path, target = (jax.nn.one_hot(x, BUTTONS + 1).ravel() for x in (device.path, device.target))
    return jnp.concatenate([path, device.blocked[None].astype(jnp.float32), target])


def skilled(observation: jax.Array) -> jax.Array:
    """The best action, from what is seen."""
    path = jnp.argmax(observation[:INSTRUCTION].reshape(DEPTH, -1), axis=-1)
    target = jnp.argmax(observation[-INSTRUCTION:].reshape(DEPTH, -1), axis=-1)
    level = jnp.sum(path < BUTTONS)
    along = jnp.all((jnp.arange(DEPTH) >= level) | (path == target))
    following = target[jnp.minimum(level, DEPTH - 1)]
    return jnp.where((observation[INSTRUCTION] > 0) | ~along, BACK, following)
