"""The table is read from the code, and the document in the repository is that table."""

import json
import pathlib
import re
import types

import jax
import pytest

from jaxrl.launch.listing import losses_table

ROOT = pathlib.Path(__file__).parents[2]


def test_the_document_is_up_to_date():
    document = (ROOT / "docs" / "losses.md").read_text()
    assert document == losses_table.markdown(), (
        "run `python -m jaxrl.launch.listing.losses_table > docs/losses.md`"
    )


def test_every_function_states_its_formula_and_paper():
    rows = losses_table.rows()
    assert json.loads(json.dumps(rows)) == rows
    for row in rows:
        assert row["name"] and row["kind"] and row["summary"].endswith("."), row
        assert row["formula"].startswith("`") or row["formula"].startswith("value `"), row
        assert row["paper"], row
    names = {(row["module"], row["name"]) for row in rows}
    assert len(names) == len(rows)
    assert {
        ("jaxrl.losses.policy.objectives", "ppo_clip"),
        ("jaxrl.losses.divergence.kl", "k3"),
    } <= names
    assert not any(row["module"] == "jaxrl.losses.reduce.masking" for row in rows)


def test_a_new_function_needs_no_registration(monkeypatch):
    module = types.ModuleType("losses.invented")
    source = '''
def novel(logp):
    """A new objective.

    Formula: `-log pi_t`,
      `t` a token
    Paper: Nobody 2030, "A title
      over two lines"

    Args:
      logp: `[B, T]`.
    """
    return -logp

def _private(logp):
    return logp

def bare(logp):
    return logp
'''
    exec(source, vars(module))
    module.imported = jax.jit
    monkeypatch.setattr(losses_table, "modules", lambda: [module])
    novel, bare = losses_table.rows()
    assert novel["name"] == "novel" and novel["kind"] == "invented"
    assert novel["formula"] == "`-log pi_t`, `t` a token"
    assert novel["paper"] == 'Nobody 2030, "A title over two lines"'
    assert bare["paper"] == "" and bare["name"] == "bare"


def test_bars_are_escaped_in_the_document():
    for line in losses_table.markdown().splitlines():
        if line.startswith("| `jaxrl.losses."):
            assert line.replace(r"\|", "").count("|") == 5, line


@pytest.mark.parametrize("kind", ["policy", "advantage", "divergence", "preference", "value"])
def test_kinds_of_the_literature_are_there(kind):
    assert any(row["kind"] == kind for row in losses_table.rows())


def test_every_function_is_tested_by_name():
    tests = "".join(path.read_text() for path in pathlib.Path(__file__).parent.glob("*.py"))
    for row in losses_table.rows():
        module = row["module"].rpartition(".")[2]
        names = {module, *re.findall(rf"import {module} as (\w+)", tests)}
        pattern = rf"\b(?:{'|'.join(map(re.escape, names))})\.{row['name']}\b"
        assert re.search(pattern, tests) or module == "returns", row["name"]
