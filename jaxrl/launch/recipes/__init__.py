"""The recipes: one module each, whose docstring says what it is.

A method of the literature is its `METHOD`, a change of any run's settings, and the `EXAMPLE` that
shows it on a small run. The others are whole runs: their `config()` returns the settings.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import pkgutil
import re
import sys
from importlib import resources
from types import ModuleType

from jaxrl.config import Config
from jaxrl.functions import nearest
from jaxrl.launch import algorithms, method

READY = ("calculator", "keydoor", "quickstart", "retrieval", "smollm2")
"""Recipes that are whole runs, with their model and task."""

IDS = {
    "1_shot_rlvr": "one_shot_rlvr",
    "delethink_markovian_thinker": "delethink",
    "four_habits_of_highly_effective_stars": "four_habits",
    "generalised_ntp_objective_precision_dive": "generalised_ntp",
    "hl_gauss_value_classification": "hl_gauss_critic",
    "limr_lim": "limr",
    "loop": "loop_leave_one_out",
    "memory_r_episodic_intrinsic_reward": "memory_r",
    "multi_swe_bench_multi_swe_rl": "multi_swe_rl",
    "off_the_principals_three_gate_theory": "three_gate_theory",
    "p5": "p5_recommendation",
    "past": "past_skill_transfer",
    "post_training_for_vulnerability_detectio": "vulnerability_detection",
    "ra3": "ra3_plans",
    "ram": "ram_merging",
    "rec_red_off_policy_group_reinforce": "rec_group_reinforce",
    "research_idea_dynamic_control": "dynamic_control",
    "ring_1t_icepop_c3po": "icepop",
    "rl4lms_grue_nlpo": "nlpo",
    "rubicon_rubric_anchors": "rubicon",
    "rulereasoner_dads": "rulereasoner",
    "telechat2_telechat2_5_t1": "telechat2",
    "thor_tirgen_hierarchical_rl": "thor",
    "tig": "think_in_games",
    "tig_grid": "think_in_games_grid",
    "tricks_or_traps_lite_ppo": "lite_ppo",
    "vibethinker_1_5b_ssp_mgpo": "vibethinker",
    "wingpt_3_0": "wingpt",
}
"""Ids of methods in the catalogue of the literature that differ from the recipe's name. Both name
the recipe."""


def names() -> list[str]:
    """All recipes, sorted. A module in a folder of this package is one; nothing is registered."""
    return sorted(_modules())


def module(name: str) -> ModuleType:
    """The module of a recipe, by its name or id.

    Raises:
      ValueError: no such recipe; the message gives the nearest.
    """
    modules = _modules()
    recipe = IDS.get(name, name)
    if recipe not in modules:
        raise ValueError(f"recipe {name!r} is unknown; {hint(name)}")
    return importlib.import_module(modules[recipe])


def family(name: str) -> str:
    """The folder of a recipe: what it has in common with the others there."""
    return _modules()[IDS.get(name, name)].split(".")[-2]


@functools.cache
def _modules() -> dict[str, str]:
    """Name of each recipe -> its module."""
    modules = pkgutil.walk_packages(__path__, f"{__name__}.")
    return {m.name.rpartition(".")[2]: m.name for m in modules if not m.ispkg}


def identity(name: str) -> str:
    """The id of a method: the name of its module, but for those of `IDS`."""
    return {module: method_id for method_id, module in IDS.items()}.get(name, name)


def load(name: str, model: str | None = None) -> Config:
    """The config of a recipe, or of an algorithm.

    Args:
      name: of the recipe, its id, or an algorithm.
      model: that is to be trained. A method is put on the settings that the algorithms begin with,
        and nothing of its example's model, task, lengths, batch and memory layout is left. None or
        `fresh`: the example's model.

    Raises:
      ValueError: neither; the message gives the nearest.
    """
    spelled = algorithms.canonical(name)
    if spelled in algorithms.ALGORITHMS:
        return algorithms.load(spelled)
    recipe, name = module(name), IDS.get(name, name)
    if model in (None, "fresh"):
        return of_module(recipe, name)
    change = method.Method() if name == method.DEFAULT_BASE else method_in(recipe)
    if change is None:
        return recipe.config()
    return dataclasses.replace(method.applied(algorithms.BASE, change), recipe=name)


def of_module(recipe: ModuleType, name: str) -> Config:
    """The config of a module with `config()`, or with a `METHOD`, which is put on its `EXAMPLE`.

    Args:
      recipe: the module.
      name: that the run gets.
    """
    recipe_method = method_in(recipe)
    if recipe_method is None:
        return recipe.config()
    example = getattr(recipe, "EXAMPLE", method.Example())
    base = method.changed(load(example.base), example.changes)  # its steps, which stages divide
    config = method.applied(base, _as_shown(recipe_method, example))
    return dataclasses.replace(method.changed(config, example.changes), recipe=name)


def method_in(recipe: ModuleType | None) -> method.Method | None:
    """The `METHOD` of a module; None where it has none."""
    recipe_method = getattr(recipe, "METHOD", None)
    return recipe_method if isinstance(recipe_method, method.Method) else None


def method_of(config: Config) -> method.Method | None:
    """The method of a config's recipe, or of a user's file; None for a whole run.

    Of the small run that shows a method, the stages are those of that run.
    """
    name = IDS.get(config.recipe, config.recipe)
    recipe = module(name) if name in _modules() else sys.modules.get(name)
    recipe_method = method_in(recipe)
    if recipe_method is None or not is_example(config):
        return recipe_method
    return _as_shown(recipe_method, getattr(recipe, "EXAMPLE", method.Example()))


def refitted(config: Config, before: Config) -> Config:
    """The config with the stages of its recipe's method, and their weights of the user's domains,
    where they belong in the run that it now is. Stages that the user has set stay.

    Args:
      config: with the user's changes.
      before: without them.
    """
    recipe_method = method_of(config)
    if recipe_method is None or not has_stages_of(before, config):
        return config
    return method.fitted(config, recipe_method)


def has_stages_of(before: Config, config: Config) -> bool:
    """Whether a config has the stages that a method gave it before the user's changes, or, away
    from the problems of its recipe's example, those of the example."""
    if config.stages != before.stages:
        return False
    earlier = method_of(before)
    stages = {} if earlier is None else method.placed(before, earlier).stages
    if before.stages == stages or not is_example(before) or is_example(config):
        return before.stages == stages
    return before.stages == load(before.recipe).stages


def _as_shown(recipe_method: method.Method, example: method.Example) -> method.Method:
    """A method with the stages of its example."""
    if example.stages is None:
        return recipe_method
    return dataclasses.replace(recipe_method, stages=example.stages)


def is_example(config: Config) -> bool:
    """Whether a config trains the model of its recipe's example on its problems."""
    name = IDS.get(config.recipe, config.recipe)
    if name not in _modules():
        return False
    example = load(name)
    same = ("model", "task", "domains", "wrapper")
    return all(getattr(config, field) == getattr(example, field) for field in same)


def hint(name: str) -> str:
    """What can be named in place of an unknown name."""
    near = nearest(algorithms.canonical(name), [*algorithms.names(), *names()])
    if near.startswith("known"):
        near = f"algorithms: {', '.join(algorithms.names())}; `jaxrl recipes` lists the others"
    return f"{near} A config file, a .py file or a run directory may be named too"


def kind(name: str) -> str:
    """`method`, one of the literature; `ready`, a whole run for this machine; or `data`, any other,
    which learns from data of the user's."""
    if method_in(module(name)) is not None:
        return "method"
    return "ready" if name in READY else "data"


def documented(name: str) -> dict[str, str]:
    """`source` and `fidelity` of a recipe, as its docstring has them; empty where it has none."""
    doc, fields = inspect.getdoc(module(name)) or "", {}
    for field in ("Source", "Fidelity"):
        end = r"(?=\n[A-Z]\w*:\s|\n\n|\Z)"
        text = re.search(rf"^{field}:\s(.*?){end}", doc, re.DOTALL | re.MULTILINE)
        fields[field.lower()] = " ".join(text[1].split()) if text else ""
    return fields


@functools.cache
def measurements() -> dict[str, str]:
    """Id of each method that the laboratory has measured -> in a line, the verdict on its claim,
    the differences to its ablation and to the fair baseline, and where else it was tested."""
    text = (resources.files(__package__) / "measured.json").read_text(encoding="utf-8")
    return json.loads(text)


def rows() -> list[dict[str, str | int]]:
    """One object a recipe: `name`, `id`, `family`, `kind`, `summary`, `model`, `task`, `steps`,
    `source`, `fidelity`."""
    out: list[dict[str, str | int]] = []
    for name in names():
        config = load(name)
        doc = module(name).__doc__ or ""
        summary = doc.strip().split("\n\n")[0].replace("\n", " ")
        out.append(
            {
                "name": name,
                "id": identity(name),
                "family": family(name),
                "kind": kind(name),
                "summary": summary,
                "model": config.model,
                "task": ", ".join(config.domains) or config.task,
                "steps": config.steps,
                **documented(name),
            }
        )
    return out
