"""Runs the parts, each in a process of its own, within a budget of seconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tests import FEWER_FUSIONS
from tests.accelerator import parts, settings
from tests.accelerator.parts import Part
from tests.accelerator.settings import TOTAL

ROOT = Path(__file__).parents[2]
_QUICK = (
    f"--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true {FEWER_FUSIONS}"
)
"""Of a rehearsal, most of which is compiling."""
_SPARE = 4.0
"""Seconds that are kept for the end."""


class Measurement:
    """The state of a measurement: what each part gave so far."""

    def __init__(self, out: Path, work: Path, budget: float, *, rehearse: bool) -> None:
        self.out, self.work, self.rehearse = out, work, rehearse
        self.start = time.time()
        self.end = self.start + budget
        self.budget = budget
        self.parts = self._before()
        self.lock = threading.Lock()
        out.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)

    def _before(self) -> dict[str, dict[str, Any]]:
        """The parts that an earlier call has left in the same folder."""
        path = self.out / TOTAL
        whole = json.loads(path.read_text()) if path.exists() else {}
        return whole.get("parts", {}) if whole.get("rehearsal") == self.rehearse else {}

    def run(self, chosen: Sequence[Part]) -> dict[str, Any]:
        """Run the parts, those of the host beside the others; the whole result."""
        lanes = [[part for part in chosen if part.lane == lane] for lane in ("host", "device")]
        threads = [threading.Thread(target=self._lane, args=(lane,)) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.write()

    def _lane(self, lane: Sequence[Part]) -> None:
        for part in lane:
            left = self.end - time.time() - _SPARE
            if left < part.least:
                value = {"status": "skipped", "why": f"{left:.0f} s of the budget were left"}
            else:
                limit = parts.REHEARSAL * self.budget if self.rehearse else part.limit
                value = self._one(part, min(limit, left))
            with self.lock:
                self.parts[part.name] = value
            self.write()

    def _one(self, part: Part, limit: float) -> dict[str, Any]:
        """Run a part; its report, with how it ended."""
        print(f"== {part.name}, at most {limit:.0f} s", flush=True)
        start = time.time()
        file, log = self.out / f"{part.name}.json", self.out / f"{part.name}.log"
        file.unlink(missing_ok=True)
        flags = ["--rehearse"] if self.rehearse else []
        with log.open("w") as stream:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "tests.accelerator.part", part.name, part.where,
                    "--out", str(self.out), "--work", str(self.work), *flags,
                ],
                cwd=ROOT, env=self.environment(part, start + limit),
                stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(limit)
                status = "done" if code == 0 else "failed"
            except subprocess.TimeoutExpired:
                code, status = None, "stopped at its limit"
            finally:
                _end(process)
        report = json.loads(file.read_text()) if file.exists() else {}
        value = {"status": status, "seconds": round(time.time() - start, 1), "limit": limit}
        value |= {"exit": code} | report
        if status != "done":
            value["log"] = log.read_text(errors="replace")[-3000:]
        file.write_text(json.dumps(value, indent=1) + "\n")
        print(f"== {part.name}: {status} in {value['seconds']} s", flush=True)
        for name, why in report.get("failures", {}).items():
            print(f"   {name}: {why[:300]}", flush=True)
        return value

    def environment(self, part: Part, end: float) -> dict[str, str]:
        """Variables of a part's process."""
        host = self.rehearse or part.lane == "host"
        search = [str(_metadata(self.work)), str(ROOT), os.environ.get("PYTHONPATH", "")]
        variables = {
            settings.END: str(end),
            "PYTHONPATH": os.pathsep.join(filter(None, search)),
            "PYTHONUNBUFFERED": "1",
            "JAX_COMPILATION_CACHE_DIR": str(self.work / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92",
            "XLA_PYTHON_CLIENT_PREALLOCATE": str(not part.shares).lower(),
            "TF_CPP_MIN_LOG_LEVEL": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if host:
            variables |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        if self.rehearse:
            variables["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_QUICK}"
            # parts share their small programs, which compile too quickly to be kept otherwise
            variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        return os.environ | variables

    def write(self) -> dict[str, Any]:
        """The file of all parts as of now."""
        with self.lock:
            whole = {
                "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.start)),
                "rehearsal": self.rehearse,
                "budget": self.budget,
                "seconds": round(time.time() - self.start, 1),
                "revision": _revision(),
                "parts": dict(sorted(self.parts.items(), key=_place)),
            }
            (self.out / TOTAL).write_text(json.dumps(whole, indent=1) + "\n")
        return whole


def _place(named: tuple[str, dict[str, Any]]) -> int:
    """Where a part stands among `parts.PARTS`."""
    return next((i for i, part in enumerate(parts.PARTS) if part.name == named[0]), 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End whatever is left of a part's processes, which are a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _metadata(work: Path) -> Path:
    """A folder for the search path that names jaxrl's version, where jaxrl is not installed.

    A copy of the source tree has none, and a run writes it into its summary.
    """
    folder = work / "metadata"
    try:
        metadata.version("jaxrl")
    except metadata.PackageNotFoundError:
        record = folder / "jaxrl-0.dist-info"
        record.mkdir(parents=True, exist_ok=True)
        (record / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxrl\nVersion: 0\n")
    return folder


def _revision() -> str:
    """The commit of the source tree; empty in a copy without history."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip()
