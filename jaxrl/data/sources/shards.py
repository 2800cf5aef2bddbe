"""The files that a path of a data set stands for: a file, a glob, a folder of shards, or a layout.

A folder is read as `datasets.load_dataset` reads it: where its files are named after splits, the
files of `train` alone are its rows. What cannot be told apart is refused, and a glob says what is
meant: `FOLDER/test*.jsonl`.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Sequence
from pathlib import Path

from jaxrl.data.sources import compressed

LINES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
TABLES = (".parquet", ".arrow", ".ipc", ".feather")
_SPLITS = {
    "train": "train", "training": "train", "test": "test", "testing": "test", "eval": "test",
    "evaluation": "test", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation",
}  # fmt: skip
_SHARD = re.compile(r"(.+)-[0-9]{4,}-of-[0-9]{4,}")
_METADATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


def suffix(path: Path) -> str:
    """The ending that tells the format of a file; empty where it is not read."""
    stem = path.stem if path.suffix.lower() in compressed.ENDINGS else path.name
    ending = Path(stem).suffix.lower()
    if ending in LINES or (ending in TABLES and stem == path.name):
        return ending
    return ""


def files(spec: str) -> list[Path]:
    """The files that `spec` stands for, in the order of their names.

    Raises:
      ValueError: there is none, or a folder whose files are not one data set.
    """
    path = Path(spec)
    if not path.exists():
        if matches := sorted(Path(match) for match in glob.glob(spec, recursive=True)):
            return [file for match in matches for file in _files_of(match)]
        what = "matches no file" if glob.has_magic(spec) else "does not exist"
        raise ValueError(f"path={spec!r} {what}; give a file, a folder, a glob or tfds:NAME")
    return _files_of(path)


def _files_of(path: Path) -> list[Path]:
    return _folder(path) if path.is_dir() else [path]


def _folder(path: Path) -> list[Path]:
    if (path / "dataset_dict.json").exists():
        splits = json.loads((path / "dataset_dict.json").read_text())["splits"]
        if "train" not in splits:
            raise ValueError(f"path={str(path)!r}: name one of its splits: {', '.join(splits)}")
        return _folder(path / "train")
    if (path / "state.json").exists():
        state = json.loads((path / "state.json").read_text())
        return [path / file["filename"] for file in state["_data_files"]]
    if (path / "snapshots").is_dir():
        return _folder(_snapshot(path))
    if configured := _configured(path):
        return configured
    shards = [
        file
        for file in sorted(path.rglob("*"))
        if suffix(file) and file.name not in _METADATA and not _hidden(file, path)
    ]
    shards = _of_train(shards, path)
    _check_alike(shards, path)
    return shards


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def _snapshot(path: Path) -> Path:
    """The revision of a data set in the cache of the Hub: that of `main`, or the one that is there.

    Raises:
      ValueError: there are several.
    """
    branch = path / "refs" / "main"
    if branch.exists():
        return path / "snapshots" / branch.read_text().strip()
    revisions = sorted(entry for entry in (path / "snapshots").iterdir() if entry.is_dir())
    if len(revisions) != 1:
        raise ValueError(f"path={str(path)!r} has {len(revisions)} snapshots; name one of them")
    return revisions[0]


def _configured(path: Path) -> list[Path]:
    """The train files that the card of a data set names; empty without a card that does.

    Raises:
      ValueError: it has several configurations, and none is the default.
    """
    card = path / "README.md"
    front = re.match(r"---\n(.*?)\n---", card.read_text("utf-8"), re.DOTALL) if card.exists() else 0
    if not front:
        return []
    import yaml

    configs = (yaml.safe_load(front[1]) or {}).get("configs") or []
    configs = [entry for entry in configs if entry.get("data_files")]
    if not configs:
        return []
    chosen = [c for c in configs if c.get("default") or c.get("config_name") == "default"]
    if len(configs) > 1 and len(chosen) != 1:
        names = ", ".join(str(entry.get("config_name")) for entry in configs)
        raise ValueError(
            f"path={str(path)!r} has the configurations {names}; name the files of one, as in "
            f"{path / str(configs[0].get('config_name')) / 'train*'}"
        )
    patterns = _train_patterns((chosen or configs)[0]["data_files"])
    matches = {match for pattern in patterns for match in path.glob(pattern)}
    return sorted(file for file in matches if suffix(file))


def _train_patterns(value: object) -> list[str]:
    """Globs of the train split in `data_files` of a card."""
    if isinstance(value, dict) and "path" not in value:
        value = [{"split": split, "path": path} for split, path in value.items()]
    entries = value if isinstance(value, list) else [value]
    if all(isinstance(entry, str) for entry in entries):
        return [str(entry) for entry in entries]
    paths = [e.get("path", []) for e in entries if e.get("split", "train") == "train"]
    return [p for path in paths for p in (path if isinstance(path, list) else [path])]


def _split(file: Path, folder: Path) -> str:
    """The split that a file is named after; empty for none."""
    words = re.split(r"[^a-z]+", str(file.relative_to(folder)).lower())
    return next((_SPLITS[word] for word in words if word in _SPLITS), "")


def _of_train(shards: Sequence[Path], folder: Path) -> list[Path]:
    """The shards of the train split, where they are named after splits."""
    splits = {file: _split(file, folder) for file in shards}
    names = {split for split in splits.values() if split}
    if not names:
        return list(shards)
    if "train" not in names:
        if len(names) == 1:
            return list(shards)
        raise ValueError(
            f"path={str(folder)!r} holds the splits {', '.join(sorted(names))} and no train; name "
            f"the files of one, as in {folder / (sorted(names)[0] + '*')}"
        )
    if strays := [file for file in shards if not splits[file]]:
        raise ValueError(
            f"path={str(folder)!r} holds files named after splits, and {strays[0].name!r} beside "
            f"them; name those that are meant, as in {folder / '**' / 'train*'}"
        )
    train = [file for file in shards if splits[file] == "train"]
    # the name of a shard on the Hub is that of its split, such as train_sft
    names = {match[1] for file in train if (match := _SHARD.match(file.name))}
    if len(names) > 1:
        raise ValueError(
            f"path={str(folder)!r} holds the splits {', '.join(sorted(names))}; name the files of "
            f"one, as in {train[0].parent / (min(names) + '-*')}"
        )
    return train


def _check_alike(shards: Sequence[Path], folder: Path) -> None:
    """Refuse a folder that holds nothing, or more than one data set."""
    if not shards:
        raise ValueError(f"path={str(folder)!r} is a folder without {_readable()}")
    formats = sorted({suffix(file) for file in shards})
    if len(formats) > 1:
        raise ValueError(
            f"path={str(folder)!r} holds files of {' and '.join(formats)}; name those that are "
            f"meant, as in {folder / ('*' + formats[0])}"
        )
    folders = sorted({str(file.parent.relative_to(folder)) for file in shards})
    if len(folders) > 1:
        raise ValueError(
            f"path={str(folder)!r} holds files in {', '.join(folders)}; name one of these folders, "
            f"or all with a glob, as in {folder / '**' / ('*' + formats[0])}"
        )


def _readable() -> str:
    return (
        f"{', '.join((*LINES, *TABLES))} (those of lines also as {', '.join(compressed.ENDINGS)})"
    )


def check(path: Path) -> None:
    """Refuse a file of a format that is not read."""
    if not suffix(path):
        raise ValueError(f"path={str(path)!r} is none of {_readable()}")
