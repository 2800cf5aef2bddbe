"""Whether a text is an answer, or contains it, as it is written: its numbers and words whole.

Numbers are compared by value: 4, 4.0 and +4 are equal, and neither 14 nor -4 nor 4.5 is any of
them. Numerals with leading zeros, such as `007`, fractions and exponents are texts, whose digits
and signs are compared.
"""

from __future__ import annotations

import re
import string

from jaxrl.data.rewards.text import exact_match, normalise

_NUMERAL = re.compile(
    r"(?:(?<![0-9A-Za-z)\]])(?<![0-9A-Za-z]_)([-+\u2212]))?"
    r"(?<![0-9A-Za-z])(?<![0-9A-Za-z]_)(?<![0-9]\.)(?<![0-9]/)"
    r"(?:([1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]*|0)(?:\.([0-9]+))?|(?<!\.)\.([0-9]+))"
    r"(?![0-9])(?!\.[0-9])(?!/[0-9])(?![eE][-+]?[0-9])"
)
_REST = re.compile(r"(?<![0-9A-Za-z)\]])-(?=\.?[0-9]|\\)|(?<=[0-9][eE])-(?=[0-9])|[0-9]+")
"""Signs and digits of what is no numeral: fractions, exponents and numerals with leading zeros."""
_OPERATOR = re.compile(
    r"(?:(?<![A-Za-z])[A-Za-z]|[0-9)\]}])\s*([-+*/^=<>]+)\s*(?=[0-9(\\.]|[A-Za-z](?![A-Za-z]))"
)
"""Between two operands: numbers, variables of one letter, brackets."""
_AROUND = " \t\r\n*_$`'\"()[]{}"


def is_answer(text: str, reference: str) -> bool:
    """Whether the texts are equal but for case, punctuation, articles and white space.

    The numbers in them must be equal: punctuation is a part of `-4`, `3.14` and `1/2`. So must the
    operators: `x-1` is not `x+1`. A reference
    of punctuation or an article alone, such as `<` or `A`, is compared as it is written.
    """
    if not normalise(reference):
        return _bare(text) == _bare(reference)
    if _numbers(text) != _numbers(reference) or _rest(text) != _rest(reference):
        return False
    if _operators(text) != _operators(reference):
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


def _rest(text: str) -> list[str]:
    """The signs and digits in a text that belong to no number of `_numbers`."""
    return _REST.findall(_NUMERAL.sub("0", text).replace("\u2212", "-"))


def _operators(text: str) -> list[str]:
    """The operators of the formulas in a text."""
    return _OPERATOR.findall(text.replace("\u2212", "-"))


def _bare(text: str) -> str:
    """A text in lower case without the punctuation around it, as far as that is not all of it."""
    spare = string.punctuation + string.whitespace
    return (text.strip(spare) or text.strip(_AROUND) or text.strip()).casefold()


def _number(text: str) -> str | None:
    """The value of the number that a text is; None if it is anything else."""
    match = _NUMERAL.fullmatch(text.strip(_AROUND).rstrip(".!?").strip(_AROUND))
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> str:
    sign, whole, decimals, bare = match.groups(default="")
    digits = f"{whole.replace(',', '') or '0'}.{(decimals or bare).rstrip('0')}"
    return f"-{digits}" if sign in {"-", "\u2212"} and digits != "0." else digits
