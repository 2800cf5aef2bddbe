"""What computing with a model of recurrent layers cannot have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jaxrl.config import Config, stages
from jaxrl.mesh import mesh
from jaxrl.models.config import DecoderConfig


def check(config: Config, model: DecoderConfig) -> None:
    """Refuse settings that recurrent layers do not work with.

    Raises:
      ValueError: naming the field, its value and the remedy.
    """
    if not model.recurrent:
        return
    for done, staged in stages.all_of(config):
        with stages.of_stage(config, done):
            _refuse(model.family, _unreadable(staged))


def check_reader(config: Config, model: DecoderConfig, name: str) -> None:
    """Refuse settings under which a model that reads a run's rows, and is not trained, cannot.

    Args:
      config: of the run.
      model: the reader.
      name: of it.

    Raises:
      ValueError: naming the field, its value and the remedy.
    """
    if model.recurrent:
        _refuse(repr(name), _unreadable(config))


def _refuse(name: str, settings: Iterable[tuple[str, str]]) -> None:
    """Refuse the first of the settings that a model of this name does not work with."""
    for setting, why in settings:
        raise ValueError(f"{setting}: {name} has recurrent layers, {why}")


def _unreadable(config: Config) -> Iterator[tuple[str, str]]:
    """What the rows of a run may not have, and why, with the remedy."""
    for axis in mesh.axes_of("sequence", tuple(config.mesh.rules.items())):
        if (size := getattr(config.mesh, axis)) > 1:
            yield (
                f"mesh.{axis}={size}",
                "which go along whole rows, and this axis cuts them; set it to 1, and fsdp, data "
                "or tensor to more",
            )
