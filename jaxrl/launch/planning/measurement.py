"""A measurement of `python -m tests.accelerator`: a card's rates, and plans against its steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.launch.planning import chips
from jaxrl.launch.planning.chips import CHIPS, Chip, Curve, Figure, Source, name_of
from jaxrl.launch.planning.roofline import Demand

AIMS = {"GiB": 0.10, "s": 0.25}
"""Greatest error of a plan that is aimed at, by the unit."""


class Measurement(NamedTuple):
    """What a file holds that a plan can use."""

    device: str
    """As JAX calls it."""
    day: str
    """YYYY-MM-DD."""
    chip: Chip
    """That of the table, with the rates that were measured."""
    name: str
    """Of the chip in the table."""
    comparisons: tuple[Comparison, ...]


class Comparison(NamedTuple):
    """One prediction against what was measured."""

    step: str
    """Which step, such as `grpo-0.6b-full`."""
    quantity: str
    unit: str
    predicted: float
    actual: float

    @property
    def error(self) -> float:
        """Relative to what was measured; below 0 where the prediction is too small."""
        return self.predicted / self.actual - 1

    def __str__(self) -> str:
        aim = "" if abs(self.error) <= AIMS[self.unit] else f" (aim: {AIMS[self.unit]:.0%})"
        return (
            f"{self.step}, {self.quantity}: planned {self.predicted:.3g} {self.unit}, measured "
            f"{self.actual:.3g} {self.unit}, error {self.error:+.0%}{aim}"
        )


def read(path: Path) -> Measurement:
    """The measurement of a file `accelerator.json`.

    Raises:
      ValueError: it is none, is a rehearsal, or is of a device that the table lacks; the message
        says what to do.
    """
    try:
        document = json.loads(path.read_text())
        parts = document["parts"]
        device, day = parts["device"]["results"]["device"]["kind"], document["started"][:10]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--measurement {path} holds no measured device ({type(error).__name__}: {error}); "
            "give the accelerator.json of `python -m tests.accelerator`"
        ) from error
    if document.get("rehearsal"):
        raise ValueError(
            f"--measurement {path} is a rehearsal, whose figures mean nothing; measure without "
            "--rehearse"
        )
    if (name := name_of(device)) is None:
        raise ValueError(
            f"--measurement {path} is of {device!r}, which is none of the chips "
            f"{', '.join(CHIPS)}; add it to jaxrl/launch/planning/chips.py"
        )
    source = Source("measured", f"{day} on {device}, {path.name}")
    chip = with_rates(CHIPS[name], parts["device"]["results"], source)
    return Measurement(device, day, chip, name, tuple(compare(parts)))


def of_topology(file: str, topology: str, name: str) -> Measurement | None:
    """The measurement that a plan for a topology is held against; None where no file is named.

    Args:
      file: path of it, or empty.
      topology: as the plan names it.
      name: its chip, a key of `CHIPS`.

    Raises:
      ValueError: it is of another chip, or cannot be read.
    """
    if not file:
        return None
    measurement = read(Path(file))
    if measurement.name != name:
        raise ValueError(
            f"--measurement {file} is of {measurement.device}, and --topology {topology} names "
            f"{name}; plan for {measurement.name}"
        )
    return measurement


def lines(measurement: Measurement, update: Demand, sampling: Demand | None) -> Iterator[str]:
    """The times of a plan at measured rates, and the errors of plans against measured steps."""
    yield "at the rates of a measurement:"
    yield from (f"  {line}" for line in chips.describe(measurement.name, measurement.chip))
    for what, costs in {"the update takes": update, "sampling takes": sampling}.items():
        if costs is not None:
            spent, bound = costs.seconds_on(measurement.chip)
            yield f"  {what} {spent:.3g} s, bound by {bound}"
    if measurement.comparisons:
        yield f"plans of steps that were measured on {measurement.device}, {measurement.day}:"
    yield from (f"  {comparison}" for comparison in measurement.comparisons)


def with_rates(chip: Chip, results: Mapping[str, Any], source: Source) -> Chip:
    """A chip with what the part `device` measured; the rest stays as it was."""
    peak = chip.flops.value
    if copied := results.get("copy_bytes"):
        chip = chip._replace(bandwidth=Figure(max(copied.values()), source))
    rates = {int(rows): rate for rows, rate in results.get("matmul_flops_by_rows", {}).items()}
    if not rates and (square := results.get("matmul_flops", {}).get("bf16")):
        rates = {1: square}
    if rates:
        points = tuple((float(rows), rate / peak) for rows, rate in sorted(rates.items()))
        chip = chip._replace(efficiency=Curve(points, source))
    return chip


def compare(parts: Mapping[str, Any]) -> list[Comparison]:
    """Predictions of the part `plan` against the steps that other parts measured.

    A plan that was compiled takes the place of one that was not, and times at the card's own rates
    that of times at the stated ones. What was not measured is left out.
    """
    plans = parts.get("plan", {}).get("results", {})
    comparisons = []
    for step, plan in plans.items():
        if step.endswith(_COMPILED) or not isinstance(plan, Mapping):
            continue
        plan = plan | plans.get(step + _COMPILED, {})
        actual = _actual(parts, step)
        for quantity, unit, keys, value in (
            ("update", "s", ("update_seconds_calibrated", "update_seconds"), actual["update"]),
            ("sampling", "s", ("sample_seconds_calibrated", "sample_seconds"), actual["sample"]),
            ("memory", "GiB", ("gib",), actual["gib"]),
        ):
            predicted = next((plan[key] for key in keys if key in plan), None)
            if predicted is not None and value:
                comparisons.append(Comparison(step, quantity, unit, predicted, value))
    return comparisons


_COMPILED = ", compiled"


def _actual(parts: Mapping[str, Any], step: str) -> dict[str, float | None]:
    """Seconds of the update and of sampling, and GiB; of a step without sampling, its seconds."""
    part, _, key = step.partition(" ")
    results = parts.get(part, {}).get("results", {})
    step_results = results.get(key, {}) if key else results.get("measured", {})
    peak = step_results.get("peak_device_bytes")
    return {
        "update": step_results.get("train_seconds") or step_results.get("step_seconds"),
        "sample": step_results.get("sample_seconds"),
        "gib": peak / 2**30 if peak else None,
    }
