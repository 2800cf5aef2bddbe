"""The prompt stream: order, epochs, hosts and exact restart."""

import collections
import itertools
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.data import tasks
from jaxrl.data.sources import stream


def ids(iterator, batches):
    return [p.id for batch in itertools.islice(iterator, batches) for p in batch]


def finite(size):
    return tasks.get("tests.data.hostile:finite", size=size)


@pytest.mark.broad
@pytest.mark.exact("a stream restarted on any number of hosts neither repeats nor skips a problem")
@settings(max_examples=12, deadline=None)
@given(
    size=st.sampled_from([1, 29, 47]),
    hosts=st.sampled_from([1, 2, 4]),
    per_host=st.integers(1, 3),
    cut=st.integers(0, 12),
    after=st.sampled_from([1, 2, 4]),
)
def test_restart_on_any_number_of_hosts_neither_repeats_nor_skips(
    size, hosts, per_host, cut, after
):
    batch = 4 * per_host

    def run(count, state, batches):
        streams = [
            stream.prompts(finite(size), seed=7, batch_size=batch, host_index=h, host_count=count)
            for h in range(count)
        ]
        for s in streams if state else ():
            s.set_state(json.loads(state))
        got = [sorted(p.id for s in streams for p in next(s)) for _ in range(batches)]
        return got, json.dumps(streams[0].get_state())

    before, state = run(hosts, None, cut)
    resumed = before + run(after, state, 14 - cut)[0]
    assert resumed == run(1, None, 14)[0]
    flat = ids(stream.prompts(finite(size), seed=7, batch_size=batch), 14)
    for epoch in range(len(flat) // size):
        assert len(set(flat[epoch * size : (epoch + 1) * size])) == size


def test_epochs_and_seeds_are_shuffled_differently():
    flat = ids(stream.prompts(finite(50), seed=0, batch_size=10), 10)
    assert collections.Counter(flat).most_common()[-1][1] == 2
    assert flat[:50] != flat[50:] and flat[:50] != [str(i) for i in range(50)]
    assert flat != ids(stream.prompts(finite(50), seed=1, batch_size=10), 10)
    assert flat == ids(stream.prompts(finite(50), seed=0, batch_size=10), 10)
    large = ids(stream.prompts(finite(50), seed=2 << 32, batch_size=10), 5)
    assert sorted(large) == sorted(flat[:50])


def test_an_endless_task_is_made_by_seed_and_index():
    task = tasks.get("arithmetic")
    batch = next(stream.prompts(task, split="test", seed=3, batch_size=4))
    assert batch == [task.problem("test", 3, i) for i in range(4)]


@pytest.mark.broad
@pytest.mark.exact("two processes restarted within an epoch neither repeat nor skip a problem")
def test_two_processes_restarted_in_mid_epoch(tmp_path):
    program = (
        "import json, sys; from jaxrl.data.sources import stream\nfrom jaxrl.data import tasks\n"
        "host, batches, state = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])\n"
        "task = tasks.get('tests.data.hostile:finite', size=30)\n"
        "it = stream.prompts(task, seed=1, batch_size=4, host_index=host, host_count=2)\n"
        "if state: it.set_state(state)\n"
        "got = [[p.id for p in next(it)] for _ in range(batches)]\n"
        "print(json.dumps([got, it.get_state()]))\n"
    )

    def host(index, batches, state=None):
        arguments = [sys.executable, "-c", program, str(index), str(batches), json.dumps(state)]
        return json.loads(subprocess.run(arguments, check=True, capture_output=True).stdout)

    batches = []
    first = [host(h, 5) for h in range(2)]
    batches += [sorted(a + b) for a, b in zip(first[0][0], first[1][0], strict=True)]
    second = [host(h, 10, first[h][1]) for h in range(2)]
    batches += [sorted(a + b) for a, b in zip(second[0][0], second[1][0], strict=True)]
    alone = stream.prompts(finite(30), seed=1, batch_size=4)  # and another number of processes
    alone.set_state(second[0][1])
    batches += [sorted(p.id for p in next(alone)) for _ in range(15)]
    whole = stream.prompts(finite(30), seed=1, batch_size=4)
    assert batches == [sorted(p.id for p in next(whole)) for _ in range(30)]
    counts = collections.Counter(itertools.chain(*batches))
    assert set(counts.values()) == {4} and len(counts) == 30


@pytest.mark.parametrize("batch", [1, 4])
def test_problems_that_are_not_kept_are_passed_over(batch):
    def run(state=None):
        odd = lambda p: int(p.id) % 2  # noqa: E731
        made = stream.prompts(finite(20), seed=3, batch_size=batch, keep=odd)
        if state:
            made.set_state(json.loads(state))
        return made

    first, whole = run(), run()
    got = ids(first, 12 // batch)
    got += ids(run(json.dumps(first.get_state())), 28 // batch)
    assert got == ids(whole, 40 // batch)
    assert collections.Counter(got) == {str(i): 4 for i in range(1, 20, 2)}


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="batch_size=3 must be a positive multiple"):
        stream.prompts(finite(3), seed=0, batch_size=3, host_count=2)
    with pytest.raises(ValueError, match="split='test': task"):
        stream.prompts(finite(3), seed=0, batch_size=2, split="test")
