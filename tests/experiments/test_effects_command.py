"""`python -m experiments effects`: what is refused, and what is written when there is nothing to
do."""

import dataclasses
import json

import pytest

from experiments import __main__ as laboratory
from experiments import lab
from experiments.effects import command as effects
from experiments.effects import options, table
from experiments.lab import families
from tests.launch.fakes import Fake, git, play


@pytest.fixture
def measured(repository, monkeypatch):
    """A directory in which AEPO is measured, and its arms."""
    fake = Fake(0.1)
    play(monkeypatch, fake)
    monkeypatch.setattr(effects.os, "nice", lambda more: 0)
    effects.queue(["aepo"], lambda line: None)
    return repository, fake


def contents(folder):
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


@pytest.mark.broad
def test_complete_rows_are_not_measured_again(measured, capsys):
    """The command says so, writes nothing, and counts no further look."""
    folder, fake = measured
    before, ran = contents(folder), len(fake.ran)
    capsys.readouterr()
    assert laboratory.main(["effects", "aepo"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said == "aepo: all rows of the plan are measured; `--rerun` runs their arms again"
    assert contents(folder) == before and len(fake.ran) == ran


@pytest.mark.broad
def test_a_row_that_is_missing_is_measured_alone(measured):
    folder, _ = measured
    path = folder / "measured.json"
    kept = json.loads(path.read_text())
    gone = kept["aepo"].pop()
    path.write_text(json.dumps(kept))
    assert laboratory.main(["effects", "aepo"]) == 0
    looks = json.loads(path.read_text())["aepo"]
    assert looks[:-1] == kept["aepo"]
    assert {k: looks[-1][k] for k in ("task", "other")} == {k: gone[k] for k in ("task", "other")}


@pytest.mark.broad
def test_a_baseline_of_development_seeds_alone_is_not_described(measured, monkeypatch, capsys):
    """A fair baseline may have no measured row; the others are described."""
    folder, _ = measured
    path, rows = folder / "measured.json", table.rows
    kept = json.loads(path.read_text())
    kept["aepo"].pop()
    path.write_text(json.dumps(kept))
    unknown = dict.fromkeys(("effect", "interval", "means"))
    development = {"development": {"effect": 0.0, "interval": [-0.1, 0.1], "seeds": 6}}

    def with_unmeasured(names=None):
        known = rows(names) if names else rows()
        return [*known, known[0] | unknown | development | {"measured": False}]

    monkeypatch.setattr(effects, "_write_pages", lambda: None)
    monkeypatch.setattr(table, "rows", with_unmeasured)
    assert laboratory.main(["effects", "aepo"]) == 0
    assert capsys.readouterr().out.count("seeds of power") == len(kept["aepo"]) + 1


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["aepo", "--task", "regime"], "task='regime' is read by `--rerun` alone"),
        (["aepo", "--arms", "method"], "arms=('method',) is read by `--rerun` alone"),
        (["--queue", "--task", "regime"], "task='regime' is read by `--rerun` alone"),
        (["--real", "--rerun", "grpo.0", "--task", "x"], "task='x' is read by `--rerun` alone"),
        (["--json", "--html", "x.html"], "--json --html: give one of them at a time"),
        (["--plan", "--queue"], "--plan --queue: give one of them at a time"),
        (["--steps", "9", "--rerun"], "--steps --rerun: give one of them at a time"),
        (["--real", "--json"], "--json --real: give one of them at a time"),
        (["--real", "--plan", "gain_rl"], "--plan --real is of all methods; leave out gain_rl"),
        (["--history", "aepo"], "--history is of all methods; leave out aepo"),
        (["--table", "aepo", "raft"], "--table is of all methods; leave out aepo raft"),
        (["--steps", "-1", "raft"], "steps=-1: give 5 or more"),
        (["--steps", "4", "raft"], "steps=4: give 5 or more"),
        (["--html", "/nonexistent/x"], "html='/nonexistent/x': No such file or directory"),
        (["--html", "/"], "html='/': Is a directory"),
    ],
)
def test_options_without_effect_are_refused(measured, capsys, given, said):
    folder, _ = measured
    before = contents(folder)
    assert laboratory.main(["effects", *given]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert contents(folder) == before


def test_every_option_is_a_mode_or_belongs_to_one():
    fields = {field.name for field in dataclasses.fields(options.Options)}
    assert fields == {*options.MODES, "methods", "task", "arms"}


@pytest.mark.broad
def test_the_page_is_of_the_methods_that_are_named(measured):
    folder, _ = measured
    page = folder / "page.html"
    assert laboratory.main(["effects", "--html", str(page), "aepo"]) == 0
    assert "1 of 1 methods are measured" in page.read_text()
    assert laboratory.main(["effects", "--html", str(page), "raft"]) == 0
    assert "Not measured yet: raft (regime)." in page.read_text() and "aepo" not in page.read_text()


def test_a_look_at_the_code_takes_development_seeds(monkeypatch):
    """Those of measurements stay unseen."""
    seen = []

    def run_arm(effect, given, seeds, *, steps):
        seen.extend(seeds)
        return {"final": {"pass@1": [0.1, 0.2]}}

    monkeypatch.setattr(lab.effect, "run_arm", run_arm)
    assert laboratory.main(["effects", "--steps", "5", "raft"]) == 0
    assert len(seen) == 4 and {*seen} <= {*families.DEVELOPMENT}


@pytest.mark.broad
def test_the_queue_looks_again_for_plans_in_the_history(measured):
    """A plan that was listed as missing, and came with a merge, is marked no longer."""
    folder, _ = measured
    row = table.rows(["aepo"])[0]
    history = folder / table.HISTORY
    assert json.loads(history.read_text())["lost"] == {}
    history.write_text(json.dumps({"lost": {row["plan"]: ["aepo"]}}))
    effects._write_pages()
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "Stale")
    assert table.NOT_FOUND in (folder / "README.md").read_text()

    effects.queue(["aepo"], lambda line: None)
    assert json.loads(history.read_text())["lost"] == {}
    for page in ("README.md", "effects.md"):
        assert table.NOT_FOUND not in (folder / page).read_text()
    assert git(folder, "status", "--porcelain") == ""
    assert git(folder, "log", "-1", "--format=%s") == "Plans that are in the history"
    last = git(folder, "rev-parse", "HEAD")
    effects.queue(["aepo"], lambda line: None)
    assert git(folder, "rev-parse", "HEAD") == last


@pytest.mark.broad
def test_the_queue_of_a_shallow_clone_measures_all_the_same(measured, monkeypatch, tmp_path):
    """It cannot tell which plans are in the history, and says so."""
    folder, _ = measured
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{folder}", str(shallow))
    for command in (("user.email", "a@b.c"), ("user.name", "a")):
        git(shallow, "config", *command)
    monkeypatch.setattr(table, "RESULTS", shallow)
    monkeypatch.setattr(table, "TABLE", shallow / "README.md")
    kept = json.loads((shallow / "measured.json").read_text())
    kept["aepo"].pop()
    (shallow / "measured.json").write_text(json.dumps(kept))
    said = []
    effects.queue(["aepo"], said.append)
    assert effects.missing("aepo") == []
    assert "history.json is left as it is" in said[-1] and "git fetch --unshallow" in said[-1]


def test_recorded_plans_that_are_in_the_history_are_not_listed_as_missing():
    path = table.RESULTS / table.HISTORY
    try:
        known = git(path.parent, "rev-list", "HEAD").split()
        shallow = git(path.parent, "rev-parse", "--is-shallow-repository") == "true"
    except (OSError, effects.files.subprocess.CalledProcessError):
        pytest.skip("the code is in no Git repository")
    if shallow:
        pytest.skip("a clone without the whole history")
    assert not table.lost_plans() & {*known}


def test_a_demonstrated_held_out_problem_is_found_where_something_is_hidden():
    """There a problem is its prompt and its table: the same prompt with another is no overlap."""
    task = lab.lookup()

    def leaked(seed, hidden):
        made = task.make(seed)
        test = made.test._replace(prompt=made.test.prompt.copy(), answer=made.test.answer.copy())
        test.prompt[7] = made.demonstrations.prompt[3]
        if hidden:
            test.answer[7] = made.demonstrations.answer[3]
        return made._replace(test=test)

    for hidden, found in ((False, 0), (True, 1)):
        changed = dataclasses.replace(task, make=lambda s, hidden=hidden: leaked(s, hidden))
        assert effects.overlap(changed, 0) == found
