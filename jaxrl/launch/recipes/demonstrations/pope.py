"""POPE: some samples of a hard prompt continue from the shortest oracle prefix that helps.

Paper: Qu et al. 2026, "POPE: Learning to Reason on Hard Problems via Privileged On-Policy
Exploration"
Idea: the oracle's solution is never a target, only a place to explore from. Where no sample of a
group passes, half of it tries again from longer and longer prefixes until one does; guided and
unguided samples then train side by side.
Formula: `y_i ~ pi(. | x, h)` for guided rows, `h` the shortest prefix with a success; no gradient
on `h`
Claim: more hard problems become solvable, unguided too, than by entropy bonus, clip-higher or
pass@k objectives.
Reading: prefixes of a quarter, half and three quarters of the solution; guided and unguided rows
share their group's baseline; no instruction says that this is a prefix. By reviews the paper finds
each prefix once, with the base model, and trains on guided and plain prompts, one to one, with such
an instruction. The ablation tries again as often, without a prefix. Beside it stand what the claim
names, without second attempts: an entropy bonus of 0.01, clip-higher of 0.28 and the objective of
pass@4.
Source: none found (authors' repository is not to be had; the abstract and two reviews were read)
Fidelity: partial: prefixes found at each visit, guided rows in the group, no instruction
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(
    extensions={"guidance": GuidanceConfig("escalate", {"rows": 4})}, needs=("solution",)
)
EXAMPLE = Example()
"""The quickstart with half of each failed group guided."""
