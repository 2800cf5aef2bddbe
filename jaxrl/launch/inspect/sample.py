"""`jaxrl sample MODEL_OR_RUN --prompt TEXT [flags]`, or `--env NAME` to play episodes."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import jax
import tyro
from rich.console import Console

from jaxrl.config import Config, validate
from jaxrl.data.text import tokenizers
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.console import PlainConsole, as_text
from jaxrl.launch.settings import flags
from jaxrl.mesh import mesh
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import policy, reshard
from jaxrl.sampling import constraints, sampler
from jaxrl.sampling.requests import features_of
from jaxrl.sampling.warm_up import warm_up_first
from jaxrl.sampling.work import SamplerConfig
from jaxrl.types import Completion, OutputConstraint, Params, Request

DEFAULT_TOKENS = 128
"""Longest completion, or of a model's episode all turns and what is read between them."""


@dataclasses.dataclass(frozen=True)
class SampleConfig:
    """Completions of one prompt, or episodes of one environment. Settings of episodes that are not
    given come from the run, if a run plays."""

    prompt: str = ""
    """Text to continue; empty reads it from standard input."""
    n: int = 1
    """Number of completions."""
    temperature: float | None = None
    """Sampling temperature; 0 is greedy. None: 1, or with `env` that of the run."""
    top_k: int | None = None
    """Sample among the k most likely tokens; 0: among all. None: 0, or with `env` that of the run.
    """
    top_p: float | None = None
    """Sample among the fewest most likely tokens whose probabilities sum to p or more; 1: among
    all. None: 1, or with `env` that of the run."""
    min_p: float | None = None
    """Sample among the tokens at least min_p times as likely as the likeliest; 0: among all. None:
    0, or with `env` that of the run."""
    json_schema: str = ""
    """JSON schema that completions match, or a file with one; empty: none. It, `regex`, `choice`
    and `grammar` need the extra `constrained`, and go one at a time."""
    regex: str = ""
    """Regular expression that completions match as a whole; empty: none."""
    choice: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Text that a completion may be; given several times, e.g. --choice yes --choice no, it is one
    of these."""
    grammar: str = ""
    """File with a context-free grammar in the form of Lark, whose rule `start` completions match;
    empty: none."""
    drafts: Literal["none", "lookup", "group", "model", "layers"] = "none"
    """Guess the next tokens of a completion and verify several in a pass: `none`, not at all;
    `lookup`, what followed its last tokens where they stood before; `group`, there or in
    completions of the same prompt that have ended; `model`, by `draft_model`; `layers`, by the
    first `draft_layers`. No token depends on it."""
    draft_tokens: int = 4
    """Most tokens of a draft."""
    draft_model: str = ""
    """A small model of the same tokenizer, a name, a directory or a run."""
    draft_layers: int = 0
    """How many layers draft, fewer than the model has."""
    max_new_tokens: int | None = None
    """Longest completion, in tokens; of an episode, the budget of all turns and of what is read
    between them. None: 128, or with `env` that of the run."""
    chat: bool | None = None
    """Wrap the prompt in the model's chat template. None: no, or with `env` as in the run."""
    system: str | None = None
    """System message of the chat template; empty: none. None: none, or with `env` that of the
    run."""
    template_args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Variables of the chat template, e.g. --template-args.enable-thinking false."""
    env: str = ""
    """Task with an environment (`jaxrl tasks`) to play, in place of a prompt; empty: none."""
    env_args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Parameters of that task, e.g. --env-args.level 2. Those that are not given are the run's, if
    it was trained on that task."""
    episodes: int = 1
    """Number of episodes, each of another problem of its test split."""
    turn_tokens: int | None = None
    """Longest turn of an episode, in tokens; 0: what is left of `max_new_tokens`. None: that of the
    run, or 0."""
    human: bool = False
    """With `env`: play an episode yourself, in the place of the policy."""
    seat: int = 0
    """With `human`, in a game of two such as board_game: play against the policy and move first
    (1) or second (2). 0: there is no policy."""
    allow_weak: bool = False
    """With `env`: where bubblewrap does not work, run programs under resource limits alone; they
    can then use the network and your user's files."""
    seed: int = 0
    """Random seed."""
    trust: bool = False
    """Accept functions of other packages that the run's config names; they are executed."""
    json: bool = False
    """Print {"completions": [{"text", "token_ids", "logps"}]}; of an environment, {"episodes":
    [{"messages", "reward", "error", "token_ids", "source", "logps"}]}."""


_PROMPTED: Mapping[str, str] = {
    "prompt": "the environment says what the policy reads; leave --prompt out",
    **dict.fromkeys(
        ("json_schema", "regex", "choice", "grammar"),
        "turns are constrained by the run's rollout.constraint; leave it out",
    ),
    "drafts": "episodes are sampled a token at a time; leave it out",
    "n": "each problem is played once; leave --n out, or set --episodes",
}
"""Flags of a prompt, each with its remedy where an environment is played."""
_PLAYED = ("env_args", "episodes", "turn_tokens", "human", "seat", "allow_weak")
"""Flags of an environment."""
_OF_POLICY = (
    "temperature", "top_k", "top_p", "min_p", "max_new_tokens", "turn_tokens", "chat", "system",
    "episodes", "json", "template_args",
)  # fmt: skip
"""Flags of episodes that a policy plays."""


def check(config: SampleConfig) -> None:
    """Refuse a flag that would have no effect.

    Raises:
      ValueError: names the flag, its value and the remedy.
    """
    if config.env:
        where, refused = f"env={config.env!r}", dict(_PROMPTED)
    else:
        where, refused = "no env", dict.fromkeys(_PLAYED, "add --env NAME, or leave it out")
    _refuse(config, where, refused)
    if config.human and not config.seat:
        why = "no policy plays, and one episode is shown as it goes; leave it out"
        _refuse(config, "human=True", dict.fromkeys(_OF_POLICY, why))
    if not config.env and not config.chat:
        why = "only a chat template has a system message; add --chat, or leave it out"
        _refuse(config, "no chat", {"system": why})
        why = "only a chat template has variables; add --chat, or leave them out"
        _refuse(config, "no chat", {"template_args": why})


def _refuse(config: SampleConfig, where: str, refused: Mapping[str, str]) -> None:
    """Refuse values other than the default of these fields; each has its remedy."""
    for name, remedy in refused.items():
        value = getattr(config, name)
        if value != getattr(SampleConfig(), name):
            raise ValueError(f"{name}={value!r} with {where}: {remedy}")


def main(argv: list[str]) -> int:
    """Print completions by a packaged model, a model directory or a run."""
    usage, what = "jaxrl sample MODEL_OR_RUN", "a model, its directory or a run"
    try:
        name, config = flags.name_and_settings(SampleConfig(), argv, usage=usage, what=what)
        check(config)
        layout = SamplerConfig(
            drafts=config.drafts,
            draft_tokens=config.draft_tokens,
            draft_model=config.draft_model,
            draft_layers=config.draft_layers,
        )
        validate.check_drafts(layout)
        constraint = constraint_of(config)
        if constraint is not None and config.drafts != "none":
            raise ValueError(
                f"drafts={config.drafts!r} with a constraint: masks are made on the host, between "
                "two tokens; leave one of them out"
            )
        if config.human or config.seat or config.env:
            from jaxrl.launch.inspect import play  # tasks and their data take a second to import
        if config.env:
            played = play.resolve(name, config)
            config = dataclasses.replace(config, env_args=played.task_args)
        if config.human or config.seat:
            play.check_seat(config)
        if config.human and not config.seat:
            play.by_hand(config)
            return 0
        opened = policy.config_of(name)
        if config.env:
            actor = policy.create(opened, mesh.make(Config().mesh), trust=config.trust)
            tokenizer = tokenizers.with_variables(actor.tokenizer, config.template_args)
            actor = actor._replace(tokenizer=tokenizer)
            return play.main(actor, config, played)
        model, tokenizer = policy.describe_writer(opened, trust=config.trust)
        tokenizer = tokenizers.with_variables(tokenizer, config.template_args)
        batch = requests(tokenizer, config, config.prompt or sys.stdin.read(), constraint)
        completions = complete(opened, model, tokenizer, batch, config.seed, layout)
    except REFUSALS as error:
        return refused(error)
    texts = [tokenizer.decode(c.tokens.tolist()) for c in completions]
    if config.json:
        rows = [
            {"text": text, "token_ids": c.tokens.tolist(), "logps": c.logp.tolist()}
            for text, c in zip(texts, completions, strict=True)
        ]
        print(json.dumps({"completions": rows}))
        return 0
    show(texts, PlainConsole())
    return 0


def show(texts: Sequence[str], console: Console) -> None:
    """Print completions, a rule between two."""
    for i, text in enumerate(texts):
        if i:
            console.rule()
        console.print(as_text(text, lines=True))


def complete(
    opened: Config,
    model: DecoderConfig,
    tokenizer: Tokenizer,
    requests: Sequence[Request],
    seed: int,
    layout: SamplerConfig = SamplerConfig(),
) -> list[Completion]:
    """The completions of a policy in order of their number.

    While the weights are read, the programs are compiled, with zeros in their place.

    Args:
      opened: the config that opens the policy.
      model: the policy's decoder, from `policy.describe`.
      tokenizer: the policy's.
      requests: what to sample.
      seed: of the random stream.
      layout: of the sampler.
    """
    the_mesh = mesh.make(Config().mesh)
    sampler.check_requests(model, requests)

    def load() -> Params:
        return policy.sampling_params(policy.first_params(opened, model, the_mesh), "float32")

    setup = sampler.Setup(
        model,
        jax.random.key(seed),
        tuple(tokenizer.eos_ids),
        max((len(r.prompt) for r in requests), default=0),
        max((len(r.prompt) + r.max_new_tokens for r in requests), default=0),
        layout,
        features_of(requests),
        matchers=constraints.matchers(tokenizer),
        draft=reshard.open_draft(layout, model, tokenizer, the_mesh),
    )
    for request in (r for r in requests[:1] if r.constraint is not None):
        constraints.check(setup, request)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load)
        blank = policy.blank_params(opened, model, the_mesh, "float32")
        if blank is not None:
            warm_up_first(setup, blank, requests)
        del blank
        params = loading.result()
    done = sampler.generate(
        model,
        params,
        requests,
        stop_ids=tokenizer.eos_ids,
        key=jax.random.key(seed),
        sampler=layout,
        matchers=setup.matchers,
        draft=setup.draft,
    )  # of an equal setup, so its programs are those compiled above
    return sorted(done, key=lambda completion: completion.request.id)


def constraint_of(config: SampleConfig) -> OutputConstraint | None:
    """What completions must match; None: nothing.

    Raises:
      ValueError: the config has two of them.
      OSError: a file cannot be read.
    """
    by_flag = {
        name: value
        for name in ("json_schema", "regex", "choice", "grammar")
        if (value := getattr(config, name))
    }
    if len(by_flag) > 1:
        raise ValueError(
            f"{' and '.join(by_flag)}: each says what the whole completion must be; keep one"
        )
    for name, value in by_flag.items():
        if name == "choice":
            return constraints.choices(value)
        if name == "regex":
            return OutputConstraint("regex", value)
        if name == "grammar" or not value.lstrip().startswith("{"):
            value = Path(value).read_text(encoding="utf-8")
        return OutputConstraint(name, value)
    return None


def requests(
    tokenizer: Tokenizer,
    config: SampleConfig,
    prompt: str,
    constraint: OutputConstraint | None = None,
) -> list[Request]:
    """As many requests for completions of a prompt as the config asks for."""
    if config.chat:
        ids = policy.chat(tokenizer, config.system or "", [{"role": "user", "content": prompt}])
    else:
        ids = tokenizer.prompt(prompt)
    return [
        Request(
            id=i,
            prompt=tuple(ids),
            max_new_tokens=DEFAULT_TOKENS
            if config.max_new_tokens is None
            else config.max_new_tokens,
            temperature=1.0 if config.temperature is None else config.temperature,
            top_k=config.top_k or 0,
            top_p=1.0 if config.top_p is None else config.top_p,
            min_p=config.min_p or 0.0,
            constraint=constraint,
        )
        for i in range(config.n)
    ]
