"""Runs of families with layers of their own: killed and continued, and in chunks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxrl.models import decoder
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import DecoderConfig, DeltaRule, Experts, Latent, LayerKinds, RopeScaling
from jaxrl.record import metrics
from jaxrl.run import loop
from jaxrl.training.tries import Chunks
from tests.jaxrl import tiny
from tests.models import byte_tokenizer
from tests.models.test_extend import FAMILIES

HYBRID = dataclasses.replace(
    FAMILIES["hybrid"], vocab_size=byte_tokenizer.SIZE, family="qwen3_5_text", num_layers=3,
    recurrent_layers=(True, False, True), max_positions=128,
)  # fmt: skip

CONVOLUTION = dataclasses.replace(
    FAMILIES["convolution"], vocab_size=byte_tokenizer.SIZE, family="lfm2_moe", num_layers=3,
    recurrent_layers=(True, False, True), max_positions=128,
    experts=Experts(
        4, 2, 8, dense_layers=1, scoring="sigmoid", correction_bias=True, floor=1e-6
    ),
)  # fmt: skip

_THREE = {"num_layers": 3, "recurrent_layers": (True, False, True)}
_CORRECTED = {"scoring": "sigmoid", "correction_bias": True}


def _of_family(shape: str, family: str, **fields: Any) -> DecoderConfig:
    """A shape of `test_extend` as a family of released models has it."""
    fields = {"vocab_size": byte_tokenizer.SIZE, "max_positions": 128, **fields}
    return dataclasses.replace(FAMILIES[shape], family=family, **fields)


MODELS = [
    HYBRID,
    CONVOLUTION,
    _of_family("convolution", "lfm2", experts=None, **_THREE),
    _of_family("mamba", "granitemoehybrid", rope_layers=(False,) * 3, **_THREE),
    _of_family("parts", "nemotron_h", experts=Experts(4, 2, 8, shared_size=8, **_CORRECTED)),
    _of_family(
        "hybrid", "olmo_hybrid", attention_gate=False, norm_offset=0.0, pre_norm=False,
        post_norm=True, qk_norm="flat", rope_fraction=1.0, **_THREE,
        delta=DeltaRule(2, 4, 8, 6, taps=4, projections="apart", stride=2.0, norm_eps=1e-5),
    ),
    _of_family(
        "kinds", "gemma4_text", post_norm=True, qk_norm="head", experts=None,
        kinds=LayerKinds(
            12, 1, keys_are_values=True, sharing=3, sharing_mlp_size=48, input_size=6,
            input_vocab=byte_tokenizer.SIZE,
        ),
    ),
    _of_family(
        "latent", "deepseek_v32", num_layers=2, rope_interleaved=True, tie_embeddings=False,
        latent=Latent(8, q_rank=6, nope_dim=8, rope_dim=4, v_dim=6),
        experts=Experts(4, 2, 8, shared_size=8, dense_layers=1, **_CORRECTED),
    ),
    _of_family("beside", "falcon_h1"),
    _of_family("chunks", "llama4_text"),  # no recurrent layers; its rows hold trees
    _of_family(
        "channels", "kimi_linear",
        experts=Experts(4, 2, 8, shared_size=8, dense_layers=1, group_top=2, **_CORRECTED),
    ),
    _of_family(
        "plain", "gpt_oss", num_layers=2, sliding_window=40, local_layers=(True, False),
        sinks=True, qkv_bias=True, o_bias=True, tie_embeddings=False,
        rope_scaling=RopeScaling("yarn", 4.0, 32, truncate=False),
        experts=Experts(4, 2, 24, biases=True, clamp=7.0),
    ),
    _of_family(
        "experts", "glm4_moe", num_layers=2, tie_embeddings=False, rope_fraction=0.5,
        experts=Experts(4, 2, 8, shared_size=8, dense_layers=1, group_top=2, **_CORRECTED),
    ),
]  # fmt: skip


def changes(directory: Path, model: DecoderConfig = HYBRID, **further) -> dict:
    """A model of three layers, and what a run of it needs."""
    if not directory.exists():
        byte_tokenizer.write(directory)
        huggingface.save(directory, model, decoder.init(model, jax.random.key(0)))
    return {
        "model": str(directory),
        "steps": 2,
        "task": "tests.digests:coin",
        "warm_start.steps": 0,
        "eval.problems": 2,
        "eval.every": 0,
        "checkpoint.every": 1,
        "packing.row_length": 128,
        "packing.micro_batch_tokens": 512,
        "rollout.max_prompt_tokens": 96,
    } | further


@pytest.mark.sample(0, broad=2)
@pytest.mark.exact("a run of recurrent layers that is killed equals an uninterrupted one")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.family)
@pytest.mark.parametrize(
    "adapters", [{}, {"lora.rank": 4, "lora.base": "nf4"}], ids=["whole", "lora-nf4"]
)
def test_kill_and_resume(adapters, model, tmp_path):
    """Log-probabilities of sampler and trainer agree, and the continued run is the other: of a
    model trained whole, and of adapters over quantised weights."""
    settings = changes(tmp_path / "model", model, **adapters) | {"steps": 3}
    tiny.finish(tiny.start(tmp_path / "straight", **settings))
    for row in metrics.read(tmp_path / "straight"):
        assert row["logp_gap_max"] < 1e-4 and row["grad_norm"] > 0
    # a step is told of before it is saved, so only the step before is sure to be there
    assert tiny.kill_at(tiny.start(tmp_path / "killed", **settings), "train 2")
    assert "continuing" in tiny.finish(tiny.start(tmp_path / "killed", **settings))
    assert tiny.artefacts(tmp_path / "killed") == tiny.artefacts(tmp_path / "straight")


@pytest.mark.sample(0, broad=1)
@pytest.mark.exact("in every family, responses in chunks have the log-probs of training to 1e-4")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.family)
def test_responses_in_chunks(model, tmp_path):
    """Four contexts of a response, each from the state of an empty sequence."""
    settings = changes(tmp_path / "model", model, **{
        "rollout.chunks": Chunks(4, 2), "rollout.max_new_tokens": 9, "sampler.drafts": "lookup",
    })  # fmt: skip
    loop.train(tiny.config(tmp_path / "run", **settings | {"steps": 1}))
    (row,) = metrics.read(tmp_path / "run")
    assert row["logp_gap_max"] < 1e-4 and row["grad_norm"] > 0
    assert row["completion_length_max"] == 9
