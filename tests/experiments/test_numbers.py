"""The numbers of the documentation have raw results, or say that they have none."""

import dataclasses
import json
import re

import pytest

from experiments import numbers, speed
from experiments.lab import views
from jaxrl.launch import recipes
from jaxrl.run import loop

ENTRIES = json.loads(numbers.NUMBERS.read_text())
README = (numbers.ROOT / "README.md").read_text()


def test_the_page_is_that_of_the_file():
    assert numbers.PAGE.read_text() == numbers.markdown(ENTRIES)


def test_every_number_says_where_its_raw_result_is():
    fields = {"number", "where", "how", "command", "version", "machine", "raw"}
    for entry in ENTRIES:
        assert entry.keys() == fields and all(entry[k] for k in fields - {"raw"})
        for path in entry["raw"] if isinstance(entry["raw"], list) else ():
            assert (numbers.ROOT / path).exists(), path
    lines = numbers.PAGE.read_text().splitlines()
    assert sum(numbers.AGAIN in line for line in lines) == sum(e["raw"] is None for e in ENTRIES)


def test_the_first_numbers_of_a_reader_are_those_of_their_runs():
    """The quickstart and SmolLM2, to three decimals."""
    runs = {"quickstart": "quickstart/seed0.summary.json", "smollm2": "smollm2/summary.json"}
    for name, path in runs.items():
        summary = json.loads((numbers.ROOT / "experiments/runs" / path).read_text())
        before, after = (f"{summary['eval'][k]['pass@1']:.3f}" for k in ("before", "after"))
        assert f"from {before} to {after}" in " ".join(README.split()), name
        (entry,) = [e for e in ENTRIES if f"{before} to {after}" in e["number"]]
        assert f"experiments/runs/{name}" in entry["raw"]
        assert summary["versions"]["jaxrl"] in entry["version"]
    block = README[README.index("before: pass@1") : README.index("everything is in")]
    summary = json.loads((numbers.ROOT / "experiments/runs" / runs["quickstart"]).read_text())
    for when in ("before", "after"):
        own = summary["eval"][when]
        ends = [own["pass@1"], own["pass@1/low"], own["pass@1/high"]]
        assert "{:.3f} [{:.3f}, {:.3f}]".format(*ends) in block
    first = re.search(r"before: pass@1 ([\d.]+)", block)
    assert first[1] == format(summary["eval"]["before"]["pass@1"], ".3f")


def test_the_tables_of_speed_are_what_the_benchmarks_printed():
    results = json.loads(speed.RESULTS.read_text())
    text = speed.PAGE.read_text()
    assert text == speed.page(text, results)
    names = re.findall(r"<!-- speed: ([\w-]+) -->", text)
    assert sorted(names) == sorted(results) and set(names) <= set(speed.BENCHMARKS)
    outside = re.sub(r"<!-- speed: .*?<!-- end -->", "", text, flags=re.DOTALL)
    assert not re.search(r"\d (?:ms|s|tokens/s|GB)\b", outside)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_quickstart_gives_its_numbers_again(tmp_path):
    """To the last digit, on a machine of the type of the recorded run."""
    (entry,) = [e for e in ENTRIES if e["command"] == "`jaxrl train quickstart --seed 0`"]
    if entry["machine"] != f"2 cores, {views.machine()}":
        pytest.skip(f"recorded on {entry['machine']}, whose rounding may differ")
    stored = json.loads((numbers.ROOT / entry["raw"][0] / "seed0.summary.json").read_text())
    config = dataclasses.replace(recipes.load("quickstart"), run_dir=str(tmp_path / "run"))
    assert loop.train(config)["eval"] == stored["eval"]


def test_the_ratios_of_the_readme_are_those_of_the_step_benchmark():
    lines = json.loads(speed.RESULTS.read_text())["step"]["output"]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in lines if line[:1] == "|"]
    seconds = {system: float(step) for row, system, step in rows if row == "equal"}
    trl, tunix = (round(seconds[name] / seconds["jaxrl"], 1) for name in ("trl", "tunix"))
    readme = " ".join((speed.ROOT / "README.md").read_text().split())
    assert f"takes TRL {trl} and Tunix {tunix} times as long" in readme
