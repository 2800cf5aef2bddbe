"""The command `jaxrl`: each subcommand is a module of `launch` with `main(argv) -> int`."""

from __future__ import annotations

import ctypes
import errno
import gc
import importlib
import io
import os
import select
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from jaxrl.data.sandbox import runner
from jaxrl.functions import nearest
from jaxrl.launch import streams
from jaxrl.launch.settings import help_train

COMMANDS = {
    "train": (
        "jaxrl.launch.train",
        "train with a recipe, an algorithm or a config file, or continue a run",
    ),
    "data": (
        "jaxrl.launch.inspect.rows",
        "show what a file of rows holds and what is learned of it",
    ),
    "agreement": (
        "jaxrl.launch.inspect.agreement",
        "how far judges agree with each other or with people: kappa, alpha",
    ),
    "audit": (
        "jaxrl.launch.audit.command",
        "find what is wrong with rollouts that any tool recorded",
    ),
    "eval": (
        "jaxrl.launch.inspect.evaluate",
        "evaluate a run or model on a task: pass@1, pass@k, majority vote",
    ),
    "sample": ("jaxrl.launch.inspect.sample", "sample completions of a prompt from a run or model"),
    "serve": (
        "jaxrl.launch.server.command",
        "serve a run or model with an OpenAI-compatible HTTP API",
    ),
    "export": (
        "jaxrl.launch.publish.export",
        "write a run or model for transformers, PEFT or llama.cpp",
    ),
    "merge": (
        "jaxrl.launch.publish.merge",
        "merge several runs or models into one: mean, task arithmetic, TIES, DARE, SLERP, RAM",
    ),
    "weights": (
        "jaxrl.launch.inspect.weight_changes",
        "compare the weights of two runs or models: sparsity, spectra, angles, by layer",
    ),
    "watch": ("jaxrl.launch.inspect.watch", "show the progress of a run in another terminal"),
    "report": ("jaxrl.launch.report", "write one or more runs as a self-contained HTML page"),
    "replay": (
        "jaxrl.launch.inspect.replay",
        "recompute a step of a run and compare it bit for bit",
    ),
    "control": (
        "jaxrl.launch.control",
        "train an offline RL or control algorithm over several seeds, or continue",
    ),
    "recipes": ("jaxrl.launch.listing.commands:recipes", "list the algorithms and recipes"),
    "show": (
        "jaxrl.launch.listing.commands:show",
        "print the whole config of a recipe as JSON, or with --yaml",
    ),
    "tasks": ("jaxrl.launch.listing.commands:tasks", "list the bundled tasks"),
    "losses": ("jaxrl.launch.listing.commands:losses", "list the loss functions"),
    "extensions": (
        "jaxrl.launch.listing.commands:extensions",
        "list the extensions of the training loop, which --with adds",
    ),
    "plan": (
        "jaxrl.launch.planning.command",
        "estimate memory and step time on TPU or GPU hardware that is not present",
    ),
    "doctor": ("jaxrl.launch.doctor", "check the installation: devices, versions, optional parts"),
}
"""Name to (module or module:function, what it does)."""


_OF_FILES = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP,
    errno.ENOSPC, errno.EDQUOT, errno.EIO,
)  # fmt: skip
"""Failures of a file that a command reads or writes, which a line with its name says all of."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; the exit status is 0, 1 for a failure or 2 for a request that cannot be."""
    streams.open_streams()
    with streams.lasting_errors():
        try:
            try:
                return _main(sys.argv[1:] if argv is None else argv)
            finally:
                sys.stdout.flush()  # else what fails, fails as the process ends
        except BrokenPipeError:
            if not _nobody_reads():
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except KeyboardInterrupt:
            streams.say("jaxrl: interrupted", error=True)
            return INTERRUPTED
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return refused(error)  # a value that is no file's name, wherever it is looked for
            if _output_fails():
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                streams.say(f"jaxrl: the output cannot be written: {error}", error=True)
            elif error.errno in _OF_FILES and error.filename is not None:
                streams.say(f"jaxrl: {error}", error=True)
            else:
                raise
            return 1


def _main(argv: list[str]) -> int:
    """See `main`."""
    if not argv or argv[0] in ("-h", "--help") or argv == ["help"]:
        print(usage())
        return 0
    if argv[0] in ("--version", "-V"):
        print(f"jaxrl {metadata.version('jaxrl')}")
        return 0
    name, rest = argv[0], argv[1:]
    if name == "help":
        name, rest = (rest[0], ["--help"]) if rest[0] in COMMANDS else ("help", rest)
    if name in ("train", "show") and {"-h", "--help"} & set(rest):
        print(help_train.TEXT, end="")
        return 0
    if name in ("train", "show") and "--help-all" in rest:
        name, rest = "help", []
    if name not in COMMANDS and name != "help":
        streams.say(f"jaxrl: no command {name!r}; {_meant(name)}", error=True)
        return 2
    sys.path.insert(0, os.getcwd())  # functions and tasks of your own are named module:name
    where = COMMANDS[name][0] if name in COMMANDS else "jaxrl.launch.listing.commands:group"
    keep_compilations()
    few_arenas()
    sys.unraisablehook = without_late_writes(sys.unraisablehook)
    sys.excepthook, warnings.showwarning = streams.show_traceback, streams.show_warning
    return command(where)(rest)


def _output_fails() -> bool:
    """Whether the standard output takes no line, as on a full disk.

    An empty one is tried: a stream may have dropped what it could not write.
    """
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except io.UnsupportedOperation:  # a stream of Python's own
        return False
    except OSError:
        return True
    return False


def _nobody_reads() -> bool:
    """Whether what reads the standard output has ended, as `head` does."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def command(where: str) -> Callable[[list[str]], int]:
    """The function that `module:name` says, `main` without a name, imported.

    What imports make lives as long as the process. The garbage collector would go through it
    again and again, for a quarter of the time that importing takes, and later again while programs
    are traced; so it rests during the import and leaves what was imported out from then on.
    """
    module, _, function = where.partition(":")
    gc.disable()
    try:
        imported = importlib.import_module(module)
        gc.freeze()
    finally:
        gc.enable()
    return getattr(imported, function or "main")


def _meant(name: str) -> str:
    """A hint for what is no command."""
    from jaxrl.launch import algorithms, recipes  # some seconds, which only this message takes

    trained = name in (*recipes.names(), *algorithms.names())
    return f"did you mean 'jaxrl train {name}'?" if trained else nearest(name, list(COMMANDS))


def usage() -> str:
    """What `jaxrl` alone prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: jaxrl COMMAND ...",
            "",
            *lines,
            "",
            "jaxrl COMMAND --help says more; jaxrl help GROUP lists the flags of a group of the",
            "config, such as objective; jaxrl --version.",
        ]
    )


def keep_compilations() -> None:
    """Keep compiled programs on disk between runs, under JAX_COMPILATION_CACHE_DIR if it is set."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "jaxrl" / "xla"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


def few_arenas() -> None:
    """Have glibc serve all threads from two pools of memory, where its default is eight a core.

    Each pool keeps what compiling once needed: of a small model's run, a tenth of its peak.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(-8, 2)  # M_ARENA_MAX


def without_late_writes(
    hook: Callable[[sys.UnraisableHookArgs], object],
) -> Callable[[sys.UnraisableHookArgs], object]:
    """Give `hook` all exceptions but those of writes that end after the save they belong to.

    When one write of a checkpoint fails, Orbax raises the error and closes its event loop. The
    writes in progress then end with `Event loop is closed`, a traceback each.
    """

    def handle(args: sys.UnraisableHookArgs) -> None:
        if not (
            isinstance(args.exc_value, RuntimeError)
            and "Event loop is closed" in str(args.exc_value)
        ):
            hook(args)

    return handle


_LONGEST = 8000
"""Characters of a refusal."""


def refused(error: Exception, who: str = "jaxrl") -> int:
    """Say why a request cannot be served, after the name of who refuses; the exit status for it.

    A value that the reason quotes may be of any length.
    """
    text = str(error)
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text)} characters)"
    streams.say(f"{who}: {cut}", error=True)
    return 2


REFUSALS = (
    ValueError, FileNotFoundError, ModuleNotFoundError, BlockingIOError, runner.Unavailable,
)  # fmt: skip
"""What the parts raise for a bad request, with a message that names the remedy."""


if __name__ == "__main__":
    sys.exit(main())
