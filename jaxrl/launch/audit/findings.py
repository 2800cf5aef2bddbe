"""What is wrong with recorded rollouts: each check gives findings, each with its row and its size.

No check changes or repairs anything. What a check needs and a file lacks is not checked, and
`coverage` counts what was.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from jaxrl.launch.audit import Messages, ModelCall, Trace, Unreadable

Kind = Literal[
    "unreadable", "template_drift", "support_bias", "logp_mismatch", "wrong_denominator",
    "failed_as_zero", "stale_tokens", "duplicated", "dropped_turn",
]  # fmt: skip

Render = Callable[[Messages, Sequence[object] | None], list[int]]
"""The ids that a model's chat template makes of a conversation, up to the next reply."""
Decode = Callable[[Sequence[int]], str]


class Finding(NamedTuple):
    """One fault of a row, a group or a file."""

    kind: Kind
    where: str
    """The file and the line or the number of the row."""
    size: float
    """How large it is, in the unit that `text` names."""
    text: str


def unreadable(rows: Iterable[Unreadable]) -> Iterator[Finding]:
    """Rows that are no rollouts."""
    for row in rows:
        yield Finding("unreadable", row.where, 1, f"the row is left out: {row.why}")


def templates(traces: Iterable[Trace], render: Render) -> Iterator[Finding]:
    """Prompts that the model's own template does not make of their messages."""
    for trace in traces:
        for number, turn in enumerate(trace.turns, 1):
            if turn.messages is None or not turn.prompt:
                continue
            try:
                ids = render(turn.messages, turn.tools)
            except ValueError as error:
                yield Finding(
                    "template_drift", trace.where, len(turn.prompt),
                    f"turn {number}: the template refuses the messages: {error}",
                )  # fmt: skip
                continue
            same = common_prefix(ids, turn.prompt)
            if same < max(len(ids), len(turn.prompt)):
                yield Finding(
                    "template_drift", trace.where, max(len(ids), len(turn.prompt)) - same,
                    f"turn {number}: the template makes {len(ids)} tokens of the messages, "
                    f"{len(turn.prompt)} were recorded, and they differ from token {same} on",
                )  # fmt: skip


def histories(traces: Iterable[Trace], decode: Decode | None) -> Iterator[Finding]:
    """Turns whose prompt does not continue the turn before: other tokens, or a turn left out.

    Args:
      traces: with several turns; others have no such fault.
      decode: ids to text, which tells the same text in other tokens from another text; None: the
        two are not told apart.
    """
    for trace in traces:
        for number, (previous, turn) in enumerate(zip(trace.turns, trace.turns[1:]), 2):  # noqa: B905
            if turn.prompt == previous.prompt and turn.tokens == previous.tokens:
                yield Finding(
                    "duplicated", trace.where, len(turn.tokens),
                    f"turn {number} is turn {number - 1} again, all {len(turn.tokens)} tokens",
                )  # fmt: skip
                continue
            history = (*previous.prompt, *previous.tokens)
            if not turn.prompt or turn.prompt[: len(history)] == history:
                continue
            yield _broken(trace, number, previous, turn, decode)


def _broken(
    trace: Trace, number: int, previous: ModelCall, turn: ModelCall, decode: Decode | None
) -> Finding:
    """The finding for a turn whose prompt does not begin with the turn before."""
    history = (*previous.prompt, *previous.tokens)
    same = common_prefix(history, turn.prompt)
    if not _contains(turn.prompt, previous.tokens) and not _says(turn, previous, decode):
        return Finding(
            "dropped_turn", trace.where, len(previous.tokens),
            f"turn {number}: its prompt lacks the reply of turn {number - 1}, "
            f"{len(previous.tokens)} tokens",
        )  # fmt: skip
    why = "the history was written anew"
    if decode is not None and decode(turn.prompt).startswith(decode(history)):
        why = "the same text was split into other tokens"
    return Finding(
        "template_drift", trace.where, len(history) - same,
        f"turn {number}: its prompt leaves the tokens of turn {number - 1} at token {same} of "
        f"{len(history)}; {why}",
    )  # fmt: skip


def _says(turn: ModelCall, previous: ModelCall, decode: Decode | None) -> bool:
    """Whether a prompt may have the text of the reply before, though not its tokens."""
    reply = previous.reply if decode is None else decode(previous.tokens)
    if not reply or not reply.strip():
        return True
    if turn.messages is not None:
        messages = [message for message in turn.messages if message.get("role") == "assistant"]
        texts = [str(message.get("content") or "").strip() for message in messages]
        # a template may leave thoughts out, and tool calls are no text
        return any(message.get("tool_calls") for message in messages) or any(
            text and (text in reply or reply.strip() in text) for text in texts
        )
    return decode is None or reply.strip() in decode(turn.prompt)


def repeats(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Rows that are another row again, more alike than chance makes two samples.

    Two samples of one prompt are equal with the probability of their tokens; a row is reported
    where that is below one in a million. Rows without log-probabilities are not reported.
    """
    first: dict[tuple[tuple[int, ...], ...], Trace] = {}
    for trace in traces:
        key = tuple((*turn.prompt, -1, *turn.tokens) for turn in trace.turns if turn.tokens)
        if not key:
            continue
        earlier = first.setdefault(key, trace)
        logp = sum(np.nansum(turn.logp) for turn in trace.turns if turn.logp is not None)
        if earlier is not trace and logp < math.log(1e-6):
            tokens = sum(len(turn.tokens) for turn in trace.turns)
            yield Finding(
                "duplicated", trace.where, tokens,
                f"the row is {earlier.where} again, all {tokens} sampled tokens; two samples are "
                f"equal with a probability of e^{logp:.0f}",
            )  # fmt: skip


def failures(traces: Iterable[Trace]) -> Iterator[Finding]:
    """Rollouts that failed and count as a reward of 0."""
    for trace in traces:
        if not trace.error or trace.reward != 0:
            continue
        pull = "" if trace.advantage is None else f" and an advantage of {trace.advantage:.3g}"
        if trace.advantage == 0:
            continue
        yield Finding(
            "failed_as_zero", trace.where, abs(trace.advantage or 0.0),
            f"it failed ({trace.error:.80}) and has a reward of 0{pull}: the policy is taught that "
            "what it wrote is wrong",
        )  # fmt: skip


def staleness(traces: Iterable[Trace], most: int) -> Iterator[Finding]:
    """Rollouts with tokens of weights older than `most` versions, or of later ones."""
    for trace in traces:
        if trace.step is None or not trace.versions:
            continue
        ages = trace.step - np.array(trace.versions)
        if ages.max() > most:
            yield Finding(
                "stale_tokens", trace.where, float(ages.max()),
                f"{np.mean(ages > most):.0%} of its versions are more than {most} older than the "
                f"weights of step {trace.step}, the oldest {ages.max()}",
            )  # fmt: skip
        elif ages.min() < 0:
            yield Finding(
                "stale_tokens", trace.where, float(ages.min()),
                f"version {max(trace.versions)} is later than step {trace.step}, so that steps and "
                "versions do not count the same thing",
            )  # fmt: skip


_LEAST = 1e-3
"""Differences of advantages, relative to their largest, that rounding does not explain."""


def denominators(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Advantages that are not the rewards less the mean of their group, over one scale.

    Every usual estimator of groups is such a line: A_i = (r_i - b) / s, with b the mean and s 1 or
    a standard deviation (leave-one-out: s = (n - 1) / n). A line through the recorded pairs gives
    b and s; what b would have to be a mean of is said.
    """
    yield from _totals(traces)
    groups = collections.defaultdict[str, list[Trace]](list)
    for trace in traces:
        if trace.group is not None and trace.reward is not None and trace.advantage is not None:
            groups[trace.group].append(trace)
    lines = {name: line for name, rows in groups.items() if (line := _line(rows)) is not None}
    for name, (slope, baseline, residual) in lines.items():
        rows = groups[name]
        rewards = np.array([trace.reward for trace in rows])
        mean, spread = rewards.mean(), np.ptp(rewards)
        if residual > _LEAST:
            yield Finding(
                "wrong_denominator", rows[0].where, residual,
                f"group {name}: its {len(rows)} advantages are no linear function of the rewards, "
                f"off by {residual:.1%} of the largest",
            )  # fmt: skip
        elif abs(baseline - mean) > _LEAST * spread:
            yield Finding(
                "wrong_denominator", rows[0].where, abs(baseline - mean),
                f"group {name}: the advantages are rewards less {baseline:.4g}, the mean of its "
                f"{len(rows)} rewards is {mean:.4g}{_explained(rewards, baseline)}",
            )  # fmt: skip
        elif slope < 0:
            yield Finding(
                "wrong_denominator", rows[0].where, abs(slope),
                f"group {name}: larger rewards have smaller advantages",
            )  # fmt: skip
    yield from _scales(groups, lines)


def _totals(traces: Sequence[Trace]) -> Iterator[Finding]:
    """TRL's count of the tokens of a batch, where it counts tokens that the loss is not over."""
    batches = collections.defaultdict[float, list[Trace]](list)
    for trace in traces:
        if trace.items is not None:
            batches[trace.items].append(trace)
    for items, rows in batches.items():
        turns = [turn for trace in rows for turn in trace.turns]
        sampled = sum(len(turn.tokens) for turn in turns)
        trained = sum(
            len(turn.tokens) if turn.trained is None else int(turn.trained.sum()) for turn in turns
        )
        if items == sampled != trained:
            yield Finding(
                "wrong_denominator", rows[0].where, sampled / max(trained, 1),
                f"the loss is divided by {items:.0f} tokens, all of {len(rows)} completions, and "
                f"is over {trained}: tool results and other masked tokens count",
            )  # fmt: skip


def _line(rows: Sequence[Trace]) -> tuple[float, float, float] | None:
    """Slope, baseline and largest residual, relative, of advantages over rewards.

    None where the rewards are equal, so that there is no line.
    """
    rewards = np.array([trace.reward for trace in rows])
    advantages = np.array([trace.advantage for trace in rows])
    if len(rows) < 2 or np.ptp(rewards) == 0 or not np.isfinite([*rewards, *advantages]).all():
        return None
    slope, intercept = np.polyfit(rewards, advantages, 1)
    largest = np.abs(advantages).max()
    if largest == 0 or abs(slope) * np.ptp(rewards) < _LEAST * largest:
        return (0.0, float(rewards.mean()), float(largest > 0))
    residual = np.abs(advantages - (slope * rewards + intercept)).max() / largest
    return float(slope), float(-intercept / slope), float(residual)


def _explained(rewards: np.ndarray, baseline: float) -> str:
    """What the baseline is the mean of, if that can be told."""
    if baseline == 0 or abs(total := rewards.sum() / baseline) > 1e6:
        return ""
    count = round(total)
    if count > 0 and abs(total - count) < 1e-2 and count != len(rewards):
        excess = "more, which have a reward of 0 or are not in the file" * (count > len(rewards))
        fewer = "fewer" * (count < len(rewards))
        return f"; it is their sum over {count}, {abs(count - len(rewards))} {excess}{fewer}"
    return ""


def _scales(
    groups: Mapping[str, Sequence[Trace]], lines: Mapping[str, tuple[float, float, float]]
) -> Iterator[Finding]:
    """Groups that are scaled by another rule than most."""
    rules = {name: _rule(groups[name], line[0]) for name, line in lines.items() if line[0] > 0}
    counts = collections.Counter(rule for rule in rules.values())
    if len(counts) < 2:
        return
    (usual, number), *_ = counts.most_common()
    if number <= len(rules) / 2:
        return
    for name, rule in rules.items():
        if rule != usual:
            rewards = [trace.reward for trace in groups[name]]
            yield Finding(
                "wrong_denominator", groups[name][0].where, 1 / lines[name][0],
                f"group {name}: its {len(rewards)} differences are divided by "
                f"{1 / lines[name][0]:.4g} ({rule}), those of {number} other groups by {usual}",
            )  # fmt: skip


def _rule(rows: Sequence[Trace], slope: float) -> str:
    """The name of what differences are divided by; several rules may agree, the first is taken."""
    rewards = np.array([trace.reward for trace in rows])
    count, scale = len(rows), 1 / slope
    rules = {
        "1": 1.0,
        "the standard deviation": float(rewards.std()),
        "the sample standard deviation": float(rewards.std(ddof=1)),
        "(n - 1) / n": (count - 1) / count,
    }
    # TRL adds 1e-4 to a standard deviation
    near = (n for n, v in rules.items() if math.isclose(scale, v, rel_tol=5e-3, abs_tol=1.1e-4))
    return next(near, "another number")


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    pairs = zip(left, right)  # noqa: B905  # one may be longer
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _contains(tokens: Sequence[int], part: Sequence[int]) -> bool:
    part = tuple(part)
    starts = range(len(tokens) - len(part) + 1)
    return any(tuple(tokens[start : start + len(part)]) == part for start in starts)


def coverage(traces: Sequence[Trace], scored: int) -> dict[str, int]:
    """How much of a file each check could be made on."""
    turns = [turn for trace in traces for turn in trace.turns]
    return {
        "rows": len(traces),
        "turns": len(turns),
        "tokens": sum(len(turn.tokens) for turn in turns),
        "turns_with_messages": sum(turn.messages is not None for turn in turns),
        "turns_with_logp": sum(turn.logp is not None for turn in turns),
        "turns_scored": scored,
        "rows_with_reward": sum(trace.reward is not None for trace in traces),
        "rows_with_advantage": sum(trace.advantage is not None for trace in traces),
        "rows_with_version": sum(
            bool(trace.versions) and trace.step is not None for trace in traces
        ),
        "groups": len({trace.group for trace in traces if trace.group is not None}),
    }
