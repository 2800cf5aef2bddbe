"""A training run whose scorer hangs and dies: it continues, and counts what failed."""

import collections
import json
import math

import pytest

from jaxrl.config import Config, EvalConfig, FreshModel, RolloutConfig, RolloutLogConfig
from jaxrl.run.loop import train
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.training.packing import PackingConfig
from tests.data import hostile


@pytest.mark.slow
def test_a_hung_and_a_crashing_scorer_leave_the_run_running_and_are_counted(tmp_path):
    steps = 3
    config = Config(
        recipe="flaky",
        steps=steps,
        run_dir=str(tmp_path),
        task="tests.data.hostile:flaky",
        fresh=FreshModel(16, 32, 1, 2, 2, 8),
        rollout=RolloutConfig(prompts=4, group_size=4, max_prompt_tokens=8, max_new_tokens=4),
        sampler=SamplerConfig(slots=16, prefill_rows=4, bucket=16),
        packing=PackingConfig(micro_batch_tokens=256, row_length=32),
        eval=EvalConfig(problems=4),
        score_workers=4,
        score_seconds=0.3,
    )
    train(config)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    errors = [line["reward/errors"] for line in lines]
    assert sum(errors) > 0.15 * 16 * steps and max(errors) < 16
    assert all(math.isfinite(line["loss"]) for line in lines)


@pytest.mark.broad
def test_environments_that_hang_crash_leak_or_never_end_leave_the_run_running(tmp_path):
    """Each is counted and void, or ends with its budget; what it takes is bounded.

    Nothing stalls: a step takes no longer than its limits in turn, and what a busy machine needs.
    """
    config = Config(
        recipe="worlds",
        steps=2,
        run_dir=str(tmp_path),
        task="tests.data.hostile:worlds",
        fresh=FreshModel(16, 32, 1, 2, 2, 8),
        rollout=RolloutConfig(
            prompts=hostile.KINDS,
            group_size=2,
            max_prompt_tokens=8,
            max_new_tokens=40,
            turn_tokens=2,
        ),
        sampler=SamplerConfig(slots=16, prefill_rows=4, bucket=16),
        packing=PackingConfig(micro_batch_tokens=256, row_length=64),
        eval=EvalConfig(problems=5, every=0),
        rollout_log=RolloutLogConfig(groups=hostile.KINDS),
        score_workers=2,
        score_seconds=2.0,
        score_memory_mb=600,
    )
    train(config)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert [line["episode/errors"] for line in lines] == [16.0] * 2  # eight kinds, two of each
    hang = 8  # four kinds, each for an hour
    assert lines[1]["time/step"] < hang * config.score_seconds + 60.0
    assert all(math.isfinite(line["loss"]) and line["logp_gap_max"] < 1e-4 for line in lines[:1])
    rows = (tmp_path / "rollouts/000001.jsonl").read_text().splitlines()
    kinds = collections.Counter(str(json.loads(row)["error"]).split(":")[0] for row in rows)
    assert kinds == {"None": 10, "timeout": 8, "crash": 2, "type": 4, "memory": 2}
    endless = [json.loads(row) for row in rows if json.loads(row)["answer"] == "4"]
    assert all(not row["stopped"] and row["reward"] > 0 for row in endless)
