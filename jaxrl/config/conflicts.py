"""Pairs of settings that no run can have together, as one table.

`check` refuses them before anything else is looked at, and docs/composition.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxrl import functions
from jaxrl.config import stages
from jaxrl.config.schema import Config
from jaxrl.training import objective


class Setting(NamedTuple):
    """A setting that a config may have."""

    name: str
    """As messages name it."""
    value: Callable[[Config], Any]
    """Its value in a config; a false one, None included: it is not set."""
    title: str = ""
    """As docs/composition.md names it; empty: its name."""


class Conflict(NamedTuple):
    """Two settings that do not go together."""

    first: Setting
    second: Setting
    why: str


def _staleness(config: Config) -> str:
    """A text, as 0 is an asynchronous run too."""
    value = config.asynchronous.staleness
    return "" if value is None else str(value)


def _factor(value: float) -> float:
    """A factor of groups; 0 where it is 1, which changes nothing."""
    return value if value > 1 else 0


def resampled(config: Config) -> list[str]:
    """Fields of stages that change what is sampled; the others change the objective alone."""
    fields = {
        field
        for changes in config.stages.values()
        for field in changes
        if field != stages.PERIOD and not field.startswith("objective.")
    }
    if len({objective.needs_greedy(staged.objective) for _, staged in stages.all_of(config)}) > 1:
        fields.add("objective.advantage")  # greedy answers are sampled too
    return sorted(fields)


_READERS = (
    "corrector", "ilql", "label_smoothing", "latents", "mismatched", "nucleus", "sharpness",
    "teacher", "unmasked",
)  # fmt: skip


def _support_readers(config: Config) -> list[str]:
    """Extensions that read, keep or make log-probabilities of their own."""
    names = {functions.extension_name(reference) for reference in config.extensions}
    return sorted(names & set(_READERS))


ASYNCHRONOUS = Setting("asynchronous.staleness", _staleness)
STALE = Setting(
    "asynchronous.staleness",
    lambda config: config.asynchronous.staleness,
    "`asynchronous.staleness` above 0",
)
FILE = Setting("data.kinds", lambda config: config.data.kinds, "`data.kinds`, rows of a file")
GENERATORS = Setting("generators", lambda config: config.generators)
PARTIAL = Setting(
    "rollout.in_flight",
    lambda config: _factor(config.rollout.in_flight),
    "`rollout.in_flight` above 1",
)
ADAPTIVE = Setting(
    "rollout.rounds",
    lambda c: c.rollout.rounds == "adaptive" and "adaptive",
    "`rollout.rounds` adaptive",
)
STAGES = Setting("stages", lambda config: sorted(config.stages))
SAMPLING_STAGES = Setting(
    "fields of stages", resampled, "`stages` that set more than the objective"
)
SAMPLING_DEVICES = Setting("sampling.devices", lambda config: config.sampling.devices)
GUIDANCE = Setting("extensions.guidance", lambda config: config.extensions.get("guidance"))
NUCLEUS = Setting("extensions.nucleus", lambda config: config.extensions.get("nucleus"))
ON_DEVICE = Setting("rollout.on_device", lambda config: config.rollout.on_device)
TRUNCATION = Setting(
    "rollout.{top_k,top_p,min_p}",
    lambda config: config.rollout.truncated,
    "`rollout.top_k`, `top_p` or `min_p`",
)
CONSTRAINT = Setting("rollout.constraint", lambda config: config.rollout.constraint)
CHUNKS = Setting(
    "rollout.chunks.size", lambda config: config.rollout.chunks.size, "`rollout.chunks`"
)
SUPPORT_READERS = Setting(f"extensions {', '.join(_READERS)}", _support_readers)
DRAFTS = Setting(
    "sampler.drafts",
    lambda config: config.sampler.most_drafted and config.sampler.drafts,
    "`sampler.drafts`",
)
EPOCHS = Setting(
    "sampler.drafts",
    lambda config: config.sampler.drafts == "epochs" and "epochs",
    "`sampler.drafts` epochs",
)
DRAFT_MODEL = Setting(
    "sampler.drafts",
    lambda config: config.sampler.drafts == "model" and "model",
    "`sampler.drafts` model",
)
COURSE = Setting("course", lambda config: sorted(config.course))
FORK = Setting("fork", lambda config: config.fork)
INT8_MOMENTS = Setting(
    "optimizer.moments",
    lambda config: config.optimizer.moments == "int8" and "int8",
    "`optimizer.moments` int8",
)
OTHER_METHODS = Setting(
    "optimizer.method",
    lambda config: config.optimizer.method != "adamw" and config.optimizer.method,
    "`optimizer.method` other than adamw",
)

_UNFINISHED = "groups begun in one stage would be finished under the settings of the next"

CONFLICTS = (
    Conflict(ASYNCHRONOUS, FILE, "a run on rows of a file samples nothing"),
    Conflict(
        ASYNCHRONOUS,
        PARTIAL,
        "an asynchronous run does the same by asynchronous.in_flight with "
        "asynchronous.order=finished, and bounds the lag",
    ),
    Conflict(
        ASYNCHRONOUS, ADAPTIVE, "an asynchronous run replaces groups one by one, and not in rounds"
    ),
    Conflict(STALE, SAMPLING_STAGES, _UNFINISHED),
    Conflict(PARTIAL, SAMPLING_STAGES, _UNFINISHED),
    Conflict(TRUNCATION, FILE, "a run on rows of a file samples nothing"),
    Conflict(TRUNCATION, GENERATORS, "generators do not send which tokens they left out"),
    Conflict(
        TRUNCATION,
        SUPPORT_READERS,
        "these take log-probabilities over the whole vocabulary, or over other tokens",
    ),
    Conflict(CONSTRAINT, FILE, "a run on rows of a file samples nothing"),
    Conflict(CONSTRAINT, GENERATORS, "generators do not send which tokens they left out"),
    Conflict(
        CONSTRAINT,
        SUPPORT_READERS,
        "these take log-probabilities over the whole vocabulary, or over other tokens",
    ),
    Conflict(CONSTRAINT, CHUNKS, "each chunk is a context that does not know how the text began"),
    Conflict(CONSTRAINT, ON_DEVICE, "masks are made on the host, between two tokens"),
    Conflict(DRAFTS, CONSTRAINT, "masks are made on the host, between two tokens"),
    Conflict(EPOCHS, GENERATORS, "generators keep nothing of a step; use group"),
    Conflict(DRAFT_MODEL, GENERATORS, "generators are sent the policy alone; use layers"),
    Conflict(DRAFTS, ON_DEVICE, "episodes within the decode loop are sampled a token at a time"),
    Conflict(GENERATORS, FILE, "a run on rows of a file samples nothing"),
    Conflict(GENERATORS, STAGES, "generators are started once, with one config"),
    Conflict(GENERATORS, SAMPLING_DEVICES, "generators have devices of their own"),
    Conflict(GENERATORS, GUIDANCE, "generators do not know what guides a prompt"),
    Conflict(GENERATORS, NUCLEUS, "generators do not know which tokens are left out"),
    Conflict(GENERATORS, ON_DEVICE, "generators play no episodes within their decode loop"),
    Conflict(
        COURSE,
        FORK,
        "a course begins with its first stage; each of its stages can be forked as RUN/stages/N",
    ),
    Conflict(INT8_MOMENTS, OTHER_METHODS, "only the moments of adamw are quantised"),
)
"""Pairs of settings, with the reason; every pair is refused in either order."""


def check(config: Config) -> None:
    """Refuse the first of the conflicts that a config has.

    Raises:
      ValueError: naming both settings, their values, the reason and the remedy.
    """
    for first, second, why in CONFLICTS:
        values = [setting.value(config) for setting in (first, second)]
        if all(values):
            raise ValueError(
                f"{first.name}={values[0]} with {second.name}={values[1]}: they do not go "
                f"together, as {why}; leave one of them out"
            )
