"""The reference policy's log-probabilities of the rows of a file, computed once.

Before the first step, all rows are scored in the order of the file and written to
RUN/reference_logp.npz. Rows then carry them in place of the log-probabilities that a sampler
records, and neither a copy of the policy nor its forward pass is needed in training. A run that
continues reads the file, so that its bits are those of an uninterrupted run.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

from jaxrl.config import Config
from jaxrl.data.sources.rows import Rows
from jaxrl.mesh import distributed, mesh
from jaxrl.record import storage
from jaxrl.rollout import experience
from jaxrl.rollout.programs import Row
from jaxrl.rollout.written import Group, gathered, groups
from jaxrl.run import placement
from jaxrl.run.extension import Context
from jaxrl.types import Packed, TrainState, Trajectory

_FILE = "reference_logp.npz"


@dataclasses.dataclass(frozen=True)
class Scored:
    """Log-probabilities of the answers of all rows of a file."""

    logp: np.ndarray
    """[tokens] float32, of all answers of all rows in order."""
    starts: np.ndarray
    """[rows + 1] int64, where each row's begin."""

    def fill(self, made: list[Group], index: int) -> list[Group]:
        """A row's groups with the log-probabilities of their answers."""
        own = self.logp[self.starts[index] : self.starts[index + 1]]
        sizes = [len(each.completion.tokens) for _, answers in made for each in answers]
        parts = iter(np.split(own, np.cumsum(sizes)[:-1]))

        def filled(each: Row) -> Row:
            return each._replace(completion=dataclasses.replace(each.completion, logp=next(parts)))

        return [(problem, [filled(each) for each in answers]) for problem, answers in made]


def reference_logp(
    ctx: Context, state: TrainState, batch: Trajectory, packed: Packed
) -> jax.Array | None:
    """[N, T] of the reference policy: cached, or of its forward pass; None where there is none.

    Args:
      ctx: of the stage.
      state: before an update.
      batch: N sequences on the host.
      packed: of the batch.
    """
    if ctx.config.data.cache_reference:
        return mesh.put(batch.behavior_logp, placement.of_batch(batch.behavior_logp))
    return None if ctx.reference is None else ctx.score(ctx.reference(state), packed)


def write(ctx: Context, state: TrainState, files: Mapping[str, Rows]) -> None:
    """Score the rows of files by a state's parameters, and keep the result.

    Args:
      ctx: of the run.
      state: at step 0, when the policy is the reference.
      files: by a name.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, found in files.items():
        parts, sizes = [np.zeros(0, np.float32)], [0]
        for logp, size in _scored(ctx, state, found):
            parts.append(logp)
            sizes.append(size)
        arrays[f"{name}_logp"] = np.concatenate(parts)
        arrays[f"{name}_starts"] = np.cumsum(sizes)
    _save(ctx.directory, arrays)


def read(directory: Path) -> dict[str, Scored]:
    """What `write` kept in a run directory, by the names of the files.

    Raises:
      ValueError: it is missing.
    """
    path = directory / _FILE
    if not path.exists():
        raise ValueError(
            f"{path} is missing, which a run with data.cache_reference writes before its first "
            "step; restore it from a copy, or start the run again in another directory"
        )
    with np.load(io.BytesIO(path.read_bytes())) as arrays:
        names = {name.rpartition("_")[0] for name in arrays.files}
        return {name: Scored(arrays[f"{name}_logp"], arrays[f"{name}_starts"]) for name in names}


@distributed.by_first
def _save(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    made = io.BytesIO()
    np.savez(made, **arrays)
    storage.write(directory / _FILE, made.getvalue())


def _scored(ctx: Context, state: TrainState, found: Rows) -> Iterator[tuple[np.ndarray, int]]:
    """The log-probabilities of each row, and how many there are: 0 of a row that is left out."""
    config, size = ctx.config, ctx.config.data.batch_size
    for first in range(0, len(found), size):
        rows = range(first, min(first + size, len(found)))
        made = [groups(ctx.policy, config, found, index) for index in rows]
        logp = iter(_logp(ctx, config, state, [each for own in made for each in own]))
        for each in made:
            own = [next(logp) for _, answers in each for _ in answers]
            flat = np.concatenate([np.zeros(0, np.float32), *own])
            yield flat, len(flat)


def _logp(ctx: Context, config: Config, state: TrainState, made: list[Group]) -> list[np.ndarray]:
    """Of each answer, the log-probabilities of its tokens; 0 where they are not learned."""
    if not made:
        return []
    rows = gathered(made)
    batch = experience.as_trajectory(rows, config)
    found = mesh.fetch(ctx.score(state.params, placement.pack(batch, config)[0]))
    spans = ((len(c.request.prompt), len(c.tokens)) for c in rows.completions)
    return [found[n, start : start + count] for n, (start, count) in enumerate(spans)]
