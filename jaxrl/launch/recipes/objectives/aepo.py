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
Reading: the clip is that of the authors' code, of which the repository below has a copy. There
`A' = A (1 + 0.2 z)`, z the current policy's entropy standardised over the micro-batch, and losses
of bad tokens end at `3 |A|`. The row that tells how many begin anew is played beforehand and thrown
away, H_tool is the mean over all of its turns, beta is 0.5, and l counts the branches of the
prompt, at 0.05 each. How rows are filled up is as in ARPO's code. Branches are drawn turn by turn,
from fresh rows and from branches, after the row that they leave has ended. `config()` is the whole
method on the search agent of `retrieval`; `--branching.fresh 0.5 --branching.penalty 0` branches as
ARPO does. The lab has answers of one turn, where nothing can branch. Its effect is of the loss
alone, and its ablation is DAPO's clip at the same widths.
Source: multi-agent-deep-research/ARPO@870d54caf83dae1073657e9d7725e541c6444548
AEPO/verl_aepo_entropy/verl/trainer/ppo/core_algos.py:655-658
Fidelity: partial: entropies as shares of the largest, and other constants of the rollout
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
