"""The bundled tasks as a TFDS data set, in array_record.

    tfds build data/builders/jaxrl_tasks --config countdown --file_format array_record

or `prepare("countdown", directory)`, which unlike that command needs no TensorFlow. Read it as
`tfds:jaxrl_tasks/countdown:1.0.0/train@DIRECTORY`, see `jaxrl.data.sources.records`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

from jaxrl.data import tasks


@dataclasses.dataclass
class TaskConfig(tfds.core.BuilderConfig):
    """A task, its parameters as JSON, and how many problems of each split to write."""

    task: str = ""
    params: str = "{}"
    seed: int = 0
    examples: int = 1000


class Builder(tfds.core.GeneratorBasedBuilder):
    """Writes problems of one task."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [  # noqa: RUF012 - TFDS reads it from the class
        TaskConfig(name=name, task=name, description=f"The task {name}.")
        for name in tasks.BUNDLED
        if name not in tasks.NEED_PARAMETERS
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        features = {name: text for name in ("id", "prompt", "answer", "gold", "domain")}
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(features),
            description="Problems of one task; `answer` is JSON, `gold` a full-reward completion.",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        config = self.builder_config
        splits = tasks.get(config.task, **json.loads(config.params)).splits
        return {split: self._generate_examples(split) for split in splits}

    def _generate_examples(self, split: str) -> Iterator[tuple[str, dict[str, str]]]:
        config = self.builder_config
        task = tasks.get(config.task, **json.loads(config.params))
        problem_ids = set()
        for index in range(task.sizes.get(split, config.examples)):
            problem = task.problem(split, config.seed, index)
            if problem.id in problem_ids:
                continue
            problem_ids.add(problem.id)
            yield (
                problem.id,
                {
                    "id": problem.id,
                    "prompt": problem.prompt,
                    "answer": json.dumps(problem.answer, default=str),
                    "gold": task.gold(problem) if task.gold else "",
                    "domain": problem.domain,
                },
            )


def prepare(config: str | TaskConfig, directory: str) -> Builder:
    """Write a data set in array_record below `directory`, unless it is there, and open it.

    Args:
      config: name of a bundled task, or a config of your own.
      directory: TFDS's data directory.
    """
    builder = Builder(config=config, data_dir=directory, file_format="array_record")
    builder.download_and_prepare()
    return builder
