"""What the sampler's programs exchange and hold on eight virtual devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.jaxrl import tiny
from tests.jaxrl.mesh.test_mesh import ROOT, UNOPTIMISED


@pytest.fixture(scope="module")
def report() -> dict:
    """Of `sampler_mesh_program` over `data=8`, with 12 slots and 3 rows of prompts asked for."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.jaxrl.sampler_mesh_program", '{"data": 8}'],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": UNOPTIMISED + tiny.xla_flags(8)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=900,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.broad
def test_a_decoding_step_exchanges_one_number(report):
    """How many sequences are live, with every feature on."""
    assert report["collectives"]["decode"] == [["all-reduce", 1]]


@pytest.mark.broad
def test_a_pass_with_drafts_exchanges_three_numbers(report):
    """What is live, what has its tokens, and what drafts promise."""
    for name in ("decode with drafts", "decode with a drafter"):
        assert {*map(tuple, report["collectives"][name])} == {("all-reduce", 3)}


@pytest.mark.broad
@pytest.mark.exact(
    "eight devices sample with drafts and a prefix cache what one device samples without; what the "
    "cache holds changes nothing, to the last bit"
)
def test_tokens_with_drafts_are_those_of_one_device_without(report):
    assert report["same with drafts"] and report["accepted"] > 20 and report["beside"]
    assert report["cached"] > 20 and report["blocks"] > 20
    assert report["found"] and report["same where found"]
    assert report["same with a drafter"] == {"layers": True, "model": True}


@pytest.mark.broad
@pytest.mark.parametrize(
    "program", ["read", "insert", "append", "narrow", "choose", "read_block", "put_blocks"]
)
def test_sequences_stay_where_they_are(report, program):
    """Prompts are read where their slots are, and slots are joined within a shard."""
    assert report["collectives"][program] == []


@pytest.mark.broad
def test_nothing_is_replicated(report):
    """Slots and rows are multiples of the batch's shards, whatever was asked for."""
    assert (report["sizes"], report["rows"]) == ([8, 16], 8)
    assert [shape[0] for shape in report["shards"].values()] == [1, 1, 1]


@pytest.mark.broad
@pytest.mark.exact("eight devices sample the tokens that one device samples")
def test_tokens_are_those_of_one_device(report):
    """Over several turns; a second run compiles nothing."""
    assert report["turns"] > 5 and report["same"] and report["same again"]
    assert report["programs compiled again"] == 0
