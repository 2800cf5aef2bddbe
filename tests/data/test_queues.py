"""Which worker is asked what."""

import threading
import time

from jaxrl.data.scoring import worker_queues
from jaxrl.data.scoring.worker_queues import Queues


def taken(queue, worker):
    """What a worker takes now; None where it would have to wait."""
    got = []
    thread = threading.Thread(target=lambda: got.append(queue.take(worker)), daemon=True)
    thread.start()
    thread.join(0.1)
    if got:
        return got[0][0], got[0][2]
    queue.put("wake", worker=worker)
    thread.join(5)
    assert got[0][0] == "wake"
    return None


def test_an_episode_stays_with_its_worker_while_that_lives(monkeypatch):
    monkeypatch.setattr(worker_queues, "PATIENCE_S", 60.0)
    queue = Queues(2)
    for episode in range(6):
        queue.put(f"begin {episode}", episode)
    assert [taken(queue, 0) for _ in range(4)] == [
        *((f"begin {n}", False) for n in (0, 2, 4)),
        None,
    ]
    queue.put("turn", 2)
    queue.put("score")
    assert taken(queue, 1) == ("begin 1", False)
    assert taken(queue, 0) == ("turn", True) and taken(queue, 0) == ("score", False)
    queue.put("late", 2)
    queue.ended(0)
    assert [taken(queue, 1)[0] for _ in range(2)] == ["begin 3", "begin 5"]
    assert taken(queue, 1) == ("late", False)
    queue.put("next", 2)
    assert taken(queue, 0) is None and taken(queue, 1) == ("next", True)
    assert queue.over(2) == [1] and queue.over(2) == []


def test_a_worker_that_keeps_an_episode_waiting_loses_it(monkeypatch):
    monkeypatch.setattr(worker_queues, "PATIENCE_S", 0.3)
    queue = Queues(2)
    queue.put("begin", 7)
    assert taken(queue, 0) == ("begin", False)
    queue.put("turn", 7)
    assert taken(queue, 1) is None
    time.sleep(0.4)
    assert taken(queue, 1) == ("turn", False)
    queue.put("turn", 7)
    assert taken(queue, 1) == ("turn", True)
    assert queue.over(7, but=1) == [0]  # which remembers the beginning


def test_a_waiting_worker_wakes_up_for_what_another_leaves(monkeypatch):
    monkeypatch.setattr(worker_queues, "PATIENCE_S", 0.1)
    queue, got = Queues(2), []
    queue.put("begin", 7)
    queue.take(0)
    thread = threading.Thread(target=lambda: got.append(queue.take(1)))
    thread.start()
    queue.put("turn", 7)
    thread.join(5)
    assert got == [("turn", 7, False)]


def test_closed_queues_are_emptied_first():
    queue = Queues(1)
    queue.put("a", 1)
    queue.put("b")
    queue.close()
    assert [queue.take(0), queue.take(0), queue.take(0)] == [
        ("a", 1, False),
        ("b", None, False),
        None,
    ]
