"""DONOD by one plain step on the output layer: fine-tune on the solutions that a model chooses.

Paper: Hu et al. 2025, "DONOD: Robust and Generalizable Instruction Fine-Tuning for LLMs via
Model-Intrinsic Dataset Pruning"
Idea: take one step on a sample alone. A sample is good if the step makes the weights' norm larger,
and bad if it moves the weights far, as wrong and unlearnable ones do. Rank all samples by both,
keep the best, and fine-tune on them. No other model and no validation set is needed.
Formula: `DON = |W - r G| - |W|`, `NOD = |r G|`; kept are the largest
`d_worst / (d_best + d_worst)`, distances to the best and worst values of both (TOPSIS)
Claim: with 70% of the data left out, accuracy rises by 14.9% on the target and by 5.7% elsewhere;
noisy samples are among those left out.
Reading: no code of the authors is known. DON and NOD are those of the abstract; reviews of the
paper give their directions, the output layer and its Frobenius norm. The step is one of gradient
descent on the mean loss of the solution, with r = 1e-3. Weights of TOPSIS are equal. In the effect,
40% of the solutions are replaced by random symbols, and 30% of all are kept; `clean` is the share
of right ones among them. The ablation keeps 30% at random.
Source: none found (authors' code; the abstract and four reviews of a submission were read)
Fidelity: partial: the step's rate and the weights of TOPSIS are ours, equations were not read
"""

from jaxrl.config import CurriculumConfig
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

SHARE, WRONG = 0.3, 0.4
"""Of the solutions: what is kept, and what is replaced."""

METHOD = Method(
    objective=ObjectiveConfig("chord", {"mu": 1.0}, advantage="sampled_advantages"),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    curriculum=CurriculumConfig("closest", {"share": SHARE}),
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart's solutions, of which 65% forget carries, imitated where they are kept."""
