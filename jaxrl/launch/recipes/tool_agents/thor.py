"""THOR's RL and self-correction in symbols, without TIRGen: calls that fail are sampled again.

Paper: Chang et al. 2025, "THOR: Tool-Integrated Hierarchical Optimization via RL for Mathematical
Reasoning"
Idea: a call of a tool that runs foretells a right answer, and whether it runs is known at once. So
the episode is trained by its answer, and each call by whether it runs: where one fails, generation
goes back to before it, and other calls from the same prefix are compared with it. At inference the
same way back corrects errors.
Formula: `L = L_episode + alpha L_step`, both GRPO's: outcomes in a group of episodes, calls in a
group of the same prefix
Claim: state of the art at its scale on mathematics, better on code, with and without reasoning.
Reading: a call is a turn here, so a failed one is resampled whole, while the authors' code takes
back the 100 tokens before it too, samples 16 others, and trains on those. Here an episode takes
back up to two calls and goes on from the one that runs, and all calls of a group that follow the
same observation are compared, alpha 1. TIRGen, which turns steps of a reasoner's text into code, is
not here: a short warm start shows the form of calls, after which one episode in nine had a call
that failed. As in the authors' code the clips are 0.2 and 0.28 and there is no KL term. Their loss
besides imitates tokens of positive advantage, by 0.01, and episodes with a failed call are left out
of the episode's loss, as are groups of which less than half is left; here, such an episode stays
and loses 1.
Source: JingMog/THOR@eeabad026970a96fb20851a1e89d3a1509590ac2 verl/workers/actor/dp_actor.py:324;
JingMog/THOR@eeabad026970a96fb20851a1e89d3a1509590ac2
verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py:775
Fidelity: partial: episodes are not filtered, no imitation of what succeeds
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(
        advantage="thor", advantage_args={"weight": 1.0}, policy_args={"clip_high": 0.28}
    ),
    needs=("environment",),
)
EXAMPLE = Example(
    {
        "steps": 60,
        "task": "ledger",
        "task_args": {"digits": 2, "terms": 2, "names": 4, "calls": 5, "failed": -1.0, "again": 2},
        "warm_start": {"steps": 100, "batch_size": 32, "learning_rate": 0.002},
        "rollout": {"max_new_tokens": 96, "turn_tokens": 8},
        "optimizer": {"learning_rate": 0.0004},
        "packing": {"row_length": 128},
    },
    base="retrieval",
)
"""The recipe `verltool` with two calls to take back, and credit for calls that run."""
