"""Theory of mind by RL or by SFT, in one small size: what becomes of the trace of beliefs.

Paper: Lu et al. 2025, "Do Theory of Mind Benchmarks Need Explicit Human-like Reasoning in Language
Models?"
Idea: train models on questions of what someone believes, by RL with rules for answer and format,
and by SFT. Read what they write before the answer beside the accuracy: whether it tracks beliefs,
and how long it is.
Formula: GRPO with `r = 1[answer and format right]` against `-log pi(y*)`; validity, the share of
right steps in a trace
Claim: RL gives a 7B model a belief tracking that transfers; models of up to 3B answer as well, but
their reasoning collapses and is cut short; SFT is as accurate as RL, or more so.
Reading: the authors' reward is 1 or -1 for the format plus 2 or -2 for the answer; a right format
alone earns -1 there and 0 here. In the effect, stories are after Sally and Anne, a step is a box,
and a policy may answer at once; a missing step is not right. `pass@1` is also given for each order
of belief. The ablation is the policy before RL, as the collapse is one from what there was; SFT is
among the baselines. Its solutions have traces, the paper's answers alone. RL raises the accuracy
over that of the untrained policy, and `contrary` requires that it does not. So where traces become
more valid, as they do here, the row against the ablation stays undecided (accuracies differ). The
lab has one size, which is small: that a larger one does not collapse is not shown, nor is transfer
to other benchmarks. In the task `whole traces`, no demonstration answers at once. `config()` is
GRPO on worked sums.
Source: bigai-ai/ToM-RL@2c9242673123ad76540dcef610925b657ae87dd0
verl/utils/reward_score/explore_tom.py:244-257
Fidelity: partial: the reward has two values, not three
"""

from jaxrl.launch.method import Example, Method

METHOD = Method(needs=("runs",))
EXAMPLE = Example(
    {
        "task_args": {"digits": 1, "terms": 3, "operators": "+", "worked": True},
        "rollout": {"max_new_tokens": 12},
    }
)
"""The quickstart's GRPO on sums of three terms, which are worked out before the answer."""
