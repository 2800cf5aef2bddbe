"""Shortest path in a weighted graph; any path of least length is right."""

from __future__ import annotations

import heapq
import itertools
import random
import re
import string

from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Score, Task

Edges = list[tuple[str, str, int]]


def task(
    nodes: int = 6,
    extra_edges: int = 4,
    heaviest: int = 9,
    ood_nodes: int | None = None,
    answer_format: str = "tags",
    template: str = "",
) -> Task:
    """Shortest-path problems on connected random graphs.

    Args:
      nodes: of the graph in train and test.
      extra_edges: drawn on top of a random spanning tree.
      heaviest: edge lengths are from 1 to this.
      ood_nodes: of the graph in the ood split; None means half as many again.
      answer_format: see `jaxrl.data.sources.extract`.
      template: prompt with `{question}` in it; empty asks for the answer format.
    """
    ood_nodes = nodes + (nodes + 1) // 2 if ood_nodes is None else ood_nodes
    if not 3 <= nodes < ood_nodes <= 26:
        raise ValueError(f"nodes={nodes}, ood_nodes={ood_nodes}: need 3 <= nodes < ood_nodes <= 26")
    if extra_edges < 0 or heaviest < 1:
        raise ValueError(f"extra_edges={extra_edges} must be >= 0 and heaviest={heaviest} >= 1")
    find = extract.extractor(answer_format)
    template = template or extract.INSTRUCTIONS[answer_format]

    def draw(stream: random.Random, count: int) -> tuple[Edges, str, str]:
        names = list(string.ascii_uppercase[:count])
        stream.shuffle(names)
        pairs = {frozenset((names[i], names[stream.randrange(i)])) for i in range(1, count)}
        pairs |= {frozenset(stream.sample(names, 2)) for _ in range(extra_edges)}
        ordered = sorted(tuple(sorted(pair)) for pair in pairs)
        edges = [(a, b, stream.randint(1, heaviest)) for a, b in ordered]
        stream.shuffle(edges)
        start, end = stream.sample(sorted(names), 2)
        return edges, start, end

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        edges, start, end = generate.draw(
            lambda stream: draw(stream, ood_nodes if split == "ood" else nodes),
            key=lambda sample: _key(*sample),
            stream=generate.rng("shortest_path", split, seed, index),
            split=split,
        )
        length, path = shortest(edges, start, end)
        question = (
            "Roads: "
            + ", ".join(f"{a}-{b} {w}" for a, b, w in edges)
            + f". Give a shortest path from {start} to {end} as its places, like {start} X {end}."
        )
        return generate.user_problem(
            "shortest_path",
            _key(edges, start, end),
            extract.fill(template, question),
            length,
            edges=edges,
            ends=(start, end),
            solution=" ".join(path),
        )

    def reward(problem: Problem, completion: str) -> Score:
        answer = find(completion)
        path = (
            []
            if answer is None
            else [p for p in re.split(r"[\s,>→–—-]+", answer.rstrip(" .")) if p]
        )
        length = _length(problem.metadata["edges"], path)
        valid = length is not None and (path[0], path[-1]) == tuple(problem.metadata["ends"])
        correct = valid and length == problem.answer
        return Score(float(correct), {"correct": float(correct), "valid": float(valid)})

    task = Task(
        name="shortest_path",
        problem=problem,
        reward=reward,
        gold=lambda problem: extract.write_answer(answer_format, problem.metadata["solution"]),
        alphabet=generate.ASCII,
        description=__doc__,
        pure=True,
    )
    return task


def shortest(edges: Edges, start: str, end: str) -> tuple[int, list[str]]:
    """Length and places of a shortest path (Dijkstra 1959)."""
    near: dict[str, list[tuple[str, int]]] = {}
    for a, b, weight in edges:
        near.setdefault(a, []).append((b, weight))
        near.setdefault(b, []).append((a, weight))
    queue, done = [(0, [start])], set()
    while queue:
        length, path = heapq.heappop(queue)
        if path[-1] == end:
            return length, path
        if path[-1] not in done:
            done.add(path[-1])
            for place, weight in near.get(path[-1], ()):
                heapq.heappush(queue, (length + weight, [*path, place]))
    raise ValueError(f"no path from {start} to {end}")


def _length(edges: Edges, path: list[str]) -> int | None:
    """Of a path along edges that exist; None otherwise."""
    weights = {frozenset((a, b)): weight for a, b, weight in edges}
    steps = [frozenset(pair) for pair in itertools.pairwise(path)]
    if not steps or any(step not in weights for step in steps):
        return None
    return sum(weights[step] for step in steps)


def _key(edges: Edges, start: str, end: str) -> str:
    return f"{sorted(edges)}{start}{end}"
