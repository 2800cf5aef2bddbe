"""RAM and RAM+, by `jaxrl merge`: agents that RL has trained on different tasks become one model.

Paper: Yuan et al. 2026, "Behavior Knowledge Merge in Reinforced Agentic Models"
Idea: RL changes few weights, and other ones in each agent. A mean over agents shrinks what one of
them alone has changed. So average an entry over the agents that changed it, and keep it whole where
one did. RAM+ enlarges what an agent alone has changed, the more it shares with others.
Formula: `theta_0 + mean_(k in K) tau_k`; where K is k alone,
`theta_0 + (1 + (r - 1) min(shared_k / alone_k, 1)) tau_k`
Claim: the merge is above the mean, task arithmetic, TIES and DARE, and above each agent on its own
task.
Reading: as in the authors' code; RAM is r = 1, and their RAM+ r = 1.2. `config()` is the RL of one
agent. An entry has changed if it moved by more than 1e-5, ten times the rate at which such agents
are trained; the threshold has to grow with the rate.
Source: xiangchi-yuan/mrl@e2d930da6c720ff4aa38d55d8f2fcd83e4e60e11 ram-main.py:364-425
Fidelity: verified against code
Shown: experiments/runs/merging has RAM above the mean and TIES, not told apart from task
arithmetic, and below each policy on its own domain

    jaxrl train grpo --model M --data one.jsonl --reward one.py:score --run-dir runs/one
    jaxrl train grpo --model M --data two.jsonl --reward two.py:score --run-dir runs/two
    jaxrl merge runs/one runs/two --method ram --scale 1.2 --base M --out merged
"""

from jaxrl.launch.method import Example, Method

METHOD = Method(needs=("runs",))
EXAMPLE = Example()
"""The quickstart, an agent on one task."""
