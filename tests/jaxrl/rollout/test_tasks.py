"""Which tasks a run asks for."""

import pytest

from jaxrl.config import Config, Domain
from jaxrl.rollout import tasks

ONE, TURNS = Config(task="arithmetic"), Config(task="keydoor")
MIXED = Config(domains={"sums": Domain("arithmetic"), "rooms": Domain("keydoor")})


@pytest.mark.parametrize(
    ("config", "of_all", "refused"),
    [
        (ONE, True, True),
        (ONE, False, True),
        (TURNS, True, False),
        (TURNS, False, False),
        (MIXED, True, True),
        (MIXED, False, False),
    ],
)
def test_a_task_or_a_part_of_a_mixture_must_have_turns(config, of_all, refused):
    if not refused:
        tasks.require_turns(config, "values", of_all=of_all)
        return
    said = "values: task 'arithmetic' is answered in one turn; use a task with turns, or none$"
    with pytest.raises(ValueError, match=said):
        tasks.require_turns(config, "values", of_all=of_all, or_else=", or none")
