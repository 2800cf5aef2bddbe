"""Checkpoints on their own: what is written, what damage is noticed, what retention keeps."""

import functools
import hashlib
import json
import math
import re
import shutil
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.config import CheckpointConfig
from jaxrl.record import checkpoint, manifest, references
from jaxrl.record.writer import Writer, kept_steps
from jaxrl.types import TrainState

DOCS = Path(__file__).parents[3] / "docs" / "checkpointing.md"
FAULTS = ("half of it cut off", "one bit flipped", "removed")


def state(step):
    """A state whose every number depends on the step."""
    params = {"w": jnp.arange(24.0).reshape(4, 6) + step, "b": jnp.full(3, -step, jnp.float32)}
    moments = {"mu": jax.tree.map(lambda x: x / 7, params), "count": jnp.int32(step)}
    return TrainState(params, moments, jnp.int32(step))


def like():
    return jax.tree.map(ocp.utils.to_shape_dtype_struct, state(0))


def write(directory, steps, config=CheckpointConfig(), scores=None, note=lambda text: None):
    directory.mkdir(exist_ok=True)
    with Writer(directory, config, note) as writer:
        for step in steps:
            writer.save(step, state(step), {"step": step}, (scores or {}).get(step))
            writer.wait()
    return writer


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A run with checkpoints of steps 1 and 2."""
    directory = tmp_path_factory.mktemp("two") / "run"
    write(directory, [1, 2])
    return directory


def equal(a, b):
    return all(jax.tree.leaves(jax.tree.map(lambda x, y: bool(np.array_equal(x, y)), a, b)))


@pytest.mark.exact("a checkpoint holds the state as it was when the save was called")
def test_saved_state_is_that_of_the_call(tmp_path):
    """The loop donates the state while it is still being written."""

    @functools.partial(jax.jit, donate_argnums=0)
    def advance(s):
        return jax.tree.map(lambda x: x + 1, s)

    carried = state(1)
    with Writer(tmp_path, CheckpointConfig(), print) as writer:
        writer.save(1, carried, {"note": [1, 0.1, None]})
        for _ in range(20):
            carried = advance(carried)
    saved = checkpoint.restore(tmp_path, 1, like())
    assert equal(saved.state, state(1)) and saved.host == {"note": [1, 0.1, None]}


def damage(file, fault):
    content = file.read_bytes()
    if fault == FAULTS[0]:
        file.write_bytes(content[: len(content) // 2])
    elif fault == FAULTS[1]:
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :])
    else:
        file.unlink()


def fault_table(run: Path) -> str:
    """Every fault in each file of the newest checkpoint, and what a continuing run does."""
    newest = checkpoint.path(run, 2)
    files = sorted(file for file in newest.rglob("*") if file.is_file())
    outcomes: dict[str, list[set[str]]] = {}
    for file in files:
        name, content = str(file.relative_to(newest)), file.read_bytes()
        kind = re.sub(r"[0-9a-f]{32}", "HASH", name)
        for i, fault in enumerate(FAULTS):
            damage(file, fault)
            notes: list[str] = []
            step = checkpoint.newest(run, notes.append)
            warned = "file named" if any(name in note for note in notes) else "no warning"
            outcomes.setdefault(kind, [set() for _ in FAULTS])[i].add(f"step {step} read, {warned}")
            file.write_bytes(content)
    rows = ["| file | " + " | ".join(FAULTS) + " |", "|---|---|---|---|"]
    for kind, cells in outcomes.items():
        rows.append(f"| `{kind}` | " + " | ".join("; ".join(sorted(c)) for c in cells) + " |")
    return "\n".join(rows) + "\n"


def test_any_damage_falls_back_and_is_reported(two, tmp_path):
    """The documented table is what happens, file by file."""
    run = tmp_path / "run"
    shutil.copytree(two, run)
    table = fault_table(run)
    assert "step 2 read" not in table and "step None" not in table
    assert table in DOCS.read_text(), f"docs/checkpointing.md should hold\n{table}"


def test_fallback_restores_and_sets_aside(two, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(two, run)
    damage(checkpoint.path(run, 2) / "host.json", FAULTS[1])
    notes = []
    step = checkpoint.newest(run, notes.append)
    assert step == 1 and "host.json: its SHA-256 is not the one written" in notes[0]
    checkpoint.set_aside(run, after=step)
    assert equal(checkpoint.restore(run, 1, like()).state, state(1))
    assert checkpoint.path(run, 2).with_suffix(".damaged").is_dir()  # kept, for who may repair it
    write(run, [2])
    assert equal(checkpoint.restore(run, 2, like()).state, state(2))


def test_all_damaged_is_an_error_not_a_fresh_start(two, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(two, run)
    for step in (1, 2):
        damage(checkpoint.path(run, step) / "host.json", FAULTS[0])
    with pytest.raises(ValueError, match=r"every checkpoint in .* is damaged"):
        checkpoint.newest(run, lambda text: None)


def test_an_incomplete_save_is_never_read(two, tmp_path, monkeypatch):
    """Dying before the manifest leaves the checkpoint before it, and is cleared away."""
    run = tmp_path / "run"
    shutil.copytree(two, run)

    def die(saved, measured, facts):
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(manifest, "commit", die)
        write(run, [3])
    assert checkpoint.path(run, 3).is_dir() and checkpoint.steps(run) == [1, 2]
    write(run, [])
    assert not checkpoint.path(run, 3).exists()


def rewrite(saved, **changes):
    """A manifest that says something else, and is whole."""
    body = manifest.read(saved) | changes
    (saved / manifest.NAME).write_text(json.dumps({"sha256": manifest.digest(body), "body": body}))


def test_files_are_hashed_in_pieces(two, tmp_path, monkeypatch):
    """Each by itself, against hashlib; a bit in any piece is noticed."""
    saved = tmp_path / "saved"
    shutil.copytree(checkpoint.path(two, 2), saved)
    monkeypatch.setattr(manifest, "_PIECE", 100)
    measured = manifest.measure(saved)
    manifest.commit(saved, measured, {"step": 2, "score": None})
    assert not manifest.faults(saved)
    largest = max(manifest.files(saved), key=lambda file: file.stat().st_size)
    content = largest.read_bytes()
    pieces = [content[i : i + 100] for i in range(0, len(content), 100)]
    name = str(largest.relative_to(saved))
    assert len(pieces) > 3
    assert measured[name] == {
        "bytes": len(content), "sha256": [hashlib.sha256(p).hexdigest() for p in pieces]
    }  # fmt: skip
    for at in (0, 150, len(content) - 1):
        largest.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        assert manifest.faults(saved) == [f"{name}: its SHA-256 is not the one written"]


def test_files_that_were_hashed_whole_are_still_checked(two, tmp_path):
    """As schema 1 did."""
    saved = tmp_path / "saved"
    shutil.copytree(checkpoint.path(two, 2), saved)
    whole = {
        str(file.relative_to(saved)): {
            "bytes": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in manifest.files(saved)
    }
    rewrite(saved, schema=1, files=whole)
    assert not manifest.faults(saved)
    damage(saved / "host.json", FAULTS[1])
    assert manifest.faults(saved) == ["host.json: its SHA-256 is not the one written"]


def test_processes_hash_what_they_wrote(tmp_path, monkeypatch):
    """Together each file once, and none that another has written."""
    names = [
        "host.json", "params/_METADATA", "params/d/ab", "params/ocdbt.process_0/d/cd",
        "params/ocdbt.process_1/d/ef", "params/ocdbt.process_12/d/01",
        "params/array_metadatas/process_0", "rest/array_metadatas/process_1",
        "rest/array_metadatas/process_12",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    def of(process):
        fake = types.SimpleNamespace(process_count=lambda: 13, process_index=lambda: process)
        monkeypatch.setattr(manifest, "jax", fake)
        return manifest.measure(tmp_path)

    each = [of(process) for process in range(13)]
    assert {*each[1]} == {name for name in names if name.split("/d/")[0].endswith("process_1")}
    assert sum(map(len, each)) == len(names) and [*manifest.joined(each)] == sorted(names)
    with pytest.raises(OSError, match="process 1: no space"):
        manifest.joined([each[0], "no space"])


def test_newer_schema_and_other_model_are_refused(two, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(two, run)
    rewrite(checkpoint.path(run, 2), schema=manifest.SCHEMA + 1)
    with pytest.raises(ValueError, match="continue with the version that wrote it"):
        checkpoint.newest(run, lambda text: None)
    other = like().replace(params={"w": jax.ShapeDtypeStruct((4, 7), jnp.float32)})
    with pytest.raises(ValueError, match="does not fit the config's model"):
        checkpoint.restore(run, 1, other)
    with pytest.raises(ValueError, match=r"no checkpoint of step 7; it has \[1, 2\]"):
        checkpoint.require(run, 7)


def test_restore_in_another_dtype(two):
    """Numbers are rounded to the dtype that is asked for, the optimizer's are left."""
    wanted = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, jnp.bfloat16), like().params)
    read = checkpoint.restore(two, 2, like().replace(params=wanted)).state
    assert equal(read.params, jax.tree.map(lambda x: x.astype(jnp.bfloat16), state(2).params))
    assert equal(read.opt_state, state(2).opt_state)


@pytest.mark.exact("a checkpoint restores every array in its dtype to the last bit")
def test_frozen_parameters_in_bfloat16_are_restored_exactly(tmp_path):
    rng = np.random.default_rng(0)
    base, small = (jnp.array(rng.normal(size=(8, 8)), dtype) for dtype in ("bfloat16", "float32"))
    made = TrainState({"base": base, "a": small}, {"mu": small / 7}, jnp.int32(3))
    with Writer(tmp_path, CheckpointConfig(), print) as writer:
        writer.save(3, made, {})
        writer.wait()
    shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, made)
    read = checkpoint.restore(tmp_path, 3, shapes).state
    assert jax.tree.map(lambda x: x.dtype, read) == jax.tree.map(lambda x: x.dtype, made)
    assert equal(read, made)


def test_kept_by_hand():
    scores = {10: 0.9, 20: None, 30: 0.2, 40: 0.9, 50: 0.1, 60: None}
    assert kept_steps(scores, CheckpointConfig(keep=1)) == {60}
    assert kept_steps(scores, CheckpointConfig(keep=2, keep_every=30)) == {30, 50, 60}
    assert kept_steps(scores, CheckpointConfig(keep=1, keep_best=1)) == {40, 60}  # the later
    assert kept_steps(scores, CheckpointConfig(keep=1, keep_best=3)) == {10, 30, 40, 60}


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_counts_as_none(odd):
    scores = {1: 0.9, 2: odd, 3: 0.5, 4: 0.4}
    assert kept_steps(scores, CheckpointConfig(keep=1, keep_best=1)) == {1, 4}
    assert kept_steps(scores, CheckpointConfig(keep=1, keep_best=4)) == {1, 3, 4}


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(st.integers(0, 99), st.none() | st.floats(-1, 1), min_size=1),
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(0, 3),
)
def test_the_newest_is_always_kept(scores, keep, every, best):
    config = CheckpointConfig(keep=keep, keep_every=every, keep_best=best)
    left = kept_steps(scores, config)
    assert max(scores) in left and left <= scores.keys()
    assert kept_steps({s: scores[s] for s in left}, config) == left  # nothing flaps


def test_retention_on_disk(tmp_path):
    config = CheckpointConfig(keep=1, keep_best=1)
    with Writer(tmp_path, config, print) as writer:
        for step, score in ((1, 0.5), (2, 0.8), (3, 0.1)):
            writer.save(step, state(step), {}, score)
            writer.wait()
        assert checkpoint.steps(tmp_path) == [2, 3]
        checkpoint.pin(tmp_path, 3)
        writer.save(4, state(4), {}, 0.9)
        writer.wait()
    assert checkpoint.steps(tmp_path) == [3, 4]
    assert equal(checkpoint.restore_params(tmp_path, like().params)[0], state(4).params)


def test_reference(tmp_path):
    assert references.load(tmp_path, like().params, 9) is None
    references.save(tmp_path, state(1).params)
    references.save(tmp_path, state(2).params)
    assert equal(references.load(tmp_path, like().params, 9), state(2).params)
    damage(tmp_path / "references" / "00000000" / "_METADATA", FAULTS[1])
    with pytest.raises(ValueError, match="_METADATA: its SHA-256"):
        references.load(tmp_path, like().params, 9)
