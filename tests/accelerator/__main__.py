"""Everything on an accelerator, within a budget.

    python -m tests.accelerator                          # measures, in at most 540 s
    python -m tests.accelerator --rehearse --out DIR     # all parts on the CPU, small shapes
    python -m tests.accelerator --table FILE.json        # Markdown of a measurement

Parts run in order of value, each in a process of its own; each writes OUT/PART.json, and all are in
OUT/accelerator.json. A part that fails or takes too long does not stop the others.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from tests.accelerator import parts, table
from tests.accelerator.runner import Measurement


def main() -> int:
    """Measure, or print the table of a measurement."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.accelerator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rehearse", action="store_true", help="small shapes, on the CPU")
    parser.add_argument("--out", type=Path, default=Path("runs/accelerator"), help="JSON and logs")
    parser.add_argument("--work", type=Path, help="models, runs, caches (default: temporary)")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds in all")
    parser.add_argument("--parts", nargs="*", default=[], help="only these parts")
    parser.add_argument("--table", type=Path, help="print the table of this file")
    arguments = parser.parse_args()
    if arguments.table:
        print(table.render(json.loads(arguments.table.read_text())))
        return 0
    try:
        chosen = parts.named(arguments.parts)
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        work = (arguments.work or Path(scratch)).resolve()
        measurement = Measurement(
            arguments.out.resolve(), work, arguments.budget, rehearse=arguments.rehearse
        )
        whole = measurement.run(chosen)
    print(table.render(whole))
    failed = [name for name, part in whole["parts"].items() if part["status"] == "failed"]
    return int(arguments.rehearse and bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
