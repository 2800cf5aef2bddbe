"""SASR: after a warm-up, imitation fades as its gradient does, step by step.

Paper: Chen et al. 2025, "Step-wise Adaptive Integration of Supervised Fine-tuning and Reinforcement
Learning for Task-Specific LLMs"
Idea: the gradient of imitation tells how much is left to imitate. While it is large, steps imitate;
as it shrinks against what it was after the warm-up, steps explore.
Formula: `p = g / (g + gamma g_warm)`; each step is `L_SFT` with probability p, else `L_GRPO`
Claim: better than SFT, RL, and static mixtures of the two.
Reading: the rule is recalled, as no code of the authors is known; pseudocode of a reader has the
same norm at the end of the warm-up, that of the last imitation step, and gamma. The run takes the
norms of the gradient at the parameters, before clipping, in the last imitation step and at the end
of the warm-up. The abstract has the divergence from the initial distribution too, which is not
here. The ablation is the static mixture of halves.
Source: none found (authors' code; the abstract and a reader's pseudocode were read in part)
Fidelity: partial: the probability itself was not compared, no divergence
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.run.extension import Context, Extension
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.train_step import Update
from jaxrl.types import Packed, TrainState, Trajectory


@dataclasses.dataclass(frozen=True)
class ImitationConfig:
    """How often an update imitates."""

    warmup_steps: int = 20
    """Updates that imitate at the start."""
    gamma: float = 1.0
    """Weight of the gradient norm at the end of the warm-up in the probability of imitation."""


def draw_imitation(
    settings: ImitationConfig,
    norms: Mapping[str, jax.Array],
    step: jax.Array,
    seed: int | jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Whether an update imitates, a scalar bool, and the chance of it, a scalar float32.

    Formula: `p = last / (last + gamma warm)`; 1 while warming up

    Args:
      settings: of the rule.
      norms: `last`, of the gradient in the last update that imitated, and `warm`, at the end of the
        warm-up; scalars.
      step: scalar int32, updates done.
      seed: of the draws.
    """
    last, warm = norms["last"], norms["warm"]
    share = last / jnp.maximum(last + settings.gamma * warm, 1e-8)
    share = jnp.where(step < settings.warmup_steps, 1.0, share)
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.random.uniform(key) < share, share


def update_norms(
    settings: ImitationConfig,
    norms: Mapping[str, jax.Array],
    step: jax.Array,
    imitated: jax.Array,
    norm: jax.Array,
) -> dict[str, jax.Array]:
    """The norms after an update whose gradient had this one; one that is not finite is left out."""
    last = jnp.where(imitated & jnp.isfinite(norm), norm, norms["last"])
    return {"last": last, "warm": jnp.where(step < settings.warmup_steps, last, norms["warm"])}


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
            draw, share = draw_imitation(settings, norms, state.step, ctx.config.seed)
            imitate = jnp.broadcast_to(draw, batch.valid.shape)
            batch = batch.replace(extra=batch.extra | {"imitate": imitate})
            step = state.step
            state, metrics = inner(state, batch, packed, ref_logp)
            norms = update_norms(settings, norms, step, draw, metrics["grad_norm"])
            imitation_metrics = {"imitation_probability": share, "imitation_norm": norms["last"]}
            return state.with_extra(imitation=norms), metrics | imitation_metrics

        return both

    return Extension(init=init, update=update, provides={"extra_arrays": ("imitate",)})


METHOD = Method(
    objective=ObjectiveConfig(policy="sasr", advantage="sampled_advantages"),
    extensions={
        "guidance": GuidanceConfig("expert_rows"),
        "jaxrl.launch.recipes.demonstrations.sasr:imitation": ImitationConfig(),
    },
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart with a solution beside each group."""
