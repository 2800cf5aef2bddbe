"""Copies between host and devices in the training loop: explicit, and one fetch a step."""

import jax
import pytest

from jaxrl.run import loop, placement, stage
from tests.jaxrl import tiny

SMALL = {"warm_start.steps": 0, "eval.every": 0, "steps": 2, "updates_per_batch": 2}


@pytest.mark.broad
def test_a_step_fetches_once_after_all_its_updates(tmp_path, monkeypatch):
    """With what is measured of the batch in between, which needs nothing of theirs."""
    events, fetch, program = [], jax.device_get, stage.program
    measure = loop.experience.measure

    def fetched(tree):
        if isinstance(tree, tuple) and isinstance(tree[0], list):
            events.append(f"fetch {len(tree[0])}")
        return fetch(tree)

    def counted(*args):
        update = program(*args)
        return lambda *args: (events.append("update"), update(*args))[1]

    def measured(sampled):
        events.append("measure")
        return measure(sampled)

    monkeypatch.setattr(jax, "device_get", fetched)
    monkeypatch.setattr(stage, "program", counted)
    monkeypatch.setattr(loop.experience, "measure", measured)
    loop.train(tiny.config(tmp_path, **SMALL))
    assert events == ["update", "update", "measure", "fetch 2"] * 2


@pytest.mark.broad
def test_an_implicit_copy_to_the_devices_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "pack", placement.on_host)
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        loop.train(tiny.config(tmp_path, **SMALL, **{"rollout_log.every": 0}))
