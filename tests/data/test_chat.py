"""Chat templates against transformers' own rendering, and the sandbox."""

from __future__ import annotations

import datetime
import gc
import importlib.util
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jinja2
import pytest

from jaxrl.data.text import chat

CHATML = """{% for message in messages %}{% if loop.first and message['role'] != 'system' %}\
<|im_start|>system\nYou are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- if not ns.found and message.role == "user" %}
        {%- set ns.last = (messages|length - 1) - loop.index0 %}
        {%- set ns.found = true %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}{%- continue %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content is defined and loop.index0 > ns.last %}
        {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if tools is not none %}{{- tools | tojson(indent=4) }}{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

MARKED = """{% for m in messages %}<|{{ m.role }}|>
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}
{% else %}{{ m.content }}{{ eos_token }}
{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""

TEMPLATES = {"chatml": CHATML, "qwen3": QWEN3, "llama3": LLAMA3, "marked": MARKED}

TOOL = {
    "type": "function",
    "function": {
        "name": "wetter",
        "description": "Das Wetter <in> einer Straße & Stadt",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {"type": "function", "function": {"name": "wetter", "arguments": {"city": "Köln", "n": 1}}}
CONVERSATIONS = {
    "one": ([{"role": "user", "content": "Hi!"}], {}),
    "system": (
        [{"role": "system", "content": "Be <brief> & kind."}, {"role": "user", "content": "2+2?"}],
        {},
    ),
    "multi-turn": (
        [
            {"role": "user", "content": "  spaces  "},
            {"role": "assistant", "content": "one\n"},
            {"role": "user", "content": "日本語 🙂"},
            {"role": "assistant", "content": "two"},
        ],
        {},
    ),
    "tools": (
        [
            {"role": "user", "content": "Wetter?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": '{"t": 3}'},
        ],
        {"tools": [TOOL]},
    ),
    "thinking": (
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "\nwhy\n"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d", "thinking": "because"},
        ],
        {},
    ),
    "no thinking": ([{"role": "user", "content": "a"}], {"enable_thinking": False}),
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.exact("chat templates are rendered as by transformers")
@pytest.mark.parity
@pytest.mark.parametrize("template", TEMPLATES)
def test_rendering_equals_transformers(template):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    render = chat.compile_template(TEMPLATES[template], SPECIAL)
    for name, (messages, variables) in CONVERSATIONS.items():
        for ask in (False, True):
            variables = {"tools": None, **variables}
            (expected,), _ = utils.render_jinja_template(
                [messages],
                chat_template=TEMPLATES[template],
                add_generation_prompt=ask,
                **variables,
                **SPECIAL,
            )
            got = render(messages, add_generation_prompt=ask, **variables)
            assert got.text == expected, name


OF_PARTS = ("idefics3", "llava_next", "smolvlm")
"""Templates that take contents as parts alone."""


def _real_templates():
    """The templates of model families that TRL ships, by name; TRL is not imported."""
    spec = importlib.util.find_spec("trl")
    files = Path(spec.submodule_search_locations[0]).glob("chat_templates/*.jinja") if spec else ()
    return {file.stem: file for file in sorted(files) if not file.stem.endswith("_training")}


@pytest.mark.exact("templates of real families are rendered as by transformers, or refused alike")
@pytest.mark.parity
@pytest.mark.parametrize("name", _real_templates())
def test_templates_of_real_families_equal_transformers(name):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    text = _real_templates()[name].read_text("utf-8")
    render = chat.compile_template(text, SPECIAL)
    rendered = 0
    for case in ("one", "multi-turn", "tools", "no thinking"):
        messages, variables = CONVERSATIONS[case]
        if name in OF_PARTS:
            messages = [
                {**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages
            ]
        settings = {"tools": None, **variables, "add_generation_prompt": True}
        try:
            (expected,), _ = utils.render_jinja_template(
                [messages], chat_template=text, **settings, **SPECIAL
            )
        except jinja2.TemplateError:
            with pytest.raises((jinja2.TemplateError, ValueError)):
                render(messages, **settings)
            continue
        except TypeError:  # it takes arguments of calls as texts alone, and we give it texts
            continue
        rendered += 1
        assert render(messages, **settings).text == expected, case
    assert rendered


@pytest.mark.exact("marks of the assistant's turns equal those of transformers")
@pytest.mark.parity
def test_generation_marks_equal_transformers():
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    messages, _ = CONVERSATIONS["multi-turn"]
    (text,), (spans,) = utils.render_jinja_template(
        [messages], chat_template=MARKED, return_assistant_tokens_mask=True, **SPECIAL
    )
    got = chat.compile_template(MARKED, SPECIAL)(messages)
    assert got.text == text
    assert got.generated == tuple(spans)
    assert [text[a:b] for a, b in got.generated] == ["one\n</s>", "two</s>"]


def test_without_marks_nothing_is_claimed():
    assert chat.compile_template(CHATML, SPECIAL)(CONVERSATIONS["one"][0]).generated is None


def test_the_clock_is_given():
    render = chat.compile_template(LLAMA3, SPECIAL, now=lambda: datetime.datetime(2024, 2, 3))
    assert "Today: 03 Feb 2024<" in render(CONVERSATIONS["one"][0]).text


def test_a_template_may_refuse():
    render = chat.compile_template("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(jinja2.TemplateError, match="roles must alternate"):
        render([])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.os }}",
    ],
)
def test_the_sandbox_holds(template):
    with pytest.raises(jinja2.exceptions.SecurityError):
        chat.compile_template(template, {})([{"role": "user", "content": "x"}])


@pytest.mark.sample(3, broad=3)
@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10**11 }}",
        "{{ 'x'.ljust(10**11) }}",
        "{{ 'x' | center(10**11) }}",
        "{{ '%0999999999d' % 1 }}{{ '%0999999999d' % 1 }}",
        "{% set ns = namespace(x='xx') %}"
        "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 10 ** (10 ** 9) }}",
        "{{ 'x' * 20000000 }}",
    ],
)
def test_a_template_is_bounded_in_time_and_memory(template, monkeypatch):
    monkeypatch.setattr(chat, "RENDER_S", 1.0)
    render = chat.compile_template(template, {})
    start = time.monotonic()
    with pytest.raises(jinja2.TemplateError):
        render([])
    assert time.monotonic() - start < 60  # of which most is the start of a process


def test_a_template_process_that_ended_is_started_again(monkeypatch):
    monkeypatch.setattr(chat, "RENDER_S", 1.0)
    source = (
        "{% for n in range(messages[0].n) %}{% for m in range(messages[0].n) %}{% endfor %}"
        "{% endfor %}done"
    )
    render = chat.compile_template(source, {})
    assert render([{"n": 1}]).text == "done"
    with pytest.raises(jinja2.TemplateError, match="more than 1 s"):
        render([{"n": 99_999}])
    assert render([{"n": 2}]).text == "done"


def test_renderings_of_many_threads_do_not_mix():
    render = chat.compile_template("{{ messages[0].content }}", {})
    texts = [f"{i} é \ud800" * (1 + i * 500) for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda text: render([{"content": text}]).text, texts))
    assert got == texts


def test_a_template_sees_nothing_of_this_process(monkeypatch):
    monkeypatch.setenv("API_SECRET", "hunter2")
    render = chat.compile_template("x", {})
    assert render([]).text == "x"
    (process,) = [
        cell.cell_contents._popen
        for cell in render.__closure__
        if isinstance(cell.cell_contents, chat._Process)
    ]
    assert b"hunter2" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    del render
    gc.collect()
    assert process.poll() is not None


PICTURES = (
    "{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""As of SmolVLM: what is said comes in parts alone."""


def test_a_template_of_parts_is_given_parts():
    render = chat.compile_template(PICTURES, {})
    said = [
        {"role": "user", "content": "User"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": ""},
    ]
    text = render(said, add_generation_prompt=True).text
    assert text == "User: User<end>\nAssistant: 4<end>\nUser: <end>\nAssistant:"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content is string }}",  # writes nothing that is said
        "{{ messages[0].content }} {{ messages[0].content is string }}",
        "{{ messages[0].content is string }}{{ messages[0].n + messages[0].content }}",
    ],
)
def test_other_templates_are_given_texts(template):
    render = chat.compile_template(template, {})
    assert "True" in render([{"role": "user", "content": "a", "n": "b"}]).text


def test_what_is_no_conversation_is_named():
    with pytest.raises(jinja2.TemplateError, match="plain values"):
        chat.compile_template("x", {})([{"content": object()}])
    with pytest.raises(jinja2.TemplateError, match="TypeError"):
        chat.compile_template("{% for c in messages[0].tool_calls %}{% endfor %}", {})(
            [{"tool_calls": 7}]
        )
    with pytest.raises(jinja2.TemplateError):
        chat.compile_template("{% for %}", {})([])
