"""Whatever value a field of a config has, the run is sane or is refused in words, before it begins.

Each field of the config and of the bundled extensions has each of the values, by every way to set
it. What reads the value, and what `jaxrl train` checks before a model is read, must accept it or
raise an error that names the field. What is accepted is the same when a saved run is read.
"""

import contextlib
import itertools
import json
import math
import random
import time

import pytest

from jaxrl import config as configs
from jaxrl.config import Config, stages
from jaxrl.launch import cli, recipes
from jaxrl.launch.settings import configs as files
from jaxrl.launch.settings import flags
from jaxrl.run import assemble
from tests.jaxrl.test_fields import ALL, EXTENSIONS, nested

BASE = configs.merged(
    recipes.load("quickstart"), {"eval": {"problems": 4}, "warm_start": {"steps": 0}}
)
ENTRIES = (
    "stages", "course", "extensions", "task_args.digits", "wrapper_args.asks", "bandit.args.rate",
    "rollout.template_args.a", "objective.policy_args.clip_high", "objective.rows_args.a",
    "objective.advantage_args.baseline", "optimizer.rates.layers/*", "mesh.rules.vocab",
)  # fmt: skip
"""Fields that hold what has no field, and entries of those that are mappings."""
FIELDS = (*ALL, *EXTENSIONS, *ENTRIES)


def deep(levels):
    """Lists within each other."""
    value = []
    for _ in range(levels):
        value = [value]
    return value


VALUES = {
    "none": None, "true": True, "false": False, "zero": 0, "one": 1, "minus one": -1,
    "32 bits": 1 << 31, "64 bits": 1 << 63, "400 digits": 10**400, "half": 0.5,
    "minus a half": -0.5, "large": 1e308, "small": 5e-324, "nan": math.nan, "infinity": math.inf,
    "minus infinity": -math.inf, "empty": "", "a word": "x", "nan in a text": "nan",
    "too large in a text": "1e999", "long": "a" * 100_000, "NUL": "a\0b", "escape": "\x1b[2J",
    "surrogate": "\ud800", "turned": "\u202e", "outside": "../../etc/passwd", "braces": "{}",
    "brackets": "[" * 5000, "list": [None], "deep": deep(90), "mapping": {"a": {"b": 1}},
    "class": {"__class__": 1},
}  # fmt: skip


def of_file(name, value):
    """The config of a file that sets a field."""
    inner = nested(name, value)
    return configs.merged(BASE, {"extensions": inner} if name in EXTENSIONS else inner)


def of_saved_run(name, value):
    """The config of a saved run in which a field has been changed."""
    inner = nested(name, value)
    return configs.from_dict(Config, {"extensions": inner} if name in EXTENSIONS else inner)


def of_flag(name, value):
    """The config of a command with a flag."""
    base = configs.extended(BASE, name.partition(".")[0]) if name in EXTENSIONS else BASE
    text = value if isinstance(value, str) else json.dumps(value)
    return flags.parse(base, [f"--{name.replace('_', '-')}={text}"], prog="jaxrl train")


def of_stage(name, value):
    """The config of a file with a stage that sets a field."""
    return configs.merged(BASE, {"stages": {1: {name: value}}})


def refusal(read, name, value):
    """What is said of a value; empty where it is accepted."""
    try:
        config = read(name, value)
        assemble.check(config)
    except ValueError as error:
        return str(error)
    plain = json.loads(json.dumps(configs.to_dict(config)))
    assert configs.from_dict(Config, plain) == config
    return ""


def faults(read, combinations):
    """Combinations that end otherwise than they should, with what was seen, and those accepted."""
    wrong, accepted = list[tuple[str, str, str]](), list[tuple[str, str]]()
    for name, kind in combinations:
        start = time.process_time()
        try:
            text = refusal(read, name, VALUES[kind])
        except SystemExit:  # of the parser of flags, which says why
            text = name
        except Exception as error:
            wrong.append((name, kind, f"{type(error).__name__}: {error}"[:200]))
            continue
        if not text:
            accepted.append((name, kind))
        elif not any(p.removesuffix("s") in text.replace("-", "_") for p in name.split(".")[-2:]):
            wrong.append((name, kind, text[:200]))
        if time.process_time() - start > 5:
            wrong.append((name, kind, "it takes long"))
    return wrong, accepted


def combinations(fields, count=None):
    """Pairs of a field and a value: all, or so many of them."""
    pairs = list(itertools.product(fields, VALUES))
    return pairs if count is None else random.Random(0).sample(pairs, count)


IN_STAGES = [n for n in ALL if any(n.startswith(part) for part in stages.MAY_CHANGE)]
FLAGGED = [n for n in (*ALL, *EXTENSIONS) if "dict" not in str((ALL | EXTENSIONS)[n])]
WAYS = {
    of_file: (FIELDS, 300, None),
    of_saved_run: (FIELDS, 100, 1500),
    of_stage: (IN_STAGES, 60, 500),
    of_flag: (FLAGGED, 10, 40),
}
"""Way to set a field to the fields that it sets, and how many combinations are tried of them in the
ordinary tests and in the broad ones; None: all."""


@pytest.mark.parametrize("read", WAYS)
def test_a_hostile_value_is_refused_in_words_or_sane(read):
    fields, count, _ = WAYS[read]
    wrong, _ = faults(read, combinations(fields, count))
    assert not wrong


@pytest.mark.sample(2)
@pytest.mark.broad
@pytest.mark.parametrize("read", WAYS)
def test_every_hostile_value_is_refused_in_words_or_sane(read):
    fields, _, count = WAYS[read]
    pairs = combinations(fields, count)
    wrong, accepted = faults(read, pairs)
    assert not wrong
    if count is None:
        assert len(pairs) > 9000 and len(accepted) < len(pairs) / 5
        for name, kind in random.Random(0).sample(accepted, 30):
            assembled(read(name, VALUES[kind]))


def assembled(config):
    """The parts of a run, or nothing where they refuse the config in words."""
    with contextlib.suppress(ValueError, FileNotFoundError):
        return assemble.assemble(config)


def test_the_settings_of_every_recipe_are_in_range():
    for name in recipes.names():
        stages.check(recipes.load(name))


def test_a_number_that_no_field_has_is_refused_in_all():
    for name in FIELDS[: len(ALL) + len(EXTENSIONS)]:
        for kind in ("nan", "400 digits"):
            assert refusal(of_file, name, VALUES[kind]), (name, kind)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"score_seconds": 1e9}, "score_seconds=1000000000.0: must be above 0 and at most 2147483"),
        ({"optimizer": {"b1": 1.0}}, "optimizer.b1=1.0: must be 0 or more and below 1"),
        ({"warm_start": {"steps": -1}}, "warm_start.steps=-1: must be 0 or more"),
        ({"rollout": {"prompts": 1 << 12, "group_size": 1 << 12}}, "rollout.group_size=4096 are"),
        ({"recipe": "../x"}, "has a slash; set run_dir"),
        ({"curriculum": {"score": "x"}}, "curriculum.score='x': function 'x' is not"),
        ({"extensions": {"replay": {"keep": "x"}}}, "replay: function 'x' is not"),
        ({"steps": 10**9, "stages": {0: {"seed": 1, "period": 1}}}, "stages.0: period=1 with"),
    ],
)
def test_a_refusal_says_what_may_be(changes, says):
    with pytest.raises(ValueError) as error:
        config = configs.merged(BASE, changes)
        assemble.assemble(config)
    assert says in str(error.value)


def doubled(levels, width=10):
    """YAML whose aliases stand for `width` values each, and those for as many each."""
    lines = ["a0: &a0 [x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines)


CONTENTS = {
    "x.yaml": (
        "[" * 2000, "a: " * 5000, doubled(7), doubled(4, 3000), "seed: &a [*a]",
        "task: 2020-01-01", "steps: 0x_",
        "recipe: quickstart\nstages: {1: {task: 2020-01-01}}", "steps: !!binary aGk=",
        "steps: !!python/object/apply:os.system [id]", "steps: " + "9" * 5000, "\x1b[2J: 1", "a\0b",
        "steps: !!set {a}", "- a", "", "null", "task_args: {a: !!binary aGk=}", "steps: 2020-99-99",
        "recipe: [quickstart]", "recipe: 3", "recipe: {a: 1}", "recipe: ../../x", "1: 2",
        "? [a]\n: 1", "recipe: quickstart\n1: 2", "extensions: 3", "extensions: [critic]",
        "course: 3", "course: []", "course: [3]", "course: [{}]", "course: [{recipe: x}]",
        "stages: [1]", "stages: {a: {}}", "data: [1, 2]",
        "reward: {a: 1}", "rewards: 3", "objective: {policy: [1]}", "objective: {policy: {a: 1}}",
    ),
    "x.json": ("[" * 2000, '{"a":' * 5000, "{", '{"config": 3}', '{"config": {"steps": NaN}}'),
    "x.toml": ("a=" + "[" * 5000, "steps = 1979-05-27", "steps = nan", "a.b.c", "steps = 1\n" * 2),
}  # fmt: skip


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("name", CONTENTS)
def test_a_hostile_file_is_refused_by_its_name_or_field(name, tmp_path):
    path = tmp_path / name
    for content in (*CONTENTS[name], b"\xff\xfe\x00", b"\x80abc: 1"):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        start = time.process_time()
        with pytest.raises((ValueError, SystemExit)) as error:
            assemble.check(files.resolve([str(path)])[0])
        assert error.type is not SystemExit and len(str(error.value)) < 9000, content[:80]
        assert time.process_time() - start < 10, content[:80]


def test_a_file_that_cannot_be_read_is_refused_by_its_name(tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    for name in ("folder.yaml", "missing.yaml", "missing.json"):
        with pytest.raises(ValueError, match=name):
            files.resolve([str(tmp_path / name)])


@pytest.mark.parametrize(
    "arguments", [["{}"], ["quickstart", "--model", "{}"], ["quickstart", "--fork", "{}"]]
)
def test_a_name_that_no_file_can_have_is_refused(arguments, capfd):
    assert cli.main(["train", *(text.format("a" * 100_000) for text in arguments)]) == 2
    assert capfd.readouterr().err.startswith("jaxrl: ")
