"""Rows as the documentation of other frameworks writes them: read as these mean them, or refused.

A case is such a row, and rows in OpenAI's form that mean the same.
"""

import itertools
import json

import pytest

from jaxrl.config import Config
from jaxrl.data.rewards import named
from jaxrl.data.sources import rows
from jaxrl.rollout import written
from tests.data.test_entrance import CHATML, TOOLS, encoded, loaded, saved
from tests.data.test_entrance_spellings import task

S = {"role": "system", "content": "S"}
U, A, B = (
    {"role": r, "content": c} for r, c in (("user", "q"), ("assistant", "a"), ("assistant", "b"))
)
U2, A2 = {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"}
SCHEMA = {"name": "weather", "parameters": {"type": "object"}}
TOOL = json.dumps([{"type": "function", "function": SCHEMA}])


def called(*cities, text=""):
    calls = [{"function": {"name": "weather", "arguments": {"city": city}}} for city in cities]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def swift_call(city):
    return {
        "role": "tool_call",
        "content": json.dumps({"name": "weather", "arguments": {"city": city}}),
    }


def result(text):
    return {"role": "tool", "content": text}


def blocks(*parts):
    return [{"type": kind, **fields} for kind, fields in parts]


USED = ("tool_use", {"id": "t1", "name": "weather", "input": {"city": "Oslo"}})
GAVE = ("tool_result", {"tool_use_id": "t1", "content": "21"})
RANKED = [{"rank": 1, "completion": [B]}, {"rank": 0, "completion": [A]}]
DEEP = "[" * 100_000
PAIR = [{"prompt": [U], "chosen": [A], "rejected": [B]}]
CASES = {
    "NeMo RL: ranks": ({"context": [U], "completions": RANKED, "task_name": "t"}, PAIR),
    "NeMo RL: ranks in a table": (
        {"context": json.dumps([U]), "completions": json.dumps(RANKED)},
        PAIR,
    ),
    "NeMo RL: three ranks": (
        {"context": [U], "completions": [*RANKED, {"rank": 2, "completion": [A2]}]},
        [{"prompt": [U], "ranking": [[A], [B], [A2]]}],
    ),
    "NeMo RL: binary, of another key": (
        {"context": "q", "chosen": "a", "rejected": "b"},
        PAIR,
    ),
    "HelpSteer3": (
        {
            "domain": "code",
            "context": [U],
            "response1": "b",
            "response2": "a",
            "overall_preference": 2,
        },
        PAIR,
    ),
    "HelpSteer3: the first is better": (
        {"context": [U], "response1": "a", "response2": "b", "overall_preference": -3},
        PAIR,
    ),
    "NeMo RL: responses": ({"input": "q", "output": "a"}, [{"messages": [U, A]}]),
    "ms-swift: pairs of turns": (
        {
            "system": "S",
            "conversation": [{"human": "q", "assistant": "a"}, {"human": "q2", "assistant": "a2"}],
        },
        [{"messages": [S, U, A, U2, A2]}],
    ),
    "pairs of turns in the order of the alphabet": (
        {"conversation": [{"assistant": "a", "human": "q", "system": "S"}]},
        [{"messages": [S, U, A]}],
    ),
    "pairs of turns: a result before an answer": (
        {"conversation": [{"human": "q"}, {"observation": "21", "assistant": "a"}]},
        [{"messages": [U, result("21"), A]}],
    ),
    "a greeting first, in both conversations": (
        {"messages": [A2, U, A], "rejected_messages": [A2, U, B]},
        [{"prompt": [A2, U], "chosen": [A], "rejected": [B]}],
    ),
    "a greeting first, and one turn rejected": (
        {"messages": [A2, U, A], "rejected_response": "a2"},
        [{"prompt": [A2, U], "chosen": [A], "rejected": [A2]}],
    ),
    "no question": (
        {"messages": [S, A], "rejected_response": "b"},
        [{"prompt": [S], "chosen": [A], "rejected": [B]}],
    ),
    "Capybara": (
        {"conversation": [{"input": "q", "output": "a"}, {"input": "q2", "output": "a2"}]},
        [{"messages": [U, A, U2, A2]}],
    ),
    "ms-swift: a list is rejected": ({"messages": [U, A], "rejected_response": [B]}, PAIR),
    "ms-swift: rejected after the last question": (
        {"messages": [U, called("Oslo"), result("21"), A], "rejected_response": "b", "tools": TOOL},
        [
            {
                "prompt": [U],
                "chosen": [called("Oslo"), result("21"), A],
                "rejected": [B],
                "tools": TOOL,
            }
        ],
    ),
    "ms-swift: calls are rejected": (
        {
            "messages": [U, called("Oslo"), result("21"), A],
            "rejected_response": [
                swift_call("Rome"),
                {"role": "tool_response", "content": "30"},
                B,
            ],
        },
        [
            {
                "prompt": [U],
                "chosen": [called("Oslo"), result("21"), A],
                "rejected": [called("Rome"), result("30"), B],
            }
        ],
    ),
    "ms-swift: calls one after another": (
        {"messages": [U, swift_call("Oslo"), swift_call("Rome"), result("21"), result("30"), A]},
        [{"messages": [U, called("Oslo", "Rome"), result("21"), result("30"), A]}],
    ),
    "ms-swift: a call after words": (
        {"messages": [U, {**A, "content": "Let me see."}, swift_call("Oslo"), result("21"), A]},
        [{"messages": [U, called("Oslo", text="Let me see."), result("21"), A]}],
    ),
    "Anthropic": (
        {
            "messages": [
                U,
                {"role": "assistant", "content": blocks(("text", {"text": "Let me see."}), USED)},
                {"role": "user", "content": blocks(GAVE, ("text", {"text": "q2"}))},
                {"role": "assistant", "content": blocks(("text", {"text": "a2"}))},
            ]
        },
        [{"messages": [U, called("Oslo", text="Let me see."), result("21"), U2, A2]}],
    ),
    "axolotl: argilla": (
        {"system": "S", "instruction": "q", "chosen_response": "a", "rejected_response": "b"},
        [{"prompt": [S, U], "chosen": [A], "rejected": [B]}],
    ),
    "axolotl: oasst": ({"INSTRUCTION": "q", "RESPONSE": "a"}, [{"messages": [U, A]}]),
    "axolotl: metharme": ({"prompt": "q", "generation": "a"}, [{"messages": [U, A]}]),
    "axolotl: pygmalion": (
        {"conversations": [{"role": "human", "value": "q"}, {"role": "bot", "value": "a"}]},
        [{"messages": [U, A]}],
    ),
    "torchtune: preferences": (
        {"chosen_conversations": [U, A], "rejected_conversations": [U, B]},
        PAIR,
    ),
    "torchtune: Stack Exchange": (
        {"qid": 1, "question": "q", "response_j": "a", "response_k": "b"},
        PAIR,
    ),
    "torchtune: masked": (
        {"messages": [{**U, "masked": True}, {**A, "masked": True}, U2, {**A2, "masked": False}]},
        [{"messages": [U, {**A, "weight": 0}, U2, A2]}],
    ),
    "OpenRLHF": ({"context_messages": [U], "answer": "a"}, [{"messages": [U, A]}]),
    "a spreadsheet": ({"Instruction": "q", "Input": "", "Output": "a"}, [{"messages": [U, A]}]),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    template = TOOLS.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
    return loaded(tmp_path_factory.mktemp("tools") / "model", template)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.exact("rows of other frameworks' documentation have the tokens of what they mean")
def test_rows_of_other_frameworks_have_the_tokens_of_what_they_mean(name, tokenizer, tmp_path):
    record, expected = CASES[name]
    texts, worth = [], []
    for each in ([record], expected):
        path = saved(tmp_path, *each)
        texts.append(encoded(tokenizer, path, chat=True))
        worth.append(rows.read(path)[0].rewards)
    assert texts[0] == texts[1] and worth[0] == worth[1]


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
@pytest.mark.parametrize("text", ["text", "content", "value"])
@pytest.mark.parametrize("role", ["role", "from"])
@pytest.mark.parametrize("content", ["content", "value"])
def test_keys_of_messages_and_of_parts_may_be_mixed(role, content, text, kind, tokenizer, tmp_path):
    turns = [
        {role: "user", content: [{"type": kind, text: "q"}]},
        {role: "assistant", content: "a"},
    ]
    one, two = (
        saved(tmp_path, {"messages": t}, name=f"{n}.jsonl") for n, t in enumerate((turns, [U, A]))
    )
    assert encoded(tokenizer, one) == encoded(tokenizer, two)


@pytest.mark.parametrize("field", ["content", "reasoning_content", "thinking"])
@pytest.mark.parametrize("switch", ["train", "weight", "loss", "training", "loss_scale"])
def test_parts_that_are_not_learned_are_refused_and_thoughts_may_be_parts(field, switch, tmp_path):
    for off, value in itertools.product((0, 1), (False, 0, 0.5)):
        parts = [{"type": "text", "text": t} for t in ("x", "y")]
        answer = {**A, field: parts}
        assert (
            rows.read(saved(tmp_path, {"messages": [U, answer]}))[0].answers[0][1][
                "content" if field == "content" else "reasoning_content"
            ]
            == "xy"
        )
        parts[off][switch] = value
        with pytest.raises(ValueError, match=f"{switch}=.* of a part divides a message"):
            rows.read(saved(tmp_path, {"messages": [U, answer]}))


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"messages": [U, {**A, "loss_scale": 2.0}]}, r"loss_scale=2\.0 must be 0 or 1"),
        *(
            ({"messages": [{**turn, switch: True}, A]}, f"{switch}=True: only the assistant's")
            for turn in (U, S)
            for switch in ("train", "loss", "weight")
        ),
        ({"messages": [U, A, {**swift_call("Oslo"), "loss": False}]}, "a call is switched off"),
        ({"messages": [U, {**A, "loss": 0}, swift_call("Oslo")]}, "belongs to is switched off"),
        *(
            ({"messages": [U, A, {"role": "function_call", "content": none}]}, "holds no call")
            for none in ("[]", "{}", "null")
        ),
        ({"messages": [U, {**A, "content": blocks(("tool_use", {"input": {}}))}]}, "is no call"),
        ({"messages": [U, {"role": "tool_call", "content": DEEP}]}, "must be JSON"),
        ({"messages": [U, A], "tools": DEEP}, "'tools' is .* must be JSON"),
        ({"messages": DEEP}, "neither a text nor a list of messages"),
        ({"messages": [U, {**A, "content": blocks(USED, ("text", {"text": "a"}))}]}, "'tool_use'"),
        (
            {"context": [U], "response1": "a", "response2": "b", "overall_preference": 0},
            "prefers neither answer",
        ),
        ({"context": [U], "completions": [*RANKED, RANKED[0]]}, "give each answer one of its own"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_with_the_place(record, says, tmp_path):
    with pytest.raises(ValueError, match=rf"rows\.jsonl:1: .*{says}"):
        rows.read(saved(tmp_path, record))


@pytest.mark.parametrize("names", [("id",), ("id", "timestamp")])
def test_keys_of_messages_without_a_meaning_are_named(names, tmp_path):
    """In rows to learn from and in prompts to answer; others are not named."""
    turns = [U, {**A, "name": "x", "weight": 1, "tools": None, names[0]: None}]
    marked = [{**U, names[0]: 1}, {**A, **dict.fromkeys(names, 2)}]
    config = Config(task="", model="")
    tokenizer = loaded(tmp_path / "model", CHATML)
    for conversation, said in ((turns, ""), (marked, f"have the keys {', '.join(names)}, which")):
        learned = rows.read(saved(tmp_path, {"messages": conversation}, name="learned.jsonl"))
        notes = written.notes(tokenizer, config, learned)
        record = {"prompt": [*conversation, U], "answer": "4"}
        asked = task(tmp_path, record, reward="exact").notes
        for lines in (notes, asked):
            (found) = [line for line in lines if "have the keys" in line]
            assert len(found) == bool(said) and (not said or said in found[0]), lines


def test_an_empty_answer_and_an_unknown_variable_are_refused(tmp_path):
    tokenizer = loaded(tmp_path / "model", CHATML)
    for answer in ("", []):
        path = saved(tmp_path, {"messages": [U, {**A, "content": answer}]})
        with pytest.raises(ValueError, match=r"rows\.jsonl:1: a message of the assistant is empty"):
            encoded(tokenizer, path)
    path = saved(tmp_path, {"messages": [U, {**A, "content": "", "weight": 0}, U2, A2]})
    assert "[[a2" in encoded(tokenizer, path)[0]
    row = {"messages": [U, A], "chat_template_kwargs": {"documents": [], "date": "", "x": None}}
    assert encoded(tokenizer, saved(tmp_path, row))
    row = {"messages": [U, A], "chat_template_kwargs": {"enable_thinking": False}}
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: .*has no variable 'enable_thinking'"):
        encoded(tokenizer, saved(tmp_path, row))


@pytest.mark.parametrize(
    "column",
    [
        "context",
        "Context",
        "choices",
        "Options",
        "enable_thinking",
        "System",
        "kto_tag",
        "functions",
    ],
)
def test_columns_of_known_meaning_are_named_where_they_are_left_out(column, tmp_path):
    layout = rows.read(saved(tmp_path, {"text": "q", column: True})).layout
    assert layout.unused == (column,) and repr(column) in layout.warnings("f")[0]


HH = "\n\nHuman: q\n\nAssistant:"


@pytest.mark.parametrize(
    ("record", "kind", "used"),
    [
        ({"text": "t", "context": "c", "response": "r"}, "text", {"text"}),
        ({"text": "t", "prompt": "p", "generation": "g"}, "text", {"text"}),
        ({"text": "t", "context": "c", "generation": "g"}, "text", {"text"}),
        ({"text": "t", "prompt": "p", "completion": "c"}, "completion", {"prompt", "completion"}),
        ({"text": None, "context": "c", "response": "r"}, "completion", {"context", "response"}),
        ({"chosen": [U, A], "rejected": [U, B], "context": "c"}, "preference", None),
        ({"chosen": [U, A], "rejected": [U, B], "context": ""}, "preference", None),
        ({"chosen": HH + " a", "rejected": HH + " b", "context": "c"}, "preference", None),
        ({"chosen": "q a", "rejected": "q b", "context": ""}, "preference", None),
        (
            {"chosen": "a", "rejected": "b", "context": "q", "text": "t"},
            "preference",
            {"chosen", "rejected", "context"},
        ),
        (
            {"chosen": [A, U2, A2], "rejected": [B], "context": [U]},
            "preference",
            {"chosen", "rejected", "context"},
        ),
        ({"prompt": "p", "completion": "c", "Weight": 0.5}, "completion", {"prompt", "completion"}),
        ({"prompt": "p", "completion": "c", "Label": "x"}, "completion", {"prompt", "completion"}),
        ({"Prompt": "p", "COMPLETION": "c", "System": "S"}, "completion", None),
    ],
)
def test_a_name_of_several_meanings_takes_nothing_from_other_columns(record, kind, used, tmp_path):
    read = rows.read(saved(tmp_path, record))
    assert read.layout.kind == kind and len(read) == 1
    expected = used or ({*record} if "System" in record else {"chosen", "rejected"})
    assert {*read.layout.used} == expected


def test_rankings_that_rank_nothing_do_not_change_the_kind_of_the_others(tmp_path):
    pair, single = ({"prompt": "q", "ranking": r} for r in (["a", "b"], ["a"]))
    for bad in (single, {"prompt": "q", "ranking": None}, {"prompt": "q", "ranking": []}):
        read = rows.read(saved(tmp_path, bad, pair), bad="skip")
        assert (read.layout.kind, len(read)) == ("preference", 1)
    path = saved(tmp_path, pair, {"prompt": "q", "ranking": ["a", "b", "c"]})
    assert rows.read(path).layout.kind == "ranking"
    steps = {"prompt": "q", "completions": ["a"], "labels": [True]}
    read = rows.read(saved(tmp_path, {**steps, "completions": [], "labels": []}, steps), bad="skip")
    assert (read.layout.kind, len(read)) == ("stepwise", 1)


@pytest.mark.parametrize("name", ["expected_answer", "final_answer", "answers", "answerKey"])
def test_rows_of_several_kinds_need_no_answer_that_another_has(name, tmp_path):
    records = ({"question": "q", name: "4"}, {"question": "r", "tests": "assert f() == 4"})
    mixed = task(tmp_path, *records)
    assert [mixed.problem("train", 0, at).answer for at in range(2)] == ["4", None]
    assert mixed.gold is None and task(tmp_path, records[0]).gold is not None
    with pytest.raises(ValueError, match=f":2: no column '{name}'"):
        task(tmp_path, *records, answer_column=name)
    with pytest.raises(ValueError, match=":2: no column 'answer'"):
        task(tmp_path, {"question": "q", "answer": "4"}, records[1])


@pytest.mark.parametrize(
    "record",
    [
        {"context_messages": [U], "answer": "4"},
        {"context": [U], "answer": "4"},
        {"Question": "q", "Answer": "4"},
        {"Prompt": "q", "reward_model": {"ground_truth": "4"}},
    ],
)
def test_prompts_of_other_frameworks_are_found(record, tmp_path):
    problem = task(tmp_path, record, reward="exact").problem("train", 0, 0)
    assert (problem.prompt, problem.answer) == ("q", "4")


@pytest.mark.parametrize("column", ["context", "choices", "label"])
def test_a_run_is_told_what_of_known_meaning_the_prompt_lacks(column, tmp_path):
    notes = task(tmp_path, {"question": "q", "answer": "4", column: ["x"]}, reward="exact").notes
    assert any(n.startswith("WARNING") and repr(column) in n for n in notes)


@pytest.mark.parametrize("reward", sorted(named.COMPARED - {"verifier", "closeness"}))
def test_a_reward_that_compares_needs_an_answer_before_the_first_step(reward, tmp_path):
    with pytest.raises(ValueError, match=f"{reward!r} compares with; .* --answer-column NAME"):
        task(tmp_path, {"question": "q", "gold": "4"}, reward=reward)
    assert task(tmp_path, {"question": "q", "gold": "4"}, reward="think_format")


@pytest.mark.parametrize(
    ("record", "answer"),
    [
        ({"golden_answers": ["4", "four"]}, ["4", "four"]),
        ({"answers": {"text": ["4"], "answer_start": [0]}}, ["4"]),
        ({"answers": ["4"]}, ["4"]),
        ({"answerKey": "B"}, "B"),
        ({"Final_Answer": "4"}, "4"),
        ({"expected_answer": 4, "problem_id": 3}, 4),
        ({"answer": "4", "answers": ["5"]}, "4"),
    ],
)
def test_answers_of_public_data_are_found(record, answer, tmp_path):
    scored = task(tmp_path, {"question": "q", **record}, reward="contains")
    assert scored.problem("train", 0, 0).answer == answer
