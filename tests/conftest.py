"""What all tests share."""

from __future__ import annotations

import collections
import ctypes
import faulthandler
import gc
import os
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest

from jaxrl.data.sandbox import runner
from jaxrl.launch import cli
from tests import COMPILED, FEWER_FUSIONS

_MEMORY_PAGES = 300_000
"""Resident pages of 4 KiB from which on a process drops its compiled programs: 1.2 GB."""
EXPLORE = "JAXRL_EXPLORE"
"""Set to 1, this variable lets Hypothesis draw other examples each time."""
UNTIL = "JAXRL_TESTS_UNTIL"
"""Seconds since 1970 from which on no further test begins: the rest is skipped and counted."""


def pytest_configure() -> None:
    """Share compiled programs between the tests, their processes and the next time."""
    cli.few_arenas()  # as `jaxrl train` does
    # The same examples each time: a change is judged by what it changes. `JAXRL_EXPLORE=1` looks
    # for new ones.
    hypothesis.settings.register_profile(
        "jaxrl", derandomize=os.environ.get(EXPLORE) != "1", database=None
    )
    hypothesis.settings.load_profile("jaxrl")
    if runner.strongest().kind == "rlimits":  # the programs that tests run are the project's own
        os.environ.setdefault(runner.ALLOW_WEAK, "1")
    os.environ["XDG_STATE_HOME"] = f"{COMPILED}-state"  # what runs of tests note of themselves
    cache = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", COMPILED)
    jax.config.update("jax_compilation_cache_dir", cache)
    # Programs of tests are small: without this, most compile too quickly to be kept.
    least = os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float(least))
    # Compiling takes most of the tests' time. Tests marked `optimized` and the slow ones run
    # programs that are compiled as a user's are.
    fast = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    jax.config.update("jax_disable_most_optimizations", fast == "1")
    flags = os.environ.get("XLA_FLAGS", "")
    if fast == "1" and FEWER_FUSIONS not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {FEWER_FUSIONS}".strip()


@pytest.hookimpl(tryfirst=True)  # before the marks select
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Of a test marked `sample(ordinary, broad=n)`, make further cases `broad` or `slow`.

    Cases that are named one by one, or that have failed before (`--lf`), stay as they are. The file
    whose one test takes minutes comes first, lest it run alone at the end. Where time is limited,
    each day begins with another file, so that it is not always the same ones that are left.
    """
    files = list(dict.fromkeys(item.path for item in items))
    day = int(os.environ.get(UNTIL, 0)) // 86400
    place = {path: (i - 97 * day) % len(files) for i, path in enumerate(files)}
    items.sort(key=lambda item: (item.path.name != "test_accelerator.py", place[item.path]))
    if config.getoption("lf", default=False) or any("[" in argument for argument in config.args):
        return
    tests: dict[str, list[pytest.Function]] = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        mark = cases[0].get_closest_marker("sample")
        (ordinary,), broad = mark.args, mark.kwargs.get("broad", 0)
        assert ordinary + broad, f"{cases[0].nodeid}: no case is left for CI"
        chosen = _sampled_first(cases, ordinary + broad)
        for item in chosen[ordinary:]:
            item.add_marker("broad")
        for item in {*cases} - {*chosen}:
            item.add_marker("slow")


def _sampled_first(cases: list[pytest.Function], count: int) -> list[pytest.Function]:
    """The first `count` cases, in their order.

    Ordinary ones come before those that are `broad` already; then those that show most values of
    parameters that no case before them has; then by a checksum of their names, which mixes them the
    same each time.
    """
    mixed = sorted(cases, key=lambda item: zlib.crc32(item.name.encode()))
    is_broad = {item: item.get_closest_marker("broad") is not None for item in mixed}
    values = {item: set(item.callspec.indices.items()) for item in mixed}
    order: list[pytest.Function] = []
    seen: set[tuple[str, int]] = set()
    for broad in (False, True):
        left = [item for item in mixed if is_broad[item] == broad]
        while left and len(order) < count:
            best = max(left, key=lambda item: len(values[item] - seen))
            seen |= values[best]
            left.remove(best)
            order.append(best)
    return order


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no test after the time that `UNTIL` sets. One with a longer limit of its own is not
    ended by `faulthandler_timeout`."""
    if time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip("no time was left for it")
    limit = item.get_closest_marker("timeout")
    if limit is not None and limit.args and limit.args[0] >= 900:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True, scope="module")
def room_to_compile() -> Iterator[None]:
    """Drop compiled programs between modules, once they hold much memory. Each also has memory
    maps, of which Linux gives a process 65,530; LLVM fails without one. They stay in the cache on
    disk."""
    yield
    statm = Path("/proc/self/statm")
    if statm.exists() and int(statm.read_text().split()[1]) > _MEMORY_PAGES:
        jax.clear_caches()
        gc.collect()
        if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
            trim(0)  # else glibc keeps the freed pages
