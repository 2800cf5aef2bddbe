"""What `jaxrl plan` predicts of the steps that other parts measure."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl import config as configs
from jaxrl.config import Config
from jaxrl.launch.planning import measurement
from tests.accelerator import grpo, models, tuning
from tests.accelerator.settings import TOTAL, Report, Settings, remaining

_TRAIN = re.compile(r"an update of (\d+) tokens takes ([\d.]+) s at best, bound by (\w+)")
_SAMPLE = re.compile(r"tokens take ([\d.]+) s at best, bound by (\w+)")
_NEEDS = re.compile(r"^([\d.]+) GiB of (\d+) GiB")
_STEP = re.compile(r"train step, compiled\s+([\d.]+) MiB")
_CALIBRATED = re.compile(r"^  (?:the )?(update|sampling) takes ([\d.e-]+) s, bound by")
_WAIT = 90.0
"""Seconds that plans wait for the rates of the device, which are measured meanwhile."""
_REHEARSED = ("grpo-0.6b-full", "grpo-1.7b-lora", "tuning dpo")
"""One of each kind: all have the same small shape in a rehearsal."""
_ELSE = "h100"
"""The chip that is planned for where the device is none of the table."""


def planned(settings: Settings) -> dict[str, Config]:
    """The configs of measured steps, by the part and what it measures."""
    found = {}
    for size in ("0.6b", "1.7b"):
        folder = models.make(
            settings.work, f"qwen3-{size}", rehearse=settings.rehearse, weights=False
        )
        for kind, changes in (("full", {}), ("lora", grpo.LORA)):
            run = settings.work / "plans" / f"{size}-{kind}"
            found[f"grpo-{size}-{kind}"] = grpo.config(str(folder), run, settings, **changes)
    for recipe in ("sft", "dpo"):
        found[f"tuning {recipe}"] = tuning.config(recipe, settings, weights=False)
    return found


def measure(settings: Settings, report: Report) -> None:
    """Plans of all configs without compiling, which are quick; then with, as far as time goes."""
    written = {}
    for name, config in planned(settings).items():
        file = settings.work / "plans" / f"{name.replace(' ', '-')}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(configs.to_dict(config), indent=1))
        written[name] = file
    flags = device_flags(settings, report)
    compiled = (False,) if settings.rehearse else (False, True)
    for compiling in compiled:
        for name, file in written.items():
            label = f"{name}, compiled" if compiling else name
            if settings.rehearse and name not in _REHEARSED:
                report.skip(label, "rehearsal")
                continue
            if remaining() < 15:
                report.skip(label, "the limit of this part is near")
                continue
            with report.attempt(label):
                report.add(label, plan(file, flags, compiling=compiling))


def device_flags(settings: Settings, report: Report) -> list[str]:
    """The flags that name this device's chip, and its rates once they are measured.

    What is kept of the measurement is a copy, as the file of all parts changes meanwhile.
    """
    if settings.rehearse:
        return ["--topology", _ELSE]
    document, limit = _device_part(settings), time.monotonic() + min(_WAIT, remaining() / 2)
    while not document and time.monotonic() < limit:
        time.sleep(0.5)
        document = _device_part(settings)
    file = settings.work / "plans" / "measurement.json"
    file.write_text(json.dumps(document))
    with report.attempt("rates of the device"):
        name = measurement.read(file).name
        report.add("chip", name)
        return ["--topology", name, "--measurement", str(file)]
    return ["--topology", _ELSE]


def _device_part(settings: Settings) -> dict[str, Any]:
    """The measurement as far as the part `device`; empty before that part has ended."""
    try:
        document = json.loads((settings.out / TOTAL).read_text())
        return document | {"parts": {"device": document["parts"]["device"]}}
    except (OSError, ValueError, KeyError):  # it is not there yet, or is being written
        return {}


def plan(file: Path, flags: Sequence[str], *, compiling: bool) -> dict[str, Any]:
    """The plan of a config for one device, by the command itself."""
    command = [sys.executable, "-m", "jaxrl.launch.cli", "plan", str(file), *flags]
    command += [] if compiling else ["--no-compile"]
    start = time.perf_counter()
    run = subprocess.run(command, capture_output=True, text=True, timeout=max(5, remaining() - 5))
    if run.returncode:
        raise RuntimeError(f"{' '.join(command)}: {run.stdout[-500:]} {run.stderr[-1000:]}")
    return read(run.stdout) | {"plan_seconds": time.perf_counter() - start}


def read(text: str) -> dict[str, Any]:
    """The figures of a printed plan."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if match := _TRAIN.search(line):
            found |= {"update_tokens": int(match[1]), "update_seconds": float(match[2])}
            found["update_bound_by"] = match[3]
        elif match := _SAMPLE.search(line):
            found |= {"sample_seconds": float(match[1]), "sample_bound_by": match[2]}
        elif match := _NEEDS.search(line):
            found["gib"] = float(match[1])
        elif match := _STEP.search(line):
            found["step_mib"] = float(match[1])
        elif match := _CALIBRATED.search(line):
            name = {"update": "update", "sampling": "sample"}[match[1]]
            found[f"{name}_seconds_calibrated"] = float(match[2])
    return found
