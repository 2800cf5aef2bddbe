"""RLKV by an experiment of its own: no option of a run trains gates, and no cache gets smaller.

Paper: Du et al. 2025, "Which Heads Matter for Reasoning? RL-Guided KV Cache Compression"
Idea: a cache that keeps the first and the last tokens alone breaks reasoning in some heads and in
others not. So give each key-value head a gate between full and local attention, freeze the weights,
and train the gates by RL on what the model itself writes, with a penalty on open gates that acts
where rewards are high. Heads of the least gates then get a cache of constant size.
Formula: `alpha attend(q, k, v) + (1 - alpha) attend_local(q, k, v)`, GRPO without KL
`+ beta 1[r > tau] (exp(r) - 1) mean |alpha|`, alpha clipped to [0, 1]
Claim: 20 to 50% less cache at nearly the same accuracy on GSM8K, Math500, AIME24 and MBPP.
Reading: gates and penalty are as in the authors' code, where micro-batches have weights of their
own and the coefficient is 0.001 to 0.0025, and 0.1 in the experiment. Gates are
`jaxrl.models.gates`, and the penalty is `jaxrl.losses.regularizers.adaptive_sparsity`. `config()`
is the RL whose policy is gated afterwards; experiments/runs/head-gates/experiment.py trains the
gates. A local head is computed by a mask. Shown: experiments/runs/head-gates has RLKV's gates above
random heads, not told apart from attention, and no difference to a constant penalty; 20% less cache
costs 0.046.
Source: Kurt232/rlkv-areal-v0.3.4.post1@6f9933dfb5288693acf331c6ac893c1c175cb4ff
areal/mixed_attn/forward.py:50;
Kurt232/rlkv-areal-v0.3.4.post1@6f9933dfb5288693acf331c6ac893c1c175cb4ff
areal/mixed_attn/loss.py:11-16
Fidelity: partial: their GRPO is asynchronous and scales advantages over the batch
"""

from jaxrl.launch.method import Example, Method

METHOD = Method(needs=("runs",))
EXAMPLE = Example()
"""The quickstart, a policy whose heads are to be chosen from."""
