"""Secrets on command lines and in configs, which are saved and shared: masked, or refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"

_NAMES = {
    "key", "apikey", "token", "secret", "password", "passwd", "pwd", "passphrase", "credential",
    "credentials", "auth", "authorization", "bearer", "cookie",
}  # fmt: skip
_NAMED = re.compile(r"(-{0,2}[A-Za-z][\w.-]*)=(.*)", re.DOTALL)
_FORMS = re.compile(
    r"\b(?:sk|pk|rk|hf|ghp|gho|ghs|ghu|glpat|xox[abprs]|github_pat|pypi)[-_][A-Za-z0-9_-]{8,}"
    r"|\bAKIA[0-9A-Z]{16}\b|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+"
)
_BEARER = re.compile(r"(\bBearer\s+)\S+", re.IGNORECASE)
_IN_URL = re.compile(r"(\w://)[^/\s@]+@")
_IN_QUERY = re.compile(r"([?&;]([A-Za-z][\w.-]*)=)[^&;#\s]+")


def command(words: Sequence[str]) -> list[str]:
    """A command line without secrets: values of flags and variables named after one, passwords in
    addresses, and what has the form of a well-known service's key."""
    out, hidden = list[str](), False
    for word in words:
        named = _NAMED.fullmatch(word)
        if hidden and not word.startswith("--"):
            out.append(MASK)
        elif named and is_secret(named[1]):
            out.append(f"{named[1]}={MASK}")
        else:
            out.append(text(word))
        hidden = word.startswith("-") and not named and is_secret(word)
    return out


def text(words: str) -> str:
    """A text without passwords in addresses and keys of well-known forms."""

    def query(found: re.Match[str]) -> str:
        return f"{found[1]}{MASK}" if is_secret(found[2]) else found[0]

    for pattern, put in ((_IN_URL, rf"\1{MASK}@"), (_BEARER, rf"\1{MASK}"), (_FORMS, MASK)):
        words = pattern.sub(put, words)
    return _IN_QUERY.sub(query, words)


def values(value: Any, name: str = "") -> Any:
    """Plain values without secrets, by the names of their fields and as in `text`."""
    if isinstance(value, Mapping):
        return {key: values(each, str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [values(each, name) for each in value]
    if not isinstance(value, str):
        return value
    return MASK if value and is_secret(name) else text(value)


def is_secret(name: str) -> bool:
    """Whether a flag, field or variable is named after a secret, such as `--task-args.api-key`."""
    parts = re.split(r"[._-]+", name.strip("-").lower())
    # max_new_tokens is a number of tokens, and key_variable says where the key is
    return bool(_NAMES & set(parts)) and parts[-1] not in ("variable", "file", "path", "name")
