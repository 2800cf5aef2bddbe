"""The reference policy, which divergences are measured to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jaxrl.config import Config, stages
from jaxrl.models import lora
from jaxrl.models.config import DecoderConfig
from jaxrl.record import references
from jaxrl.run.extension import Context, Extension, only
from jaxrl.training import objective, trainable
from jaxrl.types import Params, TrainState


def needed(config: Config, extensions: Mapping[str, Extension]) -> bool:
    """Whether a stage, of a config without its stages, compares with a reference policy."""
    asked = any(extension.needs_reference for extension in extensions.values())
    return asked or objective.needs_reference(config.objective)


def _needed_once(config: Config, extensions: Mapping[str, Extension]) -> bool:
    """Whether any stage of the run compares with a reference policy."""
    return any(needed(staged, extensions) for _, staged in stages.all_of(config))


def stored(config: Config, extensions: Mapping[str, Extension]) -> bool:
    """Whether the run stores a copy of the policy as it was.

    With adapters the reference is the base without them, and an extension may give another. Where
    its log-probabilities are cached, no parameters are needed.
    """
    given = only(extensions, "reference") is not None
    kept = config.lora.rank or config.data.cache_reference
    return _needed_once(config, extensions) and not kept and not given


def check(config: Config, extensions: Mapping[str, Extension]) -> None:
    """Refuse to renew a reference policy that is not stored, or to cache what is not fixed.

    Raises:
      ValueError: naming the extension or the field.
    """
    if config.data.cache_reference:
        _check_cached(config, extensions)
    renewing = [name for name, extension in extensions.items() if extension.renews_reference]
    if renewing and not stored(config, extensions):
        raise ValueError(
            f"extension {renewing[0]!r} replaces the stored reference policy, but this run stores "
            "none: adapters keep theirs, a moving average follows by itself, and without a KL term "
            "there is none; remove the extension"
        )


def _check_cached(config: Config, extensions: Mapping[str, Extension]) -> None:
    own = [n for n, e in extensions.items() if e.needs_reference or e.reference is not None]
    why = {
        "the run learns from no file": not config.data.kinds,
        "the objective compares with no reference policy": not _needed_once(config, extensions),
        "the objective compares with the policy that sampled, whose log-probabilities those of the "
        "reference would replace": any(
            objective.needs_behavior(staged.objective) for _, staged in stages.all_of(config)
        ),
        f"extension {own} reads the reference policy on other rows": bool(own),
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
        self._given = only(extensions, "reference")
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
        return trainable.held(self._model, like.params)

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
