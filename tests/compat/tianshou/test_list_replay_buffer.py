"""A buffer that grows: nothing is lost or cut when it does."""

import pickle

import numpy as np
import pytest

from guerdon.compat.tianshou import ListReplayBuffer
from guerdon.data import DiskStorage

FIRST = 256  # rows an environment before it grows for the first time


def fields_of(number, envs, shape):
    """A step of environments; observations tell step and environment, and episodes have 7 steps."""
    ids = number + 10_000 * np.asarray(envs)
    done = np.full(len(ids), number % 7 == 6)
    observations = {
        "number": lambda ids: ids,
        "array": lambda ids: ids[:, None] * np.ones(2),
        "nested": lambda ids: {"id": ids, "deep": {"image": (ids[:, None] % 251).astype(np.uint8)}},
        "object": lambda ids: np.array([str(i) for i in ids.tolist()], dtype=object),
    }[shape]
    return {
        "obs": observations(ids),
        "act": ids,
        "rew": ids / 2,
        "terminated": done,
        "truncated": np.zeros(len(ids), bool),
        "obs_next": observations(ids + 1),
    }


def ids_of(obs, shape):
    if shape == "nested":
        np.testing.assert_array_equal(obs.deep.image[:, 0], obs.id % 251)
        return obs.id
    if shape == "object":
        return np.array([int(text) for text in obs])
    return obs[:, 0] if shape == "array" else obs


def filled(steps, n_envs=1, shape="array", **options):
    buffer = ListReplayBuffer(n_envs, seed=0, **options)
    for number in range(steps):
        fields = fields_of(number, range(n_envs), shape)
        if n_envs > 1:
            buffer.add(**fields)
        else:
            buffer.add(fields, [0])
    return buffer


@pytest.mark.parametrize("shape", ["number", "array", "nested", "object"])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("steps", [FIRST, FIRST + 1, 2 * FIRST + 1, 1200])
def test_everything_is_there_in_order(steps, n_envs, shape):
    buffer = filled(steps, n_envs, shape)
    assert len(buffer) == steps * n_envs
    ids = (np.arange(steps)[:, None] + 10_000 * np.arange(n_envs)).ravel()
    batch, rows = buffer.sample(0)
    times, envs = np.divmod(np.arange(len(ids)), n_envs)
    assert rows.tolist() == (envs * buffer.capacity + times).tolist()
    assert batch.act.tolist() == ids.tolist()
    assert batch.rew.tolist() == (ids / 2).tolist()
    assert ids_of(batch.obs, shape).tolist() == ids.tolist()
    assert ids_of(batch.obs_next, shape).tolist() == (ids + 1).tolist()
    ends = ids % 10_000 % 7 == 6
    assert batch.terminated.tolist() == ends.tolist()
    last = ends | (ids % 10_000 == steps - 1)
    assert buffer.next(rows).tolist() == np.where(last, rows, rows + 1).tolist()
    first = ids % 10_000 % 7 == 0
    assert buffer.prev(rows).tolist() == np.where(first, rows, rows - 1).tolist()


def test_it_doubles():
    sizes = [filled(steps).size for steps in (1, FIRST, FIRST + 1, 2 * FIRST, 2 * FIRST + 1)]
    assert sizes == [256, 256, 512, 512, 1024]


def test_single_rows():
    buffer = ListReplayBuffer()
    for number in range(1000):
        row = {name: value[0] for name, value in fields_of(number, [0], "array").items()}
        assert buffer.add(**row).tolist() == [number]
    batch, rows = buffer.sample(0)
    assert rows.tolist() == batch.act.tolist() == list(range(1000))
    assert batch.obs[:, 0].tolist() == list(range(1000))
    assert batch.obs_next[:, 1].tolist() == list(range(1, 1001))


def test_environments_of_their_own_pace():
    buffer = ListReplayBuffer(3)
    counts = [0, 0, 0]
    for number in range(700):
        envs = [env for env, every in ((2, 2), (0, 1), (1, 300)) if number % every == 0]
        steps = [fields_of(counts[env], [env], "number") for env in envs]
        joined = {key: np.concatenate([step[key] for step in steps]) for key in steps[0]}
        buffer.add(joined, envs)
        for env in envs:
            counts[env] += 1
    assert counts == [700, 3, 350]
    assert len(buffer) == 1053
    for env, count in enumerate(counts):
        rows = np.arange(count) + env * buffer.capacity
        ids = np.arange(count) + 10_000 * env
        assert buffer[rows].obs.tolist() == ids.tolist()
        assert buffer[rows].obs_next.tolist() == (ids + 1).tolist()
    with pytest.raises(IndexError, match="has no transition"):
        buffer[buffer.capacity + 3]


def test_every_row_is_sampled_and_no_other():
    buffer = filled(300, n_envs=2)
    batch, rows = buffer.sample(6000)
    envs, times = np.divmod(rows, buffer.capacity)
    assert {*zip(envs, times, strict=True)} == {(e, t) for e in range(2) for t in range(300)}
    assert batch.act.tolist() == (times + 10_000 * envs).tolist()


def test_segments_go_over_the_places_where_it_grew():
    buffer = filled(2 * FIRST + 10, n_envs=2)
    batch, rows = buffer.sample(4000, length=5)
    steps = np.diff(batch.act, axis=0)
    assert (steps == batch.mask[1:]).all()
    times = rows[0] % buffer.capacity
    real = np.minimum(7 - times % 7, 2 * FIRST + 10 - times)
    assert batch.mask.sum(0).tolist() == np.minimum(real, 5).tolist()


def test_stacks_and_fields_of_info_that_come_later():
    buffer = ListReplayBuffer(stack_num=3)
    for number in range(FIRST + 4):
        extra = {"info": {"late": number}} if number >= FIRST - 1 else {}
        buffer.add({**fields_of(number, [0], "number"), **_listed(extra)}, [0])
    # Step 252 starts an episode.
    assert buffer[np.array([252, 255, 256])].obs.tolist() == [
        [252, 252, 252],
        [253, 254, 255],
        [254, 255, 256],
    ]
    assert buffer[np.array([256])].obs_next.tolist() == [[255, 256, 257]]
    assert buffer.info.late[FIRST - 2 : FIRST + 4].tolist() == [0, 255, 256, 257, 258, 259]


def _listed(extra):
    return {name: {key: [leaf] for key, leaf in value.items()} for name, value in extra.items()}


@pytest.mark.parametrize("how", ["save", "pickle", "state"])
@pytest.mark.parametrize("shape", ["array", "nested"])
def test_it_comes_back_and_goes_on(how, shape, tmp_path):
    buffer = filled(600, n_envs=2, shape=shape)
    if how == "save":
        buffer.save(tmp_path / "saved")
        again = ListReplayBuffer.load(tmp_path / "saved")
    elif how == "pickle":
        again = pickle.loads(pickle.dumps(buffer))
    else:
        again = filled(3, n_envs=2, shape=shape)
        again.load_training_state(buffer.training_state())
    assert again.size == buffer.size
    for number in range(600, 1100):
        for each in (buffer, again):
            each.add(**fields_of(number, range(2), shape))
    for size in (0, 50):
        (batch, rows), (same, same_rows) = buffer.sample(size), again.sample(size)
        assert rows.tolist() == same_rows.tolist()
        assert batch == same
    assert len(again) == 2200


def test_a_step_that_is_refused_loses_nothing():
    buffer = filled(FIRST)
    with pytest.raises(ValueError, match="NaN"):
        buffer.add({**fields_of(FIRST, [0], "array"), "rew": np.array([np.nan])}, [0])
    with pytest.raises(ValueError, match="lacks 'act'"):
        buffer.add({k: v for k, v in fields_of(FIRST, [0], "array").items() if k != "act"}, [0])
    buffer.add(fields_of(FIRST, [0], "array"), [0])
    assert buffer.sample(0)[0].act.tolist() == list(range(FIRST + 1))


def test_an_emptied_buffer_starts_again():
    buffer = filled(600)
    buffer.reset()
    assert len(buffer) == 0
    for number in range(5):
        buffer.add(fields_of(number, [0], "array"), [0])
    assert buffer.sample(0)[1].tolist() == [0, 1, 2, 3, 4]


def test_discarded_rows_stay_away():
    buffer = filled(FIRST)
    buffer.discard([0, FIRST - 1])
    for number in range(FIRST, 600):
        buffer.add(fields_of(number, [0], "array"), [0])
    assert buffer.sample(0)[0].act.tolist() == [n for n in range(1, 600) if n != FIRST - 1]


def test_there_is_no_size_to_give():
    assert "size" not in ListReplayBuffer(2).options()
    with pytest.raises(TypeError, match="size"):
        ListReplayBuffer(size=10)


def test_another_buffer_is_appended():
    buffer, other = filled(200), filled(200)
    buffer.update(other)
    assert buffer.sample(0)[0].act.tolist() == [*range(200), *range(200)]
    assert buffer.next([198, 199, 200]).tolist() == [199, 199, 201]


def test_growing_moves_no_annotations():
    buffer = filled(FIRST, n_envs=2)
    _, rows = buffer.sample(0)
    buffer.annotate(rows, {"note": rows % buffer.capacity})
    for number in range(FIRST, 300):
        buffer.add(**fields_of(number, range(2), "array"))
    batch, _ = buffer.sample(0)
    old = batch.act % 10_000 < FIRST
    assert batch.annotations.note[old].tolist() == (batch.act[old] % 10_000).tolist()


def test_a_smaller_one_is_loaded_into_a_larger_one():
    buffer, other = filled(600, n_envs=2), filled(10, n_envs=2)
    buffer.load_training_state(other.training_state())
    assert buffer.size == other.size
    assert buffer.sample(0)[0] == other.sample(0)[0]


def test_a_cut_before_growing_leaves_next_observations():
    buffer = filled(FIRST, n_envs=2)
    buffer.cut()
    buffer.add(**fields_of(FIRST, range(2), "array"))
    batch, _ = buffer.sample(0)
    assert batch.obs_next[:, 0].tolist() == (batch.act + 1).tolist()


@pytest.mark.parametrize("kind", [lambda path: f"disk:{path}", DiskStorage])
def test_there_are_none_on_disk(tmp_path, kind):
    with pytest.raises(ValueError, match="is in memory: use ReplayBuffer"):
        ListReplayBuffer(2, storage=kind(tmp_path))
    assert list(tmp_path.iterdir()) == []
