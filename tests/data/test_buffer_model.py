"""Every kind of buffer against lists: any order of any operations gives the same contents."""

import pickle
import shutil
import tempfile
from itertools import compress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from guerdon.compat.tianshou import ListReplayBuffer
from guerdon.compat.tianshou import data as module
from guerdon.data import Batch, PrioritizedReplayBuffer, ReplayBuffer
from guerdon.data.storage import DiskStorage
from tests.data.buffer_model import Model, Row

SHAPES = ("number", "array", "nested")


class BufferMachine(RuleBasedStateMachine):
    """Drives one buffer and its model; subclasses say which kind."""

    kind: type[ReplayBuffer] = ReplayBuffer
    storage = "memory"

    @initialize(
        slots=st.integers(1, 6),
        n_envs=st.integers(1, 3),
        stack_num=st.integers(1, 3),
        ignore_obs_next=st.booleans(),
        shape=st.sampled_from(SHAPES),
        only_done=st.booleans(),
    )
    def start(self, slots, n_envs, stack_num, ignore_obs_next, shape, only_done):
        self.folder = Path(tempfile.mkdtemp())
        self.n_folders = 0
        self.options = {
            "n_envs": n_envs,
            "stack_num": stack_num,
            "ignore_obs_next": ignore_obs_next,
        }
        if self.kind is not ListReplayBuffer:
            self.options["size"] = slots * n_envs
        self.slots = None if self.kind is ListReplayBuffer else slots
        self.n_envs, self.stack_num = n_envs, stack_num
        self.keeps_next = not ignore_obs_next
        self.shape, self.only_done = shape, only_done
        self.count = 0
        self.since = None
        self.noted = False
        self.model = Model(self.slots, n_envs)
        self.buffer = self.kind(**self.options, seed=0, storage=self.new_storage())

    def new_storage(self):
        self.n_folders += 1
        return (
            f"disk:{self.folder / str(self.n_folders)}" if self.storage == "disk" else self.storage
        )

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def rows(self):
        return self.model.rows(self.buffer.capacity)

    def observation(self, ids):
        ids = np.asarray(ids)
        if self.shape == "number":
            return ids
        frames = np.stack([ids % 251, ids // 251], axis=-1).astype(np.uint8)
        return frames if self.shape == "array" else {"a": {"id": ids}, "pixels": frames}

    def ids(self, obs):
        """The numbers that observations stand for."""
        obs = Batch(obs=obs).to_numpy().obs
        if self.shape == "number":
            return obs
        frames = np.asarray(obs if self.shape == "array" else obs.pixels).astype(int)
        ids = frames[..., 0] + 251 * frames[..., 1]
        if self.shape == "nested":
            np.testing.assert_array_equal(ids, obs.a.id)
        return ids

    def new_row(self, data, env):
        # An episode can be broken off, which a buffer is told.
        if self.model.open[env] is not None and data.draw(st.integers(0, 5)) == 0:
            self.buffer.cut([env])
            self.model.cut(env)
        before = self.model.open[env]
        self.count += 2
        ended = data.draw(st.integers(0, 3)) == 0
        truncated = ended and not self.only_done and data.draw(st.booleans())
        return Row(
            obs=before.obs_next if before is not None else self.count,
            obs_next=self.count + 1,
            act=self.count % 7,
            rew=float(data.draw(st.integers(-3, 3))),
            terminated=ended and not truncated,
            truncated=truncated,
        )

    @rule(data=st.data(), steps=st.integers(2, 9))
    def add_several(self, data, steps):
        """Add steps of all environments without reading in between."""
        for _ in range(steps):
            self.add_step(data, partial=False)

    @rule(data=st.data(), partial=st.booleans())
    def add(self, data, partial):
        self.add_step(data, partial)

    def add_step(self, data, partial):
        everyone = list(range(self.n_envs))
        envs = data.draw(st.permutations(everyone)) if partial else everyone
        if partial:
            envs = envs[: data.draw(st.integers(1, self.n_envs))]
        rows = [self.new_row(data, env) for env in envs]
        fields = {
            "obs": self.observation([r.obs for r in rows]),
            "act": np.array([r.act for r in rows]),
            "rew": np.array([r.rew for r in rows]),
            "obs_next": self.observation([r.obs_next for r in rows]),
        }
        if self.only_done:
            fields["done"] = np.array([r.done for r in rows])
        else:
            fields["terminated"] = np.array([r.terminated for r in rows])
            fields["truncated"] = np.array([r.truncated for r in rows])
        if self.n_envs == 1 and not partial:
            single = dict(Batch(fields)[0].items())
            for name in ("act", "rew", "done", "terminated", "truncated"):
                if name in single:
                    single[name] = single[name].item()
            indices = self.buffer.add(**single)
        elif partial:
            mask = [data.draw(st.integers(0, 3)) > 0 for _ in envs]
            indices = self.buffer.add(fields, envs, None if all(mask) else np.array(mask))
            envs, rows = [*compress(envs, mask)], [*compress(rows, mask)]
        else:
            indices = self.buffer.add(**fields)
        for env, row in zip(envs, rows, strict=True):
            self.model.add(env, row)
        by_index = self.rows()
        assert [by_index[i] for i in indices.tolist()] == rows

    @precondition(lambda self: len(self.buffer))
    @rule(data=st.data())
    def bad_add_changes_nothing(self, data):
        before = repr(self.buffer)
        n = self.n_envs
        good = {
            "obs": self.observation(np.zeros(n, int)),
            "act": np.zeros(n, int),
            "rew": np.zeros(n),
            "done": np.zeros(n, bool),
            "obs_next": self.observation(np.zeros(n, int)),
        }
        bad = data.draw(
            st.sampled_from(
                [
                    {**good, "rew": np.full(n, np.nan)},
                    {**good, "act": np.zeros((n, 2), int)},
                    {**good, "act": np.zeros(n)},
                    {key: value for key, value in good.items() if key != "act"},
                    {**good, "surprise": np.zeros(n)},
                    {**good, "obs": self.observation(np.zeros(n + 1, int))},
                ]
            )
        )
        with pytest.raises((ValueError, TypeError)):
            self.buffer.add(bad, range(n))
        assert repr(self.buffer) == before

    @precondition(lambda self: len(self.buffer))
    @rule(data=st.data())
    def annotate(self, data):
        """Annotate some of the rows; others keep what they had."""
        rows = self.rows()
        chosen = data.draw(st.lists(st.sampled_from(sorted(rows)), min_size=1, unique=True))
        self.noted = True
        self.count += len(chosen)
        notes = self.count - np.arange(len(chosen))
        for index, note in zip(chosen, notes, strict=True):
            rows[index].note = int(note)
        padding = data.draw(st.booleans())
        indices = np.array([*chosen, -1] if padding else chosen)
        values = np.append(notes, 99) if padding else notes
        self.buffer.annotate(indices, {"note": values, "deep": {"pair": np.stack([values] * 2, 1)}})

    @precondition(lambda self: len(self.buffer))
    @rule(data=st.data())
    def discard(self, data):
        index = data.draw(st.sampled_from(sorted(self.rows())))
        self.rows()[index].dropped = True
        self.buffer.discard([index])

    @rule(data=st.data())
    def cut(self, data):
        env = data.draw(st.integers(0, self.n_envs - 1))
        self.buffer.cut([env])
        self.model.cut(env)

    @rule()
    def mark(self):
        """Remember how far the buffer was written, for `rollout(since)`."""
        self.since = self.buffer.written
        assert self.since.tolist() == [len(rows) for rows in self.model.written]

    @rule(how=st.sampled_from(["pickle", "save", "state"]))
    def round_trip(self, how):
        if how == "pickle":
            again = pickle.loads(pickle.dumps(self.buffer))
        elif how == "save":
            self.buffer.save(self.folder / "saved")
            again = self.kind.load(self.folder / "saved", storage=self.new_storage())
        else:
            again = self.kind(**self.options, storage=self.new_storage())
            again.load_training_state(self.buffer.training_state())
        if len(self.buffer):
            mine, other = self.buffer.sample(5)[1], again.sample(5)[1]
            np.testing.assert_array_equal(mine, other)
        self.buffer = again

    @precondition(lambda self: len(self.buffer))
    @rule(n_envs=st.integers(1, 3), slots=st.integers(1, 8))
    def update(self, n_envs, slots):
        """Another buffer takes these rows; its contents are the model's, one after the other."""
        target = ReplayBuffer(slots * n_envs, n_envs, ignore_obs_next=not self.keeps_next)
        merged = Model(slots, n_envs)
        rows = self.rows()
        for source in range(self.n_envs):
            env = source % n_envs
            merged.cut(env)
            last = None
            for _, row in self.model.kept(source):
                if row.dropped:
                    continue
                if row.follows is not last or last is None:
                    merged.cut(env)
                obs_next = self.model.next_stack(rows, row, 1, self.keeps_next)[0]
                copy = Row(row.obs, obs_next, row.act, row.rew, row.terminated, row.truncated)
                copy.note = row.note
                if last is not None and row.follows is last:
                    merged.open[env].obs_next = row.obs
                merged.add(env, copy)
                last = None if row.done else row
            merged.cut(env)
        target.update(self.buffer)
        self.compare(target, merged, stack_num=1)

    @rule()
    def reset(self):
        self.buffer.reset()
        self.model = Model(self.slots, self.n_envs)
        self.since = None

    @invariant()
    def same_contents(self):
        if hasattr(self, "buffer"):
            self.compare(self.buffer, self.model, self.stack_num)
            self.compare_rollout(None)
            if self.since is not None:
                self.compare_rollout(self.since)

    def compare(self, buffer, model, stack_num):
        rows = model.rows(buffer.capacity)
        indices = np.array(sorted(rows), dtype=int)
        assert len(buffer) == len(rows)
        if not rows:
            with pytest.raises(ValueError, match="empty"):
                buffer.sample(1)
            return
        batch = buffer[indices]
        expected = [rows[i] for i in indices]
        for name in ("act", "rew", "terminated", "truncated", "done"):
            assert batch[name].tolist() == [getattr(r, name) for r in expected]
        stacks = [[r.obs for r in model.stack(rows, row, stack_num)] for row in expected]
        nexts = [model.next_stack(rows, row, stack_num, self.keeps_next) for row in expected]
        if stack_num == 1:
            stacks, nexts = [s[0] for s in stacks], [n[0] for n in nexts]
        assert self.ids(batch.obs).tolist() == stacks
        assert self.ids(batch.obs_next).tolist() == nexts
        assert ("annotations" in batch) == self.noted
        if self.noted:
            assert batch.annotations.note.tolist() == [r.note for r in expected]
            assert batch.annotations.deep.pair[:, 1].tolist() == [r.note for r in expected]
        by_identity = {id(row): index for index, row in rows.items()}
        assert buffer.prev(indices).tolist() == [
            by_identity[id(model.previous(rows, row))] for row in expected
        ]
        assert buffer.next(indices).tolist() == [
            by_identity[id(model.following(rows, row))] for row in expected
        ]
        first = [by_identity[id(model.stack(rows, row, len(rows))[0])] for row in expected]
        last = [by_identity[id(model.segment(rows, row, len(rows))[-1])] for row in expected]
        assert buffer.episode_first(indices).tolist() == first
        assert buffer.episode_last(indices).tolist() == last
        everything, order = buffer.sample(0)
        assert [id(rows[i]) for i in order.tolist()] == [id(row) for row in model.in_time()]
        assert everything.act.tolist() == [row.act for row in model.in_time()]
        assert buffer.unfinished_index().tolist() == model.unfinished(rows)
        self.compare_before(buffer, model, rows)
        self.compare_samples(buffer, model, rows)

    def compare_before(self, buffer, model, rows):
        """The rows before some; those that the mask leaves out have none."""
        indices = np.array([*rows, 0])
        mask = np.array([True] * len(rows) + [False])
        batch = buffer.before(indices, mask, 3, ("act", "rew"))
        assert set(batch.keys()) == {"act", "rew", "mask"}
        for i, row in enumerate(rows.values()):
            before = model.before(rows, row, 3)
            assert batch.mask[i].tolist() == [k >= 3 - len(before) for k in range(3)]
            assert batch.act[i][batch.mask[i]].tolist() == [r.act for r in before]
            assert batch.rew[i][batch.mask[i]].tolist() == [r.rew for r in before]
        assert not batch.mask[-1].any()
        assert buffer.before(indices[:1], None, 3, ())["mask"].tolist() == batch.mask[:1].tolist()

    def compare_rollout(self, since):
        """All rows, or those since a mark, in time order with a column for each environment."""
        columns = [
            self.model.kept(env, 0 if since is None else int(since[env]))
            for env in range(self.n_envs)
        ]
        n_steps = max(map(len, columns))
        if not len(self.buffer):
            return
        batch, indices = self.buffer.rollout(("obs", "act", "obs_next", "done"), since)
        assert batch.mask.shape == batch.cut.shape == batch.first.shape == (n_steps, self.n_envs)
        assert batch.act.shape == indices.shape == (n_steps, self.n_envs)
        rows = self.rows()
        everything = [row for written in self.model.written for row in written]
        for env, column in enumerate(columns):
            for t in range(n_steps):
                row = column[t][1] if t < len(column) and not column[t][1].dropped else None
                assert batch.mask[t, env] == (row is not None)
                if row is None:
                    assert (batch.cut[t, env], batch.first[t, env]) == (True, False)
                    assert indices[t, env] == -1
                    continue
                assert rows[int(indices[t, env])] is row
                assert (batch.act[t, env], batch.done[t, env]) == (row.act, row.done)
                assert batch.first[t, env] == (row.follows is None)
                follower = next((r for r in everything if r.follows is row), None)
                assert batch.cut[t, env] == (follower is None or follower.dropped)
        real = indices[np.asarray(Batch(mask=batch.mask).to_numpy().mask)]
        again = self.buffer[real].to_numpy()
        flat = batch.to_numpy()
        assert self.ids(flat.obs)[flat.mask].tolist() == self.ids(again.obs).tolist()
        assert self.ids(flat.obs_next)[flat.mask].tolist() == self.ids(again.obs_next).tolist()

    def compare_samples(self, buffer, model, rows):
        batch, indices = buffer.sample(7)
        assert set(indices.tolist()) <= set(rows)
        assert batch.act.tolist() == [rows[i].act for i in indices.tolist()]
        batch, indices = buffer.sample(3, length=4, fields=["rew", "obs_next"])
        assert set(batch.keys()) - {"weight"} == {"rew", "obs_next", "mask"}
        for column in range(3):
            segment = model.segment(rows, rows[int(indices[0, column])], 4)
            assert batch.mask[:, column].tolist() == [t < len(segment) for t in range(4)]
            rewards = [row.rew for row in segment]
            rewards += rewards[-1:] * (4 - len(segment))
            assert batch.rew[:, column].tolist() == rewards


class PrioritizedMachine(BufferMachine):
    kind = PrioritizedReplayBuffer

    @precondition(lambda self: len(self.buffer))
    @rule(weight=st.floats(0.0, 10.0), data=st.data())
    def update_weight(self, weight, data):
        index = data.draw(st.sampled_from(sorted(self.rows())))
        self.buffer.update_weight([index], [weight])
        assert self.buffer.priorities[index] == pytest.approx((weight + 1e-8) ** 0.6)

    @invariant()
    def priorities_are_where_rows_are(self):
        if hasattr(self, "buffer"):
            assert set(np.flatnonzero(self.buffer.priorities)) == set(self.rows())
            assert self.buffer._tree[1] == pytest.approx(self.buffer.priorities.sum())


class ListMachine(BufferMachine):
    kind = ListReplayBuffer

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(module, "_FIRST_CAPACITY", 2)  # so that it grows

    def teardown(self):
        super().teardown()
        self.patch.undo()


class DiskMachine(BufferMachine):
    storage = "disk"

    @precondition(lambda self: isinstance(self.buffer._storage, DiskStorage))
    @rule(drop_newest=st.booleans())
    def reopen(self, drop_newest):
        """The files alone give the buffer back; running episodes are cut."""
        if drop_newest:
            rows, newest = self.rows(), self.buffer.newest()
            self.buffer.discard(newest)
            for index in newest.tolist():
                rows[index].dropped = True
        folder = self.buffer._storage.folder
        del self.buffer
        self.buffer = self.kind(**self.options, seed=0, storage=f"disk:{folder}")
        for env, rows in enumerate(self.model.written):
            self.model.cut(env)
            if rows and rows[-1].dropped:  # it might have been half written, and is taken back
                rows.pop()
                self.since = None
                if len(rows) >= self.slots:
                    rows[-self.slots].dropped = True  # what it had overwritten is gone
            if self.noted:  # a row without annotation is dropped
                for row in rows:
                    row.dropped |= not row.note


class TorchMachine(BufferMachine):
    storage = "cuda:0" if torch.cuda.is_available() else "cpu"


def machine(kind, examples):
    case = kind.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=30)
    return case


TestReplayBuffer = machine(BufferMachine, 60)
TestPrioritizedReplayBuffer = machine(PrioritizedMachine, 30)
TestListReplayBuffer = machine(ListMachine, 25)
TestDiskStorage = machine(DiskMachine, 25)
TestTorchStorage = machine(TorchMachine, 25)
