"""Finding the answer in a completion."""

from __future__ import annotations

import re
from collections.abc import Callable

_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)
_NUMBER = re.compile(
    r"(-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+|(?=\.[0-9]))(?:\.[0-9]+)?"
    r"(?:[eE][+-]?[0-9]+)?(?:/[0-9]+)?)"
    r"%?(?:[^\W\d_]{1,12})?"
)
_WHOLE = re.compile(
    r"[\s*_$(\[{\\]*([+-]?)\s*[$€£¥]?\s*"
    r"((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+|(?=\.[0-9]))(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)"
    r"\s*\\?%?(?:\s*[^\W\d_]{1,20}){0,3}[\s*_$)\]}.\\]*"
)
_NAMED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathit)\s*\{([^{}]*)\}")
_TOKENS = re.compile(r"[\s=:;|&<>()\[\]{}\"'`~$€£¥≈]+")
_MINUS = str.maketrans("\u2212\ufe63\uff0d\u2013", "----")
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})([^\n]*)")
_LABELS = {
    "python": {"python", "py", "py3", "python3", "python2", "ipython", "pycon"},
    "sql": {"sql", "sqlite", "sqlite3", "postgres", "postgresql", "mysql"},
    "javascript": {"javascript", "js", "node", "nodejs", "mjs"},
    "bash": {"bash", "sh", "shell", "zsh"},
    "c": {"c", "c17", "c11", "c99", "h"},
    "json": {"json", "json5", "jsonc"},
    "lua": {"lua"},
}
"""What a block of a language may be labelled with."""


def after_thought(text: str) -> str | None:
    """What follows the last `</think>`, or all; None when a `<think>` was never closed."""
    rest = _THOUGHT.sub("", text)
    return None if "<think>" in rest else rest


def spoken(text: str) -> str:
    """What follows the last `</think>`, or all; empty where a `<think>` was never closed."""
    return after_thought(text) or ""


def thinking(prompt: str, completion: str) -> str:
    """The completion with the `<think>` that its prompt ends in, if it does: all of it is thought
    until that is closed."""
    return f"<think>{completion}" if prompt.rstrip().endswith("<think>") else completion


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

    Any number the completion happens to end with counts as its answer, a unit after it or not.
    Where what it ends with is more than a number, such as `3^5` or `1,8`, there is none.
    """
    flat = re.sub(r"\s+", " ", (plain(text) or "").translate(_MINUS))  # else long runs take long
    rest = re.sub(r"- ?[$€£¥] ?", "-", re.sub(r" ?([/^]) ?", r"\1", flat))
    for token in reversed(_TOKENS.split(rest)):
        if any(character.isdigit() for character in token):
            match = _NUMBER.fullmatch(token.lstrip("*_#+").rstrip("*_#!?.,") or "x")
            return match[1].replace(",", "") if match else None
    return None


def number(text: str) -> str | None:
    """The number that `text` is, thousands separators dropped; None if it is anything else.

    A sign, a currency, a percent sign, a unit of up to three words, emphasis, brackets and a box
    around it are no part of it. `1,8` and `18 or 19` are not a number.
    """
    inner = boxed(text) if "\\boxed{" in text else text
    plainer = _NAMED.sub(r" \1 ", inner or "").translate(_MINUS)
    match = _WHOLE.fullmatch(plainer) if len(plainer) <= 200 else None
    return None if match is None else (match[1] + match[2]).replace(",", "").removeprefix("+")


def answer_tag(text: str) -> str | None:
    """What the last `<answer>...</answer>` holds."""
    before, closed, _ = (after_thought(text) or "").rpartition("</answer>")
    _, opened, inner = before.rpartition("<answer>")
    return inner.strip() or None if closed and opened else None


def boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, braces balanced."""
    rest = after_thought(text) or ""
    _, opening, inner = rest.rpartition(r"\boxed{")
    depth = 1
    for end, character in enumerate(inner if opening else ""):
        depth += (character == "{") - (character == "}")
        if not depth:
            return inner[:end].strip() or None
    return None


def fenced(text: str, language: str = "") -> str | None:
    """The last fenced code block of a language.

    A block with the language's label, or one of its other names, goes before unlabelled blocks,
    and the last of its kind counts: what a program printed may follow it. Without a language, it is
    the last block. Fences may be indented, and longer than three backticks or tildes.
    """
    blocks = _blocks(after_thought(text) or "")
    if not language:
        return blocks[-1][1] if blocks else None
    language_labels = _LABELS.get(language.lower(), set()) | {language.lower()}
    for labels in (language_labels, {""}):
        bodies = [body for label, body in blocks if label in labels]
        if bodies:
            return bodies[-1]
    return None


def _blocks(text: str) -> list[tuple[str, str]]:
    """Label, in lower case, and body of each fenced block that is closed."""
    blocks, fence, label, indent = [], "", "", 0
    body: list[str] = []
    for line in text.splitlines(keepends=True):
        match = _FENCE.match(line)
        if not fence and match and "`" not in match[3]:
            indent, fence, body = len(match[1]), match[2], []
            label_match = re.match(r"[{.\s]*([^\s,{}:]*)", match[3])
            label = label_match[1].lower() if label_match else ""
        elif fence and match and match[2].startswith(fence) and not match[3].strip():
            blocks.append((label, "".join(body)))
            fence = ""
        elif fence:
            margin = len(line) - len(line.lstrip(" \t"))
            body.append(line[min(indent, margin) :])
    return blocks


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


def write_answer(answer_format: str, answer: str) -> str:
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
