"""A run whose files hold scripts and markup wherever a text or a name is: the page shows them."""

import json

import pytest

from jaxrl.launch import report
from tests.launch.test_report import HOSTILE, page, rollout, write_run  # noqa: F401

ATTACKS = (
    *(text for text in HOSTILE if len(text) < 100),
    "\"><script>window.hit = 'attribute'</script>",
    "' onmouseover='window.hit = 6' autofocus onfocus='window.hit = 7' x='",
    "</title><script>window.hit = 8</script>",
    "</style><style>body { display: none }</style>",
    "<iframe srcdoc='<script>parent.hit = 9</script>'></iframe><meta http-equiv=refresh content=0>",
    "<a href='javascript:window.hit=10'>x</a><base href=http://127.0.0.1:1/>",
    "__proto__", "constructor", "toString", "[object Object]", "${window.hit=11}", "\\u003cscript>",
    "url(http://127.0.0.1:1/x)", "<link rel=stylesheet href=http://127.0.0.1:1/>",
    "</svg><img src=x>", "$\\frac{x$", "$", "_hidden", "\\$\\undefined$ $a$",
    "<form action=http://127.0.0.1:1/><input name=getElementById></form>", "&lt;script&gt;&#x3c;",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=window.hit=12>",
)  # fmt: skip

FOREIGN = (
    "iframe", "object", "embed", "base", "link", "form", "img:not([src^=data])", "math", "mglyph",
    "meta[http-equiv=refresh]", "a[href^=javascript]",
)  # fmt: skip
"""Elements that the page never has."""


def attacked(folder, text):
    """A run in whose files the text is each name and each value that may be one."""
    rows = [rollout(step, text, text, 1.0, [text], error=None) for step in (1, 2)]
    for row in rows:
        row |= {"answer": text, "prompt": text, "parts": {text: 1.0}, "source": [text]}
        row |= {"turn": [1], "messages": [{"role": text, "content": text}]}
    rows.append(rollout(2, text, text, None, [text], error=text))
    run = write_run(folder, steps=4, rollouts=rows, evals=[dict(rows[0])], **{text: text})
    saved = json.loads((run / "config.json").read_text())
    saved["config"] |= {"recipe": text, "model": text, "task": text, text: {text: text}}
    saved |= {"command": ["jaxrl", text], "git": text, "versions": {text: text}, text: text}
    (run / "config.json").write_text(json.dumps(saved))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {text: 1.0, f"reward/{text}": 0.5, f"time/{text}": 0.1, f"eval/{text}": 0.5}
        line |= {"note": text, f"eval/{text}/low": 0.1, f"eval/{text}/high": 0.7}
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run


def opened(page, path):  # noqa: F811
    """What the page has that it must not, with all of it unfolded and each control used."""
    page.open(path)
    page.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    page.js("document.querySelectorAll('select').forEach((s) => { for (const o of s.options) {"
            " s.value = o.value; s.dispatchEvent(new Event('change')); } })")  # fmt: skip
    page.js("document.querySelectorAll('.row, #legend button').forEach((e) => e.click())")
    page.js("document.querySelectorAll('#main-charts svg').forEach((e) => "
            "e.dispatchEvent(new PointerEvent('pointermove', {bubbles: true})))")  # fmt: skip
    if page.js("window.hit !== undefined"):
        yield f"a script ran: {page.js('String(window.hit)')}"
    for selector in FOREIGN:
        if count := page.js(f"document.querySelectorAll({json.dumps(selector)}).length"):
            yield f"{count} of {selector}"
    if page.js("document.querySelectorAll('script').length") != 2:
        yield "a script of others"
    if page.js("getComputedStyle(document.body).display") == "none":
        yield "a style of others"
    handlers = ("[...document.querySelectorAll('*')].filter((e) => [...e.attributes]"
                ".some((a) => a.name.startsWith('on'))).length")  # fmt: skip
    if page.js(handlers):
        yield "a handler of others"
    yield from (f"error {each}" for each in page.errors)
    yield from (f"request {each}" for each in page.requests)


@pytest.mark.broad
@pytest.mark.browser
def test_scripts_in_every_text_of_a_run_do_nothing(page, tmp_path):  # noqa: F811
    faults = []
    for number, text in enumerate(ATTACKS):
        run = attacked(tmp_path / f"run{number}", text)
        made = report.write([run], tmp_path / f"{number}.html", png="$" in text)[0]
        faults += [f"{text[:60]!r}: {fault}" for fault in opened(page, made)]
    assert not faults, "\n".join(faults)


@pytest.mark.broad
@pytest.mark.browser
def test_scripts_in_names_of_runs_do_nothing(page, tmp_path):  # noqa: F811
    names = [text.replace("/", "\u2215") for text in ATTACKS if text.isprintable()]
    runs = [write_run(tmp_path / name, seed=i, steps=3) for i, name in enumerate(names)]
    made = report.write(runs, tmp_path / "all.html")[0]
    assert not list(opened(page, made))
