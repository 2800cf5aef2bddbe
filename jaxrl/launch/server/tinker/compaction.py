"""The journal of a service, written again without what no restart and no client needs.

What goes is large: bodies of gradients and samples whose result is on the disk, and, an hour after
they were written, their answers. A row of a few hundred bytes stays of each, so a request that is
sent again is still known. The new file is written beside the old one, synced, and renamed over it:
a kill leaves one of the two, and both say the same.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from typing import Any

from jaxrl.launch.server.tinker import journal, ledger
from jaxrl.launch.server.tinker.service import Service
from jaxrl.record import jsonl, storage

ANSWERS_KEPT_S = 3600.0
"""A client that lost its connection asks again for 5 minutes."""
_LARGE = ("forward_backward", "asample")
"""Kinds of requests whose bodies and answers are arrays."""


def compact_if_due(served: Service) -> None:
    """Compact the journal where it has grown enough since the last time.

    Where storage fails, the old journal stays, and the next request tries again.
    """
    if served.journal.size < served.compact_at:
        return
    try:
        compact(served, time.time())
    except OSError:
        traceback.print_exc()
        return
    size = served.journal.size
    served.compact_at = size + max(size, served.config.compact_bytes)


def compact(served: Service, seconds: float) -> None:
    """Write the journal again.

    Args:
      served: nothing is accepted or answered meanwhile.
      seconds: since 1970.

    Raises:
      OSError: storage fails.
    """
    book, path = served.journal, served.directory / journal.JOURNAL
    fresh_path = served.directory / journal.FRESH
    with served.changed:
        large, places, size, place = set[str](), dict[str, int](), 0, 0
        fresh = journal.open_locked(fresh_path)
        try:
            fresh.truncate()
            book.file.seek(0)
            while place < book.size:
                line = book.file.readline()
                place += len(line)
                row = jsonl.row(line)
                assert row is not None
                if row.get("kind") in _LARGE:
                    large.add(row["id"])
                shorter = _shorter(served, row, seconds, large)
                if shorter is not None:
                    line = json.dumps(shorter).encode() + b"\n"
                if "ended" in row:
                    places[row["ended"]] = size
                fresh.write(line)
                size += len(line)
            fresh.flush()
            os.fsync(fresh.fileno())
            os.replace(fresh_path, path)
        except BaseException:
            fresh.close()
            raise
        book.file.close()
        book.file, book.size = fresh, size
        served.places = places
        storage.sync(served.directory)


def _shorter(
    served: Service, row: dict[str, Any], seconds: float, large: set[str]
) -> dict[str, Any] | None:
    """A row without what is not needed; None: it stays as it is."""
    if "ended" in row:
        over = seconds - row.get("time", seconds) > ANSWERS_KEPT_S  # older journals have no times
        if row["ended"] not in large or "answer" not in row or not over:
            return None
        return {"ended": row["ended"], "failed": row["failed"], "time": row["time"]}
    if row.get("kind") not in _LARGE or "body" not in row or row["id"] not in served.places:
        return None
    raw = journal.from_text(row["body"])
    body = ledger.KINDS[row["kind"]](raw)
    if row["kind"] == "asample":
        owner, forward_only = body.sampling_session_id, True
    else:
        owner, forward_only = body.model_id, body.forward_only
        ended = ledger.finish_of(owner) in served.places
        if not ended and body.seq_id > served.snapshots.get(owner, -1):
            return None
    return {
        "kind": row["kind"],
        "id": row["id"],
        "key": row["key"],
        "time": row["time"],
        "owner": owner,
        "seq": body.seq_id,
        "forward_only": forward_only,
        "digest": ledger.digest(row["kind"], raw),
    }
