"""Kill a run at random moments for as long as you like, and compare it with one left alone.

`python -m tests.soak --minutes 60 --devices 8` kills the tiny run of `tests.jaxrl.tiny` with
SIGKILL after random times, now and then with SIGTERM, continues it to its end, compares every byte,
and begins again with another seed and another way to train. `--processes 2` makes it a run of two
processes, of which one is killed. It exits with 1 at the first difference, whose runs it keeps.
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.jaxrl import tiny

WAYS = {
    "grpo": {},
    "critic": {"critic.use": True, "objective.kl_coef": 0.01},
    "replay": {"replay.groups": 2, "replay.size": 3, "updates_per_batch": 2},
    "partial rollouts": {"rollout.in_flight": 1.5},
    "moving reference": {"objective.kl_coef": 0.05, "reference.every": 2},
}


def start(directory: Path, devices: int, processes: int, **changes) -> list[subprocess.Popen]:
    """The processes of a run."""
    if processes == 1:
        return [tiny.start(directory, devices=devices, **changes)]
    return tiny.start_pair(directory, devices=devices // processes, **changes)


def left_alone(run: list[subprocess.Popen], seconds: float | None) -> bool:
    """Wait for so long; whether the run has ended by itself, and well."""
    try:
        for process in run:
            _, error = process.communicate(timeout=seconds)
            if process.returncode:
                raise SystemExit(f"it failed by itself:\n{error[-3000:]}")
    except subprocess.TimeoutExpired:
        return False
    return True


def end(run: list[subprocess.Popen], chance: random.Random) -> str | None:
    """Kill one process, or tell it to stop, and wait for all; by which signal they have ended."""
    number = chance.choice([signal.SIGKILL] * 4 + [signal.SIGTERM])
    victim = chance.choice(run)
    victim.send_signal(number)
    for process in run:
        try:
            process.communicate(timeout=120)
        except subprocess.TimeoutExpired:  # before the two had found each other
            process.kill()
            process.communicate()
    return number.name if victim.returncode in (-number, 75) else None


def stage(directory: Path) -> str:
    """What a run was about when it ended."""
    saves = directory.glob("checkpoints/*")
    if any(not (save / "manifest.json").exists() for save in saves):
        return "amid a save"
    beat = directory / "heartbeat.json"
    return "amid " + (json.loads(beat.read_text())["stage"] if beat.exists() else "the start")


def trial(directory: Path, way: str, seed: int, devices: int, processes: int) -> Counter[str]:
    """One run left alone and one that is killed until it ends; how often it was killed, and where.

    Raises:
      SystemExit: they differ, or one fails by itself.
    """
    chance = random.Random(seed)
    changes = {"seed": seed, "steps": chance.randint(3, 8), **WAYS[way]}
    began = time.monotonic()
    left_alone(start(directory / "straight", devices, processes, **changes), None)
    seconds = time.monotonic() - began
    count: Counter[str] = Counter()
    while True:
        every = chance.choice([1, 1, 2, 5])
        run = start(
            directory / "killed", devices, processes, **changes, **{"checkpoint.every": every}
        )
        if left_alone(run, seconds * chance.uniform(0.2, 1.0)):
            break
        if name := end(run, chance):
            count[name] += 1
            count[stage(directory / "killed")] += name == "SIGKILL"
    left, right = (tiny.artefacts(directory / name) for name in ("straight", "killed"))
    differs = [name for name in left if left[name] != right[name]]
    if differs:
        raise SystemExit(f"{way}, seed {seed}: {differs} differ; see {directory}")
    return count


def main() -> None:
    """Trials until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    end, seed, total = time.monotonic() + 60 * given.minutes, given.seed, Counter()
    while time.monotonic() < end:
        directory = Path(tempfile.mkdtemp(prefix="soak-"))
        way = given.ways[seed % len(given.ways)]
        total += trial(directory, way, seed, given.devices, given.processes)
        total[f"{way}: runs equal to the last byte"] += 1
        shutil.rmtree(directory)
        seed += 1
        print(json.dumps(total), flush=True)


if __name__ == "__main__":
    main()
