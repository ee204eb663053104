import numpy as np
import pytest

from guerdon.data import Batch
from guerdon.reward.segments import Comparisons, Cutter, hold_out
from tests.reward.ranked import same_states


def rollout(numbers):
    """Rows [T, n_envs] that are just numbers."""
    return Batch(obs=Batch(number=np.array(numbers)))


def flags(shape, *places):
    found = np.zeros(shape, bool)
    for place in places:
        found[place] = True
    return found


def listed(segments):
    """The real rows of segments."""
    if segments is None:
        return []
    return [
        row[:length].tolist()
        for row, length in zip(segments.obs.number, segments.length, strict=True)
    ]


def test_rollouts_are_cut_into_pieces_of_one_length():
    cutter, numbers = Cutter(2), np.arange(10).reshape(5, 2)
    found = cutter.add(rollout(numbers), np.ones((5, 2), bool), flags((5, 2)))
    assert listed(found) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert listed(cutter.break_off()) == [[8], [9]]


def test_a_segment_goes_on_in_the_next_rollout():
    cutter, everyone = Cutter(3), np.ones((1, 2), bool)
    found = [listed(cutter.add(rollout([[t, 10 + t]]), everyone, flags((1, 2)))) for t in range(6)]
    assert found == [[], [], [[0, 1, 2], [10, 11, 12]], [], [], [[3, 4, 5], [13, 14, 15]]]


def test_no_segment_goes_over_the_end_of_an_episode():
    cutter, numbers = Cutter(3), np.arange(5)[:, None]
    over = flags((5, 1), 1, 2)
    found = cutter.add(rollout(numbers), np.ones((5, 1), bool), over)
    assert listed(found) == [[0, 1], [2]]
    assert listed(cutter.break_off()) == [[3, 4]]


def test_rows_that_are_none_are_left_out():
    cutter, numbers = Cutter(2), np.arange(8).reshape(4, 2)
    mask = ~flags((4, 2), (1, 0), (2, 1))
    found = cutter.add(rollout(numbers), mask, flags((4, 2)))
    assert listed(found) == [[1, 3], [0, 4]]
    assert listed(cutter.break_off()) == [[6], [7]]


def test_some_environments_can_be_broken_off():
    cutter = Cutter(3)
    assert cutter.break_off() is None
    cutter.add(rollout([[1, 2]]), np.ones((1, 2), bool), flags((1, 2)))
    assert listed(cutter.break_off(np.array([1]))) == [[2]]
    found = cutter.add(rollout([[3, 4], [5, 6]]), np.ones((2, 2), bool), flags((2, 2)))
    assert listed(found) == [[1, 3, 5]]


def test_short_pieces_are_dropped_where_an_episode_is_broken_off_but_not_where_it_ends():
    cutter, mask = Cutter(4, shortest=2), np.ones((2, 3), bool)
    mask[1, 0] = False
    found = cutter.add(rollout([[1, 2, 3], [0, 4, 5]]), mask, flags((2, 3), (0, 2)))
    assert listed(found) == [[3]]
    assert listed(cutter.break_off()) == [[2, 4]]  # not 1, and not 5
    assert cutter.break_off() is None
    found = cutter.add(rollout([[6, 7, 8]]), np.ones((1, 3), bool), flags((1, 3), (0, 0)))
    assert listed(found) == [[6]]  # 1 is forgotten


def test_a_restored_cutter_goes_on():
    cutter, restored, everyone = Cutter(3), Cutter(3), np.ones((2, 1), bool)
    cutter.add(rollout([[1], [2]]), everyone, flags((2, 1)))
    restored.load_state_dict(cutter.state_dict())
    cutter.add(rollout([[7], [8]]), everyone, flags((2, 1)))  # the state was a copy
    assert listed(restored.add(rollout([[3], [4]]), everyone, flags((2, 1)))) == [[1, 2, 3]]


@pytest.mark.parametrize("names", [("a.b",), ("a", "b"), ("a", "b.c")], ids=str)
def test_keys_may_hold_dots(names):
    columns = {name: np.array([[number]]) for number, name in enumerate(names)}
    data, cutter, restored = Batch(obs=Batch(columns)), Cutter(2), Cutter(2)
    cutter.add(data, np.ones((1, 1), bool), flags((1, 1)))
    restored.load_state_dict(cutter.state_dict())
    found = restored.add(data, np.ones((1, 1), bool), flags((1, 1)))
    assert found.obs["a.b" if len(names) == 1 else "a"].tolist() == [[0, 0]]
    assert set(found.obs.keys()) == {*names}
    comparisons, again = Comparisons(), Comparisons()
    comparisons.add([(data[:, 0], data[:, 0])], np.ones(1), np.zeros(1, bool))
    again.load_state_dict(comparisons.state_dict())
    assert set(again.pairs(False, "cpu").rows["obs"]) == {*names}


# --- comparisons


def segment(*numbers):
    return Batch(obs=Batch(number=np.array(numbers, np.float32)), act=np.array(numbers))


def compared(*held_out):
    away = np.isin(np.arange(3), held_out)
    comparisons = Comparisons()
    pairs = [(segment(1, 2), segment(3, 4)), (segment(5), segment(6))]
    comparisons.add(pairs, np.array([0.0, 1.0]), away[:2])
    comparisons.add([(segment(7, 8, 9), segment(10, 11, 12))], np.array([0.5]), away[2:])
    return comparisons


def test_pairs_find_their_segments():
    pairs = compared().pairs(False, "cpu")
    rows, mask, label = pairs.take(np.arange(3), "cpu")
    numbers = rows["obs"]["number"]
    sums = np.where(mask, numbers, 0).sum(-1)
    assert sums.tolist() == [[3, 5, 24], [7, 6, 33]]
    assert label.tolist() == [0.0, 1.0, 0.5]
    assert rows["act"].shape == (2, 3, 3)


def test_the_rows_of_new_segments_come_back():
    pairs = [(segment(1, 2), segment(3, 4))]
    rows = Comparisons().add(pairs, np.array([1.0]), np.array([False]))
    assert rows.act.tolist() == [1, 2, 3, 4]


def test_held_out_pairs_are_apart_from_the_others():
    comparisons = compared(1)
    assert comparisons.pairs(True, "cpu").label.tolist() == [1.0]
    assert comparisons.pairs(False, "cpu").label.tolist() == [0.0, 0.5]


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_share_is_held_out_however_few_come_at_a_time(share):
    comparisons = Comparisons()
    for _ in range(20):
        number = comparisons.still_to_hold_out(3, share)
        comparisons.add([(segment(1), segment(2))] * 3, np.ones(3), np.arange(3) < number)
        assert comparisons.held_out.sum() == round(share * len(comparisons))
    assert len(comparisons.pairs(False, "cpu")) == 60 - round(60 * share)


@pytest.mark.parametrize(
    ("held_out", "number", "share", "wanted"),
    [((), 1, 0.9, 1), ((0,), 2, 0.9, 2), ((0, 1, 2), 5, 0.1, 0), ((), 2, 0.5, 2), ((), 7, 0.3, 3)],
)
def test_what_was_not_held_out_before_is_made_up_for(held_out, number, share, wanted):
    assert compared(*held_out).still_to_hold_out(number, share) == wanted


def test_one_comparison_is_never_held_out():
    assert Comparisons().still_to_hold_out(1, 0.9) == 0


def held(pairs, number, seed=0):
    found = hold_out(
        [(segment(*first), segment(*second)) for first, second in pairs],
        number,
        np.random.default_rng(seed),
    )
    return np.flatnonzero(found).tolist()


def test_pairs_that_share_a_segment_are_held_out_together_or_not_at_all():
    pairs = [((1, 2), (3, 4)), ((5, 6), (7, 8)), ((3, 4), (9, 9)), ((0, 0), (9, 9))]
    found = [held(pairs, 3, seed) for seed in range(8)]
    assert {tuple(each) for each in found} == {(1,), (0, 2, 3)}
    assert held(pairs, 1) == [1]
    assert held(pairs, 0) == []


def test_the_first_part_of_a_segment_is_that_segment():
    pairs = [((1, 2, 3), (4, 5, 6)), ((1, 2), (7, 8)), ((1, 3), (7, 9))]
    assert held(pairs, 1) == [2]


def test_what_is_held_out_stays_so():
    comparisons, restored = compared(1), Comparisons()
    restored.load_state_dict(comparisons.state_dict())
    assert same_states(restored.state_dict(), comparisons.state_dict())
    assert len(restored) == 3
