"""`jaxrl data FILE [--model MODEL] [--json]`: what a file holds, and what a run learns of it."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

from rich.console import Console
from rich.text import Text

from jaxrl.config import DataConfig, RolloutConfig
from jaxrl.data.sources import encoding, rows
from jaxrl.data.sources.rows import Row, Rows
from jaxrl.data.text import examples, marking, tokenizers
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.settings import flags
from jaxrl.rollout import policy, rollout_log


@dataclasses.dataclass(frozen=True)
class DataView:
    """What is shown of a file."""

    model: str = ""
    """Model or run whose tokenizer writes the rows; empty: rows are shown as they are."""
    rows: int = 3
    """Number of rows to show, from the first."""
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    """Columns of the file, as in `DataConfig.columns`: --columns.prompt question."""
    max_tokens: int = DataConfig.max_tokens
    """Longest sequence, as in `DataConfig.max_tokens`."""
    chat: bool = RolloutConfig.chat
    """Write texts by the model's chat template too."""
    system: str = RolloutConfig.system
    """System message of the chat template; empty: none."""
    template_args: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Variables of the chat template, as in `RolloutConfig.template_args`."""
    json: bool = False
    """Print one JSON object."""


def main(argv: list[str]) -> int:
    """Show a file; the exit status is 0, or 2 where it cannot be read."""
    usage = "jaxrl data FILE"
    try:
        path, view = flags.name_and_settings(DataView(), argv, usage=usage, what="a file of rows")
        file_rows = rows.read(path, view.columns, bad="skip", media=False, prompts=True)
        tokenizer = policy.describe(policy.config_of(view.model))[1] if view.model else None
        if tokenizer is not None:
            tokenizer = tokenizers.with_variables(tokenizer, view.template_args)
        report = summary(file_rows, view, tokenizer)
    except REFUSALS as error:
        return refused(error)
    if view.json:
        print(json.dumps(report, indent=2))
    else:
        show(report, tokenizer, Console())
    return 0


def summary(file_rows: Rows, view: DataView, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The kind of a file, its counts, and its first rows as JSON-able values.

    Args:
      file_rows: the rows.
      view: how many are shown, and how they are written.
      tokenizer: of a model; None shows rows without tokens.

    Raises:
      ValueError: the model cannot write a row, as it has no chat template.
    """
    if tokenizer is not None:
        encode = functools.partial(_examples, view=view, tokenizer=tokenizer)
        file_rows = encoding.usable(file_rows, encode, bad="skip")
    warnings = file_rows.layout.warnings(file_rows.path)
    answers = (file_rows[index].answers[:1] for index in range(len(file_rows)))
    uses_template = view.chat or any(
        answer and not isinstance(answer[0], str) for answer in answers
    )
    if tokenizer is not None and uses_template and not examples.learns_to_stop(tokenizer):
        warnings.append(marking.NO_END)
    first_rows = [file_rows[index] for index in range(min(view.rows, len(file_rows)))]
    bare = first_rows and tokenizer is not None
    bare = bare and examples.skips_template(tokenizer, first_rows[0], chat=view.chat)
    return {
        "path": file_rows.path,
        "kind": file_rows.kind,
        "columns": {
            "used": list(file_rows.layout.used),
            "unused": list(file_rows.layout.unused),
            "names": dict(file_rows.columns),
        },
        "warnings": warnings,
        "notes": [examples.WITHOUT_TEMPLATE] if bare else [],
        "rows": len(file_rows),
        "prompts": len(set(file_rows.keys)),
        "bad_rows": [bad._asdict() for bad in file_rows.bad],
        "first": [_row(row, view, tokenizer) for row in first_rows],
    }


def _examples(row: Row, view: DataView, tokenizer: Tokenizer) -> list[examples.Example]:
    return examples.encode(tokenizer, row, chat=view.chat, system=view.system)


def _row(row: Row, view: DataView, tokenizer: Tokenizer | None) -> dict[str, Any]:
    report: dict[str, Any] = {"id": row.id}
    if tokenizer is None:
        pairs = zip(row.answers, row.rewards, strict=True)
        answers = [{"reward": reward, "answer": answer} for answer, reward in pairs]
        return report | {"prompt": row.prompt, "answers": answers}
    row_examples = _examples(row, view, tokenizer)
    if not row.answers:
        (alone,) = row_examples
        prompt = {"reward": 0.0, "tokens": [*alone.prompt], "mask": [0] * len(alone.prompt)}
        return report | {"answers": [prompt]}
    fitted = examples.fitting(row_examples, view.max_tokens, "truncate", row.id)
    # steps are one answer, whose reward is the share of good ones
    rewards = (sum(row.rewards) / len(row.rewards),) if row.stepwise else row.rewards
    answers = [
        {
            "reward": reward,
            "tokens": [*example.prompt, *example.tokens],
            "mask": [*(0 for _ in example.prompt), *map(int, example.learned)],
        }
        for example, reward in zip(fitted or [], rewards, strict=False)
    ]
    return report | {"answers": answers}


def show(report: dict[str, Any], tokenizer: Tokenizer | None, console: Console) -> None:
    """Print a summary: of each row what is learned in brackets, and green in a terminal."""
    names = report["columns"]["names"].items()
    columns = ", ".join(
        name if name == column else f"{name} (column {column})" for name, column in names
    )
    console.print(f"{report['path']}: kind {report['kind']}, rows: {report['rows']}", markup=False)
    console.print(f"columns: {columns}; different prompts: {report['prompts']}", markup=False)
    if report["columns"]["unused"]:
        console.print(f"unused columns: {', '.join(report['columns']['unused'])}", markup=False)
    for warning in report["warnings"]:
        console.print(f"WARNING: {warning}", markup=False)
    for note in report["notes"]:
        console.print(f"note: {note}", markup=False)
    console.print(f"bad rows: {len(report['bad_rows'])}")
    for bad in report["bad_rows"][:5]:
        console.print(f"  {bad['id']}: {bad['why']}", markup=False)
    for row in report["first"]:
        console.print(f"\n{row['id']}", markup=False)
        if tokenizer is not None and not row["answers"]:
            console.print("left out: nothing to learn is within --max-tokens")
        for answer in row["answers"]:
            if tokenizer is None:
                plain = json.dumps({"prompt": row["prompt"], **answer}, ensure_ascii=False)
                console.print(plain, markup=False)
            else:
                console.print(_rendered(answer, tokenizer))


def _rendered(answer: dict[str, Any], tokenizer: Tokenizer) -> Text:
    """The text of a row, what is learned of it in brackets."""
    text = Text(f"reward {answer['reward']:g}, {len(answer['tokens'])} tokens: ", style="dim")
    # special tokens have no text of their own and are shown by their ids
    pieces = rollout_log.pieces(tokenizer.decode, answer["tokens"])
    inside = False
    for piece, token, mark in zip(pieces, answer["tokens"], answer["mask"], strict=True):
        if bool(mark) != inside:
            text.append("[" if mark else "]", style="bold")
            inside = bool(mark)
        text.append(piece or f"<{token}>", style="green" if mark else "default")
    if inside:
        text.append("]", style="bold")
    return text
