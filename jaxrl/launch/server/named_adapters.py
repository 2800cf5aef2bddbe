"""Adapters of a server: each is a model of the API, and all decode in the same slots.

Those that the command names are there from the start. Callers load and unload others, as with vLLM
(`/v1/load_lora_adapter`, `/v1/unload_lora_adapter`), where the command names a directory to load
them from.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from jaxrl.config import Config
from jaxrl.launch.server.engine import Engine, Refused
from jaxrl.mesh import mesh
from jaxrl.models import catalog, lora, lora_stack
from jaxrl.models.checkpoints import peft
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import Adapters, LoraConfig
from jaxrl.rollout import policy
from jaxrl.types import Params

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")
_ALIKE = 0.01
"""Relative difference of two embeddings that are one in two dtypes."""


@dataclasses.dataclass
class AdapterBook:
    """The adapters of a server. `places` and what follows are of the lock."""

    model: DecoderConfig
    base: str
    """Name of the base, which is no adapter's."""
    matrices: Sequence[lora.Path]
    """For whose changes there is room."""
    rank: int
    """Greatest of an adapter."""
    count: int
    """Places for adapters."""
    directory: Path | None
    """From which callers may load; None: they may not."""
    trust: bool
    places: dict[str, int] = dataclasses.field(default_factory=dict)
    """From 1, by name."""
    users: Counter[int] = dataclasses.field(default_factory=Counter)
    """Calls in progress, by place; one that was unloaded is free when there are none."""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


def begin(
    model: DecoderConfig,
    params: Params,
    base: str,
    entries: Sequence[str],
    folder: str,
    *,
    count: int,
    rank: int,
    trust: bool,
) -> tuple[AdapterBook, Params]:
    """The adapters that a command names, and the sampler's parameters with them.

    Args:
      model: the decoder's shape.
      params: as from `policy.sampling_params`.
      base: its name.
      entries: NAME=DIRECTORY of each that the command names.
      folder: from which callers may load others; empty: they may not.
      count: places for adapters, and
      rank: the greatest of an adapter, where callers may load some; else as those named need.
      trust: functions of others may be named by the config of a run.

    Raises:
      FileNotFoundError: a directory that is not there.
      ValueError: an adapter that does not fit, a name that is taken, or a limit that makes no room.
    """
    if folder and not Path(folder).is_dir():
        raise FileNotFoundError(
            f"adapter_directory={folder!r} is no directory; name one that is there, or leave it out"
        )
    for field, value in {"max_adapters": count, "max_adapter_rank": rank}.items():
        if value < 1:
            raise ValueError(f"{field}={value}: must be 1 or more")
    if folder and len(entries) > count:
        raise ValueError(
            f"adapters names {len(entries)} of them, and max_adapters={count}; raise it"
        )
    small = dict[str, tuple[LoraConfig, Adapters]]()
    for entry in entries:
        name, _, place = entry.partition("=")
        if not place:
            raise ValueError(f"adapters has {entry!r}; write NAME=DIRECTORY")
        _check_name(name, base, list(small))
        small[name] = read(model, params, name, Path(place), trust)
    if not folder:
        count, rank = len(small), max(how.rank for how, _ in small.values())
    matrices = list(lora_stack.matrices(model))
    if not folder:
        adapted = lora_stack.targets_of(model, [how for how, _ in small.values()])
        matrices = [path for path in matrices if path in adapted]
    directory = Path(folder).resolve() if folder else None
    book = AdapterBook(model, base, matrices, rank, count, directory, trust)
    for name, (how, adapters) in small.items():
        lora_stack.check(model, name, how, adapters, matrices, rank)
    params = lora_stack.attach(model, params, matrices, count=count, rank=rank)
    for place, (name, (how, adapters)) in enumerate(small.items(), 1):
        params = lora_stack.put(model, params, place, adapters, how)
        book.places[name] = place
    return book, params


def _check_name(name: str, base: str, loaded: Sequence[str]) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"adapter {name[:100]!r}: a name has 1 to 100 letters, digits and . _ : / -, and "
            "begins with a letter or a digit"
        )
    if name == base or name in loaded:
        raise ValueError(f"adapter {name!r}: the name is taken; choose another")


def read(
    model: DecoderConfig, params: Params, name: str, directory: Path, trust: bool
) -> tuple[LoraConfig, Adapters]:
    """An adapter: a directory of PEFT's, or a run that has trained one.

    Args:
      model: the base's shape.
      params: the base's, to compare with those of a run.
      name: for messages.
      directory: that holds it.
      trust: functions of others may be named by the run's config.

    Raises:
      FileNotFoundError: there is no such directory.
      ValueError: it holds no adapter, or one of another base.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"adapter {name!r}: there is no directory {str(directory)!r}")
    try:
        if (directory / catalog.ADAPTERS).exists():
            return peft.load(directory, model)
        if policy.is_run(str(directory)):
            return _of_run(model, params, name, str(directory), trust)
    except (
        KeyError, TypeError, AttributeError, OSError, UnicodeDecodeError,
        safetensors.SafetensorError,
    ) as error:  # fmt: skip
        kind = type(error).__name__
        raise ValueError(
            f"adapter {name!r}: {str(directory)!r} cannot be read: {kind}: {error}"
        ) from error
    raise ValueError(
        f"adapter {name!r}: {str(directory)!r} holds neither {catalog.ADAPTERS} nor a run; name a "
        "directory of PEFT's, or a run directory of jaxrl"
    )


def _of_run(
    model: DecoderConfig, params: Params, name: str, run: str, trust: bool
) -> tuple[LoraConfig, Adapters]:
    described, _ = policy.describe(policy.config_of(run), trust=trust)
    shape = {"hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size"}
    for field in sorted(shape):
        was, expected = getattr(described, field), getattr(model, field)
        if was != expected:
            raise ValueError(
                f"adapter {name!r}: the run {run!r} trained a base with {field}={was}, and this "
                f"one has {expected}; name the base that it was trained on"
            )
    trained, how, _ = policy.restored(run, described, mesh.make(Config().mesh))
    if not how.rank:
        raise ValueError(
            f"adapter {name!r}: the run {run!r} trained all weights (lora.rank=0); serve it as a "
            "model"
        )
    if how.base != "plain":
        raise ValueError(
            f"adapter {name!r}: the run {run!r} trained on a base in {how.base}, whose rounding "
            "this one has not; serve the run as a model, or export it with --to peft and name that"
        )
    adapters, base = lora.detach(trained)
    embeddings = (np.asarray(tree["embed"], np.float32) for tree in (base, params))
    before, after = embeddings
    if np.abs(before - after).max() > _ALIKE * np.abs(after).max():
        raise ValueError(
            f"adapter {name!r}: the run {run!r} was trained on another base, whose embedding "
            "differs; name the base that it was trained on"
        )
    return how, adapters


def names(book: AdapterBook) -> list[str]:
    """Of the adapters, in the order in which they were loaded."""
    with book.lock:
        return list(book.places)


def take(book: AdapterBook, name: str) -> int:
    """The place of a model that a call names, in use until `leave`; 0 for the base.

    Args:
      book: of the server.
      name: empty where the call names none.

    Raises:
      Refused: there is no such model.
    """
    with book.lock:
        if name in ("", book.base):
            return 0
        if name not in book.places:
            listing = ", ".join([book.base, *book.places])
            raise Refused(404, f"model={name[:100]!r} is not served; there are {listing}")
        place = book.places[name]
        book.users[place] += 1
        return place


def leave(book: AdapterBook, place: int) -> None:
    """A call that had a place has ended."""
    with book.lock:
        book.users[place] -= 1


def load(book: AdapterBook, engine: Engine, body: Any) -> str:
    """Load what a caller names; what was done, in words.

    `load_inplace` gives a name that is there to another adapter: calls in progress keep the one
    that they began with.

    Raises:
      Refused: naming the field, its value and the remedy.
    """
    name = _field(body, "lora_name", {"lora_path", "load_inplace"})
    place, again = body.get("lora_path"), body.get("load_inplace", False)
    if not isinstance(place, str) or not place or "\0" in place:
        raise Refused(400, "lora_path: name a directory")
    if not isinstance(again, bool):
        raise Refused(400, f"load_inplace={again!r:.100}: send true or false")
    if book.directory is None:
        raise Refused(
            403,
            "adapters are not loaded at request here; start the server with --adapter-directory",
        )
    directory = (book.directory / place).resolve()
    if not directory.is_relative_to(book.directory):
        raise Refused(403, f"lora_path={place[:200]!r} is outside of the adapter directory")
    try:
        _check_name(name, book.base, [] if again else names(book))
        how, adapters = read(book.model, engine.params, name, directory, book.trust)
        lora_stack.check(book.model, name, how, adapters, book.matrices, book.rank)
    except FileNotFoundError as error:
        raise Refused(404, f"lora_path={place[:200]!r} is not there") from error
    except ValueError as error:
        raise Refused(400, str(error).replace(str(book.directory), "...")) from error
    with book.lock:
        if name in book.places and not again:
            raise Refused(400, f"adapter {name!r}: the name is taken; choose another")
        occupied = {*book.places.values()} | {p for p, calls in book.users.items() if calls}
        free = [i for i in range(1, book.count + 1) if i not in occupied]
        if not free:
            raise Refused(
                409,
                f"all {book.count} places for adapters are taken by {', '.join(book.places)} or by "
                "calls in progress; unload one, or start the server with a greater --max-adapters",
            )
        # The engine reads the parameters before each chunk; no call of it uses a free place.
        engine.params = lora_stack.put(book.model, engine.params, free[0], adapters, how)
        book.places[name] = free[0]
    return f"adapter {name!r} is loaded"


def unload(book: AdapterBook, body: Any) -> str:
    """Unload what a caller names; calls in progress end with it. What was done, in words.

    Raises:
      Refused: naming the field, its value and the remedy.
    """
    name = _field(body, "lora_name", {"lora_int_id"})
    if book.directory is None:
        raise Refused(
            403,
            "adapters are not unloaded at request here; start the server with --adapter-directory",
        )
    with book.lock:
        if name not in book.places:
            listing = ", ".join(book.places) or "none"
            raise Refused(404, f"lora_name={name[:100]!r} is not loaded; there are {listing}")
        del book.places[name]
    return f"adapter {name!r} is unloaded"


def _field(body: Any, name: str, optional: set[str]) -> str:
    """A text of a body that has no other fields than those."""
    if not isinstance(body, dict):
        raise Refused(400, f"the body is no JSON object; send one with {name}")
    if unknown := sorted(body.keys() - {name, *optional}):
        raise Refused(
            400, f"body has {unknown[0][:100]!r}; there are {name}, {', '.join(sorted(optional))}"
        )
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(400, f"{name}: send a text")
    return value
