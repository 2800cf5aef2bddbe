"""Kill a run at random moments for as long as you like, and compare it with one left alone.

`python -m tests.soak --minutes 60 --devices 8` kills the tiny run of `tests.jaxrl.tiny` with
SIGKILL after random times, now and then with SIGTERM, continues it to its end, compares every byte,
and begins again with another seed. It exits with 1 at the first difference, whose runs it keeps.
"""

import argparse
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.jaxrl import tiny


def trial(directory: Path, seed: int, devices: int) -> dict[str, int]:
    """One run straight and one that is killed until it ends; how often it was killed, and where."""
    chance = random.Random(seed)
    changes = {
        "seed": seed,
        "steps": chance.randint(4, 10),
        "updates_per_batch": chance.choice([1, 2]),
        "objective.kl_coef": chance.choice([0.0, 0.05]),
    }
    start = time.monotonic()
    tiny.finish(tiny.start(directory / "straight", devices=devices, **changes))
    seconds = time.monotonic() - start
    count = {"SIGKILL": 0, "SIGTERM": 0, "amid a save": 0}
    while True:
        every = chance.choice([1, 1, 2, 5])
        process = tiny.start(
            directory / "killed", devices=devices, **changes, **{"checkpoint.every": every}
        )
        try:
            process.communicate(timeout=seconds * chance.uniform(0.2, 1.0))
        except subprocess.TimeoutExpired:
            number = chance.choice([signal.SIGKILL] * 4 + [signal.SIGTERM])
            process.send_signal(number)
            process.communicate()
            count[number.name] += process.returncode in (-number, 75)
            saves = (directory / "killed" / "checkpoints").glob("*")
            count["amid a save"] += any(not (s / "manifest.json").exists() for s in saves)
            continue
        assert process.returncode == 0, process.returncode
        break
    left, right = (tiny.artefacts(directory / name) for name in ("straight", "killed"))
    differs = [name for name in left if left[name] != right[name]]
    if differs:
        raise SystemExit(f"seed {seed}: {differs} differ; see {directory}")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    end, seed, total = time.monotonic() + 60 * given.minutes, given.seed, {}
    while time.monotonic() < end:
        directory = Path(tempfile.mkdtemp(prefix="soak-"))
        for name, value in trial(directory, seed, given.devices).items():
            total[name] = total.get(name, 0) + value
        shutil.rmtree(directory)
        seed += 1
        print(f"{seed - given.seed} runs equal to the last byte; {total}", flush=True)


if __name__ == "__main__":
    main()
