"""A plan's figures, where they can be counted by hand."""

from __future__ import annotations

import jax
import pytest

from jaxrl import mesh
from jaxrl.config import Config, FreshModel
from jaxrl.mesh import MeshConfig
from launch import plan
from launch.plan import PlanConfig

CONFIG = Config(fresh=FreshModel(64, 128, 2, 4, 2, 16), task_args={"digits": 1})


def test_bytes_of_a_small_model_on_one_device():
    with jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1])):
        lines = list(plan.lines(CONFIG, PlanConfig()))
    totals = [line.split() for line in lines if line.endswith("MiB a device")][1:]
    mib = {words[0]: float(words[-4]) for words in totals}
    layer = 64 * (4 + 2 + 2) * 16 + 4 * 16 * 64 + 3 * 64 * 128 + 2 * 64
    vocabulary = next(int(s.split("(")[1].split(",")[0]) for s in lines if s.startswith("embed"))
    parameters = 4 * (2 * layer + 64 * vocabulary + 64) / 2**20
    assert mib["parameters"] == pytest.approx(parameters, abs=0.06)
    assert mib["gradients"] == mib["parameters"]
    assert mib["optimizer"] == pytest.approx(2 * parameters, abs=0.06)
    assert lines[-1].endswith("of a v5p: fits")


def test_collectives_are_read_from_a_program():
    program = """
      %all-gather.1 = f32[16,64]{1,0} all-gather(%p), dimensions={0}
      %all-reduce.2 = (f32[8]{0}, bf16[4,4]{1,0}) all-reduce(%a, %b), to_apply=%add
      %all-reduce.3 = f32[8]{0} all-reduce-start(%a), to_apply=%add
      %fusion.4 = f32[8]{0} fusion(%all-reduce.3)
    """
    assert plan.collectives(program) == {
        ("all-gather", "f32[16,64]"): 1,
        ("all-reduce", "f32[8]"): 2,
        ("all-reduce", "bf16[4,4]"): 1,
    }


def test_an_unknown_chip_is_refused():
    with pytest.raises(ValueError, match="chip='v9' is unknown; choose one of v5e"):
        plan.show(CONFIG, PlanConfig(chip="v9"))
