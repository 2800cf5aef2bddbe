"""Benchmarks whose output stands on `docs/performance.md`, and that page's tables.

    python -m experiments speed WORK [NAME ...]   # run them (all: about an hour); write the page
    python -m experiments speed                   # write the page from the stored output

`experiments/results/speed.json` keeps what each benchmark printed, with its command, day, commit
and machine. The environments of other libraries are made in WORK at the first run.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments.lab import views

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results" / "speed.json"
PAGE = ROOT / "docs" / "performance.md"
BENCHMARKS = {
    "sampler-small": (
        "sampler --model small --requests 192 --repeats 5 --seconds 15 --venvs WORK/venvs"
    ),
    "sampler-smollm2": (
        "sampler --model smollm2-135m --requests 48 --median 8 --repeats 3 --seconds 15 "
        "--systems ours static transformers transformers-continuous"
    ),
    "step": "step measure --rows equal small --steps 3 --work WORK/step",
    "step-tail": "step measure --rows tail --systems jaxrl trl --steps 1 --work WORK/tail",
    "fine-tuning": "fine_tuning measure --systems jaxrl tunix trl --steps 2 --work WORK/tuning",
    "drafts": (
        "sampler --model small --requests 64 --repeats 5 --seconds 15 --drafts 4 --temperature 0.2 "
        "--systems ours drafts"
    ),
    "prefixes": (
        "sampler --model small --workloads agents --requests 16 --repeats 5 "
        "--systems ours prefix warm"
    ),
    "adapters": "adapters --repeats 3 --length 32",
    "served-adapters": "adapters --served --length 32 --rows 2 --train-length 128",
    "served-adapters-smollm2": (
        "adapters --served --model smollm2-135m --length 16 --rows 1 --train-length 128"
    ),
    "served-updates": "served_updates",
    "paged": "paged",
    "host-gap": "host_gap",
    "scoring": "scoring --workers 1 2",
    "overlap": "overlap WORK/overlap",
}
"""Name -> the module of `tests.benchmarks` and its arguments; WORK stands for the folder."""


def measure(name: str, work: Path) -> dict[str, Any]:
    """Run a benchmark; returns what it printed and the circumstances.

    Raises `subprocess.CalledProcessError` if it fails.
    """
    command = f"python -m tests.benchmarks.{BENCHMARKS[name]}"
    words = command.replace("WORK", str(work)).split()[1:]
    start = datetime.datetime.now(datetime.UTC)
    load = os.getloadavg()[0]
    output = subprocess.run(
        [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return {
        "command": command,
        "day": start.date().isoformat(),
        "minutes": round((datetime.datetime.now(datetime.UTC) - start).total_seconds() / 60, 1),
        "commit": commit,
        "version": metadata.version("jaxrl"),
        "machine": f"{os.cpu_count()} cores, {views.machine()}",
        "load_before": round(load, 2),
        "output": output.splitlines(),
    }


def block(result: dict[str, Any]) -> str:
    """The Markdown of one benchmark: its command, its circumstances, its tables or its lines."""
    lines = [line.rstrip() for line in result["output"]]
    table = [line for line in lines if line.startswith("|")]
    body = "\n".join(table) if table else "```\n" + "\n".join(lines) + "\n```"
    notes = [f"{result['day']}, {result['version']} at {result['commit']}, {result['machine']}"]
    if result["minutes"] is not None:
        notes.append(f"{result['minutes']} minutes")
    if result["load_before"] is None:
        notes.append("the cores had other work")
    else:
        notes.append(f"the load of the minute before was {result['load_before']}")
    return f"    {result['command']}\n\n{body}\n\n{'; '.join(notes)}.\n"


def page(text: str, results: dict[str, dict[str, Any]]) -> str:
    """The page with every block between `<!-- speed: NAME -->` and `<!-- end -->` written anew."""

    def replace(match: re.Match[str]) -> str:
        return f"{match[1]}\n{block(results[match[2]])}{match[3]}"

    return re.sub(r"(<!-- speed: ([\w-]+) -->).*?(<!-- end -->)", replace, text, flags=re.DOTALL)


def main(argv: list[str]) -> int:
    """`python -m experiments speed`."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    names = argv[1:] or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        print(f"no such benchmark: {unknown[0]}; there are {', '.join(BENCHMARKS)}")
        return 2
    for name in names if argv else ():
        print(name, flush=True)
        results[name] = measure(name, Path(argv[0]).resolve())
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(), results))
    print(f"{PAGE.relative_to(ROOT)} is written")
    return 0
