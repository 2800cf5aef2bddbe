"""A run of `tests.jaxrl.tiny`, after the same run has compiled all programs in the same process.

`python -m tests.benchmarks.warmed RUN_DIR [FIELD=JSON ...]`
"""

import shutil
import sys
import tempfile
from typing import Any

from tests.jaxrl import tiny


def run(directory: Any, devices: int = 1, **changes: Any) -> None:
    """Both runs in a process of their own; the first leaves nothing."""
    tiny.finish(tiny.start(directory, devices=devices, module="tests.benchmarks.warmed", **changes))


def main(arguments: list[str]) -> None:
    """Run twice."""
    before = tempfile.mkdtemp(prefix="warm-")
    tiny.main([before, *arguments[1:]])
    shutil.rmtree(before)
    tiny.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
