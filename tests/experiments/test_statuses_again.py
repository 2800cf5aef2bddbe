"""Every status and every number of the answer once more, from the stored figures.

Written from the words of PROTOCOL.md with NumPy and SciPy alone: nothing here uses the code that
reads rows, corrects them or tests differences. The listing of rows says which there are, and in
which direction their statistic is better.
"""

import collections
import json
import lzma
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments.effects import claims_page, table
from jaxrl.launch import recipes

RESULTS = Path(table.__file__).parents[1] / "results"
ANSWER = Path(table.__file__).parents[2] / "docs" / "effects.md"
LINES = lzma.decompress((RESULTS / "arms.jsonl.xz").read_bytes()).decode().splitlines()
ARMS = {line[9 : line.index('"', 9)]: line for line in LINES}
PLANS = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.plan.json"))]


@pytest.fixture(scope="module")
def listing():
    return table.rows()


@pytest.fixture(scope="module")
def again(listing):
    """Each measured row with `s`, its status by this module."""
    rows = [dict(row) for row in listing if row["measured"]]
    for row in rows:
        row |= compared(row)
    primary = [row for row in rows if is_primary(row, rows)]
    decide(primary)
    effects = {row["id"] for row in primary if row["s"] == "effect"}
    behind = [row for row in rows if is_fair(row) and row["id"] in effects]
    decide(behind)
    settled = {id(row) for row in primary + behind}
    for row in rows:
        if id(row) not in settled:
            decide([row])
    return rows


def is_primary(row, rows):
    """The whole method against its ablation in its regime."""
    if row["task"] != "regime" or row["against"] != "ablation" or row["further"]:
        return False
    parts = {
        other["other"] for other in rows
        if other["id"] == row["id"] and other["task"] == "regime" and other["against"] == "ablation"
    }  # fmt: skip
    return row["other"] == "all" or "all" not in parts


def is_fair(row):
    """In the regime, against the best baseline that takes no more samples."""
    return row["task"] == "regime" and row["against"] == "baseline" and row["best"]


def figures(keys):
    return [json.loads(ARMS[key]) for key in keys]


def compared(row):
    """Interval, p values and views at equal budgets of a row."""
    mine, other = (figures(keys) for keys in row["arms"])
    read = [
        np.concatenate([p[row["over"]][row["statistic"]] for p in arm]) for arm in (mine, other)
    ]
    assert [s for p in mine for s in p["seeds"]] == [s for p in other for s in p["seeds"]]
    out = inferred(read[0] - read[1], row["minimum"])
    out |= {"x": read[0], "y": read[1], "views": {}, "guarded": None}
    if not re.match(r"pass@1|score|pass@8|derived", row["statistic"]):
        pair = [[p[row["over"]].get("pass@1") for p in arm] for arm in (mine, other)]
        if all(part is not None for arm in pair for part in arm):
            out["guarded"] = inferred(np.concatenate(pair[0]) - np.concatenate(pair[1]), 0.03)
    for budget in ("updates", "tokens"):
        spent = [
            np.mean(np.concatenate([p["final"][budget] for p in arm])) for arm in (mine, other)
        ]
        if abs(round(spent[0] / spent[1], 4) - 1) > 0.1:
            out["views"][budget] = at_equal(budget, row, mine, other)
    return out


def inferred(d, minimum):
    """t interval, the larger p value of t test and flips, and two one-sided tests."""
    size, mean, error = len(d), np.mean(d), np.std(d, ddof=1) / np.sqrt(len(d))
    if error == 0:
        zero = {"mean": mean, "low": mean, "high": mean}
        return zero | {"p": float(mean == 0) or flips(d), "same": float(abs(mean) >= minimum)}
    low, high = stats.t.interval(0.95, size - 1, mean, error)
    one_sided = max(
        stats.ttest_1samp(d, -minimum, alternative="greater").pvalue,
        stats.ttest_1samp(d, minimum, alternative="less").pvalue,
    )
    p = max(stats.ttest_1samp(d, 0).pvalue, flips(d))
    return {"mean": mean, "low": low, "high": high, "p": p, "same": one_sided}


def flips(d):
    size, seen = len(d), abs(np.mean(d))
    if size <= 14:
        signs = np.array(np.meshgrid(*[[1, -1]] * size)).reshape(size, -1).T
        return float((np.abs(signs @ d) / size >= seen - 1e-12).mean())
    signs = np.random.default_rng(0).integers(0, 2, (10_000, size)) * 2.0 - 1.0
    return float(((np.abs(signs @ d) / size >= seen - 1e-12).sum() + 1) / 10_001)


def at_equal(budget, row, mine, other):
    """Each seed read off its own curve at the budget of the arm that took less."""
    curves = []
    for arm in (mine, other):
        if any(row["statistic"] not in p.get("curves", {}) for p in arm):
            return None
        spent = np.concatenate([np.array(p["curves"][budget], float) for p in arm], axis=1)
        own = [[p["before"][row["statistic"]], *p["curves"][row["statistic"]]] for p in arm]
        curves.append((np.vstack([0 * spent[0], spent]), np.concatenate(own, axis=1)))
    marks, seeds = curves[0][1].shape
    read = np.zeros((2, seeds))
    for seed in range(seeds):
        least = min(spent[-1, seed] for spent, _ in curves)
        places = least * np.arange(1, marks) / (marks - 1) if row["over"] == "area" else [least]
        for k, (spent, own) in enumerate(curves):
            read[k, seed] = np.mean(np.interp(places, spent[:, seed], own[:, seed]))
    return inferred(read[0] - read[1], row["minimum"])


def decide(rows):
    """Statuses of rows that are corrected together; those of the same figures are one test."""
    tests = collections.OrderedDict()
    for row in rows:
        key = row["statistic"], row["minimum"], row["x"].tobytes(), row["y"].tobytes()
        tests.setdefault(key, []).append(row)
    heads = [own[0] for own in tests.values()]
    different, same = (
        stats.false_discovery_control([head[k] for head in heads]) for k in ("p", "same")
    )
    for own, p, q in zip(tests.values(), different, same, strict=True):
        for row in own:
            row["s"] = status(row, p, q)


def status(row, p, same):
    if row["same"] < 0.05:
        word = "equivalent" if same < 0.05 else "undecided"
    elif p >= 0.05:
        word = "undecided"
    else:
        word = "effect" if (row["mean"] > 0) == (row["better"] == "higher") else "contrary"
    if word == "undecided":
        return word
    mine, other = np.mean(row["x"]), np.mean(row["y"])
    if row["statistic"].startswith("pass@"):
        no_room = word != "contrary" and 1 - other < row["minimum"]
        if no_room or max(mine, other) < 0.02:
            return "undecided"
    guard = row["guarded"]
    if guard:
        kept, other_kept = guard["low"] > -0.03, guard["high"] < 0.03
        if not {"effect": kept, "contrary": other_kept, "equivalent": kept and other_kept}[word]:
            return "undecided"
    for view in row["views"].values():
        if view is None:
            return "undecided"
        if word == "equivalent":
            agrees = -row["minimum"] < view["low"] and view["high"] < row["minimum"]
        else:
            agrees = view["low"] * row["mean"] > 0 and view["high"] * row["mean"] > 0
        if not agrees:
            return "undecided"
    return word


@pytest.mark.broad
def test_every_interval_is_that_of_the_figures(again):
    for row in again:
        assert row["mean"] == pytest.approx(row["effect"], abs=1e-4), row["id"]
        assert [row["low"], row["high"]] == pytest.approx(row["interval"], abs=1e-4), row["id"]


@pytest.mark.broad
def test_every_status_is_that_of_the_protocol(again):
    differing = [
        (row["id"], row["task"], row["other"], row["s"], row["status"], row["why"])
        for row in again
        if row["s"] != row["status"]
    ]
    assert not differing
    assert len(again) > 500 and {row["s"] for row in again} == {
        "effect", "equivalent", "undecided", "contrary",
    }  # fmt: skip


@pytest.mark.broad
def test_verdicts_on_the_page_follow_from_the_statuses(again):
    """Replicated, contrary and level claims, counted without the page's code."""
    text, ids = ANSWER.read_text(), sorted({row["id"] for row in again})
    counts = collections.Counter(verdict(name, again) for name in ids)
    for word in ("fair", "handicap", "contrary", "level", "own"):
        line = {
            "fair": "replicates against a fair tuned baseline",
            "handicap": "replicates where the baseline has a handicap",
            "contrary": "contrary", "level": "does not replicate",
            "own": "no verdict: the formula is our own",
        }[word]  # fmt: skip
        assert f"- *{line}*, {counts[word]}: " in text, (word, counts[word])


def verdict(name, again):
    own = [row for row in again if row["id"] == name]
    (primary,) = [row for row in own if is_primary(row, again)]
    fidelity = recipes.documented(table.module_name(name))["fidelity"]
    if fidelity == "own formula":
        return "own"
    if primary["s"] != "effect":
        word = {"contrary": "contrary", "equivalent": "level"}.get(primary["s"], "untold")
        return word if fidelity.startswith("verified") else "unverified"
    beaten = [row for row in own if is_fair(row) and row["s"] == "effect"]
    return "none" if not beaten else "handicap" if beaten[0]["handicap"] else "fair"


def differences(family, algorithm, reference):
    """Of the development scores of two tuned baselines, over the different tasks of all plans."""
    out = {}
    for plan in PLANS:
        for planned in plan["tasks"].values() if plan["family"] == family else ():
            arms = {k.partition(": ")[2]: v for k, v in planned["arms"].items() if "baseline" in k}
            if {algorithm, reference} <= arms.keys() and planned["statistic"].startswith("pass@1"):
                digests = [planned["described"][f"baseline: {k}"] for k in (algorithm, reference)]
                key = planned["task"], planned["statistic"], plan["over"], *digests
                out[key] = arms[algorithm]["score"] - arms[reference]["score"]
    return np.array(list(out.values()))


@pytest.mark.broad
def test_each_number_of_the_answer_follows_from_the_figures(again, listing):
    """The ten sentences, number by number, in order."""
    lines = [line for line in ANSWER.read_text().splitlines() if re.match(r"\d+\. ", line)]
    assert len(lines) == 10 and all("(caveat: " in line for line in lines)
    shown = [re.findall(r"[+-]?\d+(?:\.\d+)?", line)[1:] for line in lines]
    ids = sorted({row["id"] for row in again})
    words = collections.Counter(verdict(name, again) for name in ids)
    assert shown[0][:3] == [str(len(ids)), str(words["fair"]), str(words["handicap"])]

    fair = [row for row in again if is_fair(row) and not row["handicap"]]
    count = collections.Counter(row["s"] for row in fair)
    waiting = [row for row in listing if row["best"] and row["task"] == "regime"]
    expected = [count["effect"], len(fair), count["equivalent"], count["contrary"]]
    expected += [count["undecided"], sum(not row["measured"] for row in waiting)]
    assert shown[1] == [str(number) for number in expected]

    whole = collections.defaultdict(dict)
    for row in again:
        if row["against"] == "ablation" and not row["further"]:
            parts = whole[row["id"]].setdefault(row["task"], {})
            parts[row["other"]] = row
    pairs = [
        [next(iter((own.get("all") and [own["all"]]) or own.values()))["s"]
         for own in (tasks["regime"], tasks["neutral"])]
        for tasks in whole.values() if "neutral" in tasks
    ]  # fmt: skip
    came = collections.Counter(there for here, there in pairs if here == "effect")
    neutral = [
        row["effect"] for row in again
        if row["task"] == "neutral" and row["best"] and not row["handicap"]
        and row["statistic"] == "pass@1"
    ]  # fmt: skip
    assert shown[2] == [
        str(came.total()), str(came["effect"]), str(came["equivalent"]), str(came["contrary"]),
        f"{np.median(neutral):+.3f}", str(len(neutral)),
    ]  # fmt: skip

    fresh = [differences("objectives", name, "GRPO") for name in ("Dr. GRPO", "CISPO")]
    assert shown[3] == [
        text for d in fresh
        for text in ("0.03", str((abs(d) <= 0.03).sum()), str(len(d)), f"{np.median(d):+.3f}")
    ]  # fmt: skip

    both = np.concatenate([
        differences("objectives", "DAPO", "GRPO"),
        differences("data selection", "dynamic sampling", "uniform"),
    ])  # fmt: skip
    larger = np.median([1 / row["tokens"] for row in again if row["larger"]])
    assert shown[4] == [
        str((both > 0).sum()), str(len(both)), f"{np.median(both):+.3f}", f"{larger:.1f}",
    ]  # fmt: skip

    gold = [differences("gold solutions", n, "SFT") for n in ("LUFFY", "SFT + GRPO", "SFT then RL")]
    every = np.concatenate(gold)
    assert shown[5] == [text for d in gold for text in (str((d < 0).sum()), str(len(d)))] + [
        f"{every.min():+.3f}", f"{every.max():+.3f}",
    ]  # fmt: skip

    others = [
        differences("critics", "PPO", "GRPO"),
        differences("preferences", "online DPO", "GRPO"),
    ]
    others.append(differences("preferences", "rejection sampling", "GRPO"))
    assert shown[6][:9] == [
        text for d in others for text in (str((d <= 0).sum()), str(len(d)), f"{d.mean():+.3f}")
    ]

    gains = [
        row["effect"] for row in again
        if is_primary(row, again) and row["family"] == "off-policy" and row["s"] == "effect"
    ]  # fmt: skip
    stale = [
        differences("off-policy", name, "truncated importance sampling")
        for name in ("REC clip", "decoupled PPO")
    ]
    assert shown[7] == [
        str(len(gains)), f"{min(gains):+.3f}", f"{max(gains):+.3f}",
        *(f"{np.median(d):+.3f}" for d in stale), str(len(stale[0])),
        f"{np.concatenate(stale).min():+.3f}", f"{np.concatenate(stale).max():+.3f}",
    ]  # fmt: skip

    own = [r for r in waiting if r["family"] == "data selection"]
    ends = [r["interval"] if r["measured"] else on_development(r) for r in own]
    beside = [
        row for row in again
        if row["family"] == "data selection" and row["task"] == "regime" and row["larger"]
    ]  # fmt: skip
    assert shown[8] == [str(number) for number in (
        len(own), sum(low > 0 for low, _ in ends), sum(high < 0 for _, high in ends),
        sum(row["effect"] > 0 for row in beside), len(beside), sum(not r["measured"] for r in own),
    )]  # fmt: skip


def on_development(row):
    """The interval of method less fair baseline on the development seeds, from the figures."""
    (plan,) = [p for p in PLANS if p["name"] == table.module_name(row["id"])]
    planned, over = plan["tasks"][row["task"]], plan["over"]
    scores = []
    for label in ("method", f"baseline: {row['other']}"):
        score = planned["arms"][label]["score"]
        scores.append([
            arm[over][row["statistic"]] for arm in DEVELOPMENT[planned["task"]]
            if round(float(np.mean(arm[over].get(row["statistic"], [np.nan]))), 5) == score
        ])  # fmt: skip
    found = [
        stats.t.interval(0.95, 5, np.mean(d), np.std(d, ddof=1) / np.sqrt(6))
        for mine in scores[0] for other in scores[1] for d in [np.subtract(mine, other)]
    ]  # fmt: skip
    known = row["development"]["interval"]
    assert any(np.allclose(ends, known, atol=1e-4) for ends in found), row["id"]
    return known


DEVELOPMENT = collections.defaultdict(list)
for _line in LINES:
    if '"seeds": [10000, ' in _line:
        _arm = json.loads(_line)
        DEVELOPMENT[_arm["task"]].append(_arm)


@pytest.mark.broad
def test_the_picture_has_a_line_for_each_method(listing):
    text = claims_page.PICTURE.read_text()
    for name in {row["id"] for row in listing}:
        assert f">{name[:36]}</text>" in text
