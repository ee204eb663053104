import numpy as np
import pytest

from guerdon.data import Batch
from guerdon.reward.segments import Comparisons, Cutter
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


def test_a_restored_cutter_goes_on():
    cutter, restored, everyone = Cutter(3), Cutter(3), np.ones((2, 1), bool)
    cutter.add(rollout([[1], [2]]), everyone, flags((2, 1)))
    restored.load_state_dict(cutter.state_dict())
    cutter.add(rollout([[7], [8]]), everyone, flags((2, 1)))  # the state was a copy
    assert listed(restored.add(rollout([[3], [4]]), everyone, flags((2, 1)))) == [[1, 2, 3]]


# --- comparisons


def segment(*numbers):
    return Batch(obs=Batch(number=np.array(numbers, np.float32)), act=np.array(numbers))


def compared(share=0.0):
    comparisons = Comparisons()
    pairs = [(segment(1, 2), segment(3, 4)), (segment(5), segment(6))]
    comparisons.add(pairs, np.array([0.0, 1.0]), share, np.random.default_rng(0))
    comparisons.add(
        [(segment(7, 8, 9), segment(10, 11, 12))],
        np.array([0.5]),
        share,
        np.random.default_rng(1),
    )
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
    rows = Comparisons().add(
        [(segment(1, 2), segment(3, 4))], np.array([1.0]), 0.0, np.random.default_rng(0)
    )
    assert rows.act.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_share_is_held_out_however_few_come_at_a_time(share):
    comparisons, generator = Comparisons(), np.random.default_rng(0)
    for _ in range(20):
        pairs = [(segment(1), segment(2))] * 3
        comparisons.add(pairs, np.ones(3), share, generator)
    assert len(comparisons.pairs(True, "cpu")) == round(60 * share)
    assert len(comparisons.pairs(False, "cpu")) == 60 - round(60 * share)
    assert comparisons.held_out[:30].sum() == round(30 * share)


def test_one_comparison_is_never_held_out():
    comparisons = Comparisons()
    comparisons.add([(segment(1), segment(2))], np.ones(1), 0.9, np.random.default_rng(0))
    assert len(comparisons.pairs(False, "cpu")) == 1


def test_what_is_held_out_stays_so():
    comparisons, restored = compared(0.4), Comparisons()
    assert comparisons.held_out.sum() == 1
    restored.load_state_dict(comparisons.state_dict())
    assert same_states(restored.state_dict(), comparisons.state_dict())
    assert len(restored) == 3
