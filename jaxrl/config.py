"""The config of a run: frozen dataclasses, every field a flag, saved as JSON beside the run."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar

from jaxrl.chunks import WHOLE, Chunks
from jaxrl.mesh import MeshConfig
from jaxrl.objective import ObjectiveConfig
from jaxrl.optimizer import OptimizerConfig
from jaxrl.packing import PackingConfig
from jaxrl.sampler import SamplerConfig
from models.config import Kernel
from models.lora import LoraConfig
from models.remat import Remat
from models.value import ValueConfig

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class FreshModel:
    """Shape of a transformer made here, for `model = fresh`."""

    hidden_size: int = 128
    intermediate_size: int = 384
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 4
    head_dim: int = 32


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
    """Supervised fine-tuning on the task's own solutions, before the RL."""

    steps: int = 0
    """0 skips it."""
    batch_size: int = 128
    """Demonstrations a step."""
    learning_rate: float = 1e-3


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """What is sampled at each step."""

    prompts: int = 16
    """Distinct prompts a step."""
    group_size: int = 8
    """Completions of each prompt."""
    max_prompt_tokens: int = 256
    """Longest prompt."""
    long_prompts: Literal["error", "drop", "truncate"] = "error"
    """What is done about a longer one: an error that names the problem; drop it, from training and
    evaluation alike; or truncate it to its last tokens."""
    max_new_tokens: int = 64
    """Completion budget."""
    chunks: Chunks = WHOLE
    """Of long responses: each sees the prompt and the end of the one before (Delethink)."""
    temperature: float = 1.0
    chat: bool = False
    """Wrap each prompt with the model's own chat template."""
    system: str = ""
    """System message of the chat, if any."""
    in_flight: float = 1.0
    """Above 1, so many times the prompts are under way at once; a step takes the first that are
    whole, and the others go on where they stand under the next policy (partial rollouts)."""
    oversampling: float = 1.0
    """Above 1, groups whose rewards all agree make way for others, and up to so many times the
    prompts are sampled for it (DAPO's dynamic sampling)."""


@dataclasses.dataclass(frozen=True)
class CurriculumConfig:
    """Prompts chosen by how they were answered before, in this run or in an earlier one."""

    choose: str = ""
    """e.g. data.curriculum:difficulty_targeted, or data.bandits:gain; empty takes prompts as they
    come."""
    args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Its keyword arguments, e.g. --curriculum.args.target 0.5."""
    prompts: int = 1024
    """Chosen among the first so many of the train split."""
    window: int = 8
    """Visits of a prompt that are remembered."""
    retain: float = 1.0
    """Below 1, this share of the prompts, the hardest, is retained every `retain_every` batches
    and the others are not chosen again (DRIVE)."""
    retain_every: int = 50
    history: str = ""
    """A run of this task: its prompts are chosen once, by how that run answered them."""
    score: str = "data.curriculum:historical_variance"
    """By what, e.g. data.curriculum:learning_impact (LIMR)."""
    keep: int = 1
    """So many of them, those with the highest score."""


@dataclasses.dataclass(frozen=True)
class Domain:
    """One of several tasks that a run trains on."""

    task: str = "arithmetic"
    """As in `Config`."""
    args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Parameters of the task."""
    weight: float = 1.0
    """Its share of the prompts, relative to the other domains'."""
    max_new_tokens: int = 0
    """Completion budget of its problems; 0 stands for the rollout's, which it may not exceed."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """How its prompts are chosen."""


@dataclasses.dataclass(frozen=True)
class BanditConfig:
    """Shares of the domains that follow what is learned from them."""

    weigh: str = ""
    """data.bandits:sec, dump or dads: multiplies the domains' weights; empty leaves them alone."""
    args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Its keyword arguments, e.g. --bandit.args.temperature 0.5."""
    signal: Literal["advantage", "reward"] = "advantage"
    """What a completion tells of its domain: the size of its advantage over its group, in units of
    the group's spread (SEC, DUMP), or its reward (dads)."""
    rate: float = 0.5
    """Of the moving average of a domain's signal."""
    window: int = 64
    """Completions of a domain that are remembered."""
    history: str = ""
    """A run of these domains: those with more prompts that it failed all along get more (SwS)."""


@dataclasses.dataclass(frozen=True)
class GuidanceConfig:
    """Help on problems that the policy fails, from the task's own solutions."""

    guide: str = ""
    """e.g. data.guidance:escalate; empty gives none."""
    args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Its keyword arguments, e.g. --guidance.args.attempts 2."""
    shown: str = "{solution}\n{prompt}"
    """The prompt of a policy that is shown the solution."""


@dataclasses.dataclass(frozen=True)
class PolicyRewardConfig:
    """Rewards without a verifier: the policy's own probability of the reference answer."""

    use: bool = False
    """In place of the task's rewards."""
    marker: str = "Answer: "
    """Where in a completion its answer begins; what comes before is the reasoning."""


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """Groups of earlier steps that are trained on again."""

    groups: int = 0
    """Of the buffer, added to each step's batch; 0 keeps none."""
    size: int = 256
    """Groups that the buffer holds."""
    max_age: int = 0
    """Optimizer updates after which a group is dropped; 0 drops the oldest when it is full."""
    keep: str = "data.replay:everything"
    """Which completions are kept."""
    keep_args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Its keyword arguments."""
    choose: str = "data.replay:uniform"
    """Which groups come back."""
    choose_args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Its keyword arguments."""


@dataclasses.dataclass(frozen=True)
class ReferenceConfig:
    """The policy that divergences are measured to."""

    every: int = 0
    """Steps after which the current policy becomes the reference; 0 keeps the first."""
    reset_optimizer: bool = False
    """The optimizer's moments begin anew with it (ProRL)."""


@dataclasses.dataclass(frozen=True)
class NucleusConfig:
    """A mask of what the policy may choose in training: NLPO's."""

    mass: float = 0.0
    """Only the likeliest tokens of an earlier copy of the policy, up to this probability together,
    such as 0.9, are sampled and have a place in the loss; 0 masks nothing."""
    every: int = 10
    """Steps after which the current policy becomes the copy."""


@dataclasses.dataclass(frozen=True)
class AverageConfig:
    """An exponential moving average of the parameters that are trained."""

    decay: float = 0.0
    """At each update, e.g. 0.99; 0 keeps no average."""
    evaluate: bool = True
    """Held-out evaluations sample from it."""
    reference: bool = False
    """It is the reference policy: one that follows."""


@dataclasses.dataclass(frozen=True)
class CriticConfig:
    """A value function beside the policy, whose advantages take the place of a group's."""

    use: bool = False
    """A decoder of its own, first a copy of the policy, with a value head (PPO)."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)
    head: ValueConfig = ValueConfig()
    """Scalar; with more bins, a distribution trained by cross-entropy to HL-Gauss targets."""
    discount: float = 1.0
    """gamma, from one token to the next."""
    mixing: float = 0.95
    """lambda of the generalised advantage estimate."""
    kl_coef: float = 0.0
    """Weight of a penalty on each token's reward: the log-ratio to the reference."""
    clip: float = 0.2
    """How far a scalar value may move in one update; 0 does not clip."""
    whiten: bool = True
    """Advantages of a batch have mean 0 and deviation 1."""


@dataclasses.dataclass(frozen=True)
class KLControlConfig:
    """A controller of the weight of the divergence to the reference, in place of a fixed one."""

    rule: str = ""
    """The next weight by this one and the divergence measured, as module:function, such as
    losses.policy:proportional_kl_coefficient; empty keeps objective.kl_coef or critic.kl_coef."""
    args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Its keyword arguments, such as the target in nats a token."""


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """Where sampling happens."""

    devices: int = 0
    """So many devices, the last of each process, sample and do not train; 0 samples on the devices
    that train."""
    mesh: MeshConfig = MeshConfig()
    """Their mesh; the rules are those of the run's."""


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Held-out evaluation, before the first step, after the last, and in between."""

    problems: int = 256
    split: str = "test"
    every: int = 0
    """Steps between evaluations; 0 evaluates before and after only."""


@dataclasses.dataclass(frozen=True)
class RolloutLogConfig:
    """Which rollouts are written, token by token, for people to read."""

    every: int = 10
    """Steps between them, the first and the last step aside; 0 writes none."""
    groups: int = 8
    """Groups kept of a step."""


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When the whole state of the run is saved."""

    every: int = 20
    """Steps between checkpoints; the first state and the last are always saved."""
    keep: int = 2
    """The last so many are kept,"""
    keep_every: int = 0
    """and those of steps that this divides (0: none),"""
    keep_best: int = 0
    """and the so many with the highest `best`."""
    best: str = "eval/pass@1"
    """Metric of the step that is saved; a step that does not measure it is not among the best."""
    patience_seconds: float = 60.0
    """How long a save waits for the one before it on slow storage, before it is left out."""
    grace_seconds: float = 300.0
    """From SIGTERM or Ctrl-C to a forced exit, should saving take longer."""


Action = Literal["off", "warn", "skip", "rollback", "stop"]


@dataclasses.dataclass(frozen=True)
class GuardConfig:
    """What is done about an update that has gone wrong, see `jaxrl.guards`.

    `warn` tells of it and keeps the batch; `skip` leaves the update out as well; `rollback` goes
    back to the newest checkpoint and on with other prompts; `stop` ends the run.
    """

    non_finite: Action = "skip"
    """A loss or gradient that is not finite; such an update is never applied."""
    ratio: Action = "warn"
    """An action whose log-probability ratio to the sampler exceeds `max_log_ratio`."""
    max_log_ratio: float = 10.0
    """Nats."""
    kl: Action = "warn"
    """A mean divergence to the reference above `max_kl`, where there is a reference."""
    max_kl: float = 10.0
    """Nats a token."""
    entropy: Action = "off"
    """A mean entropy of the policy below `min_entropy`."""
    min_entropy: float = 0.01
    """Nats a token."""
    zero_signal: Action = "off"
    """All advantages are 0."""
    reward_errors: Action = "warn"
    """A share of failed scores above `max_error_rate`."""
    max_error_rate: float = 0.5
    max_rollbacks: int = 3
    """After so many in a run, the next is a stop."""
    stall_seconds: float = 1800.0
    """Without progress for so long, all stacks are dumped; 0 never does."""


@dataclasses.dataclass(frozen=True)
class Config:
    """A run."""

    recipe: str = "quickstart"
    """Name of the recipe this config came from."""
    seed: int = 0
    """Names every random stream of the run."""
    steps: int = 100
    """Rollout batches to train on."""
    run_dir: str = ""
    """Where everything is written; empty chooses runs/RECIPE-seedSEED."""
    model: str = "fresh"
    """`fresh`, the name of a packaged model, a GGUF file, a Hugging Face directory, or a run."""
    fresh: FreshModel = FreshModel()
    fork: str = ""
    """RUN or RUN@STEP: begin from that run's whole state instead, in a run directory of its own;
    `--from` is the same."""
    task: str = "arithmetic"
    """Name of a task, or reasoning_gym/NAME for a generator of reasoning-gym."""
    task_args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Parameters of the task, such as its difficulty."""
    domains: dict[str, Domain] = dataclasses.field(default_factory=dict)
    """Several tasks by name, in place of `task`. A problem is judged by its own task."""
    bandit: BanditConfig = BanditConfig()
    stages: dict[int, dict[str, bool | int | float | str]] = dataclasses.field(default_factory=dict)
    """Fields that change during the run: steps done to {dotted field: value}, such as
    --stages.100 '{"rollout.max_new_tokens": 128}'; see `jaxrl.stages`."""
    warm_start: WarmStartConfig = WarmStartConfig()
    rollout: RolloutConfig = RolloutConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    guidance: GuidanceConfig = GuidanceConfig()
    policy_reward: PolicyRewardConfig = PolicyRewardConfig()
    replay: ReplayConfig = ReplayConfig()
    reference: ReferenceConfig = ReferenceConfig()
    average: AverageConfig = AverageConfig()
    nucleus: NucleusConfig = NucleusConfig()
    critic: CriticConfig = CriticConfig()
    kl_control: KLControlConfig = KLControlConfig()
    updates_per_batch: int = 1
    """Optimizer updates on each rollout batch, each over an equal share of its groups."""
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    lora: LoraConfig = LoraConfig(rank=0)
    """Train low-rank adapters in place of the parameters: give it a rank."""
    train: tuple[str, ...] = ()
    """Paths of the parameters to train, such as layers/mlp/*; empty trains all."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Activations and sampling; parameters and optimizer state stay float32."""
    attention: Kernel = "auto"
    """What computes it: `auto` takes cudnn on GPU and splash on TPU where they serve, else xla."""
    remat: Remat = "none"
    """What the backward pass recomputes: nothing, all but `dots`, or layers in `full`."""
    sampler: SamplerConfig = SamplerConfig()
    packing: PackingConfig = PackingConfig()
    mesh: MeshConfig = MeshConfig()
    sampling: SamplingConfig = SamplingConfig()
    eval: EvalConfig = EvalConfig()
    rollout_log: RolloutLogConfig = RolloutLogConfig()
    wandb: str = ""
    """Project of Weights & Biases that metrics go to as well (extra `wandb`); empty: none."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    guard: GuardConfig = GuardConfig()
    score_workers: int = 2
    """Processes that score completions; 0 scores in this process, with no time limit."""
    score_seconds: float = 10.0
    """Time limit of one score."""


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], values: dict[str, Any]) -> T:
    """The config that `to_dict` came from.

    Raises:
      ValueError: a field that the config does not have.
    """
    hints = typing.get_type_hints(kind)
    unknown = values.keys() - hints.keys()
    if unknown:
        raise ValueError(
            f"{kind.__name__} has no field {sorted(unknown)}; was it written by another version?"
        )
    return kind(**{k: _value(hints[k], v) for k, v in values.items()})


def _value(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value) if isinstance(value, dict) else value
    if typing.get_origin(hint) is dict:
        key, inner = typing.get_args(hint)
        return {key(k): _value(inner, v) for k, v in value.items()}  # JSON's keys are all strings
    return tuple(value) if typing.get_origin(hint) is tuple else value


def replaced(config: T, name: str, value: Any) -> T:
    """The config with the field of a dotted name changed, of entries of a dict too.

    Raises:
      ValueError: no such field.
    """
    first, _, rest = name.partition(".")
    if isinstance(config, dict):
        old = config.get(first) if rest else None
    elif first in {field.name for field in dataclasses.fields(typing.cast(Any, config))}:
        old = getattr(config, first)
    else:
        raise ValueError(f"{type(config).__name__} has no field {name!r}")
    new = replaced(old, rest, value) if rest else value
    if isinstance(config, dict):
        return typing.cast(T, config | {first: new})
    hint = typing.get_type_hints(type(config))[first]
    return dataclasses.replace(typing.cast(Any, config), **{first: _value(hint, new)})


def load(path: Path) -> Config:
    """The config saved at `path`."""
    return from_dict(Config, json.loads(path.read_text())["config"])


def check(config: Config) -> None:
    """Refuse what could only fail later, naming the field, the value and the remedy."""
    positive = {
        "steps": config.steps,
        "updates_per_batch": config.updates_per_batch,
        "rollout.prompts": config.rollout.prompts,
        "rollout.group_size": config.rollout.group_size,
        "rollout.max_prompt_tokens": config.rollout.max_prompt_tokens,
        "rollout.max_new_tokens": config.rollout.max_new_tokens,
        "eval.problems": config.eval.problems,
        "checkpoint.every": config.checkpoint.every,
        "checkpoint.keep": config.checkpoint.keep,
        "sampler.slots": config.sampler.slots,
        "packing.micro_batch_tokens": config.packing.micro_batch_tokens,
    }
    for name, value in positive.items():
        if value < 1:
            raise ValueError(f"{name}={value}: must be 1 or more")
    if config.wandb and importlib.util.find_spec("wandb") is None:
        raise ValueError(
            f"wandb={config.wandb!r}: wandb is not installed; pip install 'jaxrl[wandb]', or leave "
            "the field empty"
        )
    if config.rollout.oversampling < 1:
        raise ValueError(
            f"rollout.oversampling={config.rollout.oversampling}: 1 samples what a step needs, "
            "more is a budget for finding groups that teach; use 1 or more"
        )
    others = {
        "curriculum.choose": any(
            each.choose
            for each in (config.curriculum, *(d.curriculum for d in config.domains.values()))
        ),
        "bandit.weigh": config.bandit.weigh,
        "guidance.guide": config.guidance.guide,
        "rollout.oversampling": config.rollout.oversampling > 1,
    }
    if config.rollout.in_flight < 1 or (config.rollout.in_flight > 1 and any(others.values())):
        asked = ", ".join(name for name, value in others.items() if value) or "nothing else"
        raise ValueError(
            f"rollout.in_flight={config.rollout.in_flight} with {asked}: it must be 1 or more, and "
            f"above 1 it goes without {', '.join(others)}, which need whole groups at once"
        )
    chunks = config.rollout.chunks
    others = {
        "rollout.in_flight": config.rollout.in_flight > 1,
        "guidance.guide": config.guidance.guide,
        "policy_reward.use": config.policy_reward.use,
    }
    if chunks.size and (not 0 <= chunks.carry < chunks.size or any(others.values())):
        asked = ", ".join(name for name, value in others.items() if value) or "nothing else"
        raise ValueError(
            f"rollout.chunks.size={chunks.size}, carry={chunks.carry} with {asked}: carry must be "
            f"from 0 to below size, and chunks go without {', '.join(others)}"
        )
    if not 0 <= config.average.decay < 1 or (config.average.reference and not config.average.decay):
        raise ValueError(
            f"average.decay={config.average.decay} with average.reference="
            f"{config.average.reference}: use a decay from 0, which keeps no average, to below 1"
        )
    if not 0 <= config.nucleus.mass < 1 or config.nucleus.every < 1:
        raise ValueError(
            f"nucleus.mass={config.nucleus.mass} with nucleus.every={config.nucleus.every}: use a "
            "mass from 0, which masks nothing, to below 1, and a positive number of steps"
        )
    if config.rollout.temperature <= 0:
        raise ValueError(
            f"rollout.temperature={config.rollout.temperature}: all rollouts of a prompt would be "
            "equal; use a positive temperature"
        )
    if config.rollout.group_size == 1 and _has_group_baseline(config.objective):
        raise ValueError(
            "rollout.group_size=1 with a group baseline gives every completion advantage 0, so "
            "nothing is trained; use a group size of 2 or more, or "
            "--objective.advantage-args.baseline batch --objective.advantage-args.scale batch"
        )
    if config.rollout.prompts % config.updates_per_batch:
        raise ValueError(
            f"updates_per_batch={config.updates_per_batch} does not divide "
            f"rollout.prompts={config.rollout.prompts}; choose a divisor"
        )


def _has_group_baseline(objective: ObjectiveConfig) -> bool:
    grouped = objective.advantage == "losses.advantages:group_advantages"
    return grouped and objective.advantage_args.get("baseline", "group") in (
        "group",
        "leave_one_out",
    )


def changed(old: Any, new: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Fields that differ, by dotted name, as (old, new)."""
    out: dict[str, tuple[Any, Any]] = {}
    for field in dataclasses.fields(old):
        a, b = getattr(old, field.name), getattr(new, field.name)
        if dataclasses.is_dataclass(a):
            out |= changed(a, b, f"{prefix}{field.name}.")
        elif a != b:
            out[prefix + field.name] = (a, b)
    return out
