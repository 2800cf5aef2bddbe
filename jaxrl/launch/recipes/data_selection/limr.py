"""LIMR: of a first run keep the prompts whose learning curve goes with the average, train on those.

Paper: Li et al. 2025, "LIMR: Less is More for RL Scaling"
Idea: a prompt that is learned as the whole set is learned drives the learning; those solved from
the start and those never solved do not. One run on all shows which is which.
Formula: `s_i = 1 - sum_k (r_i^k - r_avg^k)^2 / sum_k (1 - r_avg^k)^2`, the highest are kept
Claim: 1,389 of 8,523 problems match or beat all of them.
Reading: the formula is that of the authors' code, whose threshold is 0.2; here a share of the
prompts is kept, the paper's, one in six.
The first run is no part of the budget. The ablation is as many prompts at random. Beside it stand
as many at random of those that were solved now and then, and as many of pass rates nearest to 1/2.
Source: GAIR-NLP/LIMR@98ebf1bd54cc4539a9ac2332327ab0200bc2a88f lim/lim_selection.py:56
Fidelity: partial: a share of the prompts in place of a threshold, none that missed an epoch

    jaxrl train quickstart --run-dir runs/before --curriculum.choose
    jaxrl.data.selection.curriculum:passes jaxrl train limr_lim --curriculum.history runs/before
"""

from jaxrl.config import CurriculumConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(curriculum=CurriculumConfig(score="learning_impact", keep=168), needs=("history",))
EXAMPLE = Example()
"""The quickstart, to be given the history of another; without one it trains on all."""
