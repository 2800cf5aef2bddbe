"""Reward models: trained from a file, as the reward of a run, and exported."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import config as configs
from jaxrl.data import tasks
from jaxrl.data.types import Problem, Score
from jaxrl.extensions import reward_model
from jaxrl.extensions.reward_model import RewardModelConfig
from jaxrl.launch import cli, recipes
from jaxrl.launch.settings import short
from jaxrl.mesh import mesh
from jaxrl.models import decoder, reward
from jaxrl.models.checkpoints import huggingface
from jaxrl.rollout import experience, files, written
from jaxrl.rollout.experience import Experience
from jaxrl.run import assemble
from tests.jaxrl import tiny

SUMS = [(a, b) for a in range(5) for b in range(5)]
REWARD = {
    "labels": 1,
    "data.kinds": ["preference", "ranking"],
    "objective.policy": "ranked_reward",
    "objective.advantage_args": {"baseline": "none", "scale": "none"},
    "objective.aggregation": "seq-mean-token-mean",
    "task": "",
    "data.eval_share": 0.2,
    "data.batch_size": 4,
    "warm_start.steps": 0,
    "optimizer.learning_rate": 1e-2,
    "eval.every": 0,
    "data.noise": 0.5,
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The right sum against nine."""
    path = tmp_path_factory.mktemp("rows") / "pairs.jsonl"
    rows = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": "9"} for a, b in SUMS]
    known = tasks.get("arithmetic", digits=1, operators="+").alphabet
    rows.append({"prompt": "0+0=", "chosen": "0", "rejected": f"{known}\n"})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def trained(file, tmp_path_factory):
    """A reward model with adapters on a policy made from scratch."""
    directory = tmp_path_factory.mktemp("reward") / "run"
    tiny.run(directory, **REWARD, **{"data.path": str(file), "lora.rank": 4})
    return directory


@pytest.mark.broad
def test_held_out_accuracy_and_calibration(trained):
    found = json.loads((trained / "summary.json").read_text())["eval"]
    assert found["after"]["loss"] < found["before"]["loss"]
    assert found["after"]["accuracy"] >= 0.8 and 0 <= found["after"]["calibration_error"] < 1
    assert found["before"]["rows"] == 5 and "margin" in found["after"]


@pytest.mark.broad
def test_a_trained_one_is_the_reward_of_a_run(trained, tmp_path, capsys):
    """Its scores are those of its exported form, one sequence at a time."""
    out = tmp_path / "hf"
    assert cli.main(["export", str(trained), "--out", str(out)]) == 0
    assert cli.main(["export", str(trained), "--out", str(tmp_path / "p"), "--to", "peft"]) == 2
    assert cli.main(["sample", str(trained), "--prompt", "1+2="]) == 2
    assert "writes no text" in capsys.readouterr().err
    model, params = huggingface.load(out)
    assert model.labels == 1 and "head" not in params

    problems = [Problem("a", "1+2=", 3), Problem("b", "4+0=", 4)]
    scores = [Score(1.0), Score(0.0), Score(None, error="timeout: "), Score(0.5)]
    asked = Experience(problems, [], ["3", "9", "4", "\u00e9"], scores, [])
    config = tiny.config("unused", model=str(trained), labels=1)
    with jax.set_mesh(mesh.make(config.mesh)):
        opened = reward_model.open_model(config, str(trained))
        found = reward_model.score(config, opened, asked)
    assert np.isnan(found[3])  # a character that it does not know
    for n, text in enumerate(asked.texts[:3]):
        encode, end = opened.tokenizer.encode, opened.tokenizer.eos_ids[0]
        tokens = jnp.array(
            [[*opened.tokenizer.prompt(problems[n // 2].prompt), *encode(text), end]]
        )
        places = jnp.arange(tokens.shape[1])[None]
        states = decoder.hidden(model, params, tokens, places, jnp.full_like(tokens, places.size))
        assert found[n] == pytest.approx(float(reward.score(params, states[0, -1])[0]), abs=1e-4)

    steps = asked._replace(texts=["3\n9", "", "4\n\n", "\u00e9"])
    with jax.set_mesh(mesh.make(config.mesh)):
        stepped = reward_model.score(config, opened, steps, "product")
    np.testing.assert_array_equal(np.isnan(stepped), [False, True, False, True])
    for n, text, ends in ((0, "3\n9\n", (-3, -1)), (2, "4\n", (-1,))):
        prompt = opened.tokenizer.prompt(problems[n // 2].prompt)
        tokens = jnp.array([[*prompt, *opened.tokenizer.encode(text)]])
        places = jnp.arange(tokens.shape[1])[None]
        states = decoder.hidden(model, params, tokens, places, jnp.full_like(tokens, places.size))
        logits = [float(reward.score(params, states[0, at])[0]) for at in ends]
        chance = np.prod([1 / (1 + np.exp(-logit)) for logit in logits])
        assert stepped[n] == pytest.approx(chance, abs=1e-4)

    thought = [f"<think>\u00e9{a}</think>\n{b}" for a, b in ((9, 3), (3, 9), (1, 4))]
    with jax.set_mesh(mesh.make(config.mesh)):
        after = reward_model.score(config, opened, asked._replace(texts=[*thought, "<think>3"]))
        plain = reward_model.score(config, opened, asked._replace(texts=["3", "9", "4", ""]))
    np.testing.assert_array_equal(after, plain)  # of one shape; that of `found` has a row less
    np.testing.assert_allclose(after[:3], found[:3], rtol=1e-6)

    settings = RewardModelConfig(models=("a", "b"), uncertainty=0.5, task_weight=2.0)
    made = reward_model.rewarded(settings, asked, np.stack([found, found + 2])).scores
    assert made[0].value == pytest.approx(found[0] + 1 - 0.5 + 2)
    assert made[0].parts["task"] == 1 and made[0].parts["reward_spread"] == pytest.approx(1)
    assert made[2].error == "timeout: " and "cannot read" in made[3].error


@pytest.mark.broad
def test_it_is_named_by_its_directory(trained, file):
    """Alone it is the reward; beside others, which are the task's, it is added."""
    arguments = ["--model", "m", "--data", str(file), "--reward", str(trained)]
    config, _, _ = short.expand(recipes.load("grpo"), arguments)
    settings = config.extensions["reward_model"]
    assert settings.models == (str(trained),) and settings.task_weight == 0
    assert json.loads(config.task_args["rewards"])[0][1] == "none"
    config, _, _ = short.expand(recipes.load("grpo"), [*arguments, "number"])
    assert config.extensions["reward_model"].task_weight == 1
    run = configs.extended(tiny.config("unused"), "reward_model", models=("fresh",))
    with pytest.raises(ValueError, match="which is no reward model"):
        assemble.assemble(run)
    with pytest.raises(ValueError, match="a reward model has 1 and learns from a file"):
        assemble.assemble(tiny.config("unused", labels=1))
    other = dataclasses.replace(tiny.config("unused"), model=str(trained))
    with pytest.raises(ValueError, match="is a classifier with 1 labels"):
        assemble.assemble(other)


@pytest.mark.slow
@pytest.mark.exact(
    "a run that trains a reward model, killed and continued, equals an uninterrupted one"
)
def test_killed_and_continued_equals_straight(trained, file, tmp_path):
    every = REWARD | {"data.path": str(file), "lora.rank": 4, "checkpoint.every": 1}
    assert tiny.kill_at(tiny.start(tmp_path, **every), "train 3"), "over before it was killed"
    tiny.finish(tiny.start(tmp_path, **every))
    assert tiny.artefacts(tmp_path) == tiny.artefacts(trained)


@pytest.mark.slow
def test_a_run_with_its_reward(trained, tmp_path):
    """Gold and proxy of every step and of the evaluations."""
    from jaxrl.record import metrics

    tiny.run(tmp_path, steps=2, **{"reward_model.models": (str(trained),)})
    rows = metrics.read(tmp_path)
    assert all(row["reward/mean"] == row["reward/reward_model"] for row in rows)
    assert all(row["reward/task"] in np.arange(17) / 16 for row in rows)
    found = json.loads((tmp_path / "summary.json").read_text())["eval"]
    assert {"reward", "reward_model"} <= found["after"].keys()


@pytest.mark.sample(1)
@pytest.mark.broad
@pytest.mark.parametrize(
    "name", ["ppo", "online-dpo", "iterated-dpo", "rejection-sampling", "best-of-n"]
)
def test_an_online_method_learns_from_it(name, trained, tmp_path):
    """Two steps against a trained reward model, from one command."""
    from jaxrl.record import metrics

    given = ["--model", "fresh", "--fresh.hidden-size", "32", "--fresh.num-layers", "1"]
    given += ["--task", "arithmetic", "--task-args.digits", "1", "--task-args.operators", "+"]
    given += ["--reward", str(trained), "--steps", "2", "--batch-size", "4"]
    given += ["--group-size", "1" if name == "ppo" else "4", "--max-new-tokens", "4"]
    given += ["--max-prompt-tokens", "8", "--score-workers", "0", "--eval-problems", "4"]
    given += ["--lr", "1e-3", "--sampler.slots", "16", "--packing.micro-batch-tokens", "256"]
    assert cli.main(["train", name, *given, "--run-dir", str(tmp_path / "run")]) == 0
    rows = metrics.read(tmp_path / "run")
    assert len(rows) == 2 and all(row["grad_norm"] > 0 == row["skipped"] for row in rows)
    assert all(row["reward/mean"] == row["reward/reward_model"] for row in rows)


def test_steps_become_actions_with_labels(tmp_path):
    """One action behind each step, whose reward is the step's label."""
    rows = [{"prompt": f"{a}+", "completions": ["1", "2="], "labels": [1, 0]} for a in range(4)]
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    steps = REWARD | {"data.kinds": ["stepwise"], "objective.policy": "stepwise_reward"}
    steps |= {"objective.aggregation": "token-mean", "data.path": str(path)}
    config = tiny.config("unused", **steps)
    _, actor, _ = assemble.assemble(config)
    found = files.read(config.data, str(path))
    made = written.gathered([g for i in range(2) for g in written.groups(actor, config, found, i)])
    batch = experience.to_trajectory(config)(made)
    acts = np.argwhere(batch.action_mask)
    np.testing.assert_array_equal(acts, [[0, 4], [0, 7], [1, 4], [1, 7]])
    np.testing.assert_array_equal(batch.extra["turn_rewards"][batch.action_mask], [1, 0, 1, 0])
    assert actor.tokenizer.decode(batch.tokens[0, :7].tolist()).endswith("+1\n2=\n")
