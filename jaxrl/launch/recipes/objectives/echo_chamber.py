"""Echo chamber: of the formats that pre-training has shown, RL leaves one.

Paper: Zhao et al. 2025, "Echo Chamber: RL Post-training Amplifies Behaviors Learned in Pretraining"
Idea: pre-train on a known mixture of formats, do RL, and count formats as it goes on. RL does not
mix them: it raises one, and answers in the others vanish, for expert iteration, PPO and GRPO alike.
Formula: expert iteration `-1[r = 1] log pi(y)`; the share of the commonest format among right
answers
Claim: RL converges to one format of pre-training, which one depends on scale; pass@1 rises and
diversity falls.
Reading: expert iteration is the method and GRPO a baseline, as the claim is of both. In the
authors' code it is fine-tuning, for epochs, on what a fixed model solved, each solution once; here
each batch is learned from in one update, repeated solutions as often. Two formats write every
symbol in one of two codes, seven demonstrations in ten in the first; the verifier takes either. The
ablation is the policy as pre-training left it. In the task `even formats`, the demonstrations have
both equally often.
Source: rosieyzh/openrlhf-pretrain@34d239dabd076363b2f666dc6f0d351ec0f5be0b
openrlhf/cli/train_ei.py:50-69
Fidelity: partial: an update a batch in place of epochs on a set without repetitions
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(policy="expert_iteration"))
EXAMPLE = Example()
"""The quickstart with expert iteration."""
