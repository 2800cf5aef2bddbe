"""Asynchronous runs: equal to the synchronous run at staleness 0, replayed and resumed exactly."""

import json
import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxrl.config import AsynchronousConfig
from jaxrl.launch.inspect import replay
from jaxrl.record import jsonl, metrics
from jaxrl.rollout import asynchronous as rollout
from jaxrl.rollout.asynchronous import Live
from jaxrl.rollout.flight import Weights
from jaxrl.run import assemble, asynchronous, loop
from tests.jaxrl import tiny
from tests.jaxrl.run.test_episodes import PLAYED

COIN = "tests.digests:coin"  # half of the wrong answers count as right: there is a gradient
SHORT = {
    "steps": 3, "warm_start.steps": 0, "eval.every": 0, "eval.problems": 2, "checkpoint.every": 1,
    "checkpoint.keep": 9, "sampler.chunk": 1, "optimizer.learning_rate": 1e-2, "task": COIN,
}  # fmt: skip
KINDS = {
    "sync": {},
    "zero": {"asynchronous.staleness": 0, "asynchronous.schedule": "lockstep:3"},
    "zero live": {"asynchronous.staleness": 0},
    "lockstep": {"asynchronous.staleness": 2, "asynchronous.schedule": "lockstep:2"},
    "live": {"asynchronous.staleness": 2},
    "finished": {
        "asynchronous.staleness": 1,
        "asynchronous.schedule": "lockstep:1",
        "asynchronous.order": "finished",
        "objective.policy": "a3po",
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`name -> directory` of a whole run; each is made once."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("asynchronous") / "run"
            loop.train(tiny.config(made[name], **SHORT | KINDS[name]))
        return made[name]

    return of


STAGED = {
    "stages": {
        1: {"objective.policy": "reinforce", "rollout.group_size": 2, "task_args.digits": 2},
        2: {"rollout.temperature": 0.7},
    },
}
ALTERNATING = {
    "stages": {
        1: {"objective.policy": "reinforce", "period": 2},
        2: {"objective.policy": "a3po", "period": 2},
    },
}


@pytest.mark.sample(0, broad=1)
@pytest.mark.exact("staleness 0 in stages is the synchronous run in these stages, bit for bit")
@pytest.mark.parametrize("kind", ["zero", "zero live"])
def test_stages_of_staleness_0_are_those_of_the_synchronous_run(kind, tmp_path):
    for name, fields in (("sync", {}), ("async", KINDS[kind])):
        loop.train(tiny.config(tmp_path / name, **SHORT | STAGED | fields))
    assert trained(tmp_path / "async") == trained(tmp_path / "sync")


@pytest.mark.broad
@pytest.mark.exact("stages of the objective go on with the groups in flight, and resume exactly")
def test_a_stale_run_whose_objective_alternates_resumes_exactly(tmp_path):
    changes = SHORT | ALTERNATING | KINDS["lockstep"] | {"steps": 4}
    loop.train(tiny.config(tmp_path / "straight", **changes))
    for cut in (1, 2):
        with pytest.raises(InterruptedError):
            loop.train(tiny.config(tmp_path / "cut", **changes), stopping_at(cut))
    loop.train(tiny.config(tmp_path / "cut", **changes))
    assert trained(tmp_path / "cut") == trained(tmp_path / "straight")
    rows = metrics.read(tmp_path / "straight")
    assert max(row["lag/max"] for row in rows) > 0
    prompts = [row["problem"] for name in ("cut", "straight") for row in admitted(tmp_path / name)]
    assert prompts[: len(prompts) // 2] == prompts[len(prompts) // 2 :]


@pytest.mark.sample(0, broad=1)
@pytest.mark.exact("a live run that replaces groups of equal rewards is repeated by its replay")
@pytest.mark.parametrize("staleness", [0, 1])
def test_groups_of_equal_rewards_are_replaced_within_the_budget(staleness, tmp_path):
    changes = SHORT | {"rollout.oversampling": 2.0, "rollout.group_size": 2}
    live = {"asynchronous.staleness": staleness}
    loop.train(tiny.config(tmp_path / "live", **changes | live))
    record = {"asynchronous.schedule": f"recorded:{tmp_path / 'live'}"}
    loop.train(tiny.config(tmp_path / "replay", **changes | live | record))
    assert trained(tmp_path / "replay") == trained(tmp_path / "live")
    rows, replaced = list(jsonl.read(tmp_path / "live" / asynchronous.FILE)), 0
    for row in rows:
        replaced += len(row.get("drop", []))
        if "train" in row:
            assert replaced <= 4 + len(row.get("drop", []))
            replaced = 0
    assert any("drop" in row for row in rows)
    numbers = [n for row in rows for name in ("drop", "train") for n in row.get(name, [])]
    assert len(set(numbers)) == len(numbers)
    assert max(row["lag/max"] for row in metrics.read(tmp_path / "live")) <= staleness


@pytest.mark.broad
@pytest.mark.exact("a lockstep run that replaces groups resumes within its budget, bit for bit")
def test_a_run_that_replaces_groups_resumes_exactly(tmp_path):
    changes = SHORT | {"rollout.oversampling": 1.5, "rollout.group_size": 2} | KINDS["lockstep"]
    loop.train(tiny.config(tmp_path / "straight", **changes))
    for cut in (1, 2):
        with pytest.raises(InterruptedError):
            loop.train(tiny.config(tmp_path / "cut", **changes), stopping_at(cut))
    loop.train(tiny.config(tmp_path / "cut", **changes))
    assert trained(tmp_path / "cut") == trained(tmp_path / "straight")
    assert schedule(tmp_path / "cut") == schedule(tmp_path / "straight")


@pytest.mark.broad
def test_replies_may_arrive_one_by_one_at_staleness_0(tmp_path):
    """With a score of its own chunk each, the schedule differs; what is trained on does not."""
    changes = SHORT | {"rollout.replies": "arrival"}
    for name in ("zero", "zero live"):
        loop.train(tiny.config(tmp_path / name, **changes | KINDS[name]))
    assert trained(tmp_path / "zero") == trained(tmp_path / "zero live")


def stopping_at(step):
    def on_step(done, values):
        if done == step:
            raise InterruptedError

    return loop.Callbacks(step=on_step)


def admitted(directory):
    """Rows of the rollouts that each step trained on."""
    for path in sorted((directory / "rollouts").glob("*.jsonl")):
        yield from map(json.loads, path.open())


def trained(directory):
    """Everything that training made of a run, but for the state of an asynchronous one."""
    found = tiny.artefacts(directory)
    texts = {k: v for k, v in found["texts"].items() if k.startswith("rollouts")}
    return found["arrays"], texts, found["rows"]


def problems(directory):
    """Problems in the order in which they were trained on, step by step."""
    return [row["problems"] for row in jsonl.read(directory / "history.jsonl")]


def schedule(directory):
    """What was decided, without the clock."""
    rows = jsonl.read(directory / asynchronous.FILE)
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.mark.sample(1, broad=1)
@pytest.mark.exact("staleness 0 is the synchronous run, bit for bit")
@pytest.mark.parametrize("kind", ["zero", "zero live"])
def test_staleness_0_is_the_synchronous_run(run, kind):
    assert trained(run(kind)) == trained(run("sync"))
    assert all(row["lag/max"] == 0 for row in metrics.read(run(kind)))
    assert not (run("sync") / asynchronous.FILE).exists()


@pytest.mark.sample(1, broad=1)
@pytest.mark.parametrize(
    "kind", ["lockstep", "live", pytest.param("finished", marks=pytest.mark.slow)]
)
def test_lag_is_bounded_and_every_prompt_is_trained_on_once(run, kind):
    rows = list(metrics.read(run(kind)))
    bound = KINDS[kind]["asynchronous.staleness"]
    assert 0 < max(row["lag/max"] for row in rows) <= bound
    assert all(row["grad_norm"] > 0 for row in rows)
    assert rows[0]["ess"] == pytest.approx(1, abs=1e-6) and rows[-1]["ess"] < 1
    assert all(0 <= row[f"idle/{who}"] <= 1 for row in rows for who in ("sample", "train"))
    assert ("length_bias" in rows[0]) == (kind == "finished")
    if kind != "finished":
        assert problems(run(kind)) == problems(run("sync"))
    taken = [number for row in schedule(run(kind)) for number in row.get("train", [])]
    assert len(taken) == len(set(taken)) == 12


@pytest.mark.broad
@pytest.mark.exact("a replay of an asynchronous run is that run, bit for bit")
def test_a_replay_is_the_live_run(run, tmp_path):
    live, again = run("live"), tmp_path / "again"
    changes = {"asynchronous.staleness": 2, "asynchronous.schedule": f"recorded:{live}"}
    loop.train(tiny.config(again, **SHORT | changes))
    assert trained(again) == trained(live)
    assert schedule(again) == schedule(live)


@pytest.mark.exact("a step of an asynchronous run is recomputed from its checkpoint, bit for bit")
def test_a_step_of_a_live_run_is_recomputed(run):
    found = replay.replay(run("live"), 3, trust=True)
    assert found.start == 2 and found.differs == {} and found.computed["lag/max"] > 0


def test_a_replay_of_another_run_is_refused(run, tmp_path):
    live, other = run("live"), tmp_path / "other"
    changes = {
        "asynchronous.staleness": 1,
        "asynchronous.schedule": f"recorded:{live}",
        "rollout.prompts": 2,
    }
    with pytest.raises(RuntimeError, match=r"step 1, chunk 0: admit was .* another config"):
        loop.train(tiny.config(other, **SHORT | changes))


@pytest.mark.exact(
    "a lockstep run continues from its checkpoint with its groups in progress, bit for bit"
)
def test_a_lockstep_run_resumes_exactly(run, tmp_path):
    directory = tmp_path / "run"
    settings = SHORT | KINDS["lockstep"]
    loop.train(tiny.config(directory, **settings | {"steps": 2}))
    loop.train(tiny.config(directory, **settings))
    whole = run("lockstep")
    assert tiny.artefacts(directory)["arrays"] == tiny.artefacts(whole)["arrays"]
    last = "rollouts/000003.jsonl"
    assert (directory / last).read_text() == (whole / last).read_text()
    assert schedule(directory) == schedule(whole)


@pytest.mark.broad
def test_a_live_run_resumes_with_its_flight_and_repeats_no_prompt(run, tmp_path):
    directory = tmp_path / "run"
    settings = SHORT | KINDS["live"]
    loop.train(tiny.config(directory, **settings | {"steps": 1}))
    saved = json.loads((directory / "checkpoints/00000001/host.json").read_text())["rollouts"]
    in_progress = [number for number, _, _ in saved["schedule"]["groups"]]
    assert in_progress and len(in_progress) == len(saved["open_groups"]["groups"])
    loop.train(tiny.config(directory, **settings))
    assert problems(directory) == problems(run("sync"))
    taken = [row["train"] for row in schedule(directory) if "train" in row]
    assert set(in_progress) & set(taken[1])
    assert max(row["lag/max"] for row in metrics.read(directory)) <= 2


@pytest.mark.broad
@pytest.mark.exact(
    "episodes: staleness 0 is the synchronous run, and a lockstep run resumes exactly"
)
def test_episodes_in_asynchronous_runs(tmp_path):
    played = PLAYED | {"rollout.in_flight": 1.0, "steps": 2, "eval.problems": 2}
    lockstep = KINDS["lockstep"] | {"sampler.chunk": 1}
    for name, more in {
        "sync": {},
        "zero": KINDS["zero"],
        "lockstep": lockstep,
        "resumed": lockstep | {"steps": 1},
    }.items():
        loop.train(tiny.config(tmp_path / name, **played | more))
    loop.train(tiny.config(tmp_path / "resumed", **played | lockstep))
    assert trained(tmp_path / "zero") == trained(tmp_path / "sync")
    assert trained(tmp_path / "resumed") == trained(tmp_path / "lockstep")
    rows = list(metrics.read(tmp_path / "lockstep"))
    assert rows[0]["logp_gap_max"] < 1e-4 and 0 < max(row["lag/max"] for row in rows) <= 2


@pytest.mark.broad
@pytest.mark.exact("an asynchronous run on two meshes is repeated by its replay, bit for bit")
def test_a_replay_on_two_meshes_is_the_live_run(tmp_path):
    changes = SHORT | {"steps": 2, "sampling.devices": 1, "asynchronous.staleness": 2}
    live, again = tmp_path / "live", tmp_path / "again"
    tiny.finish(tiny.start(live, devices=2, **changes))
    recorded = {"asynchronous.schedule": f"recorded:{live}"}
    tiny.finish(tiny.start(again, devices=2, **changes | recorded))
    assert trained(again) == trained(live) and schedule(again) == schedule(live)
    assert max(row["lag/max"] for row in metrics.read(live)) > 0


@pytest.mark.broad
@pytest.mark.exact(
    "a lockstep run killed with groups in progress equals an uninterrupted one, bit for bit"
)
def test_a_killed_lockstep_run_continues_exactly(run, tmp_path):
    killed, changes = tmp_path / "killed", SHORT | KINDS["lockstep"]
    assert tiny.kill_at(tiny.start(killed, **changes), "train 2")
    tiny.finish(tiny.start(killed, **changes))
    straight = run("lockstep")
    assert trained(killed) == trained(straight) and schedule(killed) == schedule(straight)


WEIGHTS = Weights({}, None, 0, 0)
MESH = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))


class Broken:
    """A sampler whose chunks last as long as a test says."""

    def __init__(self, chunk):
        self.chunk, self.batch, self.together = chunk, None, False
        self.drive, self.unanswered = SimpleNamespace(pending={}, work=True, ready=list), list
        self.between = lambda due: {}
        self.start = self.stop = lambda *weights: None


def test_an_error_of_the_sampling_thread_reaches_who_waits_for_it():
    def chunk():
        raise OSError("no more memory")

    live = Live(Broken(chunk), MESH, 0.0)
    with pytest.raises(OSError, match="no more memory"):
        live.step(WEIGHTS)
    live.halt()
    assert not [thread for thread in threading.enumerate() if thread.name == "sampling"]


def test_waiting_for_a_stuck_sampler_ends(monkeypatch):
    monkeypatch.setattr(rollout, "_POLL_S", 0.02)
    gone = threading.Event()
    live = Live(Broken(gone.wait), MESH, 0.05)
    with pytest.raises(RuntimeError, match=r"step 1: .* no chunk .* guard.stall_seconds=0.05"):
        live.step(WEIGHTS)
    gone.set()
    live.halt()


def test_halting_a_sampler_that_stands_still_has_an_end(monkeypatch):
    monkeypatch.setattr(rollout, "_POLL_S", 0.02)
    gone = threading.Event()
    broken = Broken(gone.wait)
    broken.batch, broken.between = "batch", lambda due: {"train": []}
    live = Live(broken, MESH, 0.05)
    assert live.step(WEIGHTS) == "batch"
    with pytest.raises(RuntimeError, match=r"the chunk under way: .* guard.stall_seconds=0.05"):
        live.halt()
    live.halt()  # which does not wait for it again
    gone.set()


REFUSED = {
    "schedule": ({"schedule": "often"}, "asynchronous.schedule='often' is unknown; use live"),
    "lockstep": ({"schedule": "lockstep"}, "lockstep:K with K of 0 or more"),
    "record": ({"schedule": "recorded:/nowhere"}, "has no schedule.jsonl"),
    "staleness": ({"staleness": -1}, "asynchronous.staleness=-1"),
    "in flight": ({"in_flight": 1}, "asynchronous.in_flight=1"),
    "nothing": ({"staleness": None, "order": "finished"}, "without asynchronous.staleness"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_cannot_work_are_refused(case, tmp_path):
    fields, words = REFUSED[case]
    changes = {f"asynchronous.{k}": v for k, v in ({"staleness": 1} | fields).items()}
    with pytest.raises(ValueError, match=words):
        asynchronous.check(tiny.config(tmp_path, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout.in_flight": 2.0},
        {"rollout.rounds": "adaptive", "rollout.oversampling": 2.0},
        {"stages": {1: {"rollout.group_size": 2}}},
    ],
    ids=str,
)
def test_what_asynchrony_does_not_go_with_is_refused(changes, tmp_path):
    with pytest.raises(
        ValueError, match=f"with .*{next(iter(changes))}.*: they do not go together"
    ):
        assemble.assemble(tiny.config(tmp_path, **{"asynchronous.staleness": 1} | changes))


def test_a_run_is_synchronous_by_default(tmp_path):
    config = tiny.config(tmp_path)
    assert config.asynchronous == AsynchronousConfig() and config.asynchronous.staleness is None
    asynchronous.check(config)
