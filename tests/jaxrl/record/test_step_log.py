"""Logs that have several rows of each step."""

from jaxrl.record import jsonl
from jaxrl.record.jsonl import StepLog


def test_a_step_that_is_done_again_replaces_its_rows(tmp_path):
    path = tmp_path / "chunks.jsonl"
    log = StepLog(path, print, sync=False)
    log.begin(0)
    log.add({"step": 0, "chunk": 0, "tokens": 9}, {"step": 0, "chunk": 1, "tokens": 9})
    log.begin(1)
    log.add({"step": 1, "chunk": 0, "tokens": 9})
    again = StepLog(path, print, sync=False)  # restarted after step 1
    again.begin(1)
    again.add(*({"step": 1, "chunk": n, "tokens": 7} for n in range(3)))
    rows = list(jsonl.read(path))
    assert [(row["step"], row["chunk"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [row["tokens"] for row in rows] == [9, 9, 7, 7, 7]
