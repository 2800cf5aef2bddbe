"""A config of others is data: an allow-list of fields, which every parameter is in or out of."""

import dataclasses
import importlib
import inspect
import itertools
import json
import pkgutil
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from reasoning_gym.factory import DATASETS

from jaxrl import config as configs
from jaxrl import functions, untrusted
from jaxrl.config import Config
from jaxrl.config.prompts import Domain
from jaxrl.data import tasks
from jaxrl.data.rewards import named
from jaxrl.data.rewards.judged import judge, rubrics
from jaxrl.launch import recipes
from jaxrl.record import account

ALLOWED = (
    untrusted.PLAIN | untrusted.PROSE | untrusted.JSON | untrusted.LOCAL | untrusted.FREE
    | untrusted.KEYED | untrusted.CHOSEN.keys()
)  # fmt: skip
INNER = frozenset({
    "task_args", "args", "policy_args", "shaping_args", "advantage_args", "rows_args", "keep_args",
    "choose_args",
})  # fmt: skip
"""Mappings of parameters, which are looked at by their own names."""
CLOSED = frozenset({
    "accepts", "actions", "anchors", "checklist", "combine", "description", "env", "env_id",
    "field", "file", "find", "function", "help", "interactions", "key", "language_name", "make",
    "names", "python", "right", "script", "show", "template_args", "tests", "words",
    "wrapper_args", "wrong",
})  # fmt: skip
"""Parameters that are given from Python or are mappings: a text in one of them is refused."""
TEXTUAL = ("str", "Any", "Mapping", "dict", "Path", "Literal", "Sequence", "list", "tuple")


PACKAGES = (
    "jaxrl.launch.recipes", "jaxrl.data.tasks", "jaxrl.data.environments", "jaxrl.data.rewards",
)  # fmt: skip


def is_textual(hint: Any) -> bool:
    return hint is inspect.Parameter.empty or any(word in str(hint) for word in TEXTUAL)


def fields(kind: Any) -> Iterator[str]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from fields(hints[field.name])
        elif is_textual(hints[field.name]):
            yield field.name


def parameters(function: Any) -> Iterator[str]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD and is_textual(parameter.annotation):
            yield parameter.name


def made(package: str) -> Iterator[Any]:
    """Functions of a package, at any depth, that return a task, a tool or a reward."""
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, f"{package}."):
        found = importlib.import_module(module.name)
        for name, function in vars(found).items():
            own = inspect.isfunction(function) and function.__module__ == found.__name__
            result = str(function.__annotations__.get("return")) if own else ""
            if own and name[0] != "_" and result in ("Task", "Tool", "Reward", "Environment"):
                yield function


def places() -> dict[str, str]:
    """Every field or parameter that can hold a text, with a place where it does."""
    found: dict[str, str] = {}
    for kind in (Config, Domain, judge.Endpoint):
        found |= dict.fromkeys(fields(kind), kind.__name__)
    for name in functions.bundled_extensions():
        settings = functions.settings_type(functions.extension(name))
        found |= dict.fromkeys(fields(settings), f"extension {name}")
    for name, module in tasks.BUNDLED.items():
        task = importlib.import_module(module).task
        found |= dict.fromkeys(parameters(task), f"task {name}")
    for name, reward in named.BUNDLED.items():
        found |= dict.fromkeys(parameters(reward), f"reward {name}")
    for function in itertools.chain.from_iterable(map(made, PACKAGES)):
        found |= dict.fromkeys(parameters(function), function.__module__)
    for name, (_, kind) in DATASETS.items():
        hints = {f.name: f.type for f in dataclasses.fields(kind)}
        texts = [n for n, hint in hints.items() if "str" in str(hint) or "Any" in str(hint)]
        found |= dict.fromkeys(texts, f"reasoning_gym/{name}")
    for part in (rubrics.Rubric, rubrics.Criterion, rubrics.Checklist, rubrics.Anchor):
        texts = {n: f.annotation for n, f in part.model_fields.items()}
        found |= {n: part.__name__ for n, hint in texts.items() if is_textual(hint)}
    return found


PLACES = places()


def test_every_parameter_is_allowed_or_refused():
    assert not untrusted.REFUSED & ALLOWED
    assert not CLOSED & (ALLOWED | untrusted.REFUSED)
    assert not PLACES.keys() - untrusted.REFUSED - ALLOWED - INNER - CLOSED
    assert not CLOSED - PLACES.keys()
    assert not accepted({name: "x"} for name in CLOSED)
    assert len(PLACES) > 180


def test_a_name_in_the_table_is_a_parameter_of_something():
    assert not (untrusted.REFUSED | untrusted.PROSE | untrusted.JSON) - PLACES.keys() - {"mcp"}


def components() -> dict[str, set[str]]:
    """Refused fields by what they are fields of, as in `PLACES`."""
    found: dict[str, set[str]] = {}
    for name in untrusted.REFUSED & PLACES.keys():
        found.setdefault(PLACES[name].partition("/")[0], set()).add(name)
    return found


COMPONENTS = components()
VALUES = ("x", "relative/x", "/etc/passwd", ["x"], {"a": "x"}, 3, 0, True)
ADDRESSES = (
    "http://h/v1", "ht\ntp://h/v1", "\x01http://h", " \thttp://h", "HTTPS://h", "file:///etc/passwd",
    "gs://bucket/x", "ｈｔｔｐ://h", "h\u200bttp://h", "ws://h", "\u2066http://h", "ftp://h",
    "s3://b/x", "gs://\u200bb/x", "gcs://b/x",
)  # fmt: skip
CODES = (0, 7, 8, 0x1B, 0x7F, 0x85, 0x9B, 0x2028, 0x202E, 0x2066, 0xD800)


def nests(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    """Configs that set a field, at every depth that one is read at."""
    return (
        {name: value},
        {"task_args": {name: value}},
        {"task_args": {"args": json.dumps({"args": json.dumps({name: value})})}},
        {"domains": {"a": {"args": {name: value}}}},
        {"domains": {name: {"args": {name: value}}}},
        {"stages": {3: {f"task_args.{name.replace('_', '-')}": value}}},
        {"course": {0: {"task_args": {name: value}}}},
        {"course": {0: {"course": {1: {"stages": {2: {f"task_args.{name}": value}}}}}}},
        {"extensions": {"judge": {name: value}}},
        {"task_args": {"parts": json.dumps({"a": [1, "math", {name: value}]})}},
        {"task_args": {"parts": json.dumps({name: [1, "math", {}, {name: value}]})}},
        {"task_args": {"rewards": json.dumps([["j", "judge", 1, {name: value}]])}},
        {"task_args": {"rewards": json.dumps([["r", "rubric", 1, {"rubric": {"judges": {
            "m": {name: value}}}}]])}},
        {"task_args": {"rubric": json.dumps({"judges": {name: {name: value}}})}},
        {"objective": {"policy_args": {name: value}}},
    )  # fmt: skip


def accepted(configs_of_others: Iterable[Any]) -> list[Any]:
    """Those of which nothing is refused."""
    return [each for each in configs_of_others if not untrusted.foreign(each)]


@pytest.mark.parametrize("component", sorted(COMPONENTS))
def test_no_value_of_a_refused_parameter_passes(component):
    tried = [
        nest
        for name, value in itertools.product(sorted(COMPONENTS[component]), VALUES)
        if not (name == "models" and isinstance(value, list))  # models of this machine
        for nest in nests(name, value)
    ]
    assert tried and not accepted(tried)


def test_every_refused_parameter_is_one_of_a_component():
    assert set().union(*COMPONENTS.values()) == untrusted.REFUSED & PLACES.keys()


def test_no_field_takes_an_address():
    tried = [
        nest
        for field, text in itertools.product(sorted(ALLOWED | {"new_field"}), ADDRESSES)
        for nest in (
            {field: text},
            {field: [text]},
            {"task_args": {"args": json.dumps({field: text})}},
        )
    ]
    assert len(tried) > 4000 and not accepted(tried)


def test_control_characters_are_refused_in_every_text():
    fields = sorted(ALLOWED - untrusted.KEYED - untrusted.FREE)
    tried = [
        each
        for field, code in itertools.product(fields, CODES)
        for each in ({field: f"a{chr(code)}b"}, {f"a{chr(code)}b": 1})
    ]
    assert len(tried) > 2000 and not accepted(tried)


def test_a_line_break_is_for_texts_that_are_read_as_such():
    assert not untrusted.foreign({"system": "a\nb", "template": "{question}\n"})
    assert untrusted.foreign({"recipe": "a\nb"})


OF_ONE_KIND = (
    ("language", "lang.yaml"), ("language", "../../tmp/x"), ("language", "/tmp/x.yaml"),
    ("schedule", "recorded:/tmp/run"), ("schedule", "recorded:run"), ("models", "m.jsonl"),
    ("model", "gs://b/r"), ("model", "//host/share"), ("model", "/net/host/x"),
    ("model", "/proc/self/fd/0"), ("model", "/a/../net/h"), ("model", "~other/x"),
    ("fork", "s3://b/r@3"), ("args", "[" * 100_000), ("rewards", "[1, "),
    ("of", '{"path": "x"}'),
)  # fmt: skip


@pytest.mark.sample(12, broad=9)
@pytest.mark.parametrize("field", sorted(untrusted.JSON | untrusted.PROSE | {"task"}))
@pytest.mark.parametrize("depth", [200, 480, 950, 100_000])
def test_json_in_a_text_is_not_read_where_it_is_deep(field, depth):
    """It would end what looks into it, or what it is given to."""
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        assert untrusted.foreign({field: text})
        assert untrusted.foreign({"stages": {"3": {"task_args": {field: text}}}})


def test_texts_of_one_kind():
    assert not accepted({"task_args": {field: text}} for field, text in OF_ONE_KIND)


def test_what_is_usual_passes():
    assert not untrusted.foreign(configs.to_dict(Config()))
    for name in recipes.names():
        assert not untrusted.foreign(configs.to_dict(recipes.load(name))), name
    assert not untrusted.foreign({"model": "runs/first", "fork": "runs/a@3", "language": "bash"})
    assert not untrusted.foreign({"schedule": "lockstep:4", "models": ["runs/reward"]})
    rubric = {"criteria": {"a": {"text": "two\nlines", "weight": 1}}}
    spec = ["r", "rubric", 1, {"rubric": rubric}]
    assert not untrusted.foreign({"rewards": json.dumps([spec, ["n", "number", 1, {}]])})


def written(directory, config):
    (directory / "checkpoints").mkdir(parents=True)
    plain = configs.to_dict(config)
    (directory / "config.json").write_text(json.dumps({"config": plain, "command": ["jaxrl"]}))
    return directory


def test_a_run_of_others_does_not_take_the_sandbox_away(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    weak = configs.replaced(Config(task="code"), "sandbox.allow_weak", True)
    run = written(tmp_path / "run", weak)
    for trusted in ((), None, {untrusted.WEAK}):
        assert not account.config(run, trusted).sandbox.allow_weak
    for name, value in (("stages", {3: {"sandbox.allow_weak": True}}),
                        ("course", {0: {"sandbox": {"allow_weak": True}}})):  # fmt: skip
        late = written(tmp_path / name, configs.replaced(Config(), name, value))
        with pytest.raises(ValueError, match=r"allow_weak=True.*--trust"):
            account.config(late, ())
    account.remember(run, untrusted.foreign(configs.to_dict(weak)))
    assert account.config(run, ()).sandbox.allow_weak  # this account has started it so


def test_what_this_account_has_started_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config = Config(task="gsm8k", task_args={"path": "mine.jsonl"})
    run = written(tmp_path / "run", config)
    with pytest.raises(ValueError, match=r"path='mine\.jsonl'.*--trust"):
        account.config(run, ())
    account.remember(run, untrusted.foreign(configs.to_dict(config)))
    assert account.config(run, ()) == config
    assert account.config(written(run / "stages" / "0", config), ()) == config
    beside = written(tmp_path / "run2", config)
    with pytest.raises(ValueError, match="--trust"):
        account.config(beside, ())
