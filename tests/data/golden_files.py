"""Small files in the public layouts, each with what it means in OpenAI's form.

A case is a record, and a function from `Theirs` of `test_golden_layouts` to the tokens and masks of
its answers.
"""

import json

S = {"role": "system", "content": "Be brief."}
U, A = {"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "5"}
U2, A2 = {"role": "user", "content": "And 4 + 5?"}, {"role": "assistant", "content": "It is 9."}
BAD = {"role": "assistant", "content": "6"}
HUMAN, GPT = {"from": "human", "value": U["content"]}, {"from": "gpt", "value": "5"}
WEATHER = {
    "name": "weather",
    "description": "Weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]


def call(*cities):
    calls = [{"name": "weather", "arguments": {"city": city}} for city in cities]
    calls = [{"type": "function", "function": each} for each in calls]
    return {"role": "assistant", "content": "", "tool_calls": calls}


ASK = {"role": "user", "content": "Is it warm in Oslo?"}
RESULT = {"role": "tool", "content": '{"degrees": 21}'}
WARM = {"role": "assistant", "content": "Yes, 21 degrees."}
AGENT = [ASK, call("Oslo"), RESULT, WARM]
CALLED = {"name": "weather", "arguments": {"city": "Oslo"}}
CALLED_INPUT = {"name": "weather", "input": CALLED["arguments"]}
TEXT = json.dumps(CALLED)
SHAREGPT_AGENT = [
    {"from": "human", "value": ASK["content"]},
    {"from": "function_call", "value": TEXT},
    {"from": "observation", "value": RESULT["content"]},
    {"from": "gpt", "value": WARM["content"]},
]
OPENAI_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
        }
    ],
}
INSTRUCTION = {"instruction": U["content"], "input": "", "output": "5"}
HH = "\n\nHuman: Name a fruit.\n\nAssistant: Which kind?\n\nHuman: A red one.\n\nAssistant:"
TURNS = [S, U, A, U2, A2]
THOUGHT = {"role": "assistant", "content": "5", "reasoning_content": "2 + 3"}

PLAIN_FILES = {
    "alpaca": (INSTRUCTION, lambda t: [t.talk([U, A])]),
    "alpaca with input": (
        {"instruction": "Add.", "input": "2 + 3", "output": "5"},
        lambda t: [t.talk([{"role": "user", "content": "Add.\n\n2 + 3"}, A])],
    ),
    "alpaca with system and history": (
        INSTRUCTION
        | {
            "instruction": U2["content"],
            "output": A2["content"],
            "system": S["content"],
            "history": [[U["content"], "5"]],
        },
        lambda t: [t.talk(TURNS, start=4)],
    ),
    "alpaca preferences of LLaMA-Factory": (
        {"instruction": U["content"], "input": "", "chosen": "5", "rejected": "6"},
        lambda t: [t.talk([U, A]), t.talk([U, BAD])],
    ),
    "dolly": (
        {"instruction": "Add.", "context": "2 + 3", "response": "5", "category": "closed_qa"},
        lambda t: [t.talk([{"role": "user", "content": "Add.\n\n2 + 3"}, A])],
    ),
    "question and answer": ({"question": U["content"], "answer": "5"}, lambda t: [t.talk([U, A])]),
    "ShareGPT": (
        {
            "id": "x",
            "conversations": [
                HUMAN,
                GPT,
                {**HUMAN, "value": U2["content"]},
                {**GPT, "value": "It is 9."},
            ],
        },
        lambda t: [t.talk([U, A, U2, A2])],
    ),
    "ShareGPT with system column": (
        {"system": S["content"], "conversations": [HUMAN, GPT]},
        lambda t: [t.talk([S, U, A])],
    ),
    "ShareGPT with a system turn and weights, as axolotl has them": (
        {
            "conversations": [
                {"from": "system", "value": S["content"]},
                HUMAN,
                {**GPT, "weight": 0},
                {**HUMAN, "value": U2["content"]},
                {**GPT, "value": "It is 9.", "weight": 1},
            ]
        },
        lambda t: [t.talk(TURNS, unlearned=[2])],
    ),
    "ShareGPT with turns not trained": (
        {
            "conversations": [
                HUMAN,
                {**GPT, "train": False},
                {**HUMAN, "value": U2["content"]},
                {**GPT, "value": "It is 9."},
            ]
        },
        lambda t: [t.talk([U, A, U2, A2], unlearned=[1])],
    ),
    "OpenAI messages": ({"messages": TURNS}, lambda t: [t.talk(TURNS)]),
    "OpenAI messages in parts": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is "},
                        {"type": "text", "text": "2 + 3?"},
                    ],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "5"}]},
            ]
        },
        lambda t: [t.talk([U, A])],
    ),
    "OpenAI messages with names and nulls": (
        {
            "messages": [
                {**U, "name": "ann", "tool_calls": None},
                {**A, "refusal": None, "audio": None},
            ]
        },
        lambda t: [t.talk([U, A])],
    ),
    "OpenAI developer": (
        {"messages": [{**S, "role": "developer"}, U, A]},
        lambda t: [t.talk([S, U, A])],
    ),
    "OpenAI weights": (
        {"messages": [S, U, {**A, "weight": 0}, U2, {**A2, "weight": 1}]},
        lambda t: [t.talk(TURNS, unlearned=[2])],
    ),
    "OpenAI preferences": (
        {
            "input": {"messages": [S, U], "tools": [], "parallel_tool_calls": True},
            "preferred_output": [A],
            "non_preferred_output": [BAD],
        },
        lambda t: [t.talk([S, U, A]), t.talk([S, U, BAD])],
    ),
    "a list of messages as JSON": ({"messages": json.dumps([U, A])}, lambda t: [t.talk([U, A])]),
    "TRL messages": ({"messages": [U, A, U2, A2]}, lambda t: [t.talk([U, A, U2, A2])]),
    "TRL prompt and completion": (
        {"prompt": [S, U], "completion": [A]},
        lambda t: [t.trl({"prompt": [S, U], "completion": [A]}, "completion")],
    ),
    "TRL preference": (
        {"prompt": [U], "chosen": [A], "rejected": [BAD]},
        lambda t: [
            t.trl({"prompt": [U], "chosen": [A], "rejected": [BAD]}, w)
            for w in ("chosen", "rejected")
        ],
    ),
    "TRL preference with an implicit prompt": (
        {"chosen": [U, A, U2, A2], "rejected": [U, A, U2, BAD]},
        lambda t: [
            t.trl({"chosen": [U, A, U2, A2], "rejected": [U, A, U2, BAD]}, w)
            for w in ("chosen", "rejected")
        ],
    ),
    "TRL unpaired": (
        {"prompt": [U], "completion": [A], "label": True},
        lambda t: [t.trl({"prompt": [U], "completion": [A]}, "completion")],
    ),
    "KTO of LLaMA-Factory": (
        {"messages": [U, BAD], "kto_tag": False},
        lambda t: [t.talk([U, BAD])],
    ),
    "pairs of LLaMA-Factory": (
        {"conversations": [HUMAN], "chosen": GPT, "rejected": {**GPT, "value": "6"}},
        lambda t: [t.talk([U, A]), t.talk([U, BAD])],
    ),
    "UltraFeedback, binarized": (
        {
            "prompt": U["content"],
            "prompt_id": "x",
            "chosen": [U, A],
            "rejected": [U, BAD],
            "messages": [U, A],
            "score_chosen": 9.0,
            "score_rejected": 2.0,
        },
        lambda t: [t.talk([U, A]), t.talk([U, BAD])],
    ),
    "NeMo RL": (
        {
            "context": [U],
            "completions": [
                {"rank": 1, "completion": [BAD]},
                {"rank": 0, "completion": [A]},
            ],
            "task_name": "sums",
        },
        lambda t: [
            t.trl({"prompt": [U], "chosen": [A], "rejected": [BAD]}, w)
            for w in ("chosen", "rejected")
        ],
    ),
    "HelpSteer3": (
        {
            "domain": "stem",
            "context": [S, U],
            "response1": "6",
            "response2": "5",
            "overall_preference": 3,
        },
        lambda t: [t.talk([S, U, A]), t.talk([S, U, BAD])],
    ),
    "ms-swift, in pairs of turns": (
        {
            "system": S["content"],
            "conversation": [
                {"human": U["content"], "assistant": "5"},
                {"human": U2["content"], "assistant": "It is 9."},
            ],
        },
        lambda t: [t.talk(TURNS)],
    ),
    "preferences of ms-swift": (
        {"messages": [S, U, A], "rejected_response": "6"},
        lambda t: [t.talk([S, U, A]), t.talk([S, U, BAD])],
    ),
    "preferences of Argilla": (
        {
            "system": S["content"],
            "instruction": U["content"],
            "chosen_response": "5",
            "rejected_response": "6",
        },
        lambda t: [t.talk([S, U, A]), t.talk([S, U, BAD])],
    ),
    "preferences of torchtune": (
        {"chosen_conversations": [U, A], "rejected_conversations": [U, BAD]},
        lambda t: [
            t.trl({"chosen": [U, A], "rejected": [U, BAD]}, w) for w in ("chosen", "rejected")
        ],
    ),
    "verl": (
        {
            "data_source": "openai/gsm8k",
            "prompt": [U],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "5"},
            "extra_info": {"split": "train", "index": 0, "answer": "2 + 3 = 5 #### 5"},
        },
        lambda t: [t.asked([U])],
    ),
}
TOOL_FILES = {
    "ShareGPT with calls": (
        {"conversations": SHAREGPT_AGENT, "tools": json.dumps([WEATHER])},
        lambda t: [t.talk(AGENT, TOOLS)],
    ),
    "ShareGPT with two calls at once": (
        {
            "conversations": [
                SHAREGPT_AGENT[0],
                {
                    "from": "function_call",
                    "value": json.dumps([CALLED, {**CALLED, "arguments": {"city": "Rome"}}]),
                },
                *SHAREGPT_AGENT[2:],
            ],
            "tools": json.dumps([WEATHER]),
        },
        lambda t: [t.talk([ASK, call("Oslo", "Rome"), RESULT, WARM], TOOLS)],
    ),
    "OpenAI calls": (
        {
            "messages": [ASK, OPENAI_CALL, {**RESULT, "tool_call_id": "call_1"}, WARM],
            "tools": TOOLS,
        },
        lambda t: [t.talk(AGENT, TOOLS)],
    ),
    "OpenAI's first calls": (
        {
            "messages": [
                ASK,
                {
                    "role": "assistant",
                    "content": None,
                    "function_call": {"name": "weather", "arguments": '{"city": "Oslo"}'},
                },
                {"role": "function", "name": "weather", "content": RESULT["content"]},
                WARM,
            ],
            "functions": [WEATHER],
        },
        lambda t: [t.talk(AGENT, TOOLS)],
    ),
    "ms-swift calls": (
        {
            "messages": [
                ASK,
                {"role": "tool_call", "content": TEXT},
                {"role": "tool_response", "content": RESULT["content"]},
                WARM,
            ],
            "tools": json.dumps(TOOLS),
        },
        lambda t: [t.talk(AGENT, TOOLS)],
    ),
    "ms-swift calls one after another": (
        {
            "messages": [
                ASK,
                {"role": "tool_call", "content": TEXT},
                {
                    "role": "tool_call",
                    "content": json.dumps({**CALLED, "arguments": {"city": "Rome"}}),
                },
                {"role": "tool_response", "content": RESULT["content"]},
                {"role": "tool_response", "content": RESULT["content"]},
                WARM,
            ],
            "tools": json.dumps(TOOLS),
        },
        lambda t: [t.talk([ASK, call("Oslo", "Rome"), RESULT, RESULT, WARM], TOOLS)],
    ),
    "Anthropic calls": (
        {
            "messages": [
                ASK,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "I will look."},
                        {"type": "tool_use", "id": "t1", **CALLED_INPUT},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "content": [{"type": "text", "text": RESULT["content"]}],
                        }
                    ],
                },
                WARM,
            ],
            "tools": TOOLS,
        },
        lambda t: [t.talk([ASK, {**call("Oslo"), "content": "I will look."}, RESULT, WARM], TOOLS)],
    ),
    "NeMo RL with tools": (
        {
            "messages": [
                S,
                ASK,
                {**OPENAI_CALL, "content": "I will look."},
                {**RESULT, "tool_call_id": "call_1"},
                WARM,
            ],
            "tools": [{"type": "function", **WEATHER}],
        },
        lambda t: [
            t.talk([S, ASK, {**call("Oslo"), "content": "I will look."}, RESULT, WARM], TOOLS)
        ],
    ),
    "TRL tools, without contents": (
        {
            "messages": [
                ASK,
                {k: v for k, v in call("Oslo").items() if k != "content"},
                RESULT,
                WARM,
            ],
            "tools": TOOLS,
        },
        lambda t: [t.talk(AGENT, TOOLS)],
    ),
    "TRL tools": (
        {"messages": AGENT, "tools": TOOLS, "chat_template_kwargs": {}},
        lambda t: [t.talk(AGENT, TOOLS)],
    ),
    "TRL tools with a prompt": (
        {"prompt": [ASK], "completion": [call("Oslo")], "tools": json.dumps(TOOLS)},
        lambda t: [
            t.trl({"prompt": [ASK], "completion": [call("Oslo")], "tools": TOOLS}, "completion")
        ],
    ),
    "verl with tools": (
        {
            "prompt": [S, ASK],
            "tools": TOOLS,
            "reward_model": {"ground_truth": "5"},
            "data_source": "x",
        },
        lambda t: [t.asked([S, ASK], TOOLS)],
    ),
}
TEXT_FILES = {
    "TRL text": ({"text": "All of it."}, lambda t: [t.plain("", "All of it.")]),
    "TRL prompt and completion": (
        {"prompt": "The sky is", "completion": " blue."},
        lambda t: [t.plain("The sky is", " blue.")],
    ),
    "TRL preference": (
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        lambda t: [t.plain("The sky is", each) for each in (" blue.", " green.")],
    ),
    "TRL preference with an implicit prompt": (
        {"chosen": "The sky is blue.", "rejected": "The sky is green."},
        lambda t: [t.plain("The sky is", each) for each in (" blue.", " green.")],
    ),
    "TRL unpaired": (
        {"prompt": "The sky is", "completion": " blue.", "label": True},
        lambda t: [t.plain("The sky is", " blue.")],
    ),
    "HH": (
        {"chosen": f"{HH} A cherry.", "rejected": f"{HH} A banana."},
        lambda t: [t.plain(HH, each) for each in (" A cherry.", " A banana.")],
    ),
    "Nectar": (
        {
            "prompt": "\n\nHuman: Hi\n\nAssistant: ",
            "answers": [
                {"answer": "Bye", "model": "b", "rank": 2.0},
                {"answer": "Hi!", "model": "a", "rank": 1.0},
            ],
            "turns": 1,
            "num_responses": 2,
            "source": ["x"],
            "good_natured": True,
        },
        lambda t: [t.plain("\n\nHuman: Hi\n\nAssistant: ", each) for each in ("Hi!", "Bye")],
    ),
    "a ranking": (
        {"prompt": "Hi", "ranking": ["a", "b", "c"]},
        lambda t: [t.plain("Hi", each) for each in "abc"],
    ),
}
