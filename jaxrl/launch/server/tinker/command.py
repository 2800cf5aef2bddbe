"""`jaxrl serve --tinker MODEL --port P --run-dir D`: the Tinker API on one's own devices.

The same command in the same run directory continues, also after the server was killed.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys

from jaxrl.config import Config
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.server.connection import Server, is_loopback
from jaxrl.launch.server.tinker import service, work
from jaxrl.launch.server.tinker.http import Handler
from jaxrl.launch.server.tinker.service import TinkerConfig
from jaxrl.launch.settings import flags
from jaxrl.mesh import mesh
from jaxrl.models import catalog, decoder
from jaxrl.rollout import policy
from jaxrl.rollout.policy import Policy

KEY_VARIABLE = "JAXRL_TINKER_KEY"
_LOOPBACK_KEY = "tml-local"
"""Clients refuse to start without a key of this form."""


def main(argv: list[str]) -> int:
    """Serve a packaged model or a model directory until interrupted."""
    usage = "jaxrl serve --tinker MODEL"
    try:
        name, config = flags.name_and_settings(
            TinkerConfig(), argv, usage=usage, what="a model or its directory"
        )
        actor = policy.create(policy.config_of(name), mesh.make(Config().mesh), trust=config.trust)
        place = catalog.locate(name)
        server = make_server(actor, config, name, str(place) if place.is_dir() else None)
    except (*REFUSALS, OSError) as error:
        return refused(error)
    host, port = server.server_address[:2]
    print(
        f"serving {name} to Tinker clients at http://{host}:{port} (TINKER_BASE_URL); Ctrl-C ends "
        "it",
        file=sys.stderr,
    )
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.server_close()
    return 0


def key_of(host: str) -> str:
    """The key that callers must send.

    Raises:
      ValueError: others than this machine can call, and no key is set.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if not key and not is_loopback(host):
        raise ValueError(
            f"host={host!r} can be reached by others, so {KEY_VARIABLE} must be set to a key; "
            "clients send it as TINKER_API_KEY"
        )
    return key or _LOOPBACK_KEY


def make_server(
    actor: Policy, config: TinkerConfig, name: str, tokenizer_id: str | None = None
) -> Server:
    """A server that listens, its thread at work; `serve_forever` answers.

    Args:
      actor: the base model.
      config: settings.
      name: of the base model.
      tokenizer_id: where a client on this machine finds the tokenizer; None: nowhere.

    Raises:
      ValueError: limits that the model cannot serve, or no key where one is needed.
      OSError: the address is taken or not ours.
    """
    key = key_of(config.host)
    model = dataclasses.replace(actor.model, dtype=config.dtype)
    params = decoder.cast(actor.params, config.dtype)
    placed = actor._replace(model=model, params=params)
    served = service.start(placed, name, config, key, tokenizer_id)
    server = Server((config.host, config.port), functools.partial(Handler, served))
    work.start(served)
    return server
