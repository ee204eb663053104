import time

import numpy as np
import pytest

from guerdon.reward.ngu import nearest
from tests.rounding import assert_close


def memory(size, n_envs=1, n_features=1):
    return np.zeros((n_envs, size, n_features), np.float32), np.zeros(n_envs, np.int64)


def reference(before, after, mask, first, size, k):
    """Distances of the newest points of each episode, one environment after the other."""
    found = np.full((*mask.shape, k), np.inf)
    for env in range(mask.shape[1]):
        episode = []
        for step in range(mask.shape[0]):
            if first[step, env]:
                episode = []
            if not mask[step, env]:
                continue
            episode = [*episode, before[step, env]][-size:]
            distances = np.sort(np.square(np.array(episode) - after[step, env]).sum(-1))[:k]
            found[step, env, : len(distances)] = distances
    return found


def walk(n_steps=40, n_envs=3, n_features=5, seed=0):
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(n_steps + 1, n_envs, n_features)).astype(np.float32)
    mask = generator.random((n_steps, n_envs)) < 0.8
    first = generator.random((n_steps, n_envs)) < 0.1
    return points[:-1], points[1:], mask, first


@pytest.mark.parametrize("size", [4, 100])
@pytest.mark.parametrize("k", [1, 3])
def test_reference(size, k):
    found = nearest(*walk(), *memory(size, 3, 5), k)
    assert_close(found, reference(*walk(), size, k))


def test_episodes_continue_in_the_next_rollout():
    whole, points = nearest(*walk(), *memory(6, 3, 5), 3), memory(6, 3, 5)
    pieces = [nearest(*(x[t : t + 8] for x in walk()), *points, 3) for t in range(0, 40, 8)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def line(*numbers):
    return np.array(numbers, np.float32)[:, None, None]


def test_next_points_are_compared_with_points():
    mask, first = np.ones((3, 1), bool), np.zeros((3, 1), bool)
    found = nearest(line(0, 1, 3), line(1, 3, 0), mask, first, *memory(9), 2)
    assert found[:, 0].tolist() == [[1.0, np.inf], [4.0, 9.0], [0.0, 1.0]]


def test_a_first_row_starts_anew():
    points = memory(9, 2)
    point, mask = np.zeros((1, 2, 1), np.float32), np.ones((1, 2), bool)
    nearest(point, point, mask, ~mask, *points, 1)
    found = nearest(point + 5, point, mask, np.array([[False, True]]), *points, 1)
    assert found[0, :, 0].tolist() == [0.0, 25.0]


def test_a_rollout_takes_a_few_milliseconds():
    points = np.random.default_rng(0).normal(size=(128, 16, 32)).astype(np.float32)
    mask, episodes = np.ones((128, 16), bool), memory(1000, 16, 32)
    seconds = []
    for _ in range(3):  # the first one compiles
        start = time.perf_counter()
        nearest(points, points, mask, ~mask, *episodes, 10)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.1  # measured 5 ms, and 12 ms with a full memory
