"""KTO's reference point: how far the policy has moved on answers to other prompts."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxrl.config import Config
from jaxrl.losses.preference import direct
from jaxrl.losses.reduce import masking
from jaxrl.mesh import mesh
from jaxrl.run import placement
from jaxrl.run.extension import Context, Extension
from jaxrl.training import packing
from jaxrl.types import TrainState, Trajectory


@dataclasses.dataclass(frozen=True)
class MismatchedConfig:
    """KTO's reference point of each batch, which `labelled_kto` asks for; no settings."""


def mismatched(settings: MismatchedConfig) -> Extension:
    """Adds `kl [N]`: the mean log-ratio to the reference of answers under the prompt after theirs.

    Paper: Ethayarajh et al. 2024, "KTO: Model Alignment as Prospect Theoretic Optimization"
    """

    def check(config: Config) -> None:
        if config.data.kinds and config.data.batch_size < 2:
            raise ValueError(
                f"mismatched with data.batch_size={config.data.batch_size}: answers are exchanged "
                "between the rows of a batch; set it to 2 or more"
            )

    def prepare(ctx: Context, state: TrainState, batch: Trajectory) -> Trajectory:
        exchanged_batch = exchanged(batch, ctx.policy.model.max_positions)
        packed = placement.pack_scored(exchanged_batch, ctx.config)
        logp = mesh.fetch(ctx.score(state.params, packed, ctx.restriction(state)))
        ref_logp = mesh.fetch(ctx.score(ctx.reference(state), packed))
        sums = (
            masking.row_sum(exchanged_batch.action_mask, logprobs) for logprobs in (logp, ref_logp)
        )
        kl = np.asarray(direct.kto_reference_point(*sums), np.float32)
        return batch.replace(extra=batch.extra | {"kl": np.full(len(batch.tokens), kl)})

    def shapes(batch: Trajectory) -> Trajectory:
        return batch.replace(extra=batch.extra | {"kl": batch.rewards})

    return Extension(
        check=check,
        prepare=prepare,
        provides={"shapes": shapes, "extra_arrays": ("kl",), "needs_reference": True},
    )


def exchanged(batch: Trajectory, most: int) -> Trajectory:
    """Each row's prompt with the answer of the row before it, the first row's with the last's.

    Args:
      batch: N sequences of T tokens on the host; a prompt reaches up to the first action.
      most: tokens of a sequence; longer ones are cut.

    Returns:
      N sequences, each alone in its group, of as many tokens as the longest needs.
    """
    tokens, mask = np.asarray(batch.tokens), np.asarray(batch.action_mask)
    count, width = tokens.shape
    first = np.argmax(mask, axis=1)
    end = np.where(mask.any(axis=1), width - np.argmax(mask[:, ::-1], axis=1), first)
    arrays = np.zeros((2, count, 2 * width), np.int32)
    for n in range(count):
        prompt_length, donor = int(first[n]), n - 1  # of row 0 the last
        start = int(first[donor])
        span = slice(start, min(int(end[donor]), start + most - prompt_length))
        stop = prompt_length + span.stop - span.start
        arrays[0, n, :prompt_length] = tokens[n, :prompt_length]
        arrays[0, n, prompt_length:stop], arrays[1, n, prompt_length:stop] = (
            tokens[donor, span],
            mask[donor, span],
        )
    zeros = np.zeros((count, 2 * width), np.float32)
    return batch.replace(
        tokens=arrays[0],
        action_mask=arrays[1].astype(bool),
        behavior_logp=zeros,
        policy_version=zeros.astype(np.int32),
        group_ids=packing.renumbered(np.arange(count)),
        extra={},
    )
