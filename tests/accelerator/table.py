"""A measurement as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxrl.launch.planning import measurement

OURS = ("xla", "cudnn", "splash")
"""Kernels that `--attention` takes; others that were measured are of no library here."""
STEP_COLUMNS = {
    "Step, s": "step_seconds",
    "Sample": "sample_seconds",
    "Train": "train_seconds",
    "Sync": "sync_seconds",
    "First step, s": "first_step_seconds",
    "Tokens/s sampled": "tokens_a_second_sampled",
    "Bound": "tokens_a_second_bound",
    "MFU, stated peak": "mfu_stated",
    "MFU, measured matmul": "mfu_of_matmul",
    "Peak, GB": "peak_device_bytes",
    "logp gap": "logp_gap",
}
"""Headings of the table of steps, and the results that they show."""


def render(whole: Mapping[str, Any]) -> str:
    """All of a measurement that has results, and what failed or is missing."""
    parts = whole["parts"]
    lines = [*_head(whole), *_status(parts), *_rates(parts), *_steps(parts), *_peer(parts)]
    lines += [*_plans(parts), *_attention(parts)]
    for name, title in (
        ("parity", "Parity"),
        ("kernels", "Attention against fp64, relative error in norm"),
        ("exact", "Repetition and resumption"),
        ("sampler", "Options of the sampler, Qwen3-0.6B"),
        ("tuning", "Fine-tuning, Qwen3-0.6B"),
        ("small", "Quickstart and control"),
    ):
        lines += _records(title, parts.get(name, {}).get("results", {}))
    return "\n".join(lines)


def _head(whole: Mapping[str, Any]) -> list[str]:
    kind = "Rehearsal on a CPU: no figure here is a measurement" if whole["rehearsal"] else "On"
    found = whole["parts"].get("device", {}).get("results", {})
    device = found.get("device", {}).get("kind", "an unknown device")
    versions = whole["parts"].get("imports", {}).get("results", {}).get("versions", {})
    told = ", ".join(f"{k} {v}" for k, v in versions.items() if v)
    where = f"{kind}: {device}" if whole["rehearsal"] else f"{kind} {device}"
    said = f"{where}, {whole['started']}, revision {whole['revision'] or 'unknown'}, "
    return [f"{said}{whole['seconds']:.0f} s. {told}.", ""]


def _status(parts: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, part in parts.items():
        notes = [f"{n}: {why}" for n, why in part.get("failures", {}).items()]
        notes += [f"{n} skipped: {why}" for n, why in part.get("skipped", {}).items()]
        notes += [part["why"]] if "why" in part else []
        rows.append([name, part["status"], part.get("seconds"), _short("; ".join(notes))])
    return _table(["Part", "Status", "s", "What is missing"], rows)


def _rates(parts: Mapping[str, Any]) -> list[str]:
    found = parts.get("device", {}).get("results", {})
    rows = [
        [f"{kind} {name}", f"{rate / scale:.4g} {unit}"]
        for key, kind, scale, unit in (
            ("matmul_flops", "matmul", 1e12, "Tflop/s"),
            ("matmul_flops_by_rows", "matmul bf16, rows", 1e12, "Tflop/s"),
            ("copy_bytes", "memory", 1e9, "GB/s"),
            ("host_bytes", "host", 1e9, "GB/s"),
            ("launch_seconds", "launch", 1e-6, "us"),
        )
        for name, rate in found.get(key, {}).items()
    ]
    return _table(["Rate", "Measured"], rows)


def _steps(parts: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, part in parts.items():
        found = part.get("results", {})
        if "measured" in found:
            figures = found["measured"] | {"first_step_seconds": found.get("first_step_seconds")}
            label = f"{name}, attention={found['config'].get('attention')}"
            rows.append([label, *(_figure(key, figures.get(key)) for key in STEP_COLUMNS.values())])
    return _table(["GRPO step", *STEP_COLUMNS], rows)


def _peer(parts: Mapping[str, Any]) -> list[str]:
    ours = parts.get("grpo-0.6b-full", {}).get("results", {}).get("measured", {})
    rows = []
    for name, found in parts.get("peer", {}).get("results", {}).items():
        if "step_seconds" not in found:
            continue
        ratio = found["step_seconds"] / ours["step_seconds"] if ours else None
        keys = ("step_seconds", "sample_seconds", "train_seconds", "peak_device_bytes")
        rows.append([name, *(_figure(k, found.get(k)) for k in keys), _figure("ratio", ratio)])
    heads = ["Peer, the step of grpo-0.6b-full", "Step, s", "Sample", "Train", "Peak, GB"]
    return _table([*heads, "Times ours"], rows)


def _plans(parts: Mapping[str, Any]) -> list[str]:
    """Each prediction against what was measured, and whether its error is within the aim."""
    rows = [
        [
            c.step, f"{c.quantity}, {c.unit}", f"{c.predicted:.3g}", f"{c.actual:.3g}",
            f"{c.error:+.0%}", f"{measurement.AIMS[c.unit]:.0%}",
        ]
        for c in measurement.compare(parts)
    ]  # fmt: skip
    return _table(["`jaxrl plan` of", "What", "Planned", "Measured", "Error", "Aim"], rows)


def _attention(parts: Mapping[str, Any]) -> list[str]:
    """What `attention=auto` takes, and whether another kernel of ours was faster."""
    results = parts.get("kernels", {}).get("results", {})
    taken, times = results.get("auto", {}), dict[tuple[str, str], dict[str, float]]()
    for name, value in results.items():
        if isinstance(value, dict) and "both_seconds" in value:
            mask, dtype, kernel = name.rsplit(" ", 2)
            times.setdefault((mask, dtype), {})[kernel] = value["both_seconds"]
    rows = []
    for (mask, dtype), of in times.items():
        ours = {kernel: spent for kernel, spent in of.items() if kernel in OURS}
        fastest, any_fastest = min(ours, key=ours.__getitem__), min(of, key=of.__getitem__)
        chosen = taken.get(dtype)
        ratio = _figure("ratio", ours[chosen] / ours[fastest]) if chosen in ours else ""
        rows.append([mask, dtype, chosen, fastest, any_fastest, ratio])
    heads = ["Mask", "dtype", "`auto` takes", "fastest of `--attention`", "fastest of all"]
    return _table([*heads, "`auto`, times its fastest"], rows)


def _records(title: str, results: Mapping[str, Any]) -> list[str]:
    """A table of records with the same fields; plain values stand in lines before it."""
    results = {k: v for k, v in results.items() if k != "auto"}
    records = {k: v for k, v in results.items() if isinstance(v, dict)}
    if not results:
        return []
    fields = list(dict.fromkeys(f for v in records.values() for f in v if _simple(v[f])))
    rows = [
        [name, *(_figure(field, value.get(field)) for field in fields)]
        for name, value in records.items()
    ]
    plain = [f"- {k}: {_figure(k, v)}" for k, v in results.items() if not isinstance(v, dict)]
    return [*plain, *([""] if plain else []), *_table([title, *fields], rows)]


def _simple(value: Any) -> bool:
    return isinstance(value, int | float | str | bool)


def _figure(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, list | tuple):
        return ", ".join(_figure(name, v) for v in value)
    if isinstance(value, dict):
        return _short(str(value))
    if name.startswith("mfu") or name.startswith("of_bound"):
        return f"{value:.1%}"
    return f"{value / 1e9:.2f}" if name == "peak_device_bytes" else f"{value:.4g}"


def _short(text: str) -> str:
    return " ".join(text.split())[:240].replace("|", "/")


def _table(heads: Iterable[str], rows: list[list[Any]]) -> list[str]:
    """A table; nothing where there are no rows."""
    if not rows:
        return []
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    text = ["" if cell is None else str(cell) for line in lines for cell in line]
    cells = [text[i : i + len(heads)] for i in range(0, len(text), len(heads))]
    return [*(f"| {' | '.join(line)} |" for line in cells), ""]
