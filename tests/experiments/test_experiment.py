"""The command line of the lab's experiments."""

import json

import pytest

from experiments.lab import experiment
from experiments.lab.effect import BLOCK


def block(seeds, steps):
    assert len(seeds) <= BLOCK
    return {"pass@1": {"method": [10 * seed + steps for seed in seeds]}, "seeds": list(seeds)}


def test_blocks_of_seeds_are_joined_in_order():
    seeds = tuple(range(3, 2 * BLOCK + 4))
    found = experiment.in_blocks(block, seeds, 5)
    assert found == {"pass@1": {"method": [10 * s + 5 for s in seeds]}, "seeds": list(seeds)}


def test_results_that_are_there_are_only_shown(tmp_path, monkeypatch, capsys):
    path, asked = tmp_path / "results.json", []

    def run(seeds, steps):
        asked.append((seeds, steps))
        return block(seeds, steps)

    def report(found):
        return f"{found['seeds']}"

    for arguments in ([], ["--seeds", "7"]):
        monkeypatch.setattr("sys.argv", ["experiment.py", str(path), *arguments])
        experiment.main("What it measures.\n\nMore.", run, report, seeds=2, steps=9)
    assert asked == [((0, 1), 9)]
    assert json.loads(path.read_text()) == block((0, 1), 9)
    said = capsys.readouterr().out.splitlines()
    assert "of processor time" in said[0] and said[1:] == ["[0, 1]", "[0, 1]"]


def test_it_says_what_it_is(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["experiment.py", "--help"])
    with pytest.raises(SystemExit):
        experiment.main("What it measures.\n\nMore.", block, str, seeds=2, steps=9)
    said = capsys.readouterr().out
    assert "What it measures." in said and "More." not in said
