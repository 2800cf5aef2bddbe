"""The rollouts that a run has kept, as ATIF: Harbor's Agent Trajectory Interchange Format, 1.8.

A completion is a trajectory: its prompt is a step of the user, what the policy wrote a step of the
agent, and what an environment answered the observation of that step. Texts are those of the tokens,
marks of the chat template among them. Rewards and the run's own figures are in `extra`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxrl.record import runs, storage

FILE = "trajectories.jsonl"
_KEPT = ("step", "group", "problem", "answer", "reward", "parts", "texts", "error", "stopped")
"""Fields of a row that have no place in the format."""


def write(run: str, directory: Path, step: int | None) -> None:
    """Write `trajectories.jsonl`, a trajectory a line.

    Args:
      run: its directory.
      directory: to write to, which exists.
      step: whose rollouts are written; None: of all steps.

    Raises:
      FileNotFoundError: there is no such run.
      ValueError: it has kept no rollouts, or not of this step; or a row is damaged.
    """
    source = storage.locate(run)
    config = runs.load_config(source)
    agent = {"name": "jaxrl", "version": version("jaxrl"), "model_name": str(config["model"])}
    count = 0
    with (directory / FILE).open("w", encoding="utf-8") as file:
        for row in runs.completions(source, "rollouts"):
            if step is None or row["step"] == step:
                document = trajectory(row, agent, f"{source.name}/{row['step']}/{count}")
                file.write(json.dumps(document, ensure_ascii=False) + "\n")
                count += 1
    if not count:
        of_step = "" if step is None else f" of step {step}"
        raise ValueError(
            f"{run} has kept no rollouts{of_step}; rollout_log.every and rollout_log.groups say "
            "which are kept"
        )


def trajectory(row: Mapping[str, Any], agent: Mapping[str, str], name: str) -> dict[str, Any]:
    """A completion as a trajectory.

    Args:
      row: of `RUN/rollouts/STEP.jsonl`.
      agent: its name, version and model.
      name: of the trajectory.

    Raises:
      ValueError: lists of the row differ in length, or are missing.
    """
    steps: list[dict[str, Any]] = [{"source": "user", "message": str(row.get("prompt", ""))}]
    for is_reply, part in itertools.groupby(_tokens(row, name), lambda token: token[1] == "tool"):
        texts, sources, logp = zip(*part, strict=True)
        text = "".join(texts)
        if is_reply and steps[-1]["source"] == "agent":
            steps[-1]["observation"] = {"results": [{"content": text}]}
        elif is_reply:
            steps.append({"source": "user", "message": text})
        else:
            metrics = {"completion_tokens": len(texts), "logprobs": [*logp]}
            step = {"source": "agent", "message": text, "metrics": metrics}
            # what was put in without being sampled, or was written by an expert
            forced = {"extra": {"token_sources": [*sources]}} if {*sources} != {"policy"} else {}
            steps.append(step | forced)
    return {
        "schema_version": "ATIF-v1.8",
        "trajectory_id": name,
        "agent": {**agent},
        "steps": [{"step_id": i, **step} for i, step in enumerate(steps, start=1)],
        "final_metrics": {
            "total_completion_tokens": sum(source != "tool" for source in row["source"]),
            "total_steps": len(steps),
        },
        "extra": {key: row[key] for key in _KEPT if row.get(key) is not None},
    }


def _tokens(row: Mapping[str, Any], name: str) -> Iterator[tuple[str, str, float]]:
    """The text, the source and the log-probability of each token."""
    columns = [row.get(key) for key in ("tokens", "source", "logp")]
    lengths = {len(column) if isinstance(column, list) else -1 for column in columns}
    if len(lengths) > 1 or -1 in lengths:
        raise ValueError(
            f"rollout {name} is damaged: tokens, source and logp must be lists of one length; "
            "restore the run's rollouts from a copy"
        )
    return zip(*(column for column in columns if column is not None), strict=True)
