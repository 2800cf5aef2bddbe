"""Secrets on command lines and in configs, which are saved and shared: masked, or refused."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"

_NAMES = {
    "key", "apikey", "token", "secret", "password", "passwd", "pwd", "passphrase", "credential",
    "credentials", "auth", "authorization", "bearer", "cookie", "pw", "sas", "pat",
}  # fmt: skip
_LAST = {"pass"}  # only where it ends a name: pass_rate is none
_SIGNED = {"sig", "signature"}  # of an address: whoever has it may use the address
_GLUED = re.compile(
    r"\w*(?:token|secret|password|passwd|passphrase|credentials?)"
    r"|\w*(?:access|account|api|auth|encryption|master|private|secret|service|shared|signing)key"
)
_NAMED = re.compile(r"(-{0,2}[A-Za-z][\w.-]*)=(.*)", re.DOTALL)
_SHORT = ("-p",)  # of many commands, a password
_FORMS = re.compile(
    r"\b(?:sk|pk|rk|hf|ghp|gho|ghs|ghu|ghr|glpat|xox[abprs]|xapp|github_pat|pypi)"
    r"[-_][A-Za-z0-9_-]{8,}"
    r"|\b(?:dop|tgp|wandb)_v1_[A-Za-z0-9_-]{8,}"
    r"|\b(?:npm|gsk|r8)_[A-Za-z0-9]{16,}|\b(?:xai|pplx)-[A-Za-z0-9]{16,}"
    r"|\bnvapi-[\w-]{16,}|\bya29\.[\w.-]{8,}|\bAIza[\w-]{30,}"
    r"|\bA[KS]IA[0-9A-Z]{16}\b|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+"
    r"|-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_HEX = re.compile(r"(?<![\w@/.:-])[0-9a-f]{40}(?![\w@/.-])")  # as wandb's; else it is a revision
_BEARER = re.compile(r"(\bBearer\s+)\S+", re.IGNORECASE)
_BASIC = re.compile(r"(\bBasic\s+)([A-Za-z0-9+/_-]{6,}={0,2})(?![\w=])", re.IGNORECASE)
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|cookie|x-[\w-]*(?:key|token|secret|auth)|api-key)"
    r"(\s*:\s*)(?!\s)[^\r\n]+",
    re.IGNORECASE,
)
_IN_JSON = re.compile(
    r"""(["'])([A-Za-z][\w.-]*)\1(\s*:\s*)(["'])((?:\\.|(?!\4).)*)\4""", re.DOTALL
)
_IN_URL = re.compile(r"(\w://)[^/\s@]+@")
_IN_QUERY = re.compile(r"([?&;]([A-Za-z][\w.-]*)=)[^&;#\s]+")
_VARIABLE = re.compile(r"(\b([A-Z][A-Z0-9_]{4,})=)[^\s,;&]+")  # of the environment
_PAIR = re.compile(r"((?:^|[,;\s{(])([A-Za-z][\w.-]*)=)[^,;&\s]+")


def command(words: Sequence[str]) -> list[str]:
    """A command line without secrets: values of flags and variables named after one, passwords in
    addresses, and what has the form of a well-known service's key."""
    out, hidden = list[str](), False
    for word in words:
        match = _NAMED.fullmatch(word)
        if hidden:  # a password may begin with dashes, as a flag does
            out.append(MASK)
        elif match and is_secret(match[1]):
            out.append(f"{match[1]}={MASK}")
        else:
            out.append(_PAIR.sub(_pair, text(word)))
        flag = word.startswith("-") and not match and not hidden
        hidden = flag and (word in _SHORT or is_secret(word))
    return out


def text(words: str) -> str:
    """A text without passwords in addresses and keys of well-known forms."""
    for pattern, put in (
        (_IN_URL, rf"\1{MASK}@"), (_HEADER, rf"\1\2{MASK}"), (_BEARER, rf"\1{MASK}"),
        (_BASIC, _basic), (_FORMS, MASK), (_HEX, MASK), (_IN_JSON, _entry), (_IN_QUERY, _query),
        (_VARIABLE, _pair),
    ):  # fmt: skip
        words = pattern.sub(put, words)
    return words


def _pair(match: re.Match[str]) -> str:
    return f"{match[1]}{MASK}" if is_secret(match[2]) else match[0]


def _query(match: re.Match[str]) -> str:
    signed = _SIGNED & set(re.split(r"[._-]+", match[2].lower()))
    return f"{match[1]}{MASK}" if signed or is_secret(match[2]) else match[0]


def _entry(match: re.Match[str]) -> str:
    """An entry of JSON, in a command or a text."""
    if not match[5] or not is_secret(match[2]):
        return match[0]
    return f"{match[1]}{match[2]}{match[1]}{match[3]}{match[4]}{MASK}{match[4]}"


def _basic(match: re.Match[str]) -> str:
    """A user and a password in base64; what is not is a word such as "Basic arithmetic"."""
    code = match[2].rstrip("=").replace("-", "+").replace("_", "/")
    try:
        pair = base64.b64decode(code + "=" * (-len(code) % 4), validate=True).decode()
    except ValueError:
        return match[0]
    return f"{match[1]}{MASK}" if ":" in pair and pair.isprintable() else match[0]


def values(value: Any, name: str = "") -> Any:
    """Plain values without secrets, by the names of their fields and as in `text`."""
    if isinstance(value, Mapping):
        return {key: values(entry, str(key)) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [values(entry, name) for entry in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return MASK if is_secret(name) else value  # a password of digits alone
    if not isinstance(value, str):
        return value
    return MASK if value and is_secret(name) else text(value)


def is_secret(name: str) -> bool:
    """Whether a flag, field or variable is named after a secret, such as `--task-args.api-key`."""
    parts = re.split(r"[._-]+", name.strip("-").lower())
    # max_new_tokens is a number of tokens, and key_variable says where the key is
    if parts[-1] in ("variable", "file", "path", "name"):
        return False
    return bool(_NAMES & set(parts)) or parts[-1] in _LAST or any(map(_GLUED.fullmatch, parts))
