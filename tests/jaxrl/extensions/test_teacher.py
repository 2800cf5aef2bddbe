"""Distillation against a plain forward pass of both models, one sequence at a time."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.data.sources import rows
from jaxrl.data.text import tokenizers
from jaxrl.extensions import teacher
from jaxrl.extensions.teacher import TeacherConfig
from jaxrl.losses.imitation import distillation
from jaxrl.models import decoder
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import DecoderConfig
from jaxrl.run import assemble
from tests.data import words
from tests.jaxrl import tiny

RNG = np.random.default_rng(0)
PLAIN = words.WORDS[5:]
DISTILL = {
    "data.kinds": ["completion"],
    "objective.policy": "sft",
    "objective.advantage_args": {"baseline": "none", "scale": "none"},
    "task": "",
    "data.eval_share": 0.3,
    "data.batch_size": 4,
    "warm_start.steps": 0,
    "optimizer.learning_rate": 1e-2,
    "eval.every": 0,
    "steps": 3,
    "data.max_tokens": 32,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Rows of a few words; a student, and a teacher of another width with the same words."""
    folder = tmp_path_factory.mktemp("distill")
    made = [
        {"prompt": " ".join(RNG.choice(PLAIN, 2)), "completion": " ".join(RNG.choice(PLAIN, n))}
        for n in (1, 2, 3, 4, 1, 2, 3, 4, 2, 3)
    ]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in made))
    for seed, (name, width) in enumerate({"student": 32, "teacher": 16}.items()):
        (folder / name).mkdir()
        words.tokenizer(folder / name)
        shape = DecoderConfig(len(words.WORDS), width, 32, 1, 2, 2, 16, max_positions=64)
        params = decoder.init(shape, jax.random.key(seed))
        params["embed"] = params["embed"] * 5  # so that distributions are not flat
        huggingface.save(folder / name, shape, params, extra={"eos_token_id": 1})
    return folder


def logits(folder, ids):
    model, params = huggingface.load(folder)
    tokens, places = jnp.array([ids]), jnp.arange(len(ids))[None]
    states = decoder.hidden(model, params, tokens, places, jnp.full_like(tokens, len(ids)))
    return states[0] @ decoder.unembedding(params).T


@pytest.mark.broad
def test_the_loss_is_the_divergence_at_the_learned_tokens(files, tmp_path):
    given = {
        "model": str(files / "student"),
        "data.path": str(files / "rows.jsonl"),
        "teacher.model": str(files / "teacher"),
    }
    tiny.run(tmp_path / "run", **DISTILL, **given)
    found = json.loads((tmp_path / "run/summary.json").read_text())["eval"]
    all_rows = rows.read(given["data.path"])
    held = rows.divide(all_rows, 0.3, 8)[1]
    tokenizer = tokenizers.load(files / "student")
    want = []
    for row in (all_rows[i] for i in held):
        prompt = tokenizer.prompt(row.prompt)
        ids = [*prompt, *tokenizer.encode(row.answers[0]), tokenizer.eos_ids[0]]
        both = (logits(files / name, ids)[len(prompt) - 1 : -1] for name in ("student", "teacher"))
        want.extend(distillation.forward(*both))
    assert found["before"]["loss"] == pytest.approx(np.mean(want), rel=1e-4)
    assert found["before"]["rows"] == len(held) and found["after"]["loss"] < found["before"]["loss"]


@pytest.mark.parametrize("divergence", ["forward", "reverse", "js"])
def test_divergences_and_the_likelihood_beside_them(divergence):
    one, two = (jnp.asarray(RNG.normal(size=(3, 7)), jnp.float32) for _ in range(2))
    targets = jnp.array([1, 0, 6])
    plain = {
        "forward": distillation.forward(one, two, temperature=2.0),
        "reverse": distillation.reverse(one, two, temperature=2.0),
        "js": distillation.generalized_js(one, two, beta=0.3, temperature=2.0),
    }[divergence]
    settings = TeacherConfig(divergence=divergence, beta=0.3, temperature=2.0, likelihood=0.5)
    found = teacher.minus_divergence(settings, one, two, targets)
    logp = jax.nn.log_softmax(one)[jnp.arange(3), targets]
    np.testing.assert_allclose(found, 0.5 * logp - plain, rtol=1e-5)
    settings = dataclasses.replace(settings, likelihood=0.0)
    np.testing.assert_allclose(teacher.minus_divergence(settings, one, one, targets), 0, atol=1e-6)


def test_teachers_that_cannot_teach_are_refused(files):
    given = DISTILL | {"data.path": str(files / "rows.jsonl")}
    with pytest.raises(ValueError, match="has another tokenizer"):
        assemble.assemble(
            tiny.config("unused", **given, **{"teacher.model": str(files / "teacher")})
        )
    with pytest.raises(ValueError, match="name it with --teacher MODEL"):
        assemble.assemble(tiny.config("unused", **given, teacher={}))
    model = {"model": str(files / "student"), "teacher.model": str(files / "teacher")}
    smoothed = {"model": model["model"], "label_smoothing": {"share": 0.1}}
    refused = {
        "works with the objective sft alone": {"objective.policy": "raft"},
        "objective.kl_coef=0.1.*set it to 0": {"objective.kl_coef": 0.1},
        "with nucleus": {"nucleus": {"mass": 0.9}},
    }
    for says, changes in refused.items():
        for one, name in ((model, "teacher"), (smoothed, "label_smoothing")):
            with pytest.raises(ValueError, match=f"{name}.* {says}"):
                assemble.assemble(tiny.config("unused", **given | one | changes))
    with pytest.raises(ValueError, match="both give the run's reading"):
        assemble.assemble(tiny.config("unused", **given, **model, label_smoothing={"share": 0.1}))


def test_tokenizers_are_compared_by_what_they_make_of_texts():
    one, two = tokenizers.characters("abc"), tokenizers.characters("acb")
    assert teacher.difference(one, tokenizers.characters("abc")) == ""
    assert teacher.difference(one, two) == "id 2 is 'c', not 'b'"
    assert "ids, not" in teacher.difference(one, tokenizers.characters("abcd"))


@pytest.mark.slow
def test_on_policy(files, tmp_path):
    """The divergence on the model's own samples falls."""
    given = {
        "model": str(files / "student"),
        "teacher.model": str(files / "teacher"),
        "teacher.divergence": "reverse",
        "task": "file",
        "task_args": {
            "path": str(files / "rows.jsonl"),
            "rewards": '[["none", "none", 1.0, {}]]',
            "test_share": 0.3,
        },
        "data.kinds": [],
        "rollout.group_size": 1,
        "rollout.prompts": 8,
        "steps": 10,
    }
    tiny.run(tmp_path / "run", **DISTILL | given)
    found = json.loads((tmp_path / "run/summary.json").read_text())["eval"]
    assert found["after"]["divergence"] < found["before"]["divergence"]
