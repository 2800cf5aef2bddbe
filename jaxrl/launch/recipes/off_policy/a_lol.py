"""A-LoL on the run's own samples, with a group's mean as the value: only what beats it is learned.

Paper: Baheti et al. 2024, "Improving Language Models with Advantage-based Offline Policy Gradients"
Idea: a response is one action, the data set is fixed. Weigh each sample's likelihood gradient by
its advantage over the value that the initial policy has on the prompt, drop what is below it, and
bound the ratio to the initial policy by which the data are corrected.
Formula: `-max(A, 0) sg(clip(pi / pi_ref, 1 - c, 1 + c)) log pi`, `A = R - V_ref(x)`
Claim: more helpful, safe and diverse than PPO, DPO and reward-weighted likelihood; robust to noise.
Reading: the mean reward of a prompt's group stands for the value head (in the authors' code a head
on the hidden states of the frozen model). The paper is offline. So is the effect, whose data stay
the initial policy's, and not `config()`, whose data are the run's own. The ablation is the paper's
R-LoL: the raw reward in place of the advantage.
Source: abaheti95/LoL-RL@9f8d81660bfa0bad17ae5d7835185987f028812e
train_generation_task_with_off_policy_PG.py:669-697
Fidelity: partial: a prompt's mean reward in place of the value head
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(
        policy="a_lol", advantage_args={"scale": "none"}, aggregation="seq-mean-token-sum"
    )
)
EXAMPLE = Example()
"""The quickstart with A-LoL's objective."""
