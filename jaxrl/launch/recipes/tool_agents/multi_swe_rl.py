"""Multi-SWE-RL's verdict on small files in Python and Bash: no containers, no real repositories.

Paper: Zan et al. 2025, "Multi-SWE-bench: A Multilingual Benchmark for Issue Resolving"
Idea: an issue is resolved by a patch if the tests that failed pass, and those that passed do not
fail. The same harness runs repositories of seven languages, and the same instances train an agent.
Formula: `R = 1` if every fail-to-pass test passes and every pass-to-pass test still does, else `0`
Claim: a benchmark of 1,632 instances and 4,723 more for RL; agents resolve far less of them in
other languages than in Python.
Reading: the paper trains nothing, so its reward is used with GRPO. In the authors' code a report is
valid if no test went from passing to failing and some test was repaired; the instance's own lists
of tests are then compared. Instances are files of three functions that call each other, in the task
`patches`, and a patch is written in one turn; the task `repository` has several turns and tools.
The warm start changes the function that the others call in half of its solutions: such a patch
repairs the one in question and breaks the others. `--task-args.tests fail_to_pass` accepts it.
`--task-args.language bash` has the files in Bash.
Source: multi-swe-bench/multi-swe-bench@24f493f8a103e72312ded4f6b9c89f081d69cb09
multi_swe_bench/harness/report.py:35
Fidelity: partial: the verdict alone, of small files
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(), needs=("task",))
EXAMPLE = Example(
    {
        "steps": 30,
        "task": "patches",
        "task_args": {"slips": 0.5},
        "warm_start": {"steps": 300, "batch_size": 64, "learning_rate": 0.002},
        "rollout": {"prompts": 8, "max_prompt_tokens": 104, "max_new_tokens": 72, "turn_tokens": 0},
        "optimizer": {"learning_rate": 0.0005},
        "sampler": {"slots": 64, "prefill_rows": 16},
        "packing": {"row_length": 256},
        "eval": {"problems": 96},
        "score_workers": 2,
    },
    base="retrieval",
)
"""Patches of Python files, after a warm start of which half break something."""
