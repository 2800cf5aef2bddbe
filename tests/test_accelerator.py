"""The measurement on accelerators, rehearsed on the CPU."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.accelerator import parts, plans, runner, settings, table
from tests.accelerator.parts import Part

ROOT = Path(__file__).parents[1]


def command(out, *flags, timeout=900):
    work = out.parent / "work"
    return subprocess.run(
        [sys.executable, "-m", "tests.accelerator", "--out", str(out), "--work", str(work), *flags],
        cwd=ROOT, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


@pytest.mark.slow
def test_the_first_parts_are_rehearsed(tmp_path):
    out = tmp_path / "out"
    run = command(out, "--rehearse", "--parts", "imports", "device")
    assert run.returncode == 0, run.stdout + run.stderr
    whole = json.loads((out / "accelerator.json").read_text())
    assert [p["status"] for p in whole["parts"].values()] == ["done", "done"]
    found = json.loads((out / "device.json").read_text())
    assert found["results"]["matmul_flops"]["bf16"] > 0
    printed = command(out, "--table", str(out / "accelerator.json"))
    assert "Rehearsal on a CPU: no figure here is a measurement" in printed.stdout
    assert "| matmul bf16 |" in printed.stdout


@pytest.mark.broad
def test_parts_are_rehearsed(tmp_path):
    out, chosen = tmp_path / "out", ("kernels", "exact", "grpo-0.6b-lora")
    run = command(out, "--rehearse", "--parts", *chosen, timeout=590)
    assert run.returncode == 0, run.stdout + run.stderr
    whole = json.loads((out / "accelerator.json").read_text())
    assert len(whole["parts"]) == 3
    for name, part in whole["parts"].items():
        assert part["status"] in ("done", "skipped") and not part.get("failures"), (name, part)


@pytest.mark.slow
def test_all_parts_are_rehearsed(tmp_path):
    out = tmp_path / "out"
    run = command(out, "--rehearse", timeout=590)
    assert run.returncode == 0, run.stdout + run.stderr
    for part in parts.PARTS:
        value = json.loads((out / f"{part.name}.json").read_text())
        assert value["status"] in ("done", "skipped"), (part.name, value)
        assert not value.get("failures"), (part.name, value["failures"])
    whole = json.loads((out / "accelerator.json").read_text())
    assert whole["parts"]["exact"]["results"]["default operations, resumed"]["equal"]
    if importlib.util.find_spec("trl"):
        results = whole["parts"]["peer"]["results"]
        assert any("step_seconds" in result for result in results.values()), results
    table.render(whole)


def test_an_unknown_part_is_refused(tmp_path):
    run = command(tmp_path / "out", "--parts", "kernel")
    assert run.returncode == 2
    assert "--parts kernel: no such part; choose among imports" in run.stderr


def measure_sleep(settings_of, report):
    """A part that has a result and then hangs."""
    report.add("first", 1)
    time.sleep(120)


def measure_failing(settings_of, report):
    """A part of which one thing fails."""
    with report.attempt("one"):
        raise ValueError("broken")
    report.add("two", 2)


def measure_end(settings_of, report):
    """A part whose process dies."""
    report.add("first", 1)
    os._exit(3)


HERE = "tests.test_accelerator"
PARTS = (
    Part("hangs", f"{HERE}:measure_sleep", 12, 1),
    Part("fails", f"{HERE}:measure_failing", 30, 1),
    Part("dies", f"{HERE}:measure_end", 30, 1),
    Part("late", f"{HERE}:measure_end", 30, 10_000),
)


@pytest.mark.broad
def test_a_part_that_hangs_fails_or_dies_leaves_its_results_and_the_rest(tmp_path):
    measurement = runner.Measurement(tmp_path / "out", tmp_path / "work", 90, rehearse=False)
    whole = measurement.run(PARTS)["parts"]
    assert whole["hangs"]["status"] == "stopped at its limit"
    assert whole["hangs"]["results"] == {"first": 1}
    assert whole["fails"]["status"] == "failed"
    assert whole["fails"]["failures"] == {"one": "ValueError: broken"}
    assert whole["fails"]["results"] == {"two": 2}
    assert (whole["dies"]["status"], whole["dies"]["exit"]) == ("failed", 3)
    assert whole["late"]["status"] == "skipped"
    assert json.loads((tmp_path / "out" / "accelerator.json").read_text())["parts"] == whole
    text = table.render(measurement.write())
    assert "ValueError: broken" in text


def test_a_later_call_keeps_the_parts_of_the_first(tmp_path):
    out, work = tmp_path / "out", tmp_path / "work"
    first = runner.Measurement(out, work, 10, rehearse=True)
    first.parts["device"] = {"status": "done", "results": {"copy_bytes": {"copy": 1.0}}}
    first.write()
    assert runner.Measurement(out, work, 10, rehearse=True).parts == first.parts
    assert runner.Measurement(out, work, 10, rehearse=False).parts == {}


def test_masks_are_those_of_packed_rows():
    from tests.accelerator import kernels

    made = kernels.masks(256)
    assert made["packed"][-1] == 0
    for until in (made["causal"], made["shared prompt"], made["trie"]):
        assert all(end > place for place, end in enumerate(until) if end)
    trie = made["trie"]
    assert len(set(trie[:32])) > 1  # parts of the prompt are seen by different branches


def test_a_decoding_step_is_compared_with_fp64():
    from tests.accelerator import kernels

    error = kernels.decode(3, 48, 4, 2, 16)
    assert error["error_float32"] < 1e-6 < error["error"] < 1e-2


@pytest.mark.broad
def test_the_example_for_triton_is_attention_and_lowers_for_cuda(monkeypatch):
    """As it is called here: in Pallas's interpret mode against fp64, packed rows and gradients."""
    import jax
    import jax.export
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.gpu import attention as example

    from tests.accelerator import kernels

    inputs = kernels.draw(1, 128, 2, 1, 16)
    until = jnp.asarray(kernels.masks(128)["packed"], jnp.int32)[None]
    run = jax.jit(functools.partial(kernels.outcome, kernels.KERNELS["pallas-triton"]))
    unchecked = jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")
    export = jax.export.export(run, platforms=["cuda"], disabled_checks=[unchecked])
    program = export(*(x.astype(jnp.bfloat16) for x in inputs), until).mlir_module()
    assert program.count("custom_call @__gpu$xla.gpu.triton") == 3  # forward, dQ and dK with dV
    monkeypatch.setattr(example, "mha", functools.partial(example.mha, interpret=True))
    jax.clear_caches()
    found = kernels.errors(run(*inputs, until), kernels.reference(*inputs, until), until)
    assert max(found.values()) < 1e-6, found


def test_a_report_holds_what_json_cannot(tmp_path):
    report = settings.Report(tmp_path / "one.json")
    report.add("rate", float("inf"))
    report.add("some", {"a": (1.23456789, float("nan"))})
    found = json.loads((tmp_path / "one.json").read_text())["results"]
    assert found == {"rate": "inf", "some": {"a": [1.23457, "nan"]}}


def test_a_plan_is_read():
    text = (
        "train step, compiled        1234.5 MiB a device (XLA on CPU)\n"
        "an update of 36864 tokens takes 0.41 s at best, bound by arithmetic (MFU 61%)\n"
        "128 completions of 256 tokens take 0.52 s at best, bound by memory\n"
        "at the rates of a measurement:\n"
        "  the update takes 0.625 s, bound by arithmetic\n"
        "  sampling takes 8.1e-05 s, bound by memory\n"
        "41.20 GiB of 80 GiB of a h100: fits\n"
    )
    assert plans.read(text) == {
        "step_mib": 1234.5,
        "update_tokens": 36864,
        "update_seconds": 0.41,
        "update_bound_by": "arithmetic",
        "sample_seconds": 0.52,
        "sample_bound_by": "memory",
        "update_seconds_calibrated": 0.625,
        "sample_seconds_calibrated": 8.1e-05,
        "gib": 41.2,
    }


def test_plans_are_for_the_device_and_at_its_rates_once_they_are_measured(tmp_path):
    here = settings.Settings(False, tmp_path / "work", tmp_path / "out")
    for folder in (here.out, here.work / "plans"):
        folder.mkdir(parents=True)
    device = {"status": "done", "results": {"device": {"kind": "NVIDIA H200"}}}
    parts_of = {"imports": {}, "device": device, "kernels": {}}
    document = {"started": "2031-01-02T03:04:05Z", "rehearsal": False, "parts": parts_of}
    (here.out / settings.TOTAL).write_text(json.dumps(document))
    report = settings.Report(here.out / "plan.json")
    flags = plans.device_flags(here, report)
    assert flags == [
        "--topology",
        "h200",
        "--measurement",
        str(here.work / "plans/measurement.json"),
    ]
    assert list(json.loads(Path(flags[-1]).read_text())["parts"]) == ["device"]
    device["results"]["device"]["kind"] = "NVIDIA L4"
    (here.out / settings.TOTAL).write_text(json.dumps(document))
    assert plans.device_flags(here, report) == ["--topology", "h100"]
    assert "'NVIDIA L4', which is none of the chips" in report.failures["rates of the device"]


def test_a_table_holds_predictions_and_the_choice_of_attention_against_what_was_measured():
    step = {"train_seconds": 2.0, "sample_seconds": 1.0, "peak_device_bytes": 10 * 2**30}
    results = {
        "plan": {"chip": "h200", "grpo-0.6b-full": {"update_seconds": 1.0, "gib": 10.5}},
        "grpo-0.6b-full": {"measured": step, "config": {}},
        "kernels": {
            "auto": {"float32": "xla", "bfloat16": "cudnn"},
            "shared prompt bfloat16 xla": {"out": 0.1, "both_seconds": 0.002},
            "shared prompt bfloat16 cudnn": {"out": 0.1, "both_seconds": 0.003},
            "shared prompt bfloat16 pallas-triton": {"out": 0.1, "both_seconds": 0.001},
        },
    }
    measured = {name: {"status": "done", "results": value} for name, value in results.items()}
    text = table.render({
        "rehearsal": False, "started": "2031", "seconds": 1.0, "revision": "", "parts": measured,
    })  # fmt: skip
    assert "| grpo-0.6b-full | update, s | 1 | 2 | -50% | 25% |" in text
    assert "| grpo-0.6b-full | memory, GiB | 10.5 | 10 | +5% | 10% |" in text
    assert "| shared prompt | bfloat16 | cudnn | xla | pallas-triton | 1.5 |" in text


def test_what_is_carried_is_what_the_project_asks_for():
    """Each wheel of carry.sh is of a version that pyproject.toml allows, and none is missing."""
    script = (ROOT / "tests" / "accelerator" / "carry.sh").read_text()
    carried = dict(re.findall(r"([\w.-]+)==([\w.]+)", script))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {need.name: need for need in map(Requirement, project["dependencies"])}
    for name, version in carried.items():
        if name in asked:
            assert asked[name].specifier.contains(version), name
    there = {  # on a machine with JAX and transformers
        "jax", "numpy", "flax", "optax", "orbax-checkpoint", "chex", "tokenizers", "safetensors",
        "rich", "pyyaml",
    }  # fmt: skip
    behind = {"tensorflow-datasets", "reasoning-gym", "math-verify", "sacrebleu", "matplotlib"}
    assert asked.keys() == (asked.keys() & carried.keys()) | there | behind
    assert all(name in script for name in behind)


def test_the_measurement_needs_no_packages_of_tests_alone():
    """A machine that is measured has no pytest; the import fails if anything imports it."""
    without = "import sys; sys.modules |= dict.fromkeys(('pytest', 'hypothesis', 'matplotlib'))"
    modules = ", ".join(sorted({part.where.partition(":")[0] for part in parts.PARTS}))
    code = f"{without}\nimport tests.accelerator.__main__, tests.accelerator.part, {modules}"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
