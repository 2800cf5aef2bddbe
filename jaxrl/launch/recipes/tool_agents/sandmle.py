"""SandMLE's micro tasks and milestones in one turn: no agent, no tasks made by language models.

Paper: "Synthetic Sandbox for Training Machine Learning Engineering Agents", 2026
Idea: an agent for machine learning cannot be trained on-policy if every rollout trains for hours.
Tasks with 50 to 200 rows keep the pipeline and run in a fraction of the time; what is learned on
them carries over to full size. The reward counts milestones.
Formula: `R = 0.1 form + 0.2 [valid] + 0.7 gold | 0.6 silver | 0.5 bronze | 0.1 median`
Claim: execution takes less than 1/13 of the time; medals on MLE-bench-lite rise by 20 to 67% over
supervised baselines of 8B to 30B.
Reading: the reward, the upper clip of 0.28 and the sparse ablation, `0.1 form + 0.9 [gold]`, are
those of the authors' code, where form is the share of turns with a thought; here it is whether the
answer can be read. Their agent writes programs in many turns for tasks that language models made.
Here the task `micro_ml` makes tables by a rule, and the answer chooses features, degree and penalty
of a fit that runs in the sandbox. The warm start has one feature and degree 1 in 70% of its
solutions. The ood split has tables of 1,000 rows. `--task-args.reward sparse` is the ablation.
Source: Tonyzhou98/SandMLE@09123622eb5669ec980a39966d3b232319b4ccc6
examples/deepresearch/deepresearch_workflow.py:272
Fidelity: verified against code
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(
        policy_args={"clip_low": 0.2, "clip_high": 0.28}, aggregation="seq-mean-token-mean"
    ),
    needs=("task",),
)
EXAMPLE = Example(
    {
        "steps": 30,
        "task": "micro_ml",
        "task_args": {"slips": 0.7},
        "warm_start": {"steps": 150, "batch_size": 16, "learning_rate": 0.002},
        "rollout": {"prompts": 8, "max_prompt_tokens": 24, "max_new_tokens": 12, "turn_tokens": 0},
        "optimizer": {"learning_rate": 0.0005},
        "eval": {"problems": 64, "split": "ood"},
        "score_workers": 2,
    },
    base="retrieval",
)
"""Tables of 50 to 150 rows, after a warm start; evaluated on tables of 1,000."""
