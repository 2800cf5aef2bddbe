"""Files of rows: their kinds, bad rows, what is held out, and what of a row is learned."""

import csv
import json

import pytest

from jaxrl.data.sources import rows
from jaxrl.data.text import examples, tokenizers
from tests.data import words

ROWS = {
    "messages": {
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
        ]
    },
    "completion": {"prompt": "one", "completion": "two"},
    "preference": {"prompt": "one", "chosen": "two", "rejected": "three"},
    "ranking": {"prompt": "one", "ranking": ["two", "three", "four"]},
    "label": {"prompt": "one", "completion": "two", "label": True},
    "stepwise": {"prompt": "one", "completions": ["two", "three"], "labels": [True, False]},
    "referenced": {"prompt": "one", "completions": ["two", "four"], "reference": ["two", "three"]},
    "text": {"text": "one two"},
}


def saved(folder, *records, name="rows.jsonl"):
    path = folder / name
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


@pytest.mark.parametrize("kind", ROWS)
def test_kinds_are_recognised(kind, tmp_path):
    found = rows.read(saved(tmp_path, ROWS[kind]))
    assert found.kind == kind and len(found) == 1 and not found.bad
    assert found[0].id.endswith("rows.jsonl:1")
    several = {"preference": (1.0, 0.0), "ranking": (1.0, 0.5, 0.0), "stepwise": (1.0, 0.0)}
    several["referenced"] = (1.0, 0.0)
    assert found[0].rewards == several.get(kind, (1.0,))


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("ranking", {"ranking": ["two"]}, "must be a list of 2 or more"),
        ("stepwise", {"labels": [True]}, "must have a label for each step"),
        ("stepwise", {"labels": [True, "maybe"]}, "label='maybe' must be true or false"),
        ("referenced", {"reference": []}, "must be a list of 1 or more"),
        ("referenced", {"completions": [[{"role": "user", "content": "one"}]]}, "must hold texts"),
        ("preference", {"margin": -1}, "margin=-1 must be 0 or more"),
    ],
)
def test_answers_and_verdicts_that_do_not_fit_are_refused(kind, change, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        rows.read(saved(tmp_path, ROWS[kind] | change))


def test_a_margin_is_added_to_the_reward_of_the_chosen(tmp_path):
    found = rows.read(saved(tmp_path, ROWS["preference"] | {"margin": 0.5}))
    assert found[0].rewards == (1.5, 0.0)


def test_a_step_is_scored_at_the_end_of_its_line(tmp_path):
    """What follows the line is learned, as the state before it is; so a score is of whole steps."""
    characters = tokenizers.characters("abc \n")
    row = {"prompt": "a ", "completions": ["b", "cc"], "labels": [1, 0]}
    (made,) = examples.encode(characters, rows.read(saved(tmp_path, row))[0])
    text = characters.decode(list(made.tokens))
    assert characters.decode(list(made.prompt)) == "a " and text == "b\ncc\n"
    assert [i for i, mark in enumerate(made.learned) if mark] == [2, 5]
    (cut,) = examples.fitting([made], 6, "truncate", "row")
    assert cut.tokens == made.tokens[:3]
    answer = examples.Example((1,), (2, 3), (False, True))
    assert examples.scored_at_end(answer, 9) == examples.Example(
        (1,), (2, 3, 9), (False, False, True)
    )


def test_columns_of_other_names(tmp_path):
    """Some are known, others are given; a name that is not there is refused."""
    path = saved(tmp_path, {"question": "one", "reply": "two", "extra": 3})
    found = rows.read(path, {"completion": "reply"})
    assert found.kind == "completion" and found[0].answers == ("two",)
    with pytest.raises(ValueError, match=r"none of the kinds.*--data\.columns\.prompt NAME"):
        rows.read(path)
    with pytest.raises(ValueError, match=r"data\.columns\.completion='replie'"):
        rows.read(path, {"completion": "replie"})
    shared = [{"from": "human", "value": "one"}, {"from": "gpt", "value": "two"}]
    (turns,) = rows.read(saved(tmp_path, {"conversations": shared}))[0].answers
    assert turns == tuple(ROWS["messages"]["messages"])


def test_bad_rows_are_named_by_their_lines_or_counted(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = ['{"prompt": "a", "completion": "b"}', "", "{", '{"prompt": "c"}', "[1]"]
    path.write_text("\n".join([*lines, '{"prompt": "d", "completion": "e"}', ""]))
    with pytest.raises(ValueError, match=r"rows\.jsonl:3: not JSON.*--data\.bad-rows skip"):
        rows.read(str(path))
    found = rows.read(str(path), bad="skip")
    assert [row.prompt for row in map(found.__getitem__, range(2))] == ["a", "d"]
    assert [bad.id.rpartition(":")[2] for bad in found.bad] == ["3", "4", "5"]
    assert found.bad[1].why == "'completion' is missing; the row has prompt"


@pytest.mark.extra
@pytest.mark.exact("files of JSONL, JSON, CSV and Parquet give the same rows")
def test_files_of_other_formats_hold_the_same_rows(tmp_path):
    records = [{"prompt": f"p{i}", "completion": f"c{i}"} for i in range(3)]
    paths = [saved(tmp_path, *records)]
    (tmp_path / "rows.json").write_text(json.dumps(records))
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "completion"])
        writer.writeheader()
        writer.writerows(records)
    paths += [str(tmp_path / "rows.json"), str(tmp_path / "rows.csv")]
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "rows.parquet")
    paths.append(str(tmp_path / "rows.parquet"))
    read = [rows.read(path) for path in paths]
    assert len({found.fingerprint for found in read}) == 1
    assert {found[2].answers for found in read} == {("c2",)}


def test_what_is_held_out_does_not_depend_on_the_order(tmp_path):
    """A share of the prompts, rows of one prompt together, at most so many."""
    records = [{"prompt": f"p{i % 20}", "completion": f"c{i}"} for i in range(40)]
    one = rows.read(saved(tmp_path, *records))
    two = rows.read(saved(tmp_path, *reversed(records), name="other.jsonl"))

    def prompts(found, places):
        return {found[i].prompt for i in places}

    train, held = rows.divide(one, 0.25, 100)
    assert len(held) == 10 and len(train) == 30 and not set(train) & set(held)
    assert not prompts(one, train) & prompts(one, held)
    assert prompts(two, rows.divide(two, 0.25, 100)[1]) == prompts(one, held)
    assert len(prompts(one, rows.divide(one, 0.25, 2)[1])) == 2
    pair = rows.read(saved(tmp_path, *records[:2], name="pair.jsonl"))
    assert list(map(len, rows.divide(pair, 0.8, 100))) == [1, 1]
    with pytest.raises(ValueError, match="one prompt"):
        rows.divide(rows.read(saved(tmp_path, *records[:1])), 0.5, 1)


def test_the_prompt_of_conversations_is_their_common_beginning(tmp_path):
    asked = {"role": "user", "content": "one"}

    def said(text):
        return {"role": "assistant", "content": text}

    chosen, rejected = [asked, said("two")], [asked, said("three")]
    row = rows.read(saved(tmp_path, {"chosen": chosen, "rejected": rejected}))[0]
    assert row.prompt == (asked,) and row.answers == ((said("two"),), (said("three"),))
    pair = {"prompt": "one", "chosen": chosen, "rejected": rejected}
    assert rows.read(saved(tmp_path, pair))[0] == row
    with pytest.raises(ValueError, match="are equal"):
        rows.read(saved(tmp_path, {"prompt": "one", "chosen": "two", "rejected": "two"}))


TURNS = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two three"},
    {"role": "user", "content": "four"},
    {"role": "assistant", "content": "five"},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizers.load(words.tokenizer(tmp_path_factory.mktemp("words")))


def learned(tokenizer, example):
    pairs = zip(example.tokens, example.learned, strict=True)
    return [words.WORDS[token] for token, mark in pairs if mark]


def test_of_a_conversation_the_turns_of_the_assistant_are_learned(tokenizer, tmp_path):
    """Of a prompt and an answer those of the answer alone; each turn with its end."""
    row = rows.read(saved(tmp_path, {"messages": TURNS}))[0]
    (whole,) = examples.encode(tokenizer, row)
    assert learned(tokenizer, whole) == ["two", "three", "<end>", "five", "<end>"]
    assert whole.learned[0] and whole.learned[-1]
    row = rows.read(saved(tmp_path, {"prompt": TURNS[:3], "completion": TURNS[3:]}))[0]
    (last,) = examples.encode(tokenizer, row)
    assert learned(tokenizer, last) == ["five", "<end>"]
    assert (*last.prompt, *last.tokens) == (*whole.prompt, *whole.tokens)
    pair = {"prompt": "one", "chosen": "two", "rejected": "three four"}
    row = rows.read(saved(tmp_path, pair))[0]
    plain = examples.encode(tokenizer, row)
    assert plain[0].prompt == plain[1].prompt == tuple(tokenizer.prompt("one"))
    assert [learned(tokenizer, each) for each in plain] == [
        ["two", "<end>"],
        ["three", "four", "<end>"],
    ]
    encoded = examples.encode(tokenizer, row, chat=True, system="four")
    assert [words.WORDS[t] for t in encoded[0].prompt] == [
        *("<system>", "four", "<end>", "<user>", "one", "<end>", "<assistant>"),
    ]


def test_texts_are_learned_whole_and_messages_need_a_template(tokenizer, tmp_path):
    plain = tokenizers.characters("abc")
    (text,) = examples.encode(plain, rows.read(saved(tmp_path, {"text": "abc"}))[0])
    assert text == examples.Example((1,), (2, 3, 0), (True, True, True))
    row = rows.read(saved(tmp_path, {"messages": TURNS}))[0]
    with pytest.raises(ValueError, match="this model has no chat template; choose a model"):
        examples.encode(plain, row)


@pytest.mark.parametrize(("size", "longest"), [(2, 2), (7, 2), (7, 3), (7, 7), (9, 5), (8, 20)])
def test_a_text_in_pieces_loses_no_token(size, longest):
    """Each token but the first is learned once, after the one that comes before it in the text."""
    whole = examples.Example((0,), tuple(range(1, size)), (True,) * (size - 1))
    made = examples.pieces(whole, longest)
    assert [token for each in made for token in each.tokens] == list(range(1, size))
    assert all(each.prompt == (each.tokens[0] - 1,) for each in made)
    assert all(all(each.learned) and 2 <= 1 + len(each.tokens) <= longest for each in made)
    assert all(1 + len(each.tokens) == longest for each in made[:-1])


def test_long_rows_are_cut_at_their_end_dropped_or_refused():
    row = [examples.Example((1, 2), (3, 4, 5, 6), (True, True, False, True))]
    assert examples.fitting(row, 6, "error", "f:1") == row
    for longest in (4, 5):  # a token that is not learned is no end
        (cut,) = examples.fitting(row, longest, "truncate", "f:1")
        assert cut.tokens == (3, 4)
    assert examples.fitting(row, 2, "truncate", "f:1") is None
    assert examples.fitting(row, 5, "drop", "f:1") is None
    with pytest.raises(ValueError, match=r"f:1: it has 6 tokens, more than data\.max_tokens=5"):
        examples.fitting(row, 5, "error", "f:1")
