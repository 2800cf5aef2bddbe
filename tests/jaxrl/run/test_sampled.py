"""The log of a synchronous run's chunks."""

from jaxrl.record import jsonl
from jaxrl.rollout.drive import Chunk
from jaxrl.run.sampled import CHUNKS, ChunkLog


def test_a_step_that_is_done_again_replaces_its_chunks(tmp_path):
    chunk = Chunk(*range(len(Chunk._fields)))._replace(tokens=9)
    log = ChunkLog(tmp_path, print)
    log.write(0, [chunk, chunk])
    log.write(1, [chunk])
    ChunkLog(tmp_path, print).write(1, [chunk._replace(tokens=7)] * 3)  # restarted after step 1
    rows = list(jsonl.read(tmp_path / CHUNKS))
    assert [(row["step"], row["chunk"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert rows[0] == {"step": 0, "chunk": 0, **chunk._asdict()}
    assert [row["tokens"] for row in rows] == [9, 9, 7, 7, 7]
