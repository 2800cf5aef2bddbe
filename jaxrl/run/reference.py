"""The reference policy, which divergences are measured to.

Of the rows of a file, its log-probabilities can be computed once: before the first step, all rows
are scored in the order of the file and written to RUN/reference_logp.npz. Rows then carry them in
place of the log-probabilities that a sampler records, and neither a copy of the policy nor its
forward pass is needed in training. A run that continues reads the file, so that its bits are those
of an uninterrupted run.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

from jaxrl.config import Config, stages
from jaxrl.data.sources.rows import Rows
from jaxrl.mesh import distributed, mesh
from jaxrl.models import lora
from jaxrl.models.config import DecoderConfig
from jaxrl.record import references, storage
from jaxrl.rollout import experience
from jaxrl.rollout.programs import Row
from jaxrl.rollout.written import Group, gathered, groups
from jaxrl.run import placement
from jaxrl.run.extension import Context, Extension, provider, providers
from jaxrl.training import objective, trainable
from jaxrl.types import Packed, Params, TrainState, Trajectory

_FILE = "reference_logp.npz"


def needed(config: Config, extensions: Mapping[str, Extension]) -> bool:
    """Whether a stage, of a config without its stages, compares with a reference policy."""
    extension_needs = any(providers(extensions, "needs_reference").values())
    return extension_needs or objective.needs_reference(config.objective)


def _needed_once(config: Config, extensions: Mapping[str, Extension]) -> bool:
    """Whether any stage of the run compares with a reference policy."""
    return any(needed(staged, extensions) for _, staged in stages.all_of(config))


def stored(config: Config, extensions: Mapping[str, Extension]) -> bool:
    """Whether the run stores a copy of the policy as it was.

    With adapters the reference is the base without them, and an extension may give another. Where
    its log-probabilities are cached, no parameters are needed.
    """
    from_extension = provider(extensions, "reference") is not None
    base_or_cache = config.lora.rank or config.data.cache_reference
    return _needed_once(config, extensions) and not base_or_cache and not from_extension


def check(config: Config, extensions: Mapping[str, Extension]) -> None:
    """Refuse to renew a reference policy that is not stored, or to cache what is not fixed.

    Raises:
      ValueError: naming the extension or the field.
    """
    if config.data.cache_reference:
        _check_cached(config, extensions)
    renewing = [n for n, renews in providers(extensions, "renews_reference").items() if renews]
    if renewing and not stored(config, extensions):
        raise ValueError(
            f"extension {renewing[0]!r} replaces the stored reference policy, but this run stores "
            "none: adapters keep theirs, a moving average follows by itself, and without a KL term "
            "there is none; remove the extension"
        )


def _check_cached(config: Config, extensions: Mapping[str, Extension]) -> None:
    needing, giving = (providers(extensions, role) for role in ("needs_reference", "reference"))
    names = [name for name in extensions if needing.get(name) or name in giving]
    why = {
        "the run learns from no file": not config.data.kinds,
        "the objective compares with no reference policy": not _needed_once(config, extensions),
        "the objective compares with the policy that sampled, whose log-probabilities those of the "
        "reference would replace": any(
            objective.needs_behavior(staged.objective) for _, staged in stages.all_of(config)
        ),
        f"extension {names} reads the reference policy on other rows": bool(names),
        f"fork={config.fork!r} has taken over another run's reference": bool(config.fork),
    }
    for reason, wrong in why.items():
        if wrong:
            raise ValueError(f"data.cache_reference=True, but {reason}; set it to False")


class Reference:
    """The reference policy of a run: stored parameters, or what adapters or an extension give.

    It holds an array tree that changes during a run, so it is an object.
    """

    def __init__(
        self,
        directory: Path,
        config: Config,
        model: DecoderConfig,
        extensions: Mapping[str, Extension],
    ) -> None:
        self._directory, self._model, self._extensions = directory, model, extensions
        self._given = provider(extensions, "reference")
        self._stored = stored(config, extensions)
        self._params: Params | None = None

    def reads(self, config: Config) -> bool:
        """Whether a stage reads its parameters; `config` is in force in the stage."""
        return needed(config, self._extensions) and not config.data.cache_reference

    def params(self, ctx: Context, state: TrainState) -> Params:
        """Its parameters."""
        if self._given is not None:
            return self._given(ctx, state)
        return lora.detach(state.params)[1] if self._params is None else self._params

    def _shapes(self, like: TrainState) -> Params:
        return trainable.in_compute_dtype(self._model, like.params)

    def load(self, like: TrainState, step: int) -> None:
        """Read the parameters that hold from `step` on.

        Raises:
          ValueError: they are missing or damaged.
        """
        if not self._stored:
            return
        self._params = references.load(self._directory, self._shapes(like), step)
        if self._params is None:
            raise ValueError(
                f"the objective needs a reference policy, but {self._directory}/references has "
                f"none of step {step} or before; restore it from a copy"
            )

    def renew(self, like: TrainState, state: TrainState, step: int) -> None:
        """Store the current policy and use it from now on."""
        references.save(self._directory, state.params, step)
        self.load(like, step)


@dataclasses.dataclass(frozen=True)
class Scored:
    """Log-probabilities of the answers of all rows of a file."""

    logp: np.ndarray
    """[tokens] float32, of all answers of all rows in order."""
    starts: np.ndarray
    """[rows + 1] int64, where each row's begin."""

    def fill(self, row_groups: list[Group], index: int) -> list[Group]:
        """A row's groups with the log-probabilities of their answers."""
        row_logp = self.logp[self.starts[index] : self.starts[index + 1]]
        sizes = [len(row.completion.tokens) for _, answers in row_groups for row in answers]
        parts = iter(np.split(row_logp, np.cumsum(sizes)[:-1]))

        def filled(row: Row) -> Row:
            return row._replace(completion=dataclasses.replace(row.completion, logp=next(parts)))

        return [(problem, [filled(row) for row in answers]) for problem, answers in row_groups]


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


def write_cache(ctx: Context, state: TrainState, files: Mapping[str, Rows]) -> None:
    """Score the rows of files by a state's parameters, and keep the result.

    Args:
      ctx: of the run.
      state: at step 0, when the policy is the reference.
      files: by a name.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, file_rows in files.items():
        parts, sizes = [np.zeros(0, np.float32)], [0]
        for logp, size in _scored(ctx, state, file_rows):
            parts.append(logp)
            sizes.append(size)
        arrays[f"{name}_logp"] = np.concatenate(parts)
        arrays[f"{name}_starts"] = np.cumsum(sizes)
    _save(ctx.directory, arrays)


def read_cache(directory: Path) -> dict[str, Scored]:
    """What `write_cache` kept in a run directory, by the names of the files.

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
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # mypy: for `allow_pickle`
    storage.write(directory / _FILE, buffer.getvalue())


def _scored(ctx: Context, state: TrainState, file_rows: Rows) -> Iterator[tuple[np.ndarray, int]]:
    """The log-probabilities of each row, and how many there are: 0 of a row that is left out."""
    config, size = ctx.config, ctx.config.data.batch_size
    for first in range(0, len(file_rows), size):
        rows = range(first, min(first + size, len(file_rows)))
        batch_groups = [groups(ctx.policy, config, file_rows, index) for index in rows]
        logp = iter(
            _logp(
                ctx, config, state, [group for row_groups in batch_groups for group in row_groups]
            )
        )
        for row_groups in batch_groups:
            answer_logps = [next(logp) for _, answers in row_groups for _ in answers]
            flat = np.concatenate([np.zeros(0, np.float32), *answer_logps])
            yield flat, len(flat)


def _logp(ctx: Context, config: Config, state: TrainState, groups: list[Group]) -> list[np.ndarray]:
    """Of each answer, the log-probabilities of its tokens; 0 where they are not learned."""
    if not groups:
        return []
    rows = gathered(groups)
    batch = experience.to_trajectory(config)(rows)
    logp = mesh.fetch(ctx.score(state.params, placement.pack(batch, config)[0]))
    spans = ((len(c.request.prompt), len(c.tokens)) for c in rows.completions)
    return [logp[n, start : start + count] for n, (start, count) in enumerate(spans)]
