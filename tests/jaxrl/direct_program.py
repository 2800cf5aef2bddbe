"""A process that takes offers: `python -m tests.jaxrl.direct_program OFFERS`."""

import json
import sys

import jax
import numpy as np

from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.rollout.direct import Offer, Receiver


def main() -> None:
    """Take each, and the first once more; say the sum of its elements, or that it failed."""
    receiver = Receiver(mesh.make(MeshConfig(), jax.devices()[:1]), "127.0.0.1", 2.0)
    offers = json.loads(sys.argv[1])
    for address, number, kinds in [*offers, offers[0]]:
        shapes = {name: jax.ShapeDtypeStruct(*kind) for name, kind in kinds.items()}
        try:
            got = receiver.take(Offer(address, number, {"a": shapes["a"], "b": [shapes["b"]]}))
        except Exception:
            print('"failed"', flush=True)
        else:
            total = sum(np.sum(np.asarray(x, np.float64)) for x in jax.tree.leaves(got))
            print(json.dumps(total), flush=True)


if __name__ == "__main__":
    main()
