"""KARL in symbols: OAPL on a search agent, in three search regimes, on synthesised questions.

Paper: Databricks 2026, "KARL: Knowledge Agents via Reinforcement Learning"
Idea: the optimum of KL-regularised RL around the sampler has `beta log(pi / pi_gen) = r - V` with a
soft value V. Fit that by least squares over the sampler's own groups: no ratio, no clip, and the
sampler need be renewed only now and then. A batch mixes search regimes. Its questions are composed
of what a synthesiser has found with the search engine, and those are kept that the policy answers
at times. At test time, episodes in parallel vote on the answer.
Formula: `(beta log(pi(y) / pi_gen(y)) - (r - V))^2`, `V = beta_1 log mean_i exp(r_i / beta_1)`,
with `log pi(y)` the sum over the agent's own tokens
Claim: Pareto-optimal search agents from large-batch off-policy RL that withstands the mismatch of
trainer and sampler.
Reading: the objective is as a fork of NeMo-RL has it, and the pipeline as summaries of the paper
tell it; neither the paper nor code of its authors was to be had. The agent asks the search engine
of `retrieval` for facts that each problem has of its own, and its tokens of all turns are one
log-ratio; results are masked. The reward is 1 for the right answer. A short imitation stands for
the agent that the paper begins with. `--with sampler_refresh --sampler-refresh.every 20` renews the
sampler every 20 steps, and `--sampling.weights int8` makes it differ from the trainer. Here are
three of the paper's six regimes in each batch: `hops` searches for an entity, `count` for all that
match, and `compare` for numbers. Held-out questions are not synthesised. A synthesised question
that is held out is dropped, and no world gives a question twice. `curriculum.frontier` filters by
pass rates: each step tries new questions, trains once more on those that the policy answered at
times, and tries the dropped ones again when no new ones are left. `jaxrl eval RUN --k 8` has 8
episodes vote (maj@8), by regime. Different: the synthesiser is a program, as the policy cannot
write questions, so that bootstrapping changes which questions are kept and not which are made; its
answers are right by construction and need no judge. Regimes share the prompts of a batch, not its
tokens. Two parts stand around any environment: the task `with_compression`, in which notes that the
policy writes take the place of its history, and `with_attempts`, in which it answers after reading
the answers of its own attempts. The recipe does without them, as its episodes are short. `jaxrl
eval RUN --search 4` is their search guided by values, with the values of the extension `ilql`. Not
here: reports, procedures and long documents, and their rewards in parts, which take a language
model. The lab's effect is of the loss on one turn, with a sampler as old; the ablation is REINFORCE
on the same data.
Source: vinhngx/RL@a3fea4ca731ca042971d189c0e9acc70e3b9614e
nemo_rl/algorithms/loss/loss_functions.py:637; vinhngx/RL@a3fea4ca731ca042971d189c0e9acc70e3b9614e
nemo_rl/algorithms/advantage_estimator.py:268-278
Fidelity: partial: a program synthesises; the objective is compared with code of others alone
"""

from jaxrl.config import CurriculumConfig, Domain
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(
        policy="oapl",
        policy_args={"beta": 0.3},
        advantage="soft_advantages",
        aggregation="seq-mean-token-mean",
    ),
    updates_per_batch=4,
)
EXAMPLE = Example(
    {
        "task_args": {},
        "domains": {
            regime: Domain(
                "retrieval",
                {"regime": regime, "hops": hops, "synthesis": 6},
                curriculum=CurriculumConfig(choose="frontier", window=1),
            )
            for regime, hops in {"hops": 2, "count": 3, "compare": 2}.items()
        },
        "warm_start": {"steps": 80, "batch_size": 64, "learning_rate": 0.002},
        "rollout": {"max_new_tokens": 28},
        "optimizer": {"learning_rate": 0.0005},
    },
    base="retrieval",
)
"""Three search regimes in each batch after a short warm start, four updates on it."""
