"""`jaxrl control export RUN OUT`: its policy for NumPy alone, and as a program of XLA."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

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
    installed there is also `policy.jax`, the same for `jax.export.deserialize`. Of a policy with a
    memory, `policy.py` has `init()` and `step(observation, state)` in place of `policy`, and the
    programs take memories [N, H] float32 too and return the actions and the next memories.

    Raises:
      ValueError: a policy that NumPy or XLA cannot have.
    """
    size, key = loaded.description["space"]["observation"], jax.random.PRNGKey(0)
    dtype = np.uint8 if loaded.description["space"].get("shape") else np.float32

    def single(*inputs: jax.Array) -> Any:
        return loaded.algorithm.best(key, loaded.params, *inputs)

    memory = sum(len(leaf) for leaf in jax.tree.leaves(loaded.algorithm.memory))
    source, constants = numpy_policy.write(single, size, dtype, memory)
    count = jax.export.symbolic_shape("n")
    forms = [jax.ShapeDtypeStruct((*count, size), dtype)]
    forms += [jax.ShapeDtypeStruct((*count, memory), np.float32)] if memory else []
    program = jax.export.export(jax.jit(jax.vmap(single)))(*forms)
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / name for name in ("policy.py", "policy.npz", "policy.stablehlo")]
    functions = (
        transitions.from_unit_box, spaces.as_batch, spaces.flatten, spaces.to_environment,
    )  # fmt: skip
    use = {"use": "policy(observation)", "rest": ""}
    if memory:
        use = {"use": "step(observation, state)", "rest": " and the next state"}
    # The name of the environment may be any text, so it is a constant and no part of a string.
    parts = [HEADER.format(algorithm=loaded.description["algorithm"], **use)]
    parts.append(f"ENVIRONMENT = {loaded.description['env']!r}\n")
    parts.append(f"LAYOUTS = {json.loads(json.dumps(loaded.description['layouts']))!r}\n")
    parts.append(f"OBSERVATION = {size}\n")
    parts.append(f"MEMORY = {memory}\n\n" if memory else "\n")
    parts += [f"\n{inspect.getsource(function)}\n" for function in functions]
    parts += [f"\n{source}\n", FOOTER, STEP if memory else POLICY]
    paths[0].write_text("".join(parts), encoding="utf-8")
    np.savez(paths[1], **{f"c{i}": value for i, value in enumerate(constants)})
    paths[2].write_bytes(program.mlir_module_serialized)
    if importlib.util.find_spec("flatbuffers"):
        paths.append(out / "policy.jax")
        paths[-1].write_bytes(program.serialize())
    return paths


HEADER = '''"""A policy of {algorithm} for `ENVIRONMENT`: `{use}` is its action{rest}."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

Layout = dict

'''
FOOTER = """
with np.load(Path(__file__).with_name("policy.npz")) as _file:
    _CONSTANTS = [_file[f"c{i}"] for i in range(len(_file.files))]


def _flat(observation):
    form = LAYOUTS.get("observation") or {"kind": "box", "shape": [OBSERVATION]}
    return flatten(form, as_batch(form, observation))[0]


def _of_environment(action):
    action = np.asarray(action)[None]
    return to_environment(LAYOUTS["action"], action)[0] if LAYOUTS else action[0]

"""
POLICY = '''
def policy(observation):
    """The action for one observation of the environment."""
    return _of_environment(act(_flat(observation), _CONSTANTS))
'''
STEP = '''
def init():
    """The state before the first observation of an episode."""
    return np.zeros(MEMORY, np.float32)


def step(observation, state):
    """The action for an observation of the environment, and the state for the next one."""
    action, state = act(_flat(observation), _CONSTANTS, state)
    return _of_environment(action), state
'''
