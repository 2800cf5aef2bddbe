"""Tenants of a service: who may call, with what key, and how much each may have.

A tenant sees what its own requests made, and nothing else is known to it: sessions, models, saved
weights, samplers and futures of others are answered like names that nobody has.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from jaxrl.launch.server.http import Refused, is_loopback
from jaxrl.launch.server.tinker.bodies import Lora

KEY_VARIABLE = "JAXRL_TINKER_KEY"
PREFIX = "tml-"
"""Clients refuse to start with a key that begins otherwise."""
_LOOPBACK_KEY = f"{PREFIX}local"
_NUMBER = Annotated[int | None, Field(ge=1, lt=2**53)]


class Tenant(NamedTuple):
    """One who may call."""

    name: str
    """Empty: the only one."""
    digest: str
    """SHA-256 of the key, in hexadecimal digits."""
    models: int | None = None
    """Most models that may be created; None: as many as one likes."""
    memory_bytes: int | None = None
    """Most bytes of models: their weights, gradients and moments."""
    waiting: int | None = None
    """Most requests that may wait; None: as many as the server's setting has."""
    max_body_bytes: int | None = None
    """Largest request body; None: as the server's setting has it."""


class _Entry(BaseModel):
    """A line of a file of keys."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9_-]{0,38}[a-z0-9])?$")
    key: str | None = Field(None, pattern=rf"^{PREFIX}[!-~]{{1,200}}$")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    models: _NUMBER = None
    memory_bytes: _NUMBER = None
    waiting: _NUMBER = None
    max_body_bytes: _NUMBER = None

    @model_validator(mode="after")
    def _has_one_key(self) -> _Entry:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("give one of key and sha256, the digest of a key")
        return self


def load(keys: str, host: str) -> dict[str, Tenant]:
    """Those who may call, by name.

    Args:
      keys: a file as `read` takes it; empty: there is one tenant, without a name, and its key is
        that of the variable `JAXRL_TINKER_KEY` or, on loopback, `tml-local`.
      host: that the server listens on.

    Raises:
      ValueError: no key where one is needed, two sources of keys, or a file that is wrong.
      OSError: the file cannot be read.
    """
    variable = os.environ.get(KEY_VARIABLE, "")
    if not keys:
        return {"": Tenant("", digest(key_of(host)))}
    if variable:
        raise ValueError(f"--keys {keys} has the keys, and {KEY_VARIABLE} is set; unset one")
    return read(Path(keys))


def read(path: Path) -> dict[str, Tenant]:
    """Tenants of a file: an object a line, as `{"name": "ana", "key": "tml-...", "models": 4}`.

    In place of `key` it may have `sha256`, what `printf tml-... | sha256sum` prints. `models`,
    `memory_bytes`, `waiting` and `max_body_bytes` are limits, see `Tenant`.

    Raises:
      ValueError: names the line and what is wrong with it.
      OSError: it cannot be read.
    """
    tenants: dict[str, Tenant] = {}
    for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            fields = _Entry.model_validate_json(line).model_dump()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise ValueError(f"{path}, line {n}: {where}: {first['msg']}") from None
        key, hashed = fields.pop("key"), fields.pop("sha256")
        tenant = Tenant(digest=hashed or digest(key), **fields)
        if tenant.name in tenants:
            raise ValueError(f"{path}, line {n}: name {tenant.name!r} is taken; give another")
        if tenant.digest in {earlier.digest for earlier in tenants.values()}:
            raise ValueError(f"{path}, line {n}: another line has the same key; give another")
        tenants[tenant.name] = tenant
    if not tenants:
        raise ValueError(f"{path} has no keys; give it a line for each tenant")
    return tenants


def key_of(host: str) -> str:
    """The key that callers must send where there is no file of keys.

    Raises:
      ValueError: others than this machine can call, and no key is set; or clients cannot send it.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if not key and not is_loopback(host):
        raise ValueError(
            f"host={host!r} can be reached by others, so {KEY_VARIABLE} must be set to a key, or "
            "--keys name a file of keys; clients send theirs as TINKER_API_KEY"
        )
    if key and not key.startswith(PREFIX):
        raise ValueError(
            f"{KEY_VARIABLE} must begin with {PREFIX}, as clients send no other key; put "
            f"{PREFIX} before it, here and in the clients' TINKER_API_KEY"
        )
    return key or _LOOPBACK_KEY


def digest(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def find(tenants: Iterable[Tenant], key: str) -> Tenant | None:
    """The tenant with a key, in a time that does not depend on which."""
    key_digest = digest(key)
    matches = [tenant for tenant in tenants if hmac.compare_digest(tenant.digest, key_digest)]
    return matches[0] if matches else None


def check_quota(
    tenant: Tenant, models: Sequence[Lora], config: Lora, size: Callable[[Lora], int]
) -> None:
    """Refuse a model beyond what a tenant may have.

    Args:
      tenant: who asks for it.
      models: that the tenant has.
      config: the new one.
      size: bytes of a model.

    Raises:
      Refused: with status 403, as asking again does not help.
    """
    remedy = "load weights into a model that is there, or ask who runs the server for more"
    if tenant.models is not None and len(models) >= tenant.models:
        raise Refused(403, f"this key may have {tenant.models} models and has them; {remedy}")
    if tenant.memory_bytes is None:
        return
    used = sum(map(size, models))
    if used + size(config) > tenant.memory_bytes:
        raise Refused(
            403,
            f"the model takes {size(config)} bytes of memory; this key may have "
            f"{tenant.memory_bytes} and has {used}; choose a smaller rank, {remedy}",
        )
