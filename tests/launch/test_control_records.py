"""A measured row knows its code, and one of other code is shown as no result."""

from __future__ import annotations

import json

import pytest

from experiments import bench, control_code
from jaxrl.control import algorithms

RECORDS = sorted(bench.OUT.glob("*.json"))


def record_of(*codes):
    """A record of one arm for each code, and a claim about the first two."""
    arms = [
        {"label": f"arm {i}", "algorithm": "sac", "code": code, "steps": [0, 9], "seconds": 1.0,
         "scores": [[0.0, 1.0], [0.0, 2.0]]}
        for i, code in enumerate(codes)
    ]  # fmt: skip
    claim = {
        "text": "one is above",
        "arms": ["arm 0", "arm 1"],
        "gap": 1.0,
        "low": 0.5,
        "high": 2.0,
    }
    claims = [claim | {"verdict": "shown"}]
    return {"title": "T", "note": "", "episodes": 1, "arms": arms, "claims": claims}


def test_the_page_of_results_is_that_of_its_records():
    """The rows in italics are those whose algorithm has changed since; `python -m experiments
    control NAME` measures them again."""
    assert (bench.OUT / "results.md").read_text() == bench.table(bench.OUT)


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.stem)
def test_a_row_knows_the_code_it_was_measured_with(path):
    record = json.loads(path.read_text())
    old = {arm["label"] for arm in bench.stale(record)}
    for arm in record["arms"]:
        current = arm["code"] == control_code.code_of(arm["algorithm"])
        assert current is (arm["label"] not in old)
        assert not (current and "measured_before" in arm)
    for claim in record["claims"]:
        assert set(claim["arms"]) <= {arm["label"] for arm in record["arms"]}


def test_a_claim_about_a_stale_row_has_no_verdict(tmp_path):
    now = control_code.code_of("sac")
    for codes, verdict in (((now, now), "shown"), ((now, "other"), "to be measured again")):
        (tmp_path / "x.json").write_text(json.dumps(record_of(*codes)))
        page = bench.table(tmp_path)
        assert f"| {verdict} |" in page
        assert ("| *arm 1* |" in page) is (verdict != "shown")


def test_the_code_of_an_algorithm_is_what_it_computes(tmp_path, monkeypatch):
    """A docstring or a comment is no code; an algorithm that builds on another holds its code."""
    first = control_code.ast.parse('"""One."""\nx = 1  # a comment\n')
    second = control_code.ast.parse('"""Two."""\nx = 1\n')
    dumps = [control_code.ast.dump(control_code._without_texts(t)) for t in (first, second)]
    assert dumps[0] == dumps[1]
    codes = {name: control_code.code_of(name) for name in algorithms.names()}
    assert len(set(codes.values())) == len(codes)
