"""A web form to fill in, as a tree of elements: HTML is read, and actions change the tree."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import string
from typing import Any
from xml.etree import ElementTree

from jaxrl.data.environments import Environment, Message, Opening, Reply, unscored
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Task

TEXTS = {
    "name": ("Ada Park", "Ben Ito", "Cleo Ruiz", "Dan Weiss", "Eve Moreau", "Finn Olsen"),
    "city": ("Lima", "Oslo", "Kyoto", "Perth", "Quito", "Bern"),
    "email": ("a@x.org", "info@y.net", "me@z.com", "post@w.eu"),
    "phone": ("555 0101", "555 0144", "555 0178", "555 0199"),
}
CHOICES = {
    "plan": ("basic", "plus", "pro"),
    "color": ("red", "green", "blue"),
    "size": ("small", "medium", "large"),
}
CHECKS = ("newsletter", "terms", "gift wrap")

RULES = (
    "Fill in the form as asked, with one action in each turn: fill ID TEXT, select ID VALUE, "
    "check ID or click ID."
)
LEFT_OUT = "(an earlier page)"
"""Stands for a page that is no longer shown."""
_SHORT_LEFT_OUT = "."
_NAMES = {
    "name": "n", "city": "c", "email": "e", "phone": "p", "plan": "l", "color": "o", "size": "z",
    "newsletter": "w", "terms": "t", "gift wrap": "g", "send": "s", "clear": "r",
}  # fmt: skip
"""Of elements, in symbols."""
_SYMBOLS = f"{''.join(_NAMES.values())}{string.digits}{_SHORT_LEFT_OUT}\n"
_ACTION = re.compile(r"(fill|select|check|click)\s+#?([a-z0-9]+)(?:\s+(.*\S))?\s*", re.IGNORECASE)


@dataclasses.dataclass
class _Page:
    form: ElementTree.Element
    wanted: dict[str, Any]
    """By the name of a field."""
    left: int
    """Turns that are left."""
    prompt: str
    compress: bool
    symbols: bool = False
    acts: list[str] = dataclasses.field(default_factory=list)
    """The actions so far, as they were written."""
    read: int = 0
    """Characters of the conversation that the policy reads next."""

    def seen(self) -> str:
        """What the policy reads."""
        if self.symbols:
            return _in_symbols(self.form)
        return ElementTree.tostring(self.form, encoding="unicode")


def task(
    fields: int = 3,
    ood_fields: int | None = None,
    distractors: int = 1,
    turns: int = 0,
    compress: bool = False,
    symbols: bool = False,
) -> Task:
    """Forms whose fields, order, and ids differ from problem to problem.

    The reward, when the form is sent, is 1 if every field is as asked for and all others are as
    they were, else 0. The part `context` is the length of the conversation that the last action was
    written after, in characters.

    Args:
      fields: to fill in, in train and test, from 1 to 8.
      ood_fields: in the ood split; None means 2 more than `fields`.
      distractors: fields to leave alone, and a button that clears the form if there are any.
      turns: the most that an episode may have; 0: two for each field, and two more.
      compress: show the newest page alone; a few words stand for the earlier ones, and all actions
        stay (the dynamic context compression of WebAgent-R1).
      symbols: for a small model from nothing: `n2w1` asks for the second name and the newsletter; a
        page such as `w0n0s0` has the name of each element and the number of what it holds; and an
        action is a name with a number: `n2`, `w1`, `s0`.
    """
    ood_fields = fields + 2 if ood_fields is None else ood_fields
    most = len(TEXTS) + len(CHOICES) + len(CHECKS)
    if not 1 <= fields < ood_fields or distractors < 0 or ood_fields + distractors > most:
        raise ValueError(
            f"fields={fields}, ood_fields={ood_fields}, distractors={distractors}: need 1 <= "
            f"fields < ood_fields, and at most {most} fields in all"
        )
    if turns < 0:
        raise ValueError(f"turns={turns} must be 0 (chosen by the fields) or more")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        count = ood_fields if split == "ood" else fields

        def draw(stream: random.Random) -> dict[str, Any]:
            names = stream.sample([*TEXTS, *CHOICES, *CHECKS], count + distractors)
            targets = {name: _wanted(stream, name) for name in names[:count]}
            order = stream.sample(names, len(names))
            return {"wanted": targets, "order": order, "shift": stream.randrange(1, 90)}

        stream = generate.rng("html_form", split, seed, index)
        sample = generate.draw(
            draw, key=lambda d: str(sorted(d["wanted"].items())), stream=stream, split=split
        )
        parts = [
            f"check {name}" if value is True else f"{name}: {value}"
            for name, value in sample["wanted"].items()
        ]
        prompt = f"Fill in: {'; '.join(parts)}. Then send the form."
        if symbols:
            prompt = "".join(
                f"{_NAMES[name]}{_number(name, v)}" for name, v in sample["wanted"].items()
            )
        return generate.user_problem("html_form", str(sample), prompt, sample)

    def begin(problem: Problem, seed: int) -> tuple[_Page, Opening]:
        answer = problem.answer
        page = _Page(
            _form(answer["order"], answer["shift"], bool(distractors)),
            answer["wanted"],
            turns or 2 * len(answer["wanted"]) + 2,
            problem.prompt,
            compress,
            symbols,
        )
        return page, _opening(page, page.seen())

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        page, _ = begin(problem, seed)
        ids = {
            element.get("name"): element.get("id") for element in page.form if element.get("name")
        }
        acts = []
        for name, value in problem.answer["wanted"].items():
            if value is True:
                acts.append(f"check {ids[name]}")
            else:
                acts.append(f"{'select' if name in CHOICES else 'fill'} {ids[name]} {value}")
        acts.append(f"click {ids['send']}")
        return tuple(_to_symbols(page.form, act) if symbols else act for act in acts)

    task = Task(
        name="html_form",
        problem=problem,
        reward=unscored,
        alphabet=_SYMBOLS if symbols else generate.ASCII,
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold),
    )
    return task


def _wanted(stream: random.Random, name: str) -> Any:
    if name in CHECKS:
        return True
    return stream.choice(TEXTS[name] if name in TEXTS else CHOICES[name][1:])


def _form(order: list[str], shift: int, clears: bool) -> ElementTree.Element:
    """The form in its first state: texts are empty, first options selected, boxes not checked."""
    form = ElementTree.Element("form")
    buttons = ["send", "clear"] if clears else ["send"]
    for i, name in enumerate([*order, *buttons]):
        attributes = {"id": f"e{shift + i}", "name": name}
        if name in buttons:
            ElementTree.SubElement(form, "button", attributes).text = name
        elif name in CHOICES:
            select = ElementTree.SubElement(form, "select", attributes)
            for option in CHOICES[name]:
                ElementTree.SubElement(select, "option").text = option
        else:
            kind = {"type": "checkbox"} if name in CHECKS else {"type": "text", "value": ""}
            ElementTree.SubElement(form, "input", {**attributes, **kind})
    _clear(form)
    return form


def _clear(form: ElementTree.Element) -> None:
    for element in form:
        element.attrib.pop("checked", None)
        if element.get("type") == "text":
            element.set("value", "")
        for i, option in enumerate(element):
            option.attrib.pop("selected", None)
            if i == 0:
                option.set("selected", "selected")


def value(element: ElementTree.Element) -> Any:
    """What a field of the form holds."""
    if element.tag == "select":
        return next(option.text for option in element if option.get("selected"))
    return element.get("checked") is not None or element.get("value", False)


def step(page: _Page, action: str) -> Reply:
    """One action; one that is impossible is answered with the reason, and costs a turn."""
    page.left -= 1
    read = float(page.read)
    last = extract.spoken(action).strip().splitlines()[-1:]
    line = last[0].strip() if last else ""
    match = _ACTION.fullmatch(_to_words(page.form, line) if page.symbols else line)
    problem = "that is no action" if match is None else _act(page, *match.groups())
    if problem == "sent":
        values = {
            element.get("name"): value(element) for element in page.form if element.tag != "button"
        }
        right = [values[name] == target for name, target in page.wanted.items()]
        rest_unchanged = all(
            values[e.get("name")] in ("", False) if e.tag == "input" else e[0].get("selected")
            for e in page.form
            if e.tag != "button" and e.get("name") not in page.wanted
        )
        parts = {
            "fields": sum(right) / len(right),
            "others": float(rest_unchanged),
            "context": read,
        }
        return Reply(reward=float(all(right) and rest_unchanged), parts=parts, done=True)
    if page.left <= 0:
        parts = {"fields": 0.0, "others": 0.0, "context": read}
        return Reply(reward=0.0, parts=parts, done=True)
    page.acts.append(action)
    observation = (f"{problem}\n" if problem and not page.symbols else "") + page.seen()
    if page.compress:
        return Reply(opening=_opening(page, observation))
    page.read += len(action) + len(observation)
    return Reply(({"role": "user", "content": observation},))


def _opening(page: _Page, observation: str) -> Opening:
    """The conversation with its last page alone."""
    pages = [*[_SHORT_LEFT_OUT if page.symbols else LEFT_OUT] * len(page.acts), observation]
    pages[0] = f"{page.prompt}\n{pages[0]}"
    messages: list[Message] = [] if page.symbols else [{"role": "system", "content": RULES}]
    for content, action in itertools.zip_longest(pages, page.acts):
        messages.append({"role": "user", "content": content})
        if action is not None:
            messages.append({"role": "assistant", "content": action})
    page.read = sum(len(message["content"]) for message in messages)
    return Opening(tuple(messages))


def _act(page: _Page, verb: str, name: str, text: str | None) -> str:
    """Change the page; what was wrong, `sent`, or nothing."""
    element = next((child for child in page.form if child.get("id") == name.lower()), None)
    verb = verb.lower()
    if element is None:
        return f"there is no element {name}"
    if verb == "fill" and element.get("type") == "text" and text:
        element.set("value", text)
    elif verb == "select" and element.tag == "select":
        options = [option for option in element if option.text == text]
        if not options:
            return f"{name} has no option {text}"
        for option in element:
            option.attrib.pop("selected", None)
        options[0].set("selected", "selected")
    elif verb in ("check", "click") and element.get("type") == "checkbox":
        if element.attrib.pop("checked", None) is None:
            element.set("checked", "checked")
    elif verb == "click" and element.tag == "button":
        if element.get("name") == "send":
            return "sent"
        _clear(page.form)
    else:
        return f"{verb} does not go with {name}"
    return ""


def _in_symbols(form: ElementTree.Element) -> str:
    """A page, with a name and a number for each element."""
    return "".join(
        f"{_NAMES[element.get('name')]}"
        f"{0 if element.tag == 'button' else _number(element.get('name'), value(element))}"
        for element in form
    )


def _number(name: str, field_value: Any) -> int:
    """The symbol of what a field holds; of a text that is empty 0."""
    if name in CHECKS:
        return int(field_value)
    if name in CHOICES:
        return CHOICES[name].index(field_value)
    return 1 + TEXTS[name].index(field_value) if field_value else 0


def _to_words(form: ElementTree.Element, action: str) -> str:
    """An action in symbols as one in words; empty where it is none."""
    element = next((child for child in form if _NAMES[child.get("name")] == action[:1]), None)
    if element is None or len(action) != 2 or not action[1].isdigit():
        return ""
    name, identity, number = element.get("name"), element.get("id"), int(action[1])
    if name in TEXTS:
        options = TEXTS[name]
        return f"fill {identity} {options[number - 1]}" if 1 <= number <= len(options) else ""
    if name in CHOICES:
        options = CHOICES[name]
        return f"select {identity} {options[number]}" if number < len(options) else ""
    return f"click {identity}"


def _to_symbols(form: ElementTree.Element, action: str) -> str:
    """An action in words as one in symbols."""
    verb, identity, text = _ACTION.fullmatch(action).groups()
    name = next(element.get("name") for element in form if element.get("id") == identity)
    return f"{_NAMES[name]}{_number(name, text) if text else int(verb == 'check')}"
