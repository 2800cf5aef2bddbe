"""The command `jaxrl`: each subcommand is a module of `launch` with `main(argv) -> int`."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from pathlib import Path

from jaxrl.functions import nearest

COMMANDS = {
    "train": ("launch.train", "run a recipe, or continue it in its directory"),
    "eval": ("launch.evaluate", "pass@1, pass@k and majority vote of a run or model on a task"),
    "sample": ("launch.sample", "completions of a prompt by a run or model"),
    "serve": ("launch.serve", "an OpenAI-compatible endpoint of a run or model"),
    "watch": ("launch.watch", "follow a run from another terminal"),
    "report": ("launch.report", "one or more runs as a self-contained HTML page"),
    "replay": ("launch.replay", "compute a step of a run again, exactly"),
    "control": ("launch.control_run", "train an algorithm of control over seeds, or continue it"),
    "bench": ("launch.bench", "learning curves of control over seeds, as a table with figures"),
    "recipes": ("launch.tables:recipes", "what there is to run"),
    "effects": ("launch.effects", "what each method does to its own ablation, measured anew"),
    "show": ("launch.tables:show", "the full config of a recipe"),
    "tasks": ("launch.tables:tasks", "the bundled tasks"),
    "losses": ("launch.tables:losses", "the objective library"),
    "plan": ("launch.plan", "what a recipe would take on a mesh that is not here"),
    "doctor": ("launch.doctor", "devices, versions and optional parts of this installation"),
}
"""Name to (module or module:function, what it does)."""


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; the exit status is 0, 1 for a failure or 2 for a request that cannot be."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    name, rest = argv[0], argv[1:]
    if name not in COMMANDS:
        print(f"jaxrl: no command {name!r}; {nearest(name, list(COMMANDS))}", file=sys.stderr)
        return 2
    sys.path.insert(0, os.getcwd())  # functions and tasks of your own are named module:name
    module, _, function = COMMANDS[name][0].partition(":")
    keep_compilations()
    few_arenas()
    return getattr(importlib.import_module(module), function or "main")(rest)


def usage() -> str:
    """What `jaxrl` alone prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join(
        ["usage: jaxrl COMMAND ...", "", *lines, "", "jaxrl COMMAND --help says more."]
    )


def keep_compilations() -> None:
    """Keep compiled programs on disk between runs, under JAX_COMPILATION_CACHE_DIR if it is set."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "jaxrl" / "xla"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")


def few_arenas() -> None:
    """Have glibc serve all threads from two pools of memory, where its default is eight a core.

    Each pool keeps what compiling once needed: of a small model's run, a tenth of its peak.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(-8, 2)  # M_ARENA_MAX


def refused(error: Exception) -> int:
    """Say why a request cannot be served; the exit status for it."""
    print(f"jaxrl: {error}", file=sys.stderr)
    return 2


REFUSALS = (ValueError, FileNotFoundError, ModuleNotFoundError, BlockingIOError)
"""What the parts raise for a bad request, with a message that names the remedy."""


if __name__ == "__main__":
    sys.exit(main())
