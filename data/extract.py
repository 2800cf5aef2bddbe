"""Finding the answer in a completion."""

from __future__ import annotations

import re
from collections.abc import Callable

_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)
_NUMBER = re.compile(r"-?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+)?")


def after_thought(text: str) -> str | None:
    """What follows the last `</think>`, or all; None when a `<think>` was never closed."""
    rest = _THOUGHT.sub("", text)
    return None if "<think>" in rest else rest


def plain(text: str) -> str | None:
    """The whole completion."""
    rest = after_thought(text)
    return rest.strip() if rest is not None and rest.strip() else None


def last_line(text: str) -> str | None:
    """The last line that is not blank, without a leading `Answer:`."""
    rest = plain(text)
    if rest is None:
        return None
    line = re.sub(r"(?i)^(?:final )?answer\s*[:=]\s*", "", rest.splitlines()[-1].strip())
    return line.strip() or None


def last_number(text: str) -> str | None:
    """The last integer, decimal or fraction, thousands separators dropped; for tiny models.

    Any number the completion happens to end with counts as its answer.
    """
    numbers = _NUMBER.findall(plain(text) or "")
    return numbers[-1].replace(",", "") if numbers else None


def answer_tag(text: str) -> str | None:
    """What the last `<answer>...</answer>` holds."""
    found = re.findall(r"<answer>(.*?)</answer>", after_thought(text) or "", re.DOTALL)
    return found[-1].strip() or None if found else None


def boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, braces balanced."""
    rest = after_thought(text) or ""
    _, found, inner = rest.rpartition(r"\boxed{")
    depth = 1
    for end, character in enumerate(inner if found else ""):
        depth += (character == "{") - (character == "}")
        if not depth:
            return inner[:end].strip() or None
    return None


def fenced(text: str, language: str = "") -> str | None:
    """The last fenced code block, of `language` if one is named (unlabelled blocks count too)."""
    blocks = re.findall(
        r"^```([^\n`]*)\n(.*?)^```", after_thought(text) or "", re.DOTALL | re.MULTILINE
    )
    wanted = {"", language.lower()}
    bodies = [body for label, body in blocks if not language or label.strip().lower() in wanted]
    return bodies[-1] if bodies else None


EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "text": plain,
    "last_line": last_line,
    "number": last_number,
    "tags": answer_tag,
    "boxed": boxed,
}
"""Answer formats by name; each gives None where the format was not followed."""

INSTRUCTIONS: dict[str, str] = {
    "text": "{question}",
    "last_line": "{question}\nWrite the final answer alone on the last line.",
    "number": "{question}\nEnd with the answer.",
    "tags": "{question}\nPut the final answer between <answer> and </answer>.",
    "boxed": "{question}\nPut the final answer in \\boxed{}.",
}
"""Prompt templates that ask for each format; `{question}` is replaced."""

_WRITTEN = {"tags": "<answer>{}</answer>", "boxed": "\\boxed{{{}}}"}


def checked(answer_format: str) -> str:
    """The name of a format.

    Raises:
      ValueError: no such format.
    """
    if answer_format not in EXTRACTORS:
        raise ValueError(f"answer_format={answer_format!r}: choose one of {', '.join(EXTRACTORS)}")
    return answer_format


def extractor(answer_format: str) -> Callable[[str], str | None]:
    """The extractor of a format; an unknown one is a ValueError."""
    return EXTRACTORS[checked(answer_format)]


def written(answer_format: str, answer: str) -> str:
    """An answer in the format that its extractor reads."""
    return _WRITTEN.get(answer_format, "{}").format(answer)


def fill(template: str, question: str) -> str:
    """The template with the question in it.

    Raises:
      ValueError: a template with no place for the question.
    """
    if "{question}" not in template:
        raise ValueError(f"template={template!r} has no {{question}} in it; say where it goes")
    return template.replace("{question}", question)
