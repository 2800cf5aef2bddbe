"""APRIL: more rollouts are begun than a step takes, and those it does not wait for continue later.

Paper: Zhou et al. 2025, "APRIL: Active Partial Rollouts in Reinforcement Learning to Tame Long-tail
Generation"
Idea: a few long answers make all devices wait. Begin half as many groups again as a step takes,
train on those that finish first, stop the others where they are, and continue them in the next
step.
Formula: `N' > N` groups in progress; a step takes the first `N` to finish
Claim: rollout throughput rises by 22.5% on average and by 44% at most; final accuracy is 2.1%
higher on average.
Reading: partial rollouts continue under the next weights and are read again. Steps prefer short
answers, which the metric `length_bias` shows. The released scripts have twice as many groups in
progress as a step takes, those of the buffer first; here it is 1.5 times. Their ratios are to the
trainer's policy before the update, so that nothing corrects for tokens of older weights; here the
clip is around the log-probabilities that were recorded as each token was sampled.
Source: RLsys-Foundation/APRIL@a72b5853d63a3bf27d804be970e414d31b2c5843
scripts/partial_rollout/deepseek/dapo/run-deepseek-r1-distill-qwen-1.5B-dapo-partial.sh:91
Fidelity: verified against code
Shown: docs/asynchronous.md has the seconds of a step with partial rollouts and without, by
`tests/benchmarks/predicted.py`
"""

from jaxrl.launch.method import Example, Method

METHOD = Method(rollout={"in_flight": 1.5})
EXAMPLE = Example()
"""The quickstart with half as many groups again in progress."""
