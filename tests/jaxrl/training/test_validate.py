"""An objective that the check lets through works in an update; any other is refused beforehand."""

import functools
import inspect
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import functions
from jaxrl.training import objective, turns, validate
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.types import Trajectory
from tests.jaxrl.batches import batch
from tests.jaxrl.training.test_objective import NEEDED, arrays, episodes_of

EXTRA = ("turn",)
TEXT = "grp"
"""No choice of any argument."""
SLOTS = ("policy", "advantage", "shaping", "rows")
NAMED = {name: found[0] for name, found in functions._named().items() if len(found) == 1}


def config_of(slot: str, name: str, **args: float | str | bool) -> ObjectiveConfig:
    parameters = inspect.signature(functions.lookup(NAMED[name])).parameters
    needed = {arg: value for arg, value in NEEDED.items() if arg in parameters}
    given = {slot: name, f"{slot}_args": needed | args}
    return ObjectiveConfig(**given)


def is_resolved(slot: str, name: str) -> bool:
    """Whether a run has the arrays that a function asks for."""
    given = {
        "policy": objective.ARRAYS | {"turn"},
        "advantage": objective.REWARD_ARRAYS | {*turns.TOKENS, *turns.STEPS},
        "shaping": objective.REWARD_ARRAYS,
        "rows": objective.ROW_ARRAYS,
    }[slot]
    config = config_of(slot, name)
    try:
        functions.resolve(name, getattr(config, f"{slot}_args"), given)
    except ValueError:
        return False
    return True


POLICIES = [name for name in NAMED if is_resolved("policy", name)]
ADVANTAGES = [name for name in NAMED if is_resolved("advantage", name)]


@functools.cache
def data() -> Trajectory:
    made = episodes_of(batch(6, groups=3, size=5))
    stopped = np.arange(len(made.tokens)) % 3 != 0
    return made.replace(proximal_logp=made.behavior_logp, stopped=stopped)


def whole_of(advantage: str) -> objective.BatchStatistics:
    """The advantages of a tiny batch."""
    return objective.whole_batch(config_of("advantage", advantage), data(), 9, step=3)


def loss(policy: str, logp: jax.Array, whole: objective.BatchStatistics) -> jax.Array:
    """Of an update on that batch."""
    given, config = arrays(data()), config_of("policy", policy)
    ref_logp = given["ref_logp"] if objective.needs_reference(config) else None
    rest = (whole.mask, logp, given["entropy"], ref_logp, jnp.int32(3))
    return objective.objective(config, data(), whole, *rest)[0]


def is_refused(policy: str, advantage: str) -> bool:
    config = config_of("advantage", advantage)
    own = config_of("policy", policy)
    config = ObjectiveConfig(
        policy=policy,
        policy_args=own.policy_args,
        advantage=advantage,
        advantage_args=config.advantage_args,
    )
    try:
        validate.check(config, EXTRA)
    except ValueError as error:
        assert f"objective.policy={policy!r}" in str(error) or advantage in str(error)
        return True
    return False


@pytest.mark.broad
def test_a_policy_objective_of_sequences_refuses_an_advantage_of_tokens():
    for policy in ("gmpo", "kimi_opmd", "oapl", "grao", "a_lol"):
        for advantage in ("tp_grpo", "m_grpo"):
            config = ObjectiveConfig(policy=policy, advantage=advantage)
            message = (
                rf"objective\.policy='{policy}' takes one advantage a sequence, .*"
                rf"objective\.advantage='{advantage}' gives one a token; choose"
            )
            with pytest.raises(ValueError, match=message):
                validate.check(config, EXTRA)
        validate.check(ObjectiveConfig(policy=policy))


def test_a_policy_objective_of_sequences_refuses_the_advantages_of_a_critic():
    def shapes(batch: Trajectory) -> Trajectory:
        return batch.replace(advantages=batch.behavior_logp)

    validate.check(ObjectiveConfig(policy="gspo"), shapes=shapes)
    with pytest.raises(ValueError, match=r"'gmpo' takes one advantage a sequence, .* extension"):
        validate.check(ObjectiveConfig(policy="gmpo"), shapes=shapes)


KINDS = {
    ("sequence", "float32"): "group_advantages",
    ("sequence", "bool"): "spread",
    ("token", "float32"): "tp_grpo",
}
"""An advantage of each kind; a policy objective sees no more of it than this. A filter of sequences
works as one, of bool."""


@pytest.mark.sample(10, broad=7)
@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_an_advantage_that_is_not_refused_is_finite_and_of_a_kind(advantage):
    if not is_refused("ppo_clip", advantage):
        found = whole_of(advantage).advantages
        of = "sequence" if found.shape == (len(data().tokens), 1) else "token"
        assert of == "sequence" or found.shape == data().tokens.shape
        assert (of, str(found.dtype)) in KINDS
        assert np.all(np.isfinite(found))


@pytest.mark.sample(1)
@pytest.mark.broad
@pytest.mark.parametrize("advantage", KINDS.values())
def test_what_is_not_refused_can_be_differentiated(advantage):
    """Every policy objective with the advantage; also functions that are none of these."""
    accepted = [policy for policy in POLICIES if not is_refused(policy, advantage)]
    whole = whole_of(advantage) if accepted else None
    for policy in accepted:
        step = jax.grad(functools.partial(loss, policy))
        found = jax.eval_shape(step, arrays(data())["logp"], whole)
        assert found.shape == data().tokens.shape, policy


def test_most_are_not_refused():
    """The objectives that recipes use."""
    for policy in ("ppo_clip", "gspo", "gmpo", "chord", "pair_dpo", "sft", "vcpo", "decoupled_ppo"):
        assert not is_refused(policy, "group_advantages"), policy
    for advantage in ("tp_grpo", "gdpo", "gigpo", "mgpo", "pass_at_k", "ssrl"):
        assert not is_refused("ppo_clip", advantage), advantage


@pytest.mark.sample(12)
@pytest.mark.broad
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_not_refused_is_finite(policy):
    for advantage in ("group_advantages", "tp_grpo"):
        if not is_refused(policy, advantage):
            step = jax.grad(functools.partial(loss, policy))
            found = step(arrays(data())["logp"], whole_of(advantage))
            assert np.all(np.isfinite(found)), advantage


def arguments(kinds: tuple[type, ...]) -> list[tuple[str, str, str]]:
    """(slot, function, argument) of those of a type that a config may set."""
    return [
        (slot, name, argument)
        for slot in SLOTS
        for name in NAMED
        if is_resolved(slot, name)
        for argument, parameter in inspect.signature(
            functions.lookup(NAMED[name])
        ).parameters.items()
        if parameter.annotation in kinds
    ]


@pytest.mark.sample(5, broad=4)
@pytest.mark.parametrize(("slot", "name", "argument"), arguments((str,)))
def test_a_misspelled_choice_is_refused(slot, name, argument):
    """By the name of its field, with what may be chosen."""
    config = config_of(slot, name, **{argument: TEXT})
    with pytest.raises(ValueError, match=rf"objective\.{slot}.*{name}") as refused:
        validate.check(config, EXTRA)
    assert f"objective.{slot}_args.{argument}={TEXT!r}" in str(refused.value)


def test_the_choices_are_named():
    config = ObjectiveConfig(advantage_args={"scale": "grp"})
    message = r"objective\.advantage_args\.scale='grp'.*choose one of group, batch, none"
    with pytest.raises(ValueError, match=message):
        validate.check(config)


def test_a_text_for_a_number_is_refused():
    """As 0,2 for 0.2, and fals for false."""
    for slot, name, argument in arguments((float, int, bool)):
        if argument not in ("num_groups", "num_states", "num_agents"):
            with pytest.raises(ValueError, match=argument):
                validate.check(config_of(slot, name, **{argument: "0,2"}), EXTRA)


def by_group_of_seven(rewards: jax.Array) -> jax.Array:
    grouped = rewards.reshape(-1, 7)
    return (grouped - grouped.mean(axis=1, keepdims=True)).reshape(-1)


def test_a_function_may_rely_on_the_sizes_of_the_run():
    config = ObjectiveConfig(advantage=f"{__name__}:by_group_of_seven")
    validate.check(config, sequences=21)


def of_groups(rewards: jax.Array, num_groups: int) -> jax.Array:
    return jnp.zeros(num_groups + 1)


def test_an_advantage_of_another_shape_is_refused():
    config = ObjectiveConfig(advantage=f"{__name__}:of_groups")
    with pytest.raises(ValueError, match=r"objective\.advantage=.*of_groups.* shape \(17, 1\)"):
        validate.check(config, sequences=16)


def of_three_parts(reward_parts: jax.Array) -> jax.Array:
    return reward_parts @ jnp.array([1.0, 0.5, 0.25])


def of_blocks(logp: jax.Array, behavior_logp: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    blocks = (logp - behavior_logp).reshape(len(logp), -1, 16)
    return -blocks.reshape(logp.shape), {}


def of_its_own(reward_parts: jax.Array, *, weights: float = 1.0) -> jax.Array:
    return weights * reward_parts[:, 0]


def chosen(rewards: jax.Array, *, scale: str = "one") -> jax.Array:
    return rewards * {"one": 1.0, "two": 2.0}[scale]


@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": f"{__name__}:of_three_parts"},
        {"policy": f"{__name__}:of_blocks"},
        {"advantage": f"{__name__}:of_its_own", "advantage_args": {"weights": 0.7}},
        {"advantage": f"{__name__}:chosen", "advantage_args": {"scale": "two"}},
    ],
    ids=["three parts", "blocks of a row", "weights that are a number", "choice"],
)
def test_a_function_of_ones_own_that_works_in_a_run_is_not_refused(changes):
    validate.check(ObjectiveConfig(**changes), sequences=6, bucket=16)


def test_whatever_a_function_raises_is_named():
    config = ObjectiveConfig(advantage=f"{__name__}:chosen", advantage_args={"scale": "three"})
    message = r"objective\.advantage=.*objective\.advantage_args\.scale='three'.*KeyError: 'three'"
    with pytest.raises(ValueError, match=message):
        validate.check(config)


def halved(rewards: np.ndarray) -> np.ndarray:
    return np.array(rewards) / 2


def test_shaping_for_a_critic_may_be_computed_by_numpy():
    """A critic shapes rewards on the host; without one this is a part of the compiled update."""
    config = ObjectiveConfig(shaping=f"{__name__}:halved")
    validate.check(config, shapes=lambda batch: batch.replace(advantages=batch.behavior_logp))
    with pytest.raises(ValueError, match=r"objective\.shaping=.*TracerArrayConversionError"):
        validate.check(config)


def typed(
    rewards: jax.Array, *, rate: float | Literal["auto"] = 1.0, pick: Callable[[int], float] = float
) -> jax.Array:
    return rewards


def test_a_text_may_be_one_of_the_types_of_an_argument():
    for args in ({"rate": "auto"}, {"pick": "float"}):
        functions.resolve(f"{__name__}:typed", args, {"rewards"})


def imitating(logp: jax.Array, imitate: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    return jnp.where(imitate[:, None], -logp, 0.0), {}


def test_an_array_that_an_extension_adds_in_its_update_is_not_asked_for():
    config = ObjectiveConfig(policy=f"{__name__}:imitating")
    validate.check(config, ("imitate",))
