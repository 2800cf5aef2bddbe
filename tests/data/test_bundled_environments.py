"""Bundled environments: what earns a reward, that they repeat themselves, and bad actions."""

import collections
import itertools
import random
from fractions import Fraction
from xml.etree import ElementTree

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import Turn, play
from jaxrl.data.environments.games import board_game, game24, rules, twenty_questions
from jaxrl.data.environments.tools.formats import Call, write_call
from jaxrl.data.environments.work import html_form, repository
from jaxrl.data.rewards.judged import reflection
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.types import Problem

PURE = (
    "apps", "board_game", "calculator", "diagnosis", "emotional_support", "game24", "html_form",
    "keydoor", "ledger", "planning", "recall", "revision", "routing", "text_grid",
    "twenty_questions", "with_attempts", "with_compression", "workshop",
)  # fmt: skip
SLOWER = ("database", "repository")
EXTRA = ("geography",)
"""Those that need a package of the extras."""
GARBAGE = ("", "\x00", "é" * 50, "9" * 5000, "<tool_call>", "left\nbet 1 / 0", "GUESS", "fill e1")


def played(answer, problem, *actions, episode=0, seed=3):
    """The answers to an episode's actions until one of them ends it, the opening first."""
    said = [answer(Turn(episode, problem, seed))]
    for n in range(len(actions)):
        said.append(answer(Turn(episode, problem, seed, actions[: n + 1], tuple(said))))
        if said[-1].error or said[-1].done:
            break
    return said


def installed(task):
    """Skip the test unless the packages of a task are."""
    try:
        task.problem("train", 0, 0)
    except ImportError as missing:
        pytest.skip(str(missing))


def optional(names):
    return [pytest.param(name, marks=pytest.mark.extra) for name in names]


@pytest.mark.parametrize("name", [*PURE, *SLOWER, *optional(EXTRA)])
def test_they_repeat_themselves_and_survive_anything(name):
    task = tasks.get(name)
    assert task.pure == (name in (*PURE, "geography"))
    if name in EXTRA:
        installed(task)
    made = {s: [task.problem(s, 0, i) for i in range(12)] for s in task.splits}
    assert not {p.id for p in made["train"]} & {p.id for p in made["test"]}
    assert made["train"][3] == task.problem("train", 0, 3) != task.problem("train", 1, 3)
    for split in task.splits:
        problem = made[split][0]
        one, two = (played(play.Player(task).answer, problem, *GARBAGE) for _ in range(2))
        assert one == two and not any(each.error for each in one)
        last = len(one) - 1  # by a process that has not played it so far
        turn = Turn(0, problem, 3, GARBAGE[:last], tuple(one[:last]))
        assert play.Player(task).answer(turn) == one[-1]
        assert sum(reply.reward or 0.0 for reply in one[1:]) <= 0.5
        assert {c for m in one[0].messages for c in m["content"]} <= set(task.alphabet)


WORLDS = {
    name: {}
    for name, module in tasks.BUNDLED.items()
    if ".environments." in module and name not in tasks.NEED_PARAMETERS and name not in EXTRA
} | {"with_compression": {"name": "calculator"}}
SEARCHED = {"geography": {}, "retrieval": {"instructions": True}}
"""Those whose engine needs the package bm25s."""
OFTEN = (
    "<tool_call>\n2+3\n</tool_call>\n",
    write_call(Call("n" * 80, {})),
    "".join(write_call(Call(name, {"x": "y" * 30})) for name in ("search", "sql", "run", "read")),
    "bad action\n",
)


@pytest.mark.sample(6, broad=4)
@pytest.mark.parametrize("name", [*sorted(WORLDS.keys() - SEARCHED.keys()), *optional(SEARCHED)])
def test_a_turn_of_many_bad_actions_voids_no_episode(name):
    """Else a policy could void an episode that goes badly."""
    if name in SEARCHED:
        pytest.importorskip("bm25s")
    task = tasks.get(name, **(WORLDS | SEARCHED)[name])
    installed(task)
    problem = task.problem("train", 0, 0)
    for episode, bad in enumerate(OFTEN):
        said = played(play.Player(task).answer, problem, *[bad * 2000] * 6, episode=episode)
        assert len(said) > 1 and not [each.error for each in said if each.error]


@pytest.mark.parametrize(
    "name",
    [
        "apps",
        "emotional_support",
        "game24",
        "html_form",
        "ledger",
        "recall",
        "text_grid",
        "twenty_questions",
        "workshop",
        *SLOWER,
        *optional(EXTRA),
    ],
)
def test_their_solutions_earn_the_full_reward(name):
    task = tasks.get(name)
    if name in EXTRA:
        installed(task)
    for index, split in itertools.product(range(4 if name in PURE else 1), task.splits):
        problem = task.problem(split, 5, index)
        actions = task.turns.gold(problem, 0)
        said = played(play.Player(task).answer, problem, *actions)
        assert said[-1].done and not said[-1].error and len(said) == len(actions) + 1
        assert sum(reply.reward or 0.0 for reply in said[1:]) == 1


def test_the_24_game_takes_thoughts_and_legal_steps_alone():
    task = tasks.get("game24", mistakes=1)
    problem = task.problem("train", 0, 0)
    a, b, *_ = problem.answer
    player = play.Player(task).answer
    thought = f"<think>perhaps 1 + 1</think> {a} * {b}"
    _, good, bad, over = played(player, problem, thought, "100 + 1", "1 / 0")
    assert str(a * b) in good.messages[0]["content"] and good.parts["thoughts"] == 1
    assert bad.messages[0]["content"].startswith("that is no step")
    assert over.done and over.reward == 0


@pytest.mark.parametrize(
    ("numbers", "text", "left"),
    [
        ((8, 3), "8*3", (24,)),
        ((8, 3), "so 8 - 3", (5,)),
        ((-8, 3), "-8 * 3", (-24,)),
        ((Fraction(8, 3), 9), "8/3 * 9", (24,)),
        ((8, 3), "8 / 3", (Fraction(8, 3),)),
        ((8, 3), "18 * 3", None),
        ((8, 3), "8 * 33", None),
        ((9, 9), "9" * 5000 + " * 9", None),
    ],
)
def test_steps_of_the_24_game_are_read(numbers, text, left):
    after = game24._taken(list(map(Fraction, numbers)), text)
    assert after == (None if left is None else list(left))


def test_a_thought_in_the_world_of_rooms_changes_nothing():
    plain, think = tasks.get("keydoor"), tasks.get("keydoor", think=True)
    for index in range(6):
        problem, same = (each.problem("train", 0, index) for each in (plain, think))
        assert (problem.id, problem.prompt) == (same.id, same.prompt)
        way, thought = plain.turns.gold(problem, 0), think.turns.gold(same, 0)
        assert way == tuple(each[1:] for each in thought) and way[-1] == "o"
        assert [each[0] for each in thought] == ["dk"[n <= way.index("t")] for n in range(len(way))]
        wanted = played(play.Player(plain).answer, problem, *way)
        for other in (thought, [f"h{each}" for each in way]):
            assert played(play.Player(think).answer, same, *other) == wanted
        alone = played(play.Player(think).answer, same, *way)  # a thought is missing
        assert not any(reply.reward for reply in alone[1:])


def test_a_simulated_user_remembers_and_loses_patience():
    user = twenty_questions._User({"size": "tiny", "color": "red"}, 9, 3)

    def ask(text):
        reply = twenty_questions.step(user, text)
        return reply.messages[0]["content"] if reply.messages else reply

    assert ask("Is it tiny?") == "yes" and ask("is it blue") == "no"
    assert ask("is it TINY?") == "I told you: yes" and user.patience == 2
    assert ask("is it red or green?") == "one at a time, please"
    end = ask("hm")
    assert end.done and end.reward == 0 and end.parts["known"] == 0.5
    fresh = twenty_questions._User({"size": "tiny", "color": "red"}, 9, 3)
    assert twenty_questions.step(fresh, "GUESS tiny red green").reward == 0
    assert twenty_questions.step(fresh, "GUESS a tiny red one").reward == 1


def test_a_form_may_show_its_newest_page_alone():
    whole, short = (tasks.get("html_form", compress=each) for each in (False, True))
    problem = whole.problem("train", 0, 0)
    actions = ("open e1", *whole.turns.gold(problem, 0))
    long, brief = (played(play.Player(task).answer, problem, *actions) for task in (whole, short))
    assert brief[0] == long[0] and brief[-1].reward == long[-1].reward == 1
    assert len(long) == len(brief) > 3
    said = list(long[0].messages)
    for n, (one, two) in enumerate(zip(long[1:-1], brief[1:-1], strict=True), 1):
        said += [{"role": "assistant", "content": actions[n - 1]}, *one.messages]
        shown = two.opening.messages
        assert not two.messages and [m["role"] for m in shown] == [m["role"] for m in said]
        assert shown[-1] == said[-1] and shown[2::2] == tuple(said[2::2])
        assert (
            sum("<form" in m["content"] for m in shown)
            == 1
            < sum("<form" in m["content"] for m in said)
        )
        assert shown[1]["content"] == f"{problem.prompt}\n{html_form.LEFT_OUT}"
    for read, end in ((said, long[-1]), (shown, brief[-1])):
        assert end.parts["context"] == sum(len(message["content"]) for message in read)
    assert short.pure


def test_a_form_in_symbols_is_the_form_in_words():
    words, symbols = (tasks.get("html_form", fields=5, symbols=each) for each in (False, True))
    for index in range(20):
        problem, short = (task.problem("train", 0, index) for task in (words, symbols))
        assert problem.answer == short.answer and len(short.prompt) == 10
        one, two = (task.turns.begin(problem, 0)[0] for task in (words, symbols))
        golds = (task.turns.gold(problem, 0) for task in (words, symbols))
        for said, made in zip(*golds, strict=True):
            assert len(made) == 2 and set(made) <= set(symbols.alphabet)
            replies = html_form.step(one, said), html_form.step(two, made)
            assert replies[0].reward == replies[1].reward
            assert ElementTree.tostring(one.form) == ElementTree.tostring(two.form)
            assert set(two.seen()) <= set(symbols.alphabet)
        assert replies[1].reward == 1
    page = symbols.turns.begin(problem, 0)[0]
    before = page.seen()
    for none in ("", "n", "99", "nn", "n9", "l7", "x1", "s00"):
        reply = html_form.step(page, none)
        assert page.seen() == before and not reply.done


def test_experts_are_right_up_to_their_level_and_cost_it():
    def ends(price, *actions, level=None):
        task = tasks.get("routing", price=price)
        made = (task.problem("train", 0, index) for index in range(40))
        problem = next(p for p in made if level is None or p.metadata["level"] == level)
        able = {each: name for name, each in problem.metadata["experts"].items()}
        wrong = str((int(problem.answer) + 1) % 10)
        words = {"right": problem.answer, "wrong": wrong, "less": able.get(1), "most": able[3]}
        return played(play.Player(task).answer, problem, *(words.get(a, a) for a in actions))

    assert all(ends(0.5, *["less"] * 2, level=2)[n].messages != () for n in (1, 2))
    opening, said, end = ends(0.5, "most", "right", level=2)
    assert said.messages[0]["content"] in "0123456789" and "?2" in opening.messages[0]["content"]
    assert end.reward == pytest.approx(1 - 0.5 * (3 / 6) ** 0.5) and end.parts["spent"] == 3
    assert ends(0.0, "most", "most", "right")[-1].reward == 1
    assert ends(1.0, "most", "most", "right")[-1].reward == 0
    assert ends(1.0, "right")[-1].reward == 1 and ends(0.5, "most", "wrong")[-1].reward == 0
    for bad in ("?", "", "12", "z"):
        assert ends(0.5, bad)[-1].reward == -1 and ends(0.5, bad)[-1].parts["malformed"] == 1
    assert ends(0.5, "less", "less", "less")[-1].reward == -1


def test_an_expert_that_is_not_seen_in_training_is_in_every_held_out_problem():
    task = tasks.get("routing", unseen="b3")
    for split, there in (("train", False), ("test", True), ("ood", True)):
        for index in range(40):
            problem = task.problem(split, 0, index)
            assert (problem.metadata["experts"]["b"] == 3) == there == ("b3" in problem.prompt)
    for wrong in ("b4", "d1", "b", "3b"):
        with pytest.raises(ValueError, match=f"unseen='{wrong}'"):
            tasks.get("routing", unseen=wrong)


@pytest.mark.parametrize("split", ("train", "ood"))
def test_an_able_expert_says_the_answer_and_no_other_does(split):
    task, kinds = tasks.get("routing", calls=9), set()
    for index in range(12):
        problem = task.problem(split, 1, index)
        answer, level = problem.answer, problem.metadata["level"]
        for name, each in problem.metadata["experts"].items():
            heard = played(play.Player(task).answer, problem, *[name] * 3)[1:]
            right = {reply.messages[0]["content"] == answer for reply in heard}
            assert right == {each >= level}
            kinds |= right
        said = played(play.Player(task).answer, problem, *task.turns.gold(problem, 0))
        assert said[-1].parts["correct"] == 1 and said[-1].parts["spent"] == level
    assert kinds == {True, False}


def test_a_plan_is_paid_for_what_a_frozen_model_gains_by_it():
    def ends(*actions, known, chain="abc", **params):
        """The last reply, on a world of the chain and others, of whose names some are known."""
        task = tasks.get("planning", **{"searches": 4, "cost": 0.5, "process": 0.2} | params)
        facts = ((0, "a", "b"), (1, "b", "c"), (0, "d", "e"), (1, "e", "f"))
        problem = Problem("p", "2a", "c", metadata={"facts": facts, "chain": tuple(chain)})
        plan, opening = task.turns.begin(problem, 0)
        plan.known = frozenset(known)
        assert opening.stop[-1] == "=" or "frozen" in params
        replies = [task.turns.step(plan, action) for action in actions]
        assert not any(reply.done for reply in replies[:-1])
        return [reply.messages[0]["content"] for reply in replies[:-1]], replies[-1]

    said, full = ends("a", "b", "=", known="")
    assert said == ["ab", "bc"] and full.parts == {"correct": 1, "searches": 2}
    assert full.reward == pytest.approx(1 + 0.2 + 0.5 * (1 - 2 / 4))
    assert ends("a", "=", known="b")[1].reward == pytest.approx(1 + 0.2 + 0.5 * 3 / 4)
    assert ends("a", "=", known="a")[1].reward == pytest.approx(0.2 + 0.5 * 3 / 4)  # still wrong
    assert ends("=", known="ab")[1].reward == pytest.approx(0.2 + 0.5)  # right, and no gain
    said, odd = ends("a", "d", "b", "a", "=", known="")  # one unseen, one twice
    assert odd.reward == pytest.approx(1 + 0.2 * 2 / 4) and said[1] == "de"
    assert ends("c", "=", known="")[0] == ["-"]
    for bad in ("", "?", "ab", "2"):
        assert ends(bad, known="")[1].reward == -1
    assert ends("a", "a", "a", "a", "a", known="")[1].reward == -1
    own = ends("a", "b", "=c", known="", frozen=False)[1]
    assert own.reward == full.reward and ends("=b", known="", frozen=False)[1].parts["correct"] == 0
    assert ends("=", known="ab", frozen=False)[1].reward == -1


def desk(*actions, prompt="a+b", ledger=(("a", "37"), ("b", "58")), answer="95", **params):
    """The replies of a ledger to actions."""
    task = tasks.get("ledger", **params)
    problem = Problem("p", prompt, answer, metadata={"ledger": dict(ledger)})
    state, _ = task.turns.begin(problem, 0)
    return [task.turns.step(state, action) for action in actions]


def test_a_ledger_is_read_and_added_by_calls():
    *said, end = desk("a?", "b?", "37+58=", "95.", bonus=0.1)
    assert [reply.messages[0]["content"] for reply in said] == ["37", "58", "95"]
    assert end.reward == pytest.approx(1.1) and end.done and end.parts["multi_tool"] == 1
    assert desk("a?", "b?", "95.", bonus=0.1)[-1].reward == 1  # one tool of two
    assert desk("a?", "96.", bonus=0.1)[-1].reward == 0
    for bad in ("", ".", "a.", "-5.", "95"):
        assert desk(bad, malformed=-1.0)[-1].reward == -1
    for bad in ("z?", "?", "ab?", "a+b=", "1+=", "=", "2*3=", f"{'9' * 200}="):
        (error,) = desk(bad, failed=-0.5)
        assert error.messages[0]["content"] == "!" and error.reward == -0.5 and not error.done
    assert desk("37+58=", tools="lookup")[0].messages[0]["content"] == "!"
    assert desk("95.", tools="", bonus=0.1)[-1].reward == 1
    over = desk("a?", "a?", "95.", calls=1)[1]
    assert over.done and over.reward == 0


def test_a_call_that_fails_is_taken_back():
    first, run, lost, wrong, end = desk("z?", "a?", "y?", "1+=", "95.", failed=-1.0, again=2)
    asked = {"role": "user", "content": "a+b"}
    assert first.opening.messages == (asked,) and not first.messages and first.reward == -1
    held = ({"role": "assistant", "content": "a?"}, {"role": "user", "content": "37"})
    assert run.messages == held[1:] and lost.opening.messages == (asked, *held)
    assert wrong.messages[0]["content"] == "!" and wrong.opening is None  # none is left
    assert end.reward == 1 and end.parts["calls"] == 4 and end.parts["failed"] == 3


@pytest.mark.parametrize(
    ("scores", "reward"),
    [
        ([0, 1], 1 + 0.5 * (1 + 0.5) + (1 + 1)),
        ([1, 1], 1 + 0.5 * (1 + 0.5 * 0.05) + 1),
        ([0, 0], 1 + 0.5 * -0.5),
        ([1, 0], 1 + 0.5 * -0.5 - 1),
        # the second gain weighs exp(0.2) times the first: 0.549834 of both
        ([0, 0, 1], 1 + 0.5 * (1 + 0.5 * (0.549834 - 0.450166)) + (0.5 + 1)),
        # seven reflections: 1 / (1 + 0.1 * 16) * exp(-0.2), and the sine is 0
        ([1] * 8, 1 + 0.3148965 * (0.5 * 1.025 + 1 / 7)),
    ],
)
def test_chains_of_attempts_are_paid_as_by_reflexicoders_code(scores, reward):
    assert reflection.chain(scores) == pytest.approx(reward, abs=1e-6)


def test_a_sum_is_revised_in_one_turn():
    task = tasks.get("revision")
    problem = Problem("p", "17+8=", 25)
    says = lambda text, **params: tasks.get("revision", **params).turns.step(problem, text)  # noqa: E731
    fixed, broken = says("15!25"), says("25!15")
    assert (
        fixed.reward == pytest.approx(3.75) and fixed.parts["fixed"] == 1 == fixed.parts["judged"]
    )
    assert broken.parts["broken"] == 1 and broken.parts["correct"] == 0 == broken.parts["judged"]
    assert says("25~25~25").parts["reflections"] == 2 and says("25~25").parts["judged"] == 1
    assert says("15~25", shaped=False).reward == 2 and says("25~15", shaped=False).reward == 1
    for bad in ("", "25", "25~", "~25", "25~!25", "25 ~ 25", "a~25"):
        assert says(bad).reward == 0 == says(bad).parts["format"] and says(bad).done
    golds = [task.turns.gold(p, 0) for p in (task.problem("train", 0, i) for i in range(60))]
    assert {sign for (text,) in golds for sign in "!~" if sign in text} == {"!", "~"}
    with pytest.raises(ValueError, match="digits"):
        tasks.get("revision", digits=0)
    with pytest.raises(ValueError, match="two attempts"):
        reflection.chain([1.0])


def test_nobody_beats_perfect_play():
    """Of all games against it at tic-tac-toe, whichever side begins."""
    lost = collections.Counter()

    def walk(state, seat):
        moves = rules.TIC_TAC_TOE.moves(state)
        if not moves:
            lost[rules.TIC_TAC_TOE.payoff(state) * (1 if seat == 0 else -1)] += 1
            return
        mine = rules.TIC_TAC_TOE.player(state) == seat
        for move in moves if mine else rules.perfect(state)[:1]:
            walk(rules.TIC_TAC_TOE.play(state, move), seat)

    for seat in (0, 1):
        walk(rules.TIC_TAC_TOE.start(random.Random(0)), seat)
    assert lost[1.0] == 0 and lost[-1.0] > 0 and lost[0.0] > 0


def test_kuhn_poker_has_its_known_value():
    """-1/18 for the player who begins (Kuhn 1950), in units of a stake; here 2 are 1."""

    def value(hands):
        if not rules.KUHN_POKER.moves(hands):
            return rules.KUHN_POKER.payoff(hands)
        chances = rules.equilibrium(hands)
        return sum(p * value(rules.KUHN_POKER.play(hands, m)) for m, p in chances.items() if p)

    deals = list(itertools.permutations(range(3), 2))
    assert sum(value(rules.Hands(cards)) for cards in deals) / 6 == pytest.approx(-1 / 36)


@pytest.mark.parametrize(
    ("moves", "payoff"),
    [("1 2 1 2 1 2 1", 1.0), ("1 2 3 4 5 6 7 7 1 2", 0.0), ("1 2 2 3 3 4 3 4 4 1 4", 1.0)],
)
def test_connect_four_sees_all_directions(moves, payoff):
    game = rules.CONNECT_FOUR
    state = game.start(random.Random(0))
    for move in moves.split():
        assert move in game.moves(state)
        state = game.play(state, move)
    assert game.payoff(state) == payoff and bool(game.moves(state)) == (payoff == 0)
    if payoff and moves.startswith("1 2 1"):
        before = game.start(random.Random(0))
        for move in moves.split()[:-1]:
            before = game.play(before, move)
        assert rules.ahead(before) == ("1",)
        assert rules.ahead(game.play(before, "7")) == ("2",)  # it wins too, before it stops


@pytest.mark.parametrize("name", rules.GAMES)
def test_a_match_is_won_drawn_or_lost(name):
    task = tasks.get("board_game", game=name)
    rewards = collections.Counter()
    for index in range(30):
        problem = task.problem("train", 0, index)
        match, opening = task.turns.begin(problem, 0)
        stream = random.Random(index)
        reply = None
        while reply is None or not reply.done:
            reply = board_game.step(match, stream.choice(match.game.moves(match.state)))
        rewards[reply.reward] += 1
        assert opening.messages[1]["content"].endswith(
            "moves: " + ", ".join(_first_moves(task, problem))
        )
    assert len(rewards) > 1 and set(rewards) <= {0.0, 0.25, 0.5, 0.75, 1.0}
    match, _ = task.turns.begin(problem, 0)
    assert not board_game.step(match, "jump").done and board_game.step(match, "99").reward == 0


def test_solutions_of_tic_tac_toe_say_what_is_at_stake_and_never_lose():
    task = tasks.get("board_game", instructions=False, symbols=True, mistakes=0, think=True)
    plain, thoughts = tasks.get("board_game", symbols=True, instructions=False), set()
    for index in range(40):
        problem = task.problem("train", 0, index)
        said = task.turns.gold(problem, 0)
        assert plain.turns.gold(problem, 0) == tuple(each[1:] for each in said)
        assert {c for each in said for c in each} <= set(task.alphabet)
        replies = played(play.Player(task).answer, problem, *said)
        assert replies[-1].done and replies[-1].reward in (0.5, 1.0)
        assert (said[-1][0] == "w") == (replies[-1].reward == 1)  # a win is said to be one
        assert all(each[0] != "w" for each in said[:-1])
        thoughts |= {each[0] for each in said}
    assert thoughts == set("wb-")
    for cells, why, moves in (
        ("xx oo    ", "w", "3"), ("oo  x   x", "b", "3"), ("         ", "-", "123456789")
    ):  # fmt: skip
        found = board_game.thought(rules.Board(cells, 3, 3))
        assert found[0] == why and found[1] in moves
    assert tasks.get("board_game", game="kuhn_poker").turns.gold is None


def _first_moves(task, problem):
    match, _ = task.turns.begin(problem, 0)
    return match.game.moves(match.state)


def test_a_form_is_judged_whole():
    task = tasks.get("html_form", fields=2)
    problem = next(
        p for p in (task.problem("train", 0, i) for i in range(99))
        if any(name in html_form.TEXTS for name in p.answer["wanted"])
    )  # fmt: skip
    *acts, send = task.turns.gold(problem, 0)
    page, opening = task.turns.begin(problem, 0)
    ids = {each.get("name"): each.get("id") for each in page.form}
    assert opening.messages[1]["content"].endswith("</form>")
    answer = play.Player(task).answer
    missing = played(answer, problem, *acts[:-1], send)[-1]
    assert missing.reward == 0 and missing.parts["fields"] == 0.5
    cleared = played(answer, problem, *acts, f"click {ids['clear']}", send, episode=1)[-1]
    assert cleared.reward == 0 and cleared.parts["fields"] == 0
    assert cleared.parts["others"] == 1
    wrong = played(answer, problem, "fill e0 x", f"select {ids['send']} y", "jump", episode=2)
    told = ["there is no element", "select does not go", "that is no action"]
    for reply, text in zip(wrong[1:], told, strict=True):
        assert reply.messages[0]["content"].startswith(text)


def test_a_repair_that_breaks_something_else_earns_nothing():
    task = tasks.get("repository")
    problem = task.problem("train", 0, 1)
    (repair, done), answer = task.turns.gold(problem, 0), play.Player(task).answer
    other = "text.py" if '"text.py"' not in repair else "lists.py"
    source = problem.metadata["files"][other]
    spoil = write_call(Call("edit", {"path": other, "old": source, "new": source + "\n1 / 0\n"}))
    faked = write_call(Call("edit", {
        "path": other, "old": source, "new": "import os\nprint('ok', flush=True)\nos._exit(0)\n",
    }))  # fmt: skip
    idle = played(answer, problem, done)[-1]
    assert idle.reward == 0 and idle.parts["fail_to_pass"] < 1 == idle.parts["pass_to_pass"]
    for i, bad in enumerate((spoil, faked)):
        last = played(answer, problem, repair, bad, done, episode=i + 1)[-1]
        assert last.reward == 0 and last.parts["pass_to_pass"] < 1
    look = [write_call(Call("run", {"expression": problem.metadata["cases"][0]}))]
    look.append(write_call(Call("read", {"path": other})))
    look.append(write_call(Call("run", {"expression": "text.nothing()"})))
    _, value, text, error = played(answer, problem, *look, episode=9)
    assert value.messages[0]["content"] and text.messages[0]["content"] == source
    assert "AttributeError" in error.messages[0]["content"]


def test_bugs_do_in_the_sandbox_what_they_are_said_to_do():
    """Every bug by its source, and by the value that the tests of a problem go by."""
    stream, files, cases, expected = random.Random(1), dict(repository._files({})), [], []
    for each in repository.FUNCTIONS:
        for bug in range(len(each.bugs)):
            arguments = each.arguments(stream)
            (value,) = repository._values({each.name: bug}, [(each.name, arguments)])
            files[f"{each.name}{bug}.py"] = repository._broken(each, bug)
            spelled = ", ".join(map(repr, arguments))
            cases.append(f"{each.name}{bug}.{each.name}({spelled})")
            expected.append(value)
    assert repository._run(files, cases, False)[1] == expected


def test_a_pool_plays_them():
    with scoring.open_pool("game24", workers=0) as pool:
        problem = tasks.get("game24").problem("test", 0, 0)
        assert pool.act(Turn(0, problem, 0)).result().messages[-1]["content"] == problem.prompt


REFUSED = {
    "apps": ({"goals": "sort"}, {"ood_goals": ""}, {"apps": 1}, {"keys": 5}, {"turns": 4}),
    "workshop": ({"explorer": "bold"}, {"steps": 0}, {"horizon": 0}, {"turns": 4}),
    "text_grid": ({"size": 9}, {"walls": 0}, {"turns": 3}, {"view": "x"}, {"cost": -1.0}),
    "diagnosis": ({"importance": "none"}, {"questions": 0}, {"known": 0}, {"temperature": 0.0}),
    "emotional_support": ({"difficulty": "kind"}, {"turns": 4}, {"openness": 2.0}),
    "game24": ({"numbers": 9}, {"largest": 0}, {"mistakes": -1}),
    "twenty_questions": ({"traits": 9}, {"patience": 0}),
    "board_game": (
        {"game": "go"},
        {"opponent": "x"},
        {"mistakes": -1},
        {"think": True, "game": "kuhn_poker"},
    ),
    "html_form": ({"fields": 0}, {"distractors": 9}, {"turns": -1}),
    "database": ({"places": 1}, {"calls": 0}),
    "repository": ({"bugs": 0}, {"calls": 0}),
    "recall": (
        {"hops": 4},
        {"names": 3},
        {"engine": "x"},
        {"known": 0.1},
        {"single": 2.0},
        {"reward": "x"},
    ),
    "planning": ({"hops": 4}, {"names": 9}, {"searches": 0}, {"famous": 2.0}, {"cost": -1.0}),
    "ledger": (
        {"digits": 0},
        {"terms": 0},
        {"names": 1},
        {"given": 2.0},
        {"tools": "sql"},
        {"calls": -1},
        {"bonus": -1.0},
        {"malformed": 1.0},
        {"failed": 1.0},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parameters_out_of_range_are_refused(name):
    for params in REFUSED[name]:
        with pytest.raises(ValueError, match=next(iter(params))):
            tasks.get(name, **params)
