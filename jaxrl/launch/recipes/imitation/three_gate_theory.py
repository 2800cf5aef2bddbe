"""Three-gate theory, its diagnostics: what RL and supervised fine-tuning change in the weights.

Paper: Zhu et al. 2025, "The Path Not Taken: RLVR Provably Learns Off the Principals"
Idea: RL keeps close to its policy, so its updates avoid the directions in which the weights are
strongest: spectra hardly move, leading subspaces do not turn, and many weights stay the same when
rounded to bfloat16. Supervised fine-tuning goes for those very directions.
Formula: spectral shift `|sigma(W) - sigma(W_0)| / |sigma(W_0)|`; the largest angle between leading
singular subspaces; the share of weights equal in bfloat16
Claim: RL moves spectra less than supervised fine-tuning does, over runs, data and recipes.
Reading: `config()` is GRPO with a solution beside each group that it does not learn from, so that
both arms see the same batches. The ablation imitates the solutions. The spectral shift is the mean
over matrices, read beside the accuracy; leading subspaces have 16 dimensions at most. Both are
ours. Updates restricted to weak weights, and low-rank adapters, which the paper studies too, are
left out. `jaxrl weights BEFORE AFTER` gives these figures of runs.
Source: paper, equations 1 and 2; paper, section 4.1
Fidelity: verified against equations
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(advantage="sampled_advantages"),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart's GRPO, beside solutions that it leaves aside."""
