"""An extension in a user's own file: its flags, its state, and what a run says of it."""

import itertools
import json
import re
import shutil
import sys
from pathlib import Path
from typing import get_origin, get_type_hints

import pytest

from jaxrl import config as configs
from jaxrl import functions
from jaxrl.launch import cli, report
from jaxrl.launch.inspect import replay
from jaxrl.launch.recipes.ready import quickstart
from jaxrl.launch.report import collect
from jaxrl.launch.settings import flags
from jaxrl.record import metrics
from jaxrl.run import extension, loop
from jaxrl.training import routers
from tests.examples import entropy_target
from tests.jaxrl import tiny
from tests.test_imports import ROOT, packages

MINE = "my_file:entropy_target"
STEPS = 4


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory of the user's, with the example as my_file.py."""
    directory = tmp_path_factory.mktemp("home")
    shutil.copy(entropy_target.__file__, directory / "my_file.py")
    return directory


@pytest.fixture
def at_home(home, monkeypatch):
    """The test runs in that directory."""
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)
    return home


def small(directory) -> list[str]:
    """Flags that make the quickstart as small as `tiny.config`."""
    wanted = tiny.config(directory, steps=STEPS)
    given = ["--task-args.digits=1", "--task-args.slips=0"]
    for name, (_, value) in configs.changed(quickstart.config(), wanted).items():
        if name not in ("recipe", "task_args"):
            given.append(f"--{name.replace('_', '-')}={value}")
    return given


def train(home):
    """The run as a user starts it, in the user's directory."""
    mine = ["--with", MINE, "--entropy-target.target", "0.3", "--checkpoint.every=1"]
    arguments = ["train", "quickstart", *mine, *small(home / "run")]
    return tiny.spawn("jaxrl.launch.cli", *arguments, cwd=home)


@pytest.fixture(scope="module")
def killed_and_continued(home):
    assert tiny.kill_at(train(home), "train 2"), "the run was over before it was killed"
    assert "continuing" in tiny.finish(train(home))
    return home / "run"


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    directory = tmp_path_factory.mktemp("straight") / "run"
    mine = {"tests.examples.entropy_target:entropy_target": {"target": 0.3}}
    same_task = {"task_args.slips": 0}
    tiny.finish(tiny.start(directory, steps=STEPS, extensions=mine, **same_task))
    return directory


def test_the_example_is_short():
    with open(entropy_target.__file__) as file:
        assert len(file.readlines()) < 40


def test_the_guide_shows_the_example():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert Path(entropy_target.__file__).read_text() in guide


@pytest.mark.broad
def test_its_state_survives_a_kill(killed_and_continued, straight):
    """Byte for byte, what an uninterrupted run gives."""
    one, two = tiny.artefacts(killed_and_continued), tiny.artefacts(straight)
    assert one == two
    assert any("entropy_coef" in name for name in one["arrays"])


@pytest.mark.broad
def test_it_moves_the_coefficient(straight):
    """By the documented rule, from the entropy that each step measured."""
    rows = metrics.read(straight)
    assert rows[0]["entropy_coef"] == 0.0
    for before, after in itertools.pairwise(rows):
        moved = before["entropy_coef"] + 0.01 * (0.3 - before["entropy"])
        assert after["entropy_coef"] == pytest.approx(max(0.0, moved), abs=1e-7)


@pytest.mark.broad
def test_the_moved_coefficient_is_in_the_loss(tmp_path):
    """A coefficient of 1 at the start gives another update than one of 0."""
    params = []
    for first in (0.0, 1.0):
        made = tiny.config(
            tmp_path / str(first),
            steps=1,
            extensions={"tests.examples.entropy_target:entropy_target": {}},
            **{"objective.entropy_coef": first, "eval.every": 0, "warm_start.steps": 0},
        )
        loop.train(made)
        arrays = tiny.artefacts(tmp_path / str(first))["arrays"]
        params.append({name: a for name, a in arrays.items() if name.startswith("['params']")})
    assert params[0].keys() == params[1].keys() and params[0] != params[1]


@pytest.mark.broad
def test_the_run_reports_it(killed_and_continued):
    """In the summary, in the saved config and in the report, with the settings in force."""
    summary = json.loads((killed_and_continued / "summary.json").read_text())
    assert summary["extensions"] == ["entropy_target"]
    saved = json.loads((killed_and_continued / "config.json").read_text())["config"]
    assert saved["extensions"] == {MINE: {"target": 0.3, "rate": 0.01}}
    (run,) = collect.gather([killed_and_continued])["runs"]
    assert run["extensions"] == [f"{MINE}: target 0.3, rate 0.01"]
    (page,) = report.write([killed_and_continued], killed_and_continued / "report.html")
    assert run["extensions"][0] in page.read_text()


@pytest.mark.broad
def test_a_later_command_runs_the_file_only_if_it_is_trusted(
    killed_and_continued, at_home, tmp_path
):
    """The copy stands for a run that came from elsewhere."""
    shutil.copytree(killed_and_continued, tmp_path / "copy")
    with pytest.raises(ValueError, match=r"my_file:entropy_target.*--trust"):
        replay.replay(tmp_path / "copy", STEPS)
    assert replay.replay(tmp_path / "copy", STEPS, trust=True).differs == {}
    assert replay.replay(killed_and_continued, STEPS).differs == {}


def test_the_command_shows_it(at_home, capsys):
    argv = ["show", "quickstart", "--with", MINE, "--entropy-target.target", "0.4"]
    assert cli.main(argv) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["extensions"] == {MINE: {"target": 0.4, "rate": 0.01}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--with", "crtic"], "did you mean 'critic'"),
        (["--with", "my_file:entropy_targt"], "did you mean 'entropy_target'"),
        (["--with", "my_fil:entropy_target"], "did you mean 'my_file'"),
        (["--with", "my_file:dataclasses"], "does not exist"),
        (["--with"], "needs the name of an extension"),
        (["--critic.clip", "0.3"], "add --with critic"),
        (["--entropy-target.target", "0.3"], "--with module:function"),
        (["--with", MINE, "--entropy-targt.target=0.3"], "did you mean '--entropy-target.target'"),
    ],
)
def test_an_unknown_extension_is_refused_with_the_nearest(given, message, at_home, capsys):
    assert cli.main(["show", "quickstart", *given]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_field_is_refused_with_the_nearest(at_home, capsys):
    with pytest.raises(SystemExit):
        flags.parse(quickstart.config(), ["--with", MINE, "--entropy-target.targt=1"], prog="x")
    said = capsys.readouterr()
    assert "--target" in said.out + said.err


def test_a_missing_dependency_is_named(tmp_path, monkeypatch):
    (tmp_path / "needy_file.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="needs 'no_such_package'"):
        functions.extension("needy_file:mine")


def test_an_extension_named_as_a_field_is_refused(tmp_path, monkeypatch):
    """`--rollout.prompts` would be a flag of both."""
    text = "import tests.examples.entropy_target as example\n"
    text += "def rollout(settings: example.EntropyTarget):\n    return example.Extension()\n"
    (tmp_path / "named_file.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="field 'rollout'; rename it"):
        configs.extended(configs.Config(), "named_file:rollout")
    with pytest.raises(ValueError, match="field 'rollout'; rename it"):
        extension.open_extensions(configs.Config(extensions={"named_file:rollout": {}}))


def test_the_loop_names_no_method():
    """It imports no extension, nothing it imports of a run does, and no name of one is in it."""
    names = functions.bundled_extensions()
    assert {"critic", "kl_control", "nucleus"} <= set(names)
    text = Path(loop.__file__).read_text()
    assert "jaxrl.extensions" not in text
    words = set(re.findall(r"[a-z_]+", text.lower()))
    assert not words & set(names)
    for path in (ROOT / "jaxrl/run").glob("*.py"):
        assert "extensions" not in packages(path), path


def open_two(tmp_path, monkeypatch, first, second):
    """The extensions `first` and `second` of a file of one's own, with roles as source text."""
    text = "import tests.examples.entropy_target as example\n"
    text += "from jaxrl.training.routers import Terms\n"
    for name, provides in (("first", first), ("second", second)):
        text += f"def {name}(settings: example.EntropyTarget):\n"
        text += f"    return example.Extension(provides={provides})\n"
    (tmp_path / "roles_file.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "roles_file", raising=False)
    named = {f"roles_file:{name}": {} for name in ("first", "second")}
    return extension.open_extensions(configs.Config(extensions=named))


@pytest.mark.parametrize(
    ("provides", "message"),
    [
        ("{'refrence': print}", "'second' provides 'refrence', which is no role; did you mean 're"),
        ("{'update': print}", "'second' provides 'update', which is no role"),
        ("{'reference': None}", "'second' provides reference=None; give it .*Callable"),
        ("{'extra_arrays': 'kl'}", "'second' provides extra_arrays='kl'; give it .*tuple"),
        ("{'needs_reference': 'no'}", "needs_reference='no'; give it .*bool"),
    ],
)
def test_a_role_that_is_none_is_refused(provides, message, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=message):
        open_two(tmp_path, monkeypatch, "{}", provides)


ROLES = get_type_hints(extension.Provides)
VALUES = {bool: "True", tuple: "('kl',)", routers.Terms: "Terms(1.0, 'batch', 0.0, 0.0)"}


@pytest.mark.parametrize("role", ROLES)
def test_roles_of_which_a_run_has_one_are_refused_twice(role, tmp_path, monkeypatch):
    kind = get_origin(ROLES[role]) or ROLES[role]
    provides = f"{{{role!r}: {VALUES.get(kind, 'print')}}}"
    if role in extension.Single.__annotations__:
        message = rf"\['first', 'second'\] both give the run's {role}"
        with pytest.raises(ValueError, match=message):
            open_two(tmp_path, monkeypatch, provides, provides)
    else:
        opened = open_two(tmp_path, monkeypatch, provides, provides)
        assert list(extension.providers(opened, role)) == ["first", "second"]
    opened = open_two(tmp_path, monkeypatch, "{}", provides)
    assert extension.provider(opened, role) == opened["second"].provides[role]
    assert extension.provider({"first": opened["first"]}, role) is None
