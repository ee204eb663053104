"""The deep sea, one by one and as a vector."""

from itertools import product

import numpy as np
import pytest

from guerdon.envs import DeepSea, DeepSeaVector, make_vec

ID = "guerdon/DeepSea-v0"


def dive(env, actions):
    """Cells, rewards and successes of an episode; the cell of an observation without one is -1."""
    obs, _ = env.reset()
    cells, rewards, successes = [int(obs.argmax())], [], []
    for t, action in enumerate(actions, 1):
        obs, rew, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(obs)
        assert (terminated, truncated) == (t == len(actions), False)
        cells.append(int(obs.argmax()) if obs.any() else -1)
        rewards.append(rew)
        successes.append(info["success"])
    return cells, rewards, successes


def dives(env, size):
    return [dive(env, actions) for actions in product((0, 1), repeat=size)]


def test_one_way_of_all_finds_the_treasure():
    found = dives(DeepSea(size=3), 3)
    cost = 0.01 / 3
    # so many ways have so many steps to the right
    returns = sorted([0.0] + [-cost] * 3 + [-2 * cost] * 3 + [0.99])
    assert sorted(sum(rewards) for _, rewards, _ in found) == pytest.approx(returns)
    best = [way for way in found if any(way[2])]
    assert len(best) == 1
    cells, rewards, successes = best[0]
    assert cells == [0, 4, 8, -1]
    assert rewards == pytest.approx([-cost, -cost, 1 - cost])
    assert successes == [False, False, True]


def test_steps_to_the_left_are_free_and_stop_at_the_wall():
    free = [cells for cells, rewards, _ in dives(DeepSea(size=3), 3) if not any(rewards)]
    assert free == [[0, 3, 6, -1]]


def test_what_is_right_is_drawn_once_by_its_own_seed():
    env, same, other = DeepSea(4), DeepSea(4), DeepSea(4, mapping_seed=1)
    same.reset(seed=5)
    assert dives(same, 4) == dives(env, 4)
    assert dives(other, 4) != dives(env, 4)
    moves = [dive(DeepSea(20), [action] * 20)[1] for action in (0, 1)]
    assert all(0 in rewards and min(rewards) == pytest.approx(-0.0005) for rewards in moves)


def test_backends_give_the_same_and_no_dummy_rows():
    native, base = (make_vec(ID, 6, backend=one, kwargs={"size": 4}) for one in ("auto", "base"))
    assert isinstance(native.env, DeepSeaVector)
    assert native.observation_space == base.observation_space
    obs = native.reset(0)
    np.testing.assert_array_equal(obs, base.reset(0))
    n_found = 0
    for t, actions in enumerate(np.random.default_rng(0).integers(2, size=(40, 6)), 1):
        ours, theirs = native.step(actions), base.step(actions)
        for name in ("obs_next", "rew", "terminated", "truncated", "obs"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        for key in ("success", "_success"):
            np.testing.assert_array_equal(ours.info[key], theirs.info[key])
        assert ours.dummy is None
        assert ours.terminated.all() == ours.terminated.any() == (t % 4 == 0)
        assert ours.obs_next.any() == (t % 4 != 0)
        assert ours.obs.sum() == 6
        n_found += ours.info["success"].sum()
    assert 0 < n_found < 20  # 60 dives, one in 16 of them


def test_rows_are_reset_one_by_one():
    env = DeepSeaVector(3, size=4)
    env.reset(seed=0)
    env.step(np.zeros(3, np.int64))
    obs, _ = env.reset(options={"reset_mask": np.array([False, True, False])})
    assert [int(row) for row in obs.argmax(1) // 4] == [1, 0, 1]


@pytest.mark.parametrize("backend", ["native", "base"])
def test_a_limit_truncates(backend):
    env = make_vec(ID, 2, backend=backend, max_episode_steps=2, kwargs={"size": 3})
    env.reset(0)
    steps = [env.step(np.zeros(2, np.int64)) for _ in range(4)]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2, [True] * 2] * 2
    assert not any(step.terminated.any() for step in steps)


def test_a_sea_without_rows_is_refused():
    with pytest.raises(ValueError, match="size is 0"):
        DeepSea(size=0)
