"""The same ring as in `test_kernels`: four slots of two environments, row = 2 * slot + env.

Environment 0 has written six rows, so that slots 2, 3, 0, 1 follow in time, and an episode ends in
slot 0. Environment 1 has written three.
"""

import numpy as np
import pytest

from guerdon.data import ReplayBuffer, episodes
from guerdon.data.kernels import LAST, TERMINATED, VALID

WRITTEN = np.array([6, 3])


def flags_of(**rows):
    flags = np.full(8, VALID, np.uint8)
    flags[0] |= TERMINATED | LAST
    flags[7] = 0
    for name, flag in rows.items():
        flags[int(name.removeprefix("row"))] = flag
    return flags


def walk(kernel, rows, **flags):
    return kernel(np.array(rows), WRITTEN, flags_of(**flags)).tolist()


def test_the_first_rows_of_episodes():
    assert walk(episodes.first_rows, [4, 6, 0, 2]) == [4, 4, 4, 2]
    assert walk(episodes.first_rows, [1, 3, 5]) == [1, 1, 1]


def test_the_last_rows_of_episodes():
    assert walk(episodes.last_rows, [4, 6, 0, 2]) == [0, 0, 0, 2]
    assert walk(episodes.last_rows, [1, 3, 5]) == [5, 5, 5]


@pytest.mark.parametrize("flag", [VALID | LAST, 0], ids=["cut", "no transition"])
def test_an_episode_goes_no_further_than_a_break(flag):
    ends = 3 if flag else 1
    assert walk(episodes.last_rows, [1, 5], row3=flag) == [ends, 5]
    assert walk(episodes.first_rows, [1, 5], row3=flag) == [1, 5]


def test_a_full_ring_without_an_end_is_one_episode():
    flags, rows = np.full(3, VALID, np.uint8), np.arange(3)
    assert episodes.first_rows(rows, np.array([4]), flags).tolist() == [1, 1, 1]
    assert episodes.last_rows(rows, np.array([4]), flags).tolist() == [0, 0, 0]


def test_a_buffer_finds_them_for_rows_of_any_shape():
    buffer = ReplayBuffer(6)
    for i in range(5):
        buffer.add(obs=i, act=0, rew=0.0, terminated=i == 1, truncated=False, obs_next=i + 1)
    rows = np.array([[0, 2], [1, 3]])
    assert buffer.episode_first(rows).tolist() == [[0, 2], [0, 2]]
    assert buffer.episode_last(rows).tolist() == [[1, 4], [1, 4]]
    assert buffer.episode_last(3) == 4
    with pytest.raises(IndexError, match="holds no transition"):
        buffer.episode_last(5)
