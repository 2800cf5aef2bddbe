"""Every public loss refuses an array of a wrong shape or dtype, and names the argument."""

import functools
import inspect
import re

import jax
import numpy as np
import pytest

from jaxrl.launch.listing import losses_table
from jaxrl.losses.reduce import shapes

UNCHECKED = {
    "masked_mean": "takes any shape",
    "conjugate": "takes any shape",
    "chord_mu": "takes a scalar",
    "adaptive_kl_coefficient": "takes scalars",
    "proportional_kl_coefficient": "takes scalars",
}
"""Functions that have no array of a shape to check, and why."""

FUNCTIONS = {
    f"{module.__name__.rpartition('.')[2]}.{function.__name__}": function
    for module in losses_table.modules()
    for function in losses_table.functions(module)
}
CHECKED = {name: f for name, f in FUNCTIONS.items() if f.__name__ not in UNCHECKED}

OTHERS = {
    "num_groups": 4, "num_states": 4, "num_agents": 3,
    "mode": "token-mean", "kind": "kl", "discount": 0.9,
    "temperature": 1.0, "target_entropy": -1.0, "log_temperature": 0.0, "weight": 0.5,
    "scale": 1.0, "width": 1.0, "denominator": 4.0, "max_length": 8, "buffer": 2, "step": 3,
    "presample_steps": 2, "kl": 0.1, "target": 0.1, "num_experts": 5, "total": 1.0, "speed": 0.1,
    "weight_norm": 1.0,
}  # fmt: skip
"""Values of the arguments that are no arrays of a shape."""


def arguments(function, lead=(2,)):
    """Arrays as the docstring asks for them, each axis of a size of its own, and the rest."""
    wanted = shapes.expected(function)
    axes = sorted({axis for want in wanted.values() for axis in want.shapes[0]} - {"1", "..."})
    sizes = {axis: 4 + i for i, axis in enumerate(axes)}
    made = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in wanted:
            form, kind = wanted[name].shapes[0], wanted[name].kind
            shape = [lead if a == "..." else (1,) if a == "1" else (sizes[a],) for a in form]
            dtype = {None: np.float32, np.bool_: bool}.get(kind, np.int32)
            made[name] = np.zeros(sum(shape, ()), dtype)
        elif name == "key":
            made[name] = jax.random.key(0)
        elif parameter.default is parameter.empty:
            made[name] = OTHERS[name]
    return made


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_loss_is_checked(name):
    function = FUNCTIONS[name]
    assert hasattr(function, "__wrapped__") == (name in CHECKED)
    assert bool(shapes.expected(function)) == (name in CHECKED)


@pytest.mark.sample(50, broad=25)
@pytest.mark.parametrize("name", CHECKED)
def test_a_wrong_array_is_refused_by_the_name_of_its_argument(name):
    """One axis more or less, an axis of another size, floats for integers or bools."""
    function, given = CHECKED[name], arguments(CHECKED[name])
    arrays = {k: v for k, v in given.items() if isinstance(v, np.ndarray)}
    call = functools.partial(function, **{k: v for k, v in given.items() if k not in arrays})
    jax.eval_shape(lambda x: call(**x), arrays)  # what the docstring asks for is accepted

    def refused(culprits, what, **wrong):
        with pytest.raises(
            ValueError, match=f"({'|'.join(culprits)}) of {function.__name__} {what}"
        ):
            function(**given | wrong)

    wanted = {k: want for k, want in shapes.expected(function).items() if k in given}
    for argument, want in wanted.items():
        value = given[argument]
        if all("..." not in form for form in want.shapes):
            refused([argument], "has shape", **{argument: value[None]})
        elif all(len(form) > 1 for form in want.shapes):
            refused([argument], "has shape", **{argument: np.zeros((), value.dtype)})
        shared = [
            k for k, other in wanted.items()
            if k != argument and set(other.shapes[0]) & set(want.shapes[0]) - {"1"}
        ]  # fmt: skip
        if shared:  # which of them is wrong, nobody can know: it is the later one that is named
            longer = np.zeros(tuple(n + 1 for n in value.shape), value.dtype)
            refused([argument, *shared], "has shape", **{argument: longer})
        if want.kind is not None:
            refused([argument], "has dtype float32", **{argument: value.astype(np.float32)})


def test_targets_may_lack_the_axis_of_an_ensemble():
    loss = FUNCTIONS["value.squared_error"]
    assert loss(np.ones((2, 3)), np.zeros(3)).shape == (2, 3)
    with pytest.raises(ValueError, match=re.escape("returns of squared_error has shape (2,)")):
        loss(np.ones((2, 3)), np.zeros(2))
