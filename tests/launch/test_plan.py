"""A plan's figures, where they can be counted by hand."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl.config import Config, FreshModel, to_dict
from jaxrl.launch import train
from jaxrl.launch.planning import batch as plan_batch
from jaxrl.launch.planning import chips, command, measurement, memory, roofline, shapes, topology
from jaxrl.launch.planning.chips import Chip, Curve, Figure, Source
from jaxrl.launch.planning.command import PlanConfig
from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig, DeltaRule, Experts, LayerKinds, Mamba2
from jaxrl.rollout.policy import Policy
from jaxrl.run import placement
from jaxrl.run.extension import context, extension_state, open_extensions
from jaxrl.sampling.work import SamplerConfig
from jaxrl.training import optimizer, trainable, validate
from jaxrl.training.objective import ObjectiveConfig, whole_batch
from tests.jaxrl import tiny

CONFIG = Config(fresh=FreshModel(64, 128, 2, 4, 2, 16), task_args={"digits": 1})


def test_bytes_of_a_small_model_on_one_device():
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        config = dataclasses.replace(CONFIG, sampler=SamplerConfig(prefix_cache=5))
        lines = list(command.lines(config, PlanConfig(compile=False)))
    totals = [line.split() for line in lines if line.endswith("MiB a device")][1:]
    mib = {words[0]: float(words[-4]) for words in totals}
    layer = 64 * (4 + 2 + 2) * 16 + 4 * 16 * 64 + 3 * 64 * 128 + 2 * 64
    vocabulary = next(int(s.split("(")[1].split(",")[0]) for s in lines if s.startswith("embed"))
    parameters = 4 * (2 * layer + 64 * vocabulary + 64) / 2**20
    assert mib["parameters"] == pytest.approx(parameters, abs=0.06)
    assert mib["gradients"] == mib["parameters"] and mib["prefix"] == 5
    assert mib["optimizer"] == pytest.approx(2 * parameters, abs=0.06)
    assert lines[-1].endswith("of a v5p: fits")


ALL = {
    "critic": {},
    "objective.kl_coef": 0.1,
    "average.decay": 0.9,
    "nucleus.mass": 0.9,
}


@pytest.mark.sample(1, broad=2)
@pytest.mark.exact("the plan of a run counts its state to the byte")
@pytest.mark.parametrize(
    "changes",
    [
        ALL,
        ALL | {"compute_dtype": "bfloat16"},
        {"critic": {}, "lora.rank": 2, "lora.base": "int8", "compute_dtype": "bfloat16"},
        ALL | {"param_dtype": "bfloat16", "optimizer.moments": "int8"},
    ],
    ids=["all", "bfloat16", "adapters", "narrow"],
)
def test_what_a_run_holds_is_counted_to_the_byte(changes):
    """Against the arrays of a state that is made, and of the reference policy beside it."""
    config = tiny.changed(CONFIG, changes)
    model = memory.describe(config)
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        extensions = open_extensions(config)
        like = memory.state_of(config, model, extensions)
        part = trainable.part(model, config.lora, config.train, config.param_dtype)
        params = trainable.attach(
            model, decoder.init(model, jax.random.key(0)), config.lora, jax.random.key(1)
        )
        params = trainable.in_compute_dtype(model, params, part)
        optimize = optimizer.make(config.optimizer, 10, model)
        ctx = context(config, Policy(model, {}, None), part, extensions)
        complete = extension_state(ctx, extensions)
        state = placement.fresh_state(params, optimize, like, part, complete)
        reference = trainable.in_compute_dtype(model, params)
        found = memory.totals(config, model, like, extensions)
    arrays = {
        "parameters": state.params,
        "optimizer": state.opt_state,
        **state.extra,
        "reference": reference if config.objective.kl_coef else None,
    }
    expected = {name: sum(a.nbytes for a in jax.tree.leaves(tree)) for name, tree in arrays.items()}
    assert {name: mib * 2**20 for name, mib in found.items()} == {
        name: size for name, size in expected.items() if size
    }
    assert expected["critic"] > (0.1 if config.lora.rank else 2.5) * expected["parameters"]


@pytest.mark.parametrize(("kind", "answers"), [("completion", 1), ("preference", 2)])
def test_a_run_on_a_file_is_planned_by_its_rows_and_samples_nothing(kind, answers, tmp_path):
    policy = {"completion": "sft", "preference": "pair_dpo"}[kind]
    row = {"prompt": "a", "completion": "b", "chosen": "b", "rejected": "c"}
    columns = {
        "completion": ("prompt", "completion"),
        "preference": ("prompt", "chosen", "rejected"),
    }
    made = {name: row[name] for name in columns[kind]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(made) + "\n")
    changes = {
        "data.kinds": [kind], "data.path": str(tmp_path / "rows.jsonl"), "task": "",
        "objective.policy": policy,
        "objective.advantage_args": {"baseline": "none", "scale": "none"}, "data.batch_size": 6,
        "data.max_tokens": 32,
    }  # fmt: skip
    config = tiny.config("", **changes | {"packing.micro_batch_tokens": 32})
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        text = "\n".join(command.lines(config, PlanConfig(compile=False)))
    rows = 6 * answers * 31 / 64  # of 64 tokens, the last of each answer is no input
    tokens = int(re.search(r"an update of (\d+) tokens", text)[1])
    assert rows * 64 <= tokens < 2 * rows * 64 + 64
    assert "sampler" not in text and "KV cache" not in text and "completions" not in text


@pytest.mark.parametrize("advantage", ["group_advantages", "gdpo", "remax"])
def test_a_plan_has_the_arrays_that_an_advantage_takes(advantage):
    config = dataclasses.replace(CONFIG, objective=ObjectiveConfig(advantage=advantage))
    batch = plan_batch.input_of(config, {}).trajectory
    validate.check(config.objective)
    call = functools.partial(whole_batch, config.objective, max_new_tokens=1, step=0)
    assert jax.eval_shape(call, batch).advantages.shape[0] == len(batch.tokens)


@pytest.mark.broad
def test_the_plan_compiles_the_update_that_runs():
    """With its critic, average and guards: what it takes is at least what the state takes."""
    config = tiny.changed(CONFIG, ALL)
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        lines = list(command.lines(config, PlanConfig()))
    found = (re.match(r"(.{20}) +([0-9.]+) MiB a device", line) for line in lines)
    mib = {m[1].strip(): float(m[2]) for m in found if m}
    held = ("parameters", "optimizer", "critic", "average", "nucleus")
    assert mib["train step, compiled"] > sum(mib[name] for name in held)
    assert mib["reference"] == mib["parameters"] and mib["critic"] > 2.5 * mib["parameters"]


def test_collectives_are_counted_as_often_as_loops_run():
    program = """
%layer (p: f32[8]) -> f32[8] {
  %all-gather.1 = f32[16,64]{1,0} all-gather(%p), replica_groups=[2,4]<=[8], dimensions={0}
}
%micro (p: f32[8]) -> f32[8] {
  %while.1 = f32[8]{0} while(%p), body=%layer, backend_config={"known_trip_count":{"n":"3"}}
  %all-reduce.2 = (f32[8]{0}, bf16[4,4]{1,0}) all-reduce(%a, %b), replica_groups={{0,1},{2,3}}
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %while.2 = f32[8]{0} while(%p), condition=%c, body=%micro
  %reduce-scatter.1 = f32[8]{0} reduce-scatter(%a), replica_groups={{0,1,2,3}}, to_apply=%add
  %fusion.4 = f32[8]{0} fusion(%all-reduce.3), kind=kLoop, calls=%fused
}
"""
    assert roofline.collectives(program, unknown=5) == [
        ("all-gather", "f32[16,64]", 15, 16 * 64 * 4 * 3 / 4),
        ("all-reduce", "bf16[4,4]", 5, 32),
        ("all-reduce", "f32[8]", 5, 32),
        ("reduce-scatter", "f32[8]", 1, 96),
    ]


def test_collectives_as_xla_writes_them_for_tpus():
    """Loops counted up to a constant, groups by mesh axes, a reduce-scatter as what it is made of,
    transfers that continue meanwhile."""
    program = """
%all-reduce-scatter.1 (p: bf16[8,64]) -> bf16[8,16] {
  %all-reduce.1 = bf16[8,64]{0,1:T(8,128)(2,1)} all-reduce(%p), replica_groups={{0,1,2,3}}
  ROOT %dynamic-slice.1 = bf16[8,16]{0,1} dynamic-slice(%all-reduce.1, %zero, %i)
}
%condition (p: (s32[], f32[8])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(30)
  ROOT %lt.1 = pred[]{:T(512)} compare(%i, %constant.1), direction=LT
}
%layer (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %all-gather.1 = bf16[16,64]{1,0} all-gather(%p), replica_groups=mesh['a'=2,'b'=4] {'b'}
  %all-gather-start.1 = (f32[4]{0}, f32[8]{0}) all-gather-start(%p), replica_groups={{0,1}}
  %fusion.1 = bf16[8,16]{0,1} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1
}
%unbounded (p: (s32[], s32[])) -> pred[] {
  ROOT %lt.2 = pred[]{:T(512)} compare(%i, %n), direction=LT
}
%micro (p: (s32[], s32[])) -> (s32[], s32[]) {
  %while.1 = (s32[], f32[8]{0}) while(%p), condition=%condition, body=%layer
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %while.2 = (s32[], s32[]) while(%p), condition=%unbounded, body=%micro
}
"""
    assert roofline.collectives(program, unknown=5) == [
        ("all-gather", "bf16[16,64]", 150, 16 * 64 * 2 * 3 / 4),
        ("all-gather", "f32[8]", 150, 8 * 4 / 2),
        ("reduce-scatter", "bf16[8,64]", 150, 8 * 64 * 2 * 3 / 4),
    ]


def test_arithmetic_of_an_update_counted_by_hand():
    dense = DecoderConfig(10, 4, 6, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=2)
    layer = 4 * (2 + 1 + 1) * 2 + 2 * 2 * 4 + 3 * 4 * 6
    assert roofline.active(dense) == 10 * 4 + 2 * layer
    # a token sees half the row on average: two products of half the row by heads by their size
    attention = 2 * 2 * (8 / 2) * 2 * 2 * 2
    tokens = 3 * 8
    expected = tokens * 3 * (2 * roofline.active(dense) + attention)
    assert roofline.train_flops(dense, tokens, 8, "none") == expected
    for count in (1, 2):
        routed = dataclasses.replace(dense, experts=Experts(num_experts=8, per_token=count, size=6))
        more = 2 * (4 * 8 + (count - 1) * 3 * 4 * 6)  # a router, and further experts, in each layer
        assert roofline.active(routed) == roofline.active(dense) + more


def test_a_token_reads_rows_of_tables_and_not_their_whole(monkeypatch):
    """Sampling, bound by memory, takes as long whatever the tokens that enter the layers apart."""

    def seconds(vocabulary: int) -> str:
        kinds = LayerKinds(64, 2, input_size=8, input_vocab=vocabulary)
        model = DecoderConfig(32, 64, 2**20, 2, 4, 2, 16, post_norm=True, kinds=kinds)
        monkeypatch.setattr(memory, "describe", lambda config, chip: model)
        lines = list(command.lines(CONFIG, PlanConfig("v5e", compile=False)))
        return next(line for line in lines if "completions" in line)

    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        few, many = seconds(32), seconds(2**25)
    assert few == many and "bound by memory" in few


def test_a_step_takes_what_its_scarcest_resource_takes():
    chip = chip_of(hbm=1, flops=10, bandwidth=5, wire=2)
    assert roofline.seconds(chip, 20, 5, 2, 1) == (2, "arithmetic")
    assert roofline.seconds(chip, 20, 50, 2, 1) == (10, "memory")
    assert roofline.seconds(chip, 20, 5, 6, 1) == (3, "wires")
    halved = chip._replace(efficiency=Curve(((16, 0.25), (256, 0.5)), ASSUMED))
    assert roofline.seconds(halved, 20, 5, 2, 4096) == (4, "arithmetic")
    assert roofline.seconds(halved, 20, 5, 2, 1) == (8, "arithmetic")
    assert halved.efficiency.at(64) == pytest.approx(0.375)  # half way in the logarithm


ASSUMED = Source("assumed", "a test")


def chip_of(**numbers):
    figures = {name: Figure(value, ASSUMED) for name, value in numbers.items()}
    return Chip(**figures, efficiency=Curve(((1, 1.0),), ASSUMED))


def test_adapters_need_no_gradients_of_weights():
    model = memory.describe(Config(model="qwen3-0.6b"))
    every = roofline.train_flops(model, 64, 8, "none")
    fewer = roofline.train_flops(model, 64, 8, "none", frozen=True)
    assert every - fewer == 2 * roofline.active(model) * 64


def test_every_number_of_a_chip_has_a_source_and_none_is_measured():
    for name, chip in chips.CHIPS.items():
        assert {figure.source.kind for figure in chip[:4]} == {"stated"}, name
        assert chip.efficiency.source.kind == "assumed"
        text = "\n".join(chips.describe(name, chip))
        assert "(stated: " in text and "(assumed: " in text and "measured:" not in text


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA B200", "b200"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("TPU v4", "v4"),
        ("cpu", None),
    ],
)
def test_a_device_is_known_by_what_jax_calls_it(device, name):
    assert chips.name_of(device) == name


MEASURED = {
    "started": "2031-01-02T03:04:05Z",
    "rehearsal": False,
    "parts": {
        "device": {
            "results": {
                "device": {"platform": "gpu", "kind": "NVIDIA H200"},
                "copy_bytes": {"copy": 2.4e12, "read": 2.0e12},
                "matmul_flops": {"bf16": 494.5e12},
                "matmul_flops_by_rows": {"16": 9.89e12, "8192": 494.5e12},
            }
        },
        "plan": {
            "results": {
                "grpo-0.6b-full": {"update_seconds": 1.0, "sample_seconds": 1.0, "gib": 30.0},
                "grpo-0.6b-full, compiled": {"update_seconds_calibrated": 1.5, "gib": 19.0},
                "grpo-1.7b-full": {"update_seconds": 3.0},
                "tuning sft": {"update_seconds": 0.9},
            }
        },
        "grpo-0.6b-full": {
            "results": {
                "measured": {
                    "train_seconds": 2.0, "sample_seconds": 1.25, "step_seconds": 4.0,
                    "peak_device_bytes": 20 * 2**30,
                }
            }
        },
        "tuning": {"results": {"sft": {"step_seconds": 1.0}}},
    },
}  # fmt: skip
"""As `python -m tests.accelerator` writes it; the numbers are of no device."""


def test_a_plan_is_held_against_a_measurement(tmp_path):
    file = tmp_path / "accelerator.json"
    file.write_text(json.dumps(MEASURED))
    settings = PlanConfig("h200-1", compile=False, measurement=str(file))
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        text = "\n".join(command.lines(CONFIG, settings))
    assert "4800 GB/s from memory, 450 GB/s to neighbours (stated: " in text
    assert "2400 GB/s from memory" in text and "1% of 16, 50% of 8192" in text
    assert text.count("(measured: 2031-01-02 on NVIDIA H200, accelerator.json)") == 1
    assert re.search(r"the update takes \S+ s, bound by \w+\n  sampling takes \S+ s", text)
    for line in (
        "grpo-0.6b-full, update: planned 1.5 s, measured 2 s, error -25%",
        "grpo-0.6b-full, sampling: planned 1 s, measured 1.25 s, error -20%",
        "grpo-0.6b-full, memory: planned 19 GiB, measured 20 GiB, error -5%",
        "tuning sft, update: planned 0.9 s, measured 1 s, error -10%",
    ):
        assert f"  {line}\n" in text
    assert "grpo-1.7b-full" not in text
    sampling = next(line for line in text.splitlines() if "sampling takes" in line)
    best = next(line for line in text.splitlines() if "completions" in line)
    assert "bound by" in sampling and "at best" in best


def test_times_at_measured_rates_are_those_of_the_rates():
    chip = measurement.with_rates(
        chips.CHIPS["h200"], MEASURED["parts"]["device"]["results"], ASSUMED
    )
    cost = roofline.Demand(flops=494.5e12, memory=0.0, wire=0.0, rows=8192, times=3)
    assert cost.seconds_on(chip) == (pytest.approx(3.0), "arithmetic")
    assert cost._replace(memory=4.8e12).seconds_on(chip) == (pytest.approx(6.0), "memory")
    assert cost._replace(memory=4.8e12).seconds_on(chips.CHIPS["h200"])[0] == pytest.approx(3.0)
    square = measurement.with_rates(
        chips.CHIPS["h200"], {"matmul_flops": {"bf16": 494.5e12}}, ASSUMED
    )
    assert square.efficiency.at(64) == 0.5 and square.bandwidth.source.kind == "stated"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rehearsal": True}, "is a rehearsal.*measure without --rehearse"),
        ({"parts": {}}, "holds no measured device.*give the accelerator.json"),
        ({"kind": "cpu"}, "is of 'cpu', which is none of the chips.*add it to"),
        ({"kind": "TPU v4"}, "is of TPU v4, and --topology h200-1 names h200; plan for v4"),
    ],
)
def test_a_measurement_that_a_plan_cannot_use_is_refused(change, message, tmp_path):
    document = json.loads(json.dumps(MEASURED))
    if "kind" in change:
        document["parts"]["device"]["results"]["device"] |= change
    else:
        document |= change
    file = tmp_path / "accelerator.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message):
        measurement.of_topology(str(file), "h200-1", "h200")


def test_warnings_name_what_does_not_divide():
    table = jax.sharding.AbstractMesh((1, 1, 4, 1, 2), mesh.AXES)
    model = DecoderConfig(8, 16, 16, num_layers=1, num_heads=8, num_kv_heads=2, head_dim=4)
    params = {
        "embed": jax.ShapeDtypeStruct(
            (8, 16), np.float32, sharding=NamedSharding(table, P("tensor"))
        ),
        "wide": jax.ShapeDtypeStruct((5000, 5000), np.float32, sharding=NamedSharding(table, P())),
    }
    found = list(command.warnings(Config(), model, table, params))
    assert found == [
        "wide is whole on every device; no axis of it divides",
        "mesh.expert=2 splits no parameter",
        "kv_heads=2 does not divide by tensor=4 and stays whole",
    ]


@pytest.mark.sample(2, broad=6)
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3.5-27b", 26.90),
        ("qwen3.5-35b-a3b", 34.66),
        ("qwen3.5-397b-a17b", 396.35),
        ("gpt-oss-20b", 20.91),
        ("gpt-oss-120b", 116.83),
        ("glm-4.5-air", 106.85),
        ("nemotron-3-nano-30b-a3b", 31.58),
        ("llama-3-8b", 8.03),
        ("llama-3-405b", 405.85),
        ("qwen3-32b", 32.76),
        ("qwen3-235b-a22b", 235.09),
        ("lfm2-1.2b", 1.17),
        ("falcon-h1-34b", 33.64),
        ("llama-4-scout", 107.77),
        ("kimi-linear-48b-a3b", 49.13),
        ("gemma-4-e2b", 4.63),
        ("gemma-4-e4b", 7.46),
        ("gemma-4-31b", 30.70),
        ("gemma-4-26b-a4b", 25.23),
    ],
)
def test_published_shapes_have_their_sizes(name, billions):
    leaves = jax.tree.leaves(decoder.abstract(memory.describe(Config(model=name)))[0])
    assert sum(math.prod(leaf.shape) for leaf in leaves) / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.sample(0, broad=4)
@pytest.mark.parity
@pytest.mark.exact("a published shape has as many parameters as transformers gives it")
@pytest.mark.parametrize("name", [n for n in shapes.SHAPES if "llama" not in n])
def test_published_shapes_have_the_parameters_that_transformers_gives_them(name):
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    raw = dict(shapes.SHAPES[name])
    config = transformers.AutoConfig.for_model(raw.pop("model_type"), **raw)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    # what corrects a router and the factor of a layer are no parameters there
    further = ("e_score_correction_bias", "layer_scalar")
    buffers = [b for n, b in model.named_buffers() if n.endswith(further)]
    count = sum(tensor.numel() for tensor in [*model.parameters(), *buffers])
    leaves = jax.tree.leaves(decoder.abstract(shapes.read(name))[0])
    assert sum(math.prod(leaf.shape) for leaf in leaves) == count


WIDE = DecoderConfig(64, 64, 160, 4, num_heads=8, num_kv_heads=2, head_dim=16)
MAMBA = Mamba2(8, 16, groups=2, state=16, taps=4)
RECURRENT = (True, True, True, False)
SAVED = {
    "attention": {},
    "experts": {"experts": Experts(8, 2, 48, shared_size=64, dense_layers=1)},
    "delta rule": {
        "delta": DeltaRule(4, 8, 16, 16, taps=4, projections="joined"),
        "recurrent_layers": RECURRENT,
        "attention_gate": True,
    },
    "mamba": {"mamba": MAMBA, "recurrent_layers": RECURRENT},
    "convolution": {"convolution": 3, "recurrent_layers": RECURRENT},
    "parts": {
        "mamba": MAMBA,
        "recurrent_layers": (True, False, False, False),
        "parts": ("mixer", "experts", "attention", "mlp"),
        "experts": Experts(8, 2, 48, shared_size=64),
        "activation": "relu",
        "self_gated": True,
    },
    "kinds": {
        "sliding_window": 40,
        "local_layers": (True, True, False, True),
        "kinds": LayerKinds(32, 1, sharing=1, sharing_mlp_size=320),
    },
}
"""Fields of models whose layers keep different numbers for the backward pass."""


@pytest.mark.sample(2, broad=3)
@pytest.mark.parametrize("remat", ["none", "dots"])
@pytest.mark.parametrize("name", SAVED)
def test_what_a_layer_keeps_is_about_what_jax_keeps(name, remat, capsys):
    """Within two fifths of the numbers of the forward pass that JAX saves for the backward."""
    model, row, levels = dataclasses.replace(WIDE, **SAVED[name]), 256, 2
    index = jnp.arange(row)[None]

    def loss(params: decoder.Params) -> jax.Array:
        rows = (index, jnp.full((1, row), row))
        hidden = decoder.hidden(model, params, index % 64, *rows, levels=levels, remat=remat)
        return jnp.sum(hidden)

    jax.ad_checkpoint.print_saved_residuals(loss, decoder.abstract(model)[0])
    lines = capsys.readouterr().out.splitlines()
    # zeros of a `where` are listed, and are constants
    arrays = [re.match(r"f32\[([\d,]+)\]", x) for x in lines if not re.search("argument|_where", x)]
    kept = sum(math.prod(map(int, shape[1].split(","))) for shape in arrays if shape)
    estimate = roofline.saved(model, remat, row, 1, scores=True, levels=levels)
    assert 0.6 < estimate / (kept / row) < 1.4


def test_a_config_json_alone_is_enough_and_an_unknown_name_lists_the_known(tmp_path):
    raw = shapes.SHAPES["llama-3-8b"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert memory.describe(Config(model=str(tmp_path))) == memory.describe(
        Config(model="llama-3-8b")
    )
    with pytest.raises(ValueError, match=r"model='llama-3-9b' is no path.*llama-3-8b"):
        memory.describe(Config(model="llama-3-9b"))


@pytest.mark.parametrize("asked", [["--help"], ["hl_gauss_value_classification", "--help-all"]])
def test_help_shows_the_flags_of_a_plan_and_the_published_shapes_on_one_screen(asked, capsys):
    assert command.main(asked) == 0
    shown = capsys.readouterr().out
    said = " ".join(shown.split())
    assert "--topology" in shown and "--no-compile" in shown and "jaxrl train --help" in said
    assert "llama-3-8b" in shown and len(shown.splitlines()) < 30


def _needs(config):
    """MiB of an update by estimate."""
    return _memory(config).training


def _memory(config):
    extensions = open_extensions(config)
    model = memory.describe(config)
    state = memory.state_of(config, model, extensions)
    batch = plan_batch.input_of(config, extensions)
    return memory.estimate(config, model, state, batch, extensions, "")


def test_a_model_that_drafts_is_counted_with_its_caches():
    """Of the 8.03 billion parameters and 32 layers of 8 heads of Llama 3, in fp32."""
    drafts = {"sampler.drafts": "model", "sampler.draft_model": "llama-3-8b"}
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        alone, drafted = (_memory(tiny.changed(CONFIG, changes)) for changes in ({}, drafts))
    assert drafted.state["draft model"] == pytest.approx(8.03e9 * 4 / 2**20, rel=1e-3)
    rollout, slots = CONFIG.rollout, CONFIG.sampler.slots
    tokens = slots * (rollout.max_prompt_tokens + rollout.max_new_tokens)
    more = drafted.passing["KV cache"] - alone.passing["KV cache"]
    assert more == pytest.approx(tokens * 2 * 32 * 8 * 128 * 4 / 2**20)


DEEP = dataclasses.replace(
    CONFIG,
    fresh=FreshModel(64, 128, 4, 4, 2, 16),
    rollout=dataclasses.replace(CONFIG.rollout, prompts=8, max_new_tokens=500),
)


def test_memory_is_chosen_so_that_the_run_fits_and_no_faster_setting_does():
    """More memory never gives a slower setting; what is chosen fits by its own estimate."""
    order = {"none": 0, "dots": 1, "full": 2}
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        most = _needs(DEEP)
        chosen = []
        for share in (1.01, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05, 0.02):
            try:
                config, line = memory.fit(DEEP, share * most, compiling=False)
            except ValueError as error:
                assert re.search(r"takes [\d.]+ GiB", str(error))
                continue
            needs = _needs(config)
            assert needs <= share * most and f"{needs / 1024:.2f} GiB of" in line
            chosen.append((order[config.remat], -config.packing.micro_batch_tokens))
            kept = dataclasses.replace(config, remat=DEEP.remat, packing=DEEP.packing)
            assert kept == DEEP  # nothing else is changed
        assert chosen[0] == (0, -DEEP.packing.micro_batch_tokens)
        assert chosen == sorted(chosen) and len(set(chosen)) >= 3
        offloaded = dataclasses.replace(DEEP, remat="full")
        assert memory.fit(offloaded, most, compiling=False)[0] == offloaded


def _compiled(config):
    """MiB of an update as XLA compiles it."""
    extensions, model = open_extensions(config), memory.describe(config)
    state, batch = (
        memory.state_of(config, model, extensions),
        plan_batch.input_of(config, extensions),
    )
    return memory.compiled_mib(memory.step(config, model, state, batch, extensions))


@pytest.mark.broad
def test_memory_as_compiled_is_within_the_limit():
    small = dataclasses.replace(DEEP, fresh=FreshModel(32, 64, 1, 2, 1, 16))
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        limit = 0.8 * _compiled(small)
        config, line = memory.fit(small, limit)
        assert config != small and _compiled(config) <= limit and line.endswith("(compiled)")


@pytest.mark.parametrize("text", ["", "8", "8GB", "-1GiB", "0GiB", "most", "8gib"])
def test_a_limit_of_memory_is_a_size(text):
    with pytest.raises(ValueError, match=f"--memory {text}: must be auto, or a size"):
        memory.limit_of(text, 100.0)


def test_what_memory_a_run_may_take(tmp_path):
    assert memory.limit_of("auto", 1000.0) == 900.0
    assert memory.limit_of("1.5GiB", None) == 1536.0 and memory.limit_of("9 MiB", None) == 9.0
    with pytest.raises(ValueError, match="--memory auto: this device names no limit"):
        memory.fit_run(CONFIG, "auto", tmp_path)
    with pytest.raises(ValueError, match=r"sampling takes .* lower"):
        memory.fit_run(CONFIG, "0.5MiB", tmp_path)
    packing = dataclasses.replace(CONFIG.packing, micro_batch_tokens=1024)
    begun = dataclasses.replace(CONFIG, remat="dots", packing=packing)
    (tmp_path / "config.json").write_text(json.dumps({"config": to_dict(begun)}))
    (tmp_path / "checkpoints/1").mkdir(parents=True)
    (tmp_path / "checkpoints/1/manifest.json").write_text("{}")
    assert memory.fit_run(CONFIG, "0.5MiB", tmp_path)[0] == begun
    changed = dataclasses.replace(CONFIG, remat="full")  # which a run that continues may change
    assert memory.fit_run(changed, "0.5MiB", tmp_path)[0].remat == "full"


def test_train_and_plan_take_a_limit_of_memory(monkeypatch, tmp_path, capsys):
    fitted = []

    def fit(config, limit, chip="", *, compiling=True):
        fitted.append((limit, chip, compiling))
        return dataclasses.replace(config, remat="dots"), "memory: remat=dots"

    monkeypatch.setattr(memory, "fit", fit)
    monkeypatch.setattr(topology, "devices", lambda target, count: jax.devices()[:count])
    recipe = ["quickstart", "--run-dir", str(tmp_path / "run"), "--memory"]
    assert command.main([*recipe, "auto", "--no-compile", "--topology", "v5e"]) == 0
    assert "memory: remat=dots\n" in capsys.readouterr().out
    trained = []
    monkeypatch.setattr(train.loop, "train", lambda config, *_, **__: trained.append(config))
    monkeypatch.setattr(train.progress, "close", lambda *_: None)
    assert train.main([*recipe, "3GiB"]) == 0
    assert [config.remat for config in trained] == ["dots"]
    assert fitted == [(0.9 * 16 * 1024, "v5e", False), (3072.0, "", True)]
    assert train.main([*recipe, ""]) and "--memory needs a size" in capsys.readouterr().err


def test_a_run_with_a_teacher_chooses_its_own_memory(monkeypatch):
    monkeypatch.setattr(memory, "_context", lambda *_: types.SimpleNamespace(reading="a teacher"))
    with pytest.raises(ValueError, match="--memory: quickstart has a teacher"):
        memory.fit(CONFIG, 1000.0, compiling=False)
