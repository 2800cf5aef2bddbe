"""Length-balanced micro-batches: sequences divided so that no part has much more work."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balance(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Indices divided into `parts`, the largest first, each to the part with the least so far.

    Longest-processing-time scheduling (Graham 1969): the fullest part has at most
    4/3 - 1 / (3 parts) of the least that any division could give it. The same costs always give
    the same division, ties by index; a part's indices rise.

    Args:
      costs: of each sequence, such as its length, or `n + n**2 / c` where attention counts.
      parts: micro-batches, or hosts.
    """
    if parts < 1:
        raise ValueError(f"parts={parts}: must be 1 or more")
    if any(cost < 0 for cost in costs):
        raise ValueError(f"costs has {min(costs)}: must not be negative")
    loads = [(0.0, part) for part in range(parts)]
    divided: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, part = heapq.heappop(loads)
        divided[part].append(index)
        heapq.heappush(loads, (load + costs[index], part))
    return [sorted(part) for part in divided]
