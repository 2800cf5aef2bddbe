"""Where each method's formula is from, how true the recipe is to it, and its measurements."""

import re
import subprocess
import sys

import pytest

from jaxrl.launch import cli, recipes

METHODS = [name for name in recipes.names() if hasattr(recipes.module(name), "METHOD")]
CODE = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} [\w./+-]+:\d+(-\d+)?")
PAPER = re.compile(r"paper, (equation|section|algorithm|table)s? [\w.]+( (to|and) [\w.]+)?")
NONE = re.compile(r"none found \([^()]+\)")
WHOLE = ("verified against code", "verified against equations", "own formula")


def kind(source: str) -> str:
    """`none`, or `code` and `paper` for those that are named; empty: of another form."""
    if NONE.fullmatch(source):
        return "none"
    parts = source.split("; ")
    if not all(CODE.fullmatch(part) or PAPER.fullmatch(part) for part in parts):
        return ""
    return "code" if any(CODE.fullmatch(part) for part in parts) else "paper"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_where_its_formula_is_from_and_how_true_it_is(name):
    """A verified one names what it was verified against."""
    fields = recipes.documented(name)
    source, fidelity = kind(fields["source"]), fields["fidelity"]
    assert source, fields
    assert fidelity in WHOLE or re.fullmatch(r"partial: \S.*[^.]", fidelity), fields
    if fidelity.startswith("verified against"):
        assert source == {"code": "code", "equations": "paper"}[fidelity.split()[-1]], fields
    doc = recipes.module(name).__doc__
    assert doc.count("\nSource:") == doc.count("\nFidelity:") == 1


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (f"owner/name@{'0a' * 20} some/path.py:12", "code"),
        (f"owner/name@{'0a' * 20} some/path.py:12-14; paper, equation 3", "code"),
        ("paper, equations 5 to 7", "paper"),
        ("none found (the abstract was read)", "none"),
        ("", ""),
        ("owner/name some/path.py:12", ""),
        (f"owner/name@{'0a' * 20} some/path.py", ""),
        ("paper", ""),
        ("none found", ""),
        ("none found (searched); paper, equation 3", ""),
    ],
)
def test_forms_of_a_source(source, found):
    assert kind(source) == found


def test_the_rows_of_recipes_have_both():
    row = next(row for row in recipes.rows() if row["name"] == "grao")
    assert (row["source"], row["fidelity"]) == ("paper, equation 3", "verified against equations")
    assert recipes.documented("sft") == {"source": "", "fidelity": ""}


def test_a_recipe_shows_what_was_measured_of_it(capsys):
    for name, shown in (("karl", "against its ablation"), ("quickstart", "not in the laboratory")):
        assert cli.main(["recipes", name]) == 0
        assert shown in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_measurements_are_of_recipes_and_few():
    ids = {row["id"] for row in recipes.rows()}
    lines = recipes.measurements()
    assert lines.keys() <= ids and len(lines) > 90
    assert all("; against its ablation " in line and len(line) < 400 for line in lines.values())


def test_measurements_are_read_without_the_laboratory():
    program = (
        "import sys; from jaxrl.launch import cli, recipes; recipes.measurements(); "
        "assert not any(name.split('.')[0] == 'experiments' for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
