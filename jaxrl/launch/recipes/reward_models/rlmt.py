"""RLMT by GRPO: think, then answer; the reward model is named by the user, and no chat is started.

Paper: Bhaskar et al. 2025, "Language Models that Think, Chat Better"
Idea: thinking is trained where a rule can check the answer, and preferences are trained on answers
that were given at once. Do both: let a reward model score the answer, without the thought, and let
the gradient cover thought and answer.
Formula: `max E[r_RM(x, y)]` over `(z, y) ~ pi(. | x)`, z the thought and y the answer
Claim: 3 to 7 points on AlpacaEval2, WildBench and ArenaHardV2 over RLHF without thought; 1 to 3 on
creative writing and knowledge.
Reading: `--reward RUN` names the reward model, which reads what follows `</think>`. The authors'
GRPO has a KL term of 0.001 and an entropy bonus of 0.001, which are left out. Without a model the
toy has the task's own reward, on sums whose work is shown. On-policy DPO and PPO, which the paper
tries too, are left out. In the effect, the reward model is trained on noisy comparisons of answers,
and gives each prompt scores of its own. The ablation answers the same questions at once, which two
layers hardly learn, under the same reward model; both are measured by the true answer. In the task
`true reward`, both arms are trained on it too.
Source: princeton-pli/RLMT@2cde311b9dad4b71a9d49eacf8f921c0026a5a95
training/ppo_grpo/verl/workers/fsdp_workers.py:1786-1805
Fidelity: partial: no KL term, no entropy bonus; the user names the reward model
"""

from jaxrl.launch.method import Example, Method

METHOD = Method(needs=("judge",))
EXAMPLE = Example(
    {
        "task_args": {"digits": 2, "terms": 3, "operators": "+", "worked": True, "slips": 0.65},
        "rollout": {"max_new_tokens": 16},
    }
)
"""The quickstart on sums of three numbers, solved a step at a time."""
