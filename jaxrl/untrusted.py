"""What a config of others may set: an allow-list of fields, as such a config is data.

A config that a user writes may say anything. One that is read from a run directory may come from
anybody: it may hold numbers, and texts in the fields that are listed here. A text in any other
field is refused, so that a field which is new stays closed until somebody has thought about it.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from jaxrl import json_file
from jaxrl.data.rewards.programs import code
from jaxrl.data.scoring import user_functions as own
from jaxrl.data.tasks import is_function
from jaxrl.functions import bundled

WEAK = "allow_weak=True"
"""The entry of a run that may run programs without a sandbox."""

REFUSED = frozenset({
    "cache", "command", "corpus", "data_file", "database", "dictionary", "entity", "environment",
    "eval_path", "history", "key_variable", "mcp", "mlflow", "models", "ood_path", "otlp", "path",
    "test_path", "trackio", "url", "wandb",
})  # fmt: skip
"""Fields of addresses, keys, files, programs and accounts: never from a config of others."""

PLAIN = frozenset({
    "advantage", "aggregation", "anchor", "answer_column", "answer_format", "attention",
    "bad_rows", "base", "by", "baseline", "best", "choose", "column", "compute_dtype",
    "correct", "credit", "delimiter", "difficulty", "divergence", "domain", "domain_column",
    "drafts", "dtype", "end", "engine", "entropy", "explorer", "game", "generator", "goals",
    "guide", "importance", "judge", "keep", "kind", "kinds", "kl", "languages", "level",
    "long_prompts", "long_rows", "method", "metric", "mode", "moments", "name", "non_finite",
    "of", "ood_goals", "ood_opponent", "opponent", "order", "param_dtype", "part", "player",
    "policy",
    "prompt_column", "ratio", "recipe", "regime", "remat", "replies", "reward", "reward_errors",
    "role", "roles", "rounds", "rows", "rule", "run_dir", "scale", "score", "scoring", "search",
    "shaping", "side", "signal", "solution_column", "source", "split", "states", "static_font",
    "steps", "support", "tags", "target", "targets", "task", "tools", "train", "unseen",
    "verify", "view", "weigh", "weights", "wrapper", "zero_signal",
    "colour_list",
    "female_names", "male_names", "mirrors", "operations", "operators", "rotations", "styles",
    "task_types", "tasks", "variables",
})  # fmt: skip
"""Fields of names and other short texts that open nothing and ask nobody."""

PROSE = frozenset({
    "answer", "asks", "criteria", "line", "marker", "regex", "shown", "static_word", "system",
    "template", "text",
})  # fmt: skip
"""Fields of texts that the policy or a judge reads; they may have several lines."""

JSON = frozenset({"args", "ood", "parts", "rewards", "rubric"})
"""Fields whose text is JSON, which is looked into."""

LOCAL = frozenset({"draft_model", "fork", "model"})
"""Fields of a model or a run, as a name or a place on this machine; both are read as data."""

FREE = frozenset({"columns", "marks", "rates", "rules", "schema"})
"""Mappings whose keys are names of others, with texts as in `PLAIN`."""

KEYED = frozenset({"course", "criteria", "domains", "extensions", "judges", "parts", "stages"})
"""Mappings from names of others to values that are looked into."""

CHOSEN = {
    "constraint": lambda text: text == "problem",  # else a file
    "language": lambda text: text in code.languages(),
    "schedule": re.compile(r"[a-z_]+|lockstep:[0-9]+").fullmatch,
}
"""Fields of one of several texts, with what says which."""

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_PLACES = ("/dev", "/proc", "/sys", "/net", "/run")
"""Places of machines, processes and devices, none of which holds a model."""
_HIDDEN = {"Cc", "Cs", "Zl", "Zp"}
_TURNING = set(map(chr, [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]))
"""Characters that change the direction of what follows, so that a text shows as another."""


def foreign(value: Any) -> set[str]:
    """What plain values set or name that a config of others may not.

    Args:
      value: nested dicts and lists, as of a config.

    Returns:
      Functions that are not `bundled`, as they are named, and any other text as FIELD=VALUE.
    """
    return set(_entries("", value))


def check(config: Mapping[str, Any], where: str, trusted: Collection[str] = ()) -> None:
    """Refuse a config of unknown origin that is more than data.

    Args:
      config: as plain values.
      where: it was read.
      trusted: entries of `foreign` that the user's own command or an earlier one has named.

    Raises:
      ValueError: it has others.
    """
    if names := sorted(foreign(config) - set(trusted)):
        listed = ", ".join(name if name.isprintable() else repr(name)[1:-1] for name in names)
        raise ValueError(
            f"{where} names {listed:.1000}, which a run directory of others may not: functions, "
            "programs, files, addresses, keys, accounts, and fields that are not known. If you "
            "trust who made that run, train, sample, eval, serve, replay and export take --trust; "
            "a command may also name the same value itself"
        )


def _entries(field: str, value: Any) -> Iterator[str]:
    """The entries of a value, which the field is set to."""
    if field == "models" and isinstance(value, list | tuple):
        field = "model"  # a text is a file of addresses, a list has models
    if field in REFUSED:
        if value is not None and value is not False and value not in ("", (), []):
            yield _entry(field, value)
    elif isinstance(value, Mapping):
        yield from _of_mapping(field, value)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _entries(field, child)
    elif isinstance(value, str):
        yield from _of_text(field, value)
    elif field == "allow_weak" and value:
        yield WEAK


def _of_mapping(field: str, value: Mapping[Any, Any]) -> Iterator[str]:
    yield from filter(None, (_unsafe(str(key), prose=False) for key in value))
    for key, child in value.items():
        if field in FREE:
            yield from _of_tree(child)
        elif field in KEYED:
            yield from _of_keyed(field, child)
        else:
            yield from _entries(_last(str(key)), child)


def _of_keyed(field: str, value: Any) -> Iterator[str]:
    """The entries of what a name of others stands for: fields, or a list that has some."""
    for child in value if isinstance(value, list | tuple) else [value]:
        yield from _entries("" if isinstance(child, Mapping) else field, child)


def _of_tree(value: Any) -> Iterator[str]:
    """The entries of a tree whose keys have no meaning here."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from filter(None, [_unsafe(str(key), prose=False)])
            yield from _of_tree(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _of_tree(child)
    elif isinstance(value, str):
        yield from filter(None, [_unsafe(value, prose=True)])


def _of_text(field: str, text: str) -> Iterator[str]:
    """The entries of a text."""
    long = field in PROSE or field in JSON
    if not text:
        return
    if unsafe_text := _unsafe(text, prose=long):
        yield unsafe_text
    elif _is_nested(text):
        yield from _of_nested(field, text)
    elif field in LOCAL:
        if not _is_local(text):
            yield _entry(field, text)
    elif field in CHOSEN:
        if not CHOSEN[field](text):
            yield _entry(field, text)
    elif not (long or field in PLAIN):
        yield _entry(field, text)


def _of_nested(field: str, text: str) -> Iterator[str]:
    """The entries of a text that may be JSON; a template may begin as JSON does."""
    try:
        inner = json.loads(text)
    except ValueError:
        if field not in PROSE:
            yield _entry(field, text)
    except RecursionError:
        yield _entry(field, text)
    else:
        if json_file.is_deep(inner):
            yield _entry(field, text)
        else:
            yield from _of_tree(inner) if field in PROSE else _entries(field, inner)


def _is_nested(text: str) -> bool:
    """Whether a text may be JSON of more than a word."""
    return text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[", '"')


def _unsafe(text: str, *, prose: bool) -> str:
    """A text that is in no field: a function of others, a file of functions, an address, or one
    with characters that show nothing; else empty."""
    flat_text = text.replace("\n", " ").replace("\t", " ") if prose else text
    if any(unicodedata.category(c) in _HIDDEN or c in _TURNING for c in flat_text):
        return text
    if is_function(text):
        return "" if bundled(text) else text
    return text if own.is_file(text) or _ADDRESS.match(_folded(text)) else ""


def _folded(text: str) -> str:
    """A text without what readers of addresses leave out, in the usual form of its letters."""
    characters = (
        c for c in text if unicodedata.category(c) not in ("Cc", "Cf") and not c.isspace()
    )
    return unicodedata.normalize("NFKC", "".join(characters))


def _is_local(text: str) -> bool:
    """Whether a text names a model that comes along, or a place on this machine."""
    if "://" in _folded(text) or "\\" in text or text.startswith(("//", "~")):
        return False
    place = os.path.abspath(text)
    return not any(place == root or place.startswith(f"{root}/") for root in _PLACES)


def _last(name: str) -> str:
    """The field that a key sets, as of `rollout.system`."""
    return name.rpartition(".")[2].replace("-", "_")


def _entry(field: str, value: Any) -> str:
    return f"{field}={value!r}"
