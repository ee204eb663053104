"""Rollouts: all that is stored, or what is new, in time order; and `Batch.replace`."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.data import Batch, ListReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer


@dataclass
class Row:
    """What one environment has written."""

    number: int
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    follows: bool = False
    """Whether a row of the same episode comes after it."""


class Model:
    """A buffer beside lists that say the same in the simplest way."""

    def __init__(self, buffer, n_envs, slots):
        self.buffer = buffer
        self.slots = slots
        self.rows = [[] for _ in range(n_envs)]
        self.open = [False] * n_envs
        self.number = [1000 * env for env in range(n_envs)]

    def add(self, env_ids, kinds):
        """Adds rows; a kind is one of ``go``, ``terminated``, ``truncated``, ``dummy``."""
        new = []
        for env, kind in zip(env_ids, kinds, strict=True):
            if kind == "dummy" and self.open[env]:
                kind = "go"  # such rows come after an end, or after a cut
            row = Row(0, kind == "terminated", kind == "truncated", kind != "dummy")
            if self.open[env]:
                self.rows[env][-1].follows = True
            # An episode counts on; another begins elsewhere.
            self.number[env] += 1 if self.open[env] else 10
            row.number = self.number[env]
            self.open[env] = kind == "go"
            self.rows[env].append(row)
            new.append(row)
        numbers = np.array([row.number for row in new])
        self.buffer.add(
            env_ids=list(env_ids),
            dummy=np.array([not row.valid for row in new]),
            obs=np.stack([numbers, -numbers], 1),
            act=numbers,
            rew=numbers.astype(float),
            terminated=np.array([row.terminated for row in new]),
            truncated=np.array([row.truncated for row in new]),
            obs_next=np.stack([numbers + 1, -numbers - 1], 1),
        )

    def cut(self, env_ids):
        self.buffer.cut(env_ids)
        for env in env_ids:
            self.open[env] = False

    def reset(self):
        self.buffer.reset()
        self.rows = [[] for _ in self.rows]
        self.open = [False] * len(self.rows)

    def expected(self, since=None):
        """The rows of each environment that a rollout has."""
        since = [0] * len(self.rows) if since is None else since
        return [
            rows[max(before, len(rows) - self.slots) :]
            for before, rows in zip(since, self.rows, strict=True)
        ]

    def check(self, since=None):
        expected = self.expected(since)
        n_steps = max(map(len, expected))
        batch, indices = self.buffer.rollout(since=since)
        n_envs = len(self.rows)
        assert batch.mask.shape == batch.cut.shape == indices.shape == (n_steps, n_envs)
        for name in ("obs", "act", "rew", "terminated", "truncated", "obs_next"):
            assert batch[name].shape[:2] == (n_steps, n_envs)
        for env, rows in enumerate(expected):
            for t in range(n_steps):
                row = rows[t] if t < len(rows) else None
                real = row is not None and row.valid
                assert batch.mask[t, env] == real
                assert batch.cut[t, env] == (not real or not row.follows)
                if not real:
                    continue
                assert indices[t, env] % n_envs == env
                assert batch.obs[t, env].tolist() == [row.number, -row.number]
                assert batch.act[t, env] == batch.rew[t, env] == row.number
                assert batch.terminated[t, env] == row.terminated
                assert batch.truncated[t, env] == row.truncated
                assert batch.obs_next[t, env].tolist() == [row.number + 1, -row.number - 1]
        mask = batch.mask
        again = self.buffer[indices[mask]]
        np.testing.assert_array_equal(again.act, batch.act[mask])
        np.testing.assert_array_equal(again.obs_next, batch.obs_next[mask])


KINDS = st.sampled_from(["go", "go", "go", "terminated", "truncated", "dummy"])


@st.composite
def histories(draw):
    n_envs = draw(st.integers(1, 3))
    slots = draw(st.integers(1, 6))
    everyone = list(range(n_envs))
    some = st.lists(st.sampled_from(everyone), min_size=1, unique=True).map(sorted)
    steps = st.one_of(
        st.tuples(st.just("add"), st.just(everyone), st.lists(KINDS, min_size=3, max_size=3)),
        st.tuples(st.just("add"), st.just(everyone), st.lists(KINDS, min_size=3, max_size=3)),
        st.tuples(st.just("add"), some, st.lists(KINDS, min_size=3, max_size=3)),
        st.tuples(st.just("cut"), some, st.none()),
        st.tuples(st.just("mark"), st.none(), st.none()),
        st.tuples(st.just("reset"), st.none(), st.none()),
    )
    return n_envs, slots, draw(st.lists(steps, min_size=1, max_size=25))


def live(model, history):
    since = None
    for what, env_ids, kinds in history:
        if what == "add":
            model.add(env_ids, kinds[: len(env_ids)])
        elif what == "cut":
            model.cut(env_ids)
        elif what == "mark":
            since = model.buffer.written
        else:
            model.reset()
            since = None
        assert model.buffer.written.tolist() == [len(rows) for rows in model.rows]
        if len(model.buffer):
            model.check()
            if since is not None:
                model.check(since)


def test_what_is_new_may_begin_at_another_slot_of_each_environment():
    go = ["go"] * 3
    live(
        Model(ReplayBuffer(6, 3, seed=0), 3, 2),
        [("add", [1], go), ("mark", None, None), ("add", [0, 2], go), ("add", [0, 1, 2], go)],
    )


@settings(max_examples=150)
@given(histories())
def test_a_rollout_is_all_there_is_in_time_order(history):
    n_envs, slots, steps = history
    live(Model(ReplayBuffer(slots * n_envs, n_envs, seed=0), n_envs, slots), steps)


@settings(max_examples=50)
@given(histories())
def test_a_rollout_of_a_buffer_that_never_forgets_is_everything(history):
    n_envs, _, steps = history
    live(Model(ListReplayBuffer(n_envs=n_envs, seed=0), n_envs, 10**9), steps)


def fill(buffer, n_steps, n_envs=2, start=0):
    for t in range(start, start + n_steps):
        numbers = np.arange(n_envs) + 10 * t
        buffer.add(
            env_ids=np.arange(n_envs), obs=numbers, act=numbers, rew=numbers.astype(float),
            terminated=np.zeros(n_envs, bool), truncated=np.zeros(n_envs, bool),
            obs_next=numbers + 10,
        )  # fmt: skip
    return buffer


def test_a_rollout_by_hand():
    buffer = fill(ReplayBuffer(8, 2), 3)
    batch, indices = buffer.rollout(("obs", "obs_next"))
    assert batch.obs.tolist() == [[0, 1], [10, 11], [20, 21]]
    assert batch.obs_next.tolist() == [[10, 11], [20, 21], [30, 31]]
    assert batch.mask.all()
    assert batch.cut.tolist() == [[False] * 2, [False] * 2, [True] * 2]
    assert indices.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_only_the_fields_that_are_asked_for_are_read():
    batch, _ = fill(ReplayBuffer(8, 2), 3).rollout(("rew",))
    assert set(batch.keys()) == {"rew", "mask", "cut"}


def test_after_the_ring_has_wrapped_around_the_oldest_comes_first():
    buffer = fill(ReplayBuffer(8, 2), 7)
    batch, indices = buffer.rollout(("act",))
    assert batch.act[:, 0].tolist() == [30, 40, 50, 60]
    assert indices[:, 0].tolist() == [6, 0, 2, 4]


def test_what_is_new_is_what_came_after_a_mark():
    buffer = fill(ReplayBuffer(8, 2), 3)
    mark = buffer.written
    fill(buffer, 3, start=3)
    assert mark.tolist() == [3, 3]  # it is a copy
    assert buffer.written.tolist() == [6, 6]
    assert buffer.rollout(("act",), since=mark)[0].act[:, 0].tolist() == [30, 40, 50]


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
    buffer.discard(np.array([2, 4]))
    batch, _ = buffer.rollout(("act",))
    assert batch.mask.tolist() == [[True, True], [False, True], [False, True]]
    assert batch.cut[0].tolist() == [True, False]


def test_stacked_frames_stay_within_episodes():
    buffer = ReplayBuffer(20, 2, stack_num=3)
    for t in range(5):
        buffer.add(
            env_ids=[0, 1], obs=np.array([t, t + 100]), act=np.zeros(2), rew=np.zeros(2),
            terminated=np.array([t == 2, False]), truncated=np.zeros(2, bool),
            obs_next=np.array([t + 1, t + 101]),
        )  # fmt: skip
    batch, _ = buffer.rollout(("obs", "obs_next"))
    assert batch.obs[:, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [3, 3, 3], [3, 3, 4]]
    assert batch.obs_next[:, 0].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [3, 3, 4], [3, 4, 5]]
    assert batch.obs[4, 1].tolist() == [102, 103, 104]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_buffer_of_tensors_gives_tensors(wrapped):
    buffer = fill(ReplayBuffer(8, 2, storage="cpu"), 6 if wrapped else 3)
    twin = fill(ReplayBuffer(8, 2), 6 if wrapped else 3)
    batch, expected = buffer.rollout()[0], twin.rollout()[0]
    for name in ("obs", "act", "rew", "terminated", "obs_next", "mask", "cut"):
        assert isinstance(batch[name], torch.Tensor)
        np.testing.assert_array_equal(batch[name].numpy(), expected[name])


def test_a_prioritized_buffer_has_the_same_rollout():
    one, _ = fill(ReplayBuffer(8, 2), 6).rollout()
    other, _ = fill(PrioritizedReplayBuffer(8, alpha=0.6, beta=0.4, n_envs=2), 6).rollout()
    for name in ("obs", "obs_next", "mask", "cut"):
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


def test_written_starts_again_with_a_reset_and_counts_dummies():
    buffer = fill(ReplayBuffer(8, 2), 9)
    assert buffer.written.tolist() == [9, 9]
    buffer.reset()
    assert buffer.written.tolist() == [0, 0]
    at = np.zeros(1, int)
    buffer.add(
        env_ids=[1], dummy=[True], obs=at, act=at, rew=at * 1.0, terminated=at > 1,
        truncated=at > 1, obs_next=at,
    )  # fmt: skip
    assert buffer.written.tolist() == [0, 1]
    assert len(buffer) == 0


# --- going on


def contents(buffer):
    state = buffer.state_dict()
    return state["meta"], {path: array.tobytes() for path, array in state["arrays"].items()}


@pytest.mark.parametrize("broken_off", [True, False])
@pytest.mark.parametrize("after", [3, 20, 41, 77])
def test_a_buffer_that_is_saved_goes_on_bit_for_bit_like_the_one_that_is_loaded(after, broken_off):
    generator = np.random.default_rng(after)
    kinds = generator.choice(
        ["go", "terminated", "truncated", "dummy"], (160, 3), p=[0.7] + [0.1] * 3
    )
    first, second = (Model(ReplayBuffer(45, 3, seed=1), 3, 15) for _ in range(2))
    for row in kinds[:after]:
        first.add([0, 1, 2], row)
    if broken_off:
        first.cut([0, 1, 2])
    second.buffer.load_state_dict(copy.deepcopy(first.buffer.state_dict()))
    second.rows, second.number, second.open = copy.deepcopy((first.rows, first.number, first.open))
    for row in kinds[after:]:
        for model in (first, second):
            model.add([0, 1, 2], row)
    assert contents(first.buffer) == contents(second.buffer)
    second.check()


# --- Batch.replace


def test_replace_gives_a_new_batch_and_leaves_the_old_one():
    batch = Batch(rew=np.array([1.0, 2.0]), obs=np.zeros((2, 3)), policy={"value": np.ones(2)})
    new = batch.replace(rew=batch.rew * 10, extra=[5, 6])
    assert new.rew.tolist() == [10.0, 20.0]
    assert new.extra.tolist() == [5, 6]
    assert batch.rew.tolist() == [1.0, 2.0]
    assert "extra" not in batch
    assert set(new.keys()) == {"rew", "obs", "policy", "extra"}


def test_what_is_not_replaced_is_shared():
    batch = Batch(rew=np.zeros(2), obs=np.zeros((2, 3)), policy={"value": np.ones(2)})
    new = batch.replace(rew=np.ones(2))
    assert new.obs is batch.obs
    assert new.policy.value is batch.policy.value
    rew = np.ones(2)
    assert batch.replace(rew=rew).rew is rew


def test_replace_takes_nested_values_and_tensors():
    batch = Batch(rew=np.zeros(2), terms=Batch(env=np.zeros(2)))
    new = batch.replace(terms={"gail": torch.ones(2)}, rew=torch.ones(2))
    assert list(new.terms.keys()) == ["gail"]  # a field is replaced as a whole
    assert isinstance(new.terms, Batch)
    assert isinstance(new.rew, torch.Tensor)
    assert list(batch.terms.keys()) == ["env"]


def test_replace_without_fields_is_a_shallow_copy():
    batch = Batch(a=np.arange(3))
    new = batch.replace()
    new.b = 1
    assert "b" not in batch
    assert new.a is batch.a
