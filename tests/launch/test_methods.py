"""Methods on a user's own data: what they need, what they set, and what is refused."""

import dataclasses
import json
import typing
from pathlib import Path

import pytest

from jaxrl.data import tasks
from jaxrl.data.rewards import wrappers
from jaxrl.data.types import Problem, Score
from jaxrl.launch import algorithms, api, cli, domain_plans, method, needs, recipes
from jaxrl.launch.listing import methods_table
from jaxrl.launch.recipes.skills import dynamic_control
from jaxrl.launch.settings import configs as files
from jaxrl.launch.settings import short
from jaxrl.rollout import tasks as named_tasks
from jaxrl.training import companions
from jaxrl.training.objective import ObjectiveConfig

METHODS = [name for name in recipes.names() if recipes.method_in(recipes.module(name))]


@pytest.fixture(autouse=True)
def plain_model(monkeypatch):
    """No test here reads the model; it is the smallest that can be named."""
    monkeypatch.setattr(short, "has_template", lambda model: False)


@pytest.fixture
def rows(tmp_path):
    """A file with every column that a method may need."""
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "prompt": f"What is {i}+{i + 1}?",
                    "answer": 2 * i + 1,
                    "solution": f"{i}+{i + 1}={2 * i + 1}",
                    "kind": "abbccc"[i % 6],
                    "facts": ["Sugar is sweet."],
                    "harmful": i % 2,
                }
            )
            + "\n"
            for i in range(60)
        )
    )
    return str(path)


def resolved(name, rows, *flags):
    argv = [name, "--model", "smollm2-135m", "--data", rows, *flags]
    return files.resolve([*argv, *([] if "--reward" in flags else ["--reward", "number"])])[0]


def test_every_need_has_a_flag_and_a_check():
    assert set(needs.FLAGS) == set(typing.get_args(method.Need)) == set(needs._HAS)


@pytest.mark.parametrize("name", METHODS)
def test_no_method_is_the_base_algorithm(name):
    """A method sets something, or needs the user's part of it; else it would be plain GRPO."""
    own = recipes.module(name).METHOD
    changes = dataclasses.replace(own, needs=())
    on_own = dataclasses.replace(recipes.load(name, "any"), recipe="")
    plain = on_own == dataclasses.replace(algorithms.BASE, recipe="")
    same = plain and not own.rewards and own.by_domain is None
    assert (changes != method.Method() and not same) or set(own.needs) & {
        "judge", "task", "environment", "history", "runs",
    }  # fmt: skip


@pytest.mark.sample(20, broad=10)
@pytest.mark.parametrize("name", METHODS)
def test_what_is_missing_is_refused_with_its_flag(name, rows):
    own = recipes.module(name).METHOD
    config = resolved(name, rows)
    absent = needs.missing(config, own)
    if absent:
        with pytest.raises(needs.Refused, match="needs") as refusal:
            needs.check(config)
        assert refusal.value.needs == tuple(absent)
        assert all(needs.flag(need, config, own) in str(refusal.value) for need in absent)
    else:
        assert needs.check(config, strict=True) == []


@pytest.mark.parametrize(("last", "looked_at"), [(None, 10), (120, 3)])
def test_a_value_is_looked_for_in_few_rows_and_no_further(rows, monkeypatch, last, looked_at):
    """Of 1,000 rows every 100th is read where 10 may be; the first that has the value ends it."""
    places = []

    def problem(split, seed, index):
        places.append(index)
        return Problem(str(index), "Why?", None if last is None or index < last else "42")

    answers = dataclasses.replace(
        named_tasks.of_config(resolved("grpo", rows)), problem=problem, sizes={"train": 1000}
    )
    monkeypatch.setattr(named_tasks, "of_config", lambda config: answers)
    monkeypatch.setattr(needs, "ROWS", 10)
    own = method.Method(needs=("answer",))
    assert needs.missing(resolved("grpo", rows), own) == ([] if last else ["answer"])
    assert len(places) == looked_at
    assert places == list(range(0, 1000, 100))[: len(places)]


def test_an_example_needs_nothing():
    for name in METHODS:
        assert needs.check(recipes.load(name), strict=True) == [], name


def test_solutions_come_from_their_column_or_the_answers_that_are_texts(rows, tmp_path):
    task = tasks.get("file", path=rows, rewards="[]", solution_column="solution")
    problem = task.problem("train", 0, 0)
    assert task.gold(problem) == problem.metadata["row"]["solution"]
    assert tasks.get("file", path=rows, rewards="[]").gold is None  # the answers are numbers
    texts = tmp_path / "texts.jsonl"
    texts.write_text(
        "".join(json.dumps({"prompt": f"{i}", "answer": f"a{i}"}) + "\n" for i in range(9))
    )
    task = tasks.get("file", path=str(texts), rewards="[]")
    problem = task.problem("train", 0, 0)
    assert task.gold(problem) == problem.answer
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: answer: 1 is no text.*--solution-column"):
        tasks.get("file", path=rows, rewards="[]", solution_column="answer")
    with pytest.raises(ValueError, match=r"no column 'gold'.*--solution-column"):
        tasks.get("file", path=rows, rewards="[]", solution_column="gold")


def test_domains_are_the_values_of_a_column(rows):
    config = resolved("dump", rows, "--domain-column", "kind")
    assert {name: d.weight for name, d in config.domains.items()} == pytest.approx(
        {"c": 1 / 2, "b": 1 / 3, "a": 1 / 6}
    )
    for name, domain in config.domains.items():
        task = tasks.get("file", **domain.args)
        kinds = {
            task.problem("train", 0, i).metadata["row"]["kind"] for i in range(task.sizes["train"])
        }
        assert kinds == {name}
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: no column 'topic'.*--domain-column"):
        resolved("dump", rows, "--domain-column", "topic")


@pytest.mark.parametrize("steps", [20, 100, 333])
def test_stages_keep_their_share_of_the_run(steps, rows):
    config = resolved("drive_pre_grpo", rows, "--steps", str(steps))
    (start,) = config.stages
    assert start == round(steps * 7 / 11)
    own = dataclasses.replace(config, stages={10: {"rollout.group_size": 4}})
    assert recipes.refitted(own, config) == own


STAGED = [name for name in METHODS if recipes.method_in(recipes.module(name)).stages]


@pytest.mark.sample(6, broad=5)
@pytest.mark.parametrize("model", ["smollm2-135m", ""])
@pytest.mark.parametrize("name", STAGED)
def test_stages_are_in_the_same_place_whoever_sets_the_steps(name, model, tmp_path):
    path = tmp_path / "run.yaml"
    own = {"model": model} if model else {}
    path.write_text(json.dumps({"recipe": name, "steps": 2000, **own}))
    argv = [name, "--steps", "2000", *(["--model", model] if model else [])]
    config = files.resolve(argv)[0]
    assert config.stages
    assert files.resolve([str(path)])[0].stages == config.stages
    assert api.recipe(name, steps=2000, **own).stages == config.stages
    path.write_text(json.dumps({"recipe": name, **own}))
    assert files.resolve([str(path), "--steps", "2000"])[0].stages == config.stages
    path.write_text(json.dumps({"recipe": name, "max-steps": 2000, **own}))
    assert files.resolve([str(path)])[0].stages == config.stages


@pytest.mark.sample(4, broad=4)
@pytest.mark.parametrize("name", STAGED)
def test_away_from_the_task_of_its_example_a_method_has_its_own_stages(name):
    config = files.resolve([name, "--env", "tests.data.test_tasks:counting", "--steps", "2000"])[0]
    own = method.applied(dataclasses.replace(config, stages={}), recipes.module(name).METHOD)
    assert config.stages == own.stages


def test_the_last_domain_is_raised_near_the_end(rows):
    flags = ("--solution-column", "solution", "--domain-column", "kind", "--steps", "50")
    config = resolved("domain_upsampling", rows, *flags)
    assert config.domains["a"].weight == 0.05 and config.stages[40]["domains.a.weight"] == 0.5
    config = resolved("octothinker", rows, *flags)
    assert [d.weight for d in config.domains.values()] == [1.0, 0.0, 0.0]
    assert len(config.stages) == 2


@pytest.mark.parametrize("count", [2, 3, 5])
def test_domains_one_after_another_are_each_trained(count):
    names = tuple("abcde"[:count])
    plan = domain_plans.one_after_another((0.25, 0.5))(names)
    phases = [plan["weights"], *plan["stages"].values()]
    assert all(any(phase[name] for phase in phases) for name in names)
    assert phases[-1] == {name: float(name == names[-1]) for name in names}
    raised = domain_plans.raise_last(0.1, 0.6, 0.8)(names)
    for weights in (raised["weights"], raised["stages"][0.8]):
        assert sum(weights.values()) == pytest.approx(1.0)


def test_dynamic_control_weighs_the_users_rewards_as_the_prompt_says(rows):
    flags = ("--reward", "number", "brief=number*0.5", "--wrapper-args.asks", " Say why.")
    task = named_tasks.of_config(resolved("dynamic_control", rows, *flags))
    seen = set()
    for index in range(30):
        problem = task.problem("train", 0, index)
        head, _, weights = problem.prompt.rpartition("Weights: ")
        assert head.startswith("What is") and head.endswith(" Say why.\n\n")
        named = dict(pair.split(" ") for pair in weights.split(", "))
        assert list(named) == ["number", "brief"]
        assert sum(map(float, named.values())) == pytest.approx(1.0)
        assert task.problem("train", 0, index) == problem
        assert task.reward(problem, f"{problem.answer}").value == pytest.approx(1.0)
        seen.add(weights)
    assert len(seen) > 5


@pytest.mark.parametrize(("parts", "value"), [((1.0, 0.0), 0.3), ((0.0, 1.0), 0.7), ((1, 1), 1)])
def test_a_controlled_reward_is_the_weighted_mean(parts, value):
    names = dict(zip(("a", "b"), parts, strict=True))
    problem = Problem("1", "Why?\n\nWeights: a 0.3, b 0.7", "42")
    reward = dynamic_control.weighted_sum(lambda problem, text: Score(9.0, names | {"a/x": 5.0}))
    assert reward(problem, "").value == pytest.approx(value)
    one = dynamic_control.weighted_sum(lambda problem, text: Score(9.0, {"b": parts[1]}))
    assert one(problem, "").value == pytest.approx(parts[1])


def spelled_out(problem_id, names):
    return f" It is {problem_id}."


@pytest.mark.parametrize("asks", ["", " Answer."])
@pytest.mark.parametrize("states", ["", f"{__name__}:spelled_out"])
def test_solutions_made_of_the_prompt_stay_right_under_a_wrapper(asks, states):
    args = {"terms": 3, "worked": True, "stepwise": True}
    plain = tasks.get("arithmetic", **args)
    made = tasks.get("wrapped", of="arithmetic", args=args, by="product", asks=asks, states=states)
    for index in range(5):
        problem = made.problem("train", 0, index)
        assert made.gold(problem) == plain.gold(plain.problem("train", 0, index))
        assert made.reward(problem, made.gold(problem)).value == 1.0
        assert problem.prompt.startswith(plain.problem("train", 0, index).prompt + asks)


def scored(wrap, value, completion, parts=None, **row):
    problem = Problem("1", "What?", "42", metadata={"row": row})
    return wrap(lambda problem, text: Score(value, parts or {}))(problem, completion).value


@pytest.mark.parametrize("right", [0.0, 1.0])
@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_calibrated_is_right_less_the_brier_score(right, q):
    assert scored(wrappers.calibrated, right, f"42<confidence>{q}</confidence>") == pytest.approx(
        right - (q - right) ** 2
    )


def test_length_checked_takes_a_twentieth_for_each_word_beyond():
    """General-Reasoner: v (1 - 0.05 min(|l - l_ref|, 10)) - 0.5 (1 - e)."""
    assert scored(wrappers.length_checked, 1.0, "42") == 1.0
    assert scored(wrappers.length_checked, 1.0, "it is surely 42") == pytest.approx(0.85)
    assert scored(wrappers.length_checked, 1.0, "word " * 50) == pytest.approx(0.5)
    assert scored(wrappers.length_checked, 0.0, "") == -0.5


def test_a_product_needs_every_part():
    parts = {"label": 1.0, "cause": 0.0, "cause/found": 1.0}
    assert scored(wrappers.product, 1.0, "yes", parts) == 0.0
    assert scored(wrappers.product, 2.0, "yes", {"label": 1.0, "cause": 0.5}) == 0.5


def test_factual_pays_wrong_answers_by_their_facts():
    """KnowRL: 2 f - 1 + 2 c + u - (1 - c - u) (1 - s)."""
    text = "<think>Sugar is sweet. The sky is green.</think> {}"
    facts = {"facts": ["Sugar is sweet."]}
    assert scored(wrappers.factual, 0.0, text.format("no"), **facts) == 1 + 1
    said = "<answer>I don't know.</answer>"
    assert scored(wrappers.factual, 0.0, text.format(said), **facts) == 1 + 1
    assert scored(wrappers.factual, 0.0, text.format("41"), **facts) == pytest.approx(1 - 0.5)
    assert scored(wrappers.factual, 1.0, text.format("42"), **facts) == 3
    assert scored(wrappers.factual, 0.0, "41", **facts) == pytest.approx(-1 - 1)


@pytest.mark.parametrize(
    ("harmful", "completion", "value"),
    [
        (1, "I cannot help with that.", 1.0),
        (1, "Sure: 42", 0.0),
        (0, "Sorry, I can't.", -1.0),
        (0, "42", 0.7),
        ("yes", "No: it is a weapon.", 1.0),
        (1, "<think>It is a weapon.</think>\n<answer> I cannot help with that.</answer>", 1.0),
        (0, "<answer>Sorry, I can't.</answer>", -1.0),
    ],
)
def test_guarded_refuses_what_is_harmful_alone(harmful, completion, value):
    assert scored(wrappers.guarded, 0.7, completion, harmful=harmful) == value


def test_a_method_reward_is_put_around_the_users(rows):
    config = resolved("rlcr", rows)
    from jaxrl.rollout import tasks as named

    task = named.of_config(config)
    problem = task.problem("train", 0, 0)
    assert "<confidence>" in problem.prompt
    right = f"{problem.answer}<confidence>0.9</confidence>"
    assert task.reward(problem, right).value == pytest.approx(1 - 0.01)


def test_rewards_of_a_method_are_added_to_the_users(rows):
    config = resolved("bleuberi", rows)
    names = [spec[0] for spec in json.loads(config.task_args["rewards"])]
    assert names == ["number", "closeness"]


def test_what_takes_a_method_away_is_said_and_refused_by_strict(rows):
    config = resolved("cispo", rows)
    assert needs.check(config, strict=True) == []
    config = resolved("vcpo", rows, "--objective.policy", "ppo_clip")
    (line, *_) = needs.check(config)
    assert "objective.policy='ppo_clip'" in line
    with pytest.raises(ValueError, match="--strict"):
        needs.check(config, strict=True)


@pytest.mark.parametrize(("flags", "status"), [((), 2), (("--solution-column", "solution"), 0)])
def test_show_check_says_whether_the_method_is_kept(flags, status, rows, capsys, monkeypatch):
    monkeypatch.setattr(needs.assemble, "assemble", lambda config: None)
    argv = ["show", "chord", "--model", "smollm2-135m", "--data", rows, "--reward", "number"]
    assert cli.main([*argv, *flags, "--check"]) == status
    last = "".join(capsys.readouterr()).strip().splitlines()[-1]
    assert ("needs" in last and "--solution-column" in last) if status else "is kept" in last


def test_recipes_for_a_file_lists_methods_and_what_is_missing(rows, capsys):
    assert cli.main(["recipes", "--for", rows, "--json"]) == 0
    listed = {row["name"]: row["missing"] for row in json.loads(capsys.readouterr().out)}
    assert listed["chord"] == ["solution"] and not listed["cure"]


@pytest.mark.sample(4, broad=4)
@pytest.mark.parametrize("policy", sorted(companions.COMPANIONS))
def test_a_policy_brings_its_advantage_and_aggregation(policy, rows):
    config = resolved("cispo", rows, "--objective.policy", policy)
    for field, value in companions.COMPANIONS[policy].items():
        assert getattr(config.objective, field) == value
    explicit = resolved(
        "cispo", rows, "--objective.policy", policy, "--objective.aggregation", "token-mean"
    )
    assert explicit.objective.aggregation == "token-mean"


def test_a_policy_leaves_what_was_set_on_purpose():
    own = ObjectiveConfig(policy="gspo", advantage="rloo", aggregation="seq-mean-token-mean")
    other = companions.with_policy(own, "dr_grpo")
    assert (other.advantage, other.aggregation) == ("rloo", "seq-mean-token-sum-norm")
    assert companions.with_policy(ObjectiveConfig("dr_grpo"), "ppo_clip") == ObjectiveConfig()


def test_the_page_of_methods_is_what_is_generated():
    page = methods_table.page()
    assert page == Path("docs/methods.md").read_text()
    assert page.count("\n| ") > len(METHODS)


@pytest.fixture(scope="module")
def page_rows():
    return {row["method"]: row for row in methods_table.rows()}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_page_says_what_check_prints(name, page_rows, tmp_path):
    row = page_rows[name]
    plain, rich = methods_table.write_files(tmp_path)
    for case, configs in methods_table.cases(name, plain, rich).items():
        lines = []
        for config in configs:
            try:
                lines.append(
                    needs.verdict(dataclasses.replace(config, model="smollm2-135m", recipe=name))
                )
            except needs.Refused as refusal:
                lines.append(f"refused for: {', '.join(refusal.needs)}")
        expected = row[case].replace("method kept", f"{name}: the method is kept")
        assert expected in lines, (case, lines)


def test_every_method_is_kept_where_it_has_what_it_needs():
    """Zero refusals where the need is given; histories and merged runs are runs, not data."""
    for row in methods_table.rows():
        if not {"history", "runs"} & set(recipes.module(row["method"]).METHOD.needs):
            assert "method kept" in row.values(), row


def test_a_column_of_ones_own_is_named_by_a_flag(rows):
    config = resolved("alphaalign", rows)
    assert needs.check(config) == []
    config = resolved("alphaalign", rows, "--wrapper-args.column", "unsafe")
    assert config.wrapper_args == {"column": "unsafe"}
    with pytest.raises(ValueError, match="needs harmful"):
        needs.check(config)


@pytest.mark.parametrize("name", METHODS)
def test_the_task_of_an_example_gives_no_model_the_rest_of_it(name):
    """What an example is without, a run of one's own model on its task is refused for."""
    example = recipes.load(name)
    config = dataclasses.replace(recipes.load(name, "any"), model="smollm2-135m", task=example.task)
    lacks = {"history", "runs"} & set(recipes.module(name).METHOD.needs)
    if lacks:
        with pytest.raises(needs.Refused) as refusal:
            needs.check(config)
        assert lacks <= set(refusal.value.needs)


@pytest.mark.parametrize("name", METHODS)
def test_parameters_that_stages_set_are_a_need(name):
    own = recipes.module(name).METHOD
    assert bool(method.parameters(own)) == ("parameters" in own.needs)


def test_an_environment_without_the_parameters_of_the_stages_is_refused():
    argv = ["zerosearch", "--model", "smollm2-135m", "--env"]
    with pytest.raises(
        needs.Refused, match=r"parameters \(noise\): --env MODULE.*noise"
    ) as refusal:
        needs.check(files.resolve([*argv, "calculator"])[0])
    assert refusal.value.needs == ("parameters",)
    assert needs.check(files.resolve([*argv, "retrieval"])[0], strict=True) == []


def test_turns_are_cut_off_in_any_environment():
    argv = ["agentgym_rl_scalinginter_rl", "--model", "smollm2-135m", "--env", "calculator"]
    config = files.resolve([*argv, "--steps", "30"])[0]
    assert needs.check(config, strict=True) == []
    assert [config.stages[at]["rollout.max_turns"] for at in (0, 10, 20)] == [6, 13, 20]


@pytest.mark.parametrize("steps", [5, 40])
def test_stages_of_an_example_keep_their_share_of_the_run(steps):
    config = files.resolve(["ur2", "--steps", str(steps)])[0]
    assert list(config.stages) == [0, round(steps / 4)]
    assert config.stages[0]["task_args.unknown"] is True


@pytest.mark.parametrize("column", ["extra.harmful", "harmful"])
def test_a_column_may_be_a_path_and_any_row_may_have_it(column, tmp_path):
    path = tmp_path / "rows.jsonl"
    cells = [{}, *({"harmful": i % 2, "extra": {"harmful": i % 2}} for i in range(30))]
    lines = [json.dumps({"prompt": f"{i}?", "answer": 1, **c}) for i, c in enumerate(cells)]
    path.write_text("\n".join(lines))
    config = resolved("alphaalign", str(path), "--wrapper-args.column", column)
    assert needs.check(config) == []
    config = resolved("alphaalign", str(path), "--wrapper-args.column", "extra.unsafe")
    with pytest.raises(needs.Refused, match="needs harmful"):
        needs.check(config)


ODD = ("--prompt-column", "Q", "--answer-column", "A.value")


@pytest.fixture
def odd_rows(tmp_path):
    """A glob of files with columns of a user's own, and a reward function beside them."""
    for part in range(2):
        lines = [
            {
                "Q": f"What is {i}+{part}?", "A": {"value": i + part}, "worked": f"{i + part}",
                "part": "abc"[i % 3], "extra": {"known": ["Sugar is sweet."], "bad": i % 2},
            }
            for i in range(20)
        ]  # fmt: skip
        (tmp_path / f"rows-{part}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "mine.py").write_text(
        "def score(completion, answer):\n    return float(str(answer) in completion)\n\n"
        "def style(completion):\n    return float(len(completion) < 9)\n"
    )
    return tmp_path


def gives(need, name, folder):
    """The flags that a refusal names, with a user's columns."""
    flags = {
        "answer": ("--answer-column", "A.value"),
        "solution": ("--solution-column", "worked"),
        "domains": ("--domain-column", "part"),
        "harmful": ("--wrapper-args.column", "extra.bad"),
        "facts": ("--wrapper-args.column", "extra.known"),
        "judge": ("--reward", "judge?url=http://localhost:8000/v1&model=m"),
        "rewards": ("--reward", f"{folder}/mine.py:style"),
    }
    example = recipes.load(name).task
    if need == "history":
        method_sets = recipes.module(name).METHOD
        part = "bandit" if method_sets.bandit is not None else "curriculum"
        return (f"--{part}.history", str(folder))
    return flags.get(need, ("--task" if need == "task" else "--env", example))


@pytest.mark.sample(20, broad=10)
@pytest.mark.parametrize("name", METHODS)
def test_the_flag_of_a_refusal_makes_it_go_away(name, odd_rows):
    data = ("--data", f"{odd_rows}/rows-*.jsonl", *ODD, "--reward", f"{odd_rows}/mine.py:score")
    own, added = recipes.module(name).METHOD, ()
    while True:
        flags = (*added, *(() if {"--env", "--task"} & set(added) else data))
        config = files.resolve([name, "--model", str(odd_rows), *flags])[0]
        try:
            needs.check(config, strict=True)
        except needs.Refused as refusal:
            assert refusal.needs and set(refusal.needs) <= set(own.needs), str(refusal)
            if "runs" in refusal.needs:
                break
            assert not [n for n in refusal.needs if set(gives(n, name, odd_rows)) <= set(added)]
            for need in refusal.needs:
                new_flags = gives(need, name, odd_rows)
                assert new_flags[0] in str(refusal), (need, str(refusal))
                added = (*added, *(() if set(new_flags) <= set(added) else new_flags))
        else:
            break


def test_recipes_as_json_have_the_same_keys(capsys):
    assert cli.main(["recipes", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert all({"name", "kind", "needs", "source", "fidelity"} <= row.keys() for row in listed)
    assert sorted(row["name"] for row in listed if row["kind"] == "method") == sorted(METHODS)


def test_an_environment_is_named_by_a_flag():
    config = files.resolve(["verltool", "--model", "smollm2-135m", "--env", "calculator"])[0]
    assert config.task == "calculator" and needs.check(config, strict=True) == []
    config = files.resolve(["verltool", "--model", "smollm2-135m", "--env", "arithmetic"])[0]
    with pytest.raises(ValueError, match=r"needs environment: --env"):
        needs.check(config)
