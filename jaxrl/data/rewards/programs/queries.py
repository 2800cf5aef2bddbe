"""Read-only queries on SQLite in memory, under limits, in this process or in one of its own.

The script that makes the database comes from data, and may reach no file and no other database.
For the query, an authorizer refuses all but reading (no ATTACH, no PRAGMA, no extension), and there
are limits of time, rows and sizes. SQLite looks at the time between its steps alone, and one step
may take long: a function of long texts, or many of them. In a process of its own the limits
hold for certain.

Run by path with `python -I -S`, and imports nothing of ours. It reads the script and the query as
JSON from standard input, and writes the rows or an error to standard output.
"""

from __future__ import annotations

import json
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from typing import Any

WALL_S = 2.0
START_S = 20.0
"""That a process of its own, with the making of the database, may take beyond the query."""
ROWS = 10_000
_TOGETHER = 1 << 24  # bytes of all rows
_EACH = 64  # bytes that a value takes beside its text
_LENGTH = 1 << 16  # bytes of a value, while the query runs too
_MEMORY = 256 << 20  # bytes that SQLite may take for a query in a process of its own
_SCRIPT_LENGTH = 1 << 24  # bytes of a value of the database
_PAGES = 1 << 16  # of 4 KiB, that the database may have
_PRAGMAS = ("foreign_keys", "encoding", "user_version", "application_id")  # as dumps set them
SCRIPT_S = 10.0
"""That the script of a database may take."""
_STEPS = 1000  # of SQLite, after which it looks at the time
_READS = (
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
)
_SLOW = f"it took more than {WALL_S:g} s"
_FAULTS = (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError)


class QueryError(Exception):
    """A query that is not one, may not run, or takes too much."""


def execute(script: str, query: str) -> list[tuple[Any, ...]]:
    """The rows of a read-only query on a database that `script` makes, in this process.

    Raises:
      QueryError: the query fails, writes, or oversteps.
    """
    connection = sqlite3.connect(":memory:")
    try:
        _make(connection, script)
        return _rows(connection, query)
    except _FAULTS as error:
        raise QueryError(str(error)) from error
    finally:
        connection.close()


def execute_apart(script: str, query: str) -> list[tuple[Any, ...]]:
    """As `execute`, in a process of its own.

    Raises:
      QueryError: the query fails, writes, or oversteps.
      TimeoutError: the database is not made in time.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", __file__],
            input=json.dumps([script, query]).encode(),
            capture_output=True,
            env={},
            timeout=WALL_S + START_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"the database is not made within {START_S:g} s") from None
    if done.returncode == -signal.SIGALRM:
        raise QueryError(_SLOW)
    if done.returncode:
        raise QueryError(f"it ended SQLite with status {done.returncode}")
    reply = json.loads(done.stdout, object_hook=lambda blob: bytes.fromhex(blob["blob"]))
    if isinstance(reply, str):
        raise QueryError(reply)
    return [tuple(row) for row in reply]


def _make(connection: sqlite3.Connection, script: str) -> None:
    """Run the script that makes a database, which may reach no other one and no file.

    Raises:
      QueryError: it attaches a database, or takes too long.
    """
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA max_page_count = {_PAGES}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # which VACUUM INTO needs too
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _SCRIPT_LENGTH)
    connection.set_authorizer(_making)
    deadline = time.monotonic() + SCRIPT_S
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    try:
        connection.executescript(script)
        connection.commit()
    except sqlite3.OperationalError as error:
        if time.monotonic() > deadline:
            raise QueryError(f"the database is not made within {SCRIPT_S:g} s") from error
        raise
    finally:
        connection.set_authorizer(lambda *_: sqlite3.SQLITE_OK)


def _making(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """What the script may do: all within its own database."""
    loads = action == sqlite3.SQLITE_FUNCTION and second == "load_extension"
    sets = action == sqlite3.SQLITE_PRAGMA and first not in _PRAGMAS
    attaches = action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
    return sqlite3.SQLITE_DENY if loads or sets or attaches else sqlite3.SQLITE_OK


def _rows(connection: sqlite3.Connection, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query on an open database, which nothing can be written to afterwards."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LENGTH)
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 20_000)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000)
    connection.set_authorizer(
        lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY
    )
    deadline = time.monotonic() + WALL_S
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    cursor = connection.execute(query)
    if cursor.description is None:
        raise QueryError("no query: nothing but white space and comments")
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in cursor:
        size += sum(_EACH + (len(v) if isinstance(v, str | bytes) else 0) for v in row)
        if len(rows) == ROWS:
            raise QueryError(f"more than {ROWS} rows")
        if size > _TOGETHER:
            raise QueryError(f"rows of more than {_TOGETHER >> 20} MB")
        if time.monotonic() > deadline:
            raise QueryError(_SLOW)
        rows.append(row)
    return rows


def _main() -> None:
    script, query = json.load(sys.stdin)
    connection = sqlite3.connect(":memory:")
    try:
        _make(connection, script)
        unit = 1 if sys.platform == "darwin" else 1024
        peak_bytes = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        connection.execute(f"PRAGMA hard_heap_limit = {peak_bytes + _MEMORY}")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends this process
        signal.setitimer(signal.ITIMER_REAL, WALL_S + 0.5)
        reply: Any = _rows(connection, query)
    except MemoryError:
        reply = f"it took more than {_MEMORY >> 20} MB"
    except (QueryError, *_FAULTS) as error:
        reply = str(error)
    json.dump(reply, sys.stdout, default=lambda blob: {"blob": blob.hex()})


if __name__ == "__main__":
    _main()
