"""What docs/data.md shows works as shown."""

import re
import shlex
from pathlib import Path

import numpy as np

from jaxrl.config import stages
from jaxrl.data import tasks
from jaxrl.data.environments import Turn
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.selection import curriculum
from jaxrl.launch import recipes
from jaxrl.launch.settings import flags
from jaxrl.rollout import selection
from jaxrl.rollout.tasks import of_config

DOC = Path(__file__).parents[2] / "docs" / "data.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)


def test_a_task_of_ones_own_in_under_40_lines(tmp_path, monkeypatch):
    (source,) = [block for block in BLOCKS if "-> Task" in block]
    assert len(source.strip().splitlines()) < 40
    (tmp_path / "anagrams.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = tasks.get("anagrams:make", letters=6)
    made = {split: [task.problem(split, 0, i) for i in range(30)] for split in task.splits}
    assert not {p.id for p in made["train"]} & {p.id for p in made["test"]}
    problem = made["train"][0]
    with scoring.open_pool("anagrams:make", {"letters": 6}, workers=1) as pool:
        right, wrong, none = pool.score(
            [(problem, task.gold(problem)), (problem, "<answer>zzzzzz</answer>"), (problem, "")]
        )
    assert (right.value, wrong.value, none.value) == (1.0, 0.0, 0.0)


def test_the_curriculum_example_runs():
    (source,) = [block for block in BLOCKS if "curriculum.start" in block]
    scope = {"allowed": np.ones(1000, bool), "rewards": np.zeros((32, 4))}
    exec(source, scope)
    assert scope["state"].visits.sum() == 32


def test_every_name_and_task_it_mentions_exists():
    text = DOC.read_text()
    for name in tasks.BUNDLED:
        assert f"`{name}`" in text, name
    for name in re.findall(r"`curriculum\.(\w+)`", text):
        assert hasattr(curriculum, name), name
    for module in re.findall(r"`rewards\.(\w+)`", text):
        assert [*(DOC.parents[1] / "data" / "rewards").rglob(f"{module}.py")], module


def test_the_commands_are_understood_and_pass_their_checks():
    text = DOC.read_text().replace("\\\n", " ")
    commands = re.findall(r"^jaxrl (train \w+ [^#\n]*)", text, re.MULTILINE)
    assert len(commands) == 9
    for command in commands:
        _, recipe, *rest = shlex.split(command)
        config = flags.parse(recipes.load(recipe), rest, prog=command)
        assert config != recipes.load(recipe)
        stages.check(config)
        for _, staged in stages.all_of(config):
            selection.check(staged)


def test_the_mixture_example_passes_its_checks():
    (source,) = [block for block in BLOCKS if "domains=" in block]
    scope = {}
    exec(source.replace("Config(\n", "made = Config(\n"), scope)
    selection.check(scope["made"])
    assert set(of_config(scope["made"]).parts) == {"sums", "mazes"}


def environments(text):
    """The Python blocks of docs/environments.md that have a text."""
    page = (DOC.parent / "environments.md").read_text()
    return [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if text in block]


def test_a_tool_of_ones_own_in_ten_lines():
    (source,) = environments("def dictionary")
    scope = {"WORDS": {"cat": "an animal"}, "task": tasks.get("arithmetic")}
    exec(source, scope)
    problem = scope["task"].problem("train", 0, 0)
    bench, opening = scope["environment"].begin(problem, 0)
    assert opening.tools[0]["function"]["parameters"]["properties"]["word"]["type"] == "string"
    call = '<tool_call>{"name": "dictionary", "arguments": {"word": "cat"}}</tool_call>'
    assert scope["environment"].step(bench, call).messages[0]["content"] == "an animal"
    assert scope["environment"].step(bench, scope["task"].gold(problem)).reward == 1


def test_an_environment_of_ones_own_in_under_40_lines(tmp_path, monkeypatch):
    (source,) = environments("guess 1 to")
    assert len(source.strip().splitlines()) < 40
    (tmp_path / "guess.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = tasks.get("guess:make", guesses=2)
    made = {split: {task.problem(split, 0, i).id for i in range(30)} for split in ("train", "test")}
    assert not made["train"] & made["test"]
    problem = task.problem("train", 0, 0)
    with scoring.open_pool("guess:make", {"guesses": 2}, workers=0) as pool:
        said = [pool.act(Turn(0, problem, 0)).result()]
        for actions in [("0",), ("0", str(problem.answer))]:
            said.append(pool.act(Turn(0, problem, 0, actions, tuple(said))).result())
    opening, higher, end = said
    assert opening.messages[0]["content"].startswith("guess 1 to")
    assert higher.messages[0]["content"] == "higher" and (end.reward, end.done) == (1.0, True)


def test_every_pitfall_has_a_test_that_is_there():
    page = (DOC.parent / "environments.md").read_text()
    table = page.partition("## Known pitfalls")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(lines) == 22
    for line in lines:
        found = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", line)
        assert found, line
        for file, name in found:
            assert f"def {name}(" in (DOC.parents[1] / file).read_text(), name
