"""Load balancing of a mixture of experts: auxiliary losses, and biases that follow the load."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxrl.config import Config
from jaxrl.rollout import policy
from jaxrl.run.extension import Extension
from jaxrl.training import routers


@dataclasses.dataclass(frozen=True)
class RouterConfig:
    """What keeps the experts of a mixture evenly used; at 0 a term is left out."""

    balance: float = 0.0
    """Weight of the load-balancing loss, summed over layers."""
    level: Literal["batch", "sequence"] = "batch"
    """What the loss balances: the tokens of a whole batch, or those of each sequence."""
    z: float = 0.0
    """Weight of the square of the routers' log-normaliser (z-loss), summed over layers."""
    bias_speed: float = 0.0
    """How far each expert's bias moves in one update, against its load; for models that have such
    biases, as DeepSeek-V3 does (0.001 there)."""


def router(settings: RouterConfig) -> Extension:
    """Terms of the routers in each update. Metrics: `router/balance`, 1 under a uniform load,
    `router/z`, and `router/busiest`, the tokens of the busiest expert over the mean.

    A balance over the batch takes one forward pass more where a step has several micro-batches, for
    the load of all of them. The warm start before RL has none of these terms.

    Paper: Fedus et al. 2021, "Switch Transformers"; Zoph et al. 2022, "ST-MoE"; Wang et al. 2024,
    "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts"
    """

    def check(config: Config) -> None:
        for name in ("balance", "z", "bias_speed"):
            if (value := getattr(settings, name)) < 0:
                raise ValueError(f"router.{name}={value}: use 0, which leaves it out, or more")
        shape = None if config.model == "fresh" else policy.describe(config)[0]
        if shape is None or shape.experts is None:
            raise ValueError(
                f"router with model={config.model!r}: it is no mixture of experts; leave it out"
            )
        if settings.bias_speed and not shape.experts.correction_bias:
            raise ValueError(
                f"router.bias_speed={settings.bias_speed} with model={config.model!r}: its routers "
                "have no biases; use router.balance"
            )
        if config.objective.skip_zero_advantages and (settings.balance or settings.z):
            raise ValueError(
                "objective.skip_zero_advantages with router.balance or router.z would leave those "
                "sequences out of the routers' losses; set it to False"
            )

    return Extension(
        check=check, provides={"router": routers.Terms(**dataclasses.asdict(settings))}
    )
