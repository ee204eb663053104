import numpy as np
import pytest

from guerdon.data import Batch
from guerdon.reward.preference import Cutter, hold_out, number_to_hold_out


def flags(shape, *places):
    found = np.zeros(shape, bool)
    for place in places:
        found[place] = True
    return found


def rollout(numbers, first=(), ends=(), masked=()):
    """Rows [T, n_envs] of numbers, and the places of flags; ends are of both kinds in turn."""
    numbers = np.array(numbers)
    shape = numbers.shape
    return Batch(
        obs=Batch(number=numbers),
        mask=~flags(shape, *masked),
        first=flags(shape, *first),
        terminated=flags(shape, *ends[::2]),
        truncated=flags(shape, *ends[1::2]),
    )


def cut(cutter, *arguments, **options):
    """The valid rows of the segments that are complete."""
    segments = cutter.add(rollout(*arguments, **options), ("obs",))
    if segments is None:
        return []
    rows = zip(segments.obs.number, segments.length, strict=True)
    return [row[:length].tolist() for row, length in rows]


def test_rollouts_are_cut_into_segments_of_one_length():
    cutter = Cutter(2)
    assert cut(cutter, np.arange(10).reshape(5, 2)) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert cut(cutter, [[10, 11]]) == [[8, 10], [9, 11]]


def test_a_segment_continues_in_the_next_rollout():
    cutter = Cutter(3)
    found = [cut(cutter, [[t, 10 + t]]) for t in range(6)]
    assert found == [[], [], [[0, 1, 2], [10, 11, 12]], [], [], [[3, 4, 5], [13, 14, 15]]]


def test_no_segment_crosses_the_end_of_an_episode():
    cutter = Cutter(3)
    assert cut(cutter, np.arange(5)[:, None], first=[0, 2, 3], ends=[1, 2]) == [[0, 1], [2]]
    assert cut(cutter, [[5]]) == [[3, 4, 5]]


def test_masked_rows_are_left_out():
    cutter, numbers = Cutter(2), np.arange(8).reshape(4, 2)
    # What is said about a masked row does not count.
    found = cut(cutter, numbers, masked=[(1, 0), (2, 1)], first=[(1, 0)], ends=[(2, 1)])
    assert found == [[1, 3], [0, 4]]
    assert cut(cutter, [[8, 9]]) == [[6, 8], [7, 9]]


def test_an_episode_that_begins_closes_the_segment_of_the_one_before():
    cutter = Cutter(3)
    assert cut(cutter, [[1, 2]], first=[0]) == []
    assert cut(cutter, [[3, 4], [5, 6]], first=[(0, 1)]) == [[2], [1, 3, 5]]
    assert cut(cutter, [[7, 8]]) == [[4, 6, 8]]


def test_short_segments_are_dropped_if_an_episode_is_broken_off_but_not_if_it_ends():
    cutter = Cutter(4, shortest=2)
    assert cut(cutter, [[1, 2, 3], [0, 4, 5]], masked=[(1, 0)], ends=[(0, 2)]) == [[3]]
    # 1 and 5 are too short
    assert cut(cutter, [[6, 7, 8]], first=[0], ends=[(0, 0)]) == [[2, 4], [6]]
    assert cut(cutter, [[9, 10, 11]] * 3, first=[(0, 0)]) == [[7, 10, 10, 10], [8, 11, 11, 11]]


def test_a_restored_cutter_continues():
    cutter, restored = Cutter(3), Cutter(3)
    restored.load_training_state(cutter.training_state())
    cut(cutter, [[1], [2]])
    state = cutter.training_state()
    restored.load_training_state(state)
    cut(cutter, [[7], [8]])  # the state was a copy
    assert cut(restored, [[3], [4]]) == [[1, 2, 3]]
    cutter.load_training_state(state)  # and stays one
    assert cut(cutter, [[5]]) == [[1, 2, 5]]


@pytest.mark.parametrize("names", [("a.b",), ("a", "b"), ("a", "b.c")], ids=str)
def test_keys_may_have_dots(names):
    columns = {name: np.array([[number]]) for number, name in enumerate(names)}
    data, cutter, restored = rollout([[0]]).replace(obs=columns), Cutter(2), Cutter(2)
    cutter.add(data, ("obs",))
    restored.load_training_state(cutter.training_state())
    found = restored.add(data, ("obs",))
    assert found.obs["a.b" if len(names) == 1 else "a"].tolist() == [[0, 0]]
    assert set(found.obs.keys()) == {*names}


# --- held-out pairs


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_share_is_held_out_however_few_come_at_a_time(share):
    held_out = np.zeros(0, bool)
    for _ in range(20):
        number = number_to_hold_out(held_out, 3, share)
        held_out = np.append(held_out, np.arange(3) < number)
        assert held_out.sum() == round(share * len(held_out))


@pytest.mark.parametrize(
    ("held_out", "number", "share", "wanted"),
    [((), 1, 0.9, 1), ((0,), 2, 0.9, 2), ((0, 1, 2), 5, 0.1, 0), ((), 2, 0.5, 2), ((), 7, 0.3, 3)],
)
def test_pairs_that_were_not_held_out_before_are_made_up_for(held_out, number, share, wanted):
    assert number_to_hold_out(np.isin(np.arange(3), held_out), number, share) == wanted


def test_one_pair_is_never_held_out():
    assert number_to_hold_out(np.zeros(0, bool), 1, 0.9) == 0


def segment(*numbers):
    return Batch(obs=Batch(number=np.array(numbers, np.float32)), act=np.array(numbers))


def held(pairs, number, seed=0):
    made = [(segment(*first), segment(*second)) for first, second in pairs]
    return np.flatnonzero(hold_out(made, number, np.random.default_rng(seed))).tolist()


def test_pairs_that_share_a_segment_are_held_out_together_or_not_at_all():
    pairs = [((1, 2), (3, 4)), ((5, 6), (7, 8)), ((3, 4), (9, 9)), ((0, 0), (9, 9))]
    found = [held(pairs, 3, seed) for seed in range(8)]
    assert {tuple(each) for each in found} == {(1,), (0, 2, 3)}
    assert held(pairs, 1) == [1]
    assert held(pairs, 0) == []


def test_chains_of_pairs_are_one_group():
    chain = [((number,), (number + 1,)) for number in [5, 0, 3, 1, 4, 2]]
    assert held([*chain, ((9,), (8,))], 5) == [6]
    assert held(chain, 6) == [0, 1, 2, 3, 4, 5]


def test_the_first_part_of_a_segment_is_that_segment():
    pairs = [((1, 2, 3), (4, 5, 6)), ((1, 2), (7, 8)), ((1, 3), (7, 9))]
    assert held(pairs, 1) == [2]
