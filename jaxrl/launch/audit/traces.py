"""Readers of recorded rollouts with token ids, as tools write them.

| Format | A record |
|---|---|
| `verifiers` | `trajectory`, turns with `tokens`; or, since 0.4, `nodes`, a graph of messages |
| `atif` | a trajectory: `schema_version: ATIF-...`, `steps` with `metrics.completion_token_ids` |
| `harbor` | `result.json` of a trial with `agent_result.rollout_details` |
| `tinker` | a datum: `model_input`, `loss_fn_inputs`; or a reply: `prompt`, `sequences` |
| `jaxrl` | a line of `RUN/rollouts/STEP.jsonl`, whose tokens are texts and are not scored |
| `flat` | a completion: `prompt_ids`, `completion_ids`, `logprobs` and the like (TRL, scripts) |
| `texts` | a completion without token ids, as TRL's log of completions has it |
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxrl.data.sources import records
from jaxrl.data.text import messages
from jaxrl.launch.audit import Messages, ModelCall, Trace, Unreadable, columns
from jaxrl.record import jsonl

Format = Literal["verifiers", "atif", "harbor", "tinker", "jaxrl", "flat", "texts"]


def read(path: str) -> tuple[Format, list[Trace], list[Unreadable]]:
    """The rollouts of a file, whose format is recognised by its first record.

    Args:
      path: as in `jaxrl.data.sources.records.read`, or a `.json` file of one record.

    Raises:
      ValueError: the file cannot be read, has no record, or its first is of none of the formats.
    """
    rows, places = _rows(path)
    if not rows:
        raise ValueError(f"{path!r} has no record; name a file with at least one rollout")
    layout = _format(rows[0], places[0])
    traces: list[Trace] = []
    unreadable: list[Unreadable] = []
    for row, place in zip(rows, places, strict=True):
        try:
            traces += _READERS[layout](row, place)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            unreadable.append(Unreadable(place, _reason(error)))
    return layout, traces, unreadable


def _rows(path: str) -> tuple[Sequence[Mapping[str, Any]], list[str]]:
    """The records, and the place of each."""
    file = Path(path)
    if file.suffix == ".json" and file.is_file():
        try:
            content = json.loads(file.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError):
            content = None  # rows, one a line, or no JSON, which `records` says
        if isinstance(content, dict):
            return [content], [path]
    rows = records.read(path)
    return rows, [records.where(rows, index, path) for index in range(len(rows))]


def _format(row: Mapping[str, Any], place: str) -> Format:
    if str(row.get("schema_version", "")).startswith("ATIF"):
        return "atif"
    if "trajectory" in row or "traces" in row or ("nodes" in row and "rewards" in row):
        return "verifiers"
    if "agent_result" in row:
        return "harbor"
    if "loss_fn_inputs" in row or "sequences" in row:
        return "tinker"
    if "log_ratio" in row and "source" in row:
        return "jaxrl"
    if any(name in row and not columns.is_count(row[name]) for name in columns.TOKENS):
        return "flat"
    if "completion" in row and "advantage" in row:
        return "texts"
    raise ValueError(
        f"{place}: no rollout with token ids is recognised; its columns are {', '.join(row):.300}. "
        "A row has completion_ids and prompt_ids, or is one of verifiers, ATIF, Harbor, Tinker or "
        "jaxrl (verifiers before 0.4 saves token ids with the state column `trajectory`)"
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)


def _flat(row: Mapping[str, Any], place: str) -> Iterator[Trace]:
    """A completion in a row. Padding, which `prompt_mask` and `completion_mask` mark, is left out.

    `completion_mask` marks padding if what it leaves out is at the end, else it is of the loss.
    """
    prompt = columns.tokens_in(row, columns.PROMPT) or ()
    tokens = columns.tokens_in(row, columns.TOKENS) or ()
    logp = columns.numbers(
        columns.value(row, columns.LOGP), len(tokens), str(columns.name_in(row, columns.LOGP))
    )
    real_prompt = columns.mask(row.get("prompt_mask"), len(prompt), "prompt_mask")
    if real_prompt is not None:
        prompt = tuple(itertools.compress(prompt, real_prompt))
    trained = columns.mask(
        columns.value(row, columns.TRAINED), len(tokens), str(columns.name_in(row, columns.TRAINED))
    )
    real_tokens = columns.mask(row.get("completion_mask"), len(tokens), "completion_mask")
    if real_tokens is not None:
        length = int(np.flatnonzero(real_tokens)[-1]) + 1 if real_tokens.any() else 0
        trained = real_tokens if trained is None else trained & real_tokens
        tokens, trained = tokens[:length], trained[:length]
        logp = None if logp is None else logp[:length]
    if prompt and columns.value(row, columns.GROUP) is None:
        row = {**row, "group": str(hash(prompt))}
    items = columns.number(row.get("num_items_in_batch"), "num_items_in_batch")
    messages = _conversation(row.get("prompt"))
    turn = ModelCall(prompt, tokens, logp, trained, messages, _offered(row.get("tools")))
    yield Trace(place, (turn,), **columns.common(row), items=items)


def _conversation(value: Any) -> Messages | None:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return value if is_list and all(isinstance(turn, Mapping) for turn in value) else None


def _reply(value: Any) -> str | None:
    """What the assistant wrote last, of a text, a message or messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        value = [value]
    replies = [message for message in value or [] if message.get("role") == "assistant"]
    return _words(replies[-1].get("content")) if replies else None


def _words(content: Any) -> str | None:
    """A text, or that of parts one of which may be a picture."""
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content or [] if isinstance(part, Mapping)]
    return "".join(part for part in parts if isinstance(part, str)) or None


def _verifiers(row: Mapping[str, Any], place: str) -> Iterator[Trace]:
    """A rollout of turns; a graph of messages; or an episode with several such graphs."""
    if "trajectory" not in row:
        work = (row.get("run") or {}).get("work") or {}
        policy = work.get("policy") or {}
        shared = {
            "versions": tuple(policy[name] for name in ("start", "end") if name in policy),
            "step": work.get("step"),
        }
        group = (row.get("group") or {}).get("id")
        for graph in row.get("traces", [row]):
            yield from _graph(graph, place, group, shared)
        return
    turns = []
    for turn in row["trajectory"]:
        tokens = turn.get("tokens")
        if tokens is None:
            raise ValueError("a turn of `trajectory` has no tokens")
        ids = columns.token_ids(tokens.get("completion_ids"), "completion_ids")
        turns.append(
            ModelCall(
                columns.token_ids(tokens.get("prompt_ids"), "prompt_ids"),
                ids,
                columns.numbers(tokens.get("completion_logprobs"), len(ids), "completion_logprobs"),
                columns.mask(tokens.get("completion_mask"), len(ids), "completion_mask"),
                _conversation(turn.get("prompt")),
                _offered(row.get("tool_defs")),
                _reply(turn.get("completion")),
            )
        )
    yield Trace(place, tuple(turns), **columns.common(row))


def _offered(tools: Any) -> Sequence[Any] | None:
    """Tools as a template has them; verifiers saves a tool without `function` around it."""
    return messages.tools(tools, "tools") if tools else None


def _graph(
    row: Mapping[str, Any], place: str, group: str | None, shared: Mapping[str, Any]
) -> Iterator[Trace]:
    """A trace for each path to a leaf, of the calls of the model that no earlier one has.

    A node has the tokens that its message adds, and `mask` marks those that were sampled.
    """
    nodes = row["nodes"]
    if not any(any(node.get("mask") or ()) for node in nodes):
        if row.get("ok", True):
            raise ValueError("no node has sampled tokens; record them with the client for training")
        return  # it failed before a token was sampled
    parents = {node.get("parent") for node in nodes}
    credits = [value for node in nodes for value in node.get("advantages") or ()]
    failed = [] if row.get("ok", True) else row.get("errors") or ()
    values = [reward for reward in row["rewards"].values() if reward is not None]
    task = row.get("task") or {}
    data = json.dumps(task.get("data"), sort_keys=True)
    # agents of an episode have rewards of their own
    agent = f" of {row['agent']['name']}" if "agent" in row else ""
    fields: dict[str, Any] = {
        **shared,
        "group": f"{group or task.get('key') or task.get('hash') or data}{agent}",
        "reward": sum(r["score"] * r.get("weight", 1.0) for r in values) if values else None,
        "advantage": columns.number(credits or None, "advantages"),
        "error": columns.text(failed[-1].get("message") or failed[-1]) if failed else "",
    }
    tools = _offered(row.get("tools"))
    counted: set[int] = set()
    for leaf in range(len(nodes)):
        if leaf in parents:
            continue
        path = _path(nodes, leaf)
        turns: list[ModelCall] = []
        ids: tuple[int, ...] = ()
        for depth, index in enumerate(path):
            history = [nodes[i]["message"] for i in path[:depth]]
            turn = _node(nodes[index], ids, history, tools)
            ids += columns.token_ids(nodes[index].get("token_ids"), "token_ids")
            if turn is not None and index not in counted:
                turns.append(turn)
                counted.add(index)
        if turns:
            yield Trace(place, tuple(turns), **fields)
            # the reward is one for all paths
            fields |= {"reward": None, "advantage": None, "error": ""}


def _path(nodes: Sequence[Mapping[str, Any]], leaf: int) -> list[int]:
    """The indices of the nodes from the root to a leaf."""
    path: list[int] = []
    index: int | None = leaf
    while index is not None:
        if index in path or not 0 <= index < len(nodes):
            raise ValueError(f"node {leaf} has no root: parent {index} is below it, or is no node")
        path.insert(0, index)
        index = nodes[index].get("parent")
    return path


def _node(
    node: Mapping[str, Any], before: tuple[int, ...], history: Messages, tools: Sequence[Any] | None
) -> ModelCall | None:
    """The call of the model that wrote a message, after some tokens; None: none did."""
    ids = columns.token_ids(node.get("token_ids"), "token_ids")
    mask = np.array(node.get("mask") or [], bool)
    if len(mask) != len(ids):
        raise ValueError(f"mask has {len(mask)} entries for {len(ids)} tokens")
    if not mask.any():
        return None
    start, end = np.flatnonzero(mask)[[0, -1]] + (0, 1)
    compact = columns.numbers(node.get("logprobs") or None, int(mask.sum()), "logprobs")
    logp = None
    if compact is not None:
        logp = np.full(len(ids), np.nan)
        logp[mask] = compact
        logp = logp[start:end]
    prompt, trained, reply = (*before, *ids[:start]), mask[start:end], _reply(node["message"])
    return ModelCall(prompt, ids[start:end], logp, trained, history, tools, reply)


def _atif(row: Mapping[str, Any], place: str) -> Iterator[Trace]:
    turns = []
    for step in row["steps"]:
        metrics = step.get("metrics") or {}
        ids = columns.token_ids(metrics.get("completion_token_ids"), "completion_token_ids")
        # a step of a trajectory that this one continues is in that one's file
        if step.get("source") != "agent" or not ids or step.get("is_copied_context"):
            continue
        turns.append(
            ModelCall(
                columns.token_ids(metrics.get("prompt_token_ids"), "prompt_token_ids"),
                ids,
                columns.numbers(metrics.get("logprobs"), len(ids), "logprobs"),
                reply=_words(step.get("message")),
            )
        )
    if not turns:
        raise ValueError("no step of the agent has completion_token_ids")
    extra = row.get("extra") or {}
    yield Trace(place, tuple(turns), **columns.common({**extra, **row}))


def _harbor(row: Mapping[str, Any], place: str) -> Iterator[Trace]:
    """The result of a trial: a trace for each agent, whose lists have an entry for each call."""
    details = (row["agent_result"] or {}).get("rollout_details")
    if not details:
        raise ValueError("agent_result has no rollout_details; set collect_rollout_details")
    rewards = (row.get("verifier_result") or {}).get("rewards")
    fields = {"reward": rewards, "group": row.get("task_name"), "error": row.get("exception_info")}
    for detail in details:
        calls = detail["completion_token_ids"]
        none: list[None] = [None] * len(calls)
        prompts, logps = detail.get("prompt_token_ids") or none, detail.get("logprobs") or none
        turns = [
            ModelCall(
                columns.token_ids(prompt, "prompt_token_ids"),
                (tokens := columns.token_ids(ids, "completion_token_ids")),
                columns.numbers(logp, len(tokens), "logprobs"),
            )
            for prompt, ids, logp in zip(prompts, calls, logps, strict=True)
        ]
        yield Trace(place, tuple(turns), **columns.common(fields))


def _texts(row: Mapping[str, Any], place: str) -> Iterator[Trace]:
    """A row of TRL's log of completions, which has a column for each function of rewards.

    With one such column it is the reward; of several, the weights are not recorded.
    """
    no_reward = (*columns.ADVANTAGE, *columns.STEP)
    scores = [
        value for name, value in row.items() if name not in no_reward and jsonl.is_number(value)
    ]
    reward = {"reward": scores[0]} if len(scores) == 1 else {}
    prompt = json.dumps(row.get("prompt"), default=str)
    turn = ModelCall((), (), reply=_reply(row["completion"]))
    yield Trace(place, (turn,), **columns.common({**row, **reward, "group": prompt}))


def _tensor(value: Any) -> Any:
    return value["data"] if isinstance(value, Mapping) else value


def _chunks(value: Any) -> tuple[int, ...]:
    parts = value["chunks"] if isinstance(value, Mapping) else [{"tokens": value}]
    return tuple(
        itertools.chain.from_iterable(columns.token_ids(part["tokens"], "tokens") for part in parts)
    )


def _tinker(row: Mapping[str, Any], place: str) -> Iterator[Trace]:
    """A datum, whose targets are its inputs one token later, or the sequences of a reply."""
    if "sequences" in row:
        prompt = _chunks(columns.value(row, ("prompt", *columns.PROMPT)) or [])
        for sequence in row["sequences"]:
            tokens = columns.token_ids(sequence["tokens"], "tokens")
            logp = columns.numbers(sequence.get("logprobs"), len(tokens), "logprobs")
            yield Trace(
                place, (ModelCall(prompt, tokens, logp),), **columns.common({**row, **sequence})
            )
        return
    tensors = {name: _tensor(value) for name, value in row["loss_fn_inputs"].items()}
    inputs = _chunks(row["model_input"])
    targets = columns.token_ids(tensors["target_tokens"], "target_tokens")
    if len(inputs) != len(targets) or inputs[1:] != targets[:-1]:
        raise ValueError("target_tokens are not the tokens of model_input, one later")
    logp = columns.numbers(tensors.get("logprobs"), len(targets), "logprobs")
    weights = columns.value(tensors, ("mask", "weights"))
    trained = columns.mask(weights, len(targets), "mask")
    advantages = columns.numbers(tensors.get("advantages"), len(targets), "advantages")
    if trained is None and logp is not None:
        trained = logp != 0  # an observation has a log-probability of exactly 0
    start = int(np.argmax(trained)) if trained is not None and trained.any() else 0
    turn = ModelCall(
        (*inputs[:1], *targets[:start]),
        targets[start:],
        None if logp is None else logp[start:],
        None if trained is None else trained[start:],
    )
    used = [] if advantages is None or trained is None else advantages[trained].tolist()
    fields = columns.common({key: value for key, value in row.items() if key != "loss_fn_inputs"})
    yield Trace(
        place, (turn,), **{**fields, "advantage": columns.number(used or None, "advantages")}
    )


def _jaxrl(row: Mapping[str, Any], place: str) -> Iterator[Trace]:
    """A line of the log of rollouts, whose advantages are those of the tokens of the policy."""
    by_policy = [source == "policy" for source in row["source"]]
    of_policy = {
        name: list(itertools.compress(row[name], by_policy)) for name in ("advantage", "version")
    }
    fields = {**row, **of_policy, "group": f"{row['step']}/{row['group']}"}
    turn = ModelCall((), (), reply=row["completion"])
    # Weights of version n - 1 are those that step n begins with.
    yield Trace(place, (turn,), **{**columns.common(fields), "step": int(row["step"]) - 1})


_READERS = {
    "verifiers": _verifiers,
    "atif": _atif,
    "harbor": _harbor,
    "tinker": _tinker,
    "jaxrl": _jaxrl,
    "flat": _flat,
    "texts": _texts,
}
