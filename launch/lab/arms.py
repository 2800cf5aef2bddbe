"""An arm of an experiment: what it trains on, and how.

Curricula, guides, replay, critics and the objective are the real loop's own, by the same configs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from jaxrl.config import BanditConfig, Config, CurriculumConfig
from jaxrl.data import curriculum
from jaxrl.extensions.critic import CriticConfig
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.extensions.nucleus import NucleusConfig
from jaxrl.extensions.reference_refresh import RefreshConfig
from jaxrl.extensions.replay import ReplayConfig
from jaxrl.launch.lab.tasks import Problems
from jaxrl.sampling.chunks import WHOLE, Chunks
from jaxrl.training.objective import ObjectiveConfig


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
    chunks: Chunks = WHOLE
    """That completions are thought in, held-out ones too."""
    nucleus: NucleusConfig | None = None
    delay: int = 0
    """The sampler's policy is this many steps old,"""
    sync_every: int = 1
    """and renewed every so many steps; a number above `steps` makes the data offline."""
    rewards: Callable[[Sampled], jax.Array] | None = None
    """-> [N] float32: the environment's rewards in place of the verifier's, such as noisy ones; nan
    leaves the sequence out, as a failed score does. What a method does to rewards is rather the
    objective's `shaping`."""
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


def arm(config: Config, **changes: Any) -> Arm:
    """The arm that does what a recipe's config does, with `changes` of other fields."""
    shared = ("objective", "curriculum", "bandit", "updates_per_batch")
    given = {name: getattr(config, name) for name in shared} | {"chunks": config.rollout.chunks}
    for name in ("guidance", "replay", "nucleus", "critic"):
        given[name] = config.extensions.get(name)
    given["reference"] = config.extensions.get("reference_refresh")
    return Arm(**given | changes)
