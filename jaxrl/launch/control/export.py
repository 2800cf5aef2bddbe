"""`jaxrl control export RUN OUT`: its policy for NumPy alone, and as a program of XLA."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
from pathlib import Path

import jax
import numpy as np

from jaxrl.control import numpy_policy, policy, spaces
from jaxrl.data.offline import transitions
from jaxrl.launch.cli import REFUSALS, refused


def main(argv: list[str]) -> int:
    """Write them; 2 for what is no run."""
    parser = argparse.ArgumentParser(prog="jaxrl control export", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory of jaxrl control")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write")
    parser.add_argument("--seed", type=int, default=0, help="of the run's seeds (%(default)s)")
    parser.add_argument(
        "--point", default="last", choices=policy.POINTS, help="of the run (%(default)s)"
    )
    flags = parser.parse_args(argv)
    try:
        for path in write(policy.load(flags.run, flags.seed, flags.point), flags.out):
            print(path)
    except REFUSALS as error:
        return refused(error)
    return 0


def write(loaded: policy.Policy, out: Path) -> list[Path]:
    """The files of a policy, which need nothing of jaxrl.

    `policy.py` has `policy(observation)`, in the terms of the environment as `Policy` has them, and
    needs NumPy alone. `policy.stablehlo`, for any compiler of StableHLO, takes flat observations
    [N, O] float32, uint8 of pictures, to the policy's actions, for any N; where flatbuffers is
    installed there is also `policy.jax`, the same for `jax.export.deserialize`.

    Raises:
      ValueError: a policy that NumPy or XLA cannot have.
    """
    size, key = loaded.description["space"]["observation"], jax.random.PRNGKey(0)
    dtype = np.uint8 if loaded.description["space"].get("shape") else np.float32

    def single(observation: jax.Array) -> jax.Array:
        return loaded.best(key, loaded.params, observation)

    source, constants = numpy_policy.write(single, size, dtype)
    count = jax.export.symbolic_shape("n")
    form = jax.ShapeDtypeStruct((*count, size), dtype)
    program = jax.export.export(jax.jit(jax.vmap(single)))(form)
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / name for name in ("policy.py", "policy.npz", "policy.stablehlo")]
    functions = (
        transitions.from_unit_box, spaces.as_batch, spaces.flatten, spaces.to_environment,
    )  # fmt: skip
    # The name of the environment may be any text, so it is a constant and no part of a string.
    parts = [HEADER.format(algorithm=loaded.description["algorithm"])]
    parts.append(f"ENVIRONMENT = {loaded.description['env']!r}\n")
    parts.append(f"LAYOUTS = {json.loads(json.dumps(loaded.description['layouts']))!r}\n")
    parts.append(f"OBSERVATION = {size}\n\n")
    parts += [f"\n{inspect.getsource(function)}\n" for function in functions]
    paths[0].write_text("".join([*parts, f"\n{source}\n", FOOTER]), encoding="utf-8")
    np.savez(paths[1], **{f"c{i}": value for i, value in enumerate(constants)})
    paths[2].write_bytes(program.mlir_module_serialized)
    if importlib.util.find_spec("flatbuffers"):
        paths.append(out / "policy.jax")
        paths[-1].write_bytes(program.serialize())
    return paths


HEADER = '''"""A policy of {algorithm} for `ENVIRONMENT`: `policy(observation)` is its action."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

Layout = dict

'''
FOOTER = '''
with np.load(Path(__file__).with_name("policy.npz")) as _file:
    _CONSTANTS = [_file[f"c{i}"] for i in range(len(_file.files))]


def policy(observation):
    """The action for one observation of the environment."""
    form = LAYOUTS.get("observation") or {"kind": "box", "shape": [OBSERVATION]}
    flat = flatten(form, as_batch(form, observation))[0]
    action = np.asarray(act(flat, _CONSTANTS))[None]
    return to_environment(LAYOUTS["action"], action)[0] if LAYOUTS else action[0]

'''
