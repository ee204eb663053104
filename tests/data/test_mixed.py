"""`MixedReplay`.

The observation of a row tells its buffer: it is the row's number, plus 1000 for the demonstrations.
"""

import itertools
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from guerdon.compat.tianshou import ListReplayBuffer
from guerdon.data import MixedReplay, PrioritizedReplayBuffer, ReplayBuffer
from tests.rounding import assert_close


def row(number, **extra):
    fields = {"obs": np.array([float(number)]), "act": int(number), "rew": 0.5}
    ends = {"terminated": False, "truncated": False, "obs_next": np.array([number + 1.0])}
    return {**fields, **ends, **extra}


def filled(rows=8, start=0, kind=ReplayBuffer, **options):
    options = {"seed": 0, **options}
    if kind is not ListReplayBuffer:
        options.setdefault("size", rows)
    buffer = kind(**options)
    for number in range(start, start + rows):
        buffer.add(**row(number))
    return buffer


@pytest.fixture
def pair():
    """Makes it of two buffers of eight rows, unless others are given."""

    def make(ratio=None, agent=None, demonstrations=None):
        buffers = {
            "agent": filled() if agent is None else agent,
            "demonstrations": filled(start=1000) if demonstrations is None else demonstrations,
        }
        return MixedReplay(buffers, ratio, seed=0)

    return make


def samples(mixed, batch_size, batches):
    return [mixed.sample(batch_size)[0] for _ in range(batches)]


# --- shares


def test_shares_that_divide_are_exact_in_every_batch(pair):
    for batch in samples(pair({"agent": 3, "demonstrations": 1}), 8, 20):
        assert np.sum(batch.obs < 1000) == 6
        assert len(batch) == 8


def test_equal_shares_by_default(pair):
    for batch in samples(pair(), 6, 5):
        assert np.sum(batch.obs < 1000) == 3


def test_shares_that_do_not_divide_are_exact_on_average_and_off_by_less_than_a_row():
    # 10 rows in shares of 45, 45 and 10 percent are 4.5, 4.5 and 1 row; 2 are 0.9, 0.9 and 0.2.
    names = ["agent", "demonstrations", "other"]
    ratio = dict(zip(names, [9, 9, 2], strict=True))
    mixed = MixedReplay({name: filled(1) for name in names}, ratio, seed=1)
    for size, exact in ((10, [4.5, 4.5, 1.0]), (2, [0.9, 0.9, 0.2]), (1, [0.45, 0.45, 0.1])):
        counts = np.array(
            [np.bincount(batch.source, minlength=3) for batch in samples(mixed, size, 600)]
        )
        assert (counts.sum(1) == size).all()
        assert (np.abs(counts - exact) < 1).all()
        # Each count is one of two numbers, so its standard deviation is 0.5 at most.
        np.testing.assert_allclose(counts.mean(0), exact, atol=4 * 0.5 / 600**0.5)


@pytest.mark.parametrize("chance", [0.0, 1 - 2**-53])
def test_rounding_costs_no_row(chance):
    # Ten times 0.1 is a little less than 1.
    mixed = MixedReplay({str(number): filled(3) for number in range(10)})
    mixed._generator = SimpleNamespace(random=lambda: chance)
    for size in (10, 30):
        batch, _ = mixed.sample(size)
        assert np.bincount(batch.source).tolist() == [size // 10] * 10


def test_a_buffer_without_a_share_is_not_drawn_from_and_may_be_empty(pair):
    (batch,) = samples(pair({"agent": 2}, demonstrations=ReplayBuffer(8)), 5, 1)
    assert batch.source.tolist() == [0] * 5


def test_a_buffer_with_a_share_must_not_be_empty():
    mixed = MixedReplay({"agent": filled(), "demonstrations": ReplayBuffer(8)})
    with pytest.raises(ValueError, match="the buffer is empty"):
        mixed.sample(4)


@pytest.mark.parametrize(
    "ratio",
    [
        {"agent": -1, "demonstrations": 2},
        {"agent": 0},
        {"agent": float("nan")},
        {"agent": float("inf"), "demonstrations": 1},
    ],
)
def test_bad_ratios(pair, ratio):
    with pytest.raises(ValueError, match="ratio needs numbers of 0 or more"):
        pair(ratio)


def test_unknown_names(pair):
    with pytest.raises(KeyError, match="ratio: unknown buffer 'expert'; there are: agent, demo"):
        pair({"expert": 1})
    mixed = pair()
    with pytest.raises(KeyError, match="unknown buffer 'expert'"):
        mixed["expert"]
    assert len(mixed) == 16


def test_at_least_one_buffer_is_needed():
    with pytest.raises(ValueError, match="needs at least one buffer"):
        MixedReplay({})


# --- batches


def test_every_row_is_marked_with_its_buffer(pair):
    mixed = pair({"agent": 1, "demonstrations": 3})
    assert mixed.names == ("agent", "demonstrations")
    for batch in samples(mixed, 7, 20):
        assert batch.source.tolist() == (batch.obs[:, 0] >= 1000).astype(int).tolist()


def test_indices_lead_back_to_the_rows(pair):
    mixed = pair({"agent": 1, "demonstrations": 2})
    batch, indices = mixed.sample(9)
    found = mixed.split(indices)
    assert list(found) == ["agent", "demonstrations"]
    assert sorted(np.concatenate([positions for positions, _ in found.values()])) == list(range(9))
    for name, (positions, rows) in found.items():
        assert mixed[name][rows].obs.tolist() == batch.obs[positions].tolist()


def test_a_buffer_that_gave_nothing_has_nothing_in_a_split(pair):
    mixed = pair({"agent": 1})
    positions, rows = mixed.split(mixed.sample(3)[1])["demonstrations"]
    assert positions.tolist() == rows.tolist() == []


def test_segments_of_both(pair):
    mixed = pair({"agent": 1, "demonstrations": 2})
    batch, indices = mixed.sample(6, length=3)
    assert indices.shape == batch.source.shape == batch.mask.shape == (3, 6)
    assert batch.obs.shape == (3, 6, 1)
    assert (batch.source == (batch.obs[..., 0] >= 1000)).all()
    assert batch.source[0].tolist() == [0, 0, 1, 1, 1, 1]
    steps = np.diff(batch.obs[..., 0], axis=0)
    assert (steps == batch.mask[1:]).all()  # each row is the next one, or repeats the last
    for name, (positions, rows) in mixed.split(indices).items():
        assert mixed[name][rows].obs.tolist() == batch.obs[0, positions].tolist()


def test_only_the_fields_that_are_asked_for(pair):
    batch, _ = pair().sample(4, fields=["act", "obs_next"])
    assert set(batch.keys()) == {"act", "obs_next", "source"}


def test_fields_that_not_all_have_are_left_out(pair):
    demonstrations, agent = ReplayBuffer(8, ignore_obs_next=True), ReplayBuffer(8)
    for number in range(8):
        agent.add(**row(number, policy={"log_prob": 0.5}, info={"t": number}, seen=1))
        demonstrations.add(**row(number, policy={"log_prob": 0.1, "value": 1.0}, good=True, seen=0))
    agent.annotate(np.arange(8), {"score": np.ones(8)})
    batch, _ = pair(agent=agent, demonstrations=demonstrations).sample(4)
    assert batch.seen.tolist() == [1, 1, 0, 0]
    left = {"obs", "act", "rew", "obs_next", "terminated", "truncated", "done", "seen", "source"}
    assert set(batch.keys()) == left
    batch, _ = MixedReplay({"agent": agent}).sample(2)
    assert set(batch.keys()) == left | {"policy", "info", "annotations"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("obs", np.zeros(1, np.float32)),
        ("obs", np.zeros(2)),
        ("obs", {"x": np.zeros(1)}),
        ("act", np.float32(0)),
        ("act", {"x": 1}),
        ("act", [1, 2]),
        ("rew", np.float32(0)),
        ("extra", 1.0),
    ],
)
def test_fields_that_do_not_fit_are_named(pair, key, value):
    odd = ReplayBuffer(8, ignore_obs_next=True)
    agent = ReplayBuffer(8, ignore_obs_next=True)
    for number in range(8):
        agent.add(row(number, extra=1))
        odd.add({**row(number, extra=1), key: value})
    with pytest.raises((TypeError, ValueError), match=f"key '{key}' does not fit"):
        pair(agent=agent, demonstrations=odd).sample(4)


def test_a_field_that_is_not_there_is_named(pair):
    with pytest.raises(KeyError, match="no field 'nothing'"):
        pair().sample(4, fields=["obs", "nothing"])


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_has_a_row_or_more(pair, size):
    with pytest.raises(ValueError, match="batch_size is"):
        pair().sample(size)


def test_buffers_on_a_device_give_tensors(pair):
    prioritized = filled(kind=PrioritizedReplayBuffer, storage="cpu")
    mixed = pair(agent=filled(storage="cpu"), demonstrations=prioritized)
    for length in (1, 3):
        batch, _ = mixed.sample(4, length)
        for key in ("obs", "source", "weight"):
            assert isinstance(batch[key], torch.Tensor), key
        assert batch.weight.tolist() == [1] * 4


# --- by index


@pytest.mark.parametrize("length", [1, 3])
def test_rows_are_read_again_by_their_indices(pair, length):
    mixed = pair()
    batch, indices = mixed.sample(10, length)
    again = mixed[indices]
    np.testing.assert_array_equal(again.obs, batch.obs)
    np.testing.assert_array_equal(again.source, batch.source)
    np.testing.assert_array_equal(mixed.get(indices, "act"), batch.act)
    np.testing.assert_array_equal(mixed.rows(indices), indices)
    shuffled = indices[..., ::-1]
    np.testing.assert_array_equal(mixed[shuffled].obs, batch.obs[..., ::-1, :])


def test_rows_before_and_after_are_those_of_the_same_buffer(pair):
    mixed = pair()
    _, indices = mixed.sample(16)
    obs = mixed[indices].obs[:, 0]
    after, before = (mixed[walk(indices)].obs[:, 0] for walk in (mixed.next, mixed.prev))
    np.testing.assert_array_equal(after, obs + (obs % 1000 != 7))
    np.testing.assert_array_equal(before, obs - (obs % 1000 != 0))


@pytest.mark.parametrize("length", [1, 3])
def test_several_rows_before_are_those_of_the_same_buffer(pair, length):
    mixed = pair()
    batch, indices = mixed.sample(16, length)
    before = mixed.before(indices, batch.get("mask"), 2, ("act",))
    assert set(before.keys()) == {"act", "mask"}
    number = batch.act % 1000
    real = batch.mask if length > 1 else np.ones(16, bool)
    there = np.stack([number >= 2, number >= 1], -1) & real[..., None]
    assert before.mask.tolist() == there.tolist()
    expected = batch.act[..., None] - np.array([2, 1])
    assert before.act[there].tolist() == expected[there].tolist()


def test_an_index_without_a_transition_is_an_error(pair):
    mixed = pair(agent=filled(rows=3, size=8))
    with pytest.raises(IndexError, match="index 5 has no transition"):
        mixed[np.array([0, 5])]


# --- priorities


@pytest.fixture
def prioritized_pair(pair):
    demonstrations = filled(start=1000, kind=PrioritizedReplayBuffer, alpha=1.0, beta=1.0)
    return pair(demonstrations=demonstrations)


def test_rows_without_priorities_have_weight_1(prioritized_pair):
    mixed = prioritized_pair
    mixed["demonstrations"].update_weight(np.arange(8), [1, 1, 1, 1, 2, 2, 2, 2])
    for length in (1, 3):
        batch, _ = mixed.sample(24, length)
        first = batch.obs[..., 0] if length == 1 else batch.obs[0, :, 0]
        assert batch.weight.dtype == np.float32
        assert_close(batch.weight, np.where(first >= 1004, 0.5, 1.0))
        assert np.sum(batch.weight < 1) == 8


def test_without_priorities_there_are_no_weights(pair):
    assert "weight" not in pair().sample(4)[0]


@pytest.mark.parametrize("length", [1, 3])
def test_new_priorities_go_where_the_rows_came_from(prioritized_pair, length):
    mixed = prioritized_pair
    mixed["demonstrations"].update_weight(np.arange(8), np.full(8, 0.25))
    batch, indices = mixed.sample(16, length)
    first = (batch.obs if length == 1 else batch.obs[0])[:, 0]
    mixed.update_weight(indices, torch.as_tensor(first))
    expected = np.full(8, 0.25)
    drawn = first[first >= 1000]
    expected[drawn.astype(int) - 1000] = drawn
    assert len(drawn) == 8
    assert_close(mixed["demonstrations"].priorities, expected)


def test_beta_is_set_where_there_are_priorities(prioritized_pair):
    prioritized_pair.set_beta(0.25)
    assert prioritized_pair["demonstrations"].beta == 0.25


@pytest.mark.parametrize("errors", [np.ones(3), np.ones(5), [1, 1, 1, np.nan], [np.inf, 1, 1, 1]])
def test_bad_priorities_change_nothing(errors):
    buffers = {name: filled(kind=PrioritizedReplayBuffer) for name in "ab"}
    mixed = MixedReplay(buffers)
    _, indices = mixed.sample(4)
    mixed.update_weight(indices, [2.0] * 4)
    before = [buffer.priorities.tolist() for buffer in buffers.values()]
    with pytest.raises(ValueError, match=r"4 rows cannot get|NaN or infinite"):
        mixed.update_weight(indices, errors)
    assert [buffer.priorities.tolist() for buffer in buffers.values()] == before


def test_it_cannot_be_relabelled(pair):
    mixed = pair()
    for method in (mixed.episode_first, mixed.episode_last):
        with pytest.raises(TypeError, match="needs one ReplayBuffer"):
            method(mixed.sample(4)[1])


# --- files


def test_it_comes_back_and_samples_the_same():
    agent = filled(300, kind=PrioritizedReplayBuffer, size=16, seed=1)
    buffers = {"agent": agent, "demonstrations": filled(300, 1000, ListReplayBuffer, seed=2)}
    mixed = MixedReplay(buffers, {"agent": 2, "demonstrations": 1}, seed=3)
    for _ in range(2):
        _, indices = mixed.sample(8)
        mixed.update_weight(indices, np.arange(8.0))
    again = pickle.loads(pickle.dumps(mixed))
    for number in itertools.islice(itertools.count(400), 6):
        results = [each.sample(7) for each in (mixed, again)]
        assert results[0][1].tolist() == results[1][1].tolist()
        assert results[0][0] == results[1][0]
        for each in (mixed, again):
            each["agent"].add(**row(number))
