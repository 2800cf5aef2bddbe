"""Value-guided search: which candidates there are, and that the best of them is kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from jaxrl import config as saved_configs
from jaxrl.data.scoring.pool import open_pool
from jaxrl.extensions import ilql
from jaxrl.launch.inspect import evaluate
from jaxrl.launch.settings import configs
from jaxrl.mesh import mesh
from jaxrl.models import decoder
from jaxrl.record import checkpoint
from jaxrl.record.metrics import Timer
from jaxrl.rollout import collect, episodes, policy, programs, tasks, value_search
from jaxrl.rollout.programs import Act, Fork, Sample
from jaxrl.run import loop
from jaxrl.run.evaluate import problems
from jaxrl.types import Completion, Request
from tests.jaxrl.batches import MODEL


def completion(request, *tokens):
    before = programs.EMPTY if request.prefix is None else request.prefix
    made = programs.join([before, programs.EMPTY._replace(
        tokens=np.array(tokens, np.int32), logp=np.zeros(len(tokens), np.float32),
        entropy=np.zeros(len(tokens), np.float32), version=np.zeros(len(tokens), np.int32),
        source=np.zeros(len(tokens), np.int8),
    )])  # fmt: skip
    return Completion(request, *made[:4], True, made.source)


def turns(ctx, problem, first_id):
    """Two turns with an environment between them, and two programs side by side in the end."""
    request = Request(id=first_id, prompt=(1, 2), max_new_tokens=9)
    first = yield Sample(request)
    assert first.request is request
    said = yield Act("a turn")
    assert said == "a reply"
    again = Request(id=first_id, prompt=(1, 2), max_new_tokens=9, prefix=programs.parts(first))
    second = yield Sample(again)

    def side(number):
        yield Act(number)
        return (yield Sample(Request(id=first_id, prompt=(number,), max_new_tokens=9)))

    sides = yield Fork([side(7), side(8)])
    return [second, *sides]


def run(program, pick):
    """Run a program to its end; `pick(request)` gives what each of its samples is."""
    requests = []

    def drive(each):
        value = None
        while True:
            try:
                wanted = each.send(value)
            except StopIteration as end:
                return end.value
            if isinstance(wanted, Fork):
                value = [drive(part) for part in wanted.programs]
            elif isinstance(wanted, Sample):
                requests.append(wanted.request)
                value = pick(wanted.request)
            else:
                value = "a reply"

    return drive(program), requests


@pytest.mark.parametrize("width", (2, 5))
def test_each_sample_is_the_candidate_that_is_judged_best(width):
    judged = []

    def judge(sequences):
        judged.append([tuple(ids) for ids in sequences])
        return np.array([ids[-1] for ids in sequences], np.float32)  # the largest last token

    found, requests = run(
        value_search.searched(turns, width, judge)(None, None, 3),
        lambda request: completion(request, 10, request.id >> 40),
    )
    assert [each.tokens.tolist() for each in found] == [
        [10, width, 10, width], [10, width], [10, width]
    ]  # fmt: skip
    assert len(judged) == 4 and len(requests) == 4 * width
    assert judged[0] == [(1, 2, 10, number) for number in range(1, width + 1)]
    assert judged[1] == [(1, 2, 10, width, 10, number) for number in range(1, width + 1)]
    for turn in range(4):
        own = requests[turn * width :][:width]
        assert len({each.id for each in own}) == width and 3 not in {each.id for each in own}
        assert len({(each.id & 0xFFFFFFFF, each.draw) for each in own}) == width
        assert {each.id & 0xFFFFFFFF for each in own} == {3}
    assert all(each.request.id == 3 for each in found)


@pytest.mark.parametrize("width", (0, 1, 256))
def test_a_search_that_is_none_is_refused(width):
    with pytest.raises(ValueError, match=f"search={width}"):
        value_search.searched(turns, width, lambda sequences: np.zeros(len(sequences)))


@pytest.mark.broad
def test_the_value_is_that_of_the_last_token_by_the_head_that_gives_least():
    params = {
        "decoder": decoder.init(MODEL, jax.random.key(0)),
        "q": jax.random.normal(jax.random.key(1), (2, MODEL.vocab_size, MODEL.hidden_size)),
    }
    judge = value_search.token_values(MODEL, params)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(1, MODEL.vocab_size, size=n).tolist() for n in (2, 5, 9, 40)]
    found = judge(sequences)
    for ids, value in zip(sequences, found, strict=True):
        tokens = jnp.array([ids])
        positions = jnp.arange(len(ids))[None]
        states = decoder.hidden(
            MODEL, params["decoder"], tokens, positions, jnp.full((1, len(ids)), len(ids))
        )
        expected = jnp.min(params["q"][:, ids[-1]] @ states[0, -2])
        np.testing.assert_allclose(value, expected, rtol=1e-4)


SMALL = (
    "retrieval", "--steps", "1", "--rollout.prompts", "4", "--rollout.group-size", "2",
    "--eval.problems", "4", "--sampler.slots", "8", "--sampler.prefill-rows", "8",
)  # fmt: skip
VALUES = ("--with", "ilql", "--ilql.targets", "returns", "--ilql.beta", "0")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that trains values, and one that does not."""
    found = []
    for name, more in (("values", VALUES), ("none", ())):
        directory = tmp_path_factory.mktemp(name) / "run"
        loop.train(configs.resolve([*SMALL, *more, "--run-dir", str(directory)])[0])
        found.append(str(directory))
    return found


@pytest.mark.broad
def test_a_run_is_searched_by_the_values_that_it_has_saved(runs):
    settings = evaluate.EvaluateConfig(problems=8, search=3, score_workers=0)
    figures = evaluate.measure(runs[0], settings)
    assert figures["problems"] == 8 and figures["errors"] == 0
    assert evaluate.measure(runs[0], settings) == figures

    config = saved_configs.load(Path(runs[0]) / "config.json")
    model, _ = policy.describe(policy.config_of(runs[0]))
    the_mesh = mesh.make(config.mesh)
    with jax.set_mesh(the_mesh):
        params, _, _ = policy.restored(runs[0], model, the_mesh)
        own = ilql.saved(Path(runs[0]), config.extensions["ilql"], model, params)
    directory = Path(runs[0])
    with ocp.Checkpointer(checkpoint.handler()) as checkpointer:
        args = ocp.args.Composite(rest=ocp.args.StandardRestore())
        read = checkpointer.restore(checkpoint.path(directory, 1), args)["rest"]["extra"]["ilql"]
    assert own["q"].shape == (1, model.vocab_size, model.hidden_size)
    jax.tree.map(np.testing.assert_array_equal, own, read["target"])
    fast = {name: read["params"][name] for name in own}
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (own, fast)), strict=True))


@pytest.mark.broad
@pytest.mark.parametrize("case", ("entry", "leaf", "shape"))
def test_what_a_checkpoint_does_not_hold_is_refused(runs, case):
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    model, _ = policy.describe(policy.config_of(runs[0]))
    sizes = (1, model.vocab_size, model.hidden_size)
    shape = jax.ShapeDtypeStruct((2, 3) if case == "shape" else sizes, jnp.float32, sharding=where)
    name, leaf = ("nobody" if case == "entry" else "ilql"), ("p" if case == "leaf" else "q")
    says = (
        rf"does not fit what is asked of its {name}: .*shape"
        if case == "shape"
        else f"holds no {name}"
    )
    with pytest.raises(ValueError, match=says):
        checkpoint.restore_extra(Path(runs[0]), name, {"target": {leaf: shape}})


@pytest.mark.broad
def test_a_search_without_values_or_variety_is_refused(runs):
    trained, plain = runs
    for name, changes, why in (
        (plain, {}, "has none"),
        (trained, {"temperature": 0.0}, "temperature=0"),
        (trained, {"search": 300}, "search=300"),
        (trained, {"search": 0}, "search=0"),
    ):
        given = {"problems": 4, "search": 3, "score_workers": 0, **changes}
        settings = evaluate.EvaluateConfig(**given)
        with pytest.raises(ValueError, match=why):
            evaluate.measure(name, settings)


@pytest.mark.broad
def test_an_oracle_makes_the_policy_better(runs):
    """Candidates that search for a name in the question are kept."""
    actor, task, pool_args = _parts(runs[0])
    rewards = []
    for program in (episodes.group, value_search.searched(episodes.group, 64, _finds(actor))):
        with open_pool("retrieval", task.params, workers=0) as pool:
            found = collect.collect(
                actor, policy.sampling_params(actor.params, "float32"),
                problems(task, "test", 32), task, pool, *pool_args,
                key=jax.random.key(0), first_id=1 << 31, version=0, timer=Timer(), program=program,
            )  # fmt: skip
        rewards.append(np.mean([score.value for score in found.scores]))
    assert rewards[1] > rewards[0] + 0.5


def _parts(run):
    config = saved_configs.load(Path(run) / "config.json")
    source = policy.config_of(run)
    model, tokenizer = policy.describe(source)
    the_mesh = mesh.make(config.mesh)
    with jax.set_mesh(the_mesh):
        params = policy.first_params(source, model, the_mesh)
    rollout = dataclasses.replace(config.rollout, group_size=1)
    actor = policy.Policy(model, params, tokenizer)
    return actor, tasks.of_config(config), (rollout, config.sampler)


def _finds(actor):
    """Whether the last letter is the last of those before it."""

    def judge(sequences):
        texts = [actor.tokenizer.decode(list(ids)) for ids in sequences]
        letters = [[c for c in text if c.islower()] for text in texts]
        return np.array([float(a[-1:] == a[-2:-1]) for a in letters])

    return judge
