"""What a policy objective's paper uses with it: its advantage and its aggregation.

`--objective.policy dr_grpo` alone is Dr. GRPO: the advantage without division and the sum over
tokens come with the name. What the user sets stands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxrl.training.objective import ObjectiveConfig

_UNSCALED = {"scale": "none"}
_MEAN, _SUM = "seq-mean-token-mean", "seq-mean-token-sum"

COMPANIONS: Mapping[str, Mapping[str, Any]] = {
    "a_lol": {"advantage_args": _UNSCALED, "aggregation": _SUM},
    "dr_grpo": {"advantage_args": _UNSCALED, "aggregation": "seq-mean-token-sum-norm"},
    "gmpo": {"aggregation": _MEAN},
    "gpg": {"advantage": "gpg_advantages"},
    "grao": {"aggregation": _MEAN},
    "grpo": {"aggregation": _MEAN},
    "gspo": {"aggregation": _MEAN},
    "kimi_opmd": {"advantage_args": _UNSCALED, "aggregation": _MEAN},
    "oapl": {"advantage": "soft_advantages", "aggregation": _MEAN},
    "pacs": {"aggregation": _MEAN},
    "pair_dpo": {
        "advantage_args": {"baseline": "none", "scale": "none"}, "aggregation": _MEAN,
    },
    "rec": {"advantage_args": _UNSCALED},
    "reinforce": {"aggregation": _SUM},
    "vcpo": {"aggregation": _MEAN},
}  # fmt: skip
"""Policy objective -> fields of `ObjectiveConfig`; of others, the defaults belong to it."""

_FIELDS = ("advantage", "advantage_args", "aggregation")


def with_policy(objective: ObjectiveConfig, policy: str) -> ObjectiveConfig:
    """The objective with another policy objective and what belongs to that.

    Args:
      objective: to begin with. A field that is neither a default nor a companion of its policy
        objective was set on purpose, and stays.
      policy: name of the policy objective.
    """
    before, after = COMPANIONS.get(objective.policy, {}), COMPANIONS.get(policy, {})
    plain = ObjectiveConfig()
    changes: dict[str, Any] = {"policy": policy}
    for field in _FIELDS:
        default = getattr(plain, field)
        if getattr(objective, field) in (default, before.get(field, default)):
            changes[field] = after.get(field, default)
    return dataclasses.replace(objective, **changes)
