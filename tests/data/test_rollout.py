"""`Rollout` against plain lists, and by hand; and `ReplayBuffer.rollout`."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from guerdon.data import Batch, PrioritizedReplayBuffer, ReplayBuffer, Rollout


@dataclass
class Row:
    """What one environment has added; numbers never repeat."""

    number: int
    terminated: bool
    truncated: bool
    real: bool
    first: bool
    note: int = 0
    """The annotation."""
    discarded: bool = False

    @property
    def valid(self):
        return self.real and not self.discarded

    @property
    def done(self):
        return self.real and (self.terminated or self.truncated)


class RolloutMachine(RuleBasedStateMachine):
    """Drives a rollout beside lists of all rows that each environment ever added."""

    storage = "memory"

    @initialize(n_steps=st.integers(1, 4), n_envs=st.integers(1, 3), history=st.integers(0, 3))
    def make(self, n_steps, n_envs, history):
        self.rollout = Rollout(n_steps, n_envs, history, self.storage)
        self.n_envs, self.history = n_envs, history
        self.rows = [[] for _ in range(n_envs)]
        self.start = [0] * n_envs  # where the iteration begins in these lists
        self.running = [False] * n_envs  # whether an episode is
        self.number = 0
        self.noted = False

    def column(self, env):
        return self.rows[env][self.start[env] :]

    def at(self, index):
        time, env = divmod(index, self.n_envs)
        return self.column(env)[time]

    def indices(self):
        """Of the rows that are transitions."""
        return [
            time * self.n_envs + env
            for env in range(self.n_envs)
            for time, row in enumerate(self.column(env))
            if row.valid
        ]

    def new_row(self, env, data, masks):
        self.number += 1
        kind = data.draw(st.sampled_from(["running", "running", "terminated", "truncated"]))
        real = not masks or data.draw(st.booleans())
        row = Row(
            self.number, kind == "terminated", kind == "truncated", real,
            first=real and not self.running[env],
        )  # fmt: skip
        self.running[env] = kind == "running" and (real or self.running[env])
        self.rows[env].append(row)
        return row

    @rule(data=st.data(), partial=st.booleans(), masks=st.booleans())
    def add(self, data, partial, masks):
        envs = list(range(self.n_envs))
        if partial:
            envs = data.draw(st.lists(st.sampled_from(envs), min_size=1, unique=True))
        times = [len(self.column(env)) for env in envs]
        rows = [self.new_row(env, data, masks) for env in envs]
        numbers = np.array([row.number for row in rows])
        fields = {
            "obs": {"a": np.stack([numbers, -numbers], 1), "b": numbers.astype(np.float32)},
            "act": numbers,
            "rew": numbers / 2,
            "terminated": np.array([row.terminated for row in rows]),
            "truncated": np.array([row.truncated for row in rows]),
            "obs_next": {"a": np.stack([numbers, numbers], 1), "b": numbers.astype(np.float32)},
        }
        mask = np.array([row.real for row in rows]) if masks else None
        indices = self.rollout.add(fields, np.array(envs) if partial else None, mask)
        expected = [time * self.n_envs + env for time, env in zip(times, envs, strict=True)]
        assert indices.tolist() == expected

    @rule(data=st.data())
    def cut(self, data):
        envs = data.draw(st.lists(st.sampled_from(range(self.n_envs)), min_size=1, unique=True))
        self.rollout.cut(np.array(envs))
        for env in envs:
            self.running[env] = False

    @precondition(lambda self: self.indices())
    @rule(data=st.data())
    def discard(self, data):
        chosen = data.draw(st.lists(st.sampled_from(self.indices()), unique=True))
        self.rollout.discard(np.array(chosen, int))
        for index in chosen:
            self.at(index).discarded = True

    @precondition(lambda self: self.indices())
    @rule(data=st.data())
    def annotate(self, data):
        chosen = data.draw(st.lists(st.sampled_from(self.indices()), unique=True, min_size=1))
        self.number += len(chosen)
        notes = self.number - np.arange(len(chosen))
        self.rollout.annotate(np.array(chosen), {"note": {"x": notes}})
        self.noted = True
        for index, note in zip(chosen, notes, strict=True):
            self.at(index).note = int(note)

    @rule()
    def reset(self):
        self.rollout.reset()
        self.start = [len(rows) for rows in self.rows]

    def before(self, env, place, number):
        """Up to so many rows before one in its episode, oldest first."""
        oldest = max(self.start[env] - self.history, 0)
        found, rows = [], self.rows[env]
        while len(found) < number and not rows[place].first and place > oldest:
            place -= 1
            if not rows[place].valid:
                break
            found.insert(0, rows[place])
        return found

    @invariant()
    def same_contents(self):
        if not hasattr(self, "rollout"):
            return
        columns = [self.column(env) for env in range(self.n_envs)]
        assert self.rollout.cursors.tolist() == [len(column) for column in columns]
        assert len(self.rollout) == len(self.indices())
        n_steps = max(map(len, columns))
        if not n_steps:
            with pytest.raises(ValueError, match="empty"):
                self.rollout.rollout()
            return
        batch, indices = self.rollout.rollout()
        assert indices.tolist() == np.arange(n_steps * self.n_envs).reshape(n_steps, -1).tolist()
        for leaf in (batch.obs.a, batch.rew, batch.done, batch.mask, batch.first, batch.cut):
            assert isinstance(leaf, torch.Tensor) == (self.storage != "memory")
            assert leaf.shape[:2] == (n_steps, self.n_envs)
        for env, column in enumerate(columns):
            for t in range(n_steps):
                if t >= len(column):
                    assert (batch.mask[t, env], batch.first[t, env]) == (False, False)
                    assert (batch.cut[t, env], batch.done[t, env]) == (True, False)
                else:
                    self.compare_row(batch, t, env, column)
        self.compare_before(indices, batch.mask)
        self.compare_by_index(batch, columns)

    def compare_row(self, batch, t, env, column):
        row = column[t]
        number = row.number
        assert batch.obs.a[t, env].tolist() == [number, -number]
        assert batch.obs.b[t, env] == batch.act[t, env] == 2 * batch.rew[t, env] == number
        assert batch.obs_next.a[t, env].tolist() == [number, number]
        assert batch.mask[t, env] == row.valid
        assert batch.first[t, env] == (row.first and row.valid)
        assert batch.terminated[t, env] == (row.real and row.terminated)
        assert batch.truncated[t, env] == (row.real and row.truncated)
        assert batch.done[t, env] == row.done
        after = column[t + 1] if t + 1 < len(column) else None
        follows = row.valid and not row.done and after is not None and after.valid
        assert batch.cut[t, env] == (not follows or after.first)
        if self.noted:
            assert batch.annotations.note.x[t, env] == row.note

    def compare_before(self, indices, mask):
        for number in range(1, self.history + 1):
            batch = self.rollout.before(indices, mask, number, ("act", "done"))
            assert set(batch.keys()) == {"act", "done", "mask"}
            assert batch.mask.shape == (*indices.shape, number)
            for env in range(self.n_envs):
                for t in range(len(indices)):
                    real = t < len(self.column(env)) and self.column(env)[t].valid
                    rows = self.before(env, self.start[env] + t, number) if real else []
                    there = batch.mask[t, env]
                    assert there.tolist() == [k >= number - len(rows) for k in range(number)]
                    assert batch.act[t, env][there].tolist() == [row.number for row in rows]
                    assert not batch.done[t, env][there].any()

    def compare_by_index(self, batch, columns):
        for env, column in enumerate(columns):
            rows = [t for t, row in enumerate(column) if row.valid]
            for number in (0, 1, 2, 99):
                newest = rows[max(len(rows) - number, 0) :]
                expected = [t * self.n_envs + env for t in newest]
                assert self.rollout.newest_rows(env, number).tolist() == expected
        index = np.arange(0, batch.act.shape[0] * self.n_envs, 2)
        flat = batch.act.reshape(-1)[index].tolist()
        assert self.rollout[index].act.tolist() == flat
        assert self.rollout.get(index, "act").tolist() == flat
        assert self.rollout.act.tolist() == batch.act.tolist()


class TorchRolloutMachine(RolloutMachine):
    storage = "cuda:0" if torch.cuda.is_available() else "cpu"


TestRollout = RolloutMachine.TestCase
TestRollout.settings = settings(max_examples=60, stateful_step_count=25)
TestTorchRollout = TorchRolloutMachine.TestCase
TestTorchRollout.settings = settings(max_examples=25, stateful_step_count=25)


# --- Rollout by hand


def step(t, n_envs=2, done=False, **extra):
    numbers = np.arange(n_envs) + 10 * t
    return {
        "obs": numbers,
        "act": numbers,
        "rew": numbers.astype(float),
        "terminated": np.full(n_envs, done),
        "truncated": np.zeros(n_envs, bool),
        "obs_next": numbers + 10,
        **extra,
    }


def fill_rollout(rollout, n_steps, start=0, **extra):
    for t in range(start, start + n_steps):
        rollout.add(step(t, rollout.n_envs, **extra))
    return rollout


def test_an_iteration_by_hand():
    rollout = fill_rollout(Rollout(3, 2), 2)
    rollout.add(step(2, done=True))
    batch, indices = rollout.rollout(("obs", "obs_next", "terminated"))
    assert set(batch.keys()) == {"obs", "obs_next", "terminated", "mask", "first", "cut"}
    assert batch.obs.tolist() == [[0, 1], [10, 11], [20, 21]]
    assert batch.obs_next.tolist() == [[10, 11], [20, 21], [30, 31]]
    assert batch.terminated.tolist() == [[False] * 2, [False] * 2, [True] * 2]
    assert batch.first.tolist() == [[True] * 2, [False] * 2, [False] * 2]
    assert batch.cut.tolist() == [[False] * 2, [False] * 2, [True] * 2]
    assert batch.mask.all()
    assert indices.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_the_arrays_of_a_batch_are_the_rollouts_own_but_the_mask_is_a_copy():
    rollout = fill_rollout(Rollout(2, 2), 2)
    batch, _ = rollout.rollout()
    rollout.discard(np.array([0]))
    rollout.reset()
    fill_rollout(rollout, 1, start=5)
    assert batch.obs[0].tolist() == [50, 51]
    assert batch.mask.all()
    assert batch.first[0].all()


def test_arrays_are_allocated_once():
    rollout = fill_rollout(Rollout(2, 2), 2)
    before = rollout.obs
    rollout.reset()
    fill_rollout(rollout, 2)
    assert np.shares_memory(before, rollout.obs)
    assert rollout.n_steps == 2


def test_it_grows_by_doubling_and_keeps_its_rows():
    rollout = fill_rollout(Rollout(2, 2), 1)
    rollout.annotate(np.arange(2), {"note": np.array([7, 8])})
    fill_rollout(rollout, 4, start=1)
    assert rollout.n_steps == 8
    assert rollout.act[:, 0].tolist() == [0, 10, 20, 30, 40]
    assert rollout.annotations.note.tolist() == [[7, 8]] + [[0, 0]] * 4


def test_rows_of_a_reset_are_no_transitions():
    """Gymnasium's NEXT_STEP autoreset: after an end, a row that only resets."""
    rollout = Rollout(4, 2)
    rollout.add(step(0) | {"terminated": np.array([True, False])})
    rollout.add(step(1), mask=np.array([False, True]))
    rollout.add(step(2))
    batch, _ = rollout.rollout()
    assert batch.mask.tolist() == [[True, True], [False, True], [True, True]]
    assert batch.first.tolist() == [[True, True], [False, False], [True, False]]
    assert len(rollout) == 5


def test_an_end_among_masked_rows_ends_the_episode():
    rollout = fill_rollout(Rollout(4, 1), 1)
    rollout.add(step(1, 1, done=True), mask=np.array([False]))
    rollout.add(step(2, 1))
    assert rollout.rollout()[0].first.tolist() == [[True], [False], [True]]


def test_history_across_iterations_for_environments_of_their_own_pace():
    rollout = Rollout(4, 2, history=3)
    fill_rollout(rollout, 2)
    rollout.reset()
    rollout.add({key: value[:1] for key, value in step(2).items()}, np.array([0]))
    rollout.reset()  # environment 1 has added nothing in between
    rollout.add(step(3))
    batch = rollout.before(np.array([[0, 1]]), np.ones((1, 2), bool), 3, ("act",))
    assert batch.act[0, 0].tolist() == [0, 10, 20]
    assert batch.act[0, 1, 1:].tolist() == [1, 11]
    assert batch.mask[0].tolist() == [[True] * 3, [False, True, True]]


@pytest.mark.parametrize("how", ["end", "cut", "cut later"])
def test_no_history_of_an_episode_that_is_over(how):
    rollout = fill_rollout(Rollout(4, 1, history=2), 2)
    if how == "end":
        rollout.add(step(2, 1, done=True))
    elif how == "cut":
        rollout.cut()
    rollout.reset()
    if how == "cut later":
        rollout.cut()
    rollout.add(step(3, 1))
    assert not rollout.before(np.array([0]), None, 2, ("act",)).mask.any()


def test_more_history_than_is_kept_is_an_error():
    rollout = fill_rollout(Rollout(4, 1, history=1), 2)
    with pytest.raises(ValueError, match="history is 2, but this rollout keeps 1 rows"):
        rollout.before(np.array([0]), None, 2, ("act",))


def test_fields_of_a_rollout():
    rollout = Rollout(4, 2)
    rollout.add(step(0, policy={"log_prob": np.zeros(2)}))
    assert rollout.rollout(("policy", "info"))[0].policy.log_prob.shape == (1, 2)
    assert rollout.rollout(("info",))[0].info == Batch()
    with pytest.raises(KeyError, match="no field 'reward'; it has: obs, act, rew"):
        rollout.rollout(("reward",))
    with pytest.raises(AttributeError, match="no field 'reward'"):
        _ = rollout.reward


def test_keys_of_info_may_come_later():
    rollout = fill_rollout(Rollout(4, 2), 1)
    rollout.add(step(1, info={"lives": np.array([3.0, 4.0])}))
    rollout.add(step(2))
    np.testing.assert_array_equal(rollout.info.lives, [[np.nan] * 2, [3.0, 4.0], [np.nan] * 2])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rew": np.array([0.0, np.nan])}, ValueError, "'rew' is NaN in environment 1"),
        ({"act": np.zeros((2, 1), int)}, ValueError, "'act' has shape"),
        ({"act": np.zeros(2)}, TypeError, "'act' is float64"),
        ({"surprise": np.zeros(2)}, ValueError, "given 'surprise'"),
    ],
)
def test_a_bad_row_changes_nothing(change, error, message):
    rollout = fill_rollout(Rollout(2, 2), 1)
    for _ in range(2):
        with pytest.raises(error, match=message):
            rollout.add(step(1) | change)
    fill_rollout(rollout, 1, start=1)
    assert rollout.act.tolist() == [[0, 1], [10, 11]]


def test_a_bad_first_row_decides_nothing():
    rollout = Rollout(2, 2, storage="cpu")
    with pytest.raises(TypeError, match=r"'info\.who' holds Python objects"):
        rollout.add(step(0, info={"who": np.array(["a", "b"], object)}))
    fill_rollout(rollout, 1)
    assert rollout.rollout()[0].info == Batch()


# --- ReplayBuffer.rollout


def fill(buffer, n_steps, n_envs=2, start=0):
    for t in range(start, start + n_steps):
        buffer.add(step(t, n_envs), env_ids=np.arange(n_envs))
    return buffer


def test_a_rollout_of_a_buffer_by_hand():
    buffer = fill(ReplayBuffer(8, 2), 3)
    batch, indices = buffer.rollout(("obs", "obs_next"))
    assert batch.obs.tolist() == [[0, 1], [10, 11], [20, 21]]
    assert batch.obs_next.tolist() == [[10, 11], [20, 21], [30, 31]]
    assert batch.mask.all()
    assert batch.cut.tolist() == [[False] * 2, [False] * 2, [True] * 2]
    assert batch.first.tolist() == [[True] * 2, [False] * 2, [False] * 2]
    assert indices.tolist() == [[0, 4], [1, 5], [2, 6]]


def test_only_the_fields_that_are_asked_for_are_read():
    batch, _ = fill(ReplayBuffer(8, 2), 3).rollout(("rew",))
    assert set(batch.keys()) == {"rew", "mask", "cut", "first"}


def test_after_the_ring_has_wrapped_around_the_oldest_comes_first():
    buffer = fill(ReplayBuffer(8, 2), 7)
    batch, indices = buffer.rollout(("act",))
    assert batch.act[:, 0].tolist() == [30, 40, 50, 60]
    assert indices[:, 0].tolist() == [3, 0, 1, 2]


def test_what_is_new_is_what_came_after_a_mark():
    buffer = fill(ReplayBuffer(8, 2), 3)
    mark = buffer.written
    fill(buffer, 3, start=3)
    assert mark.tolist() == [3, 3]  # it is a copy
    assert buffer.written.tolist() == [6, 6]
    assert buffer.rollout(("act",), since=mark)[0].act[:, 0].tolist() == [30, 40, 50]


def test_what_is_new_may_begin_at_another_slot_of_each_environment():
    buffer = ReplayBuffer(6, 3)
    buffer.add(step(0, 1), env_ids=[1])
    mark = buffer.written
    buffer.add(step(1, 2), env_ids=[0, 2])
    buffer.add(step(2, 3))
    batch, indices = buffer.rollout(("act",), since=mark)
    assert batch.mask.tolist() == [[True] * 3, [True, False, True]]
    assert batch.act[batch.mask].tolist() == [10, 21, 11, 20, 22]
    assert indices.tolist() == [[0, 3, 4], [1, -1, 5]]


def test_what_is_new_but_already_overwritten_is_gone():
    buffer = fill(ReplayBuffer(8, 2), 1)
    mark = buffer.written
    fill(buffer, 9, start=1)
    batch, _ = buffer.rollout(("act",), since=mark)
    assert batch.act[:, 0].tolist() == [60, 70, 80, 90]
    assert batch.mask.all()


def test_nothing_new_is_a_rollout_without_rows():
    buffer = fill(ReplayBuffer(8, 2), 3)
    batch, indices = buffer.rollout(since=buffer.written)
    assert indices.shape == batch.mask.shape == batch.cut.shape == (0, 2)
    assert batch.obs.shape == batch.obs_next.shape == (0, 2)


def test_an_empty_buffer_has_no_rollout():
    with pytest.raises(ValueError, match="add transitions before reading a rollout"):
        ReplayBuffer(8, 2).rollout()


def test_one_environment_has_its_axis_too():
    batch, indices = fill(ReplayBuffer(8), 3, n_envs=1).rollout(("act",))
    assert batch.act.tolist() == [[0], [10], [20]]
    assert indices.shape == (3, 1)


def test_discarded_rows_are_no_data():
    buffer = fill(ReplayBuffer(8, 2), 3)
    buffer.discard(np.array([1, 2]))
    batch, _ = buffer.rollout(("act",))
    assert batch.mask.tolist() == [[True, True], [False, True], [False, True]]
    assert batch.cut[0].tolist() == [True, False]


def test_stacked_frames_stay_within_episodes():
    buffer = ReplayBuffer(20, 2, stack_num=3)
    for t in range(5):
        fields = {"act": np.zeros(2), "rew": np.zeros(2), "truncated": np.zeros(2, bool)}
        fields |= {"obs": np.array([t, t + 100]), "obs_next": np.array([t + 1, t + 101])}
        buffer.add(fields, env_ids=[0, 1], terminated=np.array([t == 2, False]))
    batch, _ = buffer.rollout(("obs", "obs_next"))
    assert batch.obs[:, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [3, 3, 3], [3, 3, 4]]
    assert batch.obs_next[:, 0].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [3, 3, 4], [3, 4, 5]]
    assert batch.obs[4, 1].tolist() == [102, 103, 104]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_buffer_of_tensors_gives_tensors(wrapped):
    buffer = fill(ReplayBuffer(8, 2, storage="cpu"), 6 if wrapped else 3)
    twin = fill(ReplayBuffer(8, 2), 6 if wrapped else 3)
    batch, expected = buffer.rollout()[0], twin.rollout()[0]
    for name in ("obs", "act", "rew", "terminated", "obs_next", "mask", "cut", "first"):
        assert isinstance(batch[name], torch.Tensor)
        np.testing.assert_array_equal(batch[name].numpy(), expected[name])


def test_a_prioritized_buffer_has_the_same_rollout():
    one, _ = fill(ReplayBuffer(8, 2), 6).rollout()
    other, _ = fill(PrioritizedReplayBuffer(8, alpha=0.6, beta=0.4, n_envs=2), 6).rollout()
    for name in ("obs", "obs_next", "mask", "cut", "first"):
        np.testing.assert_array_equal(one[name], other[name])


def test_nested_fields_keep_their_nesting():
    buffer = ReplayBuffer(8, 2)
    for t in range(2):
        at = np.array([t, t])
        buffer.add(
            obs={"a": at, "b": {"c": at * 2}}, act=at, rew=at * 1.0, policy={"log_prob": at * 0.5},
            terminated=at > 9, truncated=at > 9, obs_next={"a": at + 1, "b": {"c": at * 2 + 2}},
        )  # fmt: skip
    batch, _ = buffer.rollout()
    assert batch.obs.b.c.tolist() == [[0, 0], [2, 2]]
    assert batch.obs_next.b.c.tolist() == [[2, 2], [4, 4]]
    assert batch.policy.log_prob.shape == (2, 2)


def test_the_number_of_written_rows_starts_again_with_a_reset():
    buffer = fill(ReplayBuffer(8, 2), 9)
    assert buffer.written.tolist() == [9, 9]
    buffer.reset()
    assert buffer.written.tolist() == [0, 0]
    buffer.add(step(0, 1), env_ids=[1])
    assert buffer.written.tolist() == [0, 1]


# --- a saved buffer continues like the one that is loaded


def contents(buffer):
    state = buffer.training_state()
    return state["meta"], {path: array.tobytes() for path, array in state["arrays"].items()}


@pytest.mark.parametrize("broken_off", [True, False])
@pytest.mark.parametrize("after", [3, 20, 41, 77])
def test_a_loaded_buffer_continues_bit_for_bit(after, broken_off):
    generator = np.random.default_rng(after)
    terminated, truncated = generator.random((2, 160, 3)) < 0.15
    partial = [generator.permutation(3)[: generator.integers(1, 4)] for _ in range(160)]
    first, second = (ReplayBuffer(45, 3, seed=1) for _ in range(2))

    def add(buffer, t):
        fields = step(t, 3) | {"terminated": terminated[t], "truncated": truncated[t]}
        buffer.add(Batch(fields)[partial[t]], partial[t])

    for t in range(after):
        add(first, t)
    if broken_off:
        first.cut([0, 1, 2])
    second.load_training_state(copy.deepcopy(first.training_state()))
    for t in range(after, 160):
        for buffer in (first, second):
            add(buffer, t)
            if t % 30 == 29:
                buffer.cut([t % 3])
    assert contents(first) == contents(second)
    assert second[:] == first[:]
