"""KL-regularised RL is inference: its optimum is a posterior, and other roads lead there.

Paper: Korbak et al. 2022, "RL with KL penalties is better viewed as Bayesian inference"
Idea: without the KL term the optimum of RL is one best answer, all else forgotten. With it the
optimum is the prior times the exponential of the reward, and training is variational inference;
minimising the forward KL to the same target (distributional policy gradient) is no RL at all.
Formula: `pi* = pi_0 exp(r / beta) / Z`; `max E[r] - beta KL(pi, pi_0)` has the optimum `pi*`
Claim: the equivalence, and collapse without the KL.
Reading: `config()` is the RL form. The effect enumerates every answer of a small model, so the
distance to `pi*` is exact; the ablation leaves the KL term out.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config import Config
from jaxrl.launch.lab import Arm, Effect, Problems, Task, arm
from jaxrl.launch.lab.policy import logprobs
from jaxrl.launch.lab.tasks import ASK, posed
from jaxrl.launch.recipes import quickstart
from jaxrl.models.config import DecoderConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import Params

BETA = 0.5
LENGTH, SYMBOLS = 3, 6


def config() -> Config:
    """The quickstart with the reward less its mean and the exact gradient of the KL."""
    objective = ObjectiveConfig(
        policy="reinforce",
        advantage_args={"scale": "none"},
        aggregation="seq-mean-token-sum",
        kl_coef=BETA,
        kl="k2",
    )
    return dataclasses.replace(
        quickstart.config(), recipe="kl_rl_as_bayesian_inference", objective=objective
    )


def score(answer: jax.Array, completion: jax.Array) -> jax.Array:
    """The share of different symbols: many answers are best."""
    return jnp.sum(jnp.any(completion[:, None] == jnp.arange(SYMBOLS), axis=0)) / LENGTH


def enumerable() -> Task:
    """Any 3 of 6 symbols; the pupil has its habits."""
    rng = np.random.default_rng(0)
    habits = rng.dirichlet(np.ones(SYMBOLS), LENGTH)

    def make(size: int) -> Problems:
        gold = np.stack([rng.choice(SYMBOLS, size, p=p) for p in habits], axis=1)
        return posed(np.full((size, 1), ASK), np.zeros((size, 1)), gold)

    return Task(SYMBOLS, make(64), make(16), score, make(4096))


def distance(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params
) -> dict[str, np.ndarray]:
    """`kl_to_target`: KL(pi, pi*) in nats, exact; `reward`: the expected reward. Both [S]."""
    grids = np.meshgrid(*[np.arange(SYMBOLS)] * LENGTH, indexing="ij")
    answers = np.stack([g.ravel() for g in grids], axis=1)
    tokens = np.concatenate([np.full((len(answers), 1), ASK), answers], axis=1)
    rewards = jax.vmap(lambda a: score(a, a))(answers)

    def one(params: Params, start: Params) -> tuple[jax.Array, jax.Array]:
        logp, prior = (logprobs(model, p, tokens)[0].sum(axis=1) for p in (params, start))
        target = jax.nn.log_softmax(prior + rewards / BETA)
        p = jnp.exp(logp)
        return jnp.sum(p * (logp - target)), jnp.sum(p * rewards)

    far, earned = jax.jit(jax.vmap(one))(params, start)
    return {"kl_to_target": np.asarray(far), "reward": np.asarray(earned)}


def effect() -> Effect:
    """Exact distance to the posterior, with the KL term and without."""
    method = arm(config(), steps=150, learning_rate=5e-4)
    bare = dataclasses.replace(method.objective, kl_coef=0.0)
    return Effect(
        claim="with its KL term, RL comes to the posterior",
        task=enumerable(),
        method=method,
        ablation=dataclasses.replace(method, objective=bare),
        statistic="kl_to_target",
        better="lower",
        measure=distance,
    )
