"""Every objective gives the same update however its tokens are split into micro-batches.

The model is a table with a log-probability and an entropy for each action, so the gradient of the
update is the loss's in every one of them. Expected is the objective of the whole batch at once, on
arrays [N, T] that nothing has packed.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.launch.listing import losses_table
from jaxrl.losses.policy import objectives
from jaxrl.losses.reduce import aggregate
from jaxrl.sampling.chunks import WHOLE, Chunks
from jaxrl.training import logprobs, train_step
from jaxrl.training.objective import ObjectiveConfig, objective, scope, whole_batch
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.types import Packed, Params, Trajectory
from tests import broad_except
from tests.jaxrl.batches import MODEL, batch


def _objectives() -> Iterator[str]:
    """The public objectives of all modules of losses that a run can give their arrays."""
    for module in losses_table.modules():
        for function in losses_table.functions(module):
            signature = inspect.signature(function)
            given = "logp" in signature.parameters and "desirable" not in signature.parameters
            if given and signature.return_annotation == objectives.Objective:
                yield f"{module.__name__}:{function.__name__}"


OBJECTIVES = sorted(_objectives())
NEEDED = {
    "vocabulary_size": 32, "presample_steps": 1, "beta": 0.1, "tau": 0.5, "target": 0.1,
    "fraction": 0.2, "cov_low": -10.0, "cov_high": 10.0,
}  # fmt: skip
"""Arguments without a default, and some whose defaults would leave a term out."""
STEP, BUDGET = 3, 9
ORDINARY = [
    f"jaxrl.losses.{name}"
    for name in (
        "policy.objectives:ppo_clip", "policy.sequence:gspo", "policy.surrogates:clip_cov",
        "policy.off_policy:vcpo", "policy.mirror:opmd_pairwise", "preference.pairs:labelled_kto",
    )
]  # fmt: skip
"""An objective of each kind: by token, by sequence, of a group, of a pair, with a statistic of the
batch."""
SPLITS = {
    "one micro-batch": (PackingConfig(4096, row_length=64), WHOLE),
    "several": (PackingConfig(32, row_length=32), WHOLE),
    "several, in chunks": (PackingConfig(24, row_length=24), Chunks(4, 1)),
    "several, in contexts": (PackingConfig(24, row_length=16), WHOLE),
}


@pytest.fixture(autouse=True)
def table(monkeypatch):
    def looked_up(model, params: Params, packed: Packed, index: jax.Array, **_) -> tuple:
        row, time = logprobs.places(packed, index)
        return tuple(params[name][jnp.maximum(row, 0), time] for name in ("logp", "entropy"))

    for module in (train_step, logprobs):
        monkeypatch.setattr(module, "micro_logprobs", looked_up)


@functools.cache
def drawn() -> tuple[Trajectory, Params, np.ndarray]:
    """A batch with experts, a failed score and stale tokens; the table; a reference."""
    data = batch(0, groups=3, size=4, failed=(2,), length=20)
    rng = np.random.default_rng(0)
    shape = data.tokens.shape

    def near(spread: float) -> np.ndarray:
        moved = np.minimum(data.behavior_logp + rng.normal(0, spread, shape), -0.01)
        return np.where(data.action_mask, moved, 0.0).astype(np.float32)

    data = data.replace(
        expert=np.arange(len(data.tokens)) % 4 == 3,
        policy_version=rng.integers(0, STEP + 1, shape).astype(np.int32),
        proximal_logp=near(0.2),
        extra={
            "kl": np.full(len(data.tokens), 0.2, np.float32),
            "turn": np.tile(1 + np.arange(shape[1], dtype=np.int32) // 3, (shape[0], 1)),
            "turn_state": np.zeros(shape, np.int32),
            "agent": np.zeros(shape, np.int32),
            "turn_rewards": rng.integers(0, 2, shape).astype(np.float32),
        },
    )
    params = {"logp": jnp.asarray(near(0.3)), "entropy": jnp.asarray(rng.random(shape, np.float32))}
    return data, params, near(0.3)


def config_of(name: str, aggregation: str) -> ObjectiveConfig:
    module, _, function = name.partition(":")
    parameters = inspect.signature(getattr(importlib.import_module(module), function)).parameters
    args = {k: v for k, v in NEEDED.items() if k in parameters}
    return ObjectiveConfig(
        policy=name, policy_args=args, kl_coef=0.1, entropy_coef=0.05, aggregation=aggregation
    )


@functools.cache
def expected(name: str, aggregation: str) -> tuple[float, dict[str, float], Params]:
    """Loss, metrics and gradient of the whole batch at once."""
    config, (data, params, ref_logp) = config_of(name, aggregation), drawn()

    @functools.partial(jax.value_and_grad, has_aux=True)
    def plain(params: Params) -> tuple[jax.Array, dict[str, jax.Array]]:
        whole = whole_batch(config, data, BUDGET, step=STEP)
        given = (params["logp"], params["entropy"], ref_logp, STEP)
        return objective(config, data, whole, whole.mask, *given)

    (loss, metrics), gradient = jax.device_get(plain(params))
    return loss, metrics, gradient


def in_contexts(data: Trajectory) -> Trajectory:
    """The second half of each response continues the prompt alone."""
    count, width = data.tokens.shape
    parent = np.tile(np.arange(-1, width - 1, dtype=np.int32), (count, 1))
    for row, mask in zip(parent, data.action_mask, strict=True):
        acts = np.flatnonzero(mask)
        row[acts[len(acts) // 2]] = acts[0] - 1
    return data.replace(extra=data.extra | {"parent": parent})


def check(name: str, aggregation: str, split: str) -> None:
    config, optimizer = config_of(name, aggregation), optax.sgd(1.0)
    loss, metrics, gradient = expected(name, aggregation)
    data, params, ref_logp = drawn()
    update = train_step.make_update(
        MODEL, config, optimizer, temperature=1.0, max_new_tokens=BUDGET, remat="none"
    )
    packing, chunks = SPLITS[split]
    laid = in_contexts(data) if split == "several, in contexts" else data
    packed, _ = pack(laid, packing, chunks=chunks)
    assert packed.cut == (", in " in split)
    assert (int(packed.micro_batches) >= 3) == (split != "one micro-batch")
    state = train_step.init_state(jax.tree.map(jnp.array, params), optimizer)
    after, found = update(state.replace(step=jnp.int32(STEP)), data, packed, ref_logp)
    change = jax.device_get(jax.tree.map(jnp.subtract, params, after.params))
    scale = metrics.get("lr_scale", 1.0)
    assert np.any(gradient["logp"]) and np.any(gradient["entropy"])
    for leaf, moved in change.items():
        np.testing.assert_allclose(
            moved, scale * gradient[leaf], rtol=1e-4, atol=2e-6, err_msg=leaf
        )
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-5, atol=1e-6)
    assert metrics.keys() <= found.keys()
    for key, value in metrics.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-6, err_msg=key)


@pytest.mark.sample(2, broad=5)
@pytest.mark.exact("an objective's loss, gradient and metrics do not depend on micro-batches, 1e-4")
@pytest.mark.parametrize("name", broad_except(ORDINARY, OBJECTIVES))
def test_an_objective_does_not_depend_on_the_split(name):
    """In chunks and contexts too: they part what looks along a sequence."""
    looks = scope(config_of(name, "token-mean"))
    if looks != "batch":
        check(name, "seq-mean-token-mean", "several")
    if looks != "token":
        check(name, "seq-mean-token-mean", "several, in chunks")
    if looks == "sequence":
        check(name, "seq-mean-token-mean", "several, in contexts")


@pytest.mark.sample(3, broad=4)
@pytest.mark.exact(
    "an aggregation's loss and gradient do not depend on micro-batches or chunks, 1e-4"
)
@pytest.mark.parametrize("aggregation", aggregate.MODES)
@pytest.mark.parametrize(
    "name", ["jaxrl.losses.policy.objectives:ppo_clip", "jaxrl.losses.policy.sequence:gspo"]
)
def test_an_aggregation_does_not_depend_on_the_split(name, aggregation):
    check(name, aggregation, "several, in chunks")


@pytest.mark.parametrize("name", ["objectives:ppo_clip", "sequence:gspo", "mirror:opmd_pairwise"])
def test_one_micro_batch_needs_no_second_pass(name, monkeypatch):
    """And gives the same."""
    monkeypatch.setattr(train_step, "all_logprobs", None)
    check(f"jaxrl.losses.policy.{name}", "prompt-mean", "one micro-batch")
