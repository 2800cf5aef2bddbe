"""HybridFlow as a program: PPO's four roles in one loop, without its placement of them on devices.

Paper: Sheng et al. 2024, "HybridFlow: A Flexible and Efficient RLHF Framework"
Idea: one controller writes an RL algorithm as a flow between roles (actor, critic, reference,
reward), each of which runs on many devices; data are split and gathered at the calls. Weights of
the actor are resharded between the layout that trains and the one that samples.
Formula: PPO with a critic; none of its own
Claim: 1.53 to 20.57 times the throughput of DeepSpeed-Chat, OpenRLHF and NeMo-Aligner over PPO,
ReMax and Safe-RLHF.
Reading: PPO as in verl's examples: `gamma` and `lambda` 1, four updates on each batch, values
clipped at 0.5, no KL; rates are the toy's. The state after a response that the budget cut off has
its value here, and 0 in verl. ReMax and GRPO are the algorithms `remax` and `grpo` on the same
loop. Weights change layout between devices that train and devices that sample, such as
`--mesh.fsdp 4 --sampling.devices 4 --sampling.mesh.tensor 4` on eight; not on the same devices, and
critic and reference are always where the policy is.
Source: volcengine/verl@b178a3cd56f58b2d502255daba591e92833930a7
verl/trainer/config/critic/critic.yaml:80; volcengine/verl@b178a3cd56f58b2d502255daba591e92833930a7
verl/trainer/ppo/core_algos.py:249-261; volcengine/verl@b178a3cd56f58b2d502255daba591e92833930a7
examples/ppo_trainer/run_deepseek7b_llm.sh:7-19
Fidelity: partial: without its placement of models; what the budget cuts off is bootstrapped
Shown: of speed against other systems, nowhere. `tests/jaxrl/rollout/test_reshard.py` has that
resharding changes no token
"""

from jaxrl.extensions.critic import CriticConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.optimizer import OptimizerConfig

METHOD = Method(
    extensions={
        "critic": CriticConfig(optimizer=OptimizerConfig(learning_rate=0.001), mixing=1.0, clip=0.5)
    },
    updates_per_batch=4,
)
EXAMPLE = Example()
"""The quickstart by PPO with a critic, four updates on each batch."""
