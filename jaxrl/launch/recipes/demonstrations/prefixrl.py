"""PrefixRL: on-policy RL from prefixes of correct solutions, which the policy need not like.

Paper: Setlur et al. 2026, "Reuse your FLOPs: Scaling RL on Hard Problems by Conditioning on Very
Off-Policy Prefixes"
Idea: cut a correct trace of a hard problem somewhere, let the policy write on from there, and train
on what it wrote alone. The prefix sets the difficulty; what is learnt after it carries back to the
problem without it.
Formula: `J = E_(x, h ~ prefixes(x)) E_(y ~ pi(. | x, h)) r(x, h y)`, no gradient on `h`; and
`E_x E_(y ~ pi(. | x)) r(x, y)` in the same batch
Claim: the same training reward twice as fast as SFT-then-RL, 3x the final reward; it transfers to
problems without a prefix.
Reading: half the groups begin with a share of 0.2 to 0.8 of the task's own solution. By two reviews
the paper cuts the base model's own correct traces at 0.4 to 0.8, three times each, and has three
such prompts to each plain one. Evaluation has no prefix.
Source: none found (repositories by title and name; two reviews with equation 3.1 were read)
Fidelity: partial: the task's solutions in place of sampled traces, other cuts and mixture
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(extensions={"guidance": GuidanceConfig("prefixes")}, needs=("solution",))
EXAMPLE = Example()
"""The quickstart, with a given prefix for half of its groups."""
