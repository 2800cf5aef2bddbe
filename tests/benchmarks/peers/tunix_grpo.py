"""Tunix's GRPOLearner on a benchmark's workload: `python tunix_grpo.py JOB`, with it installed."""

from __future__ import annotations

import importlib.metadata
import time
from typing import Any

import clock

JOB = clock.read_job()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import transformers  # noqa: E402
import tunix_model  # noqa: E402
from flax import nnx  # noqa: E402
from tunix.generate.sampler import Sampler  # noqa: E402
from tunix.rl import rl_cluster as cluster  # noqa: E402
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner  # noqa: E402
from tunix.rl.rollout.base_rollout import RolloutConfig  # noqa: E402


def scheduled(sample: Any) -> Any:
    """`Sampler._sample`, each row ended by EOS exactly where the schedule says."""
    lengths = jnp.array(JOB["lengths"])

    def run(self: Any, logits: jax.Array, eos: jax.Array, cache: Any, sampler_state: Any) -> Any:
        made = sampler_state.decoding_step + 2 - sampler_state.num_input_tokens
        forced = jnp.where(made >= lengths, 1e9, -1e9)[:, None, None]
        logits = logits[:, -1:].at[:, :, eos].set(forced)
        return sample(self, logits, eos, cache, sampler_state)

    return run


def main() -> None:
    """Train, and write down what each step took."""
    mesh = tunix_model.mesh()
    Sampler._sample = scheduled(Sampler._sample)
    model = tunix_model.load(JOB["model"], mesh)
    longest, prompts = max(JOB["lengths"]), len(JOB["lengths"]) // JOB["group_size"]
    role = cluster.Role
    learner = GRPOLearner(
        rl_cluster=cluster.RLCluster(
            actor=model,
            reference=None,
            tokenizer=transformers.AutoTokenizer.from_pretrained(JOB["model"]),
            cluster_config=cluster.ClusterConfig(
                role_to_mesh={role.ACTOR: mesh, role.REFERENCE: mesh, role.ROLLOUT: mesh},
                rollout_engine="vanilla",
                offload_to_cpu=False,
                training_config=cluster.RLTrainingConfig(
                    actor_optimizer=optax.chain(
                        optax.clip_by_global_norm(1.0), optax.adamw(1e-6, weight_decay=0.0)
                    ),
                    eval_every_n_steps=10**6,
                    max_steps=JOB["steps"],
                    mini_batch_size=prompts,
                    train_micro_batch_size=JOB["options"].get("train_micro_batch_size", prompts),
                    rollout_micro_batch_size=prompts,
                    compute_logps_micro_batch_size=prompts,
                ),
                rollout_config=RolloutConfig(
                    max_tokens_to_generate=longest,
                    max_prompt_length=JOB["max_prompt"],
                    kv_cache_size=JOB["max_prompt"] + longest + 256,  # as its examples have it
                    temperature=1.0,
                    top_p=1.0,
                    top_k=None,
                ),
            ),
        ),
        algo_config=GRPOConfig(num_generations=JOB["group_size"], beta=0.0),
        reward_fns=lambda completions, **_: [len(text) % 7 / 7 for text in completions],
    )
    steps: list[dict[str, float]] = []
    seconds: dict[str, float] = {}
    first: list[float] = []
    lengths: list[list[int]] = []
    marks = [time.perf_counter()]
    generate, update = learner.rl_cluster.generate, learner.rl_cluster.update_actor

    def recorded(*args: Any, **kwargs: Any) -> Any:
        out = generate(*args, **kwargs)
        lengths.append([len(row) for row in out.tokens])
        return out

    def settled(*args: Any, **kwargs: Any) -> None:
        update(*args, **kwargs)
        jax.block_until_ready(nnx.state(learner.rl_cluster.actor_trainer.model))

    learner.rl_cluster.generate, learner.rl_cluster.update_actor = recorded, settled
    clock.timed(learner.rl_cluster, "generate", "sample", seconds)
    clock.timed(learner.rl_cluster, "update_actor", "train", seconds)
    clock.timed(learner, "_compute_rewards", "score", seconds)
    whole = learner._run_global_step

    def step(*args: Any) -> None:
        marks[0] = time.perf_counter()
        whole(*args)
        first.append(time.time() - JOB["started"])
        steps.append({**seconds, "step": time.perf_counter() - marks[0]})
        seconds.clear()
        version = f"tunix {importlib.metadata.version('google-tunix')}, jax {jax.__version__}"
        clock.report(JOB, steps, first_step=first[0], matmul=rate, version=version)

    learner._run_global_step = step
    square, multiply = jnp.ones((2048, 2048)), jax.jit(lambda a: a @ a)
    rate = clock.best_rate(lambda: multiply(square).block_until_ready(), 2 * 2048**3)
    texts = JOB["prompts"]
    batches = [texts[i : i + prompts] for i in range(0, len(texts), prompts)]
    with mesh:
        learner.train([{"prompts": np.array(batch)} for batch in batches])
    assert [n + 1 for n in lengths[0]] == JOB["lengths"], lengths[0]  # their EOS is cut off


if __name__ == "__main__":
    main()
