"""Permanent objects of a run are exempt from garbage collection, once it compiles nothing more."""

import gc

from jaxrl.record import garbage


def test_objects_are_exempt_after_steady_steps_until_the_run_ends():
    gc.unfreeze()
    with garbage.exempting() as stepped:
        for compiled in (5.0, 7.0, *[8.0] * garbage._STEADY):
            stepped(compiled)
            assert gc.get_freeze_count() == 0
        stepped(8.0)
        assert gc.get_freeze_count() > 0
        stepped(9.0)  # a new program: its objects are exempt after as many steps again
        before = gc.get_freeze_count()
        kept = [[n] for n in range(1000)]
        for _ in range(garbage._STEADY):
            stepped(9.0)
        assert gc.get_freeze_count() > before + len(kept) // 2
    assert gc.get_freeze_count() == 0
