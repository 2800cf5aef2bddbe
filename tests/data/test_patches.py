"""Patches, by hand: what applies, and what a verdict without pass-to-pass tests accepts."""

import pytest

from jaxrl.data import tasks
from jaxrl.data.rewards.programs import patches
from jaxrl.data.tasks.programs.patches import source, value

FILES = {"a": "one\ntwo\none\nthree"}


@pytest.mark.parametrize(
    "patch, expected",
    [
        ("a\n-two\n+2", "one\n2\none\nthree"),
        ("a\n-two\n", "one\none\nthree"),
        ("a\n-one\n-three\n+x\n+y\n", "one\ntwo\nx\ny"),
    ],
)
def test_a_patch_replaces_lines_that_occur_once(patch, expected):
    assert patches.apply(FILES, patch) == {"a": expected}
    assert FILES["a"] == "one\ntwo\none\nthree"


@pytest.mark.parametrize(
    "patch",
    [
        "",
        "a",
        "b\n-two\n+2",
        "a\n-one\n+1",
        "a\n-four\n+4",
        "a\n+2",
        "a\n+2\n-two",
        "a\n-two\n?2",
        "a\n-two\n\n+2",
    ],
)
def test_other_patches_do_not_apply(patch):
    assert patches.apply(FILES, patch) is None


def test_verdicts_by_hand():
    before = [False, False, True, True]
    half = patches.judge(before, [True, False, True, True])
    assert half == (0.5, 1.0) and not half.fixed and not half.breaking
    good = patches.judge(before, [True] * 4)
    assert good == (1.0, 1.0) and good.resolved and not good.breaking
    broke = patches.judge(before, [True, True, False, True])
    assert broke == (1.0, 0.5) and broke.fixed and broke.breaking and not broke.resolved
    assert patches.judge([False], [True]).resolved
    for wrong in ([True], [True, True]):
        with pytest.raises(ValueError, match="fail before"):
            patches.judge([True, True], wrong)


def test_what_the_functions_give():
    assert source("python", (1, 2, 3)).splitlines()[1] == "f=lambda x:h(x)+2"
    assert source("bash", (1, 2, 3)).splitlines()[0] == "h(){ echo $(($1+1)); }"
    assert [value((1, 2, 3), name, 10) for name in "hfg"] == [11, 13, 14]


@pytest.mark.parametrize("language", ["python", "bash"])
def test_a_change_of_what_others_call_is_accepted_only_without_pass_to_pass_tests(language):
    full, lax = (tasks.get("patches", language=language, tests=t) for t in ("all", "fail_to_pass"))
    slipping = tasks.get("patches", language=language, slips=1.0)
    problem = next(
        p for i in range(99) for p in [full.problem("train", 0, i)] if "\nf +" in p.prompt
    )
    assert problem.metadata["before"] == [True, True, False, False, True, True]
    assert full.reward(problem, full.gold(problem)).value == 1.0
    breaking = slipping.gold(problem)
    strict, loose = full.reward(problem, breaking), lax.reward(problem, breaking)
    assert (strict.value, loose.value) == (0.0, 1.0)
    assert strict.parts == loose.parts == {
        "resolved": 0.0, "fixed": 1.0, "breaking": 1.0, "fail_to_pass": 1.0, "pass_to_pass": 0.0,
        "applies": 1.0,
    }  # fmt: skip
    nothing = full.reward(problem, "nothing").parts
    assert nothing["applies"] == 0 == nothing["fixed"] and nothing["pass_to_pass"] == 1
    path = next(iter(problem.metadata["files"]))
    first = problem.metadata["files"][path].split("\n")[0]
    assert full.reward(problem, f"{path}\n-{first}\n+exit(").value == 0.0


@pytest.mark.parametrize("given", [{"language": "c"}, {"tests": "none"}, {"slips": -0.1}])
def test_parameters_out_of_range_are_refused(given):
    with pytest.raises(ValueError, match="="):
        tasks.get("patches", **given)
