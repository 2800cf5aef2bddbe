"""Names of functions as plans and results have them, whatever module holds the functions today.

A plan names functions by `module:function`, and its digest is of these names. A function that moves
keeps the name that it had when the first plan was written.
"""

from __future__ import annotations

import re

from jaxrl.launch import recipes

PACKAGES = {
    r"experiments\.claims": "jaxrl.launch.recipes",
    r"experiments\.lab": "jaxrl.launch.lab",
    r"jaxrl\.data\.selection": "jaxrl.data",
    r"jaxrl\.losses\.\w+": "jaxrl.losses",
    r"jaxrl\.launch\.recipes\.\w+": "jaxrl.launch.recipes",
}
"""Package today, as a pattern -> package in plans."""
MODULES = {
    "jaxrl.data.selection.sampling_rounds": "jaxrl.data.rounds",
    "jaxrl.losses.advantages.groups": "jaxrl.losses.advantages",
    "jaxrl.losses.divergence.kl": "jaxrl.losses.divergence",
    "jaxrl.losses.policy.objectives": "jaxrl.losses.policy",
    "jaxrl.losses.preference.direct": "jaxrl.losses.preference",
}
"""Module today -> module in plans, where the name of the module has changed too."""
NAMES = ("experiments.lab.phases",)
"""Modules whose functions have bare names in plans: they were the library's."""

_IDS = {recipe: id_ for id_, recipe in recipes.IDS.items() if id_.isidentifier()}
"""Recipe -> the name of its module in plans, where it has changed."""
_REFERENCE = re.compile(r"((?:jaxrl|experiments)(?:\.\w+)+):(\w+)")


def recorded(reference: str) -> str:
    """The name in plans of `module:function`; any other text as it is."""
    match = _REFERENCE.fullmatch(reference)
    if not match:
        return reference
    path, function = match.groups()
    if path in NAMES:
        return function
    if path in MODULES:
        return f"{MODULES[path]}:{function}"
    package, _, module = path.rpartition(".")
    for pattern, planned in PACKAGES.items():
        if re.fullmatch(pattern, package):
            name = _IDS.get(module, module) if package.startswith("jaxrl.launch") else module
            return f"{planned}.{name}:{function}"
    return reference
