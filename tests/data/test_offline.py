"""Offline data: readers against files laid out as their authors' are, statistics by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxrl.data.offline import corrupt, readers, statistics, transitions
from jaxrl.data.offline.transitions import Transitions


def rows(lengths, seed=0, terminal=True):
    """Trajectories of these lengths, whose observations count the steps."""
    rng = np.random.default_rng(seed)
    count = sum(lengths)
    ends = np.zeros(count)
    ends[np.cumsum(lengths) - 1] = 1.0
    here = np.arange(count, dtype=np.float32)[:, None].repeat(2, axis=1)
    actions = rng.uniform(-1, 1, (count, 2))
    rewards = rng.normal(size=count)
    return transitions.check(Transitions(here, actions, rewards, here + 1, ends * terminal, ends))


def test_returns_to_go_by_hand():
    data = rows([2, 3])._replace(rewards=np.array([1.0, 2.0, 3.0, 4.0, 5.0], np.float32))
    np.testing.assert_allclose(transitions.returns(data), [3, 12])
    expected = [1 + 0.5 * 2, 2, 3 + 0.5 * (4 + 0.5 * 5), 4 + 0.5 * 5, 5]
    np.testing.assert_allclose(transitions.returns_to_go(data, 0.5), expected)
    np.testing.assert_array_equal(transitions.next_actions(data), data.actions[[1, 1, 3, 4, 4]])


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8), share=st.floats(0.05, 1.0))
def test_the_best_are_whole_trajectories_none_of_which_is_below_one_left_out(lengths, share):
    data = rows(lengths)
    kept = transitions.best(data, share)
    assert len(kept.rewards) >= share * len(data.rewards) - 1e-6
    all_returns, kept_returns = transitions.returns(data), transitions.returns(kept)
    left = sorted(all_returns)[: len(all_returns) - len(kept_returns)]
    assert not left or max(left) <= kept_returns.min() + 1e-6
    starts = {int(data.observations[e.start, 0]) for e in transitions.episodes(data)}
    assert {int(kept.observations[e.start, 0]) for e in transitions.episodes(kept)} <= starts


def test_a_mix_has_the_shares_asked_for():
    bad, good = rows([5] * 40, 1), rows([5] * 40, 2)
    good = good._replace(rewards=good.rewards + 100.0)
    mixed = transitions.mix([bad, good], (0.8, 0.2), 100, seed=0)
    assert np.mean(mixed.rewards > 50) == pytest.approx(0.2, abs=0.05)
    with pytest.raises(ValueError, match="source 1 has 200 steps"):
        transitions.mix([bad, good], (0.0, 1.0), 300, seed=0)


def test_what_cannot_be_data_is_refused():
    data = rows([3])
    with pytest.raises(ValueError, match="actions reach 2"):
        transitions.check(data._replace(actions=np.full((3, 2), 2.0)))
    with pytest.raises(ValueError, match="observations has 2 steps"):
        transitions.check(data._replace(observations=data.observations[:2]))
    with pytest.raises(ValueError, match="rewards holds values"):
        transitions.check(data._replace(rewards=np.array([0, np.nan, 0])))


@pytest.mark.parametrize("stored", [True, False])
def test_d4rl_columns(stored):
    """Two trajectories, one ended and one cut off; a time-out is no terminal."""
    columns = {
        "observations": np.arange(6.0)[:, None],
        "actions": np.zeros((6, 1)),
        "rewards": np.arange(6.0),
        "terminals": np.array([0, 0, 1, 0, 0, 0], bool),
        "timeouts": np.array([0, 0, 0, 0, 0, 1], bool),
    }
    if stored:
        columns["next_observations"] = columns["observations"] + 1
    data = readers.from_columns(columns)
    kept = 6 if stored else 5  # what followed the cut is not in the file
    np.testing.assert_array_equal(data.rewards, np.arange(kept))
    np.testing.assert_array_equal(data.terminals, [0, 0, 1, 0, 0, 0][:kept])
    assert [e.stop for e in transitions.episodes(data)] == [3, kept]
    follows = data.next_observations[:, 0]
    np.testing.assert_array_equal(follows[[0, 1, 3]], [1, 2, 4])
    with pytest.raises(ValueError, match="rewards"):
        readers.from_columns({k: v for k, v in columns.items() if k != "rewards"})


@pytest.mark.extra
def test_d4rl_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "set.hdf5", "w") as file:
        file["observations"], file["actions"] = np.zeros((4, 3)), np.zeros((4, 2))
        file["rewards"], file["terminals"] = np.ones(4), np.array([0, 1, 0, 1], bool)
        file["infos/qpos"] = np.zeros((4, 9))
    data = readers.read(str(tmp_path / "set.hdf5"))
    assert len(data.rewards) == 4 and len(transitions.episodes(data)) == 2


def test_ogbench_file(tmp_path):
    """Its `terminals` mark the last state of a trajectory, which has no action of its own."""
    np.savez(
        tmp_path / "set.npz",
        observations=np.arange(6.0)[:, None],
        actions=np.zeros((6, 1)),
        terminals=np.array([0, 0, 1, 0, 0, 1]),
    )
    data = readers.read(str(tmp_path / "set.npz"))
    np.testing.assert_array_equal(data.observations[:, 0], [0, 1, 3, 4])
    np.testing.assert_array_equal(data.next_observations[:, 0], [1, 2, 4, 5])
    np.testing.assert_array_equal(data.ends, [0, 1, 0, 1])
    assert not data.terminals.any()


def test_minari_and_rlds_episodes():
    episode = SimpleNamespace(
        observations={"b": np.arange(4.0)[:, None], "a": np.zeros((4, 2))},
        actions=np.zeros((3, 1)),
        rewards=np.ones(3),
        terminations=np.array([False, False, True]),
    )
    data = readers.minari_episode(episode, SimpleNamespace(n=3))
    np.testing.assert_array_equal(data.observations, [[0, 0, 0], [0, 0, 1], [0, 0, 2]])
    np.testing.assert_array_equal(data.next_observations[:, 2], [1, 2, 3])
    assert data.terminals.tolist() == [0, 0, 1] == data.ends.tolist()
    steps = [
        {"observation": np.full(2, i), "action": np.zeros(1), "reward": i, "is_terminal": i == 3}
        for i in range(4)
    ]
    rlds = readers.rlds_episode(steps)
    np.testing.assert_array_equal(rlds.rewards, [0, 1, 2])
    np.testing.assert_array_equal(rlds.next_observations[:, 0], [1, 2, 3])
    assert rlds.terminals.tolist() == [0, 0, 1]


def test_actions_of_minari_are_scaled_from_their_bounds_and_back():
    low, high = np.array([-2.0, 0.0]), np.array([2.0, 0.4])
    episode = SimpleNamespace(
        observations=np.zeros((4, 3)),
        actions=np.array([[-2.0, 0.0], [0.0, 0.2], [1.0, 0.4]]),
        rewards=np.ones(3),
        terminations=np.zeros(3, bool),
    )
    data = readers.minari_episode(episode, SimpleNamespace(low=low, high=high))
    np.testing.assert_allclose(data.actions, [[-1, -1], [0, 0], [0.5, 1]], atol=1e-6)
    back = transitions.from_unit_box(data.actions, low, high)
    np.testing.assert_allclose(back, episode.actions, atol=1e-6)
    with pytest.raises(ValueError, match="finite"):
        readers.minari_episode(episode, SimpleNamespace(low=low, high=np.array([np.inf, 1.0])))


@pytest.mark.exact("a file of transitions is read back as it was written")
def test_a_file_of_transitions_comes_back_whole(tmp_path):
    data = rows([3, 4, 2])
    readers.write(tmp_path / "own.npz", data)
    found = readers.read(str(tmp_path / "own.npz"))
    for a, b in zip(data[:-1], found[:-1], strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=40, deadline=None)
@given(names=st.sets(st.sampled_from([*readers.FIELDS, "masks", "timeouts", "qpos", "done"])))
@example(names={"observations", "actions", "rewards", "terminals", "ends"})
@example(names={"observations", "actions", "rewards", "terminals", "timeouts"})
@example(names={"observations", "actions", "rewards", "terminals"})
@example(names={"observations", "actions", "rewards", "terminals", "masks"})
@example(names={*readers.FIELDS} - {"ends"})
def test_a_file_of_neither_format_is_refused_and_none_is_misread(names, tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "set.npz"
    columns = rows([3, 2])._asdict() | {"masks": np.ones(5), "timeouts": np.zeros(5)}
    columns |= {"qpos": np.zeros((5, 2)), "done": np.zeros(5)}
    np.savez(path, **{name: columns[name] for name in names})
    whole = set(readers.FIELDS) <= names
    plain = {"observations", "actions", "terminals"}
    ogbench = plain <= names <= plain | {"rewards", "masks", "qpos"}
    if whole:
        assert len(readers.read(str(path)).rewards) == 5
    elif plain | {"rewards"} <= names and names & {"ends", "timeouts"}:
        # the last step is a terminal, so it needs no next observation and is kept
        assert len(readers.read(str(path)).rewards) == 5
    elif ogbench and ("rewards" in names) == ("masks" in names):
        assert len(readers.read(str(path)).rewards) == 3
    else:
        with pytest.raises(ValueError, match="missing") as refusal:
            readers.read(str(path))
        assert all(f"'{name}'" in str(refusal.value) for name in set(readers.FIELDS) - names)


def test_next_observations_of_terminals_may_hold_anything():
    data = rows([2, 3])
    after = data.next_observations.copy()
    after[data.terminals > 0] = np.nan
    checked = transitions.check(data._replace(next_observations=after))
    assert np.isfinite(checked.next_observations).all()
    after[0] = np.nan
    with pytest.raises(ValueError, match="next_observations holds"):
        transitions.check(data._replace(next_observations=after))


def test_what_is_no_data_set_is_refused(tmp_path):
    with pytest.raises(ValueError, match="minari:NAME"):
        readers.read("hopper-medium")
    with pytest.raises(FileNotFoundError, match="download"):
        readers.read(str(tmp_path / "none.npz"))


def test_scores_by_hand():
    bounds = statistics.Bounds(-10.0, 90.0)
    assert statistics.normalised_score(40.0, bounds) == 50.0
    hopper = statistics.D4RL["hopper"]
    assert statistics.normalised_score(3234.3, hopper) == pytest.approx(100.0)
    data = rows([1, 1])._replace(rewards=np.array([0.0, 80.0], np.float32))
    assert statistics.trajectory_quality(data, bounds) == pytest.approx(0.5)
    assert statistics.headroom(data) == pytest.approx((40.0**2) / 2)
    with pytest.raises(ValueError, match="above the random policy"):
        statistics.normalised_score(0.0, statistics.Bounds(1.0, 1.0))


def test_scores_around_the_mean_of_the_data_by_hand():
    """The numbers are those of the authors' code for their maze, worked out by hand."""
    bounds = statistics.Bounds(-101.0, -6.84)
    for value, score in ((-101, 0), (-92, 25), (-83, 50), (-44.92, 75), (-6.84, 100)):
        assert statistics.centred_score(value, bounds, -83.0) == pytest.approx(score)
    assert statistics.centred_score(-72.1, bounds, -83.0) == pytest.approx(57.156, abs=1e-3)
    for average in (-101.0, -6.84, 0.0):
        with pytest.raises(ValueError, match="average="):
            statistics.centred_score(-50.0, bounds, average)


def test_coverage_counts_distinct_pairs():
    data = rows([40])
    half = transitions.take(data, slice(0, 20))
    assert statistics.coverage(data, data) == 1.0
    assert statistics.coverage(half, data, bins=40) == pytest.approx(0.5, abs=0.1)
    twice = transitions.concatenate([half, half])
    assert statistics.coverage(twice, data) == statistics.coverage(half, data)


@pytest.mark.parametrize("element", corrupt.ELEMENTS)
def test_corruption_hits_one_element_of_the_part_asked_for(element):
    data = rows([50, 50])
    hit = corrupt.corrupt(data, element, rate=0.3, scale=1.0, seed=1)
    changed = np.any((getattr(hit, element) != getattr(data, element)).reshape(100, -1), axis=1)
    assert changed.sum() == pytest.approx(30, abs=3)
    for other in set(corrupt.ELEMENTS) - {element}:
        np.testing.assert_array_equal(getattr(hit, other), getattr(data, other))
    assert np.abs(hit.actions).max() <= 1.0
    gradient = np.ones_like(getattr(data, element))
    worse = corrupt.attack(data, element, gradient, rate=0.3, scale=0.5, seed=1)
    step = (getattr(worse, element) - getattr(data, element)).reshape(100, -1)
    if element in ("observations", "next_observations"):
        np.testing.assert_allclose(
            step.min(axis=0), -0.5 * data.observations.std(axis=0), rtol=1e-4
        )
    with pytest.raises(ValueError, match="element='speed'"):
        corrupt.corrupt(data, "speed")
