"""A model is trained to compare answers, and another learns from its verdicts alone."""

import functools
import json
import random

import jax
import pytest

from jaxrl.data.rewards.judged import questions, rubrics
from jaxrl.data.types import Problem
from jaxrl.launch import cli
from jaxrl.models import decoder
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import DecoderConfig
from tests.data import words

KNOWN = [*words.WORDS, "A", "B"]
MODEL = DecoderConfig(len(KNOWN), 32, 64, 2, 2, 2, 16, tie_embeddings=False)
RUBRIC = {"criteria": {"nines": {"text": "it says nine often"}}}
WANTED = """
def score(completion):
    return completion.split().count("nine") / 4
"""
COMMON = ["--packing.micro-batch-tokens", "1024", "--score-workers", "0", "--sampler.slots", "32"]


def run(folder, *command):
    """What the summary of a run says of its evaluations before and after."""
    assert cli.main(["train", *command, *COMMON, "--run-dir", str(folder)]) == 0
    found = json.loads((folder / "summary.json").read_text())["eval"]
    return found["before"], found["after"]


def file(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def verdicts(count):
    """Questions that a pairwise judge is asked, with the right letter."""
    rng, rows, prompts = random.Random(0), [], words.WORDS[5:]
    (criterion,) = rubrics.parse(RUBRIC).criteria.values()
    while len(rows) < count:
        one, two = (" ".join(rng.choices(KNOWN, k=rng.randint(1, 4))) for _ in range(2))
        gap = one.split().count("nine") - two.split().count("nine")
        if gap:
            asked = Problem("", rng.choice(prompts), None)
            question = questions.comparison([criterion.text], asked, one, two, f"====={len(rows)}")
            rows.append({"prompt": question, "completion": "A" if gap > 0 else "B"})
    return rows


@pytest.mark.broad
def test_online_dpo_by_a_pairwise_judge(tmp_path):
    """No reward enters but the judge's; what the judge was taught to prefer becomes frequent."""
    base = tmp_path / "base"
    base.mkdir()
    words.tokenizer(base, known=KNOWN)
    params = jax.jit(functools.partial(decoder.init, MODEL))(jax.random.key(0))
    huggingface.save(base, MODEL, params, extra={"eos_token_id": 1})
    (tmp_path / "rubric.yaml").write_text(json.dumps(RUBRIC))
    (tmp_path / "own.py").write_text(WANTED)
    given = ["--data", file(tmp_path / "verdicts.jsonl", verdicts(1200)), "--rollout.chat"]
    given += ["--model", str(base), "--steps", "150", "--data.batch-size", "16", "--lr", "1e-2"]
    run(tmp_path / "judge", "sft", *given, "--packing.row-length", "256")
    prompts = [{"prompt": word} for word in words.WORDS[5:] for _ in range(4)]
    given = ["--data", file(tmp_path / "prompts.jsonl", prompts), "--model", str(base)]
    given += ["--reward", f"{tmp_path / 'own.py'}:score", "--with", "judge"]
    given += ["--judge.rubric", str(tmp_path / "rubric.yaml"), "--judge.pairwise"]
    given += ["--judge.model", str(tmp_path / "judge"), "--judge.opponents", "2"]
    given += ["--steps", "20", "--group-size", "4", "--prompts", "8", "--max-new-tokens", "4"]
    given += ["--max-prompt-tokens", "8", "--eval-problems", "8", "--lr", "3e-3"]
    before, after = run(tmp_path / "policy", "online-dpo", *given)
    assert after["reward"] > before["reward"] + 0.3
