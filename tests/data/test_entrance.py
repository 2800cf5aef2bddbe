"""What enters a run: every reader, layout and spelling, the mask, and what is refused before it."""

import bz2
import gzip
import itertools
import json
import lzma

import pytest
import tokenizers as library
from tokenizers import decoders, models, pre_tokenizers

from jaxrl.data import tasks
from jaxrl.data.rewards import named
from jaxrl.data.sources import records as sources
from jaxrl.data.sources import rows
from jaxrl.data.text import examples, tokenizers
from jaxrl.data.types import Problem

END = "<|im_end|>"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
OWN_END = CHATML.replace("<|im_end|>", "<turn|>")
LAST_ONLY = CHATML.replace(
    "+ '<|im_end|>\n'", "+ ('' if m.role == 'assistant' and not loop.last else '<|im_end|>') + '\n'"
)
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS = (
    "{% if tools %}# Tools{% for t in tools %}{{ t | tojson }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} "
    "ARGUMENTS</tool_call>{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = (
    "{% for m in messages %}{% set c = m.content %}{% if m.role == 'assistant' %}"
    "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + c + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = (END, "<|im_start|>", "<turn|>", "</s>")


def loaded(folder, template, eos=END):
    """A tokenizer whose tokens are bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = library.Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens([library.AddedToken(token, special=True) for token in SPECIAL])
    folder.mkdir(exist_ok=True)
    plain.save(str(folder / "tokenizer.json"))
    config = {"chat_template": template} | ({"eos_token": eos} if eos else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizers.load(folder)


def saved(folder, *records, name="rows.jsonl"):
    path = folder / name
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


def spelled(tokenizer, example):
    """The text of an example, what is learned in brackets."""
    pairs = [*((i, False) for i in example.prompt)]
    pairs += zip(example.tokens, example.learned, strict=True)
    groups = itertools.groupby(pairs, key=lambda pair: pair[1])
    parts = [(mark, tokenizer.spelled([i for i, _ in run])) for mark, run in groups]
    return "".join(f"[[{text}]]" if mark else text for mark, text in parts).rstrip("\n")


def encoded(tokenizer, path, **settings):
    row = rows.read(path)[0]
    return [spelled(tokenizer, each) for each in examples.encode(tokenizer, row, **settings)]


# --- readers ---------------------------------------------------------------------------------

RECORDS = [{"question": f"q{i}?", "answer": f"a{i}"} for i in range(4)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def write_all(folder):
    """The records in every format."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(RECORDS)
    (folder / "a.jsonl").write_text(LINES)
    (folder / "list.json").write_text(json.dumps(RECORDS))
    (folder / "lines.json").write_text(LINES)
    csv = "question,answer\n" + "".join(f"{r['question']},{r['answer']}\n" for r in RECORDS)
    (folder / "a.csv").write_text(csv)
    (folder / "a.tsv").write_text(csv.replace(",", "\t"))
    for ending, pack in PACKED.items():
        (folder / f"a.jsonl{ending}").write_bytes(pack(LINES.encode()))
        (folder / f"a.csv{ending}").write_bytes(pack(csv.encode()))
        (folder / f"list.json{ending}").write_bytes(pack(json.dumps(RECORDS).encode()))
    with pyarrow.CompressedOutputStream(str(folder / "a.jsonl.zst"), "zstd") as stream:
        stream.write(LINES.encode())
    pyarrow.parquet.write_table(table, folder / "a.parquet")
    with pyarrow.ipc.new_stream(str(folder / "s.arrow"), table.schema) as stream:
        stream.write_table(table)
    with pyarrow.ipc.new_file(str(folder / "f.arrow"), table.schema) as stream:
        stream.write_table(table)
    shards = folder / "shards"
    (shards / "data").mkdir(parents=True)
    half = [json.dumps(record) + "\n" for record in RECORDS]
    (shards / "data" / "train-00000-of-00002.jsonl").write_text("".join(half[:1]))
    (shards / "data" / "train-00001-of-00002.jsonl").write_text("".join(half[1:]))
    (shards / "data" / "test-00000-of-00001.jsonl").write_text('{"question": "x", "answer": "y"}')
    (shards / "README.md").write_text("a card")
    (shards / "dataset_infos.json").write_text("{}")


@pytest.mark.exact("every format of a file gives the same rows, to fine-tuning and to RL")
def test_every_format_gives_the_same_rows_to_every_kind_of_run(tmp_path):
    write_all(tmp_path)
    names = [p.name for p in tmp_path.iterdir() if p.is_file()]
    paths = [tmp_path / n for n in names] + [tmp_path / "shards", tmp_path / "shards/data/train*"]
    assert len(paths) > 18
    rewards = named.to_json([named.parse("exact")])
    for path in map(str, paths):
        found = rows.read(path)
        assert [(r.prompt, r.answers[0]) for r in (found[i] for i in range(4))] == [
            (r["question"], r["answer"]) for r in RECORDS
        ], path
        task = tasks.get("file", path=path, rewards=rewards)
        problems = [
            task.problem(split, 0, i) for split in task.splits for i in range(task.sizes[split])
        ]
        assert {p.prompt: p.answer for p in problems} == {
            r["question"]: r["answer"] for r in RECORDS
        }, path


def test_places_are_those_of_the_shard_and_the_line(tmp_path):
    write_all(tmp_path)
    found = rows.read(str(tmp_path / "shards"))
    assert [found[i].id.rpartition("/")[2] for i in (0, 1, 3)] == [
        "train-00000-of-00002.jsonl:1",
        "train-00001-of-00002.jsonl:1",
        "train-00001-of-00002.jsonl:3",
    ]
    (tmp_path / "long.csv").write_text('prompt,completion\n"a\nb",c\nd,e\n')
    found = rows.read(str(tmp_path / "long.csv"))
    assert [found.where(i).rpartition(":")[2] for i in (0, 1)] == ["2", "4"]


def test_a_folder_of_several_data_sets_is_refused_with_the_way_out(tmp_path):
    write_all(tmp_path)
    with pytest.raises(ValueError, match=r"holds files .*name those that are meant"):
        sources.read(str(tmp_path))
    for name in ("main", "socratic"):
        (tmp_path / "gsm" / name).mkdir(parents=True)
        (tmp_path / "gsm" / name / "train-0.jsonl").write_text(LINES)
    with pytest.raises(ValueError, match="name one of these folders"):
        sources.read(str(tmp_path / "gsm"))
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"bad\.jsonl\.gz is not compressed"):
        sources.read(str(tmp_path / "bad.jsonl.gz"))


# --- columns and layouts ---------------------------------------------------------------------

HUMAN, GPT = {"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
HI = f"<|im_start|>user\nhi{END}\n<|im_start|>assistant\n"
YO = f"[[yo{END}]]"
LAYOUTS = {
    "alpaca": (
        {"instruction": "hi", "input": "you", "output": "yo"},
        [HI.replace("hi", "hi\n\nyou") + YO],
    ),
    "alpaca with history": (
        {
            "instruction": "hi", "input": "", "output": "yo", "system": "S",
            "history": [["a", "b"]],
        },
        [
            f"<|im_start|>system\nS{END}\n<|im_start|>user\na{END}\n"
            f"<|im_start|>assistant\nb{END}\n{HI}{YO}"
        ],
    ),
    "sharegpt with system": (
        {"system": "S", "conversations": [HUMAN, GPT]},
        [f"<|im_start|>system\nS{END}\n{HI}{YO}"],
    ),
    "sharegpt pairs": (
        {"conversations": [HUMAN], "chosen": GPT, "rejected": {**GPT, "value": "no"}},
        [HI + YO, HI + YO.replace("yo", "no")],
    ),
    "openai": ({"messages": [USER, ANSWER]}, [HI + YO]),
    "openai preferences": (
        {
            "input": {"messages": [USER]}, "preferred_output": [ANSWER],
            "non_preferred_output": [{**ANSWER, "content": "no"}],
        },
        [HI + YO, HI + YO.replace("yo", "no")],
    ),
    "weights": (
        {
            "messages": [
                USER, {**ANSWER, "content": "no", "weight": 0}, USER, {**ANSWER, "weight": 1},
            ]
        },
        [f"{HI}no{END}\n{HI}{YO}"],
    ),
    "kto": ({"messages": [USER, ANSWER], "label": True}, [HI + YO]),
    "kto of LLaMA-Factory": ({"conversations": [HUMAN, GPT], "kto_tag": False}, [HI + YO]),
    "hh": (
        {
            "chosen": "\n\nHuman: Fruit?\n\nAssistant: Apple.",
            "rejected": "\n\nHuman: Fruit?\n\nAssistant: A chair.",
        },
        [
            f"\n\nHuman: Fruit?\n\nAssistant:[[ Apple.{END}]]",
            f"\n\nHuman: Fruit?\n\nAssistant:[[ A chair.{END}]]",
        ],
    ),
    "trl": ({"prompt": [USER], "completion": [ANSWER]}, [HI + YO]),
    "json in a table": ({"messages": json.dumps([USER, ANSWER])}, [HI + YO]),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_in_public_use_are_read_whole(name, tmp_path):
    record, texts = LAYOUTS[name]
    tokenizer = loaded(tmp_path / "model", CHATML)
    path = saved(tmp_path, record)
    chat = "instruction" in record
    assert encoded(tokenizer, path, chat=chat) == texts
    assert not rows.read(path).layout.unused


@pytest.mark.parametrize(
    ("record", "optional", "seen"),
    [
        ({"messages": [USER, ANSWER]}, {"system": "S"}, lambda row: row.answers[0][0]["content"]),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            {"margin": 2},
            lambda row: row.rewards[0],
        ),
        ({"prompt": "a", "completion": "b"}, {"label": False}, lambda row: row.rewards[0]),
        (
            {"messages": [USER, ANSWER]},
            {"tools": [{"name": "f", "parameters": {}}]},
            lambda row: row.tools[0]["function"]["name"],
        ),
    ],
)
def test_a_column_counts_whatever_row_it_is_first_in(record, optional, seen, tmp_path):
    """Columns are those of all rows: the row that has one reads as it does in a file of its own."""
    alone = seen(rows.read(saved(tmp_path, record | optional, name="alone.jsonl"))[0])
    plain = record | ({"label": True} if "label" in optional else {})
    for order in ((plain, record | optional), (record | optional, plain)):
        found = rows.read(saved(tmp_path, *order))
        index = order.index(record | optional)
        assert seen(found[index]) == alone
        assert set(optional) <= set(found.layout.used)


def test_each_column_is_used_or_unused_and_known_ones_warn(tmp_path):
    record = {"prompt": "a", "completion": "b", "id": 3, "margin": 1.0, "nested": {"x": 1}}
    layout = rows.read(saved(tmp_path, record)).layout
    assert layout.used == ("prompt", "completion")
    assert layout.unused == ("id", "margin", "nested")
    assert "'margin'" in layout.warnings("f")[0] and len(layout.warnings("f")) == 1
    for column, value in (("weight", 0.5), ("images", ["x.png"])):
        path = saved(tmp_path, {"prompt": "a", "completion": "b", column: value})
        with pytest.raises(ValueError, match=rf"--data\.columns\.{column} ''"):
            rows.read(path)
        assert rows.read(path, {column: ""}).layout.unused == (column,)
    nested = saved(tmp_path, {"extra": {"q": "a", "a": "b"}})
    row = rows.read(nested, {"prompt": "extra.q", "completion": "extra.a"})[0]
    assert (row.prompt, row.answers) == ("a", ("b",))


@pytest.mark.parametrize(
    "record", [{"input_ids": [1], "labels": [1]}, {"prompt_ids": [1], "completion_ids": [2]}]
)
def test_token_ids_are_refused_with_the_reason(record, tmp_path):
    with pytest.raises(ValueError, match=r"token ids are not read.*give the texts or messages"):
        rows.read(saved(tmp_path, record))


def test_ranks_are_read_and_answers_to_a_question_are_none(tmp_path):
    ranked = [{"answer": "b", "rank": 2.0}, {"answer": "a", "rank": 1.0}]
    row = rows.read(saved(tmp_path, {"prompt": "q", "answers": ranked}))[0]
    assert (row.answers, row.rewards) == (("a", "b"), (1.0, 0.0))
    path = saved(tmp_path, {"prompt": "q", "answers": [ranked[0], {**ranked[0], "answer": "c"}]})
    with pytest.raises(ValueError, match="give each answer one of its own"):
        rows.read(path)
    squad = {"question": "q", "answers": {"text": ["a"]}, "answer": "a"}
    assert rows.read(saved(tmp_path, squad)).layout.unused == ("answers",)


# --- spellings -------------------------------------------------------------------------------

ARGUMENTS = {"city": "Oslo", "days": 2}
CALL = {"function": {"name": "weather", "arguments": ARGUMENTS}}
CALLS = [
    CALL,
    {**CALL, "id": "c1", "type": "function"},
    {"function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}},
    {"name": "weather", "arguments": ARGUMENTS},
    {"function": {"name": "weather", "arguments": {**ARGUMENTS, "hours": None}}, "index": None},
]
PARTS = [
    "hi",
    [{"type": "text", "text": "hi"}],
    [{"type": "text", "text": "h"}, {"type": "text", "text": "i", "image_url": None}],
    {"type": "text", "text": "hi"},
]
SCHEMA = {"name": "weather", "parameters": {"type": "object"}}
SCHEMAS = [
    [{"type": "function", "function": SCHEMA}],
    [SCHEMA],
    json.dumps([SCHEMA]),
    [json.dumps(SCHEMA)],
    [{"type": "function", "function": {**SCHEMA, "strict": None}}],
]
NAMES = [
    ("user", "assistant", "tool"),
    ("human", "gpt", "observation"),
    ("USER", "bot", "function"),
]


@pytest.mark.parametrize(
    "arguments", ["{{ c.function.arguments | tojson }}", "{{ c.function.arguments }}"]
)
@pytest.mark.exact("all spellings of one conversation have the same tokens")
def test_all_spellings_of_a_conversation_have_the_same_tokens(arguments, tmp_path):
    """Whether the template writes the arguments as JSON itself, or takes them as a text."""
    tokenizer = loaded(tmp_path / "model", TOOLS.replace("ARGUMENTS", arguments))
    texts = set()
    for call, parts, schemas, (user, assistant, tool) in itertools.product(
        CALLS, PARTS, SCHEMAS, NAMES
    ):
        turns = [
            {"role": user, "content": parts, "name": None},
            {"role": assistant, "content": None, "tool_calls": [call]},
            {"role": tool, "content": parts, "tool_calls": None},
            {"role": assistant, "content": parts, "tool_calls": []},
        ]
        texts.add(encoded(tokenizer, saved(tmp_path, {"messages": turns, "tools": schemas}))[0])
    (text,) = texts
    assert '[[<tool_call>weather {"city": "Oslo", "days": 2}</tool_call>' in text
    assert f"[[hi{END}]]" in text and "'" not in text


def test_sharegpt_calls_are_calls_and_what_is_no_text_is_refused(tmp_path):
    tokenizer = loaded(
        tmp_path / "model", TOOLS.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
    )
    turns = [
        HUMAN,
        {"from": "function_call", "value": json.dumps({"name": "f", "arguments": {"a": 1}})},
        {"from": "observation", "value": "1"},
        GPT,
    ]
    (text,) = encoded(tokenizer, saved(tmp_path, {"conversations": turns}))
    assert f'[[<tool_call>f {{"a": 1}}</tool_call>{END}]]' in text and "<|im_start|>tool\n1" in text
    for content, says in (
        ([{"type": "image_url", "image_url": {"url": "x"}}], "a part of type 'image_url'"),
        ([{"type": "text", "text": "a"}, {"type": "image"}], "a part of type 'image'"),
        (5, "its content is 5"),
    ):
        path = saved(tmp_path, {"messages": [{"role": "user", "content": content}, ANSWER]})
        with pytest.raises(ValueError, match=rf"rows\.jsonl:1: .*{says}"):
            rows.read(path)
    path = saved(tmp_path, {"messages": [USER, {"role": "critic", "content": "x"}, ANSWER]})
    with pytest.raises(ValueError, match="role 'critic', which the chat template does not name"):
        encoded(loaded(tmp_path / "model", CHATML), path)


# --- the mask --------------------------------------------------------------------------------

TURNS = [USER, ANSWER, {"role": "user", "content": "SECRET"}, {**ANSWER, "content": "ok"}]


@pytest.mark.parametrize(
    ("template", "eos", "learned"),
    [
        (CHATML, END, [f"yo{END}", f"ok{END}"]),
        (MARKED, END, [f"yo{END}", f"ok{END}"]),
        (OWN_END, "</s>", ["yo<turn|>", "ok<turn|>"]),
        (PLAIN, "</s>", ["yo\n", "ok\n"]),
    ],
)
def test_what_is_learned_are_the_words_of_the_assistant(template, eos, learned, tmp_path):
    tokenizer = loaded(tmp_path / "model", template, eos)
    (text,) = encoded(tokenizer, saved(tmp_path, {"messages": TURNS}))
    assert [part.partition("]]")[0] for part in text.split("[[")[1:]] == learned
    assert examples.learns_to_stop(tokenizer) == (template != PLAIN)


def test_a_turn_without_the_end_that_others_have_is_refused(tmp_path):
    tokenizer = loaded(tmp_path / "model", LAST_ONLY)
    with pytest.raises(ValueError, match=r"ends (some turns|a turn) of the assistant with"):
        encoded(tokenizer, saved(tmp_path, {"messages": TURNS}))
    (text,) = encoded(tokenizer, saved(tmp_path, {"messages": TURNS[:2]}))
    assert text.endswith(f"[[yo{END}]]")


@pytest.mark.parametrize("tail", ["", END, END + END, END + "\n", f"{END}\n{END}\n"])
@pytest.mark.parametrize("kind", ["text", "completion", "messages", "preference"])
def test_every_answer_ends_with_one_end_token(kind, tail, tmp_path):
    answer = "yo" + tail
    record = {
        "text": {"text": answer},
        "completion": {"prompt": "hi", "completion": answer},
        "messages": {"messages": [USER, {**ANSWER, "content": answer}]},
        "preference": {"prompt": "hi", "chosen": answer, "rejected": "no"},
    }[kind]
    text = encoded(loaded(tmp_path / "model", CHATML), saved(tmp_path, record))[0]
    assert text.endswith(f"o{END}]]") and text.count(END) == 1 + (kind == "messages")


@pytest.mark.parametrize(
    ("template", "row", "lost"),
    [
        (
            THINKING,
            {"messages": [USER, {**ANSWER, "content": "<think>\nhm\n</think>\n\nyo"}]},
            "hm",
        ),
        (CHATML, {"messages": [USER, {**ANSWER, "reasoning_content": "hm"}]}, "hm"),
        (CHATML, {"messages": [USER, {**ANSWER, "tool_calls": [CALL]}]}, "weather"),
        (CHATML, {"messages": [USER, ANSWER], "tools": [SCHEMA]}, "weather"),
        (
            CHATML.replace("for m in messages", "for m in messages if m.role != 'system'"),
            {"messages": [{"role": "system", "content": "Be brief."}, USER, ANSWER]},
            "Be brief.",
        ),
        (CHATML, {"messages": [USER, {**ANSWER, "content": f"a{END}lost"}]}, "lost"),
    ],
)
def test_what_a_template_leaves_out_is_an_error_that_names_it(template, row, lost, tmp_path):
    tokenizer = loaded(tmp_path / "model", template)
    with pytest.raises(ValueError, match=rf"rows\.jsonl:1: .*{lost}"):
        encoded(tokenizer, saved(tmp_path, row))


def test_a_model_without_an_end_is_refused_by_name(tmp_path):
    tokenizer = loaded(tmp_path / "model", "{{ messages[0].content }}", eos="")
    bare = tokenizers.dataclasses.replace(tokenizer, eos_ids=())
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: this model has no end-of-sequence token"):
        encoded(bare, saved(tmp_path, {"prompt": "a", "completion": "b"}))


def test_variables_of_the_template_are_part_of_the_prompt(tmp_path):
    template = CHATML.replace(
        "{% endif %}",
        "{% if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}"
        "{% endif %}{% endif %}",
    ).replace("m['content']", "('<think></think>' if m.role == 'assistant' else '') + m['content']")
    plain = loaded(tmp_path / "model", template)
    path = saved(tmp_path, {"messages": [USER, ANSWER]})
    for off in (False, "false", "False"):
        tokenizer = tokenizers.with_variables(plain, {"enable_thinking": off})
        assert encoded(tokenizer, path) == [f"{HI}<think></think>{YO}"]
    assert encoded(plain, path) == [f"{HI}[[<think></think>yo{END}]]"]
    row = {"messages": [USER, ANSWER], "chat_template_kwargs": {"enable_thinking": False}}
    assert encoded(plain, saved(tmp_path, row)) == [f"{HI}<think></think>{YO}"]
    for name in ("enable_thought", "enable", "enable_thinkin"):
        with pytest.raises(ValueError, match=f"has no variable '{name}'"):
            tokenizers.with_variables(plain, {name: False})


# --- rewards ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["exact", "contains", "number", "math"])
def test_any_element_of_a_list_is_right_and_the_list_itself_is_not(name):
    def write(answer):
        return rf"\boxed{{{answer}}}" if name == "math" else answer

    reward = named.combined([named.parse(name)], ["answer"]).reward
    for answers in (["4", "5"], ("4", "5"), ["5", None, "4"]):
        problem = Problem("p", "q", answers)
        assert [reward(problem, write(text)).value for text in ("4", "5", "6")] == [1, 1, 0]
        assert reward(problem, write(str(list(answers)))).value == 0
    assert reward(Problem("p", "q", {"value": "4"}), write("4")).error.startswith("gold:")
    assert reward(Problem("p", "q", []), write("4")).error.startswith("gold:")
