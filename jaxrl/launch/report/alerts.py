"""Alerts in words: what the metrics of a run's last steps mean, and what to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

PATIENCE = 3
"""Steps in a row that must show a sign before it is reported."""

_GAPS = {"float32": 1e-3, "bfloat16": 5e-2}
"""Largest mean difference of log-probabilities, sampler to trainer, by compute dtype."""
_ZERO, _CUT, _COLLAPSE = 0.8, 0.3, 0.1

Dtype = Literal["float32", "bfloat16"]


def alerts(rows: Sequence[Mapping[str, float]], dtype: Dtype = "float32") -> dict[str, str]:
    """What is wrong in each of the last `PATIENCE` steps, by a short name, in a sentence or two.

    Args:
      rows: metrics of all steps so far, oldest first.
      dtype: the compute dtype, which says how well log-probabilities can agree.
    """
    if len(rows) < PATIENCE or "epoch" in rows[-1]:  # rows of a file are not sampled
        return {}
    last = rows[-PATIENCE:]
    row = last[-1]
    messages: dict[str, str] = {}

    def always(name: str, over: float) -> bool:
        return all(metrics.get(name, 0.0) > over for metrics in last)

    if always("reward/zero_variance_groups", _ZERO):
        reward = row.get("reward/mean", 0.0)
        messages["zero-advantage groups"] = (
            f"{row['reward/zero_variance_groups']:.0%} of the groups have equal rewards "
            f"(mean {reward:.3g}) and teach nothing; try prompts of another difficulty, a larger "
            "--rollout.group-size, --rollout.oversampling 3, or a reward with partial credit"
        )
    if always("truncated", _CUT):
        messages["truncation"] = (
            f"{row['truncated']:.0%} of the completions reach the token budget and are cut off, "
            "often before their answer; try a larger --rollout.max-new-tokens, or a prompt that "
            "asks for short answers"
        )
    first = [metrics["entropy"] for metrics in rows[:PATIENCE] if "entropy" in metrics]
    start = sum(first) / len(first) if first else 0.0
    if start > 0 and all(metrics.get("entropy", start) < _COLLAPSE * start for metrics in last):
        messages["entropy collapse"] = (
            f"the entropy fell from {start:.3g} to {row['entropy']:.3g} nats per token: the policy "
            "repeats itself and explores little; try a lower --optimizer.learning-rate, "
            "--objective.policy-args.clip_high 0.28, --objective.kl-coef 0.01, or --entropy-coef "
            "0.001"
        )
    if always("logp_gap", _GAPS[dtype]):
        messages["sampler/trainer gap"] = (
            f"the sampler's and the trainer's log-probabilities differ by {row['logp_gap']:.2g} "
            f"per token on average, more than the {_GAPS[dtype]:g} expected in {dtype}, so updates "
            "are biased; try --compute-dtype float32, or compare one step with `jaxrl replay RUN`"
        )
    return messages
