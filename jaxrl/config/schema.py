"""The settings of a run: `Config` and the dataclasses that it consists of."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from jaxrl.config.prompts import BanditConfig, CurriculumConfig, DataConfig, Domain
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models.config import Kernel
from jaxrl.models.lora import LoraConfig
from jaxrl.models.remat import Remat
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.packing import PackingConfig
from jaxrl.training.tries import WHOLE, Chunks


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
    """Longest prompt, in tokens; of an episode, its opening, and one that is longer fails."""
    long_prompts: Literal["error", "drop", "truncate"] = "error"
    """How a prompt over `max_prompt_tokens` is treated: `error` stops and names the problem; `drop`
    removes it from training and evaluation; `truncate` keeps its last tokens. Openings of episodes
    are not prompts of problems, and are none of these."""
    max_new_tokens: int = 64
    """Longest completion, in tokens; of an episode, all its turns and observations."""
    turn_tokens: int = 0
    """Longest turn of an episode, in tokens; 0: what is left of `max_new_tokens`."""
    max_turns: int = 0
    """Most turns of an episode, which is cut off after them; 0: as many as the environment allows.
    Environments of any kind have it."""
    chunks: Chunks = WHOLE
    """Splits long responses into chunks; each sees the prompt and the end of the chunk before it
    (Delethink)."""
    temperature: float = 1.0
    """Sampling temperature, above 0."""
    top_k: int = 0
    """Sample among the k most likely tokens, 2 or more; 0: among all. Applied after the
    temperature, before `top_p` and `min_p`."""
    top_p: float = 1.0
    """Sample among the fewest most likely tokens whose probabilities sum to p or more; 1: among
    all."""
    min_p: float = 0.0
    """Sample among the tokens at least min_p times as likely as the likeliest; 0: among all."""
    constraint: str = ""
    """File with what every completion, or every turn of an episode, matches as a whole: a JSON
    schema (its name ends in `.json`), a regular expression (`.regex`), texts to choose from, one a
    line (`.choices`), or a context-free grammar in the form of Lark (`.lark`). `problem`: each
    problem says what its own match. Empty: nothing. It needs the extra `constrained`."""
    support: Literal["recorded", "full"] = "recorded"
    """What log-probabilities are over in training where `top_k`, `top_p` or `min_p` truncate, or
    `constraint` restricts: `recorded`, the tokens that each draw was made among; `full`, the whole
    vocabulary, for an objective that corrects for the difference."""
    chat: bool = False
    """Wrap each prompt in the model's chat template."""
    system: str = ""
    """System message of the chat template; empty: none."""
    template_args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Variables of the chat template, e.g. --rollout.template-args.enable-thinking false. They hold
    wherever the template writes: in prompts, in rows of a file, and in evaluation."""
    replies: Literal["together", "arrival"] = "together"
    """When scores and replies of environments take effect: `together`, once nothing else is left to
    sample, so that a run does not depend on their timing; or on `arrival`, which is faster with
    slow environments. Partial rollouts that wait for one then differ from run to run."""
    strip_reasoning: bool = False
    """Leave the reasoning of a turn, up to `</think>`, out of what later turns of an episode read,
    also where the chat template keeps it. What follows such a turn is another context."""
    on_device: bool = False
    """Play episodes within the decode loop, where the task's environment is also given as arrays,
    as that of `keydoor` is. Tokens and rewards are the same."""
    in_flight: float = 1.0
    """Over-provisioning factor of partial rollouts, 1 or more: that many times `prompts` are
    sampled at once, a step trains on the first groups that finish, and the next step continues the
    rest with the new weights. 1 waits for every group."""
    oversampling: float = 1.0
    """Budget of DAPO's dynamic sampling, 1 or more: groups whose rewards are all equal are
    replaced, by sampling up to this factor times `prompts`, rounded up. 1 replaces none."""
    rounds: Literal["fixed", "adaptive"] = "fixed"
    """Groups that each round of dynamic sampling begins: `fixed`, `prompts` of them; `adaptive`,
    those that are missing divided by the lowest share of kept groups so far (CodeV-R1)."""

    @property
    def cuts(self) -> dict[str, float]:
        """The fields that may truncate the distribution, by name."""
        return {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}

    @property
    def truncated(self) -> dict[str, float]:
        """Those of `cuts` that do truncate it."""
        return {n: cut for n, cut in self.cuts.items() if cut != (1 if n == "top_p" else 0)}

    @property
    def records_support(self) -> bool:
        """Whether the tokens that draws were made among are recorded."""
        return bool(self.truncated or self.constraint) and self.support == "recorded"


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """Which devices sample."""

    devices: int = 0
    """Number of devices dedicated to sampling, taken from the end of each process's list; 0 samples
    on the training devices."""
    mesh: MeshConfig = MeshConfig()
    """Mesh of the sampling devices; sharding rules are those of the training mesh."""
    weights: Literal["trained", "int8"] = "trained"
    """Weights used to sample rollouts: the trained ones, or with the matrices of the layers rounded
    to 8 bits (`int8`). `logp_gap` then includes the rounding, and the objective must correct for
    it. Evaluations use the trained weights."""
    dtype: Literal["", "float32", "bfloat16"] = ""
    """Dtype that rollouts are sampled in; empty: `compute_dtype`."""


@dataclasses.dataclass(frozen=True)
class AsynchronousConfig:
    """Sampling that continues while the policy is trained; see docs/asynchronous.md."""

    staleness: int | None = None
    """Greatest lag of a token, in steps between the weights that sampled it and those that learn
    from it: 0 or more. Absent: sampling and training alternate."""
    schedule: str = "live"
    """Source of the order of events: `live`, real time; `lockstep:K`, deterministic, as if an
    update took K chunks of sampling; `recorded:RUN`, the record of another run."""
    order: Literal["admitted", "finished"] = "admitted"
    """Groups that a step trains on: those started first, or those that finish first."""
    in_flight: int = 0
    """Most groups in progress at once, `rollout.prompts` or more; 0: as many as `staleness`
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
class TrackConfig:
    """How a run appears in the trackers that it reports to, see `jaxrl.record.trackers`."""

    entity: str = ""
    """Weights & Biases team or user; empty: the default of the account."""
    name: str = ""
    """Name of the run; empty: that of its directory."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    completions: int = 16
    """Rows of a table of completions; 0: no table."""
    every: int = 10
    """Steps between two tables; the first step has one too."""


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
    wrapper: str = ""
    """A function of `jaxrl.data.rewards.wrappers`, or module:function, that makes a method's reward
    of the task's own; empty: none."""
    wrapper_args: dict[str, str] = dataclasses.field(default_factory=dict)
    """`asks`, a text added to each prompt; `states`, a function that gives one for each problem;
    and `column`, of the row that the function reads."""
    domains: dict[str, Domain] = dataclasses.field(default_factory=dict)
    """Several tasks by name, in place of `task`; each problem is scored by its own task."""
    bandit: BanditConfig = BanditConfig()
    stages: dict[int, dict[str, bool | int | float | str]] = dataclasses.field(default_factory=dict)
    """Fields that change during the run: number of finished steps to {field: value}, e.g.
    --stages.100 '{"rollout.max_new_tokens": 128}'; `period` among them repeats the change. See
    `jaxrl.config.stages`."""
    course: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Stages before this run, each a whole config, in order from 0. Every one starts from the
    result of the one before, and this run from that of the last; see `jaxrl.run.course`. A file
    with `course` sets them."""
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
    labels: int = 0
    """1 trains a reward model: a linear score of the last token in place of the output head; 0 a
    language model. Recipes set it."""
    train: tuple[str, ...] = ()
    """Patterns of the parameters to train, such as layers/mlp/*; empty trains all."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of activations, sampling, frozen parameters and the reference policy. In float32,
    matrix products are computed at full precision on every device."""
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype that trained parameters are stored in. With `bfloat16`, updates are computed in float32
    and rounded stochastically; norms and routers stay float32. Moments: see `optimizer.moments`."""
    attention: Kernel = "auto"
    """Attention backend; `auto` takes cudnn on GPU and splash on TPU where they apply, else xla."""
    remat: Remat = "none"
    """Activations recomputed in the backward pass: `none`; `dots`, all but matrix products; `full`,
    whole layers; `offload` keeps them in host memory."""
    sampler: SamplerConfig = SamplerConfig()
    packing: PackingConfig = PackingConfig()
    mesh: MeshConfig = MeshConfig()
    sampling: SamplingConfig = SamplingConfig()
    generators: int = 0
    """Number of separate sampling processes, each with its own devices, which may die and be
    replaced at any time (extra `ray`); see docs/asynchronous.md. 0: this process samples."""
    asynchronous: AsynchronousConfig = AsynchronousConfig()
    eval: EvalConfig = EvalConfig()
    rollout_log: RolloutLogConfig = RolloutLogConfig()
    wandb: str = ""
    """Weights & Biases project that metrics are also sent to (extra `wandb`); empty: none."""
    trackio: str = ""
    """Trackio project that metrics are also sent to (extra `trackio`); empty: none."""
    mlflow: str = ""
    """MLflow experiment that metrics are also sent to (extra `mlflow`); empty: none."""
    otlp: str = ""
    """Address of an OpenTelemetry collector, such as http://localhost:4318, that metrics are also
    sent to (extra `otlp`); empty: none."""
    track: TrackConfig = TrackConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guard: GuardConfig = GuardConfig()
    score_workers: int = 2
    """Processes that score completions; 0 scores in this process if the task's reward is pure, else
    in one other process."""
    score_seconds: float = 10.0
    """Time limit of one score, in seconds; a task's own limits can raise it."""
    score_memory_mb: int = 4096
    """Memory that each of these processes may have, in MB; an item that needs more is an error."""
    sandbox: SandboxConfig = SandboxConfig()
