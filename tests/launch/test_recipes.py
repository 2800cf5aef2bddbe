"""Every recipe trains in the real loop, every effect runs, and the table is what was measured."""

import collections
import dataclasses
import inspect
import json

import jax
import numpy as np
import pytest

from experiments import __main__ as laboratory
from experiments import lab
from experiments.effects import table
from jaxrl.config import FreshModel
from jaxrl.launch import recipes
from jaxrl.record import metrics
from jaxrl.run import assemble, loop
from tests import broad_except

EFFECTS = table.names()


@pytest.fixture(autouse=True, scope="module")
def _compile_little(tmp_path_factory):
    """What is compiled here runs for a few steps: each program once, and not optimised."""
    changed = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
        "jax_disable_most_optimizations": True,
    }
    before = {name: jax.config.values[name] for name in changed}
    for name, value in changed.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


ROWS = {
    "completion": {"prompt": "{0}+1=", "completion": "{1}"},
    "preference": {"prompt": "{0}+1=", "chosen": "{1}", "rejected": "{0}"},
    "label": {"prompt": "{0}+1=", "completion": "{1}", "label": "{2}"},
    "stepwise": {"prompt": "{0}+1=", "completions": "{1}", "labels": "{2}"},
    "text": {"text": "{0}+1={1}"},
}
"""Rows of the kinds that recipes learn from."""


def with_rows(config, folder):
    """The recipe with a small file of the kind that it learns from."""
    kind = next(kind for kind in ROWS if kind in config.data.kinds)
    rows = [
        {name: text.format(i, i + 1, i % 2) for name, text in ROWS[kind].items()} for i in range(8)
    ]
    if kind == "stepwise":
        rows = [{n: each if n == "prompt" else [each] for n, each in row.items()} for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.json").write_text(json.dumps(rows))
    data = {
        "path": str(folder / "rows.json"),
        "batch_size": 4,
        "max_tokens": 400 if config.data.comparisons else 32,
    }
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **data))


EPISODES = {
    "apps": (32, 60, {}),
    "board_game": (16, 80, {}),
    "diagnosis": (32, 28, {}),
    "emotional_support": (32, 28, {"turns": 5}),
    "game24": (32, 128, {}),
    "html_form": (32, 96, {}),
    "keydoor": (32, 28, {"turns": 2}),
    "ledger": (32, 60, {"failed": -0.5}),
    "planning": (32, 28, {}),
    "recall": (32, 28, {}),
    "retrieval": (32, 28, {}),
    "revision": (16, 12, {}),
    "routing": (32, 28, {}),
    "text_grid": (32, 224, {}),
    "workshop": (32, 28, {"turns": 5}),
}
"""Tasks of several turns, which have credit or stages that arithmetic has none of: the prompt's and
the response's budgets, and parameters."""


PROGRAMS = {
    "boolean": (20, 24, {}),
    "guarded": (24, 12, {"args": '{"digits": 1, "operators": "+"}'}),
    "micro_ml": (24, 12, {}),
    "patches": (104, 72, {}),
    "polyglot": (24, 56, {}),
}
"""Tasks of one turn whose verifiers run programs, or whose rewards have parts of their own: the
same."""


ASKED = {"armed": (32, 16, {}), "pairwise_reward": (400, 4, {}), "pairwise_rl": (32, 16, {})}
"""Recipes with questions in words, for which arithmetic has no letters: the same."""


WRITTEN = {
    "guimid": 20,
    "magic_token_co_training": 10,
    "octothinker": 12,
    "ra3_plans": 20,
    "wethink": 8,
}
"""Recipes whose solutions are longer, and the response's budget."""


def tiny(config, run_dir):
    """The recipe on a model, task and shapes that all recipes share."""
    if config.data.kinds:
        config = with_rows(config, run_dir.parent)
    change = dataclasses.replace
    own = ASKED.get(config.recipe) or (EPISODES | PROGRAMS).get(config.task)
    turns = own is not None
    asked, written, given = own or (16, WRITTEN.get(config.recipe, 4), {})
    solved = config.warm_start.steps and config.task != "keydoor"  # which takes over two turns
    warm = 2 if solved or not turns else 0
    return change(
        config,
        run_dir=str(run_dir),
        steps=2,
        model="fresh",
        fresh=FreshModel(16, 32, 1, 1, 1, 16),
        task=config.task if turns else "arithmetic",
        task_args=config.task_args | given if turns else {"digits": 1, "operators": "+"},
        warm_start=change(
            config.warm_start, steps=0 if config.data.kinds else warm, batch_size=16
        ),
        rollout=change(
            config.rollout, prompts=4, group_size=4, max_prompt_tokens=asked,
            max_new_tokens=written, chat=False,
        ),
        stages=dict(zip((0, 1)[0 not in config.stages :], config.stages.values(), strict=False)),
        extensions=small_extensions(config),
        updates_per_batch=min(config.updates_per_batch, 2),
        sampler=change(config.sampler, slots=16, prefill_rows=4, bucket=32),
        packing=change(
            config.packing, micro_batch_tokens=max(256, asked + written), bucket=32,
            row_length=max(64, asked + written),
        ),
        eval=change(config.eval, problems=8, every=0),
        rollout_log=change(config.rollout_log, every=0),
        score_workers=0,
    )  # fmt: skip


def small_extensions(config):
    """The recipe's extensions, with no more replayed groups than a step has prompts."""
    made = dict(config.extensions)
    if "replay" in made:
        groups = min(made["replay"].groups, 4)
        made["replay"] = dataclasses.replace(made["replay"], groups=groups)
    return made


MECHANISMS = ("chord", "delethink", "dump", "quickstart", "remix", "nlpo", "rlpr")
"""Recipes that differ most in extensions, rollouts and curricula; runs from files are in
`test_fine_tuning`."""


TAUGHT = {"distill", "distill_on_policy"}
"""Recipes with a teacher, which tests/jaxrl/extensions/test_teacher.py runs."""


def recipe_cases():
    """The recipes, of which three are ordinary cases. The first of each folder, whose recipes
    have something in common, and the other mechanisms are broad ones, and the rest is slow."""
    names = [name for name in recipes.names() if name not in TAUGHT]
    folders = collections.defaultdict(list)
    for name in names:
        folders[recipes.family(name)].append(name)
    broad = {*MECHANISMS}.union(*(f[:1] for f in folders.values()))
    quick = ("chord", "delethink", "quickstart")
    slow = [pytest.param(n, marks=pytest.mark.slow) for n in names if n not in broad]
    return broad_except(quick, [name for name in names if name in broad]) + slow


@pytest.mark.parametrize("name", recipe_cases())
def test_a_recipe_trains_in_the_real_loop(name, tmp_path):
    loop.train(tiny(recipes.load(name), tmp_path / "run"))
    rows = metrics.read(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(np.isfinite(row["loss"]) and row["skipped"] == 0 for row in rows)


@pytest.mark.sample(24, broad=12)
@pytest.mark.parametrize("name", [n for n in recipes.names() if n not in TAUGHT])
def test_a_recipe_passes_the_checks_of_a_run_as_it_is(name):
    """Unlike above, with its own task, budgets and stages."""
    config = recipes.load(name)
    if config.model == "fresh" and not config.data.kinds:
        assemble.assemble(config)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.broad if name == "raft" else pytest.mark.slow)
        for name in EFFECTS
    ],
)
def test_an_effect_can_be_run_again(name):
    """For a few steps only: the code, not the figure."""
    result = lab.run(table.effect_of(name), seeds=(0, 1), steps=5)
    assert np.isfinite(result["method"]).all() and np.isfinite(result["ablation"]).all()
    assert np.isfinite(result["comparison"]["effect"])


@pytest.mark.parametrize("name", EFFECTS)
def test_a_recipe_says_what_it_is(name):
    doc = inspect.getdoc(table.module(name))
    missing = [field for field in table.FIELDS if not table.field(doc, field)]
    assert not missing
    source = inspect.getsource(table.module(name))
    assert len(source.splitlines()) <= 120


def test_a_field_of_a_docstring_is_its_whole_paragraph():
    doc = 'What.\n\nPaper: A 2020,\n"B"\nIdea: one\ntwo: three\nClaim: last.\n\nMore.'
    assert table.field(doc, "Paper") == 'A 2020, "B"'
    assert table.field(doc, "Idea") == "one two: three"
    assert table.field(doc, "Claim") == "last."
    assert table.field(doc, "Formula") == ""


def test_an_unknown_effect_is_refused_with_the_nearest(capsys):
    assert laboratory.main(["effects", "rafd"]) == 2
    assert "did you mean 'raft'" in capsys.readouterr().err
