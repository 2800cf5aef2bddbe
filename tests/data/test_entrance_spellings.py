"""What enters a run, as other frameworks write it: read as it is meant, or refused."""

import dataclasses
import json
import time
from pathlib import Path

import pytest

from jaxrl.config import Config
from jaxrl.data import tasks
from jaxrl.data.rewards import named
from jaxrl.data.sources import records as sources
from jaxrl.data.sources import rows
from jaxrl.launch import cli
from jaxrl.launch.settings import configs, paths
from tests.data.test_entrance import CHATML, END, HI, YO, encoded, loaded, saved

USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
WORSE, SYSTEM = {**ANSWER, "content": "no"}, {"role": "system", "content": "S"}
NO = f"[[no{END}]]"
LEAD = f"<|im_start|>system\nS{END}\n"
NAN = float("nan")


def task(folder, *records, reward="none", **params):
    spec = named.to_json([named.parse(reward)])
    path = saved(folder, *records)
    return tasks.get("file", path=path, test_path=path, rewards=spec, **params)


# --- missing values --------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [NAN, None])
@pytest.mark.parametrize("column", ["input", "system", "history", "tools", "images", "weight"])
def test_what_is_missing_is_missing_whether_null_or_nan(column, missing, tmp_path):
    """pandas writes NaN: an Alpaca row has no input `nan`."""
    record = {"instruction": "hi", "output": "yo"}
    plain = rows.read(saved(tmp_path, record, name="plain.jsonl"))[0]
    layout = rows.read(path := saved(tmp_path, record | {column: missing})).layout
    row = rows.read(path)[0]
    assert (row.prompt, row.answers, row.tools) == (plain.prompt, plain.answers, plain.tools)
    assert layout.unused == (column,) and not layout.warnings(path)
    problem = task(tmp_path, record | {column: missing}).problem("train", 0, 0)
    assert problem.prompt == "hi"


def test_a_label_that_is_missing_is_no_verdict(tmp_path):
    path = saved(tmp_path, *({"prompt": "a", "completion": "b", "label": x} for x in (True, NAN)))
    with pytest.raises(ValueError, match=r":2: 'label' is missing"):
        rows.read(path)


# --- spellings of messages -------------------------------------------------------------------

PAIRS = {
    "messages": {"prompt": [USER], "chosen": [ANSWER], "rejected": [WORSE]},
    "one message each": {"prompt": "hi", "chosen": ANSWER, "rejected": WORSE},
    "whole conversations": {"chosen": [USER, ANSWER], "rejected": [USER, WORSE]},
    "prompt and whole": {"prompt": "hi", "chosen": [USER, ANSWER], "rejected": [USER, WORSE]},
    "padded prompt": {"prompt": " hi\n", "chosen": [USER, ANSWER], "rejected": [USER, WORSE]},
    "ms-swift": {"messages": [USER, ANSWER], "rejected_response": "no"},
    "ms-swift messages": {"messages": [USER, ANSWER], "rejected_messages": [USER, WORSE]},
}


@pytest.mark.parametrize("as_json", [False, True], ids=["objects", "JSON"])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.exact("a preference has the same tokens in every spelling of it")
def test_all_spellings_of_a_preference_have_the_same_tokens(name, as_json, tmp_path):
    record = PAIRS[name]
    if as_json:
        record = {k: v if isinstance(v, str) else json.dumps(v) for k, v in record.items()}
    tokenizer = loaded(tmp_path / "model", CHATML)
    assert encoded(tokenizer, saved(tmp_path, record)) == [HI + YO, HI + NO]
    row = rows.read(saved(tmp_path, record))[0]
    assert row.rewards == (1.0, 0.0)


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "hi", "chosen": [SYSTEM, USER, ANSWER], "rejected": [SYSTEM, USER, WORSE]},
        {"prompt": [SYSTEM, USER], "chosen": [USER, ANSWER], "rejected": [USER, WORSE]},
        {"system": "S", "prompt": "hi", "chosen": [USER, ANSWER], "rejected": [USER, WORSE]},
        {"system": "S", "messages": [USER, ANSWER], "rejected_response": "no"},
        {"messages": [SYSTEM, USER, ANSWER], "rejected_response": "no"},
    ],
)
def test_a_system_message_is_there_once_wherever_it_stands(record, tmp_path):
    tokenizer = loaded(tmp_path / "model", CHATML)
    assert encoded(tokenizer, saved(tmp_path, record)) == [LEAD + HI + YO, LEAD + HI + NO]


def test_a_conversation_that_does_not_begin_with_the_prompt_is_refused(tmp_path):
    other = {**USER, "content": "else"}
    pair = {"prompt": "hi", "chosen": [other, ANSWER], "rejected": [other, WORSE]}
    for record in (pair, {"prompt": "hi", "completion": [other, ANSWER]}):
        with pytest.raises(ValueError, match="begins otherwise than with the prompt"):
            rows.read(saved(tmp_path, record))
    row = rows.read(saved(tmp_path, {"prompt": "hi", "completion": [USER, ANSWER]}))[0]
    assert (row.prompt, row.answers) == ((USER,), ((ANSWER,),))
    # a prompt that ends with a call goes on with its result
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {}}]}
    turns = [{"role": "tool", "content": "1"}, ANSWER]
    row = rows.read(saved(tmp_path, {"prompt": [USER, call], "completion": turns}))[0]
    assert len(row.prompt) == len(row.answers[0]) == 2


def test_a_dialogue_that_repeats_its_prompt_is_read_once(tmp_path):
    prompt = "\n\nHuman: Fruit?\n\nAssistant:"
    pair = {"chosen": f"{prompt} Apple.", "rejected": f"{prompt} A chair."}
    row = rows.read(saved(tmp_path, {"prompt": prompt, **pair}))[0]
    assert (row.prompt, row.answers) == (prompt, (" Apple.", " A chair."))
    swift = {"query": "hi", "response": "yo", "rejected_response": "no", "history": [["a", "b"]]}
    layout = (rows.read(saved(tmp_path, swift))).layout
    assert layout.kind == "preference" and not layout.unused
    greeting = {"prompt": "Hi", "chosen": "Hi there", "rejected": "Hi."}  # an answer may echo
    assert rows.read(saved(tmp_path, greeting))[0].answers == ("Hi there", "Hi.")


@pytest.mark.parametrize("written", [str([USER]), str(USER), f"[{USER}\n {USER}]"])
@pytest.mark.parametrize("column", ["prompt", "completion", "chosen", "rejected"])
def test_what_python_prints_of_messages_is_no_text(column, written, tmp_path):
    record = {"prompt": "a", "completion": "b"}
    if column in ("chosen", "rejected"):
        record = {"prompt": "a", "chosen": "b", "rejected": "c"}
    record[column] = written
    with pytest.raises(ValueError, match="Python printed of messages; write it as JSON"):
        rows.read(saved(tmp_path, record))
    if column == "prompt":
        with pytest.raises(ValueError, match=r":1: 'prompt' .* Python printed of messages"):
            task(tmp_path, record)
    plain = {**record, column: "{'value': 3}"}  # an answer about programs
    assert rows.read(saved(tmp_path, plain))


@pytest.mark.parametrize(
    "answer",
    [
        {"role": "engineer", "content": "builds bridges"},
        {"from": "London", "to": "Paris", "value": 100},
        {"from": "human", "value": 3},
        {"role": 3, "content": "three"},
        [{"role": "user", "content": "hi"}, {"role": "guest", "content": "ho"}],
    ],
)
def test_json_that_is_no_message_is_a_text(answer, tmp_path):
    texts = [json.dumps(answer)]
    if "human" not in texts[0] and "user" not in texts[0]:  # which Python may have printed
        texts.append(str(answer))
    for text in texts:
        record = {"prompt": "a", "completion": text}
        assert rows.read(saved(tmp_path, record))[0].answers == (text,)
    for role in ("GPT", "assistant", "model", "tool"):
        text = json.dumps([{"role": None, "from": role, "content": None, "value": "hi"}])
        row = rows.read(saved(tmp_path, {"prompt": "a", "completion": text}))[0]
        assert row.answers[0][0]["content"] == "hi"


@pytest.mark.parametrize("switch", ["weight", "train", "training", "loss"])
@pytest.mark.parametrize("off", [False, 0, 0.0])
def test_a_turn_that_is_switched_off_is_not_learned(switch, off, tmp_path):
    turns = [USER, {**WORSE, switch: off}, USER, {**ANSWER, switch: not off}]
    tokenizer = loaded(tmp_path / "model", CHATML)
    assert encoded(tokenizer, saved(tmp_path, {"messages": turns})) == [f"{HI}no{END}\n{HI}{YO}"]
    for value in ("false", 0.5, [0]):
        path = saved(tmp_path, {"messages": [USER, {**ANSWER, switch: value}]})
        with pytest.raises(ValueError, match=f"{switch}=.* must be 0 or 1"):
            rows.read(path)


def test_parts_of_a_message_that_are_switched_off_are_refused(tmp_path):
    part = [{"begin_offset": 0, "end_offset": 1, "train": False}]
    path = saved(tmp_path, {"messages": [USER, {**ANSWER, "train_detail": part}]})
    with pytest.raises(ValueError, match="'train_detail' divides a message"):
        rows.read(path)


@pytest.mark.parametrize("column", ["image", "images", "video", "videos", "audio", "audios"])
@pytest.mark.parametrize("beside", [{}, {"images": []}, {"videos": []}, {"audio": None}])
def test_media_of_any_name_are_refused_whatever_stands_beside(column, beside, tmp_path):
    record = {"messages": [USER, ANSWER], **beside, column: ["x"]}
    with pytest.raises(ValueError, match=f"{column}' is not empty"):
        rows.read(saved(tmp_path, record))
    with pytest.raises(ValueError, match=f"{column}' is not empty"):
        task(tmp_path, {"prompt": "hi", **beside, column: ["x"]})


# --- readers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b"prompt,completion,completion\na,b,c\n", "two columns are named 'completion'"),
        ("a.csv", b'prompt,completion\na,"b\nc,d\n', "a.csv, line 3: unexpected end of data"),
        ("a.jsonl", '{"prompt":"a","completion":"b"}\n'.encode("utf-16"), "a.jsonl:1: not UTF-8"),
        ("a.jsonl", '{"prompt":"é","completion":"b"}'.encode("latin-1"), "a.jsonl:1: not UTF-8"),
        ("a.jsonl", b'[{"prompt":"a","completion":"b"}]', "a.jsonl:1: not JSON"),
    ],
)
@pytest.mark.parametrize("bad", ["error", "skip"])
def test_broken_files_are_refused_with_the_place(name, content, says, bad, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=says):
        rows.read(str(tmp_path / name), bad=bad)


def test_a_table_of_many_columns_is_refused_in_time_and_in_short(tmp_path):
    names = ",".join(["prompt", *(f"c{n}" for n in range(60_000))])
    (tmp_path / "a.csv").write_text(f"{names}\na,b\n")
    start = time.process_time()
    with pytest.raises(ValueError, match=r"a\.csv, line 2: 2 values for 60001 columns") as error:
        rows.read(str(tmp_path / "a.csv"))
    assert time.process_time() - start < 10 and len(str(error.value)) < 1000


def test_names_of_columns_have_no_space_around_them(tmp_path):
    (tmp_path / "a.csv").write_text("prompt, completion ,,\na,b,,\n")
    assert rows.read(str(tmp_path / "a.csv"))[0].answers == ("b",)


def test_splits_of_the_hub_are_not_mixed_and_cards_may_name_files_by_split(tmp_path):
    for split in ("train_sft", "train_gen", "test_sft"):
        (tmp_path / f"{split}-00000-of-00001.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(ValueError, match="holds the splits train_gen, train_sft; name the files"):
        sources.read(str(tmp_path))
    assert len(sources.read(str(tmp_path / "train_sft-*"))) == 1
    card = "---\nconfigs:\n- config_name: default\n  data_files:\n    train: train_sft*\n---\n"
    (tmp_path / "README.md").write_text(card)
    assert len(sources.read(str(tmp_path))) == 1


def test_tables_of_other_types_are_refused_and_bytes_are_texts(tmp_path):
    import pyarrow
    import pyarrow.parquet

    folder = Path(tmp_path)
    for name, prompt in (("a", "hi"), ("b", [USER])):
        table = pyarrow.Table.from_pylist([{"prompt": prompt}])
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
    with pytest.raises(ValueError, match="cannot be read as a table"):
        sources.read(str(folder / "*.parquet"))
    table = pyarrow.Table.from_pylist([{"prompt": b"h\xc3\xa9", "completion": b"b"}])
    pyarrow.parquet.write_table(table, folder / "bytes.parquet")
    row = rows.read(str(folder / "bytes.parquet"))[0]
    assert (row.prompt, row.answers) == ("hé", ("b",))


@pytest.mark.parametrize("name", ["rejected", "rejected_response", "rejected_messages"])
@pytest.mark.parametrize(
    "record", [{"prompt": "hi", "completion": "yo"}, {"messages": [USER, ANSWER]}]
)
def test_a_rejected_column_that_is_empty_makes_no_preferences(record, name, tmp_path):
    read = rows.read(saved(tmp_path, {**record, name: None}))
    assert read.layout.kind == next(k for k in ("completion", "messages") if k in record)
    with pytest.raises(ValueError, match="'rejected' is missing"):
        rows.read(saved(tmp_path, {"prompt": "hi", "chosen": "yo", "rejected": None}))


@pytest.mark.parametrize("worse", ["no", [USER, WORSE]])
def test_a_turn_of_the_user_is_not_preferred(worse, tmp_path):
    record = {"messages": [USER, ANSWER, USER], "rejected_response": worse}
    with pytest.raises(ValueError, match="the last message is not the assistant's"):
        rows.read(saved(tmp_path, record))


# --- prompts and answers of RL ----------------------------------------------------------------


def score(task, text):
    return task.reward(task.problem("train", 0, 0), text)


@pytest.mark.parametrize("reward", ["exact", "contains", "math", "number"])
def test_the_last_line_of_gsm8k_is_the_answer(reward, tmp_path):
    record = {"question": "q", "answer": "48/2 = <<48/2=24>>24 clips.\n#### 72"}
    scored = task(tmp_path, record, reward=reward)
    right, wrong = ("\\boxed{72}", "\\boxed{24}") if reward == "math" else ("72", "24")
    assert (score(scored, right).value, score(scored, wrong).value) == (1.0, 0.0)


@pytest.mark.parametrize("reward", ["exact", "contains", "math", "number"])
def test_numbers_of_tables_are_answers_and_lists_of_lists_are_none(reward, tmp_path):
    form = "\\boxed{%s}" if reward == "math" else "%s"
    scored = task(tmp_path, {"question": "q", "answer": 4.0}, reward=reward)
    assert score(scored, form % 4).value == 1.0
    for answer in ([["a"], ["b"]], [{"aliases": ["a"]}]):
        scored = task(tmp_path, {"question": "q", "answer": answer}, reward=reward)
        assert score(scored, form % "a").error.startswith("gold: ")


@pytest.mark.parametrize("answer", ['["4", "four"]', "['4', 'four']", '["4"]'])
def test_a_list_that_is_a_text_is_told(answer, tmp_path):
    """A table of texts may hold it: it is compared as it is written, and the run says so."""
    notes = task(tmp_path, {"question": "q", "answer": answer}, reward="exact").notes
    assert any("compared as it is written" in note for note in notes)
    for other in (["4", "four"], "[1, 2]", "four", "[x](y) 'z'"):
        notes = task(tmp_path, {"question": "q", "answer": other}, reward="exact").notes
        assert not any("compared" in note for note in notes)


VERL = {"prompt": [USER], "reward_model": {"ground_truth": "4"}, "extra_info": {"answer": "long"}}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("inner", [{"ground_truth": None}, {"style": "model"}])
def test_the_column_of_the_answer_does_not_depend_on_the_first_row(order, inner, tmp_path):
    records = ({**VERL, "reward_model": inner}, VERL)
    scored = task(tmp_path, *(records[at] for at in order), reward="exact")
    answers = [scored.problem("train", 0, index).answer for index in range(2)]
    assert sorted(map(str, answers)) == ["4", "None"]
    text = {**VERL, "reward_model": json.dumps(VERL["reward_model"])}
    assert score(task(tmp_path, text, reward="exact"), "4").value == 1.0
    with pytest.raises(ValueError, match=r":1: no column 'reward_model\.truth'"):
        task(tmp_path, VERL, answer_column="reward_model.truth")


def test_arrays_of_readers_are_lists(tmp_path, monkeypatch):
    """TFDS gives arrays: never the text that numpy prints of one."""
    import numpy as np

    found = [{"question": b"q", "answer": np.array([4, 5])}, {"question": b"r", "answer": None}]
    monkeypatch.setattr(sources, "read", lambda spec, skip=None: found)
    spec = named.to_json([named.parse("exact")])
    scored = tasks.get("file", path="tfds:a/train", test_path="tfds:a/train", rewards=spec)
    assert scored.problem("train", 0, 0).answer == [4, 5]


@pytest.mark.parametrize("column", ["query", "conversation"])
def test_prompts_have_the_names_that_fine_tuning_knows(column, tmp_path):
    value = [USER] if column == "conversation" else "hi"
    record = {"prompt": None, column: value, "answer": "4"}
    assert task(tmp_path, record).problem("train", 0, 0).prompt == "hi"


def test_a_conversation_is_the_prompt_before_a_query_of_a_search(tmp_path):
    record = {"query": "search words", "messages": [USER], "answer": "4"}
    assert task(tmp_path, record).problem("train", 0, 0).prompt == "hi"


@pytest.mark.parametrize("answer", [4, 4.0])
def test_a_number_may_be_written_whole_or_as_a_decimal(answer, tmp_path):
    scored = task(tmp_path, {"question": "q", "answer": answer}, reward="exact")
    values = {text: score(scored, text).value for text in ("4", "4.0", "40", "", "4.1")}
    assert values == {"4": 1.0, "4.0": 1.0, "40": 0.0, "": 0.0, "4.1": 0.0}


IGNORED = {
    "images": {"images": ["x"]},
    "weight": {"weight": 0.5},
    "variables": {"chat_template_kwargs": {"enable_thinking": False}},
}


@pytest.mark.parametrize("column", IGNORED)
def test_the_remedy_that_a_refusal_names_can_be_applied(column, tmp_path, capsys):
    """`--data.columns.NAME ''`, in runs that sample as in those that learn from rows."""
    record = {"prompt": "hi", "answer": "4", **IGNORED[column]}
    with pytest.raises(ValueError, match=f"--data.columns.{column} ''"):
        task(tmp_path, record)
    path = saved(tmp_path, record, {**record, "prompt": "ho"})
    flags = ["--model", "none", "--data", path, "--reward", "exact"]
    code = cli.main(["show", "grpo", *flags, f"--data.columns.{column}", "", "--yaml"])
    shown = capsys.readouterr().out
    assert code == 0 and column in shown
    columns = json.dumps({column: ""})
    assert task(tmp_path, record, columns=columns).problem("train", 0, 0).prompt == "hi"
    with pytest.raises(ValueError, match="no such column"):
        task(tmp_path, record, columns=json.dumps({"colour": ""}))


def test_columns_are_named_one_after_another_and_only_of_ones_own_data(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    data = saved(tmp_path, {"prompt": "hi", "answer": "4", "weight": 0.5, "images": ["x"]})
    args = {"path": data, "rewards": named.to_json([named.parse("exact")])}
    args["columns"] = json.dumps({"images": ""})
    path.write_text(json.dumps({"recipe": "grpo", "task": "file", "task_args": args}))
    config, _ = configs.resolve([str(path), "--model", "none", "--data.columns.weight", ""])
    assert json.loads(config.task_args["columns"]) == {"images": "", "weight": ""}
    assert cli.main(["show", "grpo", "--model", "none", "--data.columns.images", ""]) == 2
    assert "--data.columns is for data of your own" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--data", "--test-data", "--eval-data"])
@pytest.mark.parametrize("recipe", ["grpo", "sft"])
def test_no_file_is_ignored_for_another(flag, recipe, tmp_path, capsys):
    paths = [saved(tmp_path, {"prompt": "a"}, name=f"{n}.jsonl") for n in range(2)]
    flags = [flag, paths[0], f"{flag}={paths[1]}"]
    assert cli.main(["show", recipe, "--model", "none", *flags]) == 2
    assert f"{flag} is given twice; name several files" in capsys.readouterr().err


@pytest.mark.parametrize("course", [False, True])
@pytest.mark.parametrize(
    ("recipe", "flag"),
    [
        ("grpo", "data"),
        ("grpo", "test-data"),
        ("sft", "data"),
        ("sft", "test-data"),
        ("sft", "eval-data"),
    ],
)
def test_a_flag_replaces_the_data_of_a_config_file(recipe, flag, course, tmp_path):
    record = {"prompt": "a", "answer": "b"}
    one, two = (saved(tmp_path, record, name=f"{n}.jsonl") for n in range(2))
    stage = {"recipe": recipe, "data": one, flag: one}
    if recipe == "grpo":
        stage["reward"] = "exact"
    path = tmp_path / "my.yaml"
    path.write_text(json.dumps({"model": "fresh", **({"course": [stage]} if course else stage)}))
    config, _ = configs.resolve([str(path), f"--{flag}", two])
    read = config.task_args if recipe == "grpo" else dataclasses.asdict(config.data)
    field = {"data": "path"}.get(flag, "test_path" if recipe == "grpo" else "eval_path")
    assert read[field] == two


# --- places ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "flags", "where"),
    [
        ("grpo", ["--model", "me/model"], lambda c: c.model),
        ("sft", ["--model", "none", "--data", "me/model"], lambda c: c.data.path),
        ("distill", ["--teacher.model", "me/model"], lambda c: c.extensions["teacher"].model),
        (
            "grpo",
            ["--with", "judge", "--judge.model", "me/model"],
            lambda c: c.extensions["judge"].model,
        ),
    ],
)
def test_a_path_in_a_config_is_whole_whatever_names_it(recipe, flags, where, tmp_path, monkeypatch):
    """From another directory, `me/model` would be looked for on the Hub."""
    (tmp_path / "me" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    config, _ = configs.resolve([recipe, *flags])
    assert where(config) == str(tmp_path / "me" / "model")
    assert paths.whole_path("me/other") == "me/other" and paths.whole_path("fresh") == "fresh"


@dataclasses.dataclass(frozen=True)
class _Inner:
    path: str = ""


@dataclasses.dataclass(frozen=True)
class _Own:
    history: int = 8
    path: str | None = None
    eval_path: tuple[str, ...] = ()
    models: dict[str, int] = dataclasses.field(default_factory=dict)
    model: _Inner = _Inner()
    rubric: tuple[float, ...] = (1.0,)


def test_only_texts_of_an_extension_of_ones_own_are_paths(tmp_path, monkeypatch):
    (tmp_path / "me").mkdir()
    monkeypatch.chdir(tmp_path)
    settings = _Own(eval_path=("me",), model=_Inner("me"), models={"me": 2})
    config = paths.with_whole_paths(Config(extensions={"my:own": settings}))
    me = str(tmp_path / "me")
    full = dataclasses.replace(settings, eval_path=(me,), model=_Inner(me))
    assert config.extensions["my:own"] == full
