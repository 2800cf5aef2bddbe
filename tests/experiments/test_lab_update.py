"""The lab's update of each recipe is the update that the real loop makes on the same batch.

Where the two differ, they do so for a reason:

- The optimizer. The lab takes one for all recipes, so that arms differ in their method alone, and
  no weight decay. Here both take plain gradient descent, as Adam turns rounding into whole steps.
- The model, the task and its budget are the lab's own. Here both have the lab's.
- A gradient that is not finite leaves the real state as it was, and is an error of the lab's arm.
- A critic is trained by steps of its own, which `test_lab.py` and `test_critic.py` test. Here its
  advantages are given.
- An effect may set sizes and budgets (`experiments.lab.arms.SIZES`); `test_effects.py` compares.
"""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import lab
from experiments.effects import table
from experiments.lab import policy, tasks, train
from jaxrl.config import Config
from jaxrl.extensions.nucleus import masked
from jaxrl.extensions.sharpness import sharpness
from jaxrl.launch import recipes
from jaxrl.launch.recipes.demonstrations import sasr
from jaxrl.models import decoder
from jaxrl.sampling.logits import nucleus_of
from jaxrl.training import objective, packing
from jaxrl.training.logprobs import Restriction, make_score
from jaxrl.training.packing import PackingConfig
from jaxrl.training.train_step import init_state, make_update
from jaxrl.types import Trajectory
from tests.jaxrl.extensions.contexts import context

TASK = lab.cipher(((10, 0.8), (36, 0.2)), (((2, 1), 0.5), ((0, 2), 0.5)), filler_rate=0.1, slack=2)
PROMPT = TASK.prompt_length
MODEL = policy.shape(TASK.vocabulary, PROMPT + TASK.budget)
RATE = 0.05
STEP = 20
"""Updates done before: more than the first phase of any recipe has."""
GROUPS, SIZE, REPLAYED = 8, 4, 4
"""Groups of the batch, sequences of each, and groups that a replay adds."""
NORMS = {"last": 1.5, "warm": 1.0}
"""Of the gradient of imitation, where a recipe goes by them."""
MARKS = {"rl4lms_grue_nlpo": (), "remix": pytest.mark.broad}
"""The others are slow."""


@pytest.fixture(autouse=True, scope="module")
def _plain_descent():
    """Gradient descent in the lab."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "_OPTIMIZER", optax.clip_by_global_norm(1.0))
        train._update.cache_clear()
        yield
        train._update.cache_clear()


def policies():
    """The trained one, the reference, and the one that a nucleus is taken of."""
    first = decoder.init(MODEL, jax.random.key(0))
    noise = [jax.random.split(jax.random.key(i), len(jax.tree.leaves(first))) for i in (1, 2, 3)]
    leaves, form = jax.tree.flatten(first)
    return [
        form.unflatten(
            [x + 0.05 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
        )
        for keys in noise
    ]


def batch(*, experts: bool, critic: bool, replayed: int) -> Trajectory:
    """Sequences of all lengths, right and wrong; one without a score, and one group all right."""
    rng = np.random.default_rng(0)
    groups = GROUPS + replayed
    count, length = groups * SIZE, PROMPT + TASK.budget
    group_ids = np.repeat(np.arange(groups, dtype=np.int32), SIZE)
    tokens = np.zeros((count, length), np.int32)
    tokens[:, :PROMPT] = TASK.train.prompt[group_ids]
    mask = np.zeros((count, length), bool)
    for n in range(count):
        stop = PROMPT + rng.integers(2, TASK.budget + 1)
        tokens[n, PROMPT:stop] = rng.integers(tasks.FIRST, TASK.vocabulary, stop - PROMPT)
        mask[n, PROMPT:stop] = True
        tokens[n, stop - 1] = tasks.EOS
    rewards = rng.integers(0, 2, count).astype(np.float32)
    rewards[::SIZE], rewards[1::SIZE] = 1.0, 0.0
    rewards[:SIZE] = 1.0
    valid = np.arange(count) != 5
    version = np.where(mask, STEP - rng.integers(0, 4, (count, 1)), 0).astype(np.int32)
    version[: GROUPS * SIZE] = np.where(mask[: GROUPS * SIZE], STEP, 0)
    addition = (np.arange(count) >= GROUPS * SIZE).astype(np.int32)
    logp, _ = policy.logprobs(MODEL, policies()[0], tokens)
    noise = rng.normal(0, 0.2, logp.shape)
    made = Trajectory(
        tokens=tokens,
        action_mask=mask,
        behavior_logp=np.where(mask, np.asarray(logp) + noise, 0.0).astype(np.float32),
        policy_version=version,
        rewards=np.where(valid, rewards, 0.0).astype(np.float32),
        valid=valid,
        group_ids=group_ids,
        expert=np.arange(count) % SIZE == 0 if experts else np.zeros(count, bool),
        extra={"addition": addition},
    )
    if critic:
        given = rng.normal(size=logp.shape).astype(np.float32)
        made = made.replace(advantages=np.where(mask, given, 0.0).astype(np.float32))
    return made


def in_the_lab(arm, given):
    """Parameters after the updates on a batch, as `train.train` makes them."""
    stacked = [jax.tree.map(lambda a: a[None], p) for p in policies()]
    start, reference, likely = stacked
    likely = likely if arm.nucleus else None
    norms = {name: jnp.full(1, norm) for name, norm in NORMS.items()}
    state = train.learner(start)._replace(steps=jnp.full(1, STEP, jnp.int32), norms=norms)
    if arm.sharpness:
        state = state._replace(previous=reference)
    given = jax.tree.map(lambda a: a[None], given)
    if objective.needs_proximal(arm.objective):
        logp = train.logprobs(MODEL, TASK, arm, state.params, likely, given)
        given = given.replace(proximal_logp=np.asarray(logp))
    for part in packing.shares(given, arm.updates_per_batch):
        state = train.update(MODEL, TASK, arm)(state, reference, likely, part, RATE)
    return jax.tree.map(lambda a: np.asarray(a[0]), state.params)


def in_the_loop(arm, given):
    """The same by the real loop: packed in several micro-batches."""
    start, reference, likely = policies()
    allowed = Restriction(likely, masked, nucleus_of, arm.mass) if arm.nucleus else None
    optimize = optax.chain(optax.clip_by_global_norm(1.0), optax.scale(-RATE))
    score = make_score(MODEL, temperature=arm.temperature)
    sharp = arm.sharpness and sharpness(arm.sharpness)
    ctx = context(Config(seed=0), model=MODEL)
    update = make_update(
        MODEL, arm.objective, optimize, temperature=arm.temperature, max_new_tokens=TASK.budget,
        remat="none", restriction=lambda state: allowed,
        ascent=sharp and functools.partial(sharp.provides["ascent"], ctx),
    )  # fmt: skip

    def pack(part, keep=None):
        layout = PackingConfig(micro_batch_tokens=256, bucket=16, row_length=64)
        return packing.pack(part, layout, keep=keep, chunks=arm.chunks)[0]

    state = init_state(start, optimize).replace(step=jnp.int32(STEP))
    if arm.imitation:
        norms = {name: jnp.float32(norm) for name, norm in NORMS.items()}
        state = state.with_extra(imitation=norms)
        update = jax.jit(sasr.imitation(arm.imitation).update(ctx, update))
    if sharp:
        state = state.with_extra(sharpness=reference)
        update = jax.jit(sharp.update(ctx, update))
    if objective.needs_proximal(arm.objective):
        given = given.replace(proximal_logp=np.asarray(score(start, pack(given), allowed)))
    for part in packing.shares(given, arm.updates_per_batch):
        packed = pack(part, objective.worth_computing(arm.objective, part, int(state.step)))
        compared = objective.needs_reference(arm.objective)
        ref_logp = score(reference, packed) if compared else None
        state, metrics = update(state, part, packed, ref_logp)
        assert metrics["skipped"] == 0
    return jax.tree.map(np.asarray, state.params)


@functools.cache
def difference(given: str) -> tuple[float, float]:
    """Greatest difference of a parameter after the updates of an arm, and greatest change of one.

    Arms that differ in what is not of the update share the result.
    """
    name, experts, critic, replayed = json.loads(given)
    config = recipes.load(name)
    arm = lab.arm(config)
    if arm.chunks.size:  # so that responses of the lab's length are several
        arm = dataclasses.replace(arm, chunks=dataclasses.replace(arm.chunks, size=4, carry=1))
    made = batch(experts=experts, critic=critic, replayed=replayed)
    ours, theirs = (f(arm, made) for f in (in_the_lab, in_the_loop))
    before = jax.tree.map(np.asarray, policies()[0])

    def furthest(a, b):
        return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b)))

    return furthest(ours, theirs), furthest(theirs, before)


@functools.cache
def representative(name: str) -> str:
    """The arguments of `difference` for a recipe: those of the first whose update is the same."""
    for other in table.names():
        if _update_of(other) == _update_of(name):
            _, experts, critic, replayed = _update_of(name)
            return json.dumps([other, experts, critic, replayed])
    raise AssertionError(name)


@functools.cache
def _update_of(name: str) -> tuple[str, bool, bool, int]:
    config = recipes.load(name)
    arm = lab.arm(config)
    terms = json.dumps(dataclasses.asdict(arm.objective), sort_keys=True)
    text = f"{terms} {arm.chunks} {arm.mass} {arm.temperature} {arm.updates_per_batch}"
    text += f" {arm.imitation} {arm.sharpness}"
    replayed = REPLAYED if arm.replay else 0
    return text, arm.guidance is not None, arm.critic is not None, replayed


@pytest.mark.broad
@pytest.mark.exact("an update of the lab equals that of the real loop to 1e-6, for every recipe")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=MARKS.get(n, pytest.mark.slow)) for n in table.names()],
)
def test_the_lab_updates_as_the_loop_does(name):
    gap, change = difference(representative(name))
    assert change > 1e-3
    assert gap < 1e-6
