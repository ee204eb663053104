"""`BufferManager`: limits, statistics and whole items; for the rest see `tests/data/test_mixed.py`.

The observation of a row tells its buffer: it is the row's number, plus 1000 for the demonstrations.
"""

import itertools
import json
import pickle
from collections import Counter

import numpy as np
import pytest

from guerdon.compat.nervex import BufferManager, Limits
from guerdon.compat.tianshou import ListReplayBuffer
from guerdon.data import Batch, PrioritizedReplayBuffer, ReplayBuffer
from guerdon.data.serializer import read_tree, write_tree


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


def pair(ratio=None, agent=None, demonstrations=None, **options):
    buffers = {
        "agent": filled() if agent is None else agent,
        "demonstrations": filled(start=1000) if demonstrations is None else demonstrations,
    }
    return BufferManager(buffers, ratio, **{"seed": 0, **options})


def single(buffer=None, **limits):
    """A manager of one empty buffer, with a clock that the test sets."""
    clock = Clock()
    buffers = {"agent": ReplayBuffer(8, seed=0) if buffer is None else buffer}
    return BufferManager(buffers, limits=Limits(**limits), seed=0, clock=clock), clock


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def push(manager, *numbers, **options):
    return [manager.add(**row(number), **options) is not None for number in numbers]


def samples(manager, batch_size, batches, **options):
    """Batches until there are so many, or the manager gives none."""
    drawn = (manager.sample(batch_size, **options) for _ in range(batches))
    return [batch for batch, _ in itertools.takewhile(lambda pair: pair is not None, drawn)]


def test_unknown_names():
    with pytest.raises(KeyError, match="ratio: unknown buffer 'expert'; there are: agent, demo"):
        pair({"expert": 1})
    with pytest.raises(KeyError, match="limits: unknown buffer 'expert'"):
        pair(limits={"expert": Limits()})
    manager = pair()
    with pytest.raises(KeyError, match="unknown buffer 'expert'"):
        manager["expert"]
    with pytest.raises(KeyError, match="unknown buffer 'expert'"):
        manager.add(**row(0), buffer="expert")
    with pytest.raises(KeyError, match="unknown buffer 'expert'"):
        manager.push_data(row(0), buffer="expert")
    assert len(manager) == 16


def test_a_manager_needs_buffers():
    with pytest.raises(ValueError, match="at least one buffer"):
        BufferManager({})
    with pytest.raises(ValueError, match="'path' is neither"):
        BufferManager({"agent": ReplayBuffer(4), "path": "demonstrations.npz"})


def test_a_batch_that_cannot_be_made_is_not_counted():
    odd, agent = ReplayBuffer(8), ReplayBuffer(8)
    for number in range(8):
        agent.add(row(number))
        odd.add(row(number, act=np.float32(0)))
    manager = pair(agent=agent, demonstrations=odd, limits=Limits(max_use=1))
    with pytest.raises(TypeError, match="key 'act' does not fit"):
        manager.sample(4)
    for numbers in manager.statistics().values():
        assert (numbers["sampled"], numbers["removed"], numbers["held"]) == (0, 0, 8)


def test_segments_are_counted_once():
    manager = pair(limits=Limits(max_use=3))
    _, indices = manager.sample(6, length=4)
    assert indices.shape == (4, 6)
    for numbers in manager.statistics().values():
        assert numbers["sampled"] == 3


# --- limits on use and age


def test_a_row_is_dropped_after_so_many_uses():
    manager = BufferManager({"agent": filled(6)}, limits=Limits(max_use=2), seed=0)
    batches = samples(manager, 1, 100)
    assert Counter(batch.obs.item() for batch in batches) == dict.fromkeys(range(6), 2)
    assert len(manager) == 0
    assert manager.statistics()["agent"]["removed"] == 6


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_no_row_is_in_more_batches_than_it_may(kind):
    manager = BufferManager({"agent": filled(40, kind=kind)}, limits=Limits(max_use=3), seed=0)
    batches = samples(manager, 5, 1000)
    uses = Counter(number for batch in batches for number in set(batch.obs[:, 0]))
    assert max(uses.values()) == 3
    assert len(manager) < 5
    assert manager.sample(5) is None


def test_a_new_row_starts_unused():
    manager, _ = single(ReplayBuffer(1), max_use=2, max_staleness=3)
    push(manager, 0)
    assert len(samples(manager, 1, 9)) == 2
    push(manager, 1, version=5)
    assert [batch.obs.item() for batch in samples(manager, 1, 9, version=8)] == [1, 1]


def test_limits_of_one_buffer_alone():
    manager = pair(limits={"agent": Limits(max_use=1)})
    assert len(samples(manager, 2, 100)) == 8  # each with one row of the agent's
    assert len(manager["agent"]) == 0
    assert len(manager["demonstrations"]) == 8


def test_rows_that_grew_stale_are_dropped():
    manager, _ = single(max_staleness=2)
    for version in range(5):
        push(manager, version, version=version)
    seen = {batch.obs.item() for batch in samples(manager, 1, 60, version=4)}
    assert seen == {2, 3, 4}
    assert len(manager) == 3
    assert manager.statistics()["agent"]["removed"] == 2
    assert manager.sample(1, version=7) is None
    assert len(manager) == 0


def test_rows_are_kept_whatever_their_age_by_default():
    manager, _ = single()
    push(manager, 0)
    assert len(samples(manager, 1, 5, version=10**9)) == 5


def test_stale_rows_go_from_buffers_without_a_share_too():
    manager = pair({"agent": 1}, limits=Limits(max_staleness=1))
    assert manager.sample(1, version=2) is None
    assert len(manager) == 0


def test_a_dropped_row_is_gone_from_the_buffer():
    manager = BufferManager({"agent": filled(3)}, limits=Limits(max_use=1))
    _, indices = manager.sample(1)
    with pytest.raises(IndexError, match="has no transition"):
        manager["agent"][indices]


@pytest.mark.parametrize(
    ("name", "value"), [("max_use", 0), ("max_staleness", -1), ("window", float("nan"))]
)
def test_bad_limits(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}, but has to be"):
        Limits(**{name: value})


# --- limits on rates and numbers


def test_nothing_is_added_while_too_much_comes_for_what_is_sampled():
    manager, clock = single(max_rate=2.0, window=10.0)
    assert push(manager, 0, 1, 2, 3, 4) == [True] * 5  # nothing sampled yet: no rate
    assert manager.sample(2) is not None
    assert push(manager, 5) == [False]  # 5 for 2
    assert manager.sample(1) is not None
    assert push(manager, 5, 6) == [True, True]  # 5 for 3, 6 for 3
    assert push(manager, 7) == [False]  # 7 for 3
    clock.now = 10.0
    assert push(manager, 7) == [False]
    clock.now = 10.1
    assert push(manager, 7) == [True]  # all that was has left the window
    assert manager.statistics()["agent"]["pushed"] == len(manager) == 8
    assert manager.statistics()["agent"]["refused_pushes"] == 3


def test_no_sample_is_given_while_too_little_comes_for_it():
    manager, clock = single(min_rate=0.5, window=10.0)
    push(manager, 0, 1, 2, 3)
    assert [manager.sample(4) is not None for _ in range(3)] == [True, True, True]
    assert manager.sample(1) is None  # 4 for 12
    clock.now = 5.0
    push(manager, 4, 5)
    assert manager.sample(1) is not None  # 6 for 12
    assert manager.sample(1) is None  # 6 for 13
    clock.now = 12.0
    assert manager.sample(4) is not None  # 2 for 1, since t = 2
    assert manager.sample(1) is None  # 2 for 5
    assert manager.statistics()["agent"]["refused_samples"] == 3


def test_a_refusal_of_one_buffer_leaves_the_others_as_they_are():
    manager = pair(limits={"demonstrations": Limits(min_fill=5)})
    assert manager.sample(4) is None
    numbers = manager.statistics()
    assert numbers["demonstrations"]["refused_samples"] == 1
    assert numbers["agent"]["refused_samples"] == numbers["agent"]["sampled"] == 0


def test_no_sample_until_there_are_rows_enough():
    manager, _ = single(min_fill=2.0)
    push(manager, 0, 1, 2)
    assert manager.sample(2) is None
    push(manager, 3)
    assert manager.sample(2) is not None
    assert manager.sample(3) is None


def test_no_sample_from_an_empty_buffer():
    assert single(min_fill=0.0)[0].sample(1) is None
    assert pair(demonstrations=ReplayBuffer(8)).sample(4) is None


def test_fewer_rows_than_a_batch():
    manager, _ = single(min_fill=0.0)
    push(manager, 3)
    assert manager.sample(4)[0].act.tolist() == [3] * 4


# --- writing


def test_rows_go_to_the_first_buffer_or_the_one_that_is_named():
    buffers = {"agent": ReplayBuffer(8), "demonstrations": ReplayBuffer(8)}
    manager = BufferManager(buffers)
    push(manager, 1, 2)
    push(manager, 3, buffer="demonstrations")
    assert buffers["agent"].act[:2].tolist() == [1, 2]
    assert buffers["demonstrations"].act[:1].tolist() == [3]
    assert manager["agent"] is buffers["agent"]
    assert len(manager) == 3


def test_some_environments():
    manager, _ = single(ReplayBuffer(6, n_envs=3), max_staleness=0)
    values = np.zeros(2)
    fields = {"obs": values, "act": values, "rew": values, "done": values > 0, "obs_next": values}
    assert manager.add(fields, [2, 0], version=1).tolist() == [4, 0]
    assert manager.add(fields, [0, 1], version=2).tolist() == [1, 2]
    assert manager.statistics()["agent"]["pushed"] == 4
    manager.sample(1, version=2)
    assert manager["agent"].stored_rows().tolist() == [1, 2]


def test_several_rows_at_once():
    manager, _ = single(max_rate=2.0)
    assert manager.push_data([row(0), row(1)]) is True
    assert manager.push_data(row(2)) is True
    manager.sample(1)
    assert manager.push_data([row(3), row(4)]) is False
    assert len(manager) == 3


def test_a_bad_row_is_not_counted():
    manager, _ = single()
    push(manager, 0)
    with pytest.raises(ValueError, match="NaN"):
        manager.add(row(1, rew=np.nan))
    assert manager.statistics()["agent"]["pushed"] == 1


def test_buffers_that_were_filled_before():
    manager = pair(limits=Limits(max_use=1, max_staleness=5))
    batch, _ = manager.sample(4, version=5)
    assert len(set(batch.obs[:, 0])) == 16 - len(manager)
    assert manager.sample(4, version=6) is None


def test_environments_of_a_buffer_that_grows():
    """Growing changes the indices of the second environment; use and version move with them."""
    manager, _ = single(ListReplayBuffer(2, seed=0), max_use=2, max_staleness=5)
    ends = {"terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool)}
    for number in range(300):
        ids = np.array([number, 1000 + number])
        manager.add(obs=ids, act=ids, rew=ids * 1.0, obs_next=ids + 1, **ends, version=number)
        if number == 100:
            manager.sample(1, version=100)
    held = manager["agent"]
    manager.sample(1, version=300)
    assert sorted(held[:].obs.tolist()) == [*range(295, 300), *range(1295, 1300)]


def test_a_buffer_that_grows():
    manager, _ = single(ListReplayBuffer(seed=0), max_use=1)
    push(manager, *range(300))
    push(manager, *range(300, 700), version=9)
    seen = [batch.obs.item() for batch in samples(manager, 1, 1000, version=9)]
    assert sorted(seen) == list(range(700))


# --- statistics


def test_statistics_by_hand():
    manager, _ = single(ReplayBuffer(2, seed=0), max_use=3)
    names = ("pushed", "sampled", "removed", "refused_pushes", "refused_samples", "held")
    assert manager.statistics() == {"agent": dict.fromkeys(names, 0)}
    push(manager, 0, version=1)
    manager.sample(1, version=2)
    manager.sample(1, version=4)
    assert manager.sample(2) is None
    last = {"use_mean": 2, "use_max": 2, "staleness_mean": 3, "staleness_max": 3}
    counts = dict(zip(names, [1, 2, 0, 0, 1, 1], strict=True))
    assert manager.statistics() == {"agent": {**counts, **last}}
    manager.sample(1, version=4)
    assert manager.statistics()["agent"]["removed"] == 1
    assert manager.statistics()["agent"]["held"] == 0


def test_means_over_the_last_sample():
    manager = BufferManager({"items": filled(1)}, limits=Limits(min_fill=0), seed=0)
    manager.add(**row(1), version=4)  # in the place of the only row
    manager.sample(3, version=6)
    numbers = manager.statistics()["items"]
    assert (numbers["use_mean"], numbers["use_max"]) == (3, 3)
    assert (numbers["staleness_mean"], numbers["staleness_max"]) == (2, 2)


# --- files


def full_manager(rows=300):
    buffers = {
        "agent": PrioritizedReplayBuffer(16, seed=1),
        "demonstrations": ListReplayBuffer(seed=2),
    }
    limits = {"agent": Limits(max_use=4), "demonstrations": Limits(max_staleness=250)}
    manager = BufferManager(buffers, {"agent": 2, "demonstrations": 1}, limits, seed=3)
    for number in range(rows):
        push(manager, number, version=number)
        push(manager, 1000 + number, version=number, buffer="demonstrations")
    return manager


@pytest.mark.parametrize("how", ["state", "file", "pickle"])
def test_a_manager_that_comes_back_samples_the_same(how, tmp_path):
    manager = full_manager()
    for version in (200, 300):
        _, indices = manager.sample(8, version=version)
        manager.update_weight(indices, np.arange(8.0))
    if how == "pickle":
        again = pickle.loads(pickle.dumps(manager))
    else:
        state = manager.training_state()
        json.dumps(state["meta"])
        if how == "file":
            write_tree(tmp_path / "manager", state, "buffer")
            state = read_tree(tmp_path / "manager", "buffer")
        again = full_manager(rows=20)
        again.load_training_state(state)
    assert again.statistics() == manager.statistics()
    for version in range(300, 306):
        results = [each.sample(7, version=version) for each in (manager, again)]
        assert results[0][1].tolist() == results[1][1].tolist()
        assert results[0][0] == results[1][0]
        for each in (manager, again):
            push(each, 5000 + version, version=version)
    assert again.statistics() == manager.statistics()
    assert manager.statistics()["agent"]["removed"] > 0


def test_a_state_is_a_copy():
    manager, _ = single(max_use=2)
    push(manager, 0)
    state = manager.training_state()
    manager.sample(1)
    manager.load_training_state(state)
    assert len(samples(manager, 1, 9)) == 2
    manager.load_training_state(state)
    assert len(samples(manager, 1, 9)) == 2


def test_a_loaded_manager_knows_no_rate():
    manager, _ = single(max_rate=1.0)
    push(manager, 0, 1)
    manager.sample(1)
    assert push(manager, 2) == [False]
    manager.load_training_state(manager.training_state())
    assert push(manager, 2) == [True]


def test_a_state_with_other_names_is_refused():
    one, two = single()[0], pair()
    with pytest.raises(KeyError, match="no buffer 'demonstrations'"):
        two.load_training_state(one.training_state())
    with pytest.raises(KeyError, match="unknown buffer 'demonstrations'"):
        one.load_training_state(two.training_state())
    assert len(two) == 16


def test_a_state_of_other_buffers_changes_nothing():
    manager, _ = single(max_use=2)
    push(manager, 0)
    manager.sample(1)
    other = BufferManager({"agent": filled(3)})
    with pytest.raises(ValueError, match="size=3, not 8"):
        manager.load_training_state(other.training_state())
    assert len(samples(manager, 1, 9)) == 1


# --- whole items


def items(size=10, numbers=(), **settings):
    manager = BufferManager({"meta_maxlen": size, **settings}, seed=0)
    for number in numbers:
        assert manager.push_data({"n": number})
    return manager


def numbers_of(drawn):
    return sorted(item["n"] for item in drawn)


def test_the_documented_use():
    buffer_ = BufferManager({"meta_maxlen": 10})
    for _ in range(10):
        buffer_.push_data({"data": "placeholder"})
    data = buffer_.sample(4)
    assert data == [{"data": "placeholder", "use": 1, "staleness": 0}] * 4
    assert len(buffer_) == 10


def test_items_are_drawn_once_a_batch_and_kept_as_they_are():
    manager = items(5)
    values = [{"n": n, "obs": np.ones(n), "next": [1, {"a": None}]} for n in range(5)]
    assert manager.push_data(values) is True
    drawn = manager.sample(5)
    assert numbers_of(drawn) == [0, 1, 2, 3, 4]
    for item in drawn:
        assert item["obs"] is values[item["n"]]["obs"]
        assert item["next"] is values[item["n"]]["next"]
    assert "use" not in values[0]


def test_every_item_is_as_likely():
    manager = items(4, range(4))
    counts = Counter(manager.sample(1)[0]["n"] for _ in range(2000))
    expected = 500
    assert sum((counts[n] - expected) ** 2 / expected for n in range(4)) < 16.27


def test_the_oldest_item_makes_room():
    manager = items(3, range(5))
    assert numbers_of(manager.sample(3)) == [2, 3, 4]
    assert manager.sample(4) is None
    assert len(manager) == 3


def test_a_free_place_is_taken_before_the_oldest_item_goes():
    manager = items(3, range(3), max_use=1)
    gone = manager.sample(1)[0]["n"]
    for number in (10, 11):
        manager.push_data({"n": number})
    kept = [n for n in range(3) if n != gone]
    assert numbers_of(manager.sample(3)) == [kept[1], 10, 11]


def test_items_have_use_and_staleness():
    manager = items(4)
    manager.push_data({"n": 0}, version=3)
    manager.sample(1, version=4)
    assert manager.sample(1, version=7) == [{"n": 0, "use": 2, "staleness": 4}]
    manager.push_data(Batch(n=1), version=7)
    assert {item["n"]: item["use"] for item in manager.sample(2, version=7)} == {0: 3, 1: 1}


def test_limits_on_items():
    manager = items(4, range(4), max_reuse=2, max_staleness=5, min_sample_ratio=2)
    assert manager.sample(3) is None
    for _ in range(3):
        assert manager.sample(2) is not None
    assert len(manager) in (1, 2)  # 6 uses of 8; either of one item, or of two, one is left
    manager = items(4, range(4), max_staleness=5)
    assert manager.sample(1, version=6) is None
    assert manager.statistics()["items"]["removed"] == 4
    assert items(4, range(1), min_fill=0.5).sample(2) is None


@pytest.mark.parametrize("name", ["size", "replay_buffer_size", "meta_maxlen"])
def test_other_names_of_the_size(name):
    manager = BufferManager({name: 2})
    manager.push_data([{"n": n} for n in range(5)])
    assert numbers_of(manager.sample(2)) == [3, 4]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"meta_maxlen": 10, "max_uses": 3}, "'max_uses' is neither"),
        ({"max_use": 3}, "'meta_maxlen' is missing"),
        ({"meta_maxlen": 0}, "size is 0"),
        ({"meta_maxlen": 10, "max_use": -1}, "max_use is -1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        BufferManager(settings)


def test_limits_stand_among_the_settings():
    with pytest.raises(ValueError, match="settings include limits: set them there"):
        BufferManager({"meta_maxlen": 10}, limits=Limits(max_use=1))


@pytest.mark.parametrize("item", ["text", None, 5, [["nested"]]])
def test_an_item_is_a_dictionary(item):
    manager = items(3, range(2))
    with pytest.raises(TypeError, match="an item is a dictionary"):
        manager.push_data(item)
    assert manager.statistics()["items"]["pushed"] == len(manager) == 2


def test_items_are_no_transitions():
    with pytest.raises(TypeError, match="use push_data"):
        items().add(**row(0))


@pytest.mark.parametrize("how", ["state", "file", "pickle"])
def test_items_come_back(how, tmp_path):
    manager = items(4, range(6), max_use=3)
    manager.push_data([{"n": 6, "obs": np.arange(3.0), "info": {"text": "a", "none": None}}])
    manager.sample(2)
    manager.sample(2)
    if how == "pickle":
        again = pickle.loads(pickle.dumps(manager))
    else:
        state = manager.training_state()
        if how == "file":
            write_tree(tmp_path / "items", state, "buffer")
            state = read_tree(tmp_path / "items", "buffer")
        again = items(4, range(9), max_use=3)
        again.load_training_state(state)
    for number in range(7, 12):
        for each in (manager, again):
            each.push_data({"n": number})
        assert numbers_of(manager.sample(2)) == numbers_of(again.sample(2))
        assert again.statistics() == manager.statistics()


def test_items_come_back_with_lists_and_empty_parts():
    values = [{"l": [1, 2], "d": [{"a": 1}], "t": (1,), "e": {}}, {}]
    manager = BufferManager({"meta_maxlen": 3})
    manager.push_data(values)
    again = BufferManager({"meta_maxlen": 3})
    again.load_training_state(manager.training_state())
    assert [again["items"][i] for i in range(2)] == values
    with pytest.raises(IndexError, match="row 2 has no item"):
        again["items"][2]
    again.push_data({"n": 1})
    assert [again["items"][i] for i in range(3)] == [*values, {"n": 1}]
    with pytest.raises(ValueError, match="size=3, not 4"):
        items(4).load_training_state(manager.training_state())
