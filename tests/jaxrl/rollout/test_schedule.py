"""The schedule, under every order of events: no group lost or trained twice, and a hard bound."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from jaxrl.rollout import schedule
from jaxrl.rollout.schedule import (
    Admit,
    Arrived,
    Dropped,
    Ended,
    Finished,
    Joined,
    Limits,
    Lost,
    Publish,
    Resume,
    State,
    Swap,
    Train,
    Trained,
    decide,
)

NAMES = ("a", "b", "c")


class World:
    """What happens outside `decide`, kept independently of its state."""

    def __init__(self, limits):
        self.limits, self.state = limits, State()
        self.weights: dict[str, int] = {}  # that each worker really samples with
        self.under_way: dict[str, set[int]] = {}
        self.sent: list[tuple[str, int]] = []
        self.sampled: dict[int, set[int]] = {}  # group: versions of its tokens
        self.admitted: list[int] = []
        self.dropped: set[int] = set()
        self.trained: list[tuple[int, ...]] = []
        self.training: tuple[int, ...] = ()
        self.steps = 0

    def tell(self, event):
        self.state, actions = decide(self.state, event, self.limits)
        for action in actions:
            match action:
                case Admit(worker, numbers):
                    assert not set(numbers) & set(self.admitted)
                    self.admitted += numbers
                    self.under_way[worker] |= set(numbers)
                case Resume(worker, numbers):
                    assert not any(set(numbers) & own for own in self.under_way.values())
                    self.under_way[worker] |= set(numbers)
                case Swap(worker, version):
                    assert (worker, version) not in self.sent and version > self.weights[worker]
                    self.weights[worker] = version
                case Publish(worker, version):
                    assert version == self.steps
                    self.sent.append((worker, version))
                case Train(numbers):
                    self.train(numbers)

    def train(self, numbers):
        assert not self.training and len(numbers) == self.limits.groups_per_step
        earlier = {number for taken in self.trained for number in taken}
        assert not set(numbers) & (earlier | self.dropped)
        assert not any(set(numbers) & own for own in self.under_way.values())
        self.training = numbers
        self.trained.append(numbers)
        for number in numbers:
            lag = self.steps - min(self.sampled[number])
            assert self.limits.staleness is None or lag <= self.limits.staleness
        if self.limits.order == "admitted":
            left = [n for n in self.admitted if n not in earlier | self.dropped]
            assert list(numbers) == left[: len(numbers)]

    def join(self, worker):
        self.weights[worker], self.under_way[worker] = max(0, self.steps - 1), set()
        self.tell(Joined(worker, self.weights[worker]))

    def lose(self, worker):
        self.sent = [(name, v) for name, v in self.sent if name != worker]
        del self.weights[worker], self.under_way[worker]
        self.tell(Lost(worker))

    def chunk(self, worker, chosen=lambda group: True, drop=lambda group: False):
        for group in sorted(self.under_way[worker]):
            self.sampled.setdefault(group, set()).add(self.weights[worker])
            if chosen(group):
                self.under_way[worker].discard(group)
                if drop(group):
                    self.dropped.add(group)
                self.tell((Dropped if drop(group) else Finished)(worker, group))
        self.tell(Ended(worker))

    def restart(self):
        """All processes end after a step; the groups are what its checkpoint keeps of them."""
        if self.training:
            self.training, self.steps = (), self.steps + 1
        groups = tuple(g._replace(worker=None) for g in self.state.groups)
        self.state = State(step=self.steps, groups=groups, admitted=self.state.admitted)
        self.weights, self.under_way, self.sent = {}, {}, []

    def arrive(self, which=0):
        worker, version = self.sent.pop(which)
        self.tell(Arrived(worker, version))

    def end_step(self):
        self.training, self.steps = (), self.steps + 1
        self.tell(Trained())

    def finish(self):
        """From here on everything that can happen does: the run must come to its end."""
        if not self.weights:
            self.join("a")
        for _ in range(12 * self.limits.steps):
            while self.sent:
                self.arrive()
            for worker in self.weights:
                self.chunk(worker)
            if self.training:
                self.end_step()
        assert self.steps == self.limits.steps, f"makes no progress: {self.state}"
        assert not self.state.groups and not any(self.under_way.values())


class AnyOrder(RuleBasedStateMachine):
    @initialize(
        size=st.integers(1, 3),
        staleness=st.none() | st.integers(0, 3),
        order=st.sampled_from(["admitted", "finished"]),
        more=st.integers(0, 4),
        steps=st.integers(1, 5),
    )
    def begin(self, size, staleness, order, more, steps):
        in_flight = size + more if more or staleness is None else 0
        limits = Limits(size, staleness, in_flight, order, steps)
        schedule.check(limits)
        self.world = World(limits)

    @rule(worker=st.sampled_from(NAMES))
    def join(self, worker):
        if worker not in self.world.weights:
            self.world.join(worker)

    @precondition(lambda self: self.world.weights)
    @rule(data=st.data(), pick=st.integers(0, 7), drop=st.integers(0, 15))
    def chunk(self, data, pick, drop):
        worker = data.draw(st.sampled_from(sorted(self.world.weights)))
        self.world.chunk(worker, lambda g: pick >> g % 3 & 1, lambda g: g % 16 == drop)

    @precondition(lambda self: self.world.sent)
    @rule(data=st.data())
    def arrive(self, data):
        self.world.arrive(data.draw(st.integers(0, len(self.world.sent) - 1)))

    @precondition(lambda self: self.world.training)
    @rule()
    def end_step(self):
        self.world.end_step()

    @precondition(lambda self: self.world.weights)
    @rule(data=st.data())
    def lose(self, data):
        worker = data.draw(st.sampled_from(sorted(self.world.weights)))
        under_way = sorted(self.world.under_way[worker])
        self.world.lose(worker)
        for group in under_way[:1]:
            self.world.tell(Finished(worker, group))  # a message that was still under way

    @rule()
    def restart(self):
        self.world.restart()

    @invariant()
    def every_group_is_somewhere(self):
        world = getattr(self, "world", None)
        if world is None:
            return
        taken = {number for numbers in world.trained for number in numbers}
        live = {group.number for group in world.state.groups}
        assert taken | world.dropped | live == set(world.admitted)
        assert not live & (taken | world.dropped)
        under_way = set().union(*world.under_way.values())
        assert under_way <= live
        assert dict(world.state.held) == world.weights

    def teardown(self):
        if hasattr(self, "world"):
            self.world.finish()


AnyOrder.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink a failure takes minutes
)
TestAnyOrder = AnyOrder.TestCase


def started(limits, **fields):
    state, _ = decide(State(**fields), Joined("a", fields.get("step", 0)), limits)
    state, actions = decide(state, Ended("a"), limits)
    return state, actions


@pytest.mark.parametrize(("staleness", "count"), [(0, 2), (1, 4), (3, 8)])
def test_as_many_groups_begin_as_their_steps_allow(staleness, count):
    _, actions = started(Limits(2, staleness))
    assert actions == [Admit("a", tuple(range(count)))]


def test_after_a_resume_capacity_follows_from_the_groups_that_are_there():
    """A counter that began at zero would admit a whole bound of groups too many."""
    left = tuple(schedule.GroupState(number, 7, None) for number in (40, 41, 42))
    state, actions = started(Limits(2, 1), step=7, groups=left, admitted=43)
    assert actions == [Resume("a", (40, 41, 42)), Admit("a", (43,))]
    assert len(state.groups) == 4


def test_a_batch_that_was_whole_when_the_run_ended_is_trained_on_after_a_restart():
    left = (schedule.GroupState(4, 1, None, finished=2),)
    _, actions = decide(State(step=2, groups=left, admitted=5), Joined("a", 2), Limits(1, 1))
    assert actions == [Train((4,))]


def test_a_dropped_group_gives_its_place_back():
    limits = Limits(2, 0)
    state, _ = started(limits)
    state, _ = decide(state, Dropped("a", 0), limits)
    state, actions = decide(state, Ended("a"), limits)
    assert actions == [Admit("a", (2,))]


def test_slow_groups_are_waited_for_and_not_passed_over():
    limits = Limits(1, 2)
    state, _ = started(limits)
    for number in (1, 2):
        state, actions = decide(state, Finished("a", number), limits)
        assert actions == []
    state, actions = decide(state, Finished("a", 0), limits)
    assert actions == [Train((0,))]


def test_in_order_of_finishing_a_group_that_is_due_is_waited_for():
    limits = Limits(1, 1, order="finished")
    state, _ = started(limits)
    state, actions = decide(state, Finished("a", 1), limits)
    assert actions == [Train((1,))]
    state, actions = decide(state, Trained(), limits)
    state, _ = decide(state, Arrived("a", 1), limits)
    state, actions = decide(state, Ended("a"), limits)
    assert actions == [Swap("a", 1), Admit("a", (2,))]
    state, actions = decide(state, Finished("a", 2), limits)
    assert actions == [], "group 0 was sampled by version 0 and this is the last step that may"
    state, actions = decide(state, Finished("a", 0), limits)
    assert actions == [Train((0,))]


def test_nothing_begins_that_no_step_will_take():
    limits = Limits(2, 5, steps=2)
    _, actions = started(limits, step=1)
    assert actions == [Admit("a", (0, 1))]


def test_weights_count_when_they_have_arrived_not_when_they_are_sent():
    limits = Limits(1, 0)
    state, _ = started(limits)
    state, _ = decide(state, Finished("a", 0), limits)
    state, actions = decide(state, Trained(), limits)
    assert actions == [Publish("a", 1)]
    assert decide(state, Ended("a"), limits)[1] == []
    state, _ = decide(state, Arrived("a", 1), limits)
    assert decide(state, Ended("a"), limits)[1] == [Swap("a", 1), Admit("a", (1,))]


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (Limits(2, -1), "staleness=-1"),
        (Limits(2, None), "in_flight=0"),
        (Limits(2, 1, 1), "in_flight=1"),
    ],
)
def test_limits_that_cannot_work_are_refused(limits, field):
    with pytest.raises(ValueError, match=field):
        schedule.check(limits)
