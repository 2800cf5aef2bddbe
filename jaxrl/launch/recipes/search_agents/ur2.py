"""UR2 without summaries of what is found: search is offered for what the policy does not know.

Paper: Li et al. 2025, "UR^2: Unify RAG and Reasoning through Reinforcement Learning"
Idea: to search is of use where a question is hard, and a waste where the model can reason to the
answer. Questions are sorted by difficulty before training; prompts offer search for the hard ones
alone. A first stage rewards calls and their form, a second one the answer.
Formula: `R_1 = form + 5 or 7 for one call or several` where search is offered, else `form`, for a
quarter of the steps; then `R_2 = 2 right + form`; REINFORCE++ with a baseline, no KL term
Claim: above RL without search and above search for every question, on knowledge, medicine and
mathematics; fewer calls.
Reading: rewards and their penalties are those of one of the authors' four servers, for a model of
3B, scaled to at most 1; those for 7B have 3 and 4, and for Llama 3, in place of 5 and 7. Their
difficulty is a model's pass rate; here a question is hard if it needs a fact that the warm start
has not taught, which is known exactly and is known at evaluation as well. The world is `recall`:
where search is not offered, the policy writes down what it knows, and that is trained. No summaries
of documents by another model, and no penalty for a call that a search engine cannot answer, as
there is none. `--task-args.engine tool` offers search for every question, and `self` for none. An
environment of your own has both parameters: `engine`, which with `gated` offers search for what the
policy does not know, and `reward`, for which `retrieve` rewards calls and `answer` the answer.
Source: Tsinghua-dhy/UR2@b1cbc8bc4b4d94778baa2dd4180643b10703d753
UR2_RL/train/reward_server_qwen_3b_math_rag_stage1.py:190
Fidelity: partial: difficulty is known in place of measured
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(advantage="reinforce_pp_baseline"),
    updates_per_batch=1,
    stages={
        0: {"task_args.engine": "gated", "task_args.reward": "retrieve"},
        0.25: {"task_args.reward": "answer"},
    },
    needs=("environment", "parameters"),
)
EXAMPLE = Example(
    {
        "steps": 40,
        "task": "recall",
        "task_args": {"engine": "gated", "single": 0.98, "unknown": False, "reward": "answer"},
        "warm_start": {"steps": 150, "batch_size": 64, "learning_rate": 0.002},
        "rollout": {"max_new_tokens": 32, "turn_tokens": 4},
        "optimizer": {"learning_rate": 0.0005},
    },
    base="retrieval",
    stages={
        0: {"task_args.single": 0.0, "task_args.unknown": True, "task_args.reward": "retrieve"},
        0.25: {"task_args.reward": "answer"},
    },
)
"""A quarter of the steps on calls, then on answers."""
