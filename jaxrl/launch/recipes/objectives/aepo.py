"""AEPO: rows divided by entropies, gradients scaled past the clip; the loss alone is measured.

Paper: Dong et al. 2025, "Agentic Entropy-Balanced Policy Optimization"
Idea: the tokens that open new ways are unlikely ones, whose ratio moves fast and meets the upper
clip first. Past it their gradient is scaled, not cut; and the advantage of a token grows with the
entropy it was drawn from. The rollout monitors a first row: the surer the policy is after results
of tools, the more rows begin anew, and the others branch where entropy rises after a result, less
so right after another branch.
Formula: `-(1 + e) / sg(r) r A'` where `A > 0` and `r > 1 + e`, PPO's clip elsewhere;
`A' = A (1 + alpha H_t / max_t H)`; `k sigmoid(beta (H_root - H_tool))` of k rows begin anew; a
branch has `P = (p + w (H_t - H_root)) (1 - c l)`
Claim: beats seven RL algorithms on 14 agent data sets; GAIA 47.6 with 1,000 samples.
Reading: formulas recalled, constants ours; the authors' code for ARPO gave how rows are filled up
and entropies are normalised, and their code for AEPO was not found. Branches are drawn turn by
turn, from fresh rows and from branches, after the row that they leave has ended. `config()` is the
whole method on the search agent of `retrieval`; `--branching.fresh 0.5 --branching.penalty 0`
branches as ARPO does. The lab has answers of one turn, where nothing can branch. Its effect is of
the loss alone, and its ablation is DAPO's clip at the same widths.
Source: none found (ARPO's code was read, AEPO's not found)
Fidelity: partial: formulas recalled, constants ours
"""

from jaxrl.extensions.branching import BranchingConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(policy="aepo"),
    extensions={"branching": BranchingConfig()},
    updates_per_batch=4,
    needs=("environment",),
)
EXAMPLE = Example(
    {"steps": 16, "warm_start": {"steps": 40, "batch_size": 64, "learning_rate": 0.002}},
    base="retrieval",
)
"""Search from a short warm start, with AEPO's rollout and four updates on each batch."""
