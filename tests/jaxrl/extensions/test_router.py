"""Terms of routers in an update: equal to those of separate rows, and in whole runs."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.models import decoder
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import Experts, Latent
from jaxrl.record import checkpoint, metrics
from jaxrl.run import assemble
from jaxrl.training import routers
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.packing import PackingConfig, pack
from jaxrl.training.routers import Terms
from jaxrl.training.train_step import init_state, make_update
from tests.data import words
from tests.jaxrl import tiny
from tests.jaxrl.batches import MODEL, batch

SOFTMAX = dataclasses.replace(
    MODEL, family="qwen3_moe", qk_norm="head", experts=Experts(num_experts=4, per_token=2, size=16)
)
SIGMOID = dataclasses.replace(
    MODEL,
    family="deepseek_v3",
    num_kv_heads=4,
    head_dim=6,
    latent=Latent(kv_rank=8, q_rank=None, nope_dim=4, rope_dim=2, v_dim=4),
    experts=Experts(4, 2, 16, shared_size=16, scoring="sigmoid", correction_bias=True, group_top=2),
)
ONE, SEVERAL = PackingConfig(4096, row_length=64), PackingConfig(32, row_length=32)
CASES = {
    "softmax, one": (SOFTMAX, Terms(1.0, "batch", 0.0, 0.0), ONE),
    "softmax, several": (SOFTMAX, Terms(1.0, "batch", 0.5, 0.0), SEVERAL),
    "biased sigmoid, several": (SIGMOID, Terms(1.0, "batch", 0.0, 0.125), SEVERAL),
    "sequences, one": (SIGMOID, Terms(1.0, "sequence", 0.5, 0.125), ONE),
    "sequences, several": (SIGMOID, Terms(1.0, "sequence", 0.5, 0.125), SEVERAL),
}
FAILED = 2


def created(model):
    params = jax.jit(lambda key: decoder.init(model, key))(jax.random.key(0))
    if model.experts.correction_bias:
        shape = params["layers"]["mlp"]["correction"].shape
        params["layers"]["mlp"]["correction"] = 0.3 * jax.random.normal(jax.random.key(1), shape)
    return params


def updates(model, packing, terms, params, *batches):
    """What an update by SGD at rate 1 subtracts from the parameters, and its metrics, by batch."""
    rate = optax.sgd(1.0)
    given = {"temperature": 1.0, "max_new_tokens": 9, "remat": "dots", "router": terms}
    update = make_update(model, ObjectiveConfig(), rate, **given)
    for data in batches:
        state = init_state(jax.tree.map(jnp.array, params), rate)
        state, measured = update(state, data, pack(data, packing)[0], None)
        yield jax.tree.map(jnp.subtract, params, state.params), jax.device_get(measured)


def plain(model, params, data, terms):
    """The routers' loss, of each sequence in a row of its own, and the load [L, E]."""
    count, width = data.tokens.shape
    index = jnp.broadcast_to(jnp.arange(width), (count, width))
    last = width - np.argmax(data.action_mask[:, ::-1], axis=1) - 1  # is no input
    real = (index < last[:, None]) & data.valid[:, None]
    seen = jnp.full((count, width), width)
    _, routing = decoder.routed(model, params, data.tokens, index, seen)
    scores = jax.nn.softmax(routing.logits)
    chosen = routing.chosen
    if model.experts.correction_bias:
        scores = jax.nn.sigmoid(routing.logits)
        scores = scores / scores.sum(-1, keepdims=True)
        chosen = jax.lax.top_k(scores, 2)[1]

    def hits(chosen):
        return (chosen[..., None] == jnp.arange(4)).sum(-2) * real[None, :, :, None]

    if terms.level == "batch":
        f, p = hits(chosen).sum((1, 2)) / (2 * real.sum()), (scores * real[..., None]).sum((1, 2))
        balance = 4 * (f * p / real.sum()).sum()
    else:
        own = jnp.maximum(real.sum(1), 1)[None, :, None]
        f, p = hits(chosen).sum(2) / (2 * own), (scores * real[..., None]).sum(2) / own
        balance = 4 * (f * p).sum() / data.valid.sum()
    z = (jax.nn.logsumexp(routing.logits, axis=-1) ** 2 * real).sum() / real.sum()
    return terms.balance * balance + terms.z * z, hits(routing.chosen).sum((1, 2))


@pytest.mark.sample(2)
@pytest.mark.exact("the losses of routers are those of separate rows, however they are packed")
@pytest.mark.broad
@pytest.mark.parametrize("case", CASES)
def test_an_update_is_that_of_separate_rows(case):
    """Shared prompts, padding, several micro-batches, and a sequence that does not count.

    Equal rewards have no advantage, so all of the gradient is the routers'.
    """
    model, terms, packing = CASES[case]
    params, data = created(model), batch(0, groups=2, failed=(FAILED,))
    data = data.replace(rewards=np.ones_like(data.rewards))
    bad = data.replace(rewards=np.full_like(data.rewards, np.inf))
    (got, measured), (kept, skipped) = updates(model, packing, terms, params, data, bad)
    grad = jax.jit(jax.grad(lambda p: plain(model, p, data, terms), has_aux=True))
    want, load = grad(params)
    assert max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(want["layers"])) > 1e-2
    if terms.bias_speed:
        assert not want["layers"]["mlp"]["correction"].any()
        step = -terms.bias_speed * np.sign(load.mean(1, keepdims=True) - load)
        want["layers"]["mlp"]["correction"] = step
        assert np.abs(step).max() == terms.bias_speed
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, atol=2e-5), got, want)
    np.testing.assert_allclose(
        measured["router/busiest"], np.mean(load.max(1) / load.mean(1)), rtol=1e-5
    )
    assert skipped["skipped"] and not any(x.any() for x in jax.tree.leaves(kept))


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Both models with a tokenizer of words, and a file of completions."""
    made = {}
    for name, model in (("softmax", SOFTMAX), ("sigmoid", SIGMOID)):
        folder = words.tokenizer(tmp_path_factory.mktemp(name))
        huggingface.save(folder, model, created(model), extra={"eos_token_id": 1})
        made[name] = folder
    made["rows"] = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = [{"prompt": f"{w} plus one", "completion": f" {w} two"} for w in words.WORDS[5:]]
    made["rows"].write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return made


def fine_tuning(directories, model, **more):
    return {
        "model": str(directories[model]),
        "task": "",
        "data.kinds": ["completion"],
        "data.path": str(directories["rows"]),
        "data.batch_size": 4,
        "objective.policy": "sft",
        "objective.advantage_args": {"baseline": "none", "scale": "none"},
        "warm_start.steps": 0,
        "steps": 4,
        "packing.row_length": 16,
        "packing.micro_batch_tokens": 16,
        **more,
    }


@pytest.mark.broad
@pytest.mark.exact("a fork of a run with routers' terms repeats it to the last bit")
def test_a_run_of_sft_balances_moves_biases_and_repeats(directories, tmp_path):
    terms = {"router": {"balance": 0.01, "level": "sequence", "z": 1e-3, "bias_speed": 0.01}}
    given = fine_tuning(directories, "sigmoid", **terms)
    tiny.run(tmp_path / "run", **given)
    rows = metrics.read(tmp_path / "run")
    assert all(row["router/balance"] > 0.5 and row["router/busiest"] >= 1 for row in rows)
    saved = checkpoint.path(tmp_path / "run", 4)
    (bias,) = (
        value
        for name, value in tiny.arrays(saved).items()
        if name.startswith("['params']") and "correction" in name
    )
    moved = np.frombuffer(bias, "f4") - np.ravel(created(SIGMOID)["layers"]["mlp"]["correction"])
    assert moved.any() and np.abs(moved).max() <= 0.0401
    tiny.run(tmp_path / "fork", **given | {"fork": f"{tmp_path / 'run'}@2"})
    assert tiny.arrays(checkpoint.path(tmp_path / "fork", 4)) == tiny.arrays(saved)


@pytest.mark.broad
def test_two_steps_of_grpo(directories, tmp_path):
    """With a balance over the batch in several micro-batches; the sampler and trainer agree."""
    tiny.run(
        tmp_path,
        model=str(directories["softmax"]),
        router={"balance": 0.01, "z": 1e-3},
        steps=2,
        **{"warm_start.steps": 0, "packing.row_length": 32, "packing.micro_batch_tokens": 32},
    )
    rows = metrics.read(tmp_path)
    assert len(rows) == 2
    for row in rows:
        assert row["skipped"] == 0 and row["grad_norm"] > 0 and row["router/balance"] > 0.5
    assert rows[0]["logp_gap_max"] < 1e-4


@pytest.mark.broad
def test_refusals_name_the_field(directories, tmp_path):
    for model, more, says in (
        ("softmax", {"router": {"balance": -1.0}}, r"router\.balance=-1\.0"),
        ("softmax", {"router": {"bias_speed": 0.1}}, "its routers have no biases"),
    ):
        with pytest.raises(ValueError, match=says):
            assemble.assemble(tiny.config(tmp_path, **fine_tuning(directories, model, **more)))
    with pytest.raises(ValueError, match="it is no mixture of experts"):
        assemble.assemble(tiny.config(tmp_path, router={"z": 0.1}))
    skipping = {"objective.skip_zero_advantages": True, "model": str(directories["softmax"])}
    with pytest.raises(ValueError, match="set it to False"):
        assemble.assemble(tiny.config(tmp_path, router={"z": 0.1}, **skipping))


def test_biases_of_routers_move_in_every_layer_of_a_hybrid():
    """Layers that do not repeat are in stacks of their own, the dense one at the bottom as well."""
    experts = Experts(
        num_experts=4, per_token=2, size=16, dense_layers=1, scoring="sigmoid", correction_bias=True
    )
    model = dataclasses.replace(
        MODEL, num_layers=4, convolution=3, recurrent_layers=(True, False, True, True),
        experts=experts,
    )  # fmt: skip
    params = decoder.init(model, jax.random.key(0))
    load = jnp.asarray([[8.0, 0.0, 4.0, 4.0], [0.0, 8.0, 4.0, 4.0], [4.0, 4.0, 0.0, 8.0]])
    moved = routers.steered(params, load, 0.5)
    for layer in range(1, 4):
        stack, row = model.place(layer)
        before, after = (p[stack]["mlp"]["correction"][row] for p in (params, moved))
        np.testing.assert_allclose(after - before, 0.5 * np.sign(4 - load[layer - 1]), atol=1e-6)
    assert "correction" not in moved[model.place(0)[0]]["mlp"]
