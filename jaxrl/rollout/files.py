"""Reads the data files that a config names."""

from __future__ import annotations

from jaxrl.config import DataConfig
from jaxrl.data.sources import rows
from jaxrl.data.sources.rows import Rows
from jaxrl.rollout import comparisons


def read(settings: DataConfig, path: str) -> Rows:
    """The rows of a file, of a kind that the objective learns from.

    Raises:
      ValueError: no file is named, or its rows are of another kind.
    """
    if not path:
        raise ValueError("this recipe learns from a file; name it with --data FILE")
    file_rows = rows.read(path, settings.columns, bad=settings.bad_rows)
    if file_rows.kind not in settings.kinds:
        raise ValueError(
            f"{path} holds rows of the kind {file_rows.kind!r} (columns "
            f"{', '.join(file_rows.columns.values())}), and this recipe learns from "
            f"{' or '.join(settings.kinds)}; choose another recipe, or name the columns, as in "
            "--data.columns.prompt NAME"
        )
    if settings.comparisons and file_rows.kind != "preference":
        raise ValueError(
            f"data.comparisons with {path}: its rows are of the kind {file_rows.kind!r}, and only "
            "preferences can be compared; leave it out"
        )
    if settings.long_rows == "split" and file_rows.kind != "text":
        raise ValueError(
            f"data.long_rows='split' with {path}: its rows are of the kind {file_rows.kind!r}, and "
            "only a text may be cut anywhere; choose truncate, drop or error"
        )
    return file_rows


def alphabet(settings: DataConfig) -> str:
    """Every character of the files, for a randomly initialised model."""
    files = filter(None, (settings.path, settings.eval_path))
    characters: set[str] = set()
    for file_rows in (read(settings, path) for path in files):
        for row in (file_rows[index] for index in range(len(file_rows))):
            characters.update(
                *(text for text in (row.prompt, *row.answers) if isinstance(text, str))
            )
            characters.update("\n" * row.stepwise)
            if settings.comparisons:
                characters.update(*comparisons.questions(row, 0), "0123456789abcdef")
    return "".join(sorted(characters))
