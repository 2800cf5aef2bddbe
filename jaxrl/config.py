"""The config of a run: frozen dataclasses, every field a flag, saved as JSON beside the run."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar

from jaxrl import functions
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models.config import Kernel
from jaxrl.models.lora import LoraConfig
from jaxrl.models.remat import Remat
from jaxrl.sampling.chunks import WHOLE, Chunks
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.packing import PackingConfig

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class FreshModel:
    """Shape of the randomly initialised transformer that `model = fresh` trains."""

    hidden_size: int = 128
    """Width of the residual stream."""
    intermediate_size: int = 384
    """Width of the MLP."""
    num_layers: int = 4
    """Number of layers."""
    num_heads: int = 4
    """Query heads of each layer."""
    num_kv_heads: int = 4
    """Key and value heads of each layer; must divide `num_heads`."""
    head_dim: int = 32
    """Size of each head."""


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
    """Supervised fine-tuning (SFT) on the task's own solutions, before RL."""

    steps: int = 0
    """Optimizer steps of SFT; 0 skips it."""
    batch_size: int = 128
    """Demonstrations per SFT step."""
    learning_rate: float = 1e-3
    """Learning rate of SFT."""


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """What is sampled at each step."""

    prompts: int = 16
    """Prompts per step."""
    group_size: int = 8
    """Completions per prompt."""
    max_prompt_tokens: int = 256
    """Longest prompt, in tokens."""
    long_prompts: Literal["error", "drop", "truncate"] = "error"
    """How a prompt over `max_prompt_tokens` is treated: `error` stops and names the problem; `drop`
    removes it from training and evaluation; `truncate` keeps its last tokens."""
    max_new_tokens: int = 64
    """Longest completion, in tokens; of an episode, all turns and what is read between them."""
    turn_tokens: int = 0
    """Longest turn of an episode, in tokens; 0: what is left of `max_new_tokens`."""
    chunks: Chunks = WHOLE
    """Splits long responses into chunks; each sees the prompt and the end of the chunk before it
    (Delethink)."""
    temperature: float = 1.0
    """Sampling temperature, above 0."""
    chat: bool = False
    """Wrap each prompt in the model's chat template."""
    system: str = ""
    """System message of the chat template; empty: none."""
    in_flight: float = 1.0
    """Over-provisioning factor of partial rollouts, 1 or more: that many times `prompts` are
    sampled at once, a step trains on the first groups that finish, and the next step continues the
    rest with the new weights. 1 waits for every group."""
    oversampling: float = 1.0
    """Budget of DAPO's dynamic sampling, 1 or more: groups whose rewards are all equal are
    replaced, by sampling up to this factor times `prompts`. 1 replaces none."""


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Rows of a file that a run learns from, in place of what it samples; see docs/fine-tuning.md.

    Conversations are written by the model's chat template, and so are texts under `rollout.chat`.
    """

    path: str = ""
    """File of the rows: JSONL, JSON, CSV, Parquet or a `datasets` directory; --data FILE is the
    same."""
    kinds: tuple[str, ...] = ()
    """Kinds of rows that the objective learns from: `messages`, `completion`, `text`, `preference`
    or `label`. The recipe sets them; a run without any samples."""
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    """Columns of the file, where they have names of their own, e.g. --data.columns.prompt
    question."""
    eval_path: str = ""
    """File of the rows to evaluate on; --eval-data FILE is the same. Empty: a share of `path`."""
    eval_share: float = 0.05
    """Share of the prompts that is held out, by a hash of the prompt; at most `eval.problems`."""
    batch_size: int = 16
    """Rows per step; of preferences, pairs."""
    max_tokens: int = 1024
    """Longest sequence, prompt and answer together, in tokens."""
    long_rows: Literal["truncate", "drop", "error"] = "truncate"
    """How a row over `max_tokens` is treated: `truncate` leaves out tokens at its end, and the row
    if nothing to learn is left of it; `drop` leaves out the row; `error` stops and names it."""
    bad_rows: Literal["error", "skip"] = "error"
    """How a row that cannot be used is treated: `error` stops and names its line; `skip` leaves it
    out and counts it."""


@dataclasses.dataclass(frozen=True)
class CurriculumConfig:
    """Chooses prompts by the rewards they got before, in this run or in an earlier one."""

    choose: str = ""
    """Function that chooses the prompts of a step, such as `difficulty_targeted` or `gain`; empty
    takes prompts in the order of the data."""
    args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Keyword arguments of `choose`, e.g. --curriculum.args.target 0.5."""
    prompts: int = 1024
    """Number of prompts to choose from: the first of the train split."""
    window: int = 8
    """Number of visits remembered per prompt."""
    retain: float = 1.0
    """Share of the prompts, the hardest, that is kept every `retain_every` batches, above 0 and up
    to 1; the others are not chosen again (DRIVE). 1 keeps all."""
    retain_every: int = 50
    """Batches between two such selections."""
    history: str = ""
    """Directory of an earlier run of this task; its prompts are ranked once, by how that run
    answered them. Empty: none."""
    score: str = "historical_variance"
    """Function that ranks the prompts of `history`, such as `learning_impact` (LIMR)."""
    keep: int = 1
    """Number of prompts of `history` to keep, highest score first."""


@dataclasses.dataclass(frozen=True)
class Domain:
    """One of several tasks that a run trains on."""

    task: str = "arithmetic"
    """Name of a task, as in `Config.task`."""
    args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Parameters of the task."""
    weight: float = 1.0
    """Share of the prompts, relative to the other domains' weights."""
    max_new_tokens: int = 0
    """Longest completion for its problems, in tokens, at most the rollout's; 0 uses the
    rollout's."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Chooses its prompts."""


@dataclasses.dataclass(frozen=True)
class BanditConfig:
    """A bandit that adapts the shares of the domains to the training signal."""

    weigh: str = ""
    """Bandit that multiplies the domains' weights: `sec`, `dump` or `dads`; empty keeps the weights
    fixed."""
    args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Keyword arguments of `weigh`, e.g. --bandit.args.temperature 0.5."""
    signal: Literal["advantage", "reward"] = "advantage"
    """Reward of the bandit for each completion: `advantage` is the absolute advantage in units of
    its group's standard deviation (SEC, DUMP); `reward` is the completion's reward (dads)."""
    rate: float = 0.5
    """Smoothing factor of the moving average of a domain's signal, above 0 and up to 1."""
    window: int = 64
    """Number of completions remembered per domain."""
    history: str = ""
    """Directory of an earlier run of these domains; domains with more prompts that it always failed
    get a greater share (SwS). Empty: none."""


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """Which devices sample."""

    devices: int = 0
    """Number of devices dedicated to sampling, taken from the end of each process's list; 0 samples
    on the training devices."""
    mesh: MeshConfig = MeshConfig()
    """Mesh of the sampling devices; sharding rules are those of the training mesh."""


@dataclasses.dataclass(frozen=True)
class AsynchronousConfig:
    """Sampling that goes on while the policy is trained; see docs/asynchronous.md."""

    staleness: int | None = None
    """Greatest lag of a token, in steps between the weights that sampled it and those that learn
    from it: 0 or more. Absent: sampling and training take turns."""
    schedule: str = "live"
    """What the order of events follows: `live`, the clock; `lockstep:K`, counting, as if an update
    took K chunks of sampling; `recorded:RUN`, the record of another run."""
    order: Literal["admitted", "finished"] = "admitted"
    """Groups that a step trains on: those begun first, or those that finish first."""
    in_flight: int = 0
    """Most groups under way at once, `rollout.prompts` or more; 0: as many as `staleness`
    allows."""


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Evaluation on held-out problems, before the first step, after the last, and in between."""

    problems: int = 256
    """Number of held-out problems."""
    split: str = "test"
    """Split of the task that they come from."""
    every: int = 0
    """Steps between evaluations; 0 evaluates before and after training only."""


@dataclasses.dataclass(frozen=True)
class RolloutLogConfig:
    """Which rollouts are saved token by token, for the report."""

    every: int = 10
    """Steps between saved rollouts; the first and the last step are always saved. 0 saves none."""
    groups: int = 8
    """Groups saved per step."""


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When the state of the run is saved, and which checkpoints are kept."""

    every: int = 20
    """Steps between checkpoints; the first and the last state are always saved."""
    keep: int = 2
    """Number of latest checkpoints to keep."""
    keep_every: int = 0
    """Also keep checkpoints of steps divisible by this; 0: none."""
    keep_best: int = 0
    """Also keep this many checkpoints with the highest `best` metric."""
    best: str = "eval/pass@1"
    """Metric that ranks checkpoints; steps that do not measure it are not ranked."""
    patience_seconds: float = 60.0
    """Seconds that a save waits for the previous one to finish before it is skipped."""
    grace_seconds: float = 300.0
    """Seconds from SIGTERM or Ctrl-C to a forced exit, if saving takes longer."""


Action = Literal["off", "warn", "skip", "rollback", "stop"]


@dataclasses.dataclass(frozen=True)
class GuardConfig:
    """Actions for updates that look wrong, see `jaxrl.run.guards`.

    `warn` prints a warning and saves the batch; `skip` also leaves the update out; `rollback`
    returns to the newest checkpoint and continues with other prompts; `stop` ends the run.
    """

    non_finite: Action = "skip"
    """Action for a non-finite loss or gradient; such an update is never applied."""
    ratio: Action = "warn"
    """Action for an absolute log-probability ratio of a token, trainer to sampler, above
    `max_log_ratio`."""
    max_log_ratio: float = 10.0
    """Limit of `ratio`, in nats."""
    kl: Action = "warn"
    """Action for a mean KL divergence to the reference policy above `max_kl`."""
    max_kl: float = 10.0
    """Limit of `kl`, in nats per token."""
    entropy: Action = "off"
    """Action for a mean policy entropy below `min_entropy`."""
    min_entropy: float = 0.01
    """Limit of `entropy`, in nats per token."""
    zero_signal: Action = "off"
    """Action for a batch whose advantages are all 0."""
    reward_errors: Action = "warn"
    """Action for a share of failed scores above `max_error_rate`."""
    max_error_rate: float = 0.5
    """Limit of `reward_errors`, from 0 to 1."""
    max_rollbacks: int = 3
    """Rollbacks per run; one more stops the run."""
    stall_seconds: float = 1800.0
    """Seconds without progress after which the stacks of all threads are dumped; 0 never."""


@dataclasses.dataclass(frozen=True)
class SandboxConfig:
    """How the programs that a policy writes are confined; see docs/data.md."""

    allow_weak: bool = False
    """Where bubblewrap does not work, run programs under resource limits alone; they can then use
    the network and your user's files. False refuses such a run."""


@dataclasses.dataclass(frozen=True)
class Config:
    """All settings of a run."""

    recipe: str = "quickstart"
    """Name of the recipe this config came from; part of the default run directory."""
    seed: int = 0
    """Random seed."""
    steps: int = 100
    """Training steps; each samples and trains on one rollout batch."""
    run_dir: str = ""
    """Run directory; empty: runs/RECIPE-seedSEED."""
    model: str = "fresh"
    """Model to train: `fresh` (random weights), the name of a packaged model, a GGUF file, a
    Hugging Face directory, or a run directory."""
    fresh: FreshModel = FreshModel()
    fork: str = ""
    """RUN or RUN@STEP: start from the whole state of that run, in a run directory of its own;
    --from is the same. Empty: none."""
    task: str = "arithmetic"
    """Name of a task (`jaxrl tasks`), reasoning_gym/NAME, or module:function."""
    task_args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Parameters of the task, e.g. --task-args.digits 3."""
    domains: dict[str, Domain] = dataclasses.field(default_factory=dict)
    """Several tasks by name, in place of `task`; each problem is scored by its own task."""
    bandit: BanditConfig = BanditConfig()
    stages: dict[int, dict[str, bool | int | float | str]] = dataclasses.field(default_factory=dict)
    """Fields that change during the run: number of finished steps to {field: value}, e.g.
    --stages.100 '{"rollout.max_new_tokens": 128}'; see `jaxrl.run.stages`."""
    data: DataConfig = DataConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    rollout: RolloutConfig = RolloutConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    extensions: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Extensions of the training loop, by name, with their settings: --with NAME adds one,
    --NAME.FIELD sets a field; see `jaxrl.run.extension`."""
    updates_per_batch: int = 1
    """Optimizer updates per rollout batch, each on an equal share of its groups; must divide
    `rollout.prompts`."""
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    lora: LoraConfig = LoraConfig(rank=0)
    """Train LoRA adapters in place of the parameters; rank 0: no adapters."""
    train: tuple[str, ...] = ()
    """Patterns of the parameters to train, such as layers/mlp/*; empty trains all."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of activations, sampling, frozen parameters and the reference policy. Trained
    parameters and optimizer state stay float32. In float32, matrix products are computed at full
    precision on every device."""
    attention: Kernel = "auto"
    """Attention backend; `auto` takes cudnn on GPU and splash on TPU where they apply, else xla."""
    remat: Remat = "none"
    """Activations recomputed in the backward pass: `none`; `dots`, all but matrix products; `full`,
    whole layers; `offload` keeps them in host memory."""
    sampler: SamplerConfig = SamplerConfig()
    packing: PackingConfig = PackingConfig()
    mesh: MeshConfig = MeshConfig()
    sampling: SamplingConfig = SamplingConfig()
    asynchronous: AsynchronousConfig = AsynchronousConfig()
    eval: EvalConfig = EvalConfig()
    rollout_log: RolloutLogConfig = RolloutLogConfig()
    wandb: str = ""
    """Weights & Biases project that metrics are also sent to (extra `wandb`); empty: none."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    guard: GuardConfig = GuardConfig()
    score_workers: int = 2
    """Processes that score completions; 0 scores in this process if the task's reward is pure, else
    in one other process."""
    score_seconds: float = 10.0
    """Time limit of one score, in seconds; a task's own limits can raise it."""
    sandbox: SandboxConfig = SandboxConfig()


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], values: dict[str, Any]) -> T:
    """The config with these values, as from `to_dict`.

    Raises:
      ValueError: a field that the config does not have.
    """
    hints = typing.get_type_hints(kind)
    unknown = values.keys() - hints.keys()
    if unknown:
        raise ValueError(
            f"{kind.__name__} has no field {sorted(unknown)}; was it written by another version? "
            "Since 0.2.0 a critic, replay, guidance and the like are extensions"
        )
    given = {k: _value(hints[k], v) for k, v in values.items() if k != "extensions"}
    if "extensions" in values:
        given["extensions"] = {
            name: _settings(name, fields) for name, fields in values["extensions"].items()
        }
    return kind(**given)


def _settings(reference: str, fields: Any) -> Any:
    """Settings of the extension `reference`, from plain values or as they are.

    A config that is read may come from anybody: those of a `module:function` outside this package
    stay plain values, and the module is not imported, see `settings_of`.
    """
    if not isinstance(fields, dict) or (":" in reference and not functions.bundled(reference)):
        return fields
    return settings_of(reference, fields)


def settings_of(reference: str, fields: Any) -> Any:
    """Settings of an extension, from plain values or as they are; its module is imported.

    Raises:
      ValueError: no such extension, or no such field.
    """
    if not isinstance(fields, dict):
        return fields
    return from_dict(functions.settings_type(functions.extension(reference)), fields)


def check_name(reference: str) -> None:
    """Refuse an extension that bears the name of a field of the config: flags would mean both.

    Raises:
      ValueError: it does.
    """
    name = functions.extension_name(reference)
    if name in {field.name for field in dataclasses.fields(Config)}:
        raise ValueError(
            f"extension {reference!r} bears the name of the config's field {name!r}; rename it"
        )


def extended(config: Config, reference: str, **fields: Any) -> Config:
    """The config with an extension added, or with fields of one changed.

    Args:
      config: of a run.
      reference: a name of `jaxrl.extensions`, or `module:function`.
      fields: of its settings.

    Raises:
      ValueError: no such extension, or no such field.
    """
    kind = functions.settings_type(functions.extension(reference))
    check_name(reference)
    settings = config.extensions.get(reference, kind())
    for name, value in fields.items():
        settings = replaced(settings, name, value)
    return dataclasses.replace(config, extensions=config.extensions | {reference: settings})


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
    if isinstance(config, Config):
        for reference in config.extensions:
            if rest and functions.extension_name(reference) == first:
                fields = {reference: replaced(config.extensions[reference], rest, value)}
                return dataclasses.replace(config, extensions=config.extensions | fields)
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
        "data.batch_size": config.data.batch_size,
        "data.max_tokens": config.data.max_tokens,
        "eval.problems": config.eval.problems,
        "checkpoint.every": config.checkpoint.every,
        "checkpoint.keep": config.checkpoint.keep,
        "sampler.slots": config.sampler.slots,
        "packing.micro_batch_tokens": config.packing.micro_batch_tokens,
    }
    for name, value in positive.items():
        if value < 1:
            raise ValueError(f"{name}={value}: must be 1 or more")
    if not 0 <= config.seed < 1 << 32:
        raise ValueError(f"seed={config.seed}: must be from 0 to {(1 << 32) - 1}")
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
    if config.rollout.in_flight < 1:
        raise ValueError(
            f"rollout.in_flight={config.rollout.in_flight}: 1 waits for every group of a step, "
            "more samples that many times the groups at once; use 1 or more"
        )
    chunks = config.rollout.chunks
    if chunks.size and not 0 <= chunks.carry < chunks.size:
        raise ValueError(
            f"rollout.chunks.size={chunks.size}, carry={chunks.carry}: carry must be from 0 to "
            "below size"
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
    if config.data.kinds and config.warm_start.steps:
        raise ValueError(
            f"warm_start.steps={config.warm_start.steps} is for a task with solutions, and this "
            "run learns from a file; set it to 0"
        )


def _has_group_baseline(objective: ObjectiveConfig) -> bool:
    grouped = functions.lookup(objective.advantage) is functions.lookup("group_advantages")
    return grouped and objective.advantage_args.get("baseline", "group") in (
        "group",
        "leave_one_out",
    )


def _plain(settings: Any) -> dict[str, Any] | None:
    """Settings of an extension as plain values, as they are read from a file."""
    if settings is None or isinstance(settings, dict):
        return settings
    return json.loads(json.dumps(to_dict(settings)))


def changed(old: Any, new: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Fields that differ, by dotted name, as (old, new)."""
    out: dict[str, tuple[Any, Any]] = {}
    for field in dataclasses.fields(old):
        a, b = getattr(old, field.name), getattr(new, field.name)
        if dataclasses.is_dataclass(a):
            out |= changed(a, b, f"{prefix}{field.name}.")
        elif field.name == "extensions":
            for reference in sorted(a.keys() | b.keys()):
                name = prefix + functions.extension_name(reference)
                one, two = (_plain(side.get(reference)) for side in (a, b))
                keys = {*one, *two} if one is not None and two is not None else set()
                fields = {k: (one.get(k), two.get(k)) for k in sorted(keys)}
                out |= {f"{name}.{k}": v for k, v in fields.items() if v[0] != v[1]}
                if not keys and one != two:
                    out[name] = (one, two)
        elif a != b:
            out[prefix + field.name] = (a, b)
    return out
