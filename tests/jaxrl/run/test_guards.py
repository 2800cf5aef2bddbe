"""Guards: when they trip, what becomes of the state, the record they keep, and its replay."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.config import GuardConfig
from jaxrl.launch.inspect import replay
from jaxrl.record import checkpoint, jsonl, metrics
from jaxrl.run import context, guards, loop
from jaxrl.run.guards import Trip
from jaxrl.types import TrainState, Trajectory
from tests.jaxrl import tiny

ON = GuardConfig(
    non_finite="warn", ratio="skip", kl="skip", entropy="rollback", zero_signal="stop",
    reward_errors="warn", max_log_ratio=2.0, max_kl=0.5, min_entropy=0.1, max_error_rate=0.25,
)  # fmt: skip
CALM = {
    "loss": 0.1, "grad_norm": 1.0, "logp_gap_max": 2.0, "kl": 0.5, "entropy": 0.1,
    "advantage_abs": 1e-9, "error_rate": 0.25,
}  # fmt: skip
"""Every metric at the last value that is let pass."""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, set()),
        ({"loss": np.nan}, {"non_finite"}),
        ({"grad_norm": np.inf}, {"non_finite"}),
        ({"logp_gap_max": 2.001}, {"ratio"}),
        ({"kl": 0.501}, {"kl"}),
        ({"entropy": 0.099}, {"entropy"}),
        ({"advantage_abs": 0.0}, {"zero_signal"}),
        ({"error_rate": 0.26}, {"reward_errors"}),
        ({"entropy": 0.0, "advantage_abs": 0.0}, {"entropy", "zero_signal"}),
    ],
)
def test_limits(change, expected):
    metrics = {name: jnp.float32(value) for name, value in (CALM | change).items()}
    found = guards.tripped(ON, metrics)
    assert {name for name, value in found.items() if value} == expected


def test_guards_that_are_off_or_have_nothing_to_measure_are_left_out():
    metrics = {name: jnp.float32(value) for name, value in CALM.items() if name != "kl"}
    found = guards.tripped(GuardConfig(non_finite="off"), metrics)
    assert found.keys() == {"ratio", "reward_errors"}


def batch(valid):
    n = len(valid)
    zeros = np.zeros((n, 2), np.float32)
    return Trajectory(
        tokens=zeros.astype(np.int32),
        action_mask=zeros == 0,
        behavior_logp=zeros,
        policy_version=zeros.astype(np.int32),
        rewards=zeros[:, 0],
        valid=np.array(valid),
        group_ids=np.arange(n, dtype=np.int32),
    )


def fake_update(state, trajectory, packed, ref_logp):
    """Adds one to everything; its metrics are read off the parameters."""
    new = TrainState(
        jax.tree.map(lambda x: x + 1, state.params), state.opt_state + 1, state.step + 1
    )
    fixed = {name: jnp.float32(value) for name, value in CALM.items() if name != "error_rate"}
    return new, fixed | {"logp_gap_max": state.params["w"][0], "skipped": jnp.float32(0)}


@pytest.mark.exact("a refused update leaves parameters and moments as they were")
@pytest.mark.parametrize(
    ("gap", "valid", "applied", "named"),
    [
        (1.0, [True] * 4, True, []),
        (3.0, [True] * 4, False, [Trip("ratio", "skip")]),
        (1.0, [True, True, False, False], True, [Trip("reward_errors", "warn")]),
        (3.0, [False] * 4, False, [Trip("ratio", "skip"), Trip("reward_errors", "warn")]),
    ],
)
def test_a_refused_update_leaves_the_state(gap, valid, applied, named):
    """A warning applies it, any other action does not; the step counts either way."""
    state = TrainState({"w": jnp.full(2, gap)}, jnp.float32(5), jnp.int32(7))
    new, metrics = guards.guarded(fake_update, ON)(state, batch(valid), None, None)
    assert new.params["w"].tolist() == [gap + applied] * 2
    assert (float(new.opt_state), int(new.step)) == (5 + applied, 8)
    metrics = {name: float(value) for name, value in metrics.items()}
    assert metrics["skipped"] == (not applied)
    assert guards.trips(ON, metrics) == named


BAD = {
    "non_finite": {"loss": np.nan}, "ratio": {"logp_gap_max": 2.1}, "kl": {"kl": 0.6},
    "entropy": {"entropy": 0.05}, "zero_signal": {"advantage_abs": 0.0}, "reward_errors": {},
}  # fmt: skip


@pytest.mark.parametrize("action", guards.SEVERITY)
@pytest.mark.parametrize("guard", BAD)
def test_every_guard_with_every_action(guard, action):
    """Only what is off or a warning lets the update through; what follows is what was asked for."""
    off = dict.fromkeys(BAD, "off")
    config = dataclasses.replace(ON, **off | {guard: action})

    def update(state, trajectory, packed, ref_logp):
        fixed = {n: jnp.float32(v) for n, v in (CALM | BAD[guard]).items() if n != "error_rate"}
        return state.replace(params=state.params + 1, step=state.step + 1), fixed | {
            "skipped": jnp.float32(0)
        }

    failed = batch([guard != "reward_errors"] * 4)
    state = TrainState(jnp.float32(0), {}, jnp.int32(7))
    new, metrics = guards.guarded(update, config)(state, failed, None, None)
    assert (float(new.params), int(new.step)) == (action in ("off", "warn"), 8)
    found = guards.trips(config, {name: float(value) for name, value in metrics.items()})
    assert found == ([] if action == "off" else [Trip(guard, action)])
    assert guards.decide(config, found, 0) == action


def test_decide():
    """The most severe action counts; one rollback too many is a stop."""
    rollback, skip = Trip("entropy", "rollback"), Trip("kl", "skip")
    assert guards.decide(ON, [], 9) == "off"
    assert guards.decide(ON, [skip], 9) == "skip"
    assert guards.decide(ON, [rollback, skip], 2) == "rollback"
    assert guards.decide(ON, [rollback, skip], 3) == "stop"


def test_records_are_few_and_readable(tmp_path):
    for step in range(1, 15):
        guards.record(tmp_path, step, [Trip("kl", "warn")], batch([True]), {"kl": 9.0})
    assert len(list((tmp_path / "spikes").iterdir())) == 10
    kept = np.load(tmp_path / "spikes" / "00000003" / "batch.npz")
    assert kept.keys() >= {f.name for f in dataclasses.fields(Trajectory) if f.name == "tokens"}
    assert json.loads((tmp_path / "spikes" / "00000003" / "spike.json").read_text()) == {
        "step": 3,
        "trips": [{"guard": "kl", "action": "warn"}],
        "metrics": {"kl": 9.0},
    }


def run(directory, **changes):
    """A run whose every reward is 0, as its model knows nothing."""
    notes = []
    config = tiny.config(
        directory, **{"warm_start.steps": 0, "eval.every": 0, "steps": 3, **changes}
    )
    try:
        return loop.train(config, loop.Callbacks(note=notes.append)), notes
    except guards.Stopped as stopped:
        return str(stopped), notes


@pytest.mark.broad
def test_rollback_then_stop_then_replay(tmp_path):
    """Back to step 0 with other prompts; the next time it ends, and the spike is replayed."""
    said, notes = run(
        tmp_path,
        **{"guard.zero_signal": "rollback", "guard.max_rollbacks": 1, "checkpoint.keep": 1},
    )
    assert "rolled back from step 1 to 0, on with other prompts" in notes
    assert "step 1 tripped zero_signal, and the run stops" in said
    assert (tmp_path / "spikes" / "00000001" / "batch.npz").exists()
    assert (checkpoint.path(tmp_path, 0) / "pinned").exists()
    replayed = replay.replay(tmp_path, 1)
    assert replayed.computed["guard/zero_signal"] == 1.0 and replayed.differs == {}


@pytest.fixture
def trips_at_step_3(monkeypatch):
    """Guard `kl` trips, on the device, at the third update."""
    make = context.make_update

    def numbered(*args, **kwargs):
        update = make(*args, **kwargs)

        def run(state, *rest):
            at = state.step
            state, measured = update(state, *rest)
            return state, measured | {"at": at}

        return run

    monkeypatch.setattr(context, "make_update", numbered)
    monkeypatch.setattr(guards, "tripped", lambda config, measured: {"kl": measured["at"] == 2})


LEARNS = {
    "optimizer.schedule": "linear",
    "objective.policy": "reinforce",
    "objective.advantage_args": {"baseline": "none", "scale": "none"},
    "objective.shaping": "tests.jaxrl.run.test_guards:ones",
    "steps": 4,
}


def ones(rewards):
    """Every completion is worth 1, so that each update changes the policy."""
    return jnp.ones_like(rewards)


@pytest.mark.exact("a run that a guard stops is saved as it was before the bad update")
@pytest.mark.broad
@pytest.mark.optimized
def test_a_stop_saves_the_state_before_the_bad_update(tmp_path, trips_at_step_3):
    """Which no step of `checkpoint.every` would have saved."""
    run(tmp_path / "straight", **LEARNS, **{"guard.kl": "warn", "checkpoint.keep": 9})
    said, _ = run(tmp_path / "stopped", **LEARNS, **{"guard.kl": "stop", "checkpoint.every": 9})
    assert "step 3 tripped kl, and the run stops" in said
    assert checkpoint.steps(tmp_path / "stopped") == [0, 2]
    straight, stopped = (checkpoint.path(tmp_path / name, 2) for name in ("straight", "stopped"))
    assert tiny.arrays(stopped) == tiny.arrays(straight)
    run(tmp_path / "stopped", **LEARNS, **{"guard.kl": "warn", "checkpoint.every": 9})
    assert tiny.artefacts(tmp_path / "stopped") == tiny.artefacts(tmp_path / "straight")


@pytest.mark.broad
def test_the_rate_in_the_log_is_that_of_the_last_update_applied(tmp_path, trips_at_step_3):
    """A linear schedule from 0.001 to 0 over 4 updates, of which the third is skipped."""
    run(tmp_path, **LEARNS, **{"guard.kl": "skip"})
    rows = metrics.read(tmp_path)
    assert [row["skipped"] for row in rows] == [0, 0, 1, 0]
    rates = [1e-3 * part for part in (1, 0.75, 0.75, 0.5)]
    np.testing.assert_allclose([row["learning_rate"] for row in rows], rates, rtol=1e-6)


@pytest.mark.broad
def test_rollback_discards_unfinished_groups(tmp_path, monkeypatch):
    """Of partial rollouts no token is left that a later policy than the restored one sampled."""
    calls = itertools.count()
    monkeypatch.setattr(
        guards, "trips", lambda *_: [Trip("kl", "rollback")] if next(calls) == 2 else []
    )
    _, notes = run(tmp_path, **{"rollout.in_flight": 1.5, "checkpoint.every": 9})
    assert "rolled back from step 3 to 0, on with other prompts" in notes
    for step in (1, 2, 3):
        rows = list(jsonl.read(tmp_path / "rollouts" / f"{step:06d}.jsonl"))
        assert len(rows) == 16 and max(v for row in rows for v in row["version"]) < step


@pytest.mark.broad
def test_rollback_to_the_start_empties_what_extensions_keep(tmp_path, monkeypatch):
    """Of the abandoned steps no group stays in the buffer: it would be of a later policy."""
    calls = itertools.count()
    monkeypatch.setattr(
        guards, "trips", lambda *_: [Trip("kl", "rollback")] if next(calls) == 1 else []
    )
    _, notes = run(tmp_path, **{"replay.groups": 2, "checkpoint.every": 9, "steps": 2})
    assert "rolled back from step 2 to 0, on with other prompts" in notes
    host = json.loads((checkpoint.path(tmp_path, 2) / "host.json").read_text())
    assert len(host["extensions"]["replay"]) == 2 * 4  # steps of 4 groups


@pytest.mark.exact("a replayed step gives the recorded figures to the last bit")
def test_replay_recomputes_a_step_exactly(tmp_path):
    summary, _ = run(tmp_path, **{"guard.zero_signal": "skip"})
    assert summary["steps"] == 3 and checkpoint.steps(tmp_path) == [0, 2, 3]
    replayed = replay.replay(tmp_path, 2)
    assert replayed.start == 0 and len(replayed.computed) > 20
    assert replayed.computed["skipped"] == 1.0
    assert replayed.differs == {}
    with pytest.raises(ValueError, match=r"step=4: .* has recorded steps 1 to 3"):
        replay.replay(tmp_path, 4)
