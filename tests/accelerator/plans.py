"""What `jaxrl plan` predicts of the steps that other parts measure."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from jaxrl import config as configs
from jaxrl.config import Config
from tests.accelerator import grpo, models, tuning
from tests.accelerator.settings import Report, Settings, remaining

_TRAIN = re.compile(r"an update of (\d+) tokens takes ([\d.]+) s at best, bound by (\w+)")
_SAMPLE = re.compile(r"tokens take ([\d.]+) s at best, bound by (\w+)")
_NEEDS = re.compile(r"^([\d.]+) GiB of (\d+) GiB")
_STEP = re.compile(r"train step, compiled\s+([\d.]+) MiB")


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
    compiled = (False,) if settings.rehearse else (False, True)
    for compiling in compiled:
        for name, file in written.items():
            label = f"{name}, compiled" if compiling else name
            if remaining() < 15:
                report.skip(label, "the limit of this part is near")
                continue
            with report.attempt(label):
                report.add(label, plan(file, compiling=compiling))


def plan(file: Path, *, compiling: bool) -> dict[str, Any]:
    """The plan of a config for one H100, by the command itself."""
    flags = [] if compiling else ["--no-compile"]
    command = [sys.executable, "-m", "jaxrl.launch.cli", "plan", str(file), "--topology", "h100-1"]
    start = time.perf_counter()
    run = subprocess.run(
        [*command, *flags], capture_output=True, text=True, timeout=max(5, remaining() - 5)
    )
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
    return found
