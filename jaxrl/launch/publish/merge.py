"""`jaxrl merge A B ... --method METHOD [--base BASE] --out DIR`: several models merged into one."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal

from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.publish import export
from jaxrl.launch.publish.export import ExportConfig, Source
from jaxrl.launch.settings import flags
from jaxrl.models import merge
from jaxrl.models.lora import LoraConfig


@dataclasses.dataclass(frozen=True)
class MergeConfig:
    """How models are merged, and where the result goes."""

    method: Literal["mean", "task-arithmetic", "ties", "dare", "slerp", "ram"] = "mean"
    """`mean` averages weights, `slerp` two models along a great circle; the others add what each
    model changed of `base`."""
    base: str = ""
    """Run or model that the models were trained from; empty: the model that the first run names."""
    out: str = ""
    """Directory to write, in the format of Hugging Face; it must not exist, or be empty."""
    weights: tuple[float, ...] = ()
    """Of each model; empty: equal."""
    scale: float = 1.0
    """Factor on what is added to the base; of `ram`, the greatest on what one model alone has
    changed, 1 or more."""
    density: float = 0.2
    """Of `ties` and `dare`: share of the changes that is kept."""
    share: float = 0.5
    """Of `slerp`: place between the first model, 0, and the second, 1."""
    threshold: float = 1e-5
    """Of `ram`: change above which an entry counts as changed."""
    seed: int = 0
    """Of what `dare` draws."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the matrices in the files."""
    trust: bool = False
    """Accept functions of other packages that a run's config names; they are executed."""


def main(argv: list[str]) -> int:
    """Merge models and write the result."""
    names, rest = flags.leading(argv)
    try:
        if not names and not {"-h", "--help"} & set(rest):
            raise ValueError("name runs or models: jaxrl merge A B ... --out DIR")
        settings = flags.parse(MergeConfig(), rest, prog="jaxrl merge A B ...")
        directory = merged(names, settings)
    except REFUSALS as error:
        return refused(error)
    print(f"wrote {directory}: {', '.join(sorted(p.name for p in directory.iterdir()))}")
    return 0


def merged(names: list[str], settings: MergeConfig) -> Path:
    """Merge runs or models into `settings.out`; the directory.

    Raises:
      FileNotFoundError: no such run or model.
      ValueError: too few models, models of different shapes, or no base.
    """
    to = ExportConfig(out=settings.out, dtype=settings.dtype)
    export.check_target(settings.out)
    least = 2 if settings.method in ("mean", "slerp") else 1
    if len(names) < least or (settings.method == "slerp" and len(names) > 2):
        raise ValueError(
            f"method={settings.method!r} takes {'two' if least == 2 else 'one'} or more models"
            f"{', and slerp no more than two' if settings.method == 'slerp' else ''}; "
            f"{len(names)} are named"
        )
    sources = [export.open_source(name, None, trust=settings.trust) for name in names]
    first = sources[0]
    for name, source in zip(names, sources, strict=True):
        _check_shape(names[0], first, name, source)
    source_params = [export.merged(source) for source in sources]
    base = None
    if settings.method not in ("mean", "slerp"):
        base_name = settings.base or (first.config.model if first.config else "")
        if base_name in ("", "fresh"):
            raise ValueError(
                f"method={settings.method!r} needs what the models were trained from: --base MODEL"
            )
        opened = export.open_source(base_name, None, trust=settings.trust)
        _check_shape(names[0], first, base_name, opened)
        base = export.merged(opened)
    merged_params = _method(settings, base)(source_params)
    merged_source = first._replace(
        name=" + ".join(names),
        config=None,
        step=None,
        params=merged_params,
        adapters=LoraConfig(rank=0),
    )
    return export.write(merged_source, to)


def _method(settings: MergeConfig, base: Any) -> Any:
    """The function of the models that the settings ask for."""
    weights, scale = settings.weights, settings.scale
    sparse = {"weights": weights, "density": settings.density, "scale": scale}
    match settings.method:
        case "mean":
            return functools.partial(merge.mean, weights=weights)
        case "slerp":
            return lambda models: merge.slerp(*models, share=settings.share)
        case "task-arithmetic":
            return functools.partial(merge.task_arithmetic, base, weights=weights, scale=scale)
        case "ties":
            return functools.partial(merge.ties, base, **sparse)
        case "dare":
            return functools.partial(merge.dare, base, **sparse, seed=settings.seed)
        case "ram":
            return functools.partial(merge.ram, base, threshold=settings.threshold, scale=scale)


def _check_shape(first: str, first_source: Source, name: str, other_source: Source) -> None:
    """Refuse a model of another shape, or with other tokens."""
    plain = {"dtype": "float32", "max_positions": 0, "attention": "auto", "rules": ()}
    shapes = [dataclasses.replace(source.model, **plain) for source in (first_source, other_source)]
    differ = [
        f"{field.name} {getattr(shapes[1], field.name)}, not {getattr(shapes[0], field.name)}"
        for field in dataclasses.fields(shapes[0])
        if getattr(shapes[0], field.name) != getattr(shapes[1], field.name)
    ]
    if differ:
        raise ValueError(f"{name!r} has another shape than {first!r}: {'; '.join(differ)}")
