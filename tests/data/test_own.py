"""Data and rewards of one's own: rows of files, and functions that say what they ask for."""

import json

import numpy as np
import pytest

from jaxrl import untrusted
from jaxrl.data import tasks
from jaxrl.data.rewards import group, named
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.scoring import user_functions as own
from jaxrl.data.sources import records as sources
from jaxrl.data.types import Score

REWARDS = """
import asyncio
from jaxrl.data.types import Score

def score(completion, answer):
    return float(answer in completion)

def parts(text, difficulty):
    return {"correct": 1, "hard": difficulty}

def total(solution_str, ground_truth):
    return {"score": 0.25, "correct": ground_truth == solution_str}

def native(problem, completion):
    return Score(len(completion) / len(problem.prompt))

async def slowly(completion, **columns):
    await asyncio.sleep(0)
    return columns["difficulty"]

def best(completions, answer):
    assert len(answer) == len(completions)
    longest = max(map(len, completions))
    return [len(c) == longest for c in completions]

async def best_async(completions, prompts):
    return [{"length": len(c)} for c in completions]

def broken(completion, answer):
    return {"a": 1}["b"]

def forgot(completion):
    pass

def short(completions):
    return [1.0]

def nobody(completion, nowhere):
    return 0

def blind(answer):
    return 0

def pauses(completion):
    import time
    time.sleep(0.2)
    return 1.0

kept = []

def hoards(completion):
    if completion == "hoard":
        kept.append(completion)
    if kept:
        raise MemoryError
    return 1.0

async def hoards_async(completion):
    return hoards(completion)

def hoards_together(completions):
    return [hoards(completion) for completion in completions]
"""
ROWS = [{"question": f"what is {i}+1?", "answer": str(i + 1), "difficulty": i} for i in range(20)]

USER = {"role": "user", "content": "2+2?"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_reward.py").write_text(REWARDS)
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    return tmp_path


def made(folder, *rewards, **params):
    specs = [named.parse(r.replace("my_reward.py", f"{folder}/my_reward.py")) for r in rewards]
    path = str(folder / "train.jsonl")
    return tasks.get("file", **{"path": path, "rewards": named.to_json(specs)} | params)


def score(task, problem, text):
    return scoring.score_completion(task, problem, text)


@pytest.mark.parametrize(
    ("function", "value", "parts"),
    [
        ("score", 1.0, {}),
        ("parts", 1.0 + 3, {"correct": 1.0, "hard": 3.0}),
        ("total", 0.25, {"correct": 1.0}),
        ("native", 1 / 12, {}),
        ("slowly", 3.0, {}),
    ],
)
def test_parameters_and_return_types_of_reward_functions(folder, function, value, parts):
    task = made(folder, f"my_reward.py:{function}", test_path=str(folder / "train.jsonl"))
    problem = task.problem("train", 0, 3)
    found = score(task, problem, "4")
    assert (found.value, dict(found.parts), found.error) == (pytest.approx(value), parts, None)


def test_several_are_added_with_their_weights_and_are_parts(folder):
    task = made(folder, "my_reward.py:score*2", "form=number*-0.5", "my_reward.py:slowly*0")
    problem = task.problem("train", 0, 0)
    found = score(task, problem, f"it is {problem.answer}")
    assert found.value == pytest.approx(1.5)
    assert found.parts["score"] == 1.0 and found.parts["form/format"] == 1.0
    assert not task.grouped and not task.pure and task.on_timeout is None


def test_several_that_come_to_1_are_a_reward_of_1(folder):
    weighed = [f"my_reward.py:{name}*{w}" for name, w in (("score", 0.6), ("parts", 0.3))]
    task = made(folder, *weighed, "form=number*0.1")
    problem = task.problem("train", 0, 0)
    assert 0.6 + 0.3 + 0.1 < 1.0 == score(task, problem, f"{problem.answer}").value


@pytest.mark.parametrize("function", ["best", "best_async"])
def test_a_group_is_scored_in_one_call(folder, function):
    task = made(folder, f"my_reward.py:{function}", "number*0.1")
    assert task.grouped
    problem = task.problem("train", 0, 0)
    texts = ["a", "bbb", problem.answer]
    scores = group.apart(score(task, problem, json.dumps(texts)), 3)
    assert [score.error for score in scores] == [None] * 3
    best = [score.value for score in scores]
    assert best[1] > best[0] and scores[2].parts["number/correct"] == 1.0
    assert scores[2].value == pytest.approx(scores[2].parts[function] + 0.1)


def test_scores_of_a_group_go_together_and_apart():
    scores = [Score(0.5, {"a/b": 1.0}), Score(None, error="exception: no"), Score(-1.0)]
    first, failed, last = group.apart(group.together(scores), 3)
    assert (first, last) == (scores[0], scores[2]) and failed.error
    assert group.apart(group.together(scores[1:2]), 1) == scores[1:2]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("broken", "my_reward.py, line 30, in broken: KeyError: 'b'"),
        ("forgot", "returned None; return a number"),
    ],
)
def test_a_failing_reward_says_where_in_one_line(folder, function, says):
    task = made(folder, f"my_reward.py:{function}")
    found = score(task, task.problem("train", 0, 0), "x")
    assert found.value is None and says in found.error and "\n" not in found.error


def test_a_function_may_ask_for_the_column_of_the_prompt(folder):
    (folder / "asks.py").write_text(
        "def score(completion, question):\n    return question == completion\n"
    )
    task = made(folder, f"{folder}/asks.py:score", template="Q: {question}")
    problem = task.problem("train", 0, 0)
    found = score(task, problem, problem.prompt.removeprefix("Q: "))
    assert (found.value, found.error) == (1.0, None)


@pytest.mark.parametrize("reward", ["exact", "contains", "closeness?name=edit", "number"])
@pytest.mark.parametrize("answer", [None, float("nan"), "", " "])
def test_a_row_without_an_answer_is_a_failed_score(folder, reward, answer):
    rows = [{"question": f"{i}?", "answer": answer} for i in range(3)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = made(folder, reward)
    found = score(task, task.problem("train", 0, 0), str(answer))
    assert found.value is None and found.error.startswith("gold: ")


@pytest.mark.parametrize("answer", ["nan", "None", 0, False])
def test_answers_that_only_look_like_none_are_answers(folder, answer):
    rows = [{"question": f"{i}?", "answer": answer} for i in range(3)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for reward in ("exact", "contains", "closeness?name=exact"):
        task = made(folder, reward)
        assert score(task, task.problem("train", 0, 0), str(answer)).value == 1.0


@pytest.mark.sample(1, broad=2)
@pytest.mark.parametrize("function", ["hoards", "hoards_async", "hoards_together"])
def test_a_worker_without_memory_is_replaced(folder, function):
    task = made(folder, f"my_reward.py:{function}")
    problem = task.problem("train", 0, 0)
    texts = ["hoard", "fine"]
    if task.grouped:
        texts = [json.dumps([text]) for text in texts]
    with scoring.open_pool(task.name, task.params, workers=1) as pool:
        (first,), (second,) = (pool.score([(problem, text)]) for text in texts)
    assert first.error.startswith("memory: ") and "score_memory_mb" in first.error
    assert (second.value, second.error) == (1.0, None)


def test_arguments_are_written_as_they_are_or_with_percent_signs(folder):
    assert named.parse("pattern?regex=[0-9]+").args == {"regex": "[0-9]+"}
    found = named.parse("pattern?regex=a%20%2B%26b+&whole=false*0.5")
    assert (dict(found.args), found.weight) == ({"regex": "a +&b+", "whole": False}, 0.5)
    assert named.parse("judge?url=http://h:1/v1&key_variable=").args["key_variable"] == ""
    task = made(folder, "pattern?regex=[0-9]+")
    assert score(task, task.problem("train", 0, 0), "123").value == 1.0


def test_json_without_a_schema_is_any_json(folder):
    task = made(folder, "json")
    problem = task.problem("train", 0, 0)
    found = [score(task, problem, text) for text in ('{"a": [1]}', "{")]
    assert [(each.value, each.error) for each in found] == [(1.0, None), (0.0, None)]


def test_a_group_of_another_length_is_an_error(folder):
    task = made(folder, "my_reward.py:short")
    found = score(task, task.problem("train", 0, 0), json.dumps(["a", "b"]))
    assert "returned 1 scores for 2 completions" in found.error


@pytest.mark.parametrize(
    ("rewards", "says"),
    [
        (["my_reward.py:nobody"], "asks for 'nowhere', which is no column.*difficulty"),
        (["my_reward.py:blind"], "never sees the completion"),
        (["my_reward.py:scor"], "no function 'scor'; it has .*score"),
        (["missing.py:score"], "there is no such file"),
        (["my_reward.py:score?flavour=1"], "takes no argument 'flavour'"),
        (["nmber"], "did you mean 'number'"),
        (["my_reward.py"], "write .*my_reward.py:FUNCTION"),
        (["judge"], "needs 'url'"),
        (["overlong?longest=4&buffer=2&x=1"], "takes no argument 'x'"),
        (["number", "number"], "a name of its own"),
    ],
)
def test_rewards_that_cannot_be_called_are_refused_at_once(folder, rewards, says):
    with pytest.raises(ValueError, match=says):
        made(folder, *rewards)


def test_a_file_that_does_not_import_says_why_and_where(folder):
    (folder / "bad.py").write_text("x = 1\nimport no_such_module\n")
    with pytest.raises(ValueError, match=r"bad.py, line 2, in <module>: ModuleNotFoundError"):
        own.load(f"{folder}/bad.py:score")


@pytest.mark.extra
@pytest.mark.exact("files of JSONL, CSV and Parquet give the same problems")
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_kinds_of_files_give_equal_problems(folder, kind):
    path = folder / f"rows.{kind}"
    if kind == "csv":
        lines = [",".join(ROWS[0]), *(",".join(map(str, row.values())) for row in ROWS)]
        path.write_text("\n".join(lines) + "\n")
    elif kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    else:
        path = folder / "train.jsonl"
    task = made(folder, "my_reward.py:score", path=str(path))
    assert dict(task.sizes) == {"train": 18, "test": 2}
    found = [task.problem(s, 0, i) for s in task.splits for i in range(task.sizes[s])]
    assert sorted(p.prompt for p in found) == sorted(row["question"] for row in ROWS)
    assert {p.prompt: p.answer for p in found} == {r["question"]: r["answer"] for r in ROWS}


def test_no_prompt_is_in_both_splits_and_order_does_not_matter(folder):
    rows = [{"prompt": f"p{i % 7}", "answer": str(i)} for i in range(30)]
    held = []
    for order in (rows, rows[::-1]):
        (folder / "train.jsonl").write_text("\n".join(map(json.dumps, order)))
        task = made(folder, "exact", test_share=0.3)
        by_split = {
            split: {task.problem(split, 0, i).prompt for i in range(task.sizes[split])}
            for split in task.splits
        }
        assert by_split["train"] and not by_split["train"] & by_split["test"]
        held.append(by_split["test"])
    assert held[0] == held[1] and len(held[0]) == 2
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows[:2])))
    assert dict(made(folder, "exact", test_share=0.8).sizes) == {"train": 1, "test": 1}


@pytest.mark.parametrize(
    ("lines", "params", "says"),
    [
        (
            ['{"prompt": "a"}', "", '{"prompt": 3}'],
            {},
            r"train\.jsonl:3: 'prompt' is 3, neither a text",
        ),
        (['{"prompt": "a"}', "", "{"], {}, r"train\.jsonl:3: not JSON"),
        (
            ['{"prompt": "a", "answer": 1}', '{"prompt": "b"}'],
            {},
            r"train\.jsonl:2: no column 'answer'",
        ),
        (['{"text": "a"}'], {}, "columns text.*--prompt-column"),
        (['{"prompt": "a"}'], {}, "--test-data"),
        (['{"prompt": "a"}'] * 2, {"prompt_column": "promt"}, r"train\.jsonl:1: no column 'promt'"),
        ([], {}, "no rows"),
    ],
)
def test_bad_rows_are_reported_with_their_lines(folder, lines, params, says):
    (folder / "train.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=says):
        made(folder, "exact", **params)


def test_messages_and_templates(folder):
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1?"}]
    rows = [{"messages": turns}, {"messages": [{"role": "user", "content": "2+2?"}]}]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = made(folder, "think_format", template="Q: {question}\nA:")
    found = {task.problem(s, 0, 0).messages[-1]["content"] for s in ("train", "test")}
    assert found == {"Q: 1+1?\nA:", "Q: 2+2?\nA:"}
    assert task.pure and not task.problem("train", 0, 0).answer


def test_contents_in_parts_are_joined(folder):
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?", "image": None}]
    rows = [{"messages": [{"role": "user", "content": parts}]}, {"messages": [USER]}]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = made(folder, "think_format")
    found = [task.problem(split, 0, 0) for split in ("train", "test")]
    assert {problem.prompt for problem in found} == {"1+1?", "2+2?"}
    assert {problem.messages[0]["content"] for problem in found} == {"1+1?", "2+2?"}


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        (
            [{"role": "user", "content": None}],
            r"train\.jsonl:2: 'messages' holds a message of user without content",
        ),
        (
            [{"role": "user", "content": [{"type": "image"}]}],
            "message of user: its content holds a part of type 'image'",
        ),
        ([{"role": "user", "content": 5}], "message of user: its content is 5; write a text"),
        (
            [USER, {"role": "assistant", "content": "4"}],
            r"train\.jsonl:2: 'messages' ends with a message of assistant.*leave that message out",
        ),
    ],
)
def test_messages_that_are_no_prompt_are_refused(folder, turns, says):
    rows = [{"messages": [USER]}, {"messages": turns}]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=says):
        made(folder, "think_format")


def test_prompts_of_bytes_as_tfds_gives_them_are_texts(folder, monkeypatch):
    rows = [{"question": f"é{i}".encode(), "answer": str(i).encode()} for i in range(4)]
    monkeypatch.setattr(sources, "read", lambda spec, skip=None: rows)
    task = made(folder, "exact", path="tfds:mine/train")
    problem = task.problem("train", 0, 0)
    assert problem.prompt == f"é{problem.answer}"
    assert score(task, problem, problem.answer).value == 1.0
    rows[2] = {"question": b"\xff", "answer": b""}
    says = r"tfds:other/train:3: 'question' is b'\\xff', which is not UTF-8"
    with pytest.raises(ValueError, match=says):
        made(folder, "exact", path="tfds:other/train")


def test_a_function_in_a_file_is_code_of_others_and_so_is_a_judge(folder):
    for reward in ("my_reward.py:score", "judge?url=http://localhost:1/v1&model=m"):
        spec = named.parse(reward)
        assert untrusted.foreign({"task_args": {"rewards": named.to_json([spec])}})
    assert not untrusted.foreign({"rewards": named.to_json([named.parse("number*2")])})
    for spelling in ("a b:c", "my-reward:score", "os: system"):
        with pytest.raises(ValueError, match=r"write FILE\.py:function"):
            own.load(spelling)


def test_callables_of_this_session_are_kept_and_importable_ones_are_named():
    assert own.keep(np.tanh) != "" and own.keep(json.dumps) == "json:dumps"
    first, second = (lambda completion: 1.0), (lambda completion: 2.0)
    one, two = own.keep(first), own.keep(second)
    assert own.in_session(one) and own.load(one) is first and own.load(two) is second


def test_workers_score_with_a_file_and_a_group(folder):
    task = made(folder, "my_reward.py:score")
    problem = task.problem("train", 0, 0)
    with scoring.open_pool(task.name, task.params, workers=1) as pool:
        right, wrong = pool.score([(problem, problem.answer), (problem, "")])
    assert (right.value, wrong.value) == (1.0, 0.0)


def test_the_time_limit_of_a_group_is_that_of_its_completions_together(folder):
    task = made(folder, "my_reward.py:best", "my_reward.py:pauses")
    problem = task.problem("train", 0, 0)
    texts = ["a", "bb", "ccc", "dddd", "e", "f", "g", "h"]
    with scoring.open_pool(task.name, task.params, workers=1, time_limit_s=1.0) as pool:
        (found,) = pool.score([(problem, json.dumps(texts))])
    assert found.error is None
