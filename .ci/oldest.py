"""Prints pip's constraints for the oldest version that pyproject.toml allows of each requirement.

python3 .ci/oldest.py [PYPROJECT] > constraints.txt
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def constraints(requirements: list[str]) -> list[str]:
    """`name==version` of each requirement, of the version after its `>=`.

    Raises:
      ValueError: a requirement without a lower bound.
    """
    lines = []
    for requirement in requirements:
        match = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)", requirement)
        if not match:
            raise ValueError(f"dependencies, {requirement!r}: no oldest version (NAME>=VERSION)")
        lines.append("==".join(match.groups()))
    return lines


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "pyproject.toml")
    print(*constraints(tomllib.loads(path.read_text())["project"]["dependencies"]), sep="\n")
