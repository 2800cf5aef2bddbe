"""The measurement on accelerators, rehearsed on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.accelerator import parts, runner, settings, table
from tests.accelerator.parts import Part

ROOT = Path(__file__).parents[1]


def command(out, *flags, timeout=900):
    work = out.parent / "work"
    return subprocess.run(
        [sys.executable, "-m", "tests.accelerator", "--out", str(out), "--work", str(work), *flags],
        cwd=ROOT, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


@pytest.mark.broad
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


def test_a_report_holds_what_json_cannot(tmp_path):
    report = settings.Report(tmp_path / "one.json")
    report.add("rate", float("inf"))
    report.add("some", {"a": (1.23456789, float("nan"))})
    found = json.loads((tmp_path / "one.json").read_text())["results"]
    assert found == {"rate": "inf", "some": {"a": [1.23457, "nan"]}}


def test_a_plan_is_read():
    from tests.accelerator import plans

    text = (
        "train step, compiled        1234.5 MiB a device (XLA on CPU)\n"
        "an update of 36864 tokens takes 0.41 s at best, bound by arithmetic (MFU 61%)\n"
        "128 completions of 256 tokens take 0.52 s at best, bound by memory\n"
        "41.20 GiB of 80 GiB of a h100: fits\n"
    )
    assert plans.read(text) == {
        "step_mib": 1234.5,
        "update_tokens": 36864,
        "update_seconds": 0.41,
        "update_bound_by": "arithmetic",
        "sample_seconds": 0.52,
        "sample_bound_by": "memory",
        "gib": 41.2,
    }
