"""The numbers and texts that a field of a config may hold, whatever the other fields are.

Every field has a range. That of one which `RANGES` does not name is from 0 on, or any number where
it is a float of an extension or an argument of a function. No number is nan. Only arguments of
functions are infinite, as a bound may be left out so, and no field is beyond the 32 bits of the
arrays that are computed with. A text holds neither a NUL character, which no file is named by, nor
half of a surrogate pair, which no file can hold; and a name is as short as that of a file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxrl import functions
from jaxrl.config.schema import Config

LARGEST_INTEGER = 2**31 - 1
LARGEST_COUNT = 2**63 - 1
LARGEST_FLOAT = 3.4028234e38
MOST_SECONDS = LARGEST_INTEGER // 1000
"""Time limit that the system can wait for: it counts 32 bits of milliseconds."""
MOST_PROCESSES = 4096
MOST_ROWS = 1 << 20
"""Rows of a batch, or problems, that a host keeps in memory."""
LONGEST_NAME, LONGEST_PATH = 255, 4096
"""Bytes that a file system allows for a name, and for a path."""
_SEED = len("-seed4294967295")


class Range(NamedTuple):
    """Numbers from `low` to `high`; an end that is open is not among them."""

    low: float = 0
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: object) -> bool:
        """Whether a number is one of them; nan is in no range."""
        assert isinstance(value, int | float)
        above = value > self.low if self.low_open else value >= self.low
        return above and (value < self.high if self.high_open else value <= self.high)

    def __str__(self) -> str:
        """What a message says of them."""
        if self.low == -math.inf:
            return "a finite number"
        low = f"above {self.low}" if self.low_open else f"{self.low} or more"
        if self.high == math.inf:
            return low
        if self.low_open or self.high_open:
            return f"{low} and {'below' if self.high_open else 'at most'} {self.high}"
        return f"from {self.low} to {self.high}"


_COUNT, _SHARE, _ANY = Range(1), Range(0, 1), Range(-math.inf)
_PART, _DECAY = Range(0, 1, low_open=True), Range(0, 1, high_open=True)
_ROWS, _WIDTH = Range(1, MOST_ROWS), Range(1, 1 << 20)

RANGES = {
    "steps": _COUNT, "seed": Range(0, (1 << 32) - 1), "updates_per_batch": _COUNT,
    "fresh.hidden_size": _WIDTH, "fresh.intermediate_size": _WIDTH, "fresh.num_heads": _WIDTH,
    "fresh.num_kv_heads": _WIDTH, "fresh.head_dim": _WIDTH, "fresh.num_layers": Range(1, 4096),
    "bandit.rate": _PART, "bandit.window": _ROWS,
    "curriculum.prompts": _ROWS, "curriculum.window": _ROWS, "curriculum.retain": _PART,
    "curriculum.retain_every": _COUNT, "curriculum.keep": _COUNT,
    "data.eval_share": _SHARE, "data.batch_size": _ROWS, "data.max_tokens": _COUNT,
    "warm_start.batch_size": _ROWS,
    "rollout.prompts": _ROWS, "rollout.group_size": _ROWS, "rollout.max_prompt_tokens": _COUNT,
    "rollout.max_new_tokens": _COUNT,
    "rollout.top_k": _ANY, "rollout.top_p": _ANY, "rollout.min_p": _ANY,
    "rollout.in_flight": Range(1, 1024), "rollout.oversampling": Range(1, 1024),
    "optimizer.learning_rate": Range(), "optimizer.eps": Range(),
    "optimizer.weight_decay": Range(), "optimizer.clip_norm": Range(),
    "optimizer.decay_share": _SHARE, "optimizer.b1": _DECAY, "optimizer.b2": _DECAY,
    "objective.kl_coef": _ANY, "objective.entropy_coef": _ANY,
    "lora.dropout": _DECAY,
    "sampler.slots": _ROWS, "sampler.prefill_rows": _ROWS, "sampler.prefill_piece": _COUNT,
    "sampler.chunk": _COUNT, "sampler.bucket": _COUNT, "sampler.draft_tokens": Range(1, 64),
    "sampler.draft_layers": Range(0),
    "sampler.prefix_cache": Range(0), "sampler.prefix_block": _COUNT,
    "packing.micro_batch_tokens": _COUNT, "packing.bucket": _COUNT,
    "mesh.fsdp": _COUNT, "mesh.tensor": _COUNT, "mesh.context": _COUNT, "mesh.expert": _COUNT,
    "eval.problems": _ROWS, "track.every": _COUNT,
    "checkpoint.every": _COUNT, "checkpoint.keep": _COUNT,
    "guard.min_entropy": _ANY, "guard.max_error_rate": _SHARE,
    "generators": Range(0, MOST_PROCESSES), "score_workers": Range(0, MOST_PROCESSES),
    "score_seconds": Range(0, MOST_SECONDS, low_open=True), "score_memory_mb": _COUNT,
    "checkpoint.patience_seconds": Range(0, MOST_SECONDS),
    "checkpoint.grace_seconds": Range(0, MOST_SECONDS),
    "guard.stall_seconds": Range(0, MOST_SECONDS),
    "critic.head.bins": _COUNT, "critic.discount": _SHARE, "critic.mixing": _SHARE,
    "critic.turn_discount": _SHARE, "critic.turn_mixing": _SHARE, "critic.clip": Range(),
    "ilql.discount": _SHARE, "ilql.tau": _SHARE, "ilql.rate": _SHARE,
    "latents.imitated": _SHARE, "latents.stay": _SHARE,
}  # fmt: skip
"""By dotted name, which stands for a group within another one too: `mesh` for `sampling.mesh`."""
_OF_CONFIG = frozenset(field.name for field in dataclasses.fields(Config))


def check(config: Config) -> None:
    """Refuse a number or a text that no run could have in its field.

    Raises:
      ValueError: naming the field, the value and what it may be.
    """
    for name, value, entry in _values(config, ""):
        if isinstance(value, str):
            _check_text(name, value, short=not entry and _is_name(name))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _check_number(name, value, entry=entry)
    rows = config.rollout.prompts * config.rollout.group_size
    if rows > MOST_ROWS:
        raise ValueError(
            f"rollout.prompts={config.rollout.prompts} with rollout.group_size="
            f"{config.rollout.group_size} are {rows} completions a step; have at most {MOST_ROWS}"
        )
    if not config.run_dir and "/" in config.recipe:
        raise ValueError(
            f"recipe={config.recipe!r} with run_dir='': the run directory would be named after "
            "it, and it has a slash; set run_dir"
        )


def range_of(name: str, value: float) -> Range:
    """The numbers that a field may have.

    Args:
      name: dotted name of a field of the config, or of a bundled extension.
      value: of the field, an integer or a float.
    """
    *groups, field = name.split(".")
    if groups[:1] == ["domains"] and len(groups) == 2:  # a domain may have the name of a group
        return Range()
    allowed = RANGES.get(name) or RANGES.get(".".join([*groups[-1:], field]))
    if allowed is not None:
        return allowed
    of_config = name.partition(".")[0] in _OF_CONFIG
    return Range() if of_config or isinstance(value, int) else _ANY


def _values(value: Any, name: str, *, entry: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """All values by dotted name, and whether one is an entry of a mapping, or its key.

    Extensions from outside this package say themselves what theirs may be.
    """
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if isinstance(value, Config) and field.name == "extensions":
                for reference, settings in inner.items():
                    if ":" not in reference or functions.bundled(reference):
                        yield from _values(settings, functions.extension_name(reference))
            else:
                yield from _values(inner, f"{name}.{field.name}".removeprefix("."))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield name, key, True
            yield from _values(inner, f"{name}.{key}", entry=True)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _values(inner, name, entry=entry)
    else:
        yield name, value, entry


def _check_number(name: str, value: float, *, entry: bool) -> None:
    """Refuse nan, and a field that is out of its range."""
    if entry:
        if isinstance(value, int):
            if not -LARGEST_COUNT <= value <= LARGEST_COUNT:
                raise ValueError(f"{name}={_short(value)}: must be at most {LARGEST_COUNT}")
        elif math.isnan(value):
            raise ValueError(f"{name}={value}: must be a number")
        return
    most = LARGEST_INTEGER if isinstance(value, int) else LARGEST_FLOAT
    allowed = range_of(name, value)
    if value in allowed and abs(value) <= max(most, allowed.high if allowed.high < math.inf else 0):
        return
    beyond = f", and at most {most}" if value in allowed else ""
    raise ValueError(f"{name}={_short(value)}: must be {allowed}{beyond}")


def _short(value: float) -> str:
    """A number as a message has it, whose digits may be any number of them."""
    text = repr(value)
    return text if len(text) < 40 else f"{text[:20]}... of {len(text)} digits"


def _check_text(name: str, text: str, *, short: bool) -> None:
    """Refuse characters that no file can hold, and a name that no file can have."""
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
        raise ValueError(
            f"{name}={text!r:.200}: has a NUL character or half of a surrogate pair, which no "
            "file can hold; leave it out"
        )
    if short:
        most = LONGEST_NAME - _SEED if name == "recipe" else LONGEST_NAME
        longest = max(len(part.encode()) for part in text.split("/"))
        if longest > most or len(text.encode()) > LONGEST_PATH:
            raise ValueError(
                f"{name}={text[:60]!r}... of {len(text)} characters: a name has at most {most} "
                f"bytes, and a path {LONGEST_PATH}; shorten it"
            )


def _is_name(name: str) -> bool:
    """Whether a field holds a name or a path, and no text to read."""
    return name not in (
        "rollout.system", "judge.rubric", "latents.line", "guidance.shown", "policy_reward.marker",
        "corrector.end",
    )  # fmt: skip
