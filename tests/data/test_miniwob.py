"""`html_form` against pages of MiniWoB (Shi et al. 2017) in a browser: same forms, same rewards."""

import importlib.util
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from jaxrl.data.environments.work import html_form
from tests.launch import browser

pytestmark = pytest.mark.browser

READ = """[...document.querySelectorAll('#area input, #area select, #area button')].map((e, i) => {
  e.dataset.name = 'e' + i;
  const label = e.closest('label') || e.previousElementSibling;
  return {
    tag: e.tagName.toLowerCase(), type: e.type, value: e.value, checked: e.checked,
    label: (label && label.textContent || '').trim(), text: e.textContent,
    options: [...(e.options || [])].map(o => [o.text, o.selected])};
})"""


@pytest.fixture(scope="module")
def page():
    if browser.CHROMIUM is None:
        pytest.skip("no Chromium here; on Debian: apt-get install chromium")
    with browser.chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages():
    found = importlib.util.find_spec("miniwob")
    if found is None:
        pytest.skip("the package `miniwob` has the pages: pip install miniwob")
    return Path(found.submodule_search_locations[0]) / "html" / "miniwob"


def tree(page):
    """The page's form as `html_form` has it, and the labels of its fields by id."""
    form, labels = ElementTree.Element("form"), {}
    for i, each in enumerate(page.js(READ)):
        own, name = {"id": f"e{i}", "name": f"e{i}"}, each["label"]
        if each["tag"] == "button":
            ElementTree.SubElement(form, "button", own | {"name": "send"}).text = each["text"]
            continue
        labels[f"e{i}"] = name
        if each["tag"] == "select":
            select = ElementTree.SubElement(form, "select", own)
            for text, selected in each["options"]:
                chosen = {"selected": "selected"} if selected else {}
                ElementTree.SubElement(select, "option", chosen).text = text
        elif each["type"] == "checkbox":
            checked = {"checked": "checked"} if each["checked"] else {}
            ElementTree.SubElement(form, "input", own | {"type": "checkbox"} | checked)
        else:
            ElementTree.SubElement(form, "input", own | {"type": "text", "value": each["value"]})
    return form, labels


def asked(query, form, labels):
    """What each field should hold, by what the page asks for."""
    quoted = re.findall(r'"([^"]*)"', query)
    texts = [each.get("id") for each in form if each.get("type") == "text"]
    boxes = [each.get("id") for each in form if each.get("type") == "checkbox"]
    if texts:
        return dict(zip(texts, quoted if len(quoted) == len(texts) else quoted * 2, strict=True))
    if boxes:
        names = re.fullmatch(r"Select (.*) and click Submit\.", query)[1].split(", ")
        return {box: True for box in boxes if labels[box] in names}
    (select,) = (each for each in form if each.tag == "select")
    return {select.get("id"): re.fullmatch(r"Select (.*) from the list .*", query)[1]}


def done(page, action):
    """An action of `html_form`, done with mouse and keyboard."""
    verb, name, *text = action.split(" ", 2)
    where = f"[data-name={name}]"
    if verb == "fill":
        page.type(where, text[0])
    elif verb == "select":
        page.select(where, text[0])
    else:
        page.click(where)


@pytest.mark.parametrize("left_out", [0, 1], ids=["right", "wrong"])
@pytest.mark.parametrize(
    "name", ["enter-text", "enter-password", "login-user", "click-checkboxes", "choose-list"]
)
def test_forms_and_rewards_are_those_of_the_page(name, left_out, page, pages):
    """After every action the tree is the browser's, and at the end both give the same verdict."""
    rewards = set()
    for seed in range(5):
        page.open(pages / f"{name}.html", width=400, height=400)
        page.js(f"core.EPISODE_MAX_TIME = 6e5; Math.seedrandom({json.dumps(str(seed))}); 0")
        page.js("core.startEpisodeReal(); 0")
        query = page.js("document.querySelector('#query').textContent").strip()
        form, labels = tree(page)
        wanted = asked(query, form, labels)
        if not wanted:  # nothing is to be done
            continue
        acts = [
            f"check {i}" if value is True else f"{'select' if s else 'fill'} {i} {value}"
            for i, value in wanted.items()
            for s in [form.find(f"select[@id='{i}']") is not None]
        ][left_out:]
        ours = html_form._Page(form, wanted, len(acts) + 2, query, False)
        for action in acts:
            done(page, action)
            assert not html_form.step(ours, action).done
            assert ours.seen() == ElementTree.tostring(tree(page)[0], encoding="unicode"), action
        send = f"click {form.find('button').get('id')}"
        done(page, send)
        page.until("WOB_DONE_GLOBAL")
        reply, theirs = html_form.step(ours, send), page.js("WOB_RAW_REWARD_GLOBAL")
        assert reply.done and (reply.reward == 1) == (theirs == 1), (query, acts, theirs)
        rewards.add(reply.reward)
    assert (0.0 if left_out else 1.0) in rewards and (left_out or len(rewards) == 1)
