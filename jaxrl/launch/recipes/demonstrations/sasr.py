"""SASR: after a warm-up, imitation fades as its gradient does, step by step.

Paper: Chen et al. 2025, "Step-wise Adaptive Integration of Supervised Fine-tuning and Reinforcement
Learning for Task-Specific LLMs"
Idea: the gradient of imitation tells how much is left to imitate. While it is large, steps imitate;
as it shrinks against what it was after the warm-up, steps explore.
Formula: `p = g / (g + gamma g_warm)`; each step is `L_SFT` with probability p, else `L_GRPO`
Claim: better than SFT, RL, and static mixtures of the two.
Reading: the rule is recalled, as no code of the authors is known. The run takes the norms of the
gradient at the parameters, before clipping, in the last imitation step and at the end of the
warm-up. The ablation is the static mixture of halves.
"""

import dataclasses

import jax
import jax.numpy as jnp

from experiments.lab import imitation as rule
from experiments.lab.imitation import ImitationConfig
from jaxrl.config import Config
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.recipes.ready import quickstart
from jaxrl.run.extension import Context, Extension
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.train_step import Update
from jaxrl.types import Packed, TrainState, Trajectory


def imitation(settings: ImitationConfig) -> Extension:
    """Draws whether an update imitates, from the norms of the gradients of earlier ones.

    It adds `imitate` [N] bool to the batch, for the objective `sasr`, and the metrics
    `imitation_probability` and `imitation_norm`, the norm in the last update that imitated.

    Paper: Chen et al. 2025, "Step-wise Adaptive Integration of Supervised Fine-tuning and
      Reinforcement Learning for Task-Specific LLMs"
    """

    def init(ctx: Context, state: TrainState) -> TrainState:
        return state.with_extra(imitation={"last": jnp.float32(0), "warm": jnp.float32(0)})

    def update(ctx: Context, inner: Update) -> Update:
        def both(
            state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
        ) -> tuple[TrainState, dict[str, jax.Array]]:
            norms = state.extra["imitation"]
            drawn, share = rule.drawn(settings, norms, state.step, ctx.config.seed)
            imitate = jnp.broadcast_to(drawn, batch.valid.shape)
            batch = batch.replace(extra=batch.extra | {"imitate": imitate})
            step = state.step
            state, metrics = inner(state, batch, packed, ref_logp)
            norms = rule.noted(settings, norms, step, drawn, metrics["grad_norm"])
            own = {"imitation_probability": share, "imitation_norm": norms["last"]}
            return state.with_extra(imitation=norms), metrics | own

        return both

    return Extension(init=init, update=update, arrays=("imitate",))


def config() -> Config:
    """The quickstart with a solution beside each group."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="sasr",
        extensions={
            "guidance": GuidanceConfig("expert_rows"),
            "jaxrl.launch.recipes.demonstrations.sasr:imitation": ImitationConfig(),
        },
        objective=ObjectiveConfig(
            policy="sasr",
            advantage="sampled_advantages",
        ),
    )
