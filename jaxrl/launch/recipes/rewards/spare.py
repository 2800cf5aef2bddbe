"""SPARE's labels in one pass, by rule: no language model annotates, and no ORPO follows.

Paper: Rizvi et al. 2025, "SPARE: Single-Pass Annotation with Reference-Guided Evaluation for
Automatic Process Supervision and Reward Modelling"
Idea: a process reward model needs a label for each step. Rollouts from each step are many, and
leave out what is there already: the reference solution. Align each step with the reference and
judge it, all in one pass, and train the model on these labels.
Formula: `L = -sum_i (y_i log s(r_i) + (1 - y_i) log(1 - s(r_i)))`, `y_i` the label of step i
Claim: level with labels by tree search at 38% of the time (43% of the tokens), and best of 20 above
outcome models on four datasets.
Reading: `jaxrl train prm` aligns by rule where rows have a reference in place of labels, and
`--reward RUN --reward-model.steps last` aggregates the model's steps; the toy has the labels
themselves as its reward. As in the authors' code, the last label is the outcome's. In the effect,
two models learn from as many tokens of labels, and RL follows each; `best@8` is their choice among
8 answers of the policy before it. Steps are multiplied there, the paper takes the last. The
ablation's labels are those of 4 rollouts a step. In the control, both models learn from as many
solutions, at whatever cost.
Source: UKPLab/aaai2026-spare-prm@d1076e02de3a326bca2a2c3dc92c8821c078175b
spare-prm/models/RewardModel/CLMTokenClassifierRMTrainer.py:77;
UKPLab/aaai2026-spare-prm@d1076e02de3a326bca2a2c3dc92c8821c078175b spare-prm/data/rm_utils.py:136;
paper, equation 1
Fidelity: partial: labels by rule in place of a language model
"""

from jaxrl.launch.method import Example, Method

METHOD = Method(needs=("judge",))
EXAMPLE = Example(
    {
        "task_args": {
            **{"digits": 2, "terms": 3, "operators": "+"},
            **{"worked": True, "stepwise": True, "slips": 0.65},
        },
        "rollout": {"max_new_tokens": 16},
    }
)
"""The quickstart on sums of three numbers, whose steps are compared with the solution's."""
