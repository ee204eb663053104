import json
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.data import Batch, ReplayBuffer, demonstrations
from guerdon.data.demonstrations import (
    KEYS,
    Demonstrations,
    save_demonstrations,
    selected,
    shares_observations,
)
from guerdon.data.loading import load_demonstrations
from guerdon.data.serializer import read_tree
from guerdon.data.spaces import space_to_json
from guerdon.data.unpickle import UnsafePickleError
from tests.data.test_array_files import write_arrays


def episode(length=3, terminated=True, chained=True, seed=0, **more):
    generator = np.random.default_rng(seed)
    observations = generator.normal(size=(length + 1, 2)).astype("f4")
    end = np.arange(length) == length - 1
    return Batch(
        obs=observations[:-1],
        act=generator.integers(2, size=length),
        rew=generator.normal(size=length),
        terminated=end & terminated,
        truncated=end & (not terminated),
        obs_next=observations[1:] if chained else observations[1:] + 1,
        **more,
    )


def changed(key, value):
    batch = episode()
    batch[key] = value
    return batch


SPACES = {
    "observation_space": spaces.Box(-np.inf, np.inf, (2,)),
    "action_space": spaces.Discrete(2),
}


def test_properties():
    episodes = [episode(3), episode(1, terminated=False, seed=1)]
    data = Demonstrations(episodes, "CartPole-v1", **SPACES, seeds=[7, None])
    assert len(data) == 2
    assert data.lengths.tolist() == [3, 1]
    assert data.returns == pytest.approx([batch.rew.sum() for batch in episodes])
    rows = data.transitions()
    assert len(rows) == 4
    assert rows.truncated.tolist() == [False, False, False, True]
    assert Demonstrations(episodes).seeds == [None, None]


def test_a_subsampled_transition_keeps_its_own_next_observation():
    episodes = [episode(length, seed=length) for length in (10, 2, 23)]
    kept = selected(Demonstrations(episodes, seeds=[1, 2, 3]), subsample=4)
    found = kept.transitions()
    rows = {
        each.obs[i].tobytes(): (n, i) for n, each in enumerate(episodes) for i in range(len(each))
    }
    places = [rows[row.obs.tobytes()] for row in found]
    for (number, place), row in zip(places, found, strict=True):
        np.testing.assert_array_equal(row.obs_next, episodes[number].obs_next[place])
        assert row.terminated == episodes[number].terminated[place]
    for number in range(3):
        taken = [place for which, place in places if which == number]
        assert taken[0] < 4
        assert len(episodes[number]) - taken[-1] <= 4
        assert set(np.diff(taken)) <= {4}
    assert kept.lengths.tolist() == [1] * len(places)  # the next row is no successor
    again = selected(Demonstrations(episodes), subsample=4).transitions()
    np.testing.assert_array_equal(again.obs, found.obs)


def test_a_subsample_has_the_termination_rate_of_the_whole_episodes():
    whole = Demonstrations([episode(10), episode(10), episode(30, terminated=False)])
    assert whole.termination_rate == 2 / 50
    for subsample in range(1, 12):
        assert selected(whole, subsample=subsample).termination_rate == 2 / 50
        assert selected(whole, 2, subsample).termination_rate == 2 / 20


def test_the_first_episodes_are_kept():
    episodes = [episode(seed=seed) for seed in range(3)]
    kept = selected(Demonstrations(episodes, seeds=[1, 2, 3]), episodes=2)
    assert kept.seeds == [1, 2]
    assert kept.episodes[1] is episodes[1]
    with pytest.raises(ValueError, match="'episodes' is 4, but there are only 3 demonstrated"):
        selected(Demonstrations(episodes), episodes=4)


@pytest.mark.parametrize(
    ("episodes", "error"),
    [
        ([], "at least one episode"),
        ([episode()[:0]], "episode 0 is empty"),
        ([Batch(obs=np.ones(2))], "episode 0 has no 'act'"),
        ([episode(), changed("rew", np.ones(2))], "episode 1: lengths differ"),
        ([changed("rew", 1.0)], "rew of episode 0 must be an array"),
        ([changed("info", "text")], "episode 0: key 'info'"),
        ([changed("rew", np.ones((3, 1)))], "rew of episode 0 must be numbers, one per row"),
        ([changed("terminated", np.zeros(3))], "terminated of episode 0 must be booleans"),
        ([changed("truncated", np.array([0, 1, 0], bool))], "episode 0 ends in row 1 of 3"),
        ([episode(), changed("extra", np.ones(3))], "not have the same keys: see 'extra'"),
        ([changed("obs", np.ones((3, 5), "f4"))], "obs of episode 0 is float32 array"),
        ([changed("obs_next", np.ones((3, 2)))], "obs_next of episode 0 is float64"),
        ([changed("act", np.array([0, 1, 2]))], "act of episode 0 is 2 in row 2"),
        ([changed("act", np.array([0, -1, 1]))], "act of episode 0 is -1 in row 1"),
        ([changed("act", np.ones(3))], "act of episode 0 is float64"),
    ],
)
def test_what_is_wrong_is_said(episodes, error):
    with pytest.raises(ValueError, match=error):
        Demonstrations(episodes, **SPACES)


def test_seeds_are_counted():
    with pytest.raises(ValueError, match="1 seeds for 2 episodes"):
        Demonstrations([episode(), episode()], seeds=[1])


# --- folders


def check_equal(left, right):
    assert left.episodes == right.episodes
    for one, other in zip(left.episodes, right.episodes, strict=True):
        assert one.obs_next.dtype == other.obs_next.dtype
    assert left.env_id == right.env_id
    assert left.seeds == right.seeds
    assert left.observation_space == right.observation_space
    assert left.action_space == right.action_space


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.booleans()), min_size=1, max_size=6),
    st.sampled_from([1, 300, 10**6]),
)
def test_a_folder_gives_back_what_it_got(tmp_path, shapes, shard_bytes):
    episodes = [
        episode(length, terminated, chained, seed=i)
        for i, (length, terminated, chained) in enumerate(shapes)
    ]
    data = Demonstrations(episodes, "Some-v0", **SPACES, seeds=[*range(1, len(episodes)), None])
    folder = tmp_path / "demos"
    save_demonstrations(data, folder, shard_bytes, overwrite=True)
    check_equal(load_demonstrations(folder), data)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demos"]
    if shard_bytes == 1:
        assert len(list(folder.glob("shard_*"))) == len(episodes)


def test_nested_batches_tensors_and_text(tmp_path):
    observations = Batch(
        image=np.arange(4 * 6, dtype=np.uint8).reshape(4, 2, 3),
        mission=np.array(["go", "go", "stop", "stop"], dtype=object),
        extra=Batch(),
    )
    batch = episode(
        info=Batch(value=torch.arange(3.0), note=np.array(["a", None, {"b": [1]}], dtype=object)),
        policy=Batch(),
    )
    batch.obs, batch.obs_next = observations[:-1], observations[1:]
    assert shares_observations(batch)
    save_demonstrations(Demonstrations([batch, batch]), tmp_path / "demos")
    read = load_demonstrations(str(tmp_path / "demos"))
    assert read.episodes == [batch, batch]
    assert isinstance(read.episodes[0].info.value, torch.Tensor)
    assert read.env_id is None
    assert read.observation_space is None


def test_observations_are_stored_once_only_if_equal_to_the_bit():
    assert shares_observations(episode())
    assert shares_observations(episode(1))
    assert not shares_observations(episode(chained=False))
    batch = episode()
    batch.obs = batch.obs.copy()
    batch.obs[1] = batch.obs_next[0] = np.nan
    assert shares_observations(batch)
    batch.obs[1], batch.obs_next = 0.0, batch.obs_next.copy()
    batch.obs_next[0] = -0.0
    assert not shares_observations(batch)
    assert not shares_observations(changed("obs_next", np.ones((3, 2))))
    assert shares_observations(episode().to_torch())


def test_shared_observations_take_half_the_room(tmp_path):
    def size(chained):
        folder = tmp_path / str(chained)
        save_demonstrations(Demonstrations([episode(5000, chained=chained)]), folder)
        return (folder / "shard_000000.safetensors").stat().st_size

    assert size(False) - size(True) > 4999 * 8 - 1000


def test_the_state_is_strict_json_that_says_what_is_inside(tmp_path):
    bad = changed("rew", np.array([1.0, np.inf, 1.0]))
    data = Demonstrations([episode(), bad], "Some-v0", **SPACES, seeds=[np.int64(3), None])
    save_demonstrations(data, tmp_path / "demos")
    text = (tmp_path / "demos" / "state.json").read_text()
    json.loads(text, parse_constant=pytest.fail)
    meta = read_tree(tmp_path / "demos", "demonstrations", ["meta"])["meta"]
    assert meta["env_id"] == "Some-v0"
    assert meta["seeds"] == [3, None]
    assert meta["lengths"] == [3, 3]
    assert meta["returns"] == [pytest.approx(episode().rew.sum()), np.inf]


def test_a_folder_is_not_overwritten_unasked(tmp_path):
    old, new = Demonstrations([episode()] * 3), Demonstrations([episode(seed=5)])
    save_demonstrations(old, tmp_path, shard_bytes=1)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save_demonstrations(new, tmp_path)
    check_equal(load_demonstrations(tmp_path), old)
    save_demonstrations(new, tmp_path, overwrite=True)
    check_equal(load_demonstrations(tmp_path), new)
    assert len(list(tmp_path.glob("shard_*"))) == 1


def test_a_failed_overwrite_keeps_the_old(tmp_path):
    folder = tmp_path / "demos"
    old = Demonstrations([episode()])
    save_demonstrations(old, folder)
    bad = Demonstrations([changed("info", np.array([{1}, {2}, {3}], dtype=object))])
    with pytest.raises(TypeError, match=r"'shard_000000\.0\.info\.0' is set"):
        save_demonstrations(bad, folder, overwrite=True)
    check_equal(load_demonstrations(folder), old)
    assert [path.name for path in tmp_path.iterdir()] == ["demos"]


def test_files_of_others_are_left_alone(tmp_path):
    data = Demonstrations([episode()])
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds 'notes\.txt'"):
        save_demonstrations(data, tmp_path, overwrite=True)
    with pytest.raises(FileExistsError, match="is a file"):
        save_demonstrations(data, tmp_path / "notes.txt", overwrite=True)
    demos = tmp_path / "demos"
    save_demonstrations(data, demos)
    (demos / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds 'notes\.txt'"):
        save_demonstrations(data, demos, overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == (demos / "notes.txt").read_text() == "mine"
    check_equal(load_demonstrations(demos), data)
    with pytest.raises(ValueError, match="is a guerdon demonstrations, not a guerdon buffer"):
        ReplayBuffer.load(demos)


def test_an_interrupted_write_leaves_nothing_and_an_interrupted_replacement_the_old(tmp_path):
    def fail(_episode):
        raise KeyboardInterrupt

    old, folder = Demonstrations([episode()]), tmp_path / "demos"
    for write in (False, True):
        if write:
            save_demonstrations(old, folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demonstrations, "shares_observations", fail)
            with pytest.raises(KeyboardInterrupt):
                save_demonstrations(Demonstrations([episode()] * 2), folder, overwrite=True)
        assert [path.name for path in tmp_path.iterdir()] == ["demos"] * write
    folder.rename(tmp_path / ".demos.replaced")  # as a kill between two renames leaves it
    check_equal(load_demonstrations(folder), old)


def test_broken_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="no demonstrations at"):
        load_demonstrations(tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"has no demonstrations: manifest\.json is missing"
    ):
        load_demonstrations(tmp_path)
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(ValueError, match=r"file\.txt is neither a folder"):
        load_demonstrations(tmp_path / "file.txt")
    demos = tmp_path / "demos"
    save_demonstrations(Demonstrations([episode(), episode()]), demos, shard_bytes=1)
    for path in sorted(demos.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        with pytest.raises(ValueError, match=f"{path.name} is damaged"):
            load_demonstrations(demos)
        path.write_bytes(whole)
    (demos / "shard_000001.safetensors").unlink()
    with pytest.raises(ValueError, match=r"shard_000001\.safetensors is missing"):
        load_demonstrations(demos)
    with pytest.raises(TypeError, match="cannot be read from a int"):
        load_demonstrations(3)


# --- folders with meta.json and .npz, which are no longer written


@pytest.fixture
def old_folder(tmp_path):
    """Three episodes in two shards; the second does not share its observations."""
    episodes = [episode(3), episode(2, chained=False, seed=1), episode(4, False, seed=2)]
    leaves = [{"path": [key], "kind": "array", "entry": key} for key in KEYS]
    for number, members in enumerate((episodes[:2], episodes[2:])):
        shared = [number == 1 or i == 0 for i in range(len(members))]
        rows = {key: np.concatenate([each[key] for each in members]) for key in KEYS[1:5]}
        rows["obs"] = np.concatenate(
            [
                np.concatenate([each.obs, each.obs_next[-1:]]) if shares else each.obs
                for each, shares in zip(members, shared, strict=True)
            ]
        )
        if number == 0:
            rows["obs_next"] = members[1].obs_next
        held = [leaf for leaf in leaves if leaf["entry"] in rows]
        write_arrays(tmp_path / f"shard_00000{number}.npz", held, rows)
    meta = {
        "format": "guerdon demonstrations",
        "version": 1,
        "env_id": "Some-v0",
        "observation_space": space_to_json(SPACES["observation_space"]),
        "action_space": space_to_json(SPACES["action_space"]),
        "episodes": [
            {"seed": i, "length": len(each), "shared_observations": i != 1}
            for i, each in enumerate(episodes)
        ],
        "shards": [
            {"file": "shard_000000.npz", "episodes": 2},
            {"file": "shard_000001.npz", "episodes": 1},
        ],
    }
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    return tmp_path, Demonstrations(episodes, "Some-v0", **SPACES, seeds=[0, 1, 2])


def test_an_old_folder_is_read_and_can_be_replaced(old_folder):
    folder, data = old_folder
    check_equal(load_demonstrations(folder), data)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save_demonstrations(data, folder)
    save_demonstrations(data, folder, overwrite=True)
    check_equal(load_demonstrations(folder), data)
    assert not list(folder.glob("*.npz"))


def test_somebody_elses_meta_is_left_alone(tmp_path):
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(ValueError, match="not a file written by guerdon"):
        save_demonstrations(Demonstrations([episode()]), tmp_path, overwrite=True)
    assert (tmp_path / "meta.json").read_text() == "{}"


def test_broken_old_folders(old_folder):
    folder, _ = old_folder
    meta = json.loads((folder / "meta.json").read_text())
    for key, value, error in (
        ("version", 9, "not a file written by guerdon"),
        ("format", "other", "not a file written by guerdon"),
        ("episodes", meta["episodes"][:1], r"damaged: shard_000000\.npz does not have the rows"),
        ("episodes", meta["episodes"] * 2, "damaged: there are 6 seeds for 3 episodes"),
        ("episodes", [{}, {}, {}], "damaged"),
        ("shards", [], "damaged: demonstrations need at least one"),
        ("action_space", {"type": "Odd"}, "damaged: this is not a space"),
    ):
        (folder / "meta.json").write_text(json.dumps({**meta, key: value}))
        with pytest.raises(ValueError, match=error):
            load_demonstrations(folder)
    (folder / "meta.json").write_text("{")
    with pytest.raises(ValueError, match=r"is damaged|not valid JSON"):
        load_demonstrations(folder)
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "shard_000001.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"shard_000001\.npz"):
        load_demonstrations(folder)
    (folder / "meta.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"meta\.json"):
        load_demonstrations(folder)


# --- pickles of other systems


def load_pickle(folder, data):
    path = folder / "expert.pkl"
    path.write_bytes(pickle.dumps(data))
    return load_demonstrations(path).episodes


def transition(i, done=False, **more):
    return {
        "obs": np.array([i, 0.5], "f4"),
        "action": i % 2,
        "reward": float(i),
        "done": done,
        **more,
    }


def test_transitions_are_cut_into_episodes(tmp_path):
    rows = [transition(i, i in (1, 4), next_obs=np.array([-i, 0], "f4")) for i in range(6)]
    episodes = load_pickle(tmp_path, rows)
    assert [len(batch) for batch in episodes] == [2, 3, 1]
    assert set(episodes[0].keys()) == {*demonstrations.KEYS}
    assert episodes[1].act.tolist() == [0, 1, 0]
    assert episodes[1].rew.tolist() == [2, 3, 4]
    assert episodes[1].obs[:, 0].tolist() == [2, 3, 4]
    assert episodes[1].obs.dtype == np.float32
    assert episodes[1].obs_next[:, 0].tolist() == [-2, -3, -4]
    assert [batch.terminated[-1] for batch in episodes] == [True, True, False]
    assert [batch.truncated[-1] for batch in episodes] == [False, False, True]


def test_missing_next_observations(tmp_path):
    first, last = load_pickle(tmp_path, [transition(i, i == 1) for i in range(4)])
    assert first.obs_next[:, 0].tolist() == [1, 1]
    assert first.terminated.tolist() == [False, True]
    assert last.obs_next[:, 0].tolist() == [3, 3]
    assert last.truncated.tolist() == [False, True]
    (batch,) = load_pickle(tmp_path, [transition(0, next_obs=None), transition(1, True)])
    assert batch.obs_next[:, 0].tolist() == [1, 1]


def test_lists_of_episodes_with_tensors_and_other_names(tmp_path):
    def row(i, **ends):
        return {
            "obs": {"x": torch.tensor([float(i)])},
            "act": torch.tensor([i]),
            "rew": torch.tensor([i * 0.5]),
            "obs_next": {"x": torch.tensor([i + 1.0])},
            "logit": torch.ones(2),
            **ends,
        }

    yes, no = torch.tensor([True]), torch.tensor([False])
    data = [
        [row(0, done=no), row(1, done=yes, truncated=yes)],
        [row(2, terminated=False, truncated=np.array([0])), row(3, terminated=1, note="seen")],
        [row(4, terminated=False, done=True)],
    ]
    episodes = load_pickle(tmp_path, data)
    assert [len(batch) for batch in episodes] == [2, 2, 1]
    assert [batch.truncated[-1] for batch in episodes] == [True, False, True]
    assert [batch.terminated[-1] for batch in episodes] == [False, True, False]
    assert episodes[1].obs.x.tolist() == [[2.0], [3.0]]
    assert type(episodes[1].obs_next.x) is np.ndarray
    assert episodes[1].rew.tolist() == [1.0, 1.5]
    assert episodes[1].act.tolist() == [2, 3]
    assert episodes[1].logit.shape == (2, 2)
    assert "note" not in episodes[1]


def test_loaded_pickles_can_be_saved(tmp_path):
    path = tmp_path / "expert.pickle"
    path.write_bytes(pickle.dumps([transition(i, i == 2) for i in range(5)]))
    data = load_demonstrations(path)
    save_demonstrations(data, tmp_path / "demos")
    check_equal(load_demonstrations(tmp_path / "demos"), data)


def without(key):
    row = transition(0, True)
    del row[key]
    return row


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([], "must hold a list of transitions"),
        ([[]], "has no transitions"),
        ({"obs": 1}, "must hold a list of transitions"),
        ([1, 2], "a list of dictionaries"),
        ([without("obs")], "has no 'obs'"),
        ([without("action")], "has no 'act'"),
        ([without("reward")], "has no 'rew'"),
        ([without("done")], "neither 'done' nor 'terminated'"),
        ([transition(0) | {"reward": np.ones(3)}], "rewards that are not single numbers"),
        ([transition(0) | {"reward": None}], "rewards that are not single numbers"),
        ([transition(0), transition(1) | {"obs": np.ones(5, "f4")}], "do not match: key 'obs'"),
    ],
)
def test_pickles_with_something_missing(tmp_path, data, error):
    with pytest.raises(ValueError, match=rf"{error}.*expert\.pkl|expert\.pkl.*{error}"):
        load_pickle(tmp_path, data)


def test_code_in_a_pickle_is_refused(tmp_path):
    with pytest.raises(UnsafePickleError, match=r"expert\.pkl asks for builtins\.print"):
        load_pickle(tmp_path, [transition(0, True, callback=print)])


def test_a_list_of_transitions_is_read_as_its_file_is(tmp_path):
    rows = [
        {
            "obs": torch.full((2,), float(i)),
            "action": torch.tensor([i]),
            "reward": 1.0,
            "done": i == 1,
        }
        for i in range(4)
    ]
    path = tmp_path / "rows.pkl"
    path.write_bytes(pickle.dumps(rows))
    ours, theirs = load_demonstrations(rows), load_demonstrations(path)
    assert ours.lengths.tolist() == theirs.lengths.tolist() == [2, 2]
    assert ours.transitions() == theirs.transitions()
    assert load_demonstrations([rows[:2], rows[2:]]).transitions() == ours.transitions()
    with pytest.raises(ValueError, match="the given data must hold a list of transitions"):
        load_demonstrations([])
