"""`--epochs N`: each row is used N times, or the run says what it does instead."""

from __future__ import annotations

import collections
import json
import random

import pytest

from jaxrl.data.sources import stream
from jaxrl.launch.settings import configs
from jaxrl.rollout import policy, tasks

SIZES = [(2, 1, 1), (4, 4, 2), (5, 2, 3), (7, 7, 1), (9, 4, 2), (12, 8, 2), (13, 5, 5), (3, 16, 1)]


def drawn(config):
    """How often each problem is used in the steps of a run."""
    task = tasks.of_config(config)
    keep = policy.keeps(policy.describe(config)[1], config.rollout, task)
    problems = stream.prompts(task, seed=config.seed, batch_size=config.rollout.prompts, keep=keep)
    steps = [next(problems) for _ in range(config.steps)]
    return collections.Counter(problem.id for step in steps for problem in step)


@pytest.mark.sample(4, broad=4)
@pytest.mark.parametrize("long", [0, 3])
@pytest.mark.parametrize(("rows", "batch", "epochs"), SIZES)
def test_each_prompt_is_used_so_often_or_the_run_says_how_often(
    rows, batch, epochs, long, tmp_path
):
    """Prompts that are dropped for their length count for no epoch."""
    records = [{"question": f"{n}?", "answer": "1"} for n in range(rows)]
    records += [{"question": f"{n} {'long ' * 30}?", "answer": "1"} for n in range(long)]
    random.Random(0).shuffle(records)
    path, held = tmp_path / "rows.jsonl", tmp_path / "held.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    held.write_text('{"question": "x?", "answer": "1"}\n')
    config, options = configs.resolve(
        ["grpo", "--model", "fresh", "--data", str(path), "--test-data", str(held),
         "--reward", "exact", "--max-prompt-tokens", "40", "--rollout.long-prompts", "drop",
         "--batch-size", str(batch), "--epochs", str(epochs)]
    )  # fmt: skip
    counts = drawn(config)
    more = config.steps * batch - rows * epochs
    assert 0 <= more < batch and len(counts) == rows
    assert sum(counts.values()) == rows * epochs + more
    if not more:
        assert {*counts.values()} == {epochs} and not options.notes
        return
    assert epochs <= min(counts.values()) and max(counts.values()) - min(counts.values()) <= 1
    (note,) = options.notes
    assert f"{epochs} x {rows} = {rows * epochs} prompts" in note and f"takes {more} more" in note


def test_a_curriculum_chooses_the_prompts_of_so_many_steps(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"question": "{n}?", "answer": "1"}}\n' for n in range(40)))
    argv = ["grpo", "--model", "fresh", "--data", str(path), "--reward", "exact"]
    argv += ["--batch-size", "4", "--epochs", "2", "--test-share", "0.1"]
    argv += ["--curriculum.choose", "jaxrl.data.selection.curriculum:uniform"]
    config, options = configs.resolve(argv)
    assert config.steps == 18 and "chosen by the rewards" in options.notes[0]


def test_the_note_is_printed_before_the_run(tmp_path, capsys, monkeypatch):
    from jaxrl.launch import cli, train

    monkeypatch.setattr(train.loop, "train", lambda *_, **__: None)
    monkeypatch.setattr(train.progress, "close", lambda *given: None)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"question": "{n}?", "answer": "1"}}\n' for n in range(11)))
    argv = ["train", "grpo", "--model", "fresh", "--data", str(path), "--test-data", str(path)]
    argv += ["--reward", "exact", "--batch-size", "4", "--epochs", "3"]
    assert cli.main([*argv, "--run-dir", str(tmp_path / "run")]) == 0
    assert "3 x 11 = 33 prompts are no whole number of steps" in capsys.readouterr().out
