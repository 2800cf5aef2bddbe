"""The check of a config before anything is compiled."""

from __future__ import annotations

import math
import operator

from jaxrl import functions
from jaxrl.config import ranges
from jaxrl.config.schema import Config, RolloutConfig
from jaxrl.sampling.work import SamplerConfig
from jaxrl.training.objective import ObjectiveConfig

_FUNCTIONS = (
    "objective.policy", "objective.shaping", "objective.advantage", "objective.rows",
    "objective.kl", "curriculum.choose", "curriculum.score", "bandit.weigh",
)  # fmt: skip
"""Fields that name functions."""


_MODULES = {"otlp": "opentelemetry.exporter.otlp.proto.http"}
"""Trackers whose module has another name."""


def check(config: Config) -> None:
    """Refuse what could only fail later, naming the field, the value and the remedy."""
    ranges.check(config)
    for name in _FUNCTIONS:
        if reference := operator.attrgetter(name)(config):
            try:
                functions.lookup(reference)
            except ValueError as error:
                raise ValueError(f"{name}={reference!r}: {error}") from error
    if config.labels not in (0, 1) or (config.labels and not config.data.kinds):
        raise ValueError(
            f"labels={config.labels}: a reward model has 1 and learns from a file, as with "
            "`jaxrl train reward`; a language model has 0"
        )
    for tracker in ("wandb", "trackio", "mlflow", "otlp"):
        project = getattr(config, tracker)
        if project and not functions.is_installed(_MODULES.get(tracker, tracker)):
            raise ValueError(
                f"{tracker}={project!r}: {tracker} is not installed; pip install "
                f"'jaxrl[{tracker}]', or leave the field empty"
            )
    if config.rollout.rounds == "adaptive" and (
        config.rollout.oversampling == 1 or config.rollout.in_flight > 1
    ):
        raise ValueError(
            f"rollout.rounds='adaptive' with rollout.oversampling={config.rollout.oversampling}, "
            f"rollout.in_flight={config.rollout.in_flight}: its rounds need oversampling above 1, "
            "and in_flight=1"
        )
    prompts = config.rollout.prompts
    if config.rollout.in_flight > 1 and round(prompts * config.rollout.in_flight) <= prompts:
        raise ValueError(
            f"rollout.in_flight={config.rollout.in_flight} times rollout.prompts={prompts} is "
            f"rounded to {prompts}, so that it has no effect; use "
            f"{math.ceil(100 * (prompts + 1) / prompts) / 100} or more, or 1"
        )
    if config.sampling.weights == "int8" and config.lora.rank:
        raise ValueError(
            f"sampling.weights='int8' with lora.rank={config.lora.rank}: use lora's own "
            "quantisation of the base weights, or sampling.weights=trained"
        )
    chunks = config.rollout.chunks
    if chunks.size and chunks.carry >= chunks.size:
        raise ValueError(
            f"rollout.chunks.size={chunks.size}, carry={chunks.carry}: carry must be from 0 to "
            "below size"
        )
    if config.rollout.temperature <= 0:
        raise ValueError(
            f"rollout.temperature={config.rollout.temperature}: all rollouts of a prompt would be "
            "equal; use a positive temperature"
        )
    check_drafts(config.sampler, "sampler.")
    check_prefixes(config.sampler, "sampler.")
    check_truncation(config.rollout, "rollout.")
    _check_support(config)
    if config.rollout.group_size == 1 and _has_group_baseline(config.objective):
        raise ValueError(
            "rollout.group_size=1 with a group baseline gives every completion advantage 0, so "
            "nothing is trained; use a group size of 2 or more, or "
            "--objective.advantage-args.baseline batch --objective.advantage-args.scale batch"
        )
    name, count = (
        ("data.batch_size", config.data.batch_size)
        if config.data.kinds
        else ("rollout.prompts", config.rollout.prompts)
    )
    if count % config.updates_per_batch:
        raise ValueError(
            f"updates_per_batch={config.updates_per_batch} does not divide {name}={count}; choose "
            "a divisor"
        )
    if config.data.path and not config.data.kinds:
        raise ValueError(
            f"data.path={config.data.path!r}: this recipe samples; to learn from a file, train "
            "with sft, dpo, ipo, kto, orpo, simpo or cpo"
        )
    if config.data.noise and not config.data.kinds:
        raise ValueError(f"data.noise={config.data.noise}: must be 0 where nothing is read")
    if config.data.kinds and config.warm_start.steps:
        raise ValueError(
            f"warm_start.steps={config.warm_start.steps} is for a task with solutions, and this "
            "run learns from a file; set it to 0"
        )


def check_drafts(sampler: SamplerConfig, group: str = "") -> None:
    """Refuse fields of drafts without effect, and drafts without what they are made with.

    Args:
      sampler: has the fields.
      group: what messages write before their names.
    """
    size = sampler.draft_tokens
    if sampler.drafts == "none" and size != SamplerConfig().draft_tokens:
        raise ValueError(
            f"{group}draft_tokens={size} with {group}drafts='none': there are no drafts, so that "
            f"it has no effect; set {group}drafts to 'lookup' or 'group', or leave it out"
        )
    remedies = {"model": "name a model of the same tokenizer", "layers": "give a number of layers"}
    for kind, remedy in remedies.items():
        name, value = f"{group}draft_{kind}", getattr(sampler, f"draft_{kind}")
        if value and sampler.drafts != kind:
            remedy = f"it has no effect; set {group}drafts to {kind!r}, or leave it out"
        if bool(value) != (sampler.drafts == kind):
            raise ValueError(f"{name}={value!r} with {group}drafts={sampler.drafts!r}: {remedy}")


def check_prefixes(sampler: SamplerConfig, group: str = "") -> None:
    """Refuse sizes of a prefix cache that are none, or without effect.

    Args:
      sampler: has the fields.
      group: what messages write before their names.
    """
    mib, size = sampler.prefix_cache, sampler.prefix_block
    if mib < 0 or size < 1:
        raise ValueError(
            f"{group}prefix_cache={mib}, {group}prefix_block={size}: they are MiB, 0 or more, and "
            "tokens, 1 or more"
        )
    if not mib and size != SamplerConfig().prefix_block:
        raise ValueError(
            f"{group}prefix_block={size} with {group}prefix_cache=0: no beginnings of prompts are "
            f"kept, so that it has no effect; set {group}prefix_cache in MiB, or leave it out"
        )


def check_truncation(rollout: RolloutConfig, group: str = "") -> None:
    """Refuse a truncation that no draw could be made under, or that leaves nothing to draw.

    Args:
      rollout: has the fields.
      group: what messages write before their names.
    """
    accepted = {
        "top_k": (rollout.top_k == 0 or rollout.top_k > 1, "0 for all tokens, or 2 or more"),
        "top_p": (0 < rollout.top_p <= 1, "above 0 and at most 1, which keeps all tokens"),
        "min_p": (0 <= rollout.min_p < 1, "0 for all tokens, or more, below 1"),
    }
    for name, (fits, remedy) in accepted.items():
        if not fits:
            raise ValueError(f"{group}{name}={getattr(rollout, name)}: make it {remedy}")


def _check_support(config: Config) -> None:
    rollout = config.rollout
    if rollout.support == "recorded":
        return
    if not (rollout.truncated or rollout.constraint):
        raise ValueError(
            "rollout.support='full' without rollout.top_k, rollout.top_p, rollout.min_p or "
            "rollout.constraint: no token is left out, so that it has no effect; set one of them, "
            "or leave it out"
        )
    policy = functions.lookup(config.objective.policy)
    takes_both = all(functions.takes(policy, name) for name in ("proximal_logp", "behavior_logp"))
    if not takes_both or policy is functions.lookup("remix"):  # whose ratio is PPO's
        raise ValueError(
            f"rollout.support='full' with objective.policy={config.objective.policy!r}: tokens "
            "would be sampled from a restricted distribution and trained under the whole one, and "
            "this objective does not correct for it; use rollout.support=recorded, or an objective "
            "that weighs tokens by exp(proximal_logp - behavior_logp), such as decoupled_ppo"
        )


def _has_group_baseline(objective: ObjectiveConfig) -> bool:
    grouped = functions.lookup(objective.advantage) is functions.lookup("group_advantages")
    return grouped and objective.advantage_args.get("baseline", "group") in (
        "group",
        "leave_one_out",
    )
