"""Rollouts sampled with rounded weights: the gap of log-probabilities is theirs alone."""

import pytest

from jaxrl.config import validate
from jaxrl.record import metrics
from jaxrl.run import loop
from tests.jaxrl import tiny

SHORT = {
    "steps": 2, "warm_start.steps": 0, "eval.problems": 4, "task": "tests.digests:coin",
    "objective.policy": "icepop", "fresh.hidden_size": 32,
}  # fmt: skip


@pytest.mark.broad
def test_int8_weights_and_bf16_sampling_have_a_gap_of_their_own(tmp_path):
    said, gaps = {}, {}
    for name, changes in {
        "trained": {},
        "int8": {"sampling.weights": "int8"},
        "int8 and bf16": {"sampling.weights": "int8", "sampling.dtype": "bfloat16"},
    }.items():
        said[name] = loop.train(tiny.config(tmp_path / name, **SHORT | changes))
        rows = list(metrics.read(tmp_path / name))
        gaps[name] = rows[0]["logp_gap"]
        assert all(row["grad_norm"] > 0 for row in rows)
    assert gaps["trained"] < 1e-6 < 1e-5 < gaps["int8"] < gaps["int8 and bf16"] < 0.1
    before = [each["eval"]["before"] for each in said.values()]
    assert before[0] == before[1] == before[2], "evaluations use the trained weights"


def test_adapters_have_a_quantisation_of_their_own(tmp_path):
    made = tiny.config(tmp_path, **{"sampling.weights": "int8", "lora.rank": 2})
    with pytest.raises(ValueError, match=r"sampling\.weights=.int8. with lora\.rank=2"):
        validate.check(made)
