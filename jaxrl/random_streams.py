"""The numbers of a run's streams of random numbers, one table for each thing they are folded into.

What a run draws depends on them: a number is never changed, and two streams of a table never have
the same. Streams that are numbered by a step, a request or a token need no entry.
"""

from __future__ import annotations

import enum

import jax


@enum.unique
class RunStream(enum.IntEnum):
    """Folded into the key of a run."""

    PARAMS = 0
    """First values of a fresh model."""
    SAMPLING = 1
    """Sampled tokens."""
    ADAPTERS = 3
    """First values of adapters."""
    SCORE = 4
    """First values of the score of a reward model."""

    def key(self, seed: int) -> jax.Array:
        """The key of this stream in a run with this seed."""
        return jax.random.fold_in(jax.random.key(seed), int(self))


@enum.unique
class UpdateStream(enum.IntEnum):
    """Folded into the key of an update."""

    NOISE = 1
    """Noise on embeddings."""
    ROUNDING = 2
    """Stochastic rounding of parameters."""


@enum.unique
class GroupStream(enum.IntEnum):
    """Counts of `jaxrl.rollout.programs.Context.rng`; `guidance` counts its attempts from 0 on."""

    LOGGED_GAMES = 1
    """Games that are drawn from a log."""
    BRANCHES = 2
    """Where episodes branch."""
    SEAT = 3
    """Which agent the policy plays, where an opponent plays the other."""
    IMITATED = 17
    """Whether a group imitates the solution in place of a plan."""
    ENVIRONMENTS = 1 << 20
    """The seed of a group's environments; no program counts so far."""
