"""Runs whose completions are constrained, and trained over what the constraint left."""

import json
import re

import numpy as np
import pytest

from jaxrl.data.types import Problem
from jaxrl.record import jsonl, metrics
from jaxrl.rollout import programs
from jaxrl.run import assemble, loop
from jaxrl.training.tries import Chunks
from jaxrl.types import OutputConstraint
from tests.jaxrl import tiny

SHORT = {
    "steps": 2, "eval.every": 0, "eval.problems": 4, "warm_start.steps": 0,
    "optimizer.learning_rate": 0.03,
}  # fmt: skip
needs_llguidance = pytest.mark.extra


def constrained(directory, text="-?[0-9]{1,2}", name="answer.regex"):
    file = directory / name
    file.write_text(text)
    return {"rollout.constraint": str(file)}


def check_run(directory, pattern):
    rows = list(metrics.read(directory))
    assert all(np.isfinite(row["loss"]) and row["skipped"] == 0 for row in rows)
    assert max(row["logp_gap_max"] for row in rows) < 1e-4
    texts, counts = [], []
    for file in sorted((directory / "rollouts").glob("*.jsonl")):
        for row in jsonl.read(file):
            texts.append(row["completion"])
            counts += row["kept"]
            assert np.all(np.array(row["entropy"]) <= np.log(row["kept"]) + 1e-3)
    assert len(texts) == 32 and all(re.fullmatch(pattern, text) for text in texts)
    return counts


@needs_llguidance
@pytest.mark.exact("sampler and trainer agree to 1e-4 under a constraint")
def test_a_run_is_trained_over_what_the_constraint_left(tmp_path):
    pytest.importorskip("llguidance")
    loop.train(tiny.config(tmp_path / "run", **SHORT | constrained(tmp_path)))
    counts = check_run(tmp_path / "run", "-?[0-9]{1,2}")
    assert set(counts) == {1, 10, 11}, "an end, digits, and digits with a sign or an end"


WAYS = {
    "two updates, a reference, top-p": {
        "updates_per_batch": 2, "objective.kl_coef": 0.1, "objective.entropy_coef": 0.01,
        "rollout.top_p": 0.9,
    },
    "in flight": {"rollout.in_flight": 1.5, "optimizer.learning_rate": 0.0},
    "asynchronous": {
        "asynchronous.staleness": 1, "asynchronous.schedule": "lockstep:2",
        "optimizer.learning_rate": 0.0,
    },
}  # fmt: skip


@needs_llguidance
@pytest.mark.broad
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_training_is_over_the_constrained_support(tmp_path, way):
    pytest.importorskip("llguidance")
    loop.train(tiny.config(tmp_path / "run", **SHORT | constrained(tmp_path) | WAYS[way]))
    check_run(tmp_path / "run", "-?[0-9]{1,2}")


@pytest.mark.parametrize(
    ("name", "text", "changes", "message"),
    [
        ("c.txt", "a", {}, r"c\.txt: its name must end in one of \.json, \.regex"),
        ("c.regex", "(", {}, r"rollout\.constraint='.*c\.regex': regex: "),
        ("c.json", '{"type": "foo"}', {}, r"rollout\.constraint='.*c\.json': json_schema\.type"),
        ("c.choices", "", {}, "choice: give a list"),
        ("c.regex", "é", {}, "no text that can be made of the vocabulary matches it"),
    ],
)
@needs_llguidance
def test_bad_files_are_refused(tmp_path, name, text, changes, message):
    pytest.importorskip("llguidance")
    with pytest.raises(ValueError, match=message):
        assemble.assemble(tiny.config(tmp_path, **constrained(tmp_path, text, name), **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout.chunks": Chunks(4, 2)}, r"rollout\.constraint=.* with rollout\.chunks\.size=4"),
        ({"generators": 1}, r"rollout\.constraint=.* with generators=1"),
        ({"rollout.on_device": True}, r"rollout\.constraint=.* with rollout\.on_device"),
        ({"nucleus.mass": 0.5}, r"rollout\.constraint=.* with extensions .*=\['nucleus'\]"),
        ({"rollout.support": "full"}, r"rollout\.support='full' with objective\.policy"),
    ],
)
def test_what_it_does_not_go_with_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        assemble.check(tiny.config(tmp_path, **{"rollout.constraint": "a.regex"}, **changes))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.regex: no constraint can be read"):
        assemble.assemble(tiny.config(tmp_path, **{"rollout.constraint": "nowhere.regex"}))


def test_a_problem_may_say_what_its_completions_match():
    rollout = tiny.config("", **{"rollout.constraint": "problem"}).rollout

    def of(**metadata):
        return programs.constraint_of(rollout, Problem("p", "1+1", 2, metadata=metadata))

    assert of() is None
    assert of(constraint={"regex": "[0-9]"}) == OutputConstraint("regex", "[0-9]")
    assert of(row={"constraint": '{"regex": "[0-9]"}'}) == OutputConstraint("regex", "[0-9]")
    schema = {"type": "object"}
    assert of(constraint={"json_schema": schema}) == OutputConstraint(
        "json_schema", json.dumps(schema)
    )
    assert of(constraint={"choice": ["a", "b"]}) == OutputConstraint("choice", '["a", "b"]')
    for wrong in ("[0-9]", "{}", {"regexp": "a"}, {"regex": "a", "choice": ["b"]}, 5):
        with pytest.raises(ValueError, match="problem p: constraint"):
            of(constraint=wrong)


DATA = [
    {"question": f"{n}?", "answer": str(n), "constraint": json.dumps({"choice": [str(n), "no"]})}
    for n in range(8)
]


@needs_llguidance
@pytest.mark.broad
def test_a_column_of_a_data_file_constrains_each_problem(tmp_path):
    pytest.importorskip("llguidance")
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in DATA))
    args = {
        "path": str(file),
        "prompt_column": "question",
        "answer_column": "answer",
        "rewards": '[["none", "none", 1.0, {}]]',
    }
    changes = {"task": "file", "task_args": args, "rollout.constraint": "problem", "steps": 1}
    loop.train(tiny.config(tmp_path / "run", **SHORT | changes))
    rows = [*jsonl.read(tmp_path / "run/rollouts/000001.jsonl")]
    assert rows and all(row["completion"] in (row["prompt"][0], "no") for row in rows)
    assert max(row["logp_gap_max"] for row in metrics.read(tmp_path / "run")) < 1e-4
