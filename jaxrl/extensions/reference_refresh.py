"""Reference refresh: from time to time the current policy becomes the reference (ProRL)."""

from __future__ import annotations

import dataclasses

from jaxrl.config import Config
from jaxrl.run.extension import Context, Extension
from jaxrl.training import optimizer
from jaxrl.types import TrainState


@dataclasses.dataclass(frozen=True)
class RefreshConfig:
    """When the reference is renewed."""

    every: int = 100
    """Steps after which the current policy becomes the reference."""
    reset_optimizer: bool = False
    """Whether the optimizer's moments are set to 0 at that time."""


def reference_refresh(settings: RefreshConfig) -> Extension:
    """The policy that divergences are measured to is renewed every `every` steps.

    Paper: Liu et al. 2025, "ProRL: Prolonged Reinforcement Learning Expands Reasoning Boundaries in
      Large Language Models"
    """

    def check(config: Config) -> None:
        if settings.every < 1:
            raise ValueError(f"reference_refresh.every={settings.every}: must be 1 or more")

    def after(ctx: Context, state: TrainState, step: int) -> TrainState:
        if step % settings.every:
            return state
        ctx.renew_reference(state, step)
        if settings.reset_optimizer:
            state = state.replace(opt_state=optimizer.cleared(state.opt_state))
        return state

    return Extension(check=check, after=after, provides={"renews_reference": True})
