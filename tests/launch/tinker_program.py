"""A service of a tiny model, in this process or as one that can be killed.

`python -m tests.launch.tinker_program RUN_DIR PORT` serves until it is ended.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator

import jax

from jaxrl.data.text import tokenizers
from jaxrl.launch.server.connection import Server
from jaxrl.launch.server.tinker import command
from jaxrl.launch.server.tinker.service import TinkerConfig
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.rollout.policy import Policy

LETTERS = "abcdefghijklmnopqrstuvwxyz .,:;"
MODEL = "tiny"
SHAPE = DecoderConfig(
    vocab_size=len(LETTERS) + 1, hidden_size=16, intermediate_size=24, num_layers=2,
    num_heads=2, num_kv_heads=1, head_dim=8, max_positions=128, tie_embeddings=True,
)  # fmt: skip


def actor() -> Policy:
    return Policy(SHAPE, decoder.init(SHAPE, jax.random.key(0)), tokenizers.characters(LETTERS))


def make(run_dir, port=0, **changes) -> Server:
    settings = {"max_context_tokens": 64, "slots": 8, "chunk": 8} | changes
    return command.make_server(
        actor(), TinkerConfig(run_dir=str(run_dir), port=port, **settings), MODEL
    )


@contextlib.contextmanager
def serving(run_dir, **changes) -> Iterator[Server]:
    server = make(run_dir, **changes)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


if __name__ == "__main__":
    served = make(sys.argv[1], int(sys.argv[2]), snapshot_every=3)
    print("ready", flush=True)
    served.serve_forever()
