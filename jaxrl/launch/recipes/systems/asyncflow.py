"""AsyncFlow: sampling goes on with the old weights while the next are made, and is one step late.

Paper: Han et al. 2025, "AsyncFlow: An Asynchronous Streaming RL Framework for Efficient LLM
Post-Training"
Idea: samples stream from one task to the next through a queue, and the sampler takes new weights a
step late instead of waiting for them. GRPO stays as it is: one step of age needs no correction.
Formula: none of its own; `L = -min(rho A, clip(rho) A)` on data of at most one step of age
Claim: 1.59 times the throughput of a synchronous system on average, with rewards that differ from
its by a negligible amount.
Reading: the staleness and the stream of finished groups are the schedule's; their queue and planner
of devices are not here. In verl's recipe of that name the staleness is 1, too; its scripts add a KL
term, and old log-probabilities are computed again by a worker of their own. The speed is that of
their system.
Source: verl-project/verl-recipe@48ea0a797fa29867ea0ad92aff7d284eec7d4be3
async_flow/config/async_grpo.yaml:89;
verl-project/verl-recipe@48ea0a797fa29867ea0ad92aff7d284eec7d4be3
async_flow/async_flow_trainer.py:107-109
Fidelity: partial: without its queue and planner, no KL term
Shown: experiments/runs/lag has what one step of age costs without correction, at lag 1 against lag
0; docs/asynchronous.md has the speed of asynchronous runs of ours against runs in turns
"""

from jaxrl.config import AsynchronousConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(asynchronous=AsynchronousConfig(staleness=1, schedule="lockstep:1"))
EXAMPLE = Example()
"""The quickstart on data of at most one step of age."""
