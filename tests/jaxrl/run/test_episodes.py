"""A run on an environment: what it samples is what it trains on, and it resumes exactly."""

import dataclasses
import io
import json
import re

import numpy as np
import pytest

from jaxrl.config import Domain
from jaxrl.data import tasks
from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.sources import generate
from jaxrl.data.text import tokenizers
from jaxrl.data.types import Score, Task
from jaxrl.launch import cli
from jaxrl.launch.inspect import play
from jaxrl.launch.inspect.sample import SampleConfig
from jaxrl.mesh import mesh
from jaxrl.record import checkpoint, metrics
from jaxrl.rollout import policy
from jaxrl.rollout.experience import Experience
from jaxrl.run import assemble, evaluate, loop
from jaxrl.sampling.chunks import Chunks
from jaxrl.types import Completion, Request
from tests.jaxrl import sampler_oracle as oracle
from tests.jaxrl import tiny
from tests.jaxrl.run import flights

ALPHABET = "0123456789+-*\n"


def digits():
    """Two turns, each rewarded by its first digit; a star is an error of the environment."""

    def begin(problem, seed):
        message = {"role": "user", "content": f"{problem.prompt}{seed % 10}"}
        return [], Opening((message,), stop=("+",))

    def step(turns, action):
        turns.append(action)
        if "*" in action:
            raise OSError("no stars")
        reward = float(action[0]) / 9 if action[:1].isdigit() else 0.0
        said = {"role": "user", "content": str(len(turns))}
        return Reply((said,), reward, {"digit": reward}, done=len(turns) == 2, stop=("+",))

    return Task(
        "digits",
        lambda split, seed, index: generate.user_problem(
            "digits", str(index), str(index % 10), None
        ),
        unscored,
        alphabet=ALPHABET,
        pure=True,
        turns=Environment(begin, step),
    )


def spelled_twice(alphabet):
    """A tokenizer of characters with a second id for each digit, which it reads and never writes.

    So a turn that is encoded again mostly has other ids than were sampled.
    """
    plain = tokenizers.characters(alphabet)
    first = {plain.vocab_size + n: plain.encode(digit)[0] for n, digit in enumerate("0123456789")}
    return dataclasses.replace(
        plain,
        decode=lambda ids: plain.decode([first.get(each, each) for each in ids]),
        vocab_size=plain.vocab_size + len(first),
    )


TOKENIZER = spelled_twice(ALPHABET)


@pytest.fixture(scope="module", autouse=True)
def _two_spellings():
    """Runs on `digits` have this tokenizer."""
    plain = tokenizers.characters
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            tokenizers, "characters", lambda of: TOKENIZER if of == ALPHABET else plain(of)
        )
        yield


PLAYED = {
    "task": f"{__name__}:digits", "task_args": {}, "warm_start.steps": 0, "steps": 4,
    "rollout.max_new_tokens": 12, "rollout.turn_tokens": 3, "eval.problems": 4, "eval.every": 0,
    "checkpoint.every": 1, "checkpoint.keep": 9, "rollout.in_flight": 1.25,
    "optimizer.learning_rate": 3e-3,
}  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A whole run whose steps leave episodes in flight, and the completions that it trained on."""
    directory = tmp_path_factory.mktemp("episodes") / "run"
    return directory, flights.trained(directory, **PLAYED)


@pytest.fixture(scope="module")
def run(played):
    return played[0]


@pytest.mark.exact("turns are trained as the tokens that were sampled, never encoded again")
def test_every_turn_is_trained_under_what_it_was_sampled_under(played):
    run, completions = played
    ids = [c.tokens[c.actions & (c.tokens > 0)].tolist() for c in completions]
    other = sum(TOKENIZER.encode(TOKENIZER.decode(each)) != each for each in ids)
    assert other > len(ids) / 2
    rows = list(metrics.read(run))
    assert len(rows) == 4 and any(row["grad_norm"] > 0 for row in rows)
    assert rows[0]["logp_gap_max"] < 1e-4
    assert sum(row["episode/errors"] for row in rows) > 0
    for row in rows:
        assert 1 <= row["episode/turns"] <= 2 and row["episode/errors"] == row["reward/errors"]
    logged = [json.loads(line) for line in (run / "rollouts/000001.jsonl").read_text().splitlines()]
    openings = {}
    for row in logged:
        kinds = np.array(row["source"])
        first = [i for i, kind in enumerate(kinds) if kind != "policy"]
        assert set(kinds) <= {"policy", "tool", "forced"}
        assert not np.any(np.array(row["advantage"])[kinds != "policy"])
        assert (row["reward"] is None) == (row["error"] is not None)
        if row["error"] is None:
            assert first and "".join(np.array(row["tokens"])[kinds == "tool"]) == "\n1\n"
            assert row["stopped"]
        else:
            assert row["error"] == "exception: OSError: no stars" and "*" in row["completion"]
        openings.setdefault(row["group"], set()).add(row["problem"])
    assert any(row["error"] is None for row in logged)


@pytest.mark.exact("a run with episodes in flight continues from its checkpoint bit for bit")
def test_a_run_with_episodes_in_flight_resumes_exactly(run, tmp_path):
    saved = json.loads((checkpoint.path(run, 2) / "host.json").read_text())
    assert saved["rollouts"]["open_groups"]["groups"]
    stopped = tmp_path / "run"
    loop.train(tiny.config(stopped, **PLAYED | {"steps": 2}))
    loop.train(tiny.config(stopped, **PLAYED))
    assert tiny.artefacts(stopped)["arrays"] == tiny.artefacts(run)["arrays"]
    last = "rollouts/000004.jsonl"
    assert (stopped / last).read_text() == (run / last).read_text()


@pytest.mark.exact("episodes in flight: each log-prob is that of the version that sampled, to 1e-4")
def test_episodes_of_two_versions_are_as_sampled(played):
    """Turns of earlier steps, read again under newer weights, keep their own log-probabilities."""
    directory, found = played
    config = tiny.config(directory, **PLAYED)
    model, _ = policy.describe(config)
    on, several = mesh.make(config.mesh), 0
    weights = [policy.restored(str(directory), model, on, step)[0] for step in range(4)]
    sequences = [[*c.request.prompt, *c.tokens.tolist()] for c in found]
    scores = [oracle.forward(sequences, params, model)[0] for params in weights]
    for n, c in enumerate(found):
        versions = set(c.version[c.actions].tolist())
        for version in versions:
            chosen = (c.version == version) & c.actions
            part = dataclasses.replace(c, source=np.where(chosen, 0, 1).astype(np.int8))
            assert oracle.as_expected(part, scores[version][n], sequences[n])
        several += len(versions) > 1
    assert several


REFUSED = {
    "no solutions": {"warm_start.steps": 2},
    "greedy": {"objective.advantage": "remax"},
    "chunks": {"rollout.chunks": Chunks(4, 2)},
    "guidance": {"guidance.guide": "escalate", "guidance.args": {"attempts": 2}},
    "no chat template": {"rollout.chat": True},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_episodes_cannot_have_is_refused(case, tmp_path):
    with pytest.raises(ValueError, match=case):
        assemble.assemble(tiny.config(tmp_path, **PLAYED | REFUSED[case]))


def test_a_run_plays_episodes_at_the_command_line(run, capsys):
    task = PLAYED["task"]
    asked = ["sample", str(run), "--env", task, "--episodes", "3", "--max-new-tokens", "12"]
    assert cli.main([*asked, "--turn-tokens", "3", "--trust", "--json"]) == 0
    played = json.loads(capsys.readouterr().out)["episodes"]
    assert len(played) == 3
    for each in played:
        assert len(each["token_ids"]) == len(each["source"]) == len(each["logps"]) > 0
        assert each["messages"][0]["role"] == "user" and "assistant" in str(each["messages"])
        assert (each["reward"] is None) == (each["error"] is not None)
    assert cli.main(["sample", str(run), "--env", "arithmetic", "--trust"]) == 2
    assert "one turn" in capsys.readouterr().err


def test_a_run_is_evaluated_on_episodes(run, capsys):
    """Whose openings may be longer than the prompts of their problems."""
    assert cli.main(["eval", str(run), "--problems", "8", "--trust", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["completion_length"] > 0 and figures["errors"] < figures["problems"] == 8


@pytest.mark.broad
def test_a_mixture_has_parts_with_turns_and_without(tmp_path, capsys):
    """Both are in each batch; they are imitated, trained, evaluated and voted on by part."""
    regimes = {"hops": ("hops", 1), "count": ("count", 2)}
    domains = {
        name: Domain("retrieval", {"regime": regime, "hops": hops, "synthesis": 6})
        for name, (regime, hops) in regimes.items()
    }
    domains["sums"] = Domain("arithmetic", {"digits": 1, "operators": "+"})
    shapes = {"rollout.max_new_tokens": 24, "rollout.turn_tokens": 1, "warm_start.steps": 2}
    asked = {"steps": 2, "rollout.prompts": 6, "eval.problems": 9, "eval.every": 0}
    summary = loop.train(tiny.config(tmp_path / "run", domains=domains, **shapes, **asked))
    for row in metrics.read(tmp_path / "run"):
        assert all(row[f"domain/{name}/share"] == pytest.approx(1 / 3) for name in domains)
        assert row["reward/errors"] == 0 and row["logp_gap_max"] < 1e-4
        assert row["episode/turns"] > 1 and row["episode/tool_calls"] > 0
    assert {f"pass@1/{name}" for name in domains} <= summary["eval"]["after"].keys()
    given = ["--k", "3", "--problems", "6", "--json", "--score-workers", "0"]
    assert cli.main(["eval", str(tmp_path / "run"), *given]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    for figure in ("pass@1", "pass@3", "maj@3"):
        by_part = [figures[f"{figure}/{name}"] for name in domains]
        assert figures[figure] == pytest.approx(np.mean(by_part))


def test_episodes_vote_by_their_last_turns():
    """Whatever they have read on the way; those that did not come to an answer do not vote."""
    said = {
        "right": ("a", "c"), "detour": ("b", "c"), "wrong": ("b", "d"), "alike": ("a", "d"),
    }  # fmt: skip
    rewards = {"right": 1.0, "detour": 1.0, "wrong": 0.0, "alike": 0.0}

    def row(kind, stopped=True, error=None):
        search, answer = said[kind]
        ids = np.array([ord(search), ord("-"), ord(answer)], np.int32)
        source = np.array([0, 2, 0], np.int8)
        completion = Completion(
            Request(0, (1,), 9), ids, *np.zeros((3, 3)), stopped, source=source,
            turn=np.array([1, 2, 2], np.int16), turn_rewards=(0.0, rewards[kind]),
        )  # fmt: skip
        return completion, Score(None if error else rewards[kind], error=error)

    def voted(*rows):
        problem = generate.user_problem("digits", "0", "0", None)
        texts = ["".join(map(chr, c.tokens)) for c, _ in rows]
        made = Experience([problem], [c for c, _ in rows], texts, [s for _, s in rows], [])
        votes = evaluate.answers(made, lambda ids: "".join(map(chr, ids)))
        return evaluate.figures(made, len(rows), votes)[f"maj@{len(rows)}"]

    assert voted(row("wrong"), row("right"), row("detour")) == 1
    assert voted(row("wrong"), row("alike"), row("right")) == 0
    assert voted(row("wrong", stopped=False), row("alike"), row("right"), row("detour")) == 1
    assert voted(row("right"), row("wrong", error="x: y"), row("alike", error="x: y")) == 1
    assert voted(row("wrong", stopped=False), row("right", stopped=False)) == 0  # none: the first


CREDIT = {
    "gigpo": {"objective.advantage": "gigpo"},
    "turn_advantages": {"objective.advantage": "turn_advantages"},
    "turn_gae": {"critic.credit": "turn_gae", "critic.whiten": False},
    "bilevel_gae": {"critic.credit": "bilevel_gae", "critic.whiten": False},
}


@pytest.mark.sample(1)
@pytest.mark.broad
@pytest.mark.parametrize("name", CREDIT)
def test_credit_goes_to_turns(name, tmp_path):
    """Two steps with each: all tokens of a turn have one advantage, turns have different ones."""
    made = tiny.config(tmp_path, **PLAYED | {"steps": 2, "rollout.in_flight": 1.0} | CREDIT[name])
    loop.train(made)
    rows = list(metrics.read(tmp_path))
    assert len(rows) == 2 and all(row["grad_norm"] > 0 for row in rows)
    assert rows[0]["logp_gap_max"] < 1e-4
    several = 0
    logged = [(tmp_path / f"rollouts/00000{step}.jsonl").read_text() for step in (1, 2)]
    for line in "".join(logged).splitlines():
        row = json.loads(line)
        if row["error"] is not None:
            assert not any(row["advantage"])
            continue
        own = np.array(row["source"]) == "policy"
        turn, advantage = np.array(row["turn"])[own], np.array(row["advantage"])[own]
        of_turns = [set(advantage[turn == k].tolist()) for k in sorted(set(turn.tolist()))]
        if name != "bilevel_gae":
            assert all(len(each) == 1 for each in of_turns)
        several += len(set.union(*of_turns)) > 1
        assert len(row["turn_rewards"]) == len(of_turns)
    assert several


def test_a_critic_of_turns_needs_turns(tmp_path):
    given = {"critic.credit": "turn_gae", "warm_start.steps": 0}
    with pytest.raises(ValueError, match=r"turn_gae.*one turn"):
        assemble.assemble(tiny.config(tmp_path, **given))


@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize("seat", [1, 2])
def test_a_person_plays_against_a_policy(seat, capsys, monkeypatch):
    """Through standard input; what is no move is asked for again, and the output stays JSON."""
    rules = {"instructions": False, "symbols": True, "mistakes": 99}
    drawn = tiny.config("unused", task="board_game", task_args=rules)
    monkeypatch.setattr(policy, "config_of", lambda name: drawn)
    moves = [f"{cell}\n" for cell in ("none", *range(1, 10))] * 9
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(moves)))
    given = [f"--env-args.{name}={json.dumps(value)}" for name, value in rules.items()]
    given += ["--human", "--seat", str(seat), "--max-new-tokens", "1500", "--turn-tokens", "2"]
    assert cli.main(["sample", "a-model", "--env", "board_game", "--json", *given]) == 0
    out, shown = capsys.readouterr()
    (episode,) = json.loads(out)["episodes"]
    assert episode["error"] is None and episode["reward"] in (0, 0.5, 1)
    assert shown.startswith(f"you are {' xo'[seat]}\n")
    assert shown.partition("moves: ")[0].count(".") == 10 - seat
    boards = re.findall(r"you are .\n([xo.\n]{11})", shown)
    assert boards[-1].count(".") < boards[0].count(".") and boards[0] == boards[1]
    line = any(boards[-1].replace("\n", "")[i::3] == "xxx" for i in range(3))
    assert not line or episode["reward"] == seat - 1


def test_a_seat_is_refused_where_there_is_none(capsys):
    for given, why in (
        (["--env", "board_game", "--human", "--seat", "3"], "seat=3: choose 1 or 2"),
        (["--env", "board_game", "--seat", "1"], "seat=1: add --human"),
        (["--env", "calculator", "--human", "--seat", "1"], "no game of seats"),
    ):
        assert cli.main(["sample", "a-model", *given]) == 2
        assert why in capsys.readouterr().err


def test_a_person_plays_in_the_place_of_the_policy():
    said, calculator = [], tasks.get("calculator")
    problem = calculator.problem("test", 0, 0)
    actions = iter(calculator.turns.gold(problem, 0))
    config = SampleConfig(env="calculator", human=True)
    reward = play.by_hand(config, ask=lambda prompt: next(actions), say=said.append)
    assert reward == 1.0 and said[-1] == "reward 1"
    assert said[0] == f"user: {problem.prompt}" and '"name": "calculator"' in said[1]
    assert said[2] == f"tool: {problem.answer}"

    def leave(prompt):
        raise EOFError

    assert play.by_hand(config, ask=leave, say=said.append) is None
    with pytest.raises(ValueError, match="one turn"):
        play.by_hand(SampleConfig(env="arithmetic"))
