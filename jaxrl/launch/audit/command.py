"""`jaxrl audit FILE [--model M] [--json]`: what is wrong with rollouts that any tool recorded."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from jaxrl.config import Config
from jaxrl.data.text import tokenizers
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.launch.audit import Messages, Trace, findings, likelihoods, traces
from jaxrl.launch.audit.findings import Finding
from jaxrl.launch.audit.likelihoods import Scores
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.console import PlainConsole, as_text
from jaxrl.launch.settings import flags
from jaxrl.mesh import mesh
from jaxrl.mesh.buckets import round_up
from jaxrl.models import decoder, head
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout import policy
from jaxrl.sampling.decode import ROWS, by_position
from jaxrl.types import Params

_TEMPERATURES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0)
"""Tried where recorded log-probabilities are not those of the temperature that was asked for."""
_TOP_P = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
_TOP_K = (1, 2, 5, 10, 20, 40, 50, 64, 100, 200)
"""Cuts that samples are tried for."""


@dataclasses.dataclass(frozen=True)
class AuditConfig:
    """What rollouts are compared with."""

    model: str = ""
    """Model or run that sampled them; empty: templates and log-probabilities are not checked."""
    temperature: float = 1.0
    """Temperature that the recorded log-probabilities are said to be of."""
    tolerance: float = 0.02
    """Largest mean of |recorded - model| of a row that is not reported, nats. The model is computed
    in float32 here, and an engine in bf16 differs from that; how far has not been measured."""
    max_staleness: int = 1
    """Largest age of the weights, in versions, that is not reported."""
    max_tokens: int = 32768
    """Longest sequence that is scored; longer ones are counted as not scored."""
    rows: int = 0
    """Number of rollouts to look at, from the first; 0: all."""
    template_args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Variables of the chat template, e.g. --template-args.enable-thinking false."""
    trust: bool = False
    """Accept functions of other packages that the run's config names; they are executed."""
    json: bool = False
    """Print one JSON object, with every finding."""


def main(argv: list[str]) -> int:
    """Audit a file; the exit status is 0 without findings, 1 with some, 2 if it cannot be read."""
    usage, what = "jaxrl audit FILE", "a file of rollouts"
    try:
        path, config = flags.name_and_settings(AuditConfig(), argv, usage=usage, what=what)
        check(config)
        report = audit(path, config)
    except REFUSALS as error:
        return refused(error)
    if config.json:
        print(json.dumps(report))
    else:
        show(report)
    return int(bool(report["findings"]))


def check(config: AuditConfig) -> None:
    """Refuse settings that mean nothing.

    Raises:
      ValueError: names the flag, its value and the remedy.
    """
    for name in ("temperature", "tolerance"):
        if not 0 < getattr(config, name) < float("inf"):
            raise ValueError(f"{name}={getattr(config, name)}: set a number above 0")
    for name in ("max_staleness", "rows"):
        if getattr(config, name) < 0:
            raise ValueError(f"{name}={getattr(config, name)}: set 0 or more")
    if config.template_args and not config.model:
        raise ValueError("template_args without a model: add --model, whose template they are of")


def audit(path: str, config: AuditConfig) -> dict[str, Any]:
    """The findings of a file, how much was checked, and differences by depth, as JSON-able values.

    Raises:
      ValueError: the file or the model cannot be read, or no row of the file is a rollout.
    """
    layout, rollouts, unreadable = traces.read(path)
    if not rollouts:
        why = f"; {unreadable[0].where}: {unreadable[0].why}" if unreadable else ", all are empty"
        raise ValueError(f"no row of {path!r} is a rollout{why}")
    rollouts = rollouts[: config.rows or None]
    faults = [*findings.unreadable(unreadable)]
    scores: dict[tuple[int, int], Scores] = {}
    tokenizer = None
    if config.model:
        opened = policy.config_of(config.model)
        model, tokenizer = policy.describe_writer(opened, trust=config.trust)
        tokenizer = tokenizers.with_variables(tokenizer, config.template_args)
        check_vocabulary(rollouts, model, config.model)
        if tokenizer.chat is not None:
            faults += findings.templates(rollouts, functools.partial(_rendered, tokenizer))
        params = policy.first_params(opened, model, mesh.make(Config().mesh))
        params = policy.sampling_params(params, "float32")
        scores = score(model, params, rollouts, config)
    faults += findings.histories(rollouts, None if tokenizer is None else tokenizer.decode)
    faults += likelihoods.mismatches(rollouts, scores, config.tolerance)
    faults += likelihoods.cuts(rollouts, scores, config.tolerance)
    faults += findings.denominators(rollouts)
    faults += findings.failures(rollouts)
    faults += findings.staleness(rollouts, config.max_staleness)
    faults += findings.repeats(rollouts)
    return {
        "path": path,
        "format": layout,
        "coverage": findings.coverage(rollouts, len(scores)),
        "findings": [fault._asdict() for fault in faults],
        "depth": likelihoods.by_depth(rollouts, scores),
    }


def _rendered(tokenizer: Tokenizer, messages: Messages, tools: Sequence[Any] | None) -> list[int]:
    assert tokenizer.chat is not None
    return tokenizer.chat(messages, tools)


def check_vocabulary(rollouts: Sequence[Trace], model: DecoderConfig, name: str) -> None:
    """Refuse tokens that a model does not have.

    Raises:
      ValueError: names the row and the token.
    """
    for trace in rollouts:
        for turn in trace.turns:
            largest = max((*turn.prompt, *turn.tokens), default=0)
            least = min((*turn.prompt, *turn.tokens), default=0)
            if largest >= model.vocab_size or least < 0:
                token = least if least < 0 else largest
                raise ValueError(
                    f"{trace.where} has token {token}, and model {name!r} has tokens 0 to "
                    f"{model.vocab_size - 1}; name the model that sampled the file"
                )


def score(
    model: DecoderConfig, params: Params, rollouts: Sequence[Trace], config: AuditConfig
) -> dict[tuple[int, int], Scores]:
    """The model's log-probabilities of the turns that recorded some: turn j of rollout i at i, j.

    Turns that are continued word for word are read in one pass, with the last of them.

    Args:
      model: the decoder.
      params: as from `policy.sampling_params`.
      rollouts: from `traces.read`.
      config: temperature and the longest sequence.
    """
    scores: dict[tuple[int, int], Scores] = {}
    for i, trace in enumerate(rollouts):
        context: tuple[int, ...] = ()
        rows = Figures(*np.zeros((4, 0)))
        for j in reversed(range(len(trace.turns))):
            turn = trace.turns[j]
            tokens = (*turn.prompt, *turn.tokens)
            if turn.logp is None or not turn.prompt or len(tokens) > config.max_tokens:
                continue
            if context[: len(tokens)] != tokens:
                context, rows = tokens, _figures(model, params, tokens, config.temperature)
            scores[i, j] = _scores(rows, slice(len(turn.prompt) - 1, len(tokens) - 1))
    return scores


class Figures(NamedTuple):
    """What a model says of the tokens 1 to N - 1 of a sequence, given those before each."""

    logp: np.ndarray
    """[1 + temperatures, N - 1] log-probabilities: as asked for, then at the usual temperatures."""
    above: np.ndarray
    """[N - 1] probability of all likelier tokens."""
    rank: np.ndarray
    """[N - 1] int32 number of likelier tokens."""
    log_mass: np.ndarray
    """[cuts, N - 1] log of the probability that each cut leaves."""


def _scores(rows: Figures, span: slice) -> Scores:
    """The figures of some tokens of a sequence."""
    logp, *tempered = rows.logp[:, span]
    inside = [rows.above[span] < p for p in _TOP_P] + [rows.rank[span] < k for k in _TOP_K]
    names = [f"top-p {p:g}" for p in _TOP_P] + [f"top-k {k}" for k in _TOP_K]
    pairs = zip(inside, rows.log_mass[:, span], strict=True)
    log_mass = [np.where(within, mass, np.nan) for within, mass in pairs]
    return Scores(
        logp,
        dict(zip(_TEMPERATURES, tempered, strict=True)),
        dict(zip(names, log_mass, strict=True)),
    )


def _figures(
    model: DecoderConfig, params: Params, tokens: Sequence[int], temperature: float
) -> Figures:
    width = ROWS * 2 ** max(0, (round_up(len(tokens), ROWS) // ROWS - 1).bit_length())
    padded = np.zeros(width, np.int32)
    padded[: len(tokens)] = tokens
    figures = jax.device_get(_compute(model, temperature, params, padded, np.int32(len(tokens))))
    return Figures(*(values[..., : len(tokens) - 1] for values in figures))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compute(
    model: DecoderConfig,
    temperature: float,
    params: Params,
    tokens: jax.Array,
    length: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """`Figures` of tokens [P], of which `length` are real."""
    matrix = decoder.unembedding(params)

    def rows(hidden: jax.Array, following: jax.Array) -> tuple[jax.Array, ...]:
        scores = head.logits(hidden, matrix, softcap=model.logit_softcap, spelled=model.spelled)
        chosen = jnp.take_along_axis(scores, following[:, None], axis=-1)

        def at(temperature: jax.Array) -> jax.Array:
            return chosen[:, 0] / temperature - jax.nn.logsumexp(scores / temperature, axis=-1)

        logp = jax.lax.map(at, jnp.array((temperature, *_TEMPERATURES)))
        probabilities = jax.nn.softmax(scores / temperature, axis=-1)
        likelier = scores > chosen
        above = jnp.sum(jnp.where(likelier, probabilities, 0), axis=-1)
        best = -jnp.sort(-probabilities, axis=-1)
        total = jnp.cumsum(best, axis=-1)
        by_p = [jnp.sum(jnp.where(total - best < p, best, 0), axis=-1) for p in _TOP_P]
        by_k = [total[:, min(k, total.shape[1]) - 1] for k in _TOP_K]
        mass = jnp.minimum(jnp.stack([*by_p, *by_k]), 1.0)
        return logp.T, above, jnp.sum(likelier, axis=-1), jnp.log(mass).T

    logp, above, rank, log_mass = by_position(model, params, tokens, length, rows)
    return logp.T, above, rank, log_mass.T


_SHOWN = 5
"""Findings of a kind that are shown one by one."""
_NOT_CHECKED: Mapping[str, str] = {
    "turns_with_messages": "templates: no turn has the messages of its prompt",
    "turns_scored": "log-probabilities: no turn has a prompt and log-probabilities, or no --model",
    "rows_with_advantage": "denominators: no row has an advantage",
    "rows_with_version": "stale tokens: no row has a version and a step",
}


def show(report: Mapping[str, Any]) -> None:
    """Print the findings by kind, the largest of each first, and what could not be checked."""
    console = PlainConsole()
    counts = report["coverage"]
    console.print(
        as_text(
            f"{report['path']}: {report['format']}, {counts['rows']} rows, "
            f"{counts['turns']} turns, {counts['tokens']} sampled tokens, {counts['groups']} groups"
        )
    )
    kinds: dict[str, list[Finding]] = {}
    for row in report["findings"]:
        kinds.setdefault(row["kind"], []).append(Finding(**row))
    for kind, faults in kinds.items():
        rows = len({fault.where for fault in faults})
        console.print(as_text(f"\n{kind}: {len(faults)} in {rows} rows"))
        largest = sorted(faults, key=lambda fault: -abs(fault.size))
        for fault in largest[:_SHOWN]:
            console.print(as_text(f"  {fault.where}: {fault.text}"))
        if len(largest) > _SHOWN:
            console.print(f"  and {len(largest) - _SHOWN} more; --json has all")
    if report["depth"]:
        table = Table("tokens", "mean |recorded - model|, nats")
        for first, last, mean in report["depth"]:
            table.add_row(f"{first} to {last}", f"{mean:.3g}")
        console.print(table)
    for name, text in _NOT_CHECKED.items():
        if not counts[name]:
            console.print(as_text(f"not checked: {text}"))
    if not report["findings"]:
        console.print("no finding")
