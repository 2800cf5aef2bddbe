"""Rewards as public frameworks write them: what they are given, and what they may return."""

import json

import pytest

from jaxrl.data import tasks
from jaxrl.data.rewards import named
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.scoring import user_functions
from jaxrl.data.text import tokenizer_backends as backends

FUNCTIONS = """
import asyncio, time

lock = asyncio.Lock()
model = None
loaded = []

def setup():
    loaded.append(1)

async def shared(completions):
    async def one(text):
        async with lock:
            await asyncio.sleep(0.001)
            return float(len(text))
    return await asyncio.gather(*map(one, completions))

def trl(prompts, completions, answer, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    asked = [prompt[-1]["content"] for prompt in prompts]
    return [float(a in t and q.endswith("?")) for a, t, q in zip(answer, texts, asked)]

def texts(completions):
    return [float(isinstance(completion, str)) for completion in completions]

def verl(solution_str, ground_truth, extra_info=None):
    return {"score": float(ground_truth in solution_str), "acc": True, "pred": solution_str}

def openrlhf(queries, prompts, labels):
    rows = zip(queries, prompts, labels)
    found = [float(q.startswith(p) and a in q[len(p):]) for q, p, a in rows]
    return {"rewards": found}

def math_only(completion, kind):
    return 1.0 if kind == "math" else None

def chat_only(completion, kind):
    return {"score": 0.5, "reason": "kind"} if kind == "chat" else None

def ready(completion):
    return float(len(loaded))

def lazy(completion):
    global model
    if model is None:
        time.sleep(3)
        model = True
    return 1.0

def ids(completions, completion_ids):
    return [0.0] * len(completions)

class ORM:  # as in ms-swift
    made = []

    def __init__(self):
        self.made.append(1)

    def __call__(self, completions, answer, **kwargs):
        assert len(self.made) == 1
        return [float(a in str(c)) for a, c in zip(answer, completions)]

class Scaled(ORM):
    def __init__(self, scale):
        self.scale = scale

scaled = Scaled(2)

class Table:
    pass
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    kinds = ("math", "chat")
    chat = [{"prompt": [{"role": "user", "content": f"{i}?"}], "answer": str(i)} for i in range(6)]
    text = [{"prompt": f"{i}?", "answer": str(i), "kind": kinds[i % 2]} for i in range(6)]
    for name, records in (("chat", chat), ("text", text)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return tmp_path


def scores(folder, functions, *, data="text", texts=("0 1 2 3 4 5", "no"), limit=10.0):
    """(problem, text, score) of the completions of the train split, by one worker."""
    specs = [named.parse(f"{folder}/mine.py:{name}") for name in functions]
    params = {"path": str(folder / f"{data}.jsonl"), "rewards": named.to_json(specs)}
    task = tasks.get("file", **params)
    problems = [task.problem("train", 0, i) for i in range(task.sizes["train"])]
    with scoring.open_pool("file", params, workers=1, time_limit_s=limit) as pool:
        if task.grouped:
            found = pool.score([(p, json.dumps(list(texts))) for p in problems])
        else:
            found = pool.score([(p, text) for p in problems for text in texts])
    return problems, found


def test_what_a_module_shares_serves_every_call(folder):
    _, found = scores(folder, ["shared"])
    assert all(s.error is None and s.parts == {"0": 11.0, "1": 2.0} for s in found), found


@pytest.mark.parametrize(("name", "data"), [("trl", "chat"), ("openrlhf", "text")])
def test_functions_of_other_frameworks_get_what_these_give_them(folder, name, data):
    _, found = scores(folder, [name], data=data)
    assert all(s.parts == {"0": 1.0, "1": 0.0} for s in found), found


def test_a_class_is_called_through_one_object_of_it(folder):
    _, found = scores(folder, ["ORM"], texts=("0 1 2 3 4 5", "no"))
    assert all(s.parts == {"0": 1.0, "1": 0.0} for s in found), found
    for name, says in (
        ("Scaled", r"Scaled\(\) fails: .*scale.*`scorer = Scaled"),
        ("Table", "called"),
    ):
        with pytest.raises(ValueError, match=f"mine.py:{name}' is a class.*{says}"):
            user_functions.load(f"{folder}/mine.py:{name}")
    assert user_functions.load(f"{folder}/mine.py:scaled").scale == 2


def test_functions_without_kwargs_get_texts(folder):
    _, found = scores(folder, ["texts"], data="chat")
    assert all(s.parts == {"0": 1.0, "1": 1.0} for s in found), found


def test_the_signature_of_verl_and_the_texts_it_returns(folder):
    _, found = scores(folder, ["verl"])
    assert [s.value for s in found] == [1.0, 0.0] * 5
    assert found[0].texts == {"pred": "0 1 2 3 4 5"} and found[0].parts == {"acc": 1.0}


def test_none_leaves_a_reward_out_for_a_row(folder):
    problems, found = scores(folder, ["math_only", "chat_only"], texts=("a",))
    for problem, score in zip(problems, found, strict=True):
        kind = problem.metadata["row"]["kind"]
        assert score.value == {"math": 1.0, "chat": 0.5}[kind]
        assert score.texts == ({"chat_only/reason": "kind"} if kind == "chat" else {})
    _, alone = scores(folder, ["math_only"], texts=("a",))
    assert {s.error for s in alone if s.value is None} == {"none: returned None; return a number"}


@pytest.mark.broad
def test_loading_is_apart_from_scoring(folder):
    """`setup` is called before the first score; a first call that loads costs one score at most."""
    _, found = scores(folder, ["ready"], texts=("a",))
    assert {s.value for s in found} == {1.0}
    _, found = scores(folder, ["lazy"], texts=("a",), limit=1.0)
    assert "setup()" in found[0].error and [s.value for s in found[1:]] == [1.0] * 4


def test_token_ids_are_refused_by_name(folder):
    spec = named.to_json([named.parse(f"{folder}/mine.py:ids")])
    with pytest.raises(ValueError, match="'completion_ids': token ids are not given"):
        tasks.get("file", path=str(folder / "text.jsonl"), rewards=spec)


@pytest.mark.parametrize("name", ["ground_truth", "labels", "problem"])
def test_a_column_of_the_name_of_a_parameter_is_what_it_receives(name, tmp_path):
    """Functions for TRL know columns alone; without the column, the name has its other meaning."""
    code = f"def f(completions, {name}, **kwargs): return [float({name}[0] == 'column')]\n"
    (tmp_path / "mine.py").write_text(code)
    row = {"question": "q", "answer": "4", name: "column"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    path = str(tmp_path / "a.jsonl")
    spec = named.to_json([named.parse(f"{tmp_path}/mine.py:f")])
    task = tasks.get("file", path=path, test_path=path, prompt_column="question", rewards=spec)
    score = task.reward(task.problem("train", 0, 0), json.dumps(["x"]))
    assert score.value == 1.0
    assert not any("unused" in note for note in task.notes)


@pytest.mark.parametrize("key", ["score", "reward"])
def test_a_total_that_is_no_number_is_not_replaced_by_the_other_parts(key):
    alone = user_functions.score({key: None, "acc": 1.0})
    assert alone.value is None and user_functions.abstains(alone)
    with pytest.raises(TypeError, match=f"returned {key}='0.5'; return a number"):
        user_functions.score({key: "0.5", "acc": 1.0})
    other = {"score": "reward", "reward": "score"}[key]
    assert user_functions.score({key: None, other: 0.5}).value == 0.5


@pytest.mark.parametrize(
    ("text", "piece", "expected"),
    [
        ("\ufffd", "ð", b"\xf0"),
        ("\ufffd", "<0xE2>", b"\xe2"),
        ("\ufffd", None, "\ufffd".encode()),
        ("é", "Ã©", "é".encode()),
    ],
)
def test_bytes_of_parts_of_characters(text, piece, expected):
    assert backends.bytes_of(text, piece) == expected
