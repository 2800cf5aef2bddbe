"""Short flags: data and rewards of one's own in one line, and the names that flags have elsewhere.

`expand` turns them into fields of the config and the flags of these, before `flags.parse`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl import config as configs
from jaxrl import gguf_file
from jaxrl.config import Config, Domain
from jaxrl.data.rewards import named
from jaxrl.data.sources import rows
from jaxrl.data.tasks import file
from jaxrl.launch import recipes
from jaxrl.launch.settings import paths
from jaxrl.models import catalog
from jaxrl.rollout import policy as policies
from jaxrl.rollout import tasks, written
from jaxrl.rollout.policy import Policy
from jaxrl.training import companions

ALIASES = {
    "lr": "optimizer.learning-rate",
    "learning-rate": "optimizer.learning-rate",
    "lr-scheduler-type": "optimizer.schedule",
    "schedule": "optimizer.schedule",
    "warmup-steps": "optimizer.warmup-steps",
    "weight-decay": "optimizer.weight-decay",
    "max-grad-norm": "optimizer.clip-norm",
    "batch-size": "rollout.prompts",
    "prompts": "rollout.prompts",
    "group-size": "rollout.group-size",
    "num-generations": "rollout.group-size",
    "temperature": "rollout.temperature",
    "max-new-tokens": "rollout.max-new-tokens",
    "max-completion-length": "rollout.max-new-tokens",
    "max-prompt-tokens": "rollout.max-prompt-tokens",
    "max-prompt-length": "rollout.max-prompt-tokens",
    "system": "rollout.system",
    "chat": "rollout.chat",
    "no-chat": "rollout.no-chat",
    "kl-coef": "objective.kl-coef",
    "beta": "objective.kl-coef",
    "entropy-coef": "objective.entropy-coef",
    "num-iterations": "updates-per-batch",
    "lora-rank": "lora.rank",
    "lora-alpha": "lora.alpha",
    "max-steps": "steps",
    "output-dir": "run-dir",
    "out": "run-dir",
    "teacher": "teacher.model",
    "model-name-or-path": "model",
    "model-name": "model",
    "env": "task",
    "resume": "fork",
    "eval-data": "data.eval-path",
    "eval-every": "eval.every",
    "eval-problems": "eval.problems",
    "save-every": "checkpoint.every",
    "save-steps": "checkpoint.every",
    "eval-steps": "eval.every",
    "dtype": "compute-dtype",
    "micro-batch-tokens": "packing.micro-batch-tokens",
    "fsdp": "mesh.fsdp",
    "tensor": "mesh.tensor",
    "wandb-entity": "track.entity",
    "run-name": "track.name",
    "tags": "track.tags",
}
"""Names to the flags that they stand for."""

DATA = {
    "data": "path",
    "dataset": "path",
    "train-file": "path",
    "test-data": "test_path",
    "prompt-column": "prompt_column",
    "answer-column": "answer_column",
    "solution-column": "solution_column",
    "domain-column": "domain_column",
    "template": "template",
    "test-share": "test_share",
    "reward-env": "environment",
    "bad-rows": "bad_rows",
}
"""Flags to the parameters of the task `file` that they set."""

_PROMPT_COLUMNS = {"prompt": "prompt-column", "completion": "answer-column"}
"""Columns of a file of rows, and the flags that name them in a file of prompts."""

ROWS = {
    "data": "data.path",
    "dataset": "data.path",
    "train-file": "data.path",
    "test-data": "data.eval-path",
    "test-share": "data.eval-share",
    "prompt-column": "data.columns.prompt",
    "answer-column": "data.columns.completion",
    "batch-size": "data.batch-size",
    "bad-rows": "data.bad-rows",
}
"""Flags that mean other fields in a run that learns from a file."""

_FILES = ("path", "test_path")
_OWN = ("reward", "epochs", "show-every", "profile", "trust", "strict", "memory")
_SWITCHES = ("chat", "no-chat", "profile", "trust", "strict")
NAMES = (*ALIASES, *DATA, *_OWN)
"""All short flags."""


class Options(NamedTuple):
    """What is no field of a config."""

    epochs: int = 0
    """Passes over the train split, in place of `steps`; 0: as `steps` says."""
    show_every: int = 0
    """Steps between completions shown on the console; 0: ten in a run."""
    profile: bool = False
    """Trace steps 3 to 5."""
    trust: bool = False
    """Run the functions of others that a run directory names, and follow links that lead out of
    it."""
    strict: bool = False
    """Refuse settings that take part of the recipe's method away."""
    notes: tuple[str, ...] = ()
    """Lines to print before the run."""
    memory: str = ""
    """A size, or `auto`: choose the settings of memory with which the run fits; empty: as they
    are. See `jaxrl.launch.planning.memory.fit`."""


def expand(
    config: Config, argv: Sequence[str], file_flags: Sequence[str] = ()
) -> tuple[Config, list[str], Options]:
    """The config with the data and rewards of short flags, the other flags in full, and options.

    A task of another name starts from its own parameters. A model with a chat template gets its
    prompts in it, unless --no-chat is given or the recipe was made for another model.

    Args:
      config: to start from.
      argv: the flags of a command.
      file_flags: those of its file, which the command may say otherwise.

    Raises:
      ValueError: a flag without its value, a switch with one that is neither true nor false, or
        data without a reward.
    """
    rest: list[str] = []
    values: dict[str, str] = {}
    rewards: list[str] = []
    columns: dict[str, str] = {}
    for flag in ("--data", "--test-data", "--eval-data"):
        for side in (file_flags, argv):
            if sum(token.partition("=")[0] == flag for token in side) > 1:
                raise ValueError(f"{flag} is given twice; name several files by one folder or glob")
    queue = [*file_flags, *argv]
    while queue:
        token = queue.pop(0)
        flag, has_value, value = token.partition("=")
        name = flag.removeprefix("--").replace("_", "-")
        if name == "data.bad-rows":  # what messages name, whatever a run learns from
            token, name = f"--bad-rows{has_value}{value}", "bad-rows"
        column = "" if config.data.kinds else name.partition("data.columns.")[2]
        name = _PROMPT_COLUMNS.get(column, name)
        plain = not token.startswith("--") or name not in NAMES or _is_field(config, name)
        if config.data.kinds and token.startswith("--") and name in ROWS:
            rest.append(f"--{ROWS[name]}{has_value}{value}")
        elif plain and not column:
            rest.append(token)
        elif name in _SWITCHES:
            enabled = _is_on(name, value) if has_value else True
            if name in ("chat", "no-chat"):
                rest.append(
                    "--rollout.chat" if enabled == (name == "chat") else "--rollout.no-chat"
                )
            elif enabled:
                values[name] = "true"
            else:
                values.pop(name, None)  # a flag takes back what the file of the run asks for
        elif name in ALIASES:
            rest += [f"--{ALIASES[name]}{has_value}{value}"]
        else:
            if not has_value and (not queue or queue[0].startswith("--")):
                raise ValueError(f"--{name} needs a value")
            argument = value if has_value else queue.pop(0)
            if column and name not in DATA:
                columns[column.replace("-", "_")] = argument
            elif name == "reward":
                rewards.append(argument)
                while queue and not has_value and not queue[0].startswith("--"):
                    rewards.append(queue.pop(0))
            else:
                values[DATA.get(name, name)] = argument
    if columns:
        earlier = str(config.task_args.get("columns") or "{}") if config.task == "file" else "{}"
        values["columns"] = json.dumps(json.loads(earlier) | columns)
    if values.get("memory") == "":
        raise ValueError("--memory needs a size, such as 14GiB, or auto")
    options = Options(
        _whole("epochs", values), _whole("show-every", values),
        "profile" in values, "trust" in values, "strict" in values,
        memory=values.get("memory", ""),
    )  # fmt: skip
    config = _with_task(config, rest)
    if policy := _value_of("--objective.policy", rest):
        objective = companions.with_policy(config.objective, policy)
        config = dataclasses.replace(config, objective=objective)
    if "path" in values and (method := recipes.method_of(config)):
        rewards += [text for text in method.rewards if text not in rewards]
    config, rewards = _with_reward_models(config, rewards, "path" in values)
    data_args = {k: v for k, v in values.items() if k in {*DATA.values(), "columns"}}
    config = _with_data(config, data_args, rewards)
    if options.epochs and any(t.partition("=")[0] == "--steps" for t in rest):
        raise ValueError("--epochs and --steps both say how long to train; give one of them")
    return _with_chat(config, rest), rest, options


def with_epochs(config: Config, options: Options) -> tuple[Config, Options]:
    """The config with the steps that the epochs of the options take over the train split, or the
    file; and the options with a note where a step cannot end with the last epoch.

    Raises:
      ValueError: the task makes problems without end, or the file cannot be read.
    """
    if not (epochs := options.epochs):
        return config, options
    count = _rows(config, epochs) if config.data.kinds else _problems(config, epochs)
    batch = config.data.batch_size if config.data.kinds else config.rollout.prompts
    steps = max(1, math.ceil(epochs * count / batch))
    if config.data.kinds:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, epochs=epochs))
    ends_early = config.data.kinds and config.updates_per_batch == 1
    if not ends_early and (note := _unequal(config, epochs, count, steps * batch)):
        options = options._replace(notes=(*options.notes, note))
    return dataclasses.replace(config, steps=steps), options


def _rows(config: Config, epochs: int) -> int:
    """What an epoch over a file is made of: its rows to train on, of which one may be several."""
    check_named(config)
    model, tokenizer = policies.describe(config)
    file_rows = written.usable(tokenizer, config, config.data.path)
    places = list(range(len(file_rows)))
    if not config.data.eval_path:
        places = rows.divide(file_rows, config.data.eval_share, config.eval.problems)[0]
    if config.data.long_rows == "split" or config.data.comparisons:
        actor = Policy(model, {}, tokenizer)
        return sum(len(written.groups(actor, config, file_rows, place)) for place in places)
    return len(places)


def _problems(config: Config, epochs: int) -> int:
    """The problems of the train split whose prompts are kept."""
    task = tasks.of_config(config)
    size = task.sizes.get("train")
    if not size:
        raise ValueError(f"--epochs {epochs}: task {config.task!r} has no end; give --steps")
    if task.params.get("bad_rows") != "skip" and config.rollout.long_prompts != "drop":
        return size
    check_named(config)
    keep = policies.keeps(policies.describe(config)[1], config.rollout, task)
    problems = (task.problem("train", config.seed, index) for index in range(size))
    return sum(1 for _ in filter(keep, problems)) or size  # of none, the run says so


def _unequal(config: Config, epochs: int, count: int, total: int) -> str:
    """What a run does where steps of equal size take more than whole epochs; empty: they do not."""
    if not config.data.kinds and (config.curriculum.choose or config.rollout.rounds == "adaptive"):
        return (
            f"--epochs {epochs}: as many steps as {epochs} x {count} prompts take; which prompts "
            "they are is chosen by the rewards, so some are used more often than others"
        )
    if not (surplus := total - epochs * count):
        return ""
    what, step = "prompts", f"rollout.prompts={config.rollout.prompts}"
    if config.data.kinds:
        what, step = "rows", f"data.batch_size={config.data.batch_size}"
    return (
        f"--epochs {epochs}: {epochs} x {count} = {epochs * count} {what} are no whole number of "
        f"steps with {step}; the last step takes {surplus} more, of later epochs"
    )


def check_named(config: Config) -> None:
    """Refuse an algorithm without a model or a task.

    Raises:
      ValueError: naming the flags.
    """
    if not config.model:
        raise ValueError(
            f"{config.recipe} needs a model: --model DIRECTORY (Hugging Face), a GGUF file, a "
            "packaged model such as smollm2-135m, or a run directory"
        )
    if not config.task and not config.domains and not config.data.kinds:
        raise ValueError(
            f"{config.recipe} needs something to train on: --data FILE with --reward "
            "FILE.py:FUNCTION, or --task NAME (`jaxrl tasks` lists them)"
        )


def _is_field(config: Config, name: str) -> bool:
    if name == "data":  # in a run that samples, the file of its prompts
        return bool(config.data.kinds)
    return name.replace("-", "_") in {field.name for field in dataclasses.fields(config)}


def _is_on(name: str, text: str) -> bool:
    """What `--NAME=TEXT` says of a switch."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"--{name}={text}: is on or off; give true or false, or --{name} alone")
    return text.lower() == "true"


def _whole(name: str, values: dict[str, str]) -> int:
    text = values.get(name, "0")
    if not text.isdecimal():
        raise ValueError(f"--{name} {text}: must be a whole number")
    return int(text)


def _with_task(config: Config, argv: Sequence[str]) -> Config:
    """Parameters of the recipe's task do not follow to another."""
    chosen = _value_of("--task", argv)  # --env is written as --task by now
    if chosen is None or chosen == config.task:
        return config
    return dataclasses.replace(config, task=chosen, task_args={}, domains={})


def _with_reward_models(
    config: Config, rewards: Sequence[str], data: bool
) -> tuple[Config, list[str]]:
    """The config with the rewards that are directories of models, and the other rewards.

    Beside others, which are then the task's, their scores are added; alone, they are the reward.
    """
    models = [text for text in rewards if (Path(text) / "config.json").exists()]
    other_rewards = [text for text in rewards if text not in models]
    if not models:
        return config, other_rewards
    paths = tuple(str(Path(model).resolve()) for model in models)
    settings = {"models": paths, "task_weight": float(bool(other_rewards))}
    config = configs.extended(config, "reward_model", **settings)
    return config, other_rewards or ["none"] * data


def _with_data(config: Config, data_args: dict[str, str], rewards: Sequence[str]) -> Config:
    if not data_args and not rewards:
        return config
    if "teacher" in config.extensions and not rewards:
        rewards = ["none"]
    before = dict(config.task_args) if config.task == "file" else {}
    if "path" not in data_args and "path" not in before:
        first = next((f for f, p in DATA.items() if p in data_args), "data.columns")
        flag = "--reward" if rewards else f"--{first}"
        raise ValueError(
            f"{flag} is for data of your own: name them with --data FILE; the tasks of "
            "`jaxrl tasks` have a reward"
        )
    args = before | {k: paths.whole_path(v) if k in _FILES else v for k, v in data_args.items()}
    if "test_share" in data_args:
        args["test_share"] = float(data_args["test_share"])
    if rewards:
        args["rewards"] = named.to_json([named.parse(text) for text in rewards])
    if "rewards" not in args:
        raise ValueError(
            "--data needs a reward for its completions: --reward FILE.py:FUNCTION, or one of "
            f"{', '.join(named.BUNDLED)}"
        )
    column = args.get("domain_column")
    return on_file(config, args, file.domains(str(args["path"]), str(column)) if column else {})


def on_file(config: Config, args: dict[str, Any], shares: Mapping[str, float]) -> Config:
    """The config on the rows of a file.

    Args:
      config: of a recipe.
      args: parameters of the task `file`.
      shares: of the rows by domain; empty: the rows are one task.
    """
    domains = {
        name: Domain("file", args | {"domain": name}, share) for name, share in shares.items()
    }
    return dataclasses.replace(config, task="file", task_args=args, domains=domains)


def model_of(argv: Sequence[str]) -> str | None:
    """The model that flags name, if any."""
    flags = ["--model", *(f"--{name}" for name, full in ALIASES.items() if full == "model")]
    return next((model for flag in flags if (model := _value_of(flag, argv))), None)


def _with_chat(config: Config, argv: Sequence[str]) -> Config:
    model = model_of(argv) or config.model
    explicit = any(t.startswith(("--rollout.chat", "--rollout.no-chat")) for t in argv)
    if config.model or explicit or not has_template(model):
        return config
    return dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, chat=True))


def has_template(model: str) -> bool:
    """Whether a model has a chat template: of a directory, a GGUF file, a packaged model, or a Hub
    id in the local cache."""
    if catalog.is_hub(model):
        path = catalog.cached(model)
    else:
        available = model in catalog.PACKAGED or Path(model).exists()
        path = catalog.locate(model) if available else None
    if path is None:
        return False
    if path.suffix == ".gguf":
        return "tokenizer.chat_template" in gguf_file.header(path).fields
    if (path / "chat_template.jinja").exists():
        return True
    settings = path / "tokenizer_config.json"
    return settings.exists() and "chat_template" in json.loads(settings.read_text("utf-8"))


def _value_of(flag: str, argv: Sequence[str]) -> str | None:
    for place, token in enumerate(argv):
        name, has_value, value = token.partition("=")
        if name == flag:
            return value if has_value else next(iter(argv[place + 1 : place + 2]), None)
    return None
