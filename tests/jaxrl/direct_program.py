"""A process that takes offers: `python -m tests.jaxrl.direct_program OFFERS`."""

import json
import os
import sys

import jax
import numpy as np

from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.rollout.direct import Offer, Receiver


def main() -> None:
    """Take each, and say the sum of its elements, or what error there was."""
    receiver = Receiver(mesh.make(MeshConfig(), jax.devices()[:1]), "127.0.0.1", 3.0)
    for address, number, kinds in json.loads(sys.argv[1]):
        shapes = {name: jax.ShapeDtypeStruct(*kind) for name, kind in kinds.items()}
        try:
            got = receiver.take(Offer(address, number, {"a": shapes["a"], "b": [shapes["b"]]}))
        except Exception as error:
            print(json.dumps(type(error).__name__), flush=True)
        else:
            total = sum(np.sum(np.asarray(x, np.float64)) for x in jax.tree.leaves(got))
            print(json.dumps(total), flush=True)
    os._exit(0)  # past the thread that waits for ever


if __name__ == "__main__":
    main()
