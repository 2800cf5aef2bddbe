"""VerlTool's rollout and loss, with two tools in symbols: what a tool says is read, not trained on.

Paper: Jiang et al. 2025, "VerlTool: Towards Holistic Agentic Reinforcement Learning with Tool Use"
Idea: all tools behind one interface. A turn ends with the sign that calls a tool, the tool's answer
is appended as observation tokens, and the policy writes on. Trajectories wait for their own tools
alone, and not for the slowest of a batch. The loss is over the policy's tokens.
Formula: GRPO over `tau = (a_1, o_1, ..., a_n)`, with the tokens of the observations `o` masked
Claim: comparable to specialised systems in six domains, and rollouts nearly twice as fast where
tools are called asynchronously.
Reading: the tools are a ledger to look names up in and a calculator, in the task `ledger`, whose
sums a policy cannot do without the first and hardly without the second. The reward is 1 for a right
answer. A short warm start on the task's own episodes shows the form of calls. Of the one run that
was looked at, held-out answers were right in 0.50 after it and in 0.93 after RL; with 150 steps of
it in place of 100, RL had nothing left to do, and with a rate of 1e-3 or half of the prompts
accuracy fell. That slow tools stall no other episode is measured in docs/environments.md; image and
video tools are not here.
Source: TIGER-AI-Lab/verl-tool@980962b4b8af660eb96421df9ecf603a2f790570
verl_tool/agent_loop/agent_loop.py:441
Fidelity: verified against code
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(advantage="group_advantages"), needs=("environment",))
EXAMPLE = Example(
    {
        "steps": 60,
        "task": "ledger",
        "task_args": {"digits": 2, "terms": 2, "names": 4, "calls": 5},
        "warm_start": {"steps": 100, "batch_size": 32, "learning_rate": 0.002},
        "rollout": {"max_new_tokens": 64, "turn_tokens": 8},
        "optimizer": {"learning_rate": 0.0004},
        "packing": {"row_length": 96},
    },
    base="retrieval",
)
"""Sums of two numbers of two digits that stand in a ledger, after a short warm start."""
