"""Control on the same core: environments as pure functions, and training wholly inside jit.

`load(run)` is the policy of a run: `action = load("runs/mine")(observation)`. With
`relabel(data, reward)` offline data have another reward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl.control.policy import Policy

__all__ = ["load", "relabel"]


def load(run: Any, seed: int = 0, point: str = "last") -> Policy:
    """The policy of a control run, see `jaxrl.control.policy.load`."""
    from jaxrl.control import policy

    return policy.load(run, seed, point)


def relabel(data: Any, reward: Any) -> Any:
    """Offline data with another reward, see `jaxrl.data.offline.transitions.relabel`."""
    from jaxrl.data.offline import transitions

    return transitions.relabel(data, reward)
