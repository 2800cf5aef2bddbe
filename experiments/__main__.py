"""`python -m experiments COMMAND`: the commands of the laboratory, from a clone of the repository.

effects    what methods do, by the protocol of `experiments/lab/PROTOCOL.md`
pack       the figures of arms that were run, into one compressed file
numbers    the page of how each number was measured
speed      benchmarks and the page of their results
control    learning curves of offline RL and control over seeds, their table and figures
own_data   sixteen methods on a real model and a file of the user's
"""

from __future__ import annotations

import importlib
import sys

from jaxrl.launch import cli

COMMANDS = {
    "effects": "experiments.effects.command",
    "pack": "experiments.lab.archive",
    "numbers": "experiments.numbers",
    "speed": "experiments.speed",
    "control": "experiments.bench",
    "own_data": "experiments.own_data",
}
"""Command -> the module whose `main(argv)` it is."""


def main(argv: list[str]) -> int:
    """Run a command; returns the exit status."""
    if not argv or argv[0] not in COMMANDS:
        print(__doc__)
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    cli.keep_compilations()
    cli.few_arenas()
    return importlib.import_module(COMMANDS[argv[0]]).main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
