"""Runs that learn from the rows of a file: figures, order, exact continuation, refusals."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.extensions import label_smoothing, mismatched
from jaxrl.record import checkpoint, metrics
from jaxrl.rollout import files as files_of_rows
from jaxrl.rollout import policy, written
from jaxrl.run import assemble, loop
from jaxrl.training import packing
from jaxrl.types import Completion, Request
from tests.jaxrl import tiny

SFT = {
    "data.kinds": ["completion"],
    "objective.policy": "sft",
    "objective.advantage_args": {"baseline": "none", "scale": "none"},
}
DPO = SFT | {
    "data.kinds": ["preference"],
    "objective.policy": "pair_dpo",
    "objective.aggregation": "seq-mean-token-mean",
}
CACHED = {"data.cache_reference": True, "objective.kl_coef": 0.1}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Sums of one digit: answers, and the right answer against nine."""
    folder = tmp_path_factory.mktemp("rows")
    sums = [(a, b) for a in range(5) for b in range(5)]
    answers = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in sums]
    pairs = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": "9"} for a, b in sums]
    for name, records in (("completion", answers), ("preference", pairs)):
        lines = "".join(f"{json.dumps(record)}\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines)
    return folder


def changes(files, method, **more):
    """A method's settings, on the file of its kind."""
    return method | {
        "task": "",
        "data.path": str(files / f"{method['data.kinds'][0]}.jsonl"),
        "data.eval_share": 0.2,
        "data.batch_size": 4,
        "warm_start.steps": 0,
        "optimizer.learning_rate": 1e-2,
        **more,
    }


@pytest.fixture(scope="module")
def straight(files, tmp_path_factory):
    """An uninterrupted run of DPO."""
    directory = tmp_path_factory.mktemp("straight") / "run"
    tiny.run(directory, **changes(files, DPO))
    return directory


def test_figures_of_a_run(straight):
    """Held-out loss and accuracy before and after; rows are counted by epochs."""
    found = json.loads((straight / "summary.json").read_text())["eval"]
    assert found["before"]["loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert found["after"]["loss"] < found["before"]["loss"]
    assert found["before"]["rows"] == 5 and 0 <= found["after"]["accuracy"] <= 1.0001
    rows = metrics.read(straight)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[-1]["epoch"] == pytest.approx(24 / 20)
    assert all(row["logp_gap_max"] == 0 and row["skipped"] == 0 for row in rows)


@pytest.mark.exact(
    "a run that learns from a file, killed and continued, equals an uninterrupted one"
)
@pytest.mark.broad
@pytest.mark.optimized
def test_killed_and_continued_equals_straight(straight, files, tmp_path):
    every = changes(files, DPO, **{"checkpoint.every": 1})
    assert tiny.kill_at(tiny.start(tmp_path, **every), "train 3"), "over before it was killed"
    assert "continuing" in tiny.finish(tiny.start(tmp_path, **every))
    assert tiny.artefacts(tmp_path) == tiny.artefacts(straight)


@pytest.mark.exact(
    "a run that learns from a file, killed and continued, equals an uninterrupted one"
)
@pytest.mark.slow
@pytest.mark.parametrize("lora", [0, 4])
def test_fine_tuning_killed_and_continued_equals_straight(lora, files, tmp_path):
    every = changes(files, SFT, **{"checkpoint.every": 1, "lora.rank": lora})
    tiny.finish(tiny.start(tmp_path / "straight", **every))
    for line in ("train 1", "train 4"):
        assert tiny.kill_at(tiny.start(tmp_path / "killed", **every), line)
    tiny.finish(tiny.start(tmp_path / "killed", **every))
    assert tiny.artefacts(tmp_path / "killed") == tiny.artefacts(tmp_path / "straight")


@pytest.mark.exact("a run that learns from a file has on eight devices the loss of one, to 1e-4")
@pytest.mark.slow
def test_eight_devices_learn_the_same(straight, files, tmp_path):
    mesh = {"mesh.fsdp": 4, "mesh.tensor": 2}
    tiny.finish(tiny.start(tmp_path, devices=8, **changes(files, DPO, **mesh)))
    one, eight = (metrics.read(run)[-1]["loss"] for run in (straight, tmp_path))
    assert one == pytest.approx(eight, abs=1e-4)


def test_a_cached_reference_gives_the_same_run(straight, files, tmp_path):
    """All rows are scored once, and no copy of the policy is kept; packing rounds otherwise."""
    tiny.run(tmp_path, **changes(files, DPO, **{"data.cache_reference": True}))
    for field in ("loss", "grad_norm", "margin"):
        both = ([row[field] for row in metrics.read(run)] for run in (straight, tmp_path))
        np.testing.assert_allclose(*both, rtol=1e-3, atol=1e-5)
    one, two = (json.loads((run / "summary.json").read_text()) for run in (straight, tmp_path))
    assert two["eval"]["after"]["loss"] == pytest.approx(one["eval"]["after"]["loss"], abs=1e-4)
    assert not (tmp_path / "references").exists() and (straight / "references").exists()


@pytest.mark.exact(
    "a run that learns from a file, killed and continued, equals an uninterrupted one"
)
@pytest.mark.slow
def test_a_cached_reference_is_read_back(files, tmp_path):
    every = changes(files, DPO, **{"checkpoint.every": 1, "data.cache_reference": True})
    tiny.finish(tiny.start(tmp_path / "straight", **every))
    assert tiny.kill_at(tiny.start(tmp_path / "killed", **every), "train 2")
    tiny.finish(tiny.start(tmp_path / "killed", **every))
    assert tiny.artefacts(tmp_path / "killed") == tiny.artefacts(tmp_path / "straight")


@pytest.mark.broad
@pytest.mark.parametrize("to_file", [False, True])
def test_a_fork_may_learn_from_a_file_where_the_other_sampled(to_file, files, tmp_path):
    """Or the other way; it is measured by its own figures."""
    text = policy.alphabet(tiny.config("unused"))  # so that both have one vocabulary
    rows = [{"prompt": f"{text}{i}", "completion": text} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    of_file = changes(files, SFT, steps=2, **{"data.path": str(tmp_path / "rows.jsonl")})
    settings = [{"warm_start.steps": 0, "steps": 2}, of_file]
    first, second = settings if to_file else settings[::-1]
    tiny.run(tmp_path / "one", **first)
    tiny.run(tmp_path / "two", **second | {"steps": 3, "fork": str(tmp_path / "one")})
    found = json.loads((tmp_path / "two/summary.json").read_text())["eval"]
    name = "loss" if to_file else "pass@1"
    assert name in found["before"] and name in found["after"]


@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize("objective", ["ppo_clip", "decoupled_ppo"])
def test_rows_are_taken_as_sampled_by_the_policy_before_the_update(objective, files, tmp_path):
    """So ratios are 1 in the first update, and where held-out rows are measured."""
    tiny.run(tmp_path, **changes(files, SFT, **{"objective.policy": objective}))
    found = json.loads((tmp_path / "summary.json").read_text())["eval"]
    for figures in (found["before"], metrics.read(tmp_path)[0], found["after"]):
        assert figures["loss"] == pytest.approx(-1, abs=1e-5)


def test_rows_come_in_a_new_order_each_epoch_and_each_once(files, tmp_path):
    from jaxrl.run import offline

    config = tiny.config(tmp_path, **changes(files, SFT, **{"data.batch_size": 10}))
    origin, actor, _ = assemble.assemble(config)
    assert origin.figure == "loss" and origin.held_out == "5 held-out rows"
    found = files_of_rows.read(config.data, config.data.path)
    made = offline.open_rows(config, actor, found, range(20))
    drawn = [made.step(None, 0, loop.Timer())[0].problems for _ in range(4)]
    epochs = [[p.id for p in (*drawn[i], *drawn[i + 1])] for i in (0, 2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) and len(set(epochs[0])) == 20
    assert epochs[0] != epochs[1]
    again = offline.open_rows(config, actor, found, range(20))
    again.set_state({"position": 20, "rows": found.fingerprint})
    assert [p.id for p in again.step(None, 0, loop.Timer())[0].problems] == epochs[1][:10]
    with pytest.warns(UserWarning, match="have changed since"):
        again.set_state({"position": 20, "rows": "other"})


def test_long_texts_become_several_rows(tmp_path):
    """An epoch has every token of every text once; a position may lie inside a text."""
    from jaxrl.run import offline

    path = tmp_path / "texts.jsonl"
    texts = ["0123456789" * 2, "1+1=2", "987654321"]
    path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    given = SFT | {"data.kinds": ["text"], "data.long_rows": "split", "data.max_tokens": 6}
    given |= {"task": "", "data.path": str(path), "warm_start.steps": 0, "data.batch_size": 3}
    config = tiny.config(tmp_path / "run", **given)
    _, actor, _ = assemble.assemble(tiny.config("", **given | {"data.eval_share": 0.34}))
    found = files_of_rows.read(config.data, config.data.path)
    counts = [len(written.groups(actor, config, found, i)) for i in range(3)]
    assert counts == [4, 1, 2]  # of 21, 6 and 10 tokens, the end included
    made = offline.open_rows(config, actor, found, range(3))
    drawn, states = [], []
    for _ in range(7):
        drawn += made.step(None, 0, loop.Timer())[0].texts
        states.append(made.get_state())
    for epoch in (drawn[:7], drawn[7:14], drawn[14:]):
        assert sum(len(text) for text in epoch) == sum(len(text) - 1 for text in texts)
    assert any(state["piece"] for state in states)
    again = offline.open_rows(config, actor, found, range(3))
    again.set_state(states[2])
    assert again.step(None, 0, loop.Timer())[0].texts == drawn[9:12]
    with pytest.raises(ValueError, match="only a text may be cut anywhere"):
        pairs = {"data.path": str(tmp_path / "pairs.jsonl"), "data.kinds": ["completion"]}
        (tmp_path / "pairs.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}\n')
        assemble.assemble(tiny.config("", **given | pairs))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"data.path": ""}, "name it with --data FILE"),
        ({"data.kinds": ["label"]}, "this recipe learns from label"),
        ({"data.kinds": []}, "this recipe samples"),
        ({"data.max_tokens": 4096}, "exceeds the model's 2048 positions"),
        ({"data.max_tokens": 2}, "data.max_tokens=2 leaves no row"),
        ({"warm_start.steps": 2}, "set it to 0"),
        ({"updates_per_batch": 3}, "does not divide data.batch_size=4"),
        ({"data.eval_share": 1.0}, "data.eval_share=1.0"),
        ({"data.cache_reference": True}, "compares with no reference policy"),
        (CACHED | {"objective.policy": "ppo_clip"}, "compares with the policy that sampled"),
        (CACHED | {"objective.kl": "k3_importance"}, "compares with the policy that sampled"),
        ({"data.noise": -1.0}, "data.noise=-1.0"),
    ],
)
def test_refusals_name_the_field(given, says, files, tmp_path):
    with pytest.raises(ValueError, match=says.replace(".", r"\.")):
        assemble.assemble(tiny.config(tmp_path, **changes(files, SFT, **given)))


def test_label_smoothing_is_the_cross_entropy_of_smoothed_targets(files, tmp_path):
    """Held-out loss at step 0 and its gradient, against smoothed labels of optax."""
    logits = jax.random.normal(jax.random.key(0), (3, 7))
    targets = jnp.array([1, 6, 2])

    def ours(logits):
        return -jnp.mean(label_smoothing.smoothed(0.2, logits, None, targets))

    def theirs(logits):
        labels = optax.smooth_labels(jax.nn.one_hot(targets, 7), 0.2)
        return jnp.mean(optax.softmax_cross_entropy(logits, labels))

    np.testing.assert_allclose(ours(logits), theirs(logits), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(ours)(logits), jax.grad(theirs)(logits), atol=1e-6)
    with pytest.raises(ValueError, match="it works with the objective sft alone"):
        assemble.assemble(tiny.config("", **changes(files, DPO, label_smoothing={"share": 0.1})))


@pytest.mark.broad
def test_label_smoothing_trains(files, tmp_path):
    """Less than all of the probability is worth having: the smoothed loss stays above its floor."""
    tiny.run(tmp_path, **changes(files, SFT, label_smoothing={"share": 0.3}))
    found = json.loads((tmp_path / "summary.json").read_text())["eval"]
    assert 0.3 < found["after"]["loss"] < found["before"]["loss"]


def test_mismatched_answers_stand_under_the_next_prompt():
    prompts, answers = [(1, 2), (3,), (4, 5, 6)], [(7,), (8, 9), (10,)]
    made = packing.trajectory(
        [
            Completion(
                Request(0, prompt, 9),
                np.array(answer, np.int32),
                *(np.zeros(len(answer), np.float32) for _ in range(2)),
                np.zeros(len(answer), np.int32),
                True,
            )
            for prompt, answer in zip(prompts, answers, strict=True)
        ],
        [1.0, 0.0, 1.0],
        range(3),
        length=5,
    )
    assert mismatched.exchanged(made, 4).action_mask.sum(axis=1).tolist() == [1, 1, 1]
    got = mismatched.exchanged(made, 5)
    for n, prompt in enumerate(prompts):
        whole = (*prompt, *answers[n - 1])
        assert tuple(got.tokens[n, : len(whole)]) == whole and not got.tokens[n, len(whole) :].any()
        assert list(np.flatnonzero(got.action_mask[n])) == list(range(len(prompt), len(whole)))


@pytest.mark.broad
def test_exchanged_answers_may_need_longer_rows_than_training(tmp_path):
    """A long answer under a long prompt, where each fits `packing.row_length` by itself."""
    made = [
        {"prompt": "a" * (2 + 20 * (n % 2)), "completion": "b" * (21 - 20 * (n % 2)), "label": True}
        for n in range(10)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in made))
    given = SFT | {"data.kinds": ["label"], "objective.policy": "labelled_kto", "mismatched": {}}
    given = changes(tmp_path, given, **{"data.path": str(tmp_path / "rows.jsonl"), "steps": 1})
    given |= {"data.max_tokens": 32, "packing.row_length": 32, "data.eval_share": 0.5}
    tiny.run(tmp_path / "run", **given)
    assert np.isfinite(metrics.read(tmp_path / "run")[0]["loss"])
    with pytest.raises(ValueError, match=r"mismatched with data\.batch_size=1"):
        assemble.assemble(tiny.config("", **given | {"data.batch_size": 1}))


def test_the_newest_checkpoint_holds_the_position(straight):
    saved = checkpoint.path(straight, checkpoint.steps(straight)[-1])
    assert json.loads((saved / "host.json").read_text())["rollouts"]["position"] == 24


@pytest.mark.parametrize(("rows", "batch", "epochs"), [(20, 16, 1), (20, 7, 3), (11, 16, 3)])
def test_epochs_use_each_row_so_many_times(rows, batch, epochs, files, tmp_path):
    """The last batch ends early; a run that goes on after it begins another pass."""
    from jaxrl.run import offline

    given = changes(files, SFT, **{"data.batch_size": batch, "data.epochs": epochs})
    config = tiny.config(tmp_path, **given)
    _, actor, _ = assemble.assemble(config)
    found = files_of_rows.read(config.data, config.data.path)
    made = offline.open_rows(config, actor, found, range(rows))
    steps = -(-rows * epochs // batch)
    drawn = [made.step(None, 0, loop.Timer()) for _ in range(steps)]
    ids = [problem.id for experience, _ in drawn for problem in experience.problems]
    assert len(ids) == rows * epochs and {ids.count(each) for each in ids} == {epochs}
    assert drawn[-1][1]["epoch"] == epochs
    assert made.step(None, 0, loop.Timer())[0].problems
