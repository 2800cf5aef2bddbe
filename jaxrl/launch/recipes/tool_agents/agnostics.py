"""Agnostics on one-line programs, tests rewritten by a rule: one verifier, languages as YAML.

Paper: Boruch-Gruszecki et al. 2025, "Agnostics: Learning to Code in Any Programming Language via
Reinforcement with a Universal Learning Environment"
Idea: what a program prints for an input says whether it is right, in whatever language. So the unit
tests of a data set become examples of input and output, a short YAML file says how to run programs
of a language, and GRPO trains on any of them with the same verifier.
Formula: `R = 1` if the output is the expected one for every input, else `0`; GRPO without a KL term
Claim: Qwen3-4B doubles its pass@1 in Lua, Julia and R and goes from 1 to 7 in OCaml and from 0 to
15 in Fortran on Ag-LiveCodeBench-X, near models of 16B to 70B.
Reading: the authors' reward is all or nothing; with `--partial-reward`, as in the command of their
README, a wrong output has 0.2. They sample by the weights before the last update. A language model
rewrote their tests, and here `jaxrl.data.sources.io_examples` does where every value fits on a
line. Their data are MBPP, Codeforces and LiveCodeBench; here the task `polyglot` has functions of
two operators in Python, Bash and a language of postfix words, whose YAML file is its whole
implementation. Solutions of the warm start are right in the known languages and wrong in 90% of
those in the new one. `--task-args.languages python,bash,awk` makes AWK the new one.
Source: nuprl/agnostics-framework@78eee32e0dd8064532ceab5326c48fbc0b6bd9c9
src/agnostics/cli/grpo.py:69-77; nuprl/agnostics-framework@78eee32e0dd8064532ceab5326c48fbc0b6bd9c9
prl_ml/prl_ml/prl_ml/grpo/ray_trainer.py:95-97;
nuprl/agnostics-framework@78eee32e0dd8064532ceab5326c48fbc0b6bd9c9
prl_ml/prl_ml/prl_ml/grpo/ray_trainer.py:456-474
Fidelity: partial: a mean over tokens, theirs over responses; theirs samples an update late
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(), needs=("task",))
EXAMPLE = Example(
    {
        "steps": 30,
        "task": "polyglot",
        "task_args": {"languages": "python,bash,stack", "slips": 0.9},
        "warm_start": {"steps": 300, "batch_size": 64, "learning_rate": 0.002},
        "rollout": {"prompts": 8, "max_prompt_tokens": 24, "max_new_tokens": 56, "turn_tokens": 0},
        "optimizer": {"learning_rate": 0.0005},
        "packing": {"row_length": 80},
        "eval": {"problems": 96},
        "score_workers": 2,
    },
    base="retrieval",
)
"""One-line programs in three languages, the last of them known badly."""
