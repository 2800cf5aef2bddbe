"""Prints the peak of anonymous memory, in bytes, that loading a model adds to a process.

    python -m tests.models.peak_memory DIRECTORY [int8|nf4]

Pages of the files themselves, which the system drops when it needs the room, do not count.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import jax

from jaxrl.models import load


def anonymous() -> int:
    """Anonymous memory of this process, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def main(directory: str, kind: str | None = None) -> None:
    """Load, watched every millisecond."""
    jax.block_until_ready(jax.numpy.zeros(1) + 1)  # the backend is there
    done, seen = threading.Event(), [anonymous()]

    def watch() -> None:
        while not done.wait(0.001):
            seen.append(anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    jax.block_until_ready(load.load(directory, quantized=kind)[1])
    done.set()
    watcher.join()
    print(max(seen) - seen[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
