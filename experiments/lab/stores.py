"""Where the figures of arms are kept, and how an arm is run.

Each arm has a file, named by a hash of all that its figures depend on. It is looked up before it is
run: a stopped measurement continues where it was, and a baseline that several methods share is run
once.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.lab import archive, arms, files, views
from experiments.lab.arms import Arm
from experiments.lab.effect import Effect, held_out, run_arm
from experiments.lab.tasks import verdicts

VERSION = 1
"""Of the lab's code, as far as figures depend on it: raise it to run every arm again."""
Run = Callable[[Effect, Arm, Sequence[int]], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Store:
    """Where results are kept, and how an arm is run."""

    directory: Path
    run: Run = run_arm
    said: Callable[[str], None] = lambda line: None
    """Called with a line for every arm that is run."""

    def figures(self, effect: Effect, given: Arm, seeds: Sequence[int]) -> dict[str, Any]:
        """Figures of an arm, see `run_arm`: those kept, else it is run and they are kept.

        Raises:
          ValueError: if another task has the same problems and another verifier.
        """
        identity = self.identity(effect, given, seeds)
        path = self.path(identity)
        kept = archive.read(self.directory, path.stem)
        if kept is None:
            figures = self.run(effect, given, seeds)
            own = {"machine": views.machine(), "digest": digest_of(figures), "key": path.stem}
            own["verifier"] = verdicts(effect.task)
            files.write(path, identity | figures | own)
            self.said(f"{path.stem}: {len(seeds)} seeds in {figures['minutes']} min")
            kept = json.loads(path.read_text())
        if kept.get("verifier", verdicts(effect.task)) != verdicts(effect.task):
            raise ValueError(
                f"{path.stem}: another verifier judged these figures, of a task with the same "
                "problems; let one of the tasks draw others"
            )
        return kept

    def kept(self, effect: Effect, given: Arm, seeds: Sequence[int]) -> dict[str, Any] | None:
        """Figures of an arm if they are kept; it is not run."""
        return archive.read(self.directory, self.key(effect, given, seeds))

    def path(self, identity: dict[str, Any]) -> Path:
        """The file of an arm that is not packed."""
        return archive.path_of(self.directory, files.digest(identity))

    def key(self, effect: Effect, given: Arm, seeds: Sequence[int]) -> str:
        """What names an arm's figures."""
        return files.digest(self.identity(effect, given, seeds))

    @staticmethod
    def identity(effect: Effect, given: Arm, seeds: Sequence[int]) -> dict[str, Any]:
        """All that the figures of an arm depend on, as JSON holds it."""
        return {
            "version": VERSION,
            "task": effect.task.digest(),
            "arm": arms.describe(given),
            "seeds": list(seeds),
            "warm_steps": effect.warm_steps,
            "measure": measured_by(effect),
        }


def measured_by(effect: Effect) -> str:
    """What gives the figures of an experiment, in words."""
    measure = effect.measure or held_out
    keywords = arms.describe(getattr(measure, "keywords", {}))
    return str(arms.describe(getattr(measure, "func", measure))) + str(keywords)


def digest_of_kept(kept: dict[str, Any]) -> str:
    """Of the figures in an arm's file, whatever digest the file states."""
    about = {"version", "task", "arm", "seeds", "warm_steps", "measure"}
    about |= {"machine", "digest", "key", "verifier"}
    return digest_of({name: value for name, value in kept.items() if name not in about})


def digest_of(figures: dict[str, Any]) -> str:
    """Of an arm's figures, the time that they took aside."""
    return files.digest({name: value for name, value in figures.items() if name != "minutes"})
