"""A run small enough to be killed many times: as a config, and as a process of its own.

`python -m tests.jaxrl.tiny RUN_DIR [--notes FILE] [FIELD=JSON ...]` runs it.
"""

import json
import os
import pkgutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from jaxrl import config as configs
from jaxrl import extensions
from jaxrl.config import (
    CheckpointConfig,
    Config,
    EvalConfig,
    FreshModel,
    GuardConfig,
    RolloutConfig,
    RolloutLogConfig,
    WarmStartConfig,
)
from jaxrl.mesh import distributed
from jaxrl.run import loop
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.packing import PackingConfig
from tests import COMPILED

ROOT = Path(__file__).parents[2]
EXTENSIONS = {module.name for module in pkgutil.iter_modules(extensions.__path__)}


def config(run_dir, **changes) -> Config:
    """Two layers of 32, sums of one digit.

    Args:
      run_dir: of the run.
      changes: by dotted field name; the first field of a bundled extension adds it, and its name
        alone takes a dict of fields. `extensions` adds any, as a dict of references to fields.
    """
    made = Config(
        recipe="tiny",
        steps=6,
        run_dir=str(run_dir),
        fresh=FreshModel(32, 64, 2, 2, 2, 16),
        task="arithmetic",
        task_args={"digits": 1, "operators": "+"},
        warm_start=WarmStartConfig(steps=4, batch_size=8),
        rollout=RolloutConfig(prompts=4, group_size=4, max_prompt_tokens=16, max_new_tokens=4),
        optimizer=OptimizerConfig(learning_rate=1e-3),
        sampler=SamplerConfig(slots=16, prefill_rows=4, bucket=32),
        packing=PackingConfig(micro_batch_tokens=256, bucket=32, row_length=64),
        eval=EvalConfig(problems=8, every=3),
        checkpoint=CheckpointConfig(every=2),
        guard=GuardConfig(),
        rollout_log=RolloutLogConfig(every=1, groups=4),
        score_workers=0,
    )
    return changed(made, changes)


def changed(made: Config, changes) -> Config:
    """The config with changes, see `config`."""
    for name, value in changes.items():
        first, _, rest = name.partition(".")
        if name == "extensions":
            for reference, fields in value.items():
                made = configs.extended(made, reference, **fields)
        elif first in EXTENSIONS:
            made = configs.extended(made, first, **({rest: value} if rest else value))
        else:
            made = configs.replaced(made, name, value)
    return made


def start(
    run_dir, *, devices=1, module="tests.jaxrl.tiny", variables=None, **changes
) -> subprocess.Popen:
    """The run as a process; stages and steps are lines of its standard output."""
    given = [f"{name}={json.dumps(value)}" for name, value in changes.items()]
    return spawn(module, str(run_dir), *given, devices=devices, variables=variables)


def spawn(module, *arguments, devices=1, variables=None, cwd=ROOT) -> subprocess.Popen:
    """A module of this checkout as a process with so many virtual devices."""
    flags = {"XLA_FLAGS": xla_flags(devices)}
    flags |= {"PYTHONPATH": str(ROOT)} if cwd != ROOT else {}
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=os.environ | environment() | flags | (variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def xla_flags(devices: int) -> str:
    """Those of this process, with so many virtual devices: programs are compiled alike."""
    given = os.environ.get("XLA_FLAGS", "")
    return f"{given} --xla_force_host_platform_device_count={devices}".strip()


def environment() -> dict[str, str]:
    """For a process that trains: the platform, and where all tests keep compiled programs."""
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", COMPILED),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


def start_pair(run_dir, *, devices=4, **changes) -> list[subprocess.Popen]:
    """The run as two processes that find each other on this machine."""
    return [start(run_dir, devices=devices, variables=v, **changes) for v in pair_variables()]


def pair_variables() -> list[dict[str, str]]:
    """What tells each of two processes on this machine where the other is."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [dict(zip(distributed.VARIABLES, (address, "2", str(i)), strict=True)) for i in range(2)]


def finish(process) -> str:
    """Wait for a run that ends well; what it said."""
    out, error = process.communicate(timeout=900)
    assert process.returncode == 0, error[-3000:]
    return out


def finish_pair(pair) -> str:
    """Wait for both processes; what the first said, as the other must say nothing."""
    said, other = (finish(process) for process in pair)
    assert not [line for line in other.splitlines() if not line.startswith("[Gloo]")]
    return said


def await_line(process, line: str) -> None:
    """Return once a line begins so, or the run is over."""
    for said in process.stdout:
        if said.startswith(line):
            return


def kill_at(process, line: str) -> bool:
    """SIGKILL once a line begins so; False if the run was over before."""
    await_line(process, line)
    process.kill()
    process.communicate()
    return process.returncode != 0


def artefacts(run_dir: Path) -> dict[str, object]:
    """What two equal runs share: metrics but for times, sampled tokens, params, optimizer, and all
    else that a run continues from."""
    from jaxrl.record import checkpoint, jsonl, metrics

    unsteady = ("time/", "memory/", "compilations", "idle/")
    rows = [
        {k: v for k, v in row.items() if not k.startswith(unsteady)}
        for row in metrics.read(run_dir)
    ]
    texts = {
        str(f.relative_to(run_dir)): f.read_text()
        for kind in ("rollouts", "evals")
        for f in sorted((run_dir / kind).glob("*.jsonl"))
    }
    saved = checkpoint.path(run_dir, checkpoint.steps(run_dir)[-1])
    host = json.loads((saved / "host.json").read_text())
    host.pop("seconds", None)  # a control run has none
    history = list(jsonl.read(run_dir / "history.jsonl"))  # partial rollouts keep none
    return {
        "rows": rows, "texts": texts, "history": history, "host": host, "arrays": arrays(saved)
    }  # fmt: skip


def close(left: Path, right: Path, atol: float) -> bool:
    """Whether two runs sampled the same tokens, with the same scores, and agree in every array."""
    import numpy as np

    one, two = artefacts(left), artefacts(right)

    def sampled(texts):
        rows = {name: map(json.loads, lines.splitlines()) for name, lines in texts.items()}
        fields = ("problem", "completion", "tokens", "reward")
        return {name: [[r.get(f) for f in fields] for r in each] for name, each in rows.items()}

    def equal(name):
        a, b = one["arrays"][name], two["arrays"][name]
        if len(a) < 8:  # counters
            return a == b
        return np.allclose(np.frombuffer(a, "f4"), np.frombuffer(b, "f4"), rtol=0, atol=atol)

    assert one["arrays"].keys() == two["arrays"].keys()
    same = sampled(one["texts"]) == sampled(two["texts"])
    same &= one["history"] == two["history"]
    same &= without_progress(one["host"]) == without_progress(two["host"])
    return same and all(map(equal, one["arrays"]))


def without_progress(host: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's host state without groups in progress, whose log-probabilities are rounded."""
    rollouts = host["rollouts"]
    opened = {k: v for k, v in rollouts.get("open_groups", {}).items() if k != "groups"}
    return host | {"rollouts": rollouts | {"open_groups": opened}}


def arrays(saved: Path) -> dict[str, bytes]:
    """Every array of a checkpoint, as bytes, read without a mesh."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    def plain(item):
        with ocp.PyTreeCheckpointer() as reader:
            tree = reader.metadata(saved / item).item_metadata.tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            return reader.restore(saved / item, restore_args=as_numpy)

    leaves = jax.tree_util.tree_leaves_with_path({name: plain(name) for name in ("params", "rest")})
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}


def main(arguments: list[str]) -> None:
    run_dir, *given = arguments
    run(run_dir, **{n: json.loads(value) for n, _, value in (a.partition("=") for a in given)})


def run(run_dir, **changes) -> None:
    """The run, in this process."""
    distributed.start()
    watch = loop.Callbacks(
        stage=lambda name, done, total: print(f"{name} {done}", flush=True),
        note=lambda text: print(f"note {text}", flush=True),
    )
    loop.train(config(run_dir, **changes), watch)


if __name__ == "__main__":
    main(sys.argv[1:])
