"""PaST: what RL changed on one domain is added to a policy that has read another by imitation.

Paper: Tang et al. 2026, "Knowledge is Not Enough: Injecting RL Skills for Continual Adaptation"
Idea: imitation adds knowledge, RL adds skills, and the two change weights in nearly orthogonal
directions. So the difference that RL makes on a source domain is a vector of its skill, and can be
added to a policy that has only imitated texts of a new domain.
Formula: `theta = theta_SFT(target) + lambda (theta_RL(source) - theta_SFT(source))`
Claim: SQuAD rises by up to 9.9 points over imitation of self-edited texts, LooGLE by 8.0, tool use
without examples by 10.3.
Reading: lambda is 1, and the difference is taken once; by accounts of the paper, it is refined over
several parts of the source. `config()` is the RL on the source, and `jaxrl merge` with the method
task-arithmetic adds its difference to another run. In the effect, the skill is to mark an answer as
such, which demonstrations of both domains often forget, and the knowledge is codes of other
symbols. The ablation adds nothing. In the control, all demonstrations have the mark.
Source: none found (no repository was found; accounts of the paper have the same formula)
Fidelity: partial: the difference is not refined in rounds; formula from accounts
"""

from jaxrl.launch.method import Example, Method

METHOD = Method(needs=("runs",))
EXAMPLE = Example()
"""The quickstart, whose difference is the skill."""
