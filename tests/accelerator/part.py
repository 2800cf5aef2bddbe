"""One part, in a process of its own: `python -m tests.accelerator.part NAME WHERE`."""

from __future__ import annotations

import argparse
import faulthandler
import importlib
from pathlib import Path

from tests.accelerator import settings


def main() -> None:
    """Run the part; its report is in OUT/NAME.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("where", help="module:function")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    if (left := settings.remaining()) < float("inf"):
        faulthandler.dump_traceback_later(max(1.0, left - 3), exit=False)
    report = settings.Report(arguments.out / f"{arguments.name}.json")
    report.write()
    module, function = arguments.where.split(":")
    measure = getattr(importlib.import_module(module), function)
    with report.attempt(arguments.name):
        measure(settings.Settings(arguments.rehearse, arguments.work, arguments.out), report)
    report.write()
    raise SystemExit(bool(report.failures))


if __name__ == "__main__":
    main()
