"""What a run's parts cost in seconds, fitted to the log of a synchronous run.

`RUN/chunks.jsonl` says of each chunk of decoding what it did and how long it took, and
`RUN/metrics.jsonl` how long each update took. Nothing else is read but the lengths of completions.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from jaxrl import config as configs
from jaxrl.record import jsonl, metrics
from jaxrl.run import sampled
from jaxrl.sampling.work import slot_counts


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of a run's parts, on all of its devices."""

    decode_step: float
    """Of a decoding step, whatever is decoded."""
    decode_slot: float
    """Of each slot of a step's program, whether a sequence is in it or not."""
    update: float
    """Of a training step, whatever is trained on, with all that is done once a step."""
    update_token: float
    """Of each token that is trained on."""
    push: float = 0.0
    """Of bringing new weights to the sampler."""
    score: float = 0.0
    """From the end of a completion to its score."""
    read_pass: float = 0.0
    """Of a pass that reads prompts, or sequences in progress after new weights came,"""
    read_position: float = 0.0
    """and of each position that it computes, padding included."""
    chunk: float = 0.0
    """Of a chunk of decoding, whatever it decodes,"""
    chunk_slot: float = 0.0
    """and of each slot of its program, whose tokens go to the host."""

    def on(self, sampling: float) -> Costs:
        """The costs where a share of the devices samples and the rest trains.

        Seconds of a decoding step, of a pass and of a chunk are of latency and stay; all else is
        divided by the share.
        """
        training = 1.0 - sampling
        return dataclasses.replace(
            self,
            decode_slot=self.decode_slot / sampling,
            chunk_slot=self.chunk_slot / sampling,
            read_position=self.read_position / sampling,
            update=self.update / training,
            update_token=self.update_token / training,
        )


def costs_of(run: Path) -> Costs:
    """Costs fitted to the log of a synchronous run, by non-negative least squares.

    The first step compiles and is left out, as is any other in which something is compiled. What is
    left of a step beside its chunks, scores and weights is its update. A synchronous run reads
    prompts of about one length, which does not tell what a longer pass costs: a position is taken
    to cost a third of a trained token, which is the forward part of an update, and at most the
    whole pass.

    Raises:
      ValueError: fewer than three steps remain, or their chunks are not logged.
    """
    rows = compiled_steps(run)
    if len(rows) < 3:
        raise ValueError(
            f"{run} has logged {len(rows)} steps in which nothing is compiled; costs are fitted to "
            "3 or more"
        )
    sampling = {row["step"] - 1: 0.0 for row in rows}
    chunks = [row for row in jsonl.read(run / sampled.CHUNKS) if row["step"] in sampling]
    if not chunks:
        raise ValueError(f"{run} has no {sampled.CHUNKS}; costs are fitted to a synchronous run's")
    slots = configs.load(run / "config.json").sampler.slots
    steps, passes = _column(chunks, "steps"), _column(chunks, "passes")
    wide = np.array([width(slots, row["sequences"]) for row in chunks], np.float64)
    columns = steps, steps * wide, passes, np.ones(len(chunks)), wide
    step, slot, pass_cost, chunk, chunk_slot = _fit(_column(chunks, "seconds"), *columns)
    for row in chunks:
        sampling[row["step"]] += row["seconds"]
    rest = _column(rows, "time/step") - np.array([sampling[row["step"] - 1] for row in rows])
    for name in ("score", "sync", "save", "eval"):
        rest = rest - np.array([row.get(f"time/{name}", 0.0) for row in rows])
    update_token, update = _fit(rest, _column(rows, "tokens"), np.ones(len(rows)))
    push, score = (float(np.median(_column(rows, f"time/{n}"))) for n in ("sync", "score"))
    read = float(np.sum(_column(chunks, "positions")) / max(1.0, np.sum(passes)))
    position = min(update_token / 3, pass_cost / max(1.0, read))
    reading = (pass_cost - position * read, position)
    return Costs(step, slot, update, update_token, push, score, *reading, chunk, chunk_slot)


def width(slots: int, live: int) -> int:
    """Slots of the program that decodes so many sequences, of which some may wait for a slot."""
    return next(size for size in slot_counts(slots) if size >= min(live, slots))


def compiled_steps(run: Path) -> list[dict[str, Any]]:
    """The metrics of steps in which nothing is compiled, the first one left out."""
    pairs = itertools.pairwise(metrics.read(run))
    return [row for last, row in pairs if row.get("compilations") == last.get("compilations")]


def _column(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows], np.float64)


def _fit(seconds: np.ndarray, *columns: np.ndarray) -> list[float]:
    """Non-negative coefficients of columns."""
    scales = [max(float(column.max()), 1.0) for column in columns]
    scaled = np.stack([c / s for c, s in zip(columns, scales, strict=True)], 1)
    coefficients, _ = nnls(scaled, seconds)
    return [float(value / scale) for value, scale in zip(coefficients, scales, strict=True)]


def prompt_of(run: Path, groups: int) -> int:
    """Tokens of a prompt, on average over a run that began this number of groups a step."""
    read = sum(row["read"] for row in jsonl.read(run / sampled.CHUNKS))
    return round(read / (steps_of(run) * groups))


def steps_of(run: Path) -> int:
    """Steps of which the chunks are logged."""
    return 1 + max(row["step"] for row in jsonl.read(run / sampled.CHUNKS))


def groups_of(run: Path) -> list[np.ndarray]:
    """Lengths in tokens of the completions of each group that a run has logged, in order.

    Raises:
      ValueError: it has logged none.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for path in sorted((run / "rollouts").glob("*.jsonl")):
        for row in jsonl.read(path):
            length = sum(kind == "policy" for kind in row["source"])
            groups.setdefault((row["step"], row["group"]), []).append(length)
    if not groups:
        raise ValueError(f"{run} has no rollouts; log some with rollout_log.every")
    return [np.array(lengths) for lengths in groups.values()]
