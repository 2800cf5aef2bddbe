"""Gates on key-value heads by RL, and the cache that can be saved by them, see PLAN.md.

PYTHONPATH=. python experiments/runs/head-gates/experiment.py RESULTS.json
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.lab import Arm, Task, cipher, experiment, held_out, imitate, policy, statistics
from experiments.lab.collect import attempt, collect
from experiments.lab.tasks import taken
from jaxrl.losses.regularizers import adaptive_sparsity
from jaxrl.models import attention, decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.models.gates import Gates, cache_share, gated, most
from jaxrl.training.objective import ObjectiveConfig, objective, whole_batch
from jaxrl.types import Params, Trajectory

LAYERS, HEADS, SYMBOLS, WARM_STEPS = 2, 4, 6, 600
SINK, RECENT = 1, 2
COEFFICIENT, THRESHOLD, RATE = 0.1, 0.5, 0.01
ORDERS = 3
"""Random orders of the heads for each seed."""
TERMS = ObjectiveConfig()
ARM = Arm(objective=TERMS, group_size=4)
Found = dict[str, Any]
"""`pass@1`, choice -> full heads -> one number a seed; `alpha` and `mass`, of each seed."""


def shape(task: Task) -> DecoderConfig:
    """Two layers of four key-value heads."""
    length = task.prompt_length + task.budget
    return DecoderConfig(task.vocabulary, 32, 64, LAYERS, HEADS, HEADS, 8, max_positions=length)


def with_gates(params: Params, alpha: jax.Array) -> Params:
    """Policies [S, ...], or one, under gates [S, layers, heads], or [layers, heads]."""
    return gated(params, Gates(alpha, SINK, RECENT))


def penalty(alpha: jax.Array, rewards: jax.Array) -> jax.Array:
    """RLKV's."""
    return adaptive_sparsity(alpha, rewards, threshold=THRESHOLD)


def constant(alpha: jax.Array, rewards: jax.Array) -> jax.Array:
    """The same at its greatest weight, whatever the rewards."""
    return adaptive_sparsity(alpha, jnp.ones_like(rewards), threshold=THRESHOLD)


def solved(task: Task, model: DecoderConfig, params: Params) -> list[np.ndarray]:
    """Of each seed, the train problems that at least half of 4 samples solve."""
    count, seeds = task.train.prompt.shape[-2], len(task.seeds)
    rows = np.tile(np.repeat(np.arange(count), 4), (seeds, 1))
    forced = np.full((*rows.shape, task.budget), -1, np.int32)
    keys = jax.vmap(jax.random.key)(jnp.asarray(task.seeds))
    problems = taken(task.train, rows)
    _, rewards = attempt(task, model, params, problems, forced, keys, 1.0, ARM.chunks)
    share = rewards.reshape(seeds, count, 4).mean(axis=2)
    return [np.flatnonzero(own >= 0.5) for own in share]


def trained(
    task: Task,
    model: DecoderConfig,
    params: Params,
    steps: int,
    penalise: Callable[[jax.Array, jax.Array], jax.Array],
) -> np.ndarray:
    """Gates [S, layers, heads] after GRPO on them alone; all weights stay as they are."""
    seeds, optimizer = len(task.seeds), optax.adam(RATE)

    def one(
        alpha: jax.Array, opt_state: Any, params: Params, batch: Trajectory, step: jax.Array
    ) -> tuple[jax.Array, Any]:
        whole = whole_batch(TERMS, batch, task.budget)

        def loss(alpha: jax.Array) -> jax.Array:
            scored = policy.logprobs(model, with_gates(params, alpha), batch.tokens)
            value, _ = objective(TERMS, batch, whole, whole.mask, *scored, None, step)
            return value + COEFFICIENT * penalise(alpha, batch.rewards)

        updates, opt_state = optimizer.update(jax.grad(loss)(alpha), opt_state)
        return jnp.clip(alpha + updates, 0.0, 1.0), opt_state

    update = jax.jit(
        lambda alpha, opt_state, params, batch, step: jax.lax.map(
            lambda given: one(*given, step), (alpha, opt_state, params, batch)
        )
    )
    candidates = solved(task, model, params)
    alpha = jnp.ones((seeds, LAYERS, HEADS))
    opt_state = jax.vmap(optimizer.init)(alpha)
    streams = [np.random.default_rng([seed, 19]) for seed in task.seeds]
    for step in range(steps):
        drawn = [
            r.choice(own, ARM.prompts, replace=len(own) < ARM.prompts)
            for r, own in zip(streams, candidates, strict=True)
        ]
        batch, _ = collect(
            task, model, with_gates(params, alpha), ARM, np.stack(drawn), step,
            versions=np.full(seeds, step),
        )  # fmt: skip
        alpha, opt_state = update(alpha, opt_state, params, batch, jnp.int32(step))
    return np.asarray(alpha)


def masses(task: Task, model: DecoderConfig, params: Params) -> np.ndarray:
    """Attention [S, layers, heads] to what a local head would not see, a mean over completions."""
    found = []
    for seed in range(len(task.seeds)):
        own = jax.tree.map(lambda a, s=seed: a[s], params)
        tokens = np.concatenate([task.train.prompt[seed], task.train.gold[seed]], axis=1)[:64]
        layers: list[np.ndarray] = []

        def attend(
            q: jax.Array, k: jax.Array, v: jax.Array, mask: attention.Mask, **settings: Any
        ) -> jax.Array:
            seen = mask.dense(k.shape[1])
            near = mask.replace(window=jnp.int32(RECENT), sink=jnp.int32(SINK)).dense(k.shape[1])
            scores = jnp.einsum("btnh,bsnh->bnts", q, k) * settings["scale"]
            weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e30), axis=-1)
            far = jnp.sum(jnp.where(near[:, None], 0.0, weights), axis=-1)
            layers.append(np.asarray(far[:, :, task.prompt_length :].mean(axis=(0, 2))))  # noqa: B023
            return attention.attend(q, k, v, mask, **settings)

        place = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        with jax.disable_jit():
            layout = decoder.Layout(attend=attend)
            until = jnp.full_like(place, tokens.shape[1])
            decoder.hidden(model, own, jnp.asarray(tokens), place, until, layout=layout)
        found.append(np.stack(layers))
    return np.stack(found)


def block(seeds: tuple[int, ...], steps: int) -> Found:
    """Figures of some seeds."""
    task = cipher(((12, 1.0),), (((SYMBOLS,), 1.0),)).over(seeds)
    model = shape(task)
    base = imitate(task, model, min(WARM_STEPS, steps * 100))
    alpha = trained(task, model, base, steps, penalty)
    scores = {
        "RLKV": alpha,
        "constant penalty": trained(task, model, base, steps, constant),
        "attention": masses(task, model, base),
    }
    streams = [np.random.default_rng([seed, 20]) for seed in seeds]
    for order in range(ORDERS):
        scores[f"random {order}"] = np.stack([r.random((LAYERS, HEADS)) for r in streams])

    def passed(given: jax.Array) -> list[float]:
        figures = held_out(model, task, ARM, with_gates(base, given), base, samples=1)
        return figures["pass@1"].tolist()

    ends = {"0": jnp.zeros_like(alpha), str(LAYERS * HEADS): jnp.ones_like(alpha)}
    found = {"all": {k: passed(given) for k, given in ends.items()}}
    found["all"]["as trained"] = passed(jnp.asarray(alpha))
    for name, score in scores.items():
        found[name] = {
            str(k): passed(jax.vmap(lambda s, k=k: most(s, k))(jnp.asarray(score)))
            for k in range(1, LAYERS * HEADS)
        }
    return {
        "pass@1": found,
        "alpha": {name: scores[name].tolist() for name in ("RLKV", "constant penalty")},
        "mass": {"attention": scores["attention"].tolist()},
    }


def curves(found: Found) -> dict[str, np.ndarray]:
    """pass@1 [seeds, full heads from 1 to 7] of each choice; `random` is the mean of its orders."""
    made = {
        name: np.array([values[str(k)] for k in range(1, LAYERS * HEADS)]).T
        for name, values in found["pass@1"].items()
        if name != "all"
    }
    orders = [made.pop(f"random {n}") for n in range(ORDERS)]
    return made | {"random": np.mean(orders, axis=0)}


def run(seeds: tuple[int, ...], steps: int) -> Found:
    """Figures of all seeds."""
    return experiment.in_blocks(block, seeds, steps)


def report(found: Found) -> str:
    """The tables of README.md."""
    made, ends = curves(found), found["pass@1"]["all"]
    heads, length = LAYERS * HEADS, 2 * (SYMBOLS + 1)
    first, last = np.mean(ends["0"]), np.mean(ends[str(heads)])
    counts = list(range(heads + 1))
    marks = [jnp.arange(heads)[None] < k for k in counts]
    shares = [float(cache_share(m.astype(float), length, SINK, RECENT)) for m in marks]
    lines = [
        "| full heads | " + " | ".join(map(str, counts)) + " |",
        "|---" * (heads + 2) + "|",
        "| cache | " + " | ".join(f"{s:.2f}" for s in shares) + " |",
    ]
    for name, values in made.items():
        figures = [first, *values.mean(axis=0), last]
        lines.append(f"| {name} | " + " | ".join(f"{x:.3f}" for x in figures) + " |")
    lines += ["", "| difference, mean over 1 to 7 full heads | |", "|---|---|"]
    lines += [
        f"| RLKV less {name} | {statistics.interval((made['RLKV'] - made[name]).mean(axis=1))} |"
        for name in ("random", "attention", "constant penalty")
    ]
    half = made["RLKV"][:, heads // 2 - 1] - np.array(ends[str(heads)])
    lines.append(f"| RLKV with 4 full heads less all 8 | {statistics.interval(half)} |")
    for name, alpha in found["alpha"].items():
        mean = np.sort(np.array(alpha).reshape(len(alpha), -1))[:, ::-1].mean(axis=0)
        text = ", ".join(f"{a:.2f}" for a in mean)
        lines += ["", f"Gates of {name}, in order, means over seeds: {text}"]
    lines += ["", f"pass@1 under RLKV's gates as trained: {np.mean(ends['as trained']):.3f}"]
    return "\n".join(lines)


if __name__ == "__main__":
    experiment.main(__doc__, run, report, seeds=6, steps=120)
