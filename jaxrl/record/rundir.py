"""The run directory: made, locked, checked against the config, and stamped with the environment."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import platform
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import jax

from jaxrl import config as configs
from jaxrl import masks, untrusted
from jaxrl.config import Config
from jaxrl.mesh import distributed
from jaxrl.record import account, storage

MAY_CHANGE = (
    "steps", "run_dir", "score_workers", "score_seconds", "score_memory_mb", "sandbox.",
    "eval.every", "wandb", "trackio", "mlflow", "otlp", "track.", "compute_dtype", "attention",
    "remat", "rollout_log.", "checkpoint.", "guard.", "mesh.", "sampler.",
)  # fmt: skip
"""Fields, or groups of fields, that a continued run may be given new values of."""

_OF_PROCESS = (
    "wandb", "trackio", "mlflow", "otlp", "track.", "score_workers", "score_memory_mb", "sandbox.",
    "rollout_log.groups",
)  # fmt: skip
"""Fields, or groups of fields, that may differ between the processes of a run."""
_FOLDERS = re.compile(r"(?<![\w./:])/(?:[^/\s\"',:]+/)+")
"""The folders of a whole path."""

_MOST_NAMED = 5  # fields that a refusal names
_ATTEMPTS = 3  # to make the directory, which another process may remove meanwhile

RENEWAL_S = 10.0
"""Time between two renewals of the lease of a run directory in a bucket."""


def run_directory(config: Config) -> Path:
    """The run directory of a config."""
    return storage.locate(config.run_dir or f"runs/{config.recipe}-seed{config.seed}")


class Place(NamedTuple):
    """Where a run writes."""

    directory: Path
    made: bool
    """Whether this process has made the directory, which then is its own to remove."""


def require_one(config: Config) -> None:
    """Refuse, in all processes of a run, configs or versions that are not the same in each.

    Paths may lie in other folders of each machine, under the same last name.

    Raises:
      ValueError: they differ.
    """
    versions = {name: metadata.version(name) for name in ("jaxrl", "jax")}
    plain = masks.values(configs.to_dict(config)) | {"versions": versions}
    leaves = {name: _FOLDERS.sub("", text) for name, text in _leaves(plain)}
    common = {name: text for name, text in leaves.items() if not name.startswith(_OF_PROCESS)}
    expected, *rest = distributed.gathered(common)
    for process, fields in enumerate(rest, 1):
        names = sorted(n for n in expected | fields if expected.get(n) != fields.get(n))
        if names:
            differences = "; ".join(
                f"{name}: {expected.get(name, 'nothing')} in process 0, "
                f"{fields.get(name, 'nothing')} in process {process}"
                for name in names[:_MOST_NAMED]
            )
            raise ValueError(
                f"the processes of a run have other configs ({differences}); start all of them "
                "with the same command and the same files"
            )


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The values of a config by dotted name, as they are written."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}".strip("."))
    else:
        yield name, repr(value)


@distributed.by_first
def prepare(config: Config, note: Callable[[str], None]) -> Place:
    """Create the run directory, or check that this run may continue in it.

    Args:
      config: the run's.
      note: called with the fields that have changed since the run began.

    Raises:
      ValueError: the directory cannot be written, or holds another run; or the config holds a
        secret.
    """
    plain = configs.to_dict(config)
    if secret := _differing(plain, masks.values(plain)):
        raise ValueError(
            f"{secret} holds a key or a password, and a config is saved and shared; put it into "
            "the environment, and let your task or reward read it there"
        )
    directory = run_directory(config)
    try:
        is_new = _probed(directory)
    except storage.errors() as error:
        raise ValueError(
            f"run_dir={str(directory)!r} cannot be written: {error}; choose another with --run-dir"
        ) from error
    saved = directory / "config.json"
    if not saved.exists() and has_progress(directory):
        note(
            f"WARNING: {saved} is missing, so it is not known whether the run began with this "
            "config; it is written anew"
        )
    if saved.exists() and has_progress(directory):
        changed = configs.changed(configs.load(saved), config)
        differs = {name: pair for name, pair in changed.items() if not _is_same(*pair)}
        allowed = {name: pair for name, pair in differs.items() if name.startswith(MAY_CHANGE)}
        refused = {name: pair for name, pair in differs.items() if name not in allowed}
        if refused:
            raise ValueError(
                f"run_dir={str(directory)!r} holds a run of another config ({_list(refused)}); "
                "choose another directory, or the same values; to fork that run with other "
                f"values, --fork {str(directory)!r} into a new one"
            )
        if "steps" in allowed and config.optimizer.schedule != "constant":
            note(
                f"WARNING: the {config.optimizer.schedule} schedule of the learning rate now ends "
                f"at step {config.steps}, so steps from here on differ from those first planned"
            )
        if allowed:
            note(f"changed since the run began: {_list(allowed)}")
    return Place(directory, is_new)


def _probed(directory: Path) -> bool:
    """Make the directory and write into it; whether this process has made it."""
    for attempt in range(_ATTEMPTS):
        try:
            is_new = _make(directory)
            probe = directory / f".probe-{uuid.uuid4().hex}"  # another process may try it as well
            probe.write_text("can be written")
            probe.unlink()
        except (FileNotFoundError, FileExistsError):  # another, refused, has removed its directory
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return is_new
    raise AssertionError("unreachable")


def _make(directory: Path) -> bool:
    """Whether this process, and no other, has made the directory."""
    if storage.remote(directory):
        is_new = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        return is_new
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir()
    except FileExistsError:
        directory.mkdir(exist_ok=True)  # unless it is no directory
        return False
    return True


@contextmanager
def discarding(place: Place) -> Iterator[None]:
    """Remove a directory that this process has made, if the body fails before anything is saved.

    The lock must be held: another process may have taken the directory for its run.
    """
    try:
        yield
    except BaseException:
        if place.made and distributed.first() and not has_progress(place.directory):
            storage.remove(place.directory)
        raise


def has_progress(directory: Path) -> bool:
    """Whether a run has saved anything that another config could not continue from."""
    saved = "checkpoints/[0-9]*/manifest.json"
    places = (saved, f"warm_start/{saved}", f"stages/[0-9]*/{saved}")
    return any(any(directory.glob(where)) for where in places)


def _differing(plain: Any, masked: Any, name: str = "") -> str:
    """The dotted name of the first value that was masked; empty: none."""
    if not isinstance(plain, dict):
        return name if plain != masked and not isinstance(plain, tuple) else ""
    pairs = ((f"{name}.{key}".strip("."), plain[key], masked[key]) for key in plain)
    return next(filter(None, (_differing(a, b, inner) for inner, a, b in pairs)), "")


def _is_same(old: Any, new: Any) -> bool:
    """Whether two values of a field are equal but for paths that are whole in the new one."""
    if dataclasses.is_dataclass(old) and dataclasses.is_dataclass(new):
        old, new = configs.to_dict(old), configs.to_dict(new)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_is_same(old[key], new[key]) for key in old)
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(_is_same, old, new))
    if isinstance(old, str) and isinstance(new, str) and Path(new).is_absolute():
        return new in (old, str(Path(old).resolve()), str(Path(old).absolute()))
    return old == new


def _list(differs: dict[str, tuple[Any, Any]]) -> str:
    return "; ".join(f"{name}: {a!r} there, {b!r} here" for name, (a, b) in differs.items())


@contextmanager
def locked(directory: Path, *, trust: bool = False) -> Iterator[None]:
    """Hold the run directory; on a local disk the lock goes with the process, however it ends.

    In a bucket it is a lease, renewed while the run lasts: a run that was killed holds it for
    another half minute, for which the next one waits. Two runs that start there within the same
    second may both believe to hold it.

    Args:
      directory: of the run.
      trust: links in it may lead out of it.

    Raises:
      BlockingIOError: another process holds it.
      ValueError: something in it leads out of it, or is neither a file nor a folder.
    """
    with ExitStack() as stack:
        take = _lease if storage.remote(directory) else _lock

        @distributed.by_first
        def hold() -> None:
            if odd := storage.odd_entry(directory, links=not trust, folders=not trust):
                remedy = "remove it (the run directory as a whole may be a link)"
                if odd.endswith(storage.OUTSIDE):
                    remedy += (
                        ", have it followed with --trust (`trust=True` in Python) if the link is "
                        "yours"
                    )
                raise ValueError(
                    f"run_dir={str(directory)!r} holds what no run writes there: {odd}; {remedy}, "
                    "or choose another directory"
                )
            if not stack.enter_context(take(directory / "lock")):
                raise BlockingIOError(
                    f"run_dir={str(directory)!r} is in use by another process; stop it, or choose "
                    "another directory with --run-dir"
                )

        hold()
        yield


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Whether this process holds the lock."""
    file = _taken(path)
    if file is None:
        yield False
        return
    with file:
        yield True


def _taken(path: Path) -> TextIO | None:
    """The lock file, locked; None if another process holds it."""
    while True:
        try:
            file = path.open("w")
        except FileNotFoundError:  # the one that held it has removed its directory
            path.parent.mkdir(parents=True, exist_ok=True)
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        if _is_at(file.fileno(), path):
            return file
        file.close()


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a path still names the file that a descriptor has open."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _lease(path: Path) -> Iterator[bool]:
    """Whether this process holds the lease; the holder renews it with a new value."""
    ended = threading.Event()

    def read() -> str:
        return path.read_text() if path.exists() else ""

    def renew() -> None:
        while not ended.wait(RENEWAL_S):
            with suppress(*storage.errors()):  # the next may succeed
                path.write_text(str(uuid.uuid4()))

    before = read()
    if before:
        time.sleep(3 * RENEWAL_S)
    if read() != before:
        yield False
        return
    path.write_text(str(uuid.uuid4()))
    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield True
    finally:
        ended.set()
        thread.join()
        with suppress(*storage.errors()):
            path.write_text("")


@distributed.by_first
def save_config(directory: Path, config: Config) -> None:
    """The resolved config with versions, revision and command, before the first step.

    This account has then started the run, and needs no trust in it, see `account`.
    """
    account.remember(directory, untrusted.foreign(configs.to_dict(config)))
    record = {
        "config": configs.to_dict(config),
        "command": masks.command(sys.argv),
        **environment(),
    }
    storage.write_json(directory / "config.json", record)


def span(summary: Mapping[str, Any]) -> tuple[int, int]:
    """The steps that a finished run was measured before and after; a fork begins at one above 0."""
    lineage = summary.get("lineage")
    return lineage[-1]["step"] if lineage else 0, summary["steps"]


@distributed.by_first
def save_summary(directory: Path, summary: Mapping[str, Any]) -> None:
    """Write the summary of a run after its last step."""
    storage.write_json(directory / "summary.json", summary)


def environment() -> dict[str, Any]:
    """What a result depends on apart from its config: versions, device, revision."""
    packages = ("jaxrl", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "grain")
    device = jax.devices()[0]
    return {
        "device": f"{jax.device_count()} x {device.device_kind} ({device.platform})",
        "host": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {name: metadata.version(name) for name in packages},
        "git": revision(),
    }


def revision() -> str | None:
    """Git revision of the source tree, with a + if it has changes.

    None outside a checkout, and where Git takes over 10 seconds, as on a machine with other work.
    """
    root = Path(__file__).parent
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() or None
