"""Offline data: readers against files laid out as their authors' are, statistics by hand."""

from __future__ import annotations

import itertools
import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxrl import control
from jaxrl.control import spaces as control_spaces
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


def test_data_are_paid_anew():
    data = rows([2, 3])
    paid = control.relabel(data, lambda here, actions, after: after[:, 0] - 2 * actions[:, 1])
    np.testing.assert_allclose(paid.rewards, np.arange(1, 6) - 2 * data.actions[:, 1], rtol=1e-6)
    for name in set(data._fields) - {"rewards", "extra"}:
        np.testing.assert_array_equal(getattr(paid, name), getattr(data, name))
    with pytest.raises(ValueError, match=r"gave \[5, 2\] numbers for 5 steps"):
        control.relabel(data, lambda here, actions, after: here)
    with pytest.raises(ValueError, match="rewards holds values that are not finite"):
        control.relabel(data, lambda here, actions, after: np.full(5, np.nan))


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


LOG = (
    # of each trajectory: states, actions, whether its last step ended it
    (np.arange(4.0), [-2.0, 1.0, 2.0], True),
    (10.0 + np.arange(5.0), [0.0, 0.5, -1.0, 2.0], False),
)
"""Two trajectories of an environment whose actions reach 2."""


def logged(name):
    """A column of all steps of `LOG`; the observations are parts `place` [N, 2] and `door` [N]."""
    parts = []
    for states, actions, over in LOG:
        last = np.arange(len(actions)) == len(actions) - 1
        here = states[1:] if name == "next" else states[:-1]
        seen = {"place": np.stack([here, -here], 1), "door": here.astype(np.int64) % 3}
        column = {
            "observations": seen, "next": seen, "actions": np.array(actions, np.float32)[:, None],
            "rewards": np.array(actions, np.float32) ** 2, "terminals": last & over,
            "timeouts": last & (not over), "ends": last,
        }[name]  # fmt: skip
        parts.append(column)
    if isinstance(parts[0], dict):
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)


COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts")


def as_hdf5(folder, next_ones=False):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "own.hdf5", "w") as file:
        for name in COLUMNS[1:]:
            file[name] = logged(name)
        for name in ("observations", *(["next_observations"] if next_ones else [])):
            for part, values in logged("next" if "next" in name else name).items():
                file[f"{name}/{part}"] = values
    return str(folder / "own.hdf5")


def as_hdf5_with_next_ones(folder):
    return as_hdf5(folder, next_ones=True)


def as_npz(folder):
    seen = logged("observations")
    flat = np.concatenate([seen["door"][:, None], seen["place"]], axis=1)
    columns = {name: logged(name) for name in COLUMNS[1:]}
    np.savez(folder / "own.npz", observations=flat, **columns)
    return str(folder / "own.npz")


def as_robomimic(folder, next_ones=True):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "demos.hdf5", "w") as file:
        for i, (states, actions, over) in enumerate(LOG):
            demo, last = file.create_group(f"data/demo_{9 + i}"), len(actions) - 1
            demo["actions"] = np.array(actions)[:, None]
            demo["rewards"] = np.array(actions) ** 2
            demo["dones"] = (np.arange(len(actions)) == last) * int(over)
            for name, seen in (("obs", states[:-1]), ("next_obs", states[1:])):
                if next_ones or name == "obs":
                    demo[f"{name}/place"] = np.stack([seen, -seen], 1)
                    demo[f"{name}/door"] = seen.astype(int) % 3
                    demo[f"{name}/camera"] = np.zeros((len(seen), 4, 4, 3), np.uint8)
    return f"robomimic:{folder / 'demos.hdf5'}:place,door"


def as_robomimic_without_next_ones(folder):
    return as_robomimic(folder, next_ones=False)


def as_lerobot(folder, version="v3.0"):
    """Every frame of version 3 in one file, of version 2 in a file for each episode."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    features = {
        "observation.state": {"dtype": "float32", "shape": [2]},
        "observation.door": {"dtype": "int64", "shape": [1]},
        "observation.images.top": {"dtype": "video", "shape": [3, 4, 4]},
    }
    plain = ("action", "next.reward", "next.done", "next.success", "episode_index", "frame_index")
    features |= {name: {"dtype": "float32", "shape": [1]} for name in plain}
    (folder / "meta").mkdir()
    info = {"codebase_version": version, "features": features}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    tables = []
    for i, (states, actions, over) in enumerate(LOG):
        last = np.arange(len(actions)) == len(actions) - 1
        here = states[:-1].astype(np.float32)
        frames = {
            "observation.state": np.stack([here, -here], 1).tolist(),
            "observation.door": here.astype(np.int64) % 3,
            "action": [[action] for action in actions],
            "next.reward": np.array(actions, np.float32) ** 2,
            "next.done": last,
            "next.success": last & over,
            "episode_index": np.full(len(actions), i),
            "frame_index": np.arange(len(actions)),
        }
        tables.append(pyarrow.table(frames))
    data = folder / "data" / "chunk-000"
    data.mkdir(parents=True)
    if version == "v3.0":
        parquet.write_table(pyarrow.concat_tables(tables[::-1]), data / "file-000.parquet")
    else:
        for i, table in enumerate(tables):
            parquet.write_table(table, data / f"episode_{i:06d}.parquet")
    return f"lerobot:{folder}:observation.door,observation.state"


def as_lerobot_of_version_2(folder):
    return as_lerobot(folder, "v2.1")


def as_minari(folder, monkeypatch):
    minari, gymnasium = pytest.importorskip("minari"), pytest.importorskip("gymnasium")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    buffers = []
    for i, (states, actions, over) in enumerate(LOG):
        last = np.arange(len(actions)) == len(actions) - 1
        seen = {"place": np.stack([states, -states], 1).astype(np.float32)}
        seen |= {"door": states.astype(np.int64) % 3}
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                id=i, observations={name: list(x) for name, x in seen.items()},
                actions=[np.array([a], np.float32) for a in actions],
                rewards=[a**2 for a in actions], terminations=list(last & over),
                truncations=list(last & (not over)), infos={},
            )
        )  # fmt: skip
    spaces = gymnasium.spaces
    parts = {"place": spaces.Box(-99, 99, (2,)), "door": spaces.Discrete(3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            dataset_id="own/log-v0", buffer=buffers, observation_space=spaces.Dict(parts),
            action_space=spaces.Box(-2.0, 2.0, (1,)),
        )  # fmt: skip
    return "minari:own/log-v0"


def as_rlds(folder):
    import tensorflow_datasets as tfds

    f, steps = tfds.features, []
    for states, actions, over in LOG:
        rows = zip(states, [*actions, 0.0], strict=True)
        steps.append(
            [
                {
                    "observation": {"place": np.float32([x, -x]), "door": int(x) % 3, "note": "hm"},
                    "action": np.float32([action]), "reward": np.float32(action**2),
                    "is_terminal": over and x == states[-1],
                }
                for x, action in rows
            ]
        )  # fmt: skip

    class Log(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            seen = {"place": f.Tensor(shape=(2,), dtype=np.float32), "note": f.Text()}
            seen |= {"door": f.Scalar(dtype=np.int64)}
            step = {"observation": seen, "action": f.Tensor(shape=(1,), dtype=np.float32)}
            step |= {"reward": f.Scalar(dtype=np.float32), "is_terminal": np.bool_}
            return tfds.core.DatasetInfo(
                builder=self, features=f.FeaturesDict({"steps": f.Dataset(step)})
            )

        def _split_generators(self, manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for i, rows in enumerate(steps):
                yield i, {"steps": rows}

    builder = Log(data_dir=folder, file_format="array_record")
    builder.download_and_prepare()
    return f"rlds:{builder.data_path}:train:place,door"


WRITERS = {
    # what writes it, and whether the last observation of a trajectory is in it
    "own hdf5": (as_hdf5, False), "d4rl": (as_hdf5_with_next_ones, True), "npz": (as_npz, False),
    "robomimic": (as_robomimic, True),
    "robomimic, no next": (as_robomimic_without_next_ones, False),
    "lerobot 3": (as_lerobot, False), "lerobot 2": (as_lerobot_of_version_2, False),
    "minari": (as_minari, True), "rlds": (as_rlds, True),
}  # fmt: skip


@pytest.mark.extra
@pytest.mark.parametrize("name", WRITERS)
def test_every_format_has_the_same_log(name, tmp_path, monkeypatch):
    """Bounds, parts, terminals, time limits and what followed each step, as the writers have them.

    The environment's spaces scale the actions and turn the number `door` into one of three.
    """
    gymnasium = pytest.importorskip("gymnasium")
    write, has_last = WRITERS[name]
    more = [monkeypatch] if write is as_minari else []
    source = write(tmp_path, *more)
    spaces = gymnasium.spaces
    parts = {"place": spaces.Box(-99, 99, (2,)), "door": spaces.Discrete(3)}
    if "lerobot" in name:
        parts = {f"observation.{n}": parts[p] for n, p in (("state", "place"), ("door", "door"))}
    layouts = {
        "observation": control_spaces.layout(spaces.Dict(parts), "it"),
        "action": control_spaces.layout(spaces.Box(-2.0, 2.0, (1,)), "it"),
    }
    convert, flatten = control_spaces.of_files(layouts)
    # a flat file holds the number itself, which no layout can tell from three
    flatten = None if name == "npz" else flatten
    data = readers.read(source, convert, flatten)
    rows = np.ones(7, bool) if has_last else ~logged("timeouts")
    ends = logged("ends") if has_last else np.array([0, 0, 1, 0, 0, 1, 0], bool)
    np.testing.assert_array_equal(data.terminals, logged("terminals")[rows])
    np.testing.assert_array_equal(data.ends, ends[rows])
    np.testing.assert_allclose(data.actions, logged("actions")[rows] / 2.0)
    np.testing.assert_allclose(data.rewards, logged("rewards")[rows])
    for column, values, shown in (
        ("observations", data.observations, rows),
        ("next", data.next_observations, rows & ~logged("terminals")),  # not read at a terminal
    ):
        seen = logged(column)
        door = np.eye(3)[seen["door"]] if flatten else seen["door"][:, None]
        expected = np.concatenate([door, seen["place"]], axis=1)
        np.testing.assert_allclose(values[shown[rows]], expected[shown])


@pytest.mark.extra
def test_pictures_texts_and_missing_columns_are_refused_with_the_remedy(tmp_path):
    for write, said in (
        (as_robomimic, "robomimic:FILE:door,place"),
        (as_lerobot, f"lerobot:{tmp_path}/lerobot:observation.state,observation.door"),
        (as_rlds, ":train:door,place"),
    ):
        folder = tmp_path / write.__name__.removeprefix("as_")
        folder.mkdir()
        whole = write(folder).rsplit(":", 1)[0]
        with pytest.raises(ValueError, match=r"pictures or texts|films or pictures") as refusal:
            readers.read(whole)
        assert said in str(refusal.value)
        with pytest.raises(ValueError, match=r"no parts|no columns"):
            readers.read(f"{whole}:size")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "raw.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((3, 1))
    with pytest.raises(ValueError, match="dataset_states_to_obs"):
        readers.read(str(tmp_path / "raw.hdf5"))
    with pytest.raises(FileNotFoundError, match="no such file"):
        readers.read("lerobot:/no/such/place")
    info = tmp_path / "lerobot" / "meta" / "info.json"
    for text in ("{", "[]", '{"features": {"observation.x": 3}}'):
        info.write_text(text)
        with pytest.raises(ValueError, match="is damaged"):
            readers.read(f"lerobot:{tmp_path / 'lerobot'}")
    info.write_text(json.dumps({"features": {"observation.door": {}}}))
    with pytest.raises(ValueError, match="no frames"):
        readers.read(f"lerobot:{tmp_path / 'lerobot'}")


@pytest.mark.extra
@pytest.mark.parametrize("place", ["observations", "observations/place", "data", "data/demo_9/obs"])
@pytest.mark.parametrize("kind", ["soft", "external", "virtual", "itself"])
def test_an_hdf5_file_that_leads_elsewhere_is_refused(kind, place, tmp_path):
    """Else a file from others could have any file read, or be read without end."""
    h5py = pytest.importorskip("h5py")
    (as_robomimic if place.startswith("data") else as_hdf5)(tmp_path)
    (path,) = tmp_path.glob("*.hdf5")
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = np.zeros((7, 2))
    with h5py.File(path, "a") as file:
        del file[place]
        if kind == "virtual":
            layout = h5py.VirtualLayout((7, 2), float)
            layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "x", (7, 2))
            file.create_virtual_dataset(place, layout)
        elif kind == "itself":
            file[f"{place}/again"] = file.create_group(place)
        else:
            links = {"soft": h5py.SoftLink("/actions")}
            links["external"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "x")
            file[place] = links[kind]
    with pytest.raises(ValueError, match=r"links to other places|within each other|are missing"):
        readers.read(str(path))


def test_parts_that_do_not_fit_together_are_refused():
    pictures = np.zeros((3, 4, 4, 3), np.uint8)
    assert readers.flat({"a": pictures}).dtype == np.uint8
    with pytest.raises(ValueError, match="pictures beside other parts"):
        readers.flat({"a": pictures, "b": np.zeros((3, 2))})
    with pytest.raises(ValueError, match="no episode of two steps or more"):
        transitions.concatenate([])
    step = {"observation": np.zeros(2), "action": np.zeros(1), "is_terminal": False}
    with pytest.raises(ValueError, match=r"\['reward'\] are missing"):
        readers.rlds_episode([step, step])


def test_several_choices_of_minari_need_the_environment():
    episode = SimpleNamespace(
        observations=np.zeros((3, 1)), actions=np.array([[0, 1], [1, 2]]), rewards=np.ones(2),
        terminations=np.zeros(2),
    )  # fmt: skip
    several = SimpleNamespace(nvec=np.array([2, 3]))
    with pytest.raises(ValueError, match="name the environment"):
        readers.minari_episode(episode, several)
    form = {"kind": "multi", "n": [2, 3], "one_hot": True}
    convert = lambda actions: control_spaces.from_environment(form, actions)  # noqa: E731
    assert readers.minari_episode(episode, several, convert).actions.tolist() == [1, 5]
    episode.actions = np.array([2, 3])
    shifted = readers.minari_episode(episode, SimpleNamespace(n=2, start=2))
    assert shifted.actions.tolist() == [0, 1] and shifted.actions.dtype == np.int32


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


RUNS = np.array(
    [[0.1, 0.9, 0.4], [0.3, 1.2, 0.2], [0.8, 0.7, 0.5], [0.2, 1.1, 0.9], [0.6, 0.3, 0.1]]
)
"""Scores of five runs of three tasks."""


def test_numbers_over_runs_and_tasks_are_those_of_rliable():
    """Constants of rliable 1.2.0, with arch 7.2.0 and pandas 2.3.3, after `np.random.seed(0)`:

        library.get_interval_estimates({"a": RUNS}, lambda x: np.array([
            metrics.aggregate_iqm(x), metrics.aggregate_optimality_gap(x)]), reps=50000)
        library.create_performance_profile({"a": RUNS}, THRESHOLDS, reps=20000)

    The ends of its intervals are values that many resamples have, so that ours are equal though the
    draws are others.
    """
    thresholds, scores = np.array([0.0, 0.25, 0.5, 0.75, 1.0]), RUNS.ravel()
    iqm, gap = statistics.interquartile_mean(scores), statistics.optimality_gap(scores)
    np.testing.assert_allclose([iqm, gap], [0.52222222, 0.46666667], atol=1e-8)
    profile = statistics.performance_profile(scores, thresholds)
    expected = [1.0, 0.73333333, 0.46666667, 0.33333333, 0.13333333]
    np.testing.assert_allclose(profile, expected, atol=1e-8)
    many = {"resamples": 50_000}
    for runs, statistic, interval in (
        (RUNS, statistics.interquartile_mean, (0.33333333, 0.72222222)),
        (RUNS, statistics.optimality_gap, (0.33333333, 0.6)),
        (RUNS[:, 0], statistics.interquartile_mean, (0.13333333, 0.73333333)),
        (RUNS[:3, :2], statistics.interquartile_mean, (0.45, 0.925)),
    ):
        found = statistics.bootstrap_interval(runs, statistic, **many)
        np.testing.assert_allclose(found, interval, atol=1e-8)
    profiles = lambda x: statistics.performance_profile(x, thresholds)  # noqa: E731
    low, high = statistics.bootstrap_interval(RUNS, profiles, resamples=20_000)
    np.testing.assert_allclose(low, [1.0, 0.53333333, 0.26666667, 0.13333333, 0.0], atol=1e-8)
    np.testing.assert_allclose(
        high, [1.0, 0.93333333, 0.66666667, 0.53333333, 0.26666667], atol=1e-8
    )


def test_the_bootstrap_draws_the_runs_of_each_task_for_itself():
    """Against all 729 resamples of three runs of two tasks, which are equally likely."""
    runs = RUNS[:3, :2]
    choices = [np.reshape(i, (3, 2)) for i in itertools.product(range(3), repeat=6)]
    values = [statistics.interquartile_mean(runs[i, [0, 1]].ravel()) for i in choices]
    for level in (0.5, 0.8, 0.95):
        edge = (1 - level) / 2
        found = statistics.bootstrap_interval(runs, resamples=40_000, level=level)
        np.testing.assert_allclose(found, np.quantile(values, [edge, 1 - edge]), atol=0.011)


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
