"""`jaxrl eval RUN_OR_MODEL [--task NAME] [--k 8] [flags]`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

import jax
from rich.table import Table

from jaxrl.config import Config, conflicts, validate
from jaxrl.data.scoring.pool import open_pool
from jaxrl.data.text import tokenizers
from jaxrl.extensions import ilql
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.console import PlainConsole, as_text
from jaxrl.launch.settings import flags
from jaxrl.launch.streams import say
from jaxrl.mesh import mesh
from jaxrl.models.config import DecoderConfig
from jaxrl.record import account, storage
from jaxrl.rollout import episodes, policy, reshard, tasks, value_search
from jaxrl.run import evaluate
from jaxrl.types import Params


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Settings of an evaluation. Settings that are not given come from the run, if a run is
    evaluated."""

    task: str = ""
    """Name of the task; needed for a model."""
    task_args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Parameters of the task, e.g. --task-args.digits 3."""
    split: str = "test"
    """Split of the task."""
    problems: int = 256
    """Number of problems."""
    k: int = 1
    """Completions per problem, for pass@1, unbiased pass@k and majority vote. One passes with a
    reward of 1 or more. An episode votes with its last turn."""
    search: int = 1
    """Candidates for each turn, of which the one of the largest value is kept (value-guided
    search). The run has to train values, see the extension ilql."""
    temperature: float | None = None
    """Sampling temperature; None: greedy for k = 1 without search, else the run's, or 1 for a
    model."""
    top_k: int | None = None
    """Sample among the k most likely tokens; 0: among all. None: the run's, or 0 for a model."""
    top_p: float | None = None
    """Sample among the fewest most likely tokens whose probabilities sum to p or more; 1: among
    all. None: the run's, or 1 for a model."""
    min_p: float | None = None
    """Sample among the tokens at least min_p times as likely as the likeliest; 0: among all. None:
    the run's, or 0 for a model."""
    max_new_tokens: int | None = None
    """Longest completion, in tokens; None: the run's."""
    drafts: Literal["none", "lookup", "group", "model", "layers"] | None = None
    """Guess the next tokens of a completion and verify several in a pass: `none`, not at all;
    `lookup`, what followed its last tokens where they stood before; `group`, there or in
    completions of the same problem that have ended; `model`, by `draft_model`; `layers`, by the
    first `draft_layers`. No token depends on it. None: the run's, or `none` for a model."""
    draft_tokens: int | None = None
    """Most tokens of a draft; None: the run's, or 4 for a model."""
    draft_model: str | None = None
    """A small model of the same tokenizer, a name, a directory or a run; None: the run's."""
    draft_layers: int | None = None
    """How many layers draft, fewer than the model has; None: the run's."""
    chat: bool | None = None
    """Wrap prompts in the model's chat template; None: as in the run, or if the model has one."""
    template_args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Variables of the chat template, e.g. --template-args.enable-thinking false; the others are
    those of the run."""
    score_workers: int = 2
    """Processes that score completions; 0 scores in this process if the task's reward is pure, else
    in one other."""
    allow_weak: bool = False
    """Where bubblewrap does not work, run programs under resource limits alone; they can then use
    the network and your user's files."""
    seed: int = 0
    """Random seed of the problems and of the sampling."""
    trust: bool = False
    """Accept functions of other packages that the run's config names; they are executed."""
    json: bool = False
    """Print the results as one JSON object."""


def main(argv: list[str]) -> int:
    """Evaluate a packaged model, a model directory or a run."""
    usage, what = "jaxrl eval RUN_OR_MODEL", "a run, a model or its directory"
    try:
        name, settings = flags.name_and_settings(EvaluateConfig(), argv, usage=usage, what=what)
        figures = measure(name, settings)
    except REFUSALS as error:
        return refused(error)
    if settings.json:
        print(json.dumps(figures))
        return 0
    PlainConsole().print(table(figures))
    return 0


def table(figures: dict[str, float]) -> Table:
    """The figures with their intervals; a figure is named after a domain or a part of a reward."""
    figure_table = Table("figure", "value", "95% interval")
    for figure, value in figures.items():
        if not figure.endswith(("/low", "/high")):
            low, high = figures.get(f"{figure}/low"), figures.get(f"{figure}/high")
            interval = f"{low:.3f} - {high:.3f}" if low is not None else ""
            figure_table.add_row(as_text(figure), f"{value:.4g}", interval)
    return figure_table


def measure(name: str, settings: EvaluateConfig) -> dict[str, float]:
    """The figures of `jaxrl.run.evaluate.figures`.

    Raises:
      ValueError: a request that cannot be served, such as a model without a task.
    """
    config = resolve(name, settings)
    temperature = settings.temperature
    if temperature is None:
        greedy = settings.k == settings.search == 1
        temperature = 0.0 if greedy else config.rollout.temperature
    fields = config.rollout.cuts
    cuts = {field: cut for field in fields if (cut := getattr(settings, field)) is not None}
    if cuts and not temperature:
        field, cut = next(iter(cuts.items()))
        raise ValueError(
            f"{field}={cut} with temperature={temperature}: greedy decoding takes the most likely "
            "token, so that it has no effect; set --temperature above 0, or leave it out"
        )
    config = _with_rollout(config, **cuts)
    validate.check_truncation(config.rollout)
    if settings.search != 1:
        _check_search(config, name, temperature)
        config = _with_rollout(config, on_device=False)
    names = ("drafts", "draft_tokens", "draft_model", "draft_layers")
    changes = {field: v for field in names if (v := getattr(settings, field)) is not None}
    if settings.drafts is not None:  # what the run's drafts are made with serves them alone
        changes = {"draft_model": "", "draft_layers": 0} | changes
    config = dataclasses.replace(config, sampler=dataclasses.replace(config.sampler, **changes))
    if changes:
        validate.check_drafts(config.sampler, "sampler.")
        conflicts.check(config)
    task = tasks.of_config(config)
    task.check_split(settings.split)
    source = dataclasses.replace(
        policy.config_of(name),
        compute_dtype=config.compute_dtype,
        task=settings.task,
        task_args=settings.task_args,
    )
    model, tokenizer = policy.describe_writer(source, trust=settings.trust)
    tokenizer = tokenizers.with_variables(tokenizer, config.rollout.template_args)
    keep = policy.keeps(tokenizer, config.rollout, task)
    held_out = evaluate.problems(task, settings.split, settings.problems, settings.seed, keep)
    if config.rollout.chat and settings.chat is None and not policy.is_run(name):
        chat = tokenizer.chat is not None and held_out[0].messages is not None
        config = _with_rollout(config, chat=chat)
    # Compiled for the longest prompt that is there, not for the longest allowed. What an episode
    # opens with is known only once its environment has begun.
    if all(task.of(problem).turns is None for problem in held_out):
        longest = max(len(policy.encode_prompt(tokenizer, config.rollout, p)) for p in held_out)
        config = _with_rollout(config, max_prompt_tokens=longest)
    the_mesh = mesh.make(config.mesh)
    if the_mesh.size > 1:  # a run on one device may have a prefix cache, which several cannot have
        layout = dataclasses.replace(config.sampler, prefix_cache=0)
        config = dataclasses.replace(config, sampler=layout)
    with (
        jax.set_mesh(the_mesh),
        open_pool(
            task.name,
            task.params,
            workers=settings.score_workers,
            time_limit_s=config.score_seconds,
            memory_limit_mb=config.score_memory_mb,
            allow_weak=config.sandbox.allow_weak or settings.allow_weak,
        ) as pool,
    ):
        if pool.isolation:
            say(pool.isolation, error=True)
        params = policy.first_params(source, model, the_mesh)
        draft = reshard.open_draft(config.sampler, model, tokenizer, the_mesh)
        program = episodes.group
        if settings.search != 1:
            program = value_search.searched(
                program, settings.search, _judge(name, config, model, params)
            )
        figures, _ = evaluate.evaluate(
            policy.Policy(model, params, tokenizer, draft=draft),
            policy.sampling_params(params, config.compute_dtype),
            held_out,
            task,
            pool,
            config.rollout,
            config.sampler,
            k=settings.k,
            temperature=temperature,
            seed=settings.seed,
            program=program,
        )
    return figures


def _check_search(config: Config, name: str, temperature: float) -> None:
    """Refuse a search that cannot be made."""
    if not policy.is_run(name) or flags.at(config, "ilql") is None:
        raise ValueError(
            f"search needs the values that a run has trained, and {name!r} has none; train with "
            "--with ilql --ilql.targets returns --ilql.beta 0, or leave --search out"
        )
    if not temperature:
        raise ValueError("temperature=0 with search: all candidates would be the same; raise it")


def _judge(name: str, config: Config, model: DecoderConfig, params: Params) -> value_search.Judge:
    """The values that a run has saved, which are shaped as its policy."""
    values = ilql.saved(storage.locate(name), flags.at(config, "ilql"), model, params)
    return value_search.token_values(model, values)


def resolve(name: str, settings: EvaluateConfig) -> Config:
    """The run's config, or the defaults for a model, with what the settings override."""
    if policy.is_run(name):
        config = account.config(name, None if settings.trust else policy.named_functions(settings))
    elif not settings.task:
        raise ValueError(f"{name!r} is not a run, so say what to evaluate it on: --task NAME")
    else:
        config = _with_rollout(Config(), chat=True, max_prompt_tokens=1024, max_new_tokens=512)
    if settings.task and settings.task != config.task:
        config = dataclasses.replace(config, task=settings.task, task_args={}, domains={})
    config = dataclasses.replace(config, task_args=config.task_args | settings.task_args)
    overrides = {"chat": settings.chat, "max_new_tokens": settings.max_new_tokens}
    variables = config.rollout.template_args | settings.template_args
    changes = {k: v for k, v in overrides.items() if v is not None} | {"template_args": variables}
    return _with_rollout(config, **changes)


def _with_rollout(config: Config, **changes: Any) -> Config:
    return dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, **changes))
