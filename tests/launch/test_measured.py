"""`jaxrl recipes NAME` says what the laboratory measured, without the laboratory."""

import subprocess
import sys

from jaxrl.launch import cli, recipes


def test_a_recipe_shows_what_was_measured_of_it(capsys):
    for name, shown in (("karl", "against its ablation"), ("quickstart", "not in the laboratory")):
        assert cli.main(["recipes", name]) == 0
        assert shown in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_measurements_are_of_recipes_and_few():
    ids = {row["id"] for row in recipes.rows()}
    lines = recipes.measurements()
    assert lines.keys() <= ids and len(lines) > 90
    assert all("; against its ablation " in line and len(line) < 400 for line in lines.values())


def test_they_are_read_without_the_laboratory():
    program = (
        "import sys; from jaxrl.launch import recipes; recipes.measurements(); "
        "assert not any(name.split('.')[0] == 'experiments' for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
