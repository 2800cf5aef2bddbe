"""WSRL: fine-tunes online without the offline data, after a warm-up played by the trained policy.

Paper: Zhou et al. 2024, "Efficient Online Reinforcement Learning Fine-Tuning Need Not Retain
Offline Data".
Idea: what retained data prevents is a fall of the values at the switch; a few thousand steps of the
frozen pre-trained policy in the buffer prevent it as well, and plain SAC continues from there.
Formula: Cal-QL offline; then SAC, with LayerNorm, an ensemble and several updates a step.
Claim: faster and higher than methods that retain the data.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.offline import cql
from jaxrl.control.algorithms.online import sac
from jaxrl.control.environment import Environment
from jaxrl.control.program import Program, offline, online


@dataclass(frozen=True)
class Config:
    """Hyperparameters of both phases."""

    steps: int = 3000
    """Offline updates."""
    online_steps: int = 3000
    warmup: int = 500
    """Steps of the frozen policy before the first online update; 1 is next to none."""
    prior: float = 0.0
    """Share of offline data kept in a minibatch: 0 is WSRL, 1/2 what it is compared with."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    discount: float = 0.99
    polyak: float = 0.005
    batch_size: int = 128
    members: int = 5
    critic_updates: int = 4


def config() -> Config:
    """Half the paper's ensemble and its four updates a step."""
    return Config()


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Cal-QL, then SAC from its networks and optimizers."""
    before = cql.make(env.space, shared(cql.Config, config, calibrate=True, norm=True))
    after = sac.make(env.space, shared(sac.Config, config, subset=2, norm=True))
    return (
        offline(before, steps=config.steps),
        online(
            after,
            env,
            steps=config.online_steps,
            warmup=config.warmup,
            warm=before.act,
            prior=config.prior,
        ),
    )
