"""Names of functions as plans and results have them, whatever module holds the functions today.

A plan names functions by `module:function`, and its digest is of these names. A function that moves
keeps the name that it had when the first plan was written.
"""

from __future__ import annotations

import re

PACKAGES = {
    "experiments.claims.": "jaxrl.launch.recipes.",
    "experiments.lab.": "jaxrl.launch.lab.",
}
"""Package today -> package in plans; the modules in them have the same names."""
MODULES: dict[str, str] = {}
"""Module today -> module in plans, where the two differ in another way."""

_REFERENCE = re.compile(r"((?:jaxrl|experiments)(?:\.\w+)+):(\w+)")


def recorded(reference: str) -> str:
    """The name in plans of `module:function`; any other text as it is."""
    match = _REFERENCE.fullmatch(reference)
    if not match:
        return reference
    module, function = match.groups()
    if module in MODULES:
        return f"{MODULES[module]}:{function}"
    for package, planned in PACKAGES.items():
        if module.startswith(package):
            return f"{planned}{module.removeprefix(package)}:{function}"
    return reference
