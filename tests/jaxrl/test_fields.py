"""A field of a config is set in one way, whoever sets it: Python, a file, a stage, a saved run."""

import dataclasses
import types
import typing

import numpy as np
import pytest
import yaml

from jaxrl import config as configs
from jaxrl import functions
from jaxrl.config import Config, Domain, fields, stages

WRONG = {
    int: ["many", 4.5, float("inf"), float("nan"), True],
    float: ["much", True, [1], 10**400],
    bool: ["yes", 1],
    str: [3, ["a"]],
}
"""Values that a field of a type cannot have."""


def leaves(kind, prefix=""):
    """Dotted names and types of all fields that are no groups."""
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            yield from leaves(hint, f"{prefix}{name}.")
        elif name not in ("stages", "course", "extensions"):
            yield prefix + name, hint


def wrong_values(hint):
    """Values that a field of a type cannot have, nested ones too."""
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:  # of arguments of functions, which may be true or false
        refused = [value for value in wrong_values(members[1]) if value is not True]
        entries = [{"a": value} for value in refused]
        return [3, "text", *entries]
    if origin is tuple:
        return [3, "text", *([value] for value in wrong_values(members[0]))]
    if origin is typing.Literal:
        return ["none of them", 3]
    if origin in (types.UnionType, typing.Union):
        alternatives = [member for member in members if member is not types.NoneType]
        return wrong_values(alternatives[0]) if len(alternatives) == 1 else []
    return ["text"] if dataclasses.is_dataclass(hint) else WRONG[hint]


def nested(name, value):
    """A mapping of mappings for a dotted name, as in a file."""
    first, _, rest = name.partition(".")
    return {first: nested(rest, value) if rest else value}


ALL = dict(leaves(Config))
GROUPS = tuple(name for name in stages.MAY_CHANGE if name.endswith("."))
EXTENSIONS = {
    f"{name}.{field}": hint
    for name in functions.bundled_extensions()
    for field, hint in leaves(functions.settings_type(functions.extension(name)))
}


def refusal(function, *args, **kwargs):
    """What a call says that must refuse its arguments."""
    with pytest.raises(ValueError) as error:
        function(*args, **kwargs)
    return str(error.value)


def refusals(name, value):
    """What every way to set a field says of a value."""
    reference, _, field = name.partition(".")
    if name in ALL:
        values = nested(name, value)
        yield refusal(configs.replaced, Config(), name, value)
    else:
        values, base = {"extensions": nested(name, value)}, configs.extended(Config(), reference)
        yield refusal(configs.replaced, base, name, value)
        yield refusal(configs.extended, base, reference, **nested(field, value))
    yield refusal(configs.merged, Config(), values)
    yield refusal(configs.from_dict, Config, values)


@pytest.mark.parametrize("name", [*ALL, *EXTENSIONS])
def test_a_wrong_value_is_refused_in_the_same_words(name):
    for value in wrong_values((ALL | EXTENSIONS)[name]):
        first, *others = refusals(name, value)
        assert first.startswith(name)
        assert others == [first] * len(others)


@pytest.mark.parametrize("name", [n for n in ALL if n in stages.MAY_CHANGE or n.startswith(GROUPS)])
def test_a_stage_refuses_in_these_words_too(name):
    for value in wrong_values(ALL[name]):
        words = refusal(stages.at, Config(stages={1: {name: value}}), 1)
        assert words == f"stages.1: {refusal(configs.replaced, Config(), name, value)}"


@pytest.mark.parametrize("name", [*ALL, *EXTENSIONS])
def test_a_misspelled_field_is_refused_with_the_nearest(name):
    group, _, last = name.rpartition(".")
    wrong = f"{group}.{last}x".removeprefix(".")
    values = nested(wrong, 1) if name in ALL else {"extensions": nested(wrong, 1)}
    base = Config() if name in ALL else configs.extended(Config(), name.partition(".")[0])
    first = refusal(configs.replaced, base, wrong, 1)
    assert first.startswith(f"{wrong}: there is no field '{last}x'; ")
    assert refusal(configs.merged, Config(), values) == first
    assert refusal(configs.from_dict, Config, values) == first


def test_values_become_what_the_field_holds():
    domains = {"a": {"task": "maze", "args": {"size": 5}, "curriculum": {"window": 2}}}
    written = {
        "optimizer": {"learning-rate": "1e-5"},
        "train": ["layers"],
        "domains": domains,
        "curriculum": {"args": {"count": 3, "share": "5e-1"}},
        "asynchronous": {"staleness": None},
        "stages": {"5": {"task": "maze"}},
    }
    read = configs.merged(Config(), written)
    assert read.optimizer.learning_rate == 1e-5 and read.train == ("layers",)
    assert read.domains["a"].curriculum.window == 2 and isinstance(read.domains["a"], Domain)
    assert read.curriculum.args == {"count": 3, "share": 0.5}
    assert type(read.curriculum.args["count"]) is int  # a function may count with it
    assert read.asynchronous.staleness is None and list(read.stages) == [5]
    deeper = configs.replaced(read, "domains.a.args.size", 7)
    assert deeper.domains["a"].args == {"size": 7} and read.domains["a"].args == {"size": 5}
    assert configs.replaced(read, "stages.5", {"task": "sort"}).stages == {5: {"task": "sort"}}


def test_true_and_false_are_arguments_of_functions():
    for config in (
        configs.replaced(Config(), "curriculum.args.strict", True),
        configs.merged(Config(), {"curriculum": {"args": {"strict": True}}}),
        configs.from_dict(Config, {"curriculum": {"args": {"strict": True}}}),
    ):
        assert config.curriculum.args == {"strict": True}


@pytest.mark.parametrize(
    "value", [1e4, np.int64(10_000), np.float64(1e4), yaml.safe_load("1.0e+4")]
)
def test_a_whole_number_of_any_kind_is_an_integer(value):
    for config in (
        configs.replaced(Config(), "steps", value),
        configs.merged(Config(), {"steps": value}),
        configs.from_dict(Config, {"steps": value}),
    ):
        assert (config.steps, type(config.steps)) == (10_000, int)


def test_what_a_file_leaves_out_stays_in_extensions_too():
    written = {"extensions": {"critic": {"optimizer": {"b1": 0.5}}, "average": None}}
    read = configs.merged(Config(), written).extensions
    default = configs.extended(Config(), "critic").extensions["critic"]
    optimizer = dataclasses.replace(default.optimizer, b1=0.5)
    assert read["critic"] == dataclasses.replace(default, optimizer=optimizer)
    assert read["average"] == configs.extended(Config(), "average").extensions["average"]
    with pytest.raises(ValueError, match=r"^critic=3: must hold fields"):
        configs.merged(Config(), {"extensions": {"critic": 3}})


def test_fields_that_go_together_may_stand_in_any_order():
    """No quantised base without adapters, but the rank may follow."""
    for written in ({"base": "nf4", "rank": 8}, {"rank": 8, "base": "nf4"}):
        for read in (configs.merged(Config(), {"lora": written}),
                     configs.from_dict(Config, {"lora": written})):  # fmt: skip
            assert (read.lora.base, read.lora.rank) == ("nf4", 8)


def test_what_is_not_there_cannot_be_entered():
    for name in ("domains.a.weight", "steps.more", "task_args.a.b"):
        with pytest.raises(ValueError, match=f"^{name}: there is no field"):
            configs.replaced(Config(), name, 1)
    with pytest.raises(ValueError, match=r"stages\.soon: 'soon' must be of type int"):
        configs.replaced(Config(), "stages.soon", {})


def test_the_type_of_a_field_is_that_of_its_place():
    base = Config(domains={"a": Domain()})
    assert fields.field_of(base, "rollout.temperature") == (float, 1.0)
    assert fields.field_of(base, "domains.a.weight") == (float, 1.0)
    assert fields.field_of(base, "curriculum.args.new") == (float, None)
