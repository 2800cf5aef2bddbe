"""The stream of problems a run trains on, with a position that a checkpoint holds exactly."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable

import grain

from jaxrl.data.types import Problem, Task

_ENDLESS = sys.maxsize // 2  # grain computes with it in floats, which round up


def fingerprint(task: Task, split: str = "train") -> str:
    """What tells a finite split's data from other data: its size, and 64 of its problems.

    Empty for an endless split, which its parameters name.
    """
    size = task.sizes.get(split)
    if not size:
        return ""
    digest = hashlib.blake2b(str(size).encode(), digest_size=8)
    for index in sorted({place * (size - 1) // 63 for place in range(64)}):
        problem = task.problem(split, 0, index)
        digest.update(f"{problem.prompt}\0{problem.answer}\0".encode(errors="surrogatepass"))
    return digest.hexdigest()


def prompts(
    task: Task,
    *,
    split: str = "train",
    seed: int,
    batch_size: int,
    host_index: int = 0,
    host_count: int = 1,
    keep: Callable[[Problem], bool] | None = None,
) -> grain.DatasetIterator[list[Problem]]:
    """Batches of problems, without end.

    A finite split is shuffled anew each epoch, batches running on over the epochs' ends, so that
    nothing is skipped; an endless one is taken in order of its index. `get_state()` gives a small
    JSON-able dict, and `set_state()` continues after it with neither a repeat nor a skip. The
    state counts global batches: it may be restored with another `host_count`.

    Args:
      task: makes the problems.
      split: one of the task's.
      seed: of the generated problems and of the shuffle.
      batch_size: problems in a batch, all hosts together.
      host_index: which of the hosts this is; it gets every `host_count`-th problem of the batch.
      host_count: how many there are.
      keep: problems that are not to be kept are passed over. The state then counts problems of this
        host: it may be restored with the same `host_count` alone.

    Raises:
      ValueError: a batch that does not divide among the hosts, or an unknown split.
    """
    task.check_split(split)
    if batch_size < 1 or batch_size % host_count:
        raise ValueError(
            f"batch_size={batch_size} must be a positive multiple of host_count={host_count}"
        )
    if not 0 <= host_index < host_count:
        raise ValueError(f"host_index={host_index} must be in [0, host_count={host_count})")
    size = task.sizes.get(split)
    if size == 0:
        raise ValueError(
            f"split={split!r} of task {task.name!r} has no problems: its file is empty"
        )
    if size is None:
        order = grain.MapDataset.range(_ENDLESS)
    else:
        order = grain.MapDataset.range(size).shuffle(_short(seed)).repeat(_ENDLESS // size)
    host_batch_size, options = (
        batch_size // host_count,
        grain.ReadOptions(num_threads=1, prefetch_buffer_size=2),
    )
    problems = order.slice(slice(host_index, None, host_count)).map(
        lambda index: task.problem(split, seed, int(index))
    )
    if keep is None:
        return iter(problems.batch(host_batch_size, batch_fn=list).to_iter_dataset(options))
    return iter(
        problems.filter(keep).to_iter_dataset(options).batch(host_batch_size, batch_fn=list)
    )


def _short(seed: int) -> int:
    """The seed, hashed to 32 bits where it has more: no shuffle takes it otherwise."""
    if 0 <= seed < 1 << 32:
        return seed
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest(), "big")
