"""Whether a text is an answer, or contains it, as it is written: its numbers and words whole.

Numbers are compared by value: 4, 4.0 and +4 are equal, and neither 14 nor -4 nor 4.5 is any of
them. Numerals with leading zeros, such as `007`, and fractions are texts.
"""

from __future__ import annotations

import re

from jaxrl.data.rewards.text import exact_match

_NUMERAL = re.compile(
    r"(?:(?<![0-9A-Za-z_)\]])([-+\u2212]))?(?<![0-9.A-Za-z_])(?<![0-9]/)"
    r"(?:([1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]*|0)(?:\.([0-9]+))?|\.([0-9]+))"
    r"(?![0-9])(?!\.[0-9])(?!/[0-9])(?![eE][-+]?[0-9])"
)
_AROUND = " \t\r\n*_$`'\"()[]{}"


def is_answer(text: str, reference: str) -> bool:
    """Whether the texts are equal but for case, punctuation, articles and white space.

    The numbers in them must be equal: punctuation is a part of `-4`, `3.14` and `1/2`.
    """
    if _numbers(text) != _numbers(reference):
        return False
    number = _number(text)
    return exact_match(text, reference) == 1 or (
        number is not None and number == _number(reference)
    )


def contains(text: str, reference: str) -> bool:
    """Whether a text has a reference in it, and not as a part of a longer word or number.

    Writing systems without spaces have no ends of words that could be seen, so only letters that
    have a case count as parts of a word.
    """
    number = _number(reference)
    if number is not None:
        return number in _numbers(text)
    at = text.find(reference)
    while at >= 0:
        end = at + len(reference)
        if not (
            _is_cut(text[at - 1 : at], text[at : at + 1])
            or _is_cut(text[end - 1 : end], text[end : end + 1])
            or (reference[:1].isdigit() and re.search(r"[0-9][.,]\Z", text[max(at - 2, 0) : at]))
            or (reference[-1:].isdigit() and re.match(r"[.,][0-9]", text[end : end + 2]))
        ):
            return True
        at = text.find(reference, at + 1)
    return False


def _is_cut(left: str, right: str) -> bool:
    """Whether a word or a number goes on from one character to the next."""
    if left.isdigit() and right.isdigit():
        return True
    return left.lower() != left.upper() and right.lower() != right.upper()


def _numbers(text: str) -> list[str]:
    """The values of the numbers in a text, each written in one way."""
    return [_value(match) for match in _NUMERAL.finditer(text)]


def _number(text: str) -> str | None:
    """The value of the number that a text is; None if it is anything else."""
    match = _NUMERAL.fullmatch(text.strip(_AROUND).rstrip(".!?").strip(_AROUND))
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> str:
    sign, whole, decimals, bare = match.groups(default="")
    digits = f"{whole.replace(',', '') or '0'}.{(decimals or bare).rstrip('0')}"
    return f"-{digits}" if sign in {"-", "\u2212"} and digits != "0." else digits
