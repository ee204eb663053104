"""`BufferManager` and the collate functions."""

import threading
from collections import Counter, namedtuple

import numpy as np
import pytest
import torch
from easydict import EasyDict
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from guerdon.compat.nervex.data import (
    BufferManager,
    default_collate,
    default_decollate,
    diff_shape_collate,
    stacked_collate,
    timestep_collate,
)


def manager(size=10, numbers=(), **settings):
    made = BufferManager({"meta_maxlen": size, **settings}, seed=0)
    made.push_data([{"n": number} for number in numbers])
    return made


def two(ratio=None, **settings):
    """Two buffers of eight items; those of the demonstrations have numbers from 1000 on."""
    cfg = {"buffer_name": ["agent", "demo"], "agent": {}, "demo": {}, **settings}
    made = BufferManager({**cfg, **({"sample_ratio": ratio} if ratio else {})}, seed=0)
    made.push_data([{"n": number} for number in range(8)])
    made.push_data([{"n": 1000 + number} for number in range(8)], "demo")
    return made


def numbers_of(drawn):
    return sorted(item["n"] for item in drawn)


# --- items


def test_items_are_returned_as_copies_with_what_is_known_of_them():
    values = [{"n": n, "obs": np.ones(n), "next": [1, {"a": None}]} for n in range(4)]
    made = BufferManager({"meta_maxlen": 4})
    made.push(values)
    item = made.sample(4)[0]
    assert item["obs"] is values[item["n"]]["obs"]
    assert item.keys() == {
        "n", "obs", "next", "IS", "priority", "reuse", "use", "staleness", "replay_unique_id",
        "replay_buffer_idx",
    }  # fmt: skip
    assert (item["IS"], item["priority"], item["reuse"], item["use"]) == (1.0, 1.0, 0, 1)
    assert item["replay_unique_id"] == f"agent_{item['n']}"
    assert values[0].keys() == {"n", "obs", "next"}


def test_items_keep_their_class():
    made = manager()
    made.push_data(EasyDict(n=1))
    (item,) = made.sample(1)
    assert isinstance(item, EasyDict)
    assert (item.n, item.use) == (1, 1)


def test_every_item_is_as_likely():
    made = manager(4, range(4))
    counts = Counter(made.sample(1)[0]["n"] for _ in range(2000))
    assert sum((counts[n] - 500) ** 2 / 500 for n in range(4)) < 16.27


def test_the_oldest_item_is_replaced():
    made = manager(3, range(5))
    assert numbers_of(made.sample(3)) == [2, 3, 4]
    assert made.sample(4) is None
    assert made.count() == len(made) == 3


@pytest.mark.parametrize("item", ["text", None, 5, [["nested"]]])
def test_an_item_is_a_dictionary(item):
    made = manager(3, range(2))
    with pytest.raises(TypeError, match="an item is a dictionary"):
        made.push_data(item)
    assert made.statistics()["agent"]["pushed"] == len(made) == 2


@pytest.mark.parametrize("deepcopy", [False, True])
def test_deepcopy(deepcopy):
    made, item = manager(deepcopy=deepcopy), {"obs": np.zeros(1)}
    made.push_data(item)
    item["obs"] += 1
    (found,) = made.sample(1)
    assert found["obs"] == (0 if deepcopy else 1)
    found["obs"] += 1
    assert made.sample(1)[0]["obs"] == (0 if deepcopy else 2)


# --- limits


def test_an_item_is_removed_after_so_many_uses():
    made = manager(6, range(6), max_use=2)
    drawn = [made.sample(1) for _ in range(13)]
    assert drawn.pop() is None
    assert Counter(items[0]["n"] for items in drawn) == dict.fromkeys(range(6), 2)
    assert {items[0]["reuse"] for items in drawn} == {0, 1}
    assert made.statistics()["agent"]["removed"] == 6
    made.push_data({"n": 7})
    assert made.sample(1)[0]["reuse"] == 0


def test_stale_items_are_removed():
    made = manager(max_staleness=3)
    made.push_data([{"n": n, "collect_iter": n} for n in range(5)])
    made.push_data([{"n": 5}, {"n": 6, "collect_iter": [2, 9]}])
    assert made.sample(4, cur_learner_iter=5) is None  # 0 to 2 are too old, and so is 6
    assert made.count() == 3
    drawn = made.sample(3, cur_learner_iter=5)
    assert {item["n"]: item["staleness"] for item in drawn} == {3: 2, 4: 1, 5: -1}


def test_no_sample_until_there_are_items_enough():
    made = manager(10, range(5), min_sample_ratio=1.5)
    assert made.sample(4) is None
    made.push_data({"n": 5})
    assert len(made.sample(4)) == 4
    assert manager().sample(1) is None


@pytest.mark.parametrize("name", ["size", "replay_buffer_size", "meta_maxlen", "maxlen"])
def test_names_of_the_size(name):
    made = BufferManager({name: 2})
    made.push_data([{"n": n} for n in range(5)])
    assert made.count() == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_uses": 3}, "max_uses'.*did you mean"),
        ({"meta_maxlen": 0}, "'replay_buffer.maxlen' is 0"),
        ({"max_reuse": 0}, "'replay_buffer.max_use' is 0"),
        ({"load_path": "demo.pkl"}, "a pickle, which is not read: push the items"),
        ({"buffer_name": ["agent"], "agent": {}, "demo": {}}, r"has no 'demo': add it"),
        ({"sample_ratio": {"agent": 0}}, "sample_ratio needs numbers"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        BufferManager(settings)


def test_none_is_no_limit():
    made = manager(3, range(3), max_reuse=None, max_staleness=None, monitor=None, load_path=None)
    for _ in range(50):
        assert len(made.sample(3)) == 3


# --- priorities


def test_items_are_drawn_by_priority_and_weighted():
    made = manager(3, alpha=1.0, beta=1.0)
    made.push_data([{"n": n, "priority": p} for n, p in enumerate((1.0, 3.0, 6.0))])
    drawn = [item for _ in range(1000) for item in made.sample(1)]
    counts = Counter(item["n"] for item in drawn)
    expected = {0: 100, 1: 300, 2: 600}
    assert sum((counts[n] - e) ** 2 / e for n, e in expected.items()) < 13.82
    weights = {item["n"]: item["IS"] for item in drawn}
    assert weights == pytest.approx({0: 1.0, 1: 1 / 3, 2: 1 / 6})
    priorities = {item["n"]: item["priority"] for item in drawn}
    assert priorities == pytest.approx({0: 1.0, 1: 3.0, 2: 6.0})


def test_priorities_of_items_that_are_still_there_are_updated():
    made = manager(2, range(2), alpha=1.0)
    drawn = made.sample(2)
    made.push_data({"n": 2})  # in place of 0
    info = {key: [item[key] for item in drawn] for key in ("replay_unique_id", "replay_buffer_idx")}
    made.update({**info, "priority": [9.0 if item["n"] else 100.0 for item in drawn]})
    found = {item["n"]: item["priority"] for _ in range(40) for item in made.sample(1)}
    assert found == pytest.approx({1: 9.0, 2: 1.0})


def test_beta_increases_to_one():
    made = manager(2, range(2), alpha=1.0, beta=0.5, anneal_step=2)
    betas = []
    for _ in range(4):
        made.sample(1)
        betas.append(made.buffer["agent"].rows.beta)
    assert betas == [0.75, 1.0, 1.0, 1.0]


# --- several buffers


def test_shares_of_buffers():
    made = two({"agent": 0.75, "demo": 0.25})
    assert sum(item["n"] >= 1000 for item in made.sample(8)) == 2
    assert sum(item["n"] >= 1000 for item in made.sample(8, 0, {"agent": 0, "demo": 1})) == 8
    assert sum(item["n"] >= 1000 for item in made.sample(8)) == 8
    assert sum(item["n"] >= 1000 for item in two().sample(8)) == 4


def test_buffers_have_their_own_options():
    made = two(agent={"max_reuse": 1, "meta_maxlen": 4}, demo={})
    assert (made.count("agent"), made.count("demo")) == (4, 8)
    for _ in range(2):
        made.sample(4)
    assert made.sample(4) is None  # the agent's are used up
    assert (made.count(), made.count("demo")) == (0, 8)


def test_updates_find_their_buffer():
    made = two(agent={"alpha": 1.0}, demo={"alpha": 1.0})
    drawn = made.sample(4)
    made.update(
        {
            "replay_unique_id": [item["replay_unique_id"] for item in drawn],
            "replay_buffer_idx": [item["replay_buffer_idx"] for item in drawn],
            "priority": [5.0 if item["n"] >= 1000 else 2.0 for item in drawn],
        }
    )
    for name, value in (("agent", 2.0), ("demo", 5.0)):
        assert made.buffer[name].rows.priorities.max() == pytest.approx(value)


def test_clear():
    made = two()
    made.clear(["demo"])
    assert (made.count("agent"), made.count("demo")) == (8, 0)
    made.clear()
    assert len(made) == 0
    made.push_data({"n": 3})
    assert numbers_of(made.sample(1, sample_ratio={"agent": 1})) == [3]


def test_unknown_buffers():
    made = two()
    for call in (made.count, made.clear, made.used_data, lambda name: made.push_data({}, name)):
        with pytest.raises(KeyError, match="unknown buffer 'expert'; there are: agent, demo"):
            call("expert")
    with pytest.raises(KeyError, match="unknown buffer 'expert'"):
        made.sample(4, sample_ratio={"expert": 1})


def test_used_data_is_what_was_replaced_or_removed():
    made = manager(2, range(3), max_use=1, enable_track_used_data=True)
    drawn = made.sample(1)[0]["n"]
    assert [made.used_data()["n"] for _ in range(2)] == [0, drawn]
    assert made.used_data() is None
    assert manager(1, range(3)).used_data() is None


def test_threads():
    made = manager(50, range(50), max_use=3, enable_track_used_data=True)

    def work(start):
        for number in range(start, start + 200):
            made.push_data({"n": number})
            made.sample(2)

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = made.statistics()["agent"]
    assert numbers["pushed"] == 650
    used = 0
    while made.used_data() is not None:
        used += 1
    assert used + made.count() == 650


# --- statistics


def test_statistics_are_logged(tmp_path):
    folder = tmp_path / "agent_buffer"
    made = manager(
        4, range(4), alpha=1.0, monitor={"log_path": str(folder), "log_freq": 2, "tick_expire": 2}
    )
    made.run()
    for iteration in range(3):
        made.sample(4, iteration)
        made.push_data({"n": iteration, "collect_iter": iteration, "priority": 2.0 + iteration})
    made.close()
    numbers = made.statistics()["agent"]
    assert (numbers["pushed"], numbers["sampled"], numbers["held"]) == (7, 12, 4)
    assert 0 < numbers["priority_min"] <= numbers["priority_avg"] <= numbers["priority_max"]
    assert numbers["priority_max"] == pytest.approx(3.0)
    assert numbers["reuse_max"] >= numbers["reuse_avg"] > 0
    lines = (folder / "agent_logger.txt").read_text().splitlines()
    assert [line.split(":")[0] for line in lines] == ["in 0", "out 0", "in 2", "out 2"]
    events = EventAccumulator(str(folder / "agent_tb_logger")).Reload()
    assert [event.step for event in events.Scalars("buffer_agent/reuse_max")] == [0, 2]
    assert "buffer_agent/in_count_avg" in events.Tags()["scalars"]
    made.push_data({"n": 9})  # a closed manager still works
    made.close()


def test_no_files_without_a_monitor(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = manager(4, range(4))
    made.sample(2)
    made.close()
    assert not list(tmp_path.iterdir())


# --- collate functions

Pair = namedtuple("Pair", "a b")


def test_default_collate():
    batch = default_collate(
        [
            {"obs": np.zeros(3), "rew": torch.ones(1), "n": i, "done": i > 0, "x": 0.5, "name": "a",
             "pair": Pair(torch.zeros(2), i), "list": [i, np.float32(i)], "none": None}
            for i in range(2)
        ]
    )  # fmt: skip
    assert batch["obs"].shape == (2, 3)
    assert batch["rew"].tolist() == [1.0, 1.0]
    assert batch["n"].tolist() == [0, 1]
    assert (batch["done"].dtype, batch["x"].dtype) == (torch.bool, torch.float32)
    assert batch["name"] == ["a", "a"]
    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].a.shape == (2, 2)
    assert [each.tolist() for each in batch["list"]] == [[0, 1], [0.0, 1.0]]
    assert batch["none"] is None
    with pytest.raises(TypeError, match="items of object"):
        default_collate([object()])


def test_diff_shape_collate():
    rows = [{"a": torch.zeros(i + 1), "b": torch.zeros(1), "c": None} for i in range(2)]
    batch = diff_shape_collate(rows)
    assert [each.shape for each in batch["a"]] == [(1,), (2,)]
    assert batch["b"].shape == (2, 1)
    assert batch["c"] == [None, None]


def test_timestep_collate():
    rows = [
        {"obs": [torch.full((3,), float(t)) for t in range(4)], "prev_state": list("abcd")}
        for _ in range(2)
    ]
    batch = timestep_collate(rows)
    assert batch["obs"].shape == (4, 2, 3)
    assert batch["prev_state"] == [("a", "a"), ("b", "b"), ("c", "c"), ("d", "d")]
    assert rows[0]["prev_state"] == list("abcd")


def test_stacked_collate_keeps_axes_of_one():
    assert stacked_collate([{"obs": torch.zeros(1)}] * 2)["obs"].shape == (2, 1)
    nested = [{"info": [{"a": torch.zeros(2)}] * 3}] * 2
    assert stacked_collate(nested)["info"]["a"].shape == (3, 2, 2)


def test_decollate_is_the_reverse():
    rows = [{"obs": torch.full((3,), float(i)), "act": torch.tensor([i])} for i in range(2)]
    again = default_decollate({**default_collate(rows), "prev_state": ["x", "y"]})
    for i, row in enumerate(again):
        assert row["obs"].equal(rows[i]["obs"])
        assert row["act"].equal(rows[i]["act"])
        assert row["prev_state"] == "xy"[i]
    assert default_decollate([torch.zeros(2, 3), torch.zeros(2)])[0][1].shape == (1,)
    with pytest.raises(TypeError, match="cannot be split"):
        default_decollate(5)
