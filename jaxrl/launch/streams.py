"""The standard streams: lines of printable text, and a console that fails ends no run.

A console may lack characters, be on a full disk, or be gone, as after a lost connection.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TextIO

from jaxrl.printable import printable

_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EAGAIN)
"""Failures after which the next line may be written again."""


def say(text: object, *, error: bool = False) -> None:
    """Print a line to the standard output, or that of errors."""
    print(printable(text, lines=True), file=sys.stderr if error else sys.stdout, flush=True)


def show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an error that nothing has caught; its message may hold text of a model or a file."""
    say("".join(traceback.format_exception(kind, error, trace)).rstrip(), error=True)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as a line, without the place in the code that it comes from."""
    text = str(message)
    say(text if text.startswith("WARNING") else f"WARNING: {text}", error=True)


def attempt(what: str, act: Callable[[], object]) -> None:
    """Do what a finished run can do without; a failure is one line, and not an exit status."""
    try:
        act()
    except Exception as error:  # whatever it is, the run is complete
        why = " ".join(str(error).split()) or type(error).__name__
        say(f"jaxrl: {what} failed: {why}; the run itself is complete", error=True)


def open_streams() -> None:
    """Prepare the standard streams: closed ones lead nowhere, and no character is refused.

    Where one is closed, the next file that is opened takes its number, and what a library prints
    would be written into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


class LastingStream:
    """A text stream whose failures end nothing: what cannot be written is dropped."""

    def __init__(self, stream: TextIO, failed: Callable[[Exception], None]) -> None:
        """`failed` is called with the first failure."""
        self._stream, self._failed, self._told = stream, failed, False

    def write(self, text: str) -> int:
        """Write as far as possible."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush as far as possible."""
        self._attempt(self._stream.flush)

    def finish(self) -> None:
        """Flush, or drop what is left, which would fail once more as the process ends."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._disconnect()

    def __getattr__(self, name: str) -> Any:
        """All else is that of the stream."""
        return getattr(self._stream, name)

    def _attempt(self, act: Callable[[], object]) -> None:
        try:
            act()
        except (OSError, ValueError) as error:  # a ValueError: the stream is closed
            if getattr(error, "errno", None) not in _PASSING:
                self._disconnect()
            if not self._told:
                self._told = True
                self._failed(error)

    def _disconnect(self) -> None:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def lasting_errors() -> Iterator[None]:
    """Have the body print errors to a stream that cannot end it, nor change its exit status."""
    before = sys.stderr
    errors = LastingStream(before, lambda _: None)
    sys.stderr = errors
    try:
        yield
    finally:
        sys.stderr = before
        errors.finish()


@contextmanager
def lasting() -> Iterator[None]:
    """Have the body print to streams that cannot end it."""
    before = sys.stdout, sys.stderr

    def failed(error: Exception) -> None:
        say(f"jaxrl: the output cannot be written: {error}; the run continues", error=True)

    output, errors = LastingStream(sys.stdout, failed), LastingStream(sys.stderr, lambda _: None)
    sys.stdout, sys.stderr = output, errors
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        output.finish()
        errors.finish()
