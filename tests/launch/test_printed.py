"""What comes from models and files is printed as text: no markup, no control character."""

import io
import itertools
import json
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from jaxrl.data.types import Problem, Score
from jaxrl.launch import cli, progress, streams
from jaxrl.launch.console import PlainConsole, as_text
from jaxrl.launch.inspect import evaluate, play, sample, watch
from jaxrl.launch.report import collect
from jaxrl.printable import printable, printable_values
from jaxrl.record import metrics
from jaxrl.record.trackers import Tracker
from jaxrl.rollout.programs import Row

FORBIDDEN = [
    chr(n)
    for n in range(0x110000)
    if unicodedata.category(chr(n)) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    and chr(n) not in "\n\t\u200c\u200d"
]
MARKUP = [
    "[/INST]", "[b]x[/i]", "[/x]", "[red]", "[link=http://evil]click[/link]",
    "[@click=app.bell]x[/]", "[bold", "[", "]", "[[b]]", "\\[b]", "[/]", "[not a tag]",
    ":smile:", "[#ff0000]", "[1, 2]",
]  # fmt: skip
SEQUENCES = [
    "\x1b]0;OWNED\x07",
    "\x1b[2J",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x9b2J",
    "\x1b]8;;http://e\x1b\\",
]
HOSTILE = st.lists(
    st.sampled_from(FORBIDDEN) | st.sampled_from([*MARKUP, *SEQUENCES]) | st.text(max_size=4),
    max_size=8,
).map("".join)


def forbidden(text: str) -> set[str]:
    return set(text) & set(FORBIDDEN)


@given(HOSTILE)
def test_printable_leaves_no_control_character_and_changes_nothing_else(text):
    for lines in (False, True):
        made = printable(text, lines=lines)
        assert not forbidden(made) and printable(made, lines=lines) == made
        assert lines or not set(made) & set("\n\t")
    plain = "".join(c for c in text if c not in FORBIDDEN)
    assert printable(plain, lines=True) == plain


def test_every_control_character_is_visible():
    for character in FORBIDDEN:
        made = printable(character)
        assert made.isprintable() and made == character.encode("unicode_escape").decode()


@pytest.mark.broad
@given(st.recursive(HOSTILE, lambda inner: st.dictionaries(HOSTILE, inner) | st.lists(inner)))
def test_nested_values_are_printable_with_their_names(value):
    found = printable_values(value)

    def texts(each):
        if isinstance(each, str):
            yield each
        for part in each if isinstance(each, list | dict) else ():
            yield from texts(part)
            if isinstance(each, dict):
                yield from texts(each[part])

    assert not forbidden("".join(texts(found)))


def consoles():
    """As the commands make it, and one of rich with markup, as an embedder may."""
    for kind in (PlainConsole, Console):
        yield kind(file=io.StringIO(), width=600, force_terminal=False)


def experience(text: str):
    return SimpleNamespace(
        problems=[Problem("p", text, text)],
        texts=[text],
        scores=[Score(1.0, parts={text: 0.5})],
    )


def row(text: str, **score) -> Row:
    return SimpleNamespace(score=Score(**score), messages=[{"role": text, "content": text}])


METRICS = {
    "time/step": 1.0, "reward/mean": 0.5, "loss": 0.1, "entropy": 1.0, "completion_length": 3.0,
    "logp_gap_max": 0.0, "tokens": 9.0,
}  # fmt: skip


def closed(console, text: str, directory: Path) -> None:
    """The closing table of a run whose prompts, answers and completions are the text."""
    (directory / "evals").mkdir(exist_ok=True)
    answered = {"prompt": text, "answer": text, "completion": text, "reward": 1.0}
    for step in (0, 2):
        (directory / "evals" / f"{step:06d}.jsonl").write_text(json.dumps(answered) + "\n")
    figures = {"pass@1": 0.5, "reward": 0.5, "completion_length": 2.0}
    summary = {
        "eval": {"before": figures, "after": figures},
        "seconds": 61, "steps": 2, "device": text, "lineage": [],
    }  # fmt: skip
    progress.close(console, directory, summary)


def trained(console, text: str, directory: Path) -> None:
    """All that a training run shows on its way."""
    with progress.on_console(console, lambda: None, every=1) as shown:
        shown.note(text)
        shown.stage(text, 1, 1)
        shown.step(1, METRICS)
        shown.scored(Problem("p", text, text), text, Score(None, error=text))
        shown.sampled(0, experience(text))
        shown.sampled(1, experience(text))


def watched(console, text: str, directory: Path) -> None:
    rows = [{"step": 1, **METRICS}, {"step": 2, **METRICS, f"time/{text}": 0.9, text: text}]
    config = {"steps": 10, "recipe": text, "seed": text}
    console.print(watch.view(Path(text.replace("\0", "")), config, rows, False))


PRINTED = {
    "sample": lambda console, text, _: sample.show([text, text], console),
    "play": lambda console, text, _: play.show(
        [row(text, value=1.0), row(text, value=None, error=text)], console
    ),
    "eval": lambda console, text, _: console.print(evaluate.table({text: 0.5})),
    "watch": watched,
    "train": trained,
    "train, at its end": closed,
    "a line": lambda console, text, _: console.print(as_text(text)),
}  # fmt: skip


@pytest.mark.parametrize("command", PRINTED)
@settings(max_examples=20)
@given(text=HOSTILE)
@example(text="\x1b]0;OWNED\x07\x1b[2J\x1b]52;c;ZXZpbA==\x07")
@example(text="[INST] hi [/INST] [/b] [link=http://evil]click[/link] :smile:")
def test_a_command_prints_hostile_text_as_text(command, text, tmp_path_factory):
    directory = tmp_path_factory.getbasetemp() / "printed"
    directory.mkdir(exist_ok=True)
    for console in consoles():
        PRINTED[command](console, text, directory)
        assert not forbidden(console.file.getvalue())


@pytest.mark.parametrize("command", PRINTED)
@pytest.mark.parametrize("text", MARKUP)
def test_markup_is_shown_as_it_is_written(command, text, tmp_path, capsys):
    for console in consoles():
        PRINTED[command](console, text, tmp_path)
        assert text in console.file.getvalue()
    assert "failed" not in capsys.readouterr().err


@given(HOSTILE)
def test_a_console_of_the_commands_prints_plain_strings_as_text(text):
    """Also where a caller has forgotten `as_text`: cells, titles, rules, lines."""
    console = PlainConsole(file=io.StringIO(), width=4000)
    table = progress.Table(text, title=text)
    table.add_row(text)
    for each in (table, text, progress.Text(text)):
        console.print(each)
    console.rule(text)
    assert not forbidden(console.file.getvalue())


@given(HOSTILE)
def test_refusals_and_tracebacks_are_printable(text):
    import contextlib

    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert cli.refused(ValueError(text)) == 2
        streams.show_traceback(ValueError, ValueError(text), None)
        streams.show_warning(text)
        assert play._asked(text, ()) == ""
    assert not forbidden(said.getvalue())


@pytest.mark.broad
def test_a_person_who_plays_reads_text(capsys):
    config = sample.SampleConfig(env="tests.launch.test_printed:hostile_world", human=True)
    assert play.by_hand(config, ask=lambda _: "x") == 1.0
    out = capsys.readouterr().out
    assert not forbidden(out) and "[/INST]" in out and "\\x1b" in out


def hostile_world():
    from jaxrl.data.environments import Environment, Opening, Reply
    from jaxrl.data.sources import generate
    from jaxrl.data.types import Task

    text = "".join(SEQUENCES) + "[/INST]"
    opening = Opening(({"role": "user", "content": text},))
    return Task(
        "hostile",
        lambda split, seed, index: generate.user_problem("hostile", str(index), text, None),
        lambda problem, completion: Score(1.0),
        turns=Environment(
            lambda problem, seed: (None, opening),
            lambda state, action: Reply(reward=1.0, done=True),
        ),
    )


@given(HOSTILE)
def test_a_report_and_trackers_have_printable_text(text):
    embedded = json.loads(collect.embed_text({text: [text, {"a": text}]}))
    assert not forbidden(json.dumps(embedded, ensure_ascii=False))


def test_tables_of_trackers_are_printable(tmp_path):
    seen = []
    tracker = Tracker(lambda *_: None, lambda step, rows: seen.extend(rows), lambda: None)
    log = metrics.MetricsLog(tmp_path, 0, print, {"own": lambda directory: tracker})
    log.table(1, [{"completion": text, "reward": 0.5} for text in SEQUENCES])
    log.close()
    assert len(seen) == len(SEQUENCES) and not forbidden(
        "".join(each["completion"] for each in seen)
    )


ODD = ["x", float("nan"), float("inf"), -float("inf"), None, [], {}, True, 10**400, 1e308, -1e308]


@pytest.mark.sample(1, broad=1)
@pytest.mark.parametrize("name", ["step", "time/step", "reward/mean", "tokens", "time/train"])
def test_watch_shows_odd_rows(name):
    good = {"step": 1, **METRICS}
    for value, steps in itertools.product(ODD, [10, *ODD]):
        rows = [good, {**good, name: value}, {name: value}, {**good, "step": 3}]
        config = {"steps": steps, "recipe": value, "seed": value}
        console = Console(file=io.StringIO(), width=200)
        for count in range(len(rows) + 1):
            console.print(watch.view(Path("runs/a"), config, rows[:count], False))
        assert "step 3 of" in console.file.getvalue()


def test_watch_reads_past_lines_that_are_no_rows(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"config": {"steps": 3}}))
    lines = [b'{"step": 1}', b"garbage", b"\0\0", b"\xff\xfe", b"[1]", b"", b'{"step": 2}', b""]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    console = Console(file=io.StringIO(), width=200)
    watch.watch(tmp_path, console, once=True)
    assert "step 2 of 3" in console.file.getvalue()


def test_a_damaged_config_is_refused_in_a_line(tmp_path, capsys):
    for content in (b"{", b"\0\0", b"\xff", b"[]", b'{"config": 3}'):
        (tmp_path / "config.json").write_bytes(content)
        assert cli.main(["watch", str(tmp_path), "--once"]) == 2
        said = capsys.readouterr().err
        assert str(tmp_path / "config.json") in said and said.count("\n") == 1
