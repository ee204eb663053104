"""`ReplayBuffer`: the document, what `add` takes, what is read, how it is sampled."""

import copy
import doctest
import pickle
import random

import numpy as np
import pytest
import torch

from guerdon.data import Batch, PrioritizedReplayBuffer, ReplayBuffer
from guerdon.data.kernels import PENDING

# The Buffer section of the document: integers and flags keep their dtypes here.
DOCUMENT = """
    >>> import pickle, numpy as np
    >>> from guerdon.data import ReplayBuffer
    >>> buf = ReplayBuffer(size=20)
    >>> for i in range(3):
    ...     _ = buf.add(obs=i, act=i, rew=i, done=i, obs_next=i + 1, info={})
    >>> buf.obs
    array([0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    >>> len(buf)
    3
    >>> dumped = pickle.dumps(buf)
    >>> buf2 = ReplayBuffer(size=10)
    >>> for i in range(15):
    ...     _ = buf2.add(obs=i, act=i, rew=i, done=i, obs_next=i + 1, info={})
    >>> len(buf2)
    10
    >>> buf2.obs
    array([10, 11, 12, 13, 14,  5,  6,  7,  8,  9])
    >>> buf.update(buf2)
    array([ 0,  1,  2,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14,  0,  0,  0,  0,
            0,  0,  0])
    >>> batch_data, indice = buf.sample(batch_size=4)
    >>> batch_data.obs == buf[indice].obs
    array([ True,  True,  True,  True])
    >>> len(buf)
    13
    >>> buf = pickle.loads(dumped)
    >>> len(buf)
    3
    >>> buf = ReplayBuffer(size=9, stack_num=4, ignore_obs_next=True)
    >>> for i in range(16):
    ...     done = i % 5 == 0
    ...     _ = buf.add(obs={'id': i}, act=i, rew=i, done=done,
    ...                 obs_next={'id': i + 1})
    >>> print(buf)
    ReplayBuffer(
        act: array([ 9, 10, 11, 12, 13, 14, 15,  7,  8]),
        done: array([False,  True, False, False, False, False,  True, False, False]),
        info: Batch(),
        obs: Batch(
                 id: array([ 9, 10, 11, 12, 13, 14, 15,  7,  8]),
             ),
        policy: Batch(),
        rew: array([ 9., 10., 11., 12., 13., 14., 15.,  7.,  8.]),
    )
    >>> index = np.arange(len(buf))
    >>> print(buf.get(index, 'obs').id)
    [[ 7  7  8  9]
     [ 7  8  9 10]
     [11 11 11 11]
     [11 11 11 12]
     [11 11 12 13]
     [11 12 13 14]
     [12 13 14 15]
     [ 7  7  7  7]
     [ 7  7  7  8]]
    >>> np.allclose(buf.get(index, 'obs')['id'], buf[index].obs.id)
    True
    >>> print(buf[:].obs_next.id)
    [[ 7  8  9 10]
     [ 7  8  9 10]
     [11 11 11 12]
     [11 11 12 13]
     [11 12 13 14]
     [12 13 14 15]
     [12 13 14 15]
     [ 7  7  7  8]
     [ 7  7  8  9]]
"""


def doctest_failures(text):
    output = []
    test = doctest.DocTestParser().get_doctest(text, {}, "document", None, 0)
    doctest.DocTestRunner(verbose=False, optionflags=0).run(test, out=output.append)
    return "".join(output)


def test_the_document_as_printed():
    assert doctest_failures(DOCUMENT) == ""
    assert doctest_failures(DOCUMENT.replace("[ 7  7  8  9]", "[ 7  8  8  9]")) != ""


def one(i, **changes):
    """A transition of one environment; observations count up."""
    fields = {"obs": np.array([i, -i], "f4"), "act": i, "rew": float(i)}
    if "done" not in changes:
        fields |= {"terminated": False, "truncated": False}
    return {**fields, "obs_next": np.array([i + 1, -i - 1], "f4"), **changes}


def several(numbers, **changes):
    """A transition for each number."""
    numbers = np.asarray(numbers)
    fields = {"obs": numbers, "act": numbers, "rew": numbers * 1.0}
    if "done" not in changes:
        fields |= {key: np.zeros(len(numbers), bool) for key in ("terminated", "truncated")}
    return {**fields, "obs_next": numbers + 1, **changes}


def filled(numbers, ends=(), **options):
    """A buffer of one environment, given transitions by number."""
    buffer = ReplayBuffer(**options)
    for i in numbers:
        buffer.add(**one(i, terminated=i in ends))
    return buffer


# --- what add takes


@pytest.mark.parametrize("kind", [dict, Batch])
def test_fields_come_as_keywords_a_dictionary_or_a_batch(kind):
    buffer, other = ReplayBuffer(5), ReplayBuffer(5)
    for i in range(7):
        buffer.add(**one(i))
        other.add(kind(one(i)))
    assert repr(buffer) == repr(other)
    assert buffer.act.tolist() == [5, 6, 2, 3, 4]


def test_keywords_go_before_a_batch():
    buffer = ReplayBuffer(5)
    buffer.add(one(3), act=7, note=1.5)
    assert (buffer[0].act, buffer[0].note) == (7, 1.5)


def test_some_environments_in_any_order():
    buffer = ReplayBuffer(8, n_envs=4)
    assert buffer.add(several([10, 20]), env_ids=[3, 1]).tolist() == [6, 2]
    assert buffer.add(Batch(several([21, 31, 0])), np.array([1, 2, 0])).tolist() == [3, 4, 0]
    assert buffer.act.tolist() == [[0, 0], [20, 21], [31, 0], [10, 0]]
    assert buffer.stored_rows().tolist() == [0, 2, 3, 4, 6]
    assert buffer.newest().tolist() == [0, 3, 4, 6]
    assert buffer.newest([1]).tolist() == [3]
    assert buffer[:].obs_next.tolist() == [1, 21, 22, 32, 11]


def test_the_newest_rows_of_an_environment():
    buffer = ReplayBuffer(8, n_envs=2)
    for i in range(6):
        buffer.add(several([i]), [1])
    assert buffer.newest_rows(1, 3).tolist() == [7, 4, 5]
    assert buffer.newest_rows(1, 99).tolist() == [6, 7, 4, 5]
    buffer.discard([4])
    assert buffer.newest_rows(1, 2).tolist() == [5]
    assert buffer.newest_rows(0, 2).tolist() == []


def test_one_environment_that_is_named_has_an_axis():
    buffer = ReplayBuffer(4)
    buffer.add(several([5]), [0])
    buffer.add(obs=6, act=6, rew=6, done=True, obs_next=7)
    assert buffer[:].obs.tolist() == [5, 6]


def test_lists_and_numbers_take_the_dtype_that_is_there():
    buffer = ReplayBuffer(6, n_envs=2)
    rows = [[1, 2, 3], [4, 5, 6]]
    buffer.add(several([1, 2], obs=np.float32(rows), obs_next=np.float32(rows)))
    buffer.add(obs=rows, act=[3, 4], rew=[1, 2], done=[0, 1], obs_next=rows)
    assert buffer.obs.dtype == np.float32
    assert buffer.obs[:, 1].tolist() == rows
    assert buffer[[1, 4]].done.tolist() == [False, True]


@pytest.mark.parametrize("dtype", ["u1", "i2", "i8", "f4", "f8", "?", "c8", "M8[s]", "S3"])
def test_dtypes_are_kept(dtype):
    buffer = ReplayBuffer(4)
    value = np.array([0, 1]).astype(dtype)
    for _ in range(2):
        buffer.add(one(0, obs=5, obs_next=6, act=value, rew=np.float32(1)))
    assert buffer.rew.dtype == np.float32
    assert buffer.act.dtype == (object if dtype == "S3" else dtype)
    assert buffer[1].act.tolist() == value.tolist()


@pytest.mark.parametrize(
    "dtype",
    [
        *["u1", "i2", "f4", "f8", "?", "c8", "M8[s]", ">f4"],
        *(dtype for dtype in ("f2", "U1")),
    ],
)
def test_observations_of_any_dtype(dtype):
    buffer = ReplayBuffer(4)
    values = [np.array([i, 1]).astype(dtype) for i in range(4)]
    for i in range(3):
        buffer.add(one(i, obs=values[i], obs_next=values[i + 1]))
    assert buffer[:].obs.tolist() == [v.tolist() for v in values[:3]]
    assert buffer[:].obs_next.tolist() == [v.tolist() for v in values[1:]]
    assert buffer.next(0) == 1


@pytest.mark.parametrize("dtype", [np.int64, np.bool, np.float16, np.longdouble])
def test_rewards_are_floating_point_numbers(dtype):
    buffer = ReplayBuffer(4)
    for i in range(3):
        buffer.add(one(i, rew=dtype(1), terminated=i == 2))
    assert buffer.rew.dtype == np.float64
    assert buffer[:].rew.tolist() == [1.0] * 3


def test_memory_of_any_layout():
    frames = np.arange(2 * 5 * 4 * 3.0).reshape(5, 3, 2, 4).transpose(0, 2, 3, 1)
    buffer = ReplayBuffer(10, n_envs=2)
    for i in range(4):
        buffer.add(several([i, i], obs=frames[i], obs_next=frames[i + 1], rew=frames[i, :, 0, 0]))
    by_env = frames.swapaxes(0, 1)
    np.testing.assert_array_equal(buffer.obs[:, :4], by_env[:, :4])
    np.testing.assert_array_equal(buffer.obs_next[:, :4], by_env[:, 1:])
    np.testing.assert_array_equal(buffer.rew[:, :4], by_env[:, :4, 0, 0])


def test_tensors_are_stored_as_arrays():
    buffer = ReplayBuffer(4)
    buffer.add(one(0))
    buffer.add({key: torch.as_tensor(value) for key, value in one(1).items()})
    buffer.add(one(2, obs=torch.tensor([2.0, -2.0], requires_grad=True)))
    assert type(buffer.obs) is np.ndarray
    assert buffer.next([0, 1]).tolist() == [1, 2]


def test_what_is_given_is_copied():
    buffer = ReplayBuffer(4)
    for i in range(3):
        fields = one(i)
        buffer.add(**fields)
        fields["obs"][:] = fields["obs_next"][:] = 99
    assert buffer[:].obs[:, 0].tolist() == [0, 1, 2]
    assert buffer[:].obs_next[:, 0].tolist() == [1, 2, 3]


def test_nested_observations_policy_and_extra_keys():
    buffer = ReplayBuffer(4)
    for i in range(6):
        obs, after = ({"a": {"id": j}, "b": np.full((2, 2), j)} for j in (i, i + 1))
        policy = {"log_prob": -i, "state": {"h": [i, i]}}
        buffer.add(one(i, obs=obs, obs_next=after, policy=policy, goal=f"goal {i}"))
    row = buffer[1]
    assert (row.obs.a.id, row.obs.b.tolist(), row.obs_next.a.id) == (5, [[5, 5], [5, 5]], 6)
    assert (row.policy.log_prob, row.policy.state.h.tolist(), row.goal) == (-5, [5, 5], "goal 5")
    assert buffer.policy.state.h.shape == (4, 2)


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_dictionary_for_each_environment(kind):
    buffer = ReplayBuffer(4, n_envs=2)
    rows = kind([{"x": 1, "y": {"z": 2.5}}, {"x": 3, "y": {"z": 4.5}}])
    for _ in range(2):
        buffer.add(several([0, 0], obs=rows, obs_next=rows, info=rows))
    assert buffer[:].obs.x.tolist() == [1, 1, 3, 3]
    assert buffer[:].info.y.z.tolist() == [2.5, 2.5, 4.5, 4.5]


def test_keys_with_dots_and_names_of_attributes():
    buffer = ReplayBuffer(4)
    buffer.add(one(0, size=7, info={"a.b": 1, "a": {"b": 2}, "items": 3}))
    assert buffer[0].size == 7
    assert buffer[0].info.to_dict() == {"a.b": 1, "a": {"b": 2}, "items": 3}


def test_the_size_is_rounded_up_to_full_slots():
    assert ReplayBuffer(10, n_envs=4).size == 12
    assert ReplayBuffer(12, n_envs=4).size == 12
    assert ReplayBuffer(1, n_envs=4).size == 4
    assert ReplayBuffer(10, n_envs=4).options()["size"] == 10


def test_bytes_are_counted():
    buffer = filled(range(3), size=100)
    rows = 100 * (2 * 4 + 8 + 8)  # obs, act, rew
    assert rows < buffer.nbytes < rows + 100 * 5 + 1000


# --- info, which may come and go


@pytest.mark.parametrize(
    ("value", "nothing"),
    [(2.5, np.nan), (3, 0), (True, False), ("text", None), (np.ones(2), [np.nan, np.nan])],
)
def test_info_that_is_missing_reads_as_nothing(value, nothing):
    buffer = ReplayBuffer(6)
    for i in range(6):
        buffer.add(one(i, **({"info": {"steady": i, "key": value}} if i % 3 == 1 else {})))
    there = buffer.info.key[[1, 4]]
    np.testing.assert_array_equal(there, np.stack([value, value]))
    for i in (0, 2, 3, 5):
        np.testing.assert_array_equal(buffer[i].info.key, nothing)
    assert buffer.info.steady.tolist() == [0, 1, 0, 0, 4, 0]


def test_info_of_some_environments_and_nested_keys():
    buffer = ReplayBuffer(8, n_envs=2)
    buffer.add(several([0, 0], info={}))
    buffer.add(several([1], info={"a": {"b": [1.5]}}), [1])
    buffer.add(several([1, 2], info={"c": [7, 8]}))
    buffer.add(several([3], info=Batch(a={"b": [2.5]}, c=[9])), [1])
    nan = np.nan
    np.testing.assert_array_equal(buffer.info.a.b, [[nan] * 4, [nan, 1.5, nan, 2.5]])
    assert buffer.info.c.tolist() == [[0, 7, 0, 0], [0, 0, 8, 9]]


def test_no_info_at_all():
    buffer = filled(range(2), size=4)
    buffer.add(**one(2, info={}, policy={}))
    assert buffer.info == buffer[0].info == buffer.policy == Batch()


# --- ends


@pytest.mark.parametrize(
    ("given", "terminated", "truncated"),
    [
        ({"done": False}, False, False),
        ({"done": 1}, True, False),
        ({"done": torch.tensor(True)}, True, False),
        ({"terminated": True}, True, False),
        ({"terminated": True, "truncated": True}, True, True),
        ({"terminated": False, "truncated": np.True_}, False, True),
        ({"terminated": False, "done": True}, False, True),
        ({"truncated": True, "done": True}, False, True),
        ({"truncated": False, "done": True}, True, False),
        ({"terminated": False, "truncated": True, "done": True}, False, True),
        ({"terminated": None, "truncated": None, "done": 1.0}, True, False),
        ({"terminated": torch.tensor(True), "done": np.array(1)}, True, False),
    ],
)
@pytest.mark.parametrize("n_envs", [1, 2])
def test_ends_in_all_forms(given, terminated, truncated, n_envs):
    buffer = ReplayBuffer(4, n_envs=n_envs)
    fields = one(0)
    if n_envs > 1:  # the other environment goes on
        fields = several([0, 0])
        given = {k: v if v is None else np.array([bool(v), False]) for k, v in given.items()}
    for name in ("terminated", "truncated"):
        del fields[name]
    for index in range(2):  # also when it is not the first
        buffer.add(fields, **given)
        row = buffer[index]
        assert (row.terminated, row.truncated) == (terminated, truncated)
        assert row.done == (terminated or truncated)
    others = [3] if n_envs > 1 else []
    assert buffer.unfinished_index().tolist() == (others if row.done else [1, *others])


def test_done_is_printed_as_long_as_nothing_else_was_given():
    buffer = ReplayBuffer(4)
    buffer.add(one(0, done=True))
    assert "done: " in repr(buffer)
    assert "terminated: " not in repr(buffer)
    buffer.add(one(1))
    buffer.add(one(2, truncated=True))
    assert "done: " not in repr(buffer)
    assert "truncated: array([False, False,  True, False])" in repr(buffer)


def test_rewards_of_several_agents():
    buffer = ReplayBuffer(8, n_envs=2)
    rewards = np.arange(12.0).reshape(2, 2, 3)
    buffer.add(**several([0, 10], rew=rewards[0]))
    buffer.add(**several([1, 11], rew=rewards[1], truncated=np.array([False, True])))
    assert buffer[:].rew.tolist() == rewards.swapaxes(0, 1).reshape(4, 3).tolist()
    with pytest.raises(ValueError, match="'rew' is NaN in environment 1"):
        buffer.add(**several([2, 12], rew=np.array([[0.0] * 3, [0.0, np.nan, 0.0]])))


# --- episodes that are broken off, and rows that are dropped


def test_a_cut_episode_is_not_continued():
    buffer = ReplayBuffer(8, n_envs=2)
    buffer.add(**several([0, 10]))
    buffer.cut([0])
    buffer.add(**several([5, 11], truncated=np.array([True, True])))
    assert buffer.next([0, 4]).tolist() == [0, 5]
    assert buffer.prev([1, 5]).tolist() == [1, 4]
    assert buffer.unfinished_index().tolist() == [0]
    assert buffer[0].obs_next == 1
    assert buffer.read(np.arange(2), ("first",)).first.tolist() == [True, True]
    assert buffer.read(np.arange(4, 6), ("first",)).first.tolist() == [True, False]


def test_cutting_twice_or_nothing_changes_nothing():
    buffer = filled(range(2), size=4)
    buffer.cut()
    before = repr(buffer)
    buffer.cut()
    buffer.cut([0])
    ReplayBuffer(4).cut()
    assert repr(buffer) == before
    assert buffer[1].obs_next.tolist() == [2, -2]


def test_many_cuts_reuse_the_places_of_final_observations():
    buffer = ReplayBuffer(8, n_envs=2)
    for i in range(500):
        buffer.add(**several([i, i + 1000], terminated=np.array([i % 3 == 0, False])))
        if i % 2:
            buffer.cut()
    assert buffer[:].obs_next.tolist() == (buffer[:].obs + 1).tolist()
    assert buffer._n_finals < 50


def test_observations_of_nan_follow_one_another():
    buffer = ReplayBuffer(8)
    for i in range(3):
        buffer.add(**one(i, obs=np.float32([np.nan, i]), obs_next=np.float32([np.nan, i + 1])))
    assert buffer.next([0, 1]).tolist() == [1, 2]


def test_discarded_rows_are_gone():
    buffer = filled(range(6), size=6, stack_num=3)
    buffer.discard([1, 4])
    assert len(buffer) == 4
    assert buffer[:].act.tolist() == [0, 2, 3, 5]
    assert buffer.next([0, 2, 3]).tolist() == [0, 3, 3]
    assert buffer.get(3, "obs")[:, 0].tolist() == [2, 2, 3]
    assert buffer[0].obs_next[:, 0].tolist() == [0, 0, 1]
    buffer.discard(buffer.stored_rows())
    assert len(buffer) == 0
    buffer.add(**one(6))
    assert buffer[:].act.tolist() == [6]


def test_reset_empties_and_keeps_the_fields():
    buffer = filled(range(9), size=4)
    buffer.reset()
    assert len(buffer) == 0
    assert buffer.unfinished_index().tolist() == []
    with pytest.raises(TypeError, match="'act'"):
        buffer.add(**one(0, act=np.float32(1)))
    assert buffer.add(**one(5, terminated=True)).tolist() == [0]
    assert (buffer[0].act, len(buffer)) == (5, 1)


# --- reading


def test_an_index_in_any_form():
    buffer = filled(range(5), size=8)
    assert buffer[3].act == buffer[-2].act == 3
    assert buffer[np.int64(3)].obs.tolist() == [3, -3]
    assert buffer[[0, -1]].act.tolist() == [0, 4]
    assert buffer[1:4].act.tolist() == [1, 2, 3]
    assert buffer[::-2].act.tolist() == [4, 2, 0]
    assert buffer[torch.tensor([2, 1])].act.tolist() == [2, 1]
    assert buffer[np.array([[0, 1], [2, 3]], np.uint8)].obs.shape == (2, 2, 2)
    assert buffer[np.array([True, False, True, False, False])].act.tolist() == [0, 2]
    assert buffer[buffer[:].rew > 2].act.tolist() == [3, 4]
    assert len(buffer[np.zeros(0, int)].act) == 0


def test_a_row_of_single_numbers():
    buffer = ReplayBuffer(4)
    for i in range(3):
        buffer.add(obs=i, act=i, rew=i, done=False, obs_next=i + 1)
    row = buffer[1]
    assert (row.obs, row.act, row.rew, row.obs_next) == (1, 1, 1.0, 2)
    assert (buffer.next(1), buffer.prev(1)) == (2, 0)
    assert type(buffer.next(1)) is int


@pytest.fixture
def wrapped():
    """Rows 6 7 8 3 4 5 of a ring of six, where an episode was truncated after 3."""
    buffer = ReplayBuffer(6, stack_num=3)
    for i in range(9):
        obs_next = 40 if i == 3 else i + 1
        buffer.add(obs=i, act=i, rew=i, terminated=False, truncated=i == 3, obs_next=obs_next)
    return buffer


def test_stacks_start_with_the_episode_or_the_oldest_row(wrapped):
    assert wrapped.act.tolist() == [6, 7, 8, 3, 4, 5]
    assert wrapped[:].obs.tolist() == [
        [4, 5, 6], [5, 6, 7], [6, 7, 8], [3, 3, 3], [4, 4, 4], [4, 4, 5]
    ]  # fmt: skip
    assert wrapped[:].obs_next.tolist() == [
        [5, 6, 7], [6, 7, 8], [7, 8, 9], [3, 3, 40], [4, 4, 5], [4, 5, 6]
    ]  # fmt: skip


def test_stacks_on_demand(wrapped):
    assert wrapped.get([0, 3], "obs", stack_num=1).tolist() == [6, 3]
    assert wrapped.get([0, 3], "obs_next", stack_num=2).tolist() == [[6, 7], [3, 40]]
    assert wrapped.get([0, 3], "rew").tolist() == [6, 3]
    assert wrapped.get([5, 1], "rew", stack_num=4).tolist() == [[4, 4, 4, 5], [4, 5, 6, 7]]
    assert wrapped.get(2, "act", stack_num=2).tolist() == [7, 8]
    assert wrapped.get([3, 0], "done", stack_num=2).tolist() == [[True, True], [False, False]]


def test_neighbours(wrapped):
    assert wrapped.next([0, 1, 2, 3, 4, 5]).tolist() == [1, 2, 2, 3, 5, 0]
    assert wrapped.prev([0, 1, 2, 3, 4, 5]).tolist() == [5, 0, 1, 3, 4, 4]
    assert wrapped.prev([[0], [4]]).tolist() == [[5], [4]]
    assert wrapped.unfinished_index().tolist() == [2]


def test_segments_stop_at_ends_and_at_the_newest_row(wrapped):
    batch, indices = wrapped.sample(0, length=3)
    assert batch.act.tolist() == [[3, 4, 5, 6, 7, 8], [3, 5, 6, 7, 8, 8], [3, 6, 7, 8, 8, 8]]
    assert batch.mask.tolist() == [
        [True] * 6, [False, True, True, True, True, False], [False, True, True, True, False, False]
    ]  # fmt: skip
    assert wrapped.act[indices].tolist() == batch.act.tolist()
    assert batch.obs.shape == batch.obs_next.shape == (3, 6, 3)
    assert batch.obs_next[-1].tolist() == wrapped[indices[-1]].obs_next.tolist()


def test_only_last_frames_are_kept_and_stacks_come_back():
    """An environment that stacks its own frames, four deep, and repeats the first at the start."""
    buffer = ReplayBuffer(40, n_envs=2, stack_num=4, save_only_last_obs=True)
    frames = np.zeros((2, 4, 3))
    given = []
    for step in range(40):
        after = np.roll(frames, -1, axis=1)
        after[:, -1] = step + np.array([[0.25], [0.5]])
        truncated = np.array([step % 7 == 6, step % 5 == 4])
        buffer.add(**several([step, step], obs=frames, obs_next=after, truncated=truncated))
        given.append((frames, after))
        frames = after.copy()
        for env in np.flatnonzero(truncated):
            frames[env] = -step
    assert buffer.obs.shape == (2, 20, 3)
    for step in range(24, 40):  # episodes that began earlier lack frames that were overwritten
        batch = buffer[[step % 20, step % 20 + 20]]
        np.testing.assert_array_equal(batch.obs, given[step][0])
        np.testing.assert_array_equal(batch.obs_next, given[step][1])


def test_only_last_frames_of_single_rows_in_dictionaries():
    buffer = ReplayBuffer(4, save_only_last_obs=True)
    for i in range(3):
        obs, after = ({"a": [j - 1, j]} for j in (i, i + 1))
        buffer.add(obs=obs, act=i, rew=i, done=False, obs_next=after)
    assert buffer.obs.a.tolist() == [0, 1, 2, 0]
    assert buffer[:].obs_next.a.tolist() == [1, 2, 3]


def test_the_first_and_last_rows_of_episodes_are_found_for_rows_of_any_shape():
    buffer = ReplayBuffer(6)
    for i in range(5):
        buffer.add(obs=i, act=0, rew=0.0, terminated=i == 1, truncated=False, obs_next=i + 1)
    rows = np.array([[0, 2], [1, 3]])
    assert buffer.episode_first(rows).tolist() == [[0, 2], [0, 2]]
    assert buffer.episode_last(rows).tolist() == [[1, 4], [1, 4]]
    assert buffer.episode_last(3) == 4
    with pytest.raises(IndexError, match="has no transition"):
        buffer.episode_last(5)


def test_without_next_observations():
    buffer = filled(range(6), ends=[2], size=4, ignore_obs_next=True)
    assert buffer[:].obs[:, 0].tolist() == [4, 5, 2, 3]
    assert buffer[:].obs_next[:, 0].tolist() == [5, 5, 2, 4]
    other = ReplayBuffer(4, ignore_obs_next=True)
    other.add(obs=1, act=1, rew=1, done=False)
    assert other[0].obs_next == 1


def test_fields_are_live_views():
    buffer = ReplayBuffer(8, n_envs=2)
    buffer.add(**several([1, 2]))
    obs = buffer.obs
    buffer.add(**several([3, 4]))
    assert obs.tolist() == [[1, 3, 0, 0], [2, 4, 0, 0]]
    obs[1, 0] = 9
    assert buffer[4].obs == 9


@pytest.mark.parametrize("stack_num", [1, 2])
def test_a_batch_is_a_copy(stack_num):
    buffer = filled(range(3), size=4, stack_num=stack_num)
    for batch in (buffer[:], buffer.sample(3)[0], buffer.rollout()[0]):
        batch.obs[:] = 77
        batch.obs_next[:] = 77
        batch.rew[:] = 77
    assert 77 not in buffer.obs
    assert 77 not in buffer[:].obs_next
    assert 77 not in buffer.rew


def test_attributes_of_slots():
    buffer = filled([0, 1], ends=[1], size=3)
    buffer.obs[0] = 7  # which nothing comes before
    assert buffer.done.tolist() == buffer.terminated.tolist() == [False, True, False]
    assert buffer.obs_next[:, 0].tolist() == [1, 2, 0]
    with pytest.raises(AttributeError, match="no field 'reward'; it has: obs, act, rew"):
        _ = buffer.reward
    with pytest.raises(AttributeError, match="the buffer is empty, so it has no 'obs' yet"):
        _ = ReplayBuffer(3).obs


def test_copies_are_buffers_of_their_own():
    buffer = filled(range(3), size=4, seed=1)
    for other in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        assert repr(other) == repr(buffer)
        other.add(**one(3))
        assert (len(other), len(buffer)) == (4, 3)


def test_a_saved_folder_gives_the_buffer_back(tmp_path):
    buffer = filled(range(9), ends=[4], size=6, stack_num=2, seed=3)
    buffer.save(tmp_path / "buffer")
    other = ReplayBuffer.load(tmp_path / "buffer")
    assert repr(other) == repr(buffer)
    assert other.options() == buffer.options()
    assert other.sample(9)[1].tolist() == buffer.sample(9)[1].tolist()
    for each in (buffer, other):
        each.add(**one(9, terminated=True))
        assert each.episode_first(3) == 5
    assert other[:] == buffer[:]
    with pytest.raises(ValueError, match="has a ReplayBuffer, not a PrioritizedReplayBuffer"):
        PrioritizedReplayBuffer.load(tmp_path / "buffer")
    buffer.save(tmp_path / "buffer")
    assert [path.name for path in tmp_path.iterdir()] == ["buffer"]
    (tmp_path / "buffer.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="is a file, but buffers are saved as folders"):
        ReplayBuffer.load(tmp_path / "buffer.npz")
    with pytest.raises(FileExistsError, match=r"holds 'buffer', too|holds 'buffer.npz', too"):
        buffer.save(tmp_path)


def test_another_buffers_rows_are_appended_in_time_order():
    target = filled([100, 101], size=9)
    source = ReplayBuffer(6, n_envs=2)
    for i in range(4):
        obs = np.float32([[i, -i], [10 + i, -10 - i]])
        source.add(**several([i, 10 + i], obs=obs, obs_next=obs + np.float32([1, -1])))
    target.update(source)
    assert target[:].act.tolist() == [100, 101, 1, 2, 3, 11, 12, 13]
    assert target.next(np.arange(8)).tolist() == [1, 1, 3, 4, 4, 6, 7, 7]
    assert target.unfinished_index().tolist() == [1, 4, 7]


def test_an_update_with_nothing_changes_nothing():
    buffer = ReplayBuffer(4)
    buffer.add(one(0, done=False))
    before = repr(buffer)
    buffer.update(ReplayBuffer(4))
    assert repr(buffer) == before
    buffer.add(one(1, done=False))
    assert buffer.next(0) == 1


def test_an_episode_that_is_put_in_whole_joins_no_other():
    buffer = filled(range(2), size=9)
    buffer.extend([one(i) for i in (5, 6)])
    buffer.add(**one(7))
    assert buffer[:].act.tolist() == [0, 1, 5, 6, 7]
    assert buffer.next(np.arange(5)).tolist() == [1, 1, 3, 3, 4]
    assert buffer[:].obs_next[:, 0].tolist() == [1, 2, 6, 7, 8]


def test_rows_that_were_not_annotated_are_dropped_when_files_are_opened_again(tmp_path):
    options = {"size": 6, "storage": f"disk:{tmp_path}"}
    buffer = ReplayBuffer(**options)
    for i in range(4):
        rows = buffer.add(obs=i, act=i, rew=0.0, done=False, obs_next=i + 1)
        if i in (1, 2):
            buffer.annotate(rows, {"score": np.array([float(i)])})
    assert buffer[:].act.tolist() == [0, 1, 2, 3]
    again = ReplayBuffer(**options)  # as after the process was killed
    assert again[:].act.tolist() == [1, 2]
    assert again[:].annotations.score.tolist() == [1.0, 2.0]


def test_rows_without_annotations_stay_without_them_in_another_buffer():
    source, target = ReplayBuffer(6), ReplayBuffer(6)
    for i in range(4):
        at = source.add(**one(i))
        if i < 3:
            source.annotate(at, {"score": np.array([float(i)])})
    target.update(source)
    assert (target._flags[:4] & PENDING != 0).tolist() == [False, False, False, True]
    assert target[:].annotations.score[:3].tolist() == [0.0, 1.0, 2.0]


def test_annotations_are_kept_beside_transitions():
    buffer = ReplayBuffer(6, n_envs=2)
    for i in range(3):
        rows = buffer.add(**several([i, 10 + i]))
    assert "annotations" not in buffer[:]
    scores = {"deep": {"score": np.array([[0.5, 1.0], [1.5, 2.0]], np.float32)}}
    buffer.annotate(np.array([rows, rows - 1]), scores)
    assert buffer[:].annotations.deep.score.tolist() == [0, 1.5, 0.5, 0, 2.0, 1.0]
    buffer.annotate(np.array([0, -1]), {"deep": {"score": np.array([9.0, 8.0])}})
    assert buffer[:].annotations.deep.score.tolist() == [9, 1.5, 0.5, 0, 2.0, 1.0]
    assert buffer.sample(5, fields=["annotations"])[0].annotations.deep.score.shape == (5,)
    assert buffer.annotations.deep.score.shape == (2, 3)
    buffer.add(**several([3, 13]))  # in the places of the oldest, not yet annotated
    other = ReplayBuffer(9)
    other.update(buffer)
    assert other[:].annotations.deep.score.tolist() == [1.5, 0.5, 0, 2.0, 1.0, 0]


def test_the_rows_before_some():
    buffer = filled(range(6), ends=[1], size=6)
    batch = buffer.before(
        np.array([[5, 2], [3, 1]]), np.array([[True, True], [True, False]]), 2, ("act", "obs")
    )
    assert batch.mask.tolist() == [[[True, True], [False, False]], [[False, True], [False, False]]]
    assert batch.act[0, 0].tolist() == [3, 4]
    assert batch.act[1, 0, 1] == 2
    assert batch.obs.shape == (2, 2, 2, 2)
    nothing = buffer.before(np.array([-1, -1]), np.zeros(2, bool), 2, ("act",))
    assert not nothing.mask.any()


# --- sampling


def uneven():
    buffer = ReplayBuffer(30, n_envs=3)
    for i in range(9):
        buffer.add(several([i, i]), [0, 2])
    return buffer


def holes():
    buffer = ReplayBuffer(30, n_envs=3)
    for i in range(10):
        buffer.add(**several([i, i, i]))
    buffer.discard([1, 3, 7, 12, 13, 20, 25])
    return buffer


def with_history():
    numbers, ends = range(25), (3, 4, 11, 20)
    return filled(numbers, ends, size=18, stack_num=3, sample_avail=True)


@pytest.mark.parametrize(
    ("make", "eligible"),
    [
        (lambda: filled(range(7), size=30), range(7)),
        (lambda: filled(range(44), size=30), range(30)),
        (uneven, [*range(9), *range(20, 29)]),
        (holes, [row for row in range(30) if row not in (1, 3, 7, 12, 13, 20, 25)]),
        (with_history, [0, 1, 2, 5, 6, 9, 10, 11, 14, 15, 16, 17]),
    ],
)
def test_every_row_is_as_likely(make, eligible):
    buffer = make()
    buffer._generator = np.random.default_rng(5)
    draws = 20_000
    counts = np.bincount(buffer.sample_indices(draws), minlength=buffer.size)
    assert np.flatnonzero(counts).tolist() == list(eligible)
    expected = draws / len(eligible)
    chi_square = ((counts[list(eligible)] - expected) ** 2 / expected).sum()
    freedom = len(eligible) - 1
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)
    rows = buffer.sample(0)[1]
    assert sorted(rows.tolist()) == list(eligible)


def test_no_row_has_enough_history():
    buffer = filled(range(4), ends=range(4), size=9, stack_num=2, sample_avail=True)
    with pytest.raises(ValueError, match="no row has 1 earlier rows of its episode"):
        buffer.sample(1)
    assert len(buffer.sample(0)[1]) == 0


def test_rows_that_are_no_transitions_are_left_out():
    chosen, masked = ReplayBuffer(12, n_envs=3), ReplayBuffer(12, n_envs=3)
    generator = np.random.default_rng(0)
    for i in range(9):
        mask, done = generator.random((2, 3)) < 0.6
        rows = Batch(obs=np.arange(3) + i, act=np.arange(3), rew=np.ones(3), done=done)
        rows.obs_next = rows.obs + 1
        indices = masked.add(rows, None, mask)
        if mask.any():
            assert indices.tolist() == chosen.add(rows[mask], np.flatnonzero(mask)).tolist()
        else:
            assert indices.tolist() == []
    assert masked.sample(0)[0] == chosen.sample(0)[0]
    with pytest.raises(ValueError, match="the mask has 2 entries for 3 rows"):
        masked.add(rows, None, mask[:2])


def test_a_sample_is_what_is_at_its_indices():
    buffer = filled(range(50), ends=[20, 41], size=30, stack_num=2, seed=0)
    batch, indices = buffer.sample(64)
    assert batch == buffer[indices]
    assert batch.obs[:, 1, 0].tolist() == batch.act.tolist()


def test_the_seed_decides():
    def draws(seed):
        buffer = filled(range(20), size=20, seed=seed)
        return [buffer.sample(8)[1].tolist() for _ in range(3)]

    assert draws(1) == draws(1) == draws(np.random.default_rng(1))
    assert draws(1) != draws(2)
    assert draws(None) != draws(None)
    assert draws(1)[0] != draws(1)[1]


def test_the_generator_is_the_buffers_own():
    def global_states():
        numpy_state = np.random.get_state()[1].tolist()  # noqa: NPY002 - that is the question
        return random.getstate(), numpy_state, torch.get_rng_state().tolist()

    before = global_states()
    alone = filled(range(20), size=20, seed=1)
    buffer, other = filled(range(20), size=20, seed=1), filled(range(20), size=20, seed=2)
    for _ in range(3):
        other.sample(5)
        assert buffer.sample(5)[1].tolist() == alone.sample(5)[1].tolist()
    assert global_states() == before


def test_only_the_fields_asked_for_are_read():
    buffer = filled(range(5), size=8)
    buffer._columns = {
        path: column if path == ("rew",) else None  # which cannot be read
        for path, column in buffer._columns.items()
    }
    batch, indices = buffer.sample(6, fields=["rew", "done"])
    assert list(batch.keys()) == ["rew", "done"]
    assert batch.rew.tolist() == indices.tolist()
    assert list(buffer.sample(6, fields=[])[0].keys()) == []
    with pytest.raises(KeyError, match="no field 'reward'; it has: obs, act, rew"):
        buffer.sample(6, fields=["reward"])


def test_rows_without_a_next_observation_are_sampled_as_terminated():
    """Truncated, cut and newest rows: a policy would bootstrap from their own observation."""
    buffer = ReplayBuffer(8, ignore_obs_next=True, seed=0)
    for i in range(6):
        if i == 4:
            buffer.cut()
        buffer.add(obs=i, act=i, rew=1.0, terminated=i == 0, truncated=i == 2)
    alone = np.array([True, False, True, True, False, True])
    batch, rows = buffer.sample(64)
    assert batch.terminated.tolist() == alone[rows].tolist()
    assert batch.done.tolist() == alone[rows].tolist()
    assert buffer.sample(4, fields=("obs", "rew"))[0].keys() == {"obs", "rew"}
    segments, rows = buffer.sample(64, length=2)
    assert segments.terminated.tolist() == alone[rows].tolist()
    assert buffer.terminated[:6].tolist() == [True, *[False] * 5]  # as they were added
    kept = ReplayBuffer(8, seed=0)
    kept.add(obs=0, act=0, rew=1.0, terminated=False, truncated=True, obs_next=1)
    assert not kept.sample(4)[0].terminated.any()
