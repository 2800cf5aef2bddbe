"""LIMR: of a first run keep the prompts whose learning curve goes with the average, train on those.

Paper: Li et al. 2025, "LIMR: Less is More for RL Scaling"
Idea: a prompt that is learned as the whole set is learned drives the learning; those solved from
the start and those never solved do not. One run on all shows which is which.
Formula: `s_i = 1 - sum_k (r_i^k - r_avg^k)^2 / sum_k (1 - r_avg^k)^2`, the highest are kept
Claim: 1,389 of 8,523 problems match or beat all of them.
Reading: formula recalled; a share of the prompts (the paper's, one in six) in place of a threshold.
The first run is no part of the budget. The ablation is as many prompts at random. Beside it stand
as many at random of those that were solved now and then, and as many of pass rates nearest to 1/2.

    jaxrl train quickstart --run-dir runs/before --curriculum.choose
    jaxrl.data.selection.curriculum:passes jaxrl train limr_lim --curriculum.history runs/before
"""

from jaxrl.config import CurriculumConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(curriculum=CurriculumConfig(score="learning_impact", keep=168), needs=("history",))
EXAMPLE = Example()
"""The quickstart, to be given the history of another; without one it trains on all."""
