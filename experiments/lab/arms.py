"""An arm of an experiment: what it trains on, and how.

Curricula, guides, replay, critics and the objective are the real loop's own, by the same configs.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from experiments.lab import phases
from experiments.lab.aliases import recorded
from experiments.lab.tasks import Problems
from jaxrl import functions
from jaxrl.config import BanditConfig, Config, CurriculumConfig
from jaxrl.data.selection import curriculum
from jaxrl.extensions.critic import CriticConfig
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.extensions.latents import LatentsConfig
from jaxrl.extensions.nucleus import NucleusConfig
from jaxrl.extensions.reference_refresh import RefreshConfig
from jaxrl.extensions.renormalise import RenormaliseConfig
from jaxrl.extensions.replay import ReplayConfig
from jaxrl.extensions.sharpness import SharpnessConfig
from jaxrl.launch.recipes.demonstrations.sasr import ImitationConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.tries import WHOLE, Chunks

LATER = {"described": "if set"}
"""Metadata of a field of `Arm` that is younger than plans: arms without it are described as before,
so that their plans hold."""


class Sampled(NamedTuple):
    """What a change of the rewards sees of a batch; one seed, N sequences of T tokens."""

    problems: Problems
    """Of each sequence: fields [N, ...]."""
    tokens: jax.Array
    """[N, T] int32, the completions."""
    actions: jax.Array
    """[N, T] bool: what the policy chose."""
    logp: jax.Array
    """[N, T] float32."""
    entropy: jax.Array
    """[N, T] float32."""
    rewards: jax.Array
    """[N] float32."""
    group_ids: jax.Array
    """[N] int32 in [0, N)."""
    step: jax.Array
    key: jax.Array
    score: Callable[[jax.Array], jax.Array] | None = None
    """[N, L] int32 tokens, prompts first -> their log-probabilities under the sampler's policy."""


class Parts(NamedTuple):
    """Rewards that have parts of their own, which the objective reads beside them."""

    rewards: jax.Array
    """[N] float32."""
    parts: jax.Array
    """[N, K] float32, as `jaxrl.types.Trajectory.reward_parts`."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to train. Two arms that differ in one field are a method and its ablation."""

    objective: ObjectiveConfig = ObjectiveConfig()
    guidance: GuidanceConfig | None = None
    replay: ReplayConfig | None = None
    reference: RefreshConfig | None = None
    curriculum: CurriculumConfig = CurriculumConfig()
    """`history` there is `before`, here."""
    bandit: BanditConfig = BanditConfig()
    weights: tuple[float, ...] = ()
    """Of the task's domains, which the bandit moves; empty draws from all of them as one."""
    before: Arm | None = None
    """An earlier run from the same policies. Its rewards choose what this one trains on, once: the
    `keep` prompts that score highest, or with weights, more of the domains that it failed."""
    critic: CriticConfig | None = None
    """Of its optimizer, the learning rate counts."""
    steps: int = 100
    learning_rate: float = 1e-3
    prompts: int = 16
    """Prompts a step."""
    group_size: int = 8
    updates_per_batch: int = 1
    """Optimizer updates on each batch, each over an equal share of its groups."""
    temperature: float = 1.0
    max_new_tokens: int = 0
    """Completion budget; 0 takes the task's."""
    oversampling: float = 1.0
    """Budget of dynamic sampling, as `rollout.oversampling`."""
    chunks: Chunks = WHOLE
    """That completions are thought in, held-out ones too."""
    nucleus: NucleusConfig | None = None
    imitation: ImitationConfig | None = None
    """Of SASR: which updates imitate."""
    sharpness: SharpnessConfig | None = dataclasses.field(default=None, metadata=LATER)
    """How far updates go uphill for their gradient."""
    latents: LatentsConfig | None = dataclasses.field(default=None, metadata=LATER)
    """Of RA3: how often the text that stands behind sampled latents is imitated."""
    renormalise: RenormaliseConfig | None = dataclasses.field(default=None, metadata=LATER)
    """Which rewards are put into units of their history: all, or with a `part` the second ones."""
    model: Mapping[str, int] | None = dataclasses.field(default=None, metadata=LATER)
    """Sizes of the policy that are not the lab's: fields of `DecoderConfig`."""
    measure: Callable[..., Any] | None = dataclasses.field(default=None, metadata=LATER)
    """Gives its figures, in place of the experiment's `measure`."""
    delay: int = 0
    """The sampler's policy is this many steps old,"""
    sync_every: int = 1
    """and renewed at this interval of steps; a number above `steps` makes the data offline."""
    rewards: Callable[[Sampled], jax.Array | Parts] | None = None
    """-> [N] float32: the environment's rewards in place of the verifier's, such as noisy ones; nan
    leaves the sequence out, as a failed score does. What a method does to rewards is rather the
    objective's `shaping`. Or [N, 2]: the reward and another part of it, which are added. Or
    `Parts`."""
    stages: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    """(first step, fields that change there), the first from step 0 on."""

    def at(self, step: int) -> Arm:
        """The arm in force at a step."""
        if not self.stages:
            return self
        return dataclasses.replace(self, **curriculum.stage_at(self.stages, step), stages=())

    @property
    def mass(self) -> float:
        """Of the nucleus; 0 without one."""
        return 0.0 if self.nucleus is None else self.nucleus.mass


SIZES = frozenset(
    {
        "steps", "learning_rate", "prompts", "group_size", "max_new_tokens",
        "chunks.size", "chunks.carry", "nucleus.every", "reference.every",
        "curriculum.keep", "curriculum.prompts", "curriculum.retain_every",
        "curriculum.args.width", "curriculum.args.speed",
        "replay.groups", "replay.size", "replay.keep_args.before",
        "objective.policy_args.decay_steps", "objective.policy_args.presample_steps",
    }
)  # fmt: skip
"""Sizes and budgets, which an experiment may set: paths of fields of an arm."""
IMITATION = "jaxrl.launch.recipes.demonstrations.sasr:imitation"
"""Extension of a recipe that an arm has as its `imitation`."""
REGIME = ("delay", "sync_every", "rewards", "weights", "before", "stages")
"""Fields that say in what circumstances both arms train; a recipe's config has none of them."""
COMPONENTS = {
    "objective.policy": "policy loss",
    "objective.policy_args": "policy loss",
    "objective.shaping": "reward shaping",
    "objective.shaping_args": "reward shaping",
    "objective.advantage": "advantage",
    "objective.advantage_args": "advantage",
    "objective.rows": "filter of sequences",
    "objective.rows_args": "filter of sequences",
    "objective.aggregation": "aggregation",
    "objective.kl": "KL penalty",
    "objective.kl_coef": "KL penalty",
    "objective.entropy_coef": "entropy bonus",
}
"""Fields of the objective, and the part of a method that they belong to."""
COUPLED = {
    "prompts of an earlier run": ("curriculum", "before"),
    "order of domains": ("weights", "stages"),
}
"""Part -> fields that are one part where method and ablation differ in all of them: either without
the other is another method."""
PENALTIES = {
    "KL penalty": ("objective", "kl_coef"),
    "entropy bonus": ("objective", "entropy_coef"),
}
"""Part -> the path of its coefficient, which is 0 where there is none."""


def arm(config: Config, *, sizes: Mapping[str, Any] | None = None, **changes: Any) -> Arm:
    """The arm that does what a recipe's config does, in the small.

    Args:
      config: of the recipe.
      sizes: path of a nested field of `SIZES` -> value, such as `{"curriculum.keep": 42}`.
      changes: fields of `SIZES` and of `REGIME`.

    Raises:
      ValueError: another field is to be changed.
    """
    other = sorted(({*changes} | {*(sizes or {})}) - SIZES - {*REGIME})
    if other:
        raise ValueError(
            f"an arm may not change {', '.join(other)}: it trains what the recipe trains, so "
            "change the recipe's config(); sizes are in SIZES and the regime in REGIME"
        )
    config = phases.joined(config)
    shared = ("objective", "curriculum", "bandit", "updates_per_batch")
    given = {name: getattr(config, name) for name in shared}
    for name in ("temperature", "oversampling", "chunks"):
        given[name] = getattr(config.rollout, name)
    for name in ("guidance", "replay", "nucleus", "critic", "sharpness", "latents", "renormalise"):
        given[name] = config.extensions.get(name)
    given["reference"] = config.extensions.get("reference_refresh")
    given["imitation"] = config.extensions.get(IMITATION)
    made = Arm(**given | changes)
    for path, value in (sizes or {}).items():
        made = _with(made, path.split("."), value)
    return made


def with_objective(objective: ObjectiveConfig) -> Callable[[Arm], Arm]:
    """An arm that differs from a method's in the objective alone, for `Effect.further`."""
    return lambda method: dataclasses.replace(method, objective=objective)


def describe(value: Any) -> Any:
    """An arm as JSON holds it; functions by their names."""
    if dataclasses.is_dataclass(value):
        held = {f: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {
            f.name: describe(own)
            for f, own in held.items()
            if f.metadata != LATER or own != f.default
        }
    if isinstance(value, Mapping):
        return {recorded(str(k)): describe(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    if isinstance(value, functools.partial):
        return {describe(value.func): describe([*value.args, value.keywords])}
    if callable(value):
        return recorded(f"{value.__module__}:{value.__qualname__}")
    return recorded(value) if isinstance(value, str) else value


def flat(described: Any, path: str = "") -> dict[str, Any]:
    """Path -> value of a described arm."""
    if not isinstance(described, dict):
        return {path: described}
    out: dict[str, Any] = {}
    for name, value in described.items():
        out |= flat(value, f"{path}.{name}" if path else name)
    return out


def parts(method: Arm, ablation: Arm) -> dict[str, Arm]:
    """What a method consists of: part -> the method without it.

    Parts are what method and ablation differ in, sizes aside; fields that need each other are one
    (`COUPLED`). Of several, `all` is the ablation. An advantage that nothing reads is no part
    (`reads_advantages`), nor is a penalty of the ablation that a method with other parts lacks.
    """
    fields = [field.name for field in dataclasses.fields(Arm) if field.name not in SIZES]
    differing = [f for f in fields if getattr(method, f) != getattr(ablation, f)]
    named: dict[str, list[str]] = {}
    for field in differing:
        if field != "objective":
            named.setdefault(_part_of(field, differing), []).append(field)
            continue
        for path, part in COMPONENTS.items():
            if _at(method, path.split(".")) != _at(ablation, path.split(".")):
                named.setdefault(part, [])
    for path, part in COMPONENTS.items():
        if part in named:
            named[part].append(path)
    without = {}
    for part, paths in named.items():
        if part == COMPONENTS["objective.advantage"] and not reads_advantages(method.objective):
            continue
        if len(named) > 1 and part in PENALTIES and not _at(method, PENALTIES[part]):
            continue
        made = method
        for path in paths:
            made = _with(made, path.split("."), _at(ablation, path.split(".")))
        without[part] = made
    return without if len(named) == 1 else {"all": ablation} | without


def _part_of(field: str, differing: Collection[str]) -> str:
    """The part that a field of an arm belongs to, the objective's aside."""
    for part, fields in COUPLED.items():
        if field in fields and {*fields} <= {*differing}:
            return part
    return field.replace("_", " ")


def reads_advantages(objective: ObjectiveConfig) -> bool:
    """Whether the policy loss takes advantages, or a filter of sequences may."""
    loss = functions.lookup(objective.policy)
    return bool(objective.rows) or functions.takes(loss, "advantages")


def widths(objective: ObjectiveConfig) -> dict[str, float]:
    """The widths of a policy loss's clip; empty where it has none."""
    parameters = inspect.signature(functions.lookup(objective.policy)).parameters
    names = [n for n in ("clip_low", "clip_high") if n in parameters]
    return {n: float(objective.policy_args.get(n, parameters[n].default)) for n in names}


def on_policy(given: Arm) -> bool:
    """Whether every batch is sampled by the policy that it updates: then ratios are 1, and no clip
    binds."""
    phases = [given.at(start) for start, _ in given.stages or ((0, {}),)]
    return not any(
        arm.delay or arm.sync_every > 1 or arm.updates_per_batch > 1 or arm.replay for arm in phases
    )


def tuned(given: Arm, learning_rate: float, clip: float) -> Arm:
    """The arm at another learning rate and with its clip widened by a factor.

    Where a ratio cannot fall below 0, its lower width is at most 1.
    """
    wide = {name: width * clip for name, width in widths(given.objective).items()}
    if "clip_low" in wide:
        wide["clip_low"] = min(wide["clip_low"], 1.0)
    objective = given.objective
    if wide and clip != 1.0:
        args = dict(objective.policy_args) | wide
        objective = dataclasses.replace(objective, policy_args=args)
    return dataclasses.replace(given, learning_rate=learning_rate, objective=objective)


def _at(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


def _with(value: Any, path: Sequence[str], new: Any) -> Any:
    """The value with another one at a path."""
    if not path:
        return new
    name, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        return dict(value) | {name: _with(value.get(name), rest, new)}
    return dataclasses.replace(value, **{name: _with(getattr(value, name), rest, new)})
