"""Bad input to buffers: an error that says what is wrong, and a buffer that is as it was."""

import numpy as np
import pytest
import torch

from guerdon.compat.tianshou import ListReplayBuffer
from guerdon.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

NAN = float("nan")


def step(i, **changes):
    """A step of two environments; with a change to None, a field is left out."""
    numbers = np.array([i, 100 + i])
    obs, obs_next = (
        {"a": v, "b": np.stack([v, v], 1).astype("f4")} for v in (numbers, numbers + 1)
    )
    no = np.zeros(2, bool)
    fields = {
        "obs": obs,
        "act": numbers,
        "rew": numbers * 1.0,
        "terminated": no,
        "truncated": no,
        "obs_next": obs_next,
        "info": {"lives": numbers},
        "policy": {"log_prob": -numbers / 2},
    } | changes
    return {key: value for key, value in fields.items() if value is not None}


def plain(i, **changes):
    """A step whose fields are all arrays."""
    numbers = np.array([i, 100 + i])
    fields = {"obs": numbers, "obs_next": numbers + 1, "info": None, "policy": None}
    return step(i, **fields | changes)


@pytest.fixture(params=["memory", "disk", "cpu"])
def storage(request, tmp_path):
    return f"disk:{tmp_path / 'buffer'}" if request.param == "disk" else request.param


def contents(buffer):
    """Everything there is to a buffer, in a form that can be compared."""
    state = buffer.training_state()
    arrays = {path: np.asarray(array).tolist() for path, array in state["arrays"].items()}
    return repr(buffer), len(buffer), str(arrays), str(state["meta"])


def refuse(buffer, error, message, call):
    """Sees that a call fails as it should and leaves everything as it was."""
    before = contents(buffer)
    with pytest.raises(error, match=message):
        call()
    assert contents(buffer) == before


ROWS = {"a": np.array([5, 105]), "b": np.zeros((2, 2), "f4")}

# What is wrong with a step, the error, and what it says. Dtypes of torch have a longer name.
BAD = {
    "key missing": ({"act": None}, ValueError, "lacks 'act': the buffer holds 'act', .* given"),
    "next missing": ({"obs_next": None}, ValueError, "lacks 'obs_next.a'"),
    "policy missing": ({"policy": None}, ValueError, "lacks 'policy.log_prob'"),
    "inner key missing": ({"obs": {"a": ROWS["a"]}}, ValueError, "lacks 'obs.b': .* 'obs.b'"),
    "inner key missing in next": ({"obs_next": {"b": ROWS["b"]}}, ValueError, "lacks 'obs_next.a'"),
    "no keys any more": ({"obs": ROWS["b"]}, ValueError, "lacks 'obs.a'"),
    "key too many": ({"goal": ROWS["a"]}, ValueError, "given 'goal', which the first add did not"),
    "inner key too many": ({"obs": {**ROWS, "c": 1}}, ValueError, "given 'obs.c'.* 'obs.b'"),
    "keys all at once": ({"act": ROWS}, ValueError, "lacks 'act': .* given 'act.a', 'act.b'"),
    "shape": ({"act": np.zeros((2, 3), int)}, ValueError, r"'act' has shape \(2, 3\), .* \(2,\)"),
    "inner shape": (
        {"obs": {**ROWS, "b": np.zeros((2, 3), "f4")}},
        ValueError,
        r"'obs.b' has shape \(2, 3\), but the buffer expects \(2, 2\)",
    ),
    "rows": ({"act": np.array([5])}, ValueError, r"'act' has shape \(1,\), .* expects \(2,\)"),
    "dtype": ({"act": np.zeros(2)}, TypeError, "'act' is .*float64, but the buffer holds .*int64"),
    "inner dtype": (
        {"obs_next": {**ROWS, "b": np.zeros((2, 2))}},
        TypeError,
        "'obs_next.b' is .*float64, but the buffer holds .*float32",
    ),
    "dtype of info": ({"info": {"lives": np.zeros(2)}}, TypeError, "'info.lives' is .*float64"),
    "decimals in a list": ({"act": [1.5, 2.5]}, TypeError, "'act' is .*float64, .* holds .*int64"),
    "unequal lists": ({"act": [[1], [2, 3]]}, ValueError, "'act' is not an array: .*inhomogeneous"),
    "nan": ({"rew": np.array([1.0, NAN])}, ValueError, "'rew' is NaN in environment 1"),
    "nan in a list": ({"rew": [NAN, 1]}, ValueError, "'rew' is NaN in environment 0"),
    "nan and new info": ({"rew": [NAN, 1], "info": {"new": [1, 2]}}, ValueError, "'rew' is NaN"),
    "words": ({"rew": ["a", "b"]}, TypeError, "'rew' is object, but the buffer holds .*float64"),
    "no ends": ({"terminated": None, "truncated": None}, ValueError, "needs 'done' or 'termin"),
    "half the ends": ({"terminated": None}, ValueError, "needs 'done' or 'terminated'"),
    "ends that disagree": (
        {"terminated": None, "truncated": [True, False], "done": [False, False]},
        ValueError,
        "'done' is not 'terminated' or 'truncated'",
    ),
    "one end that disagrees": (
        {"truncated": None, "terminated": [True, False], "done": [False, False]},
        ValueError,
        "'done' is not 'terminated' or 'truncated'",
    ),
    "all ends that disagree": ({"done": [True, False]}, ValueError, "'done' is not 'terminated'"),
    "shape of ends": ({"truncated": np.zeros(3, bool)}, ValueError, r"'truncated' .*\(3,.*\(2,"),
    "shapes of ends": (
        {"done": [False] * 3},
        ValueError,
        r"'done' has shape \(3,\), but the buffer expects \(2,\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_step(storage, case):
    changes, error, message = BAD[case]
    buffer = ReplayBuffer(6, n_envs=2, storage=storage)
    for i in range(5):
        buffer.add(**step(i))
    bad = step(5, **changes)
    refuse(buffer, error, message, lambda: buffer.add(**bad))
    refuse(buffer, error, message, lambda: buffer.add(bad, env_ids=[0, 1]))
    assert buffer.add(**step(5, truncated=np.array([False, True]))).tolist() == [2, 5]
    assert buffer[:].obs.a.tolist() == [3, 4, 5, 103, 104, 105]
    assert buffer[:].obs_next.a.tolist() == [4, 5, 6, 104, 105, 106]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rew": np.array([1.0, NAN])}, ValueError, "'rew' is NaN in environment 1"),
        ({"act": np.zeros((2, 1), int)}, ValueError, r"'act' has shape \(2, 1\)"),
        ({"act": np.zeros(2)}, TypeError, "'act' is .*float64"),
        ({"obs": np.zeros(2)}, TypeError, "'obs' is .*float64"),
        ({"obs_next": np.zeros(2, "i4")}, TypeError, "'obs_next' is .*int32"),
        ({"obs_next": np.zeros(1, int)}, ValueError, r"'obs_next' has shape \(1,\)"),
        ({"terminated": np.zeros(3, bool)}, ValueError, r"'terminated' has shape \(3,\)"),
        ({"truncated": np.zeros((2, 1), bool)}, ValueError, r"'truncated' has shape \(2, 1\)"),
        ({"goal": np.zeros(2)}, ValueError, "given 'goal'"),
        ({"act": None}, ValueError, "lacks 'act'"),
    ],
)
@pytest.mark.parametrize("before", [1, 2, 5])
def test_a_bad_step_of_plain_arrays(changes, error, message, before):
    buffer = ReplayBuffer(6, n_envs=2)
    for i in range(before):
        buffer.add(**plain(i))
    refuse(buffer, error, message, lambda: buffer.add(**plain(before, **changes)))
    for i in range(before, before + 3):
        buffer.add(**plain(i, terminated=np.full(2, i == before + 2)))
    expected = [i + env for i in range(before, before + 3) for env in (0, 100)]
    assert buffer.sample(0)[0].act.tolist() == expected
    assert buffer[:].obs_next.tolist() == (buffer[:].obs + 1).tolist()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rew": NAN}, ValueError, "'rew' is NaN in environment 0"),
        ({"act": 2**70}, TypeError, "'act' is object, but the buffer holds .*int64"),
        ({"act": 1.5}, TypeError, "'act' is .*float64, but the buffer holds .*int64"),
        ({"act": "left"}, TypeError, "'act' is object, but the buffer holds .*int64"),
        ({"act": None}, ValueError, "lacks 'act'"),
        ({"act": [1]}, ValueError, r"'act' has shape \(1,\), but the buffer expects \(\)"),
        ({"rew": "much"}, TypeError, "'rew' is object, but the buffer holds .*float64"),
        ({"rew": 1j}, TypeError, "'rew' is .*complex128, but the buffer holds .*float64"),
        ({"done": [True]}, ValueError, r"'done' has shape \(1,\), but .* expects \(\)"),
        ({"obs": np.zeros(3)}, ValueError, r"'obs' has shape \(3,\), but .* expects \(2,\)"),
    ],
)
def test_a_bad_row_of_a_full_buffer(storage, changes, error, message):
    buffer = ReplayBuffer(3, storage=storage)

    def row(i, **changes):
        obs, obs_next = np.array([i, i]) * 1.0, np.array([i, i]) + 1.0
        return {"obs": obs, "act": i, "rew": i, "done": False, "obs_next": obs_next} | changes

    for i in range(5):
        buffer.add(**row(i))
    refuse(buffer, error, message, lambda: buffer.add(**row(5, **changes)))
    assert buffer.add(**row(5, done=True)).tolist() == [2]
    assert buffer[:].obs_next[:, 0].tolist() == [4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("env_ids", "error", "message"),
    [
        ([0, 2], IndexError, r"env_ids \[0, 2\] are not all in 0..1"),
        ([0, -1], IndexError, r"env_ids \[0, -1\] are not all in 0..1"),
        ([1, 1], ValueError, r"env_ids \[1, 1\] have an environment twice"),
        ([0], ValueError, r"has shape \(2,.*\), but the buffer expects \(1,"),
        ([], ValueError, "nothing to add"),
    ],
)
def test_bad_environments(storage, env_ids, error, message):
    buffer = ReplayBuffer(6, n_envs=2, storage=storage)
    buffer.add(**step(0))
    refuse(buffer, error, message, lambda: buffer.add(step(1), env_ids))
    if error is IndexError:
        refuse(buffer, error, message, lambda: buffer.cut(env_ids))
        refuse(buffer, error, message, lambda: buffer.newest(env_ids))


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ({"rew": [1, NAN]}, ValueError, "'rew' is NaN"),
        ({"act": None}, ValueError, "add\\(\\) needs 'act'; it was given 'info.lives', 'obs.a', "),
        ({"obs": None}, ValueError, "add\\(\\) needs 'obs'"),
        ({"obs_next": None}, ValueError, "needs 'obs_next' .*ignore_obs_next=True"),
        ({"obs_next": {"a": [1, 2]}}, ValueError, "obs_next.b"),
        ({"obs_next": [1, 2]}, ValueError, "obs_next.a"),
        ({"obs_next": {**ROWS, "b": [[1], [2]]}}, ValueError, r"'obs_next.b' has shape \(2, 1\)"),
        ({"obs_next": {**ROWS, "a": [1.5, 2]}}, TypeError, "'obs_next.a' is .*float64"),
        ({"act": [1, 2, 3]}, ValueError, r"'act' has shape \(3,\), .* starts with 2"),
        ({"act": 1}, ValueError, r"'act' has shape \(\), .* starts with 2"),
        ({"act": [[1], [2, 3]]}, ValueError, "'act' is not an array"),
        ({"truncated": [True]}, ValueError, r"'truncated' has shape \(1,\)"),
        ({"terminated": None}, ValueError, "needs 'done' or 'terminated'"),
        ({"rew": ["a", "b"]}, TypeError, "'rew'"),
    ],
)
def test_a_bad_first_step_decides_nothing(storage, bad, error, message):
    buffer = ReplayBuffer(6, n_envs=2, storage=storage)
    for _ in range(2):
        with pytest.raises(error, match=message):
            buffer.add(**step(0, **bad))
        assert (repr(buffer), len(buffer)) == ("ReplayBuffer()", 0)
        with pytest.raises(ValueError, match="the buffer is empty"):
            buffer.sample(1)
    # as many columns, of other shapes and dtypes
    other = {
        "obs": {"a": np.ones((2, 3), "i2"), "b": np.ones(2)},
        "obs_next": {"a": np.ones((2, 3), "i2"), "b": np.ones(2)},
        "act": np.ones((2, 4), "f4"),
        "rew": np.ones((2, 2)),
        "done": [True, False],
        "info": {"score": np.ones(2, "f4")},
        "policy": {"value": np.ones((2, 1))},
    }
    assert buffer.add(**other).tolist() == [0, 3]
    assert buffer[:].rew.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert buffer[:].obs.a.shape == (2, 3)
    assert buffer.obs.b.shape == (2, 3)
    if "disk" in storage:
        assert repr(ReplayBuffer(6, n_envs=2, storage=storage)) == repr(buffer)


def test_a_first_step_that_failed_is_not_found_in_the_folder(tmp_path):
    storage = f"disk:{tmp_path / 'buffer'}"
    with pytest.raises(ValueError, match="NaN"):
        ReplayBuffer(6, n_envs=2, storage=storage).add(**step(0, rew=[NAN, 1]))
    buffer = ReplayBuffer(6, n_envs=2, storage=storage)
    assert repr(buffer) == "ReplayBuffer()"
    buffer.add(**plain(0))
    assert buffer.obs.shape == (2, 3)


@pytest.mark.parametrize("kind", ["disk", "cpu"])
@pytest.mark.parametrize(
    ("changes", "name"), [({"info": {"who": ["a", "b"]}}, "info.who"), ({"act": [None, {}]}, "act")]
)
def test_python_objects_need_memory(tmp_path, kind, changes, name):
    storage = f"disk:{tmp_path / 'buffer'}" if kind == "disk" else kind
    what = "files" if kind == "disk" else "storage on a device"
    message = f"'{name}' holds Python objects, which {what} cannot: .*storage=\"memory\""
    buffer = ReplayBuffer(6, n_envs=2, storage=storage)
    with pytest.raises(TypeError, match=message):
        buffer.add(**step(0, **changes))
    buffer.add(**step(0))
    if "info" in changes:
        refuse(buffer, TypeError, message, lambda: buffer.add(**step(1, **changes)))
    assert buffer.add(**step(1, terminated=[True, False])).tolist() == [1, 4]
    assert buffer.prev([1, 4]).tolist() == [0, 3]


# --- reading


@pytest.mark.parametrize("index", [3, 5, 6, -4, [0, 3], np.array([[0], [5]]), 10**12])
@pytest.mark.parametrize("method", ["__getitem__", "prev", "next", "discard"])
def test_an_index_without_a_transition(storage, index, method):
    buffer = ReplayBuffer(6, storage=storage)
    for i in range(3):
        buffer.add(obs=i, act=i, rew=i, done=False, obs_next=i + 1)
    odd = np.asarray(index).flat[-1]
    message = f"index {odd} has no transition: this buffer has 3 of at most 6"
    refuse(buffer, IndexError, message, lambda: getattr(buffer, method)(index))
    if method == "__getitem__":
        refuse(buffer, IndexError, message, lambda: buffer.get(index, "obs"))


@pytest.mark.parametrize(
    ("index", "kind"), [(1.0, "float64"), ([0.5], "float64"), ("obs", "<U3"), (None, "object")]
)
def test_an_index_that_is_no_number(index, kind):
    buffer = ReplayBuffer(6, n_envs=2)
    buffer.add(**step(0))
    message = f"a buffer is indexed with whole numbers, not {kind}"
    refuse(buffer, TypeError, message, lambda: buffer[index])


def test_a_mask_of_another_length():
    buffer = ReplayBuffer(6, n_envs=2)
    buffer.add(**step(0))
    with pytest.raises(IndexError):
        buffer[np.ones(6, bool)]


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer, ListReplayBuffer])
def test_nothing_to_sample(kind, storage):
    if kind is ListReplayBuffer and storage.startswith("disk"):
        storage = "memory"  # there are none on disk
    buffer = kind(**({} if kind is ListReplayBuffer else {"size": 6}), n_envs=2, storage=storage)
    for size in (0, 1):
        with pytest.raises(
            ValueError, match="the buffer is empty: add transitions before sampling"
        ):
            buffer.sample(size)
    with pytest.raises(ValueError, match="the buffer is empty"):
        buffer[:]
    buffer.add(**step(0))
    buffer.discard(buffer.stored_rows())
    with pytest.raises(ValueError, match="the buffer is empty"):
        buffer.sample(1)


def test_bad_questions(storage):
    buffer = ReplayBuffer(6, n_envs=2, storage=storage)
    buffer.add(**step(0))
    for error, message, call in (
        (ValueError, "batch_size is -1", lambda: buffer.sample(-1)),
        (ValueError, "length is 0", lambda: buffer.sample(1, length=0)),
        (KeyError, "no field 'reward'; it has: obs", lambda: buffer.sample(1, fields=["reward"])),
        (KeyError, "no field 'reward'; it has: obs", lambda: buffer.get(0, "reward")),
        (AttributeError, "no field 'reward'; it has: obs", lambda: buffer.reward),
    ):
        before = repr(buffer)
        with pytest.raises(error, match=message):
            call()
        assert repr(buffer) == before


# --- making, loading


@pytest.mark.parametrize("name", ["size", "n_envs", "stack_num"])
@pytest.mark.parametrize("value", [0, -3])
def test_sizes_are_1_or_more(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}, but has to be 1 or more"):
        ReplayBuffer(**{"size": 3, name: value})


@pytest.mark.parametrize("storage", ["nowhere", "disk", ""])
def test_an_unknown_storage(storage):
    with pytest.raises(ValueError, match=f'storage is "memory", "disk:FOLDER" .*not {storage!r}'):
        ReplayBuffer(3, storage=storage)


@pytest.mark.parametrize(
    ("option", "value", "held"),
    [("size", 8, 6), ("n_envs", 1, 2), ("stack_num", 2, 1), ("ignore_obs_next", True, False)],
)
def test_a_state_of_another_buffer(storage, option, value, held):
    state = ReplayBuffer(6, n_envs=2).training_state()
    buffer = ReplayBuffer(**{"size": 6, "n_envs": 2, option: value}, storage=storage)
    message = f"the saved buffer was made with {option}={held}, not {value}"
    refuse(buffer, ValueError, message, lambda: buffer.load_training_state(state))


def test_rows_of_another_kind_of_buffer_are_not_appended():
    buffer, other = ReplayBuffer(6, n_envs=2), ReplayBuffer(6, n_envs=2)
    buffer.add(**step(0))
    other.add(**step(0, goal=torch.zeros(2)))
    before = buffer[:]
    with pytest.raises(ValueError, match="given 'goal', which the first add did not have"):
        buffer.update(other)
    assert buffer[:] == before
    assert isinstance(before, Batch)
