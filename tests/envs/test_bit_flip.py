"""Bits with a goal, one by one and as a vector."""

import numpy as np
import pytest

from guerdon.envs import BitFlip, BitFlipVector, make_vec

ID = "guerdon/BitFlip-v0"


def put(env, bits, goal):
    batch = getattr(env, "_batch", env)
    batch._bits[:] = bits
    batch._goal[:] = goal


def test_it_pays_nothing_but_the_goal():
    env = BitFlip(n_bits=3)
    env.reset(seed=0)
    put(env, [0, 1, 0], [1, 1, 1])
    obs, *rest = env.step(0)
    assert {key: part.tolist() for key, part in obs.items()} == {
        "observation": [1, 1, 0],
        "achieved_goal": [1, 1, 0],
        "desired_goal": [1, 1, 1],
    }
    assert env.observation_space.contains(obs)
    assert rest == [-1.0, False, False, {"is_success": False}]
    obs, *rest = env.step(2)
    assert obs["achieved_goal"].tolist() == [1, 1, 1]
    assert rest == [0.0, True, False, {"is_success": True}]


def test_a_bit_flips_back_and_an_episode_is_truncated():
    env = BitFlip(n_bits=3)
    env.reset(seed=0)
    put(env, [0, 0, 0], [1, 1, 1])
    steps = [env.step(1) for _ in range(3)]
    assert [step[0]["observation"].tolist() for step in steps] == [[0, 1, 0], [0, 0, 0], [0, 1, 0]]
    assert [step[1:4] for step in steps] == [(-1, False, False)] * 2 + [(-1, False, True)]


@pytest.mark.parametrize(
    ("kwargs", "limit", "expected"),
    [({}, None, 15), ({"n_bits": 4}, None, 4), ({"n_bits": 4, "length": 6}, None, 6), ({}, 5, 5)],
)
@pytest.mark.parametrize("backend", ["native", "base"])
def test_an_episode_is_as_long_as_there_are_bits(backend, kwargs, limit, expected):
    env = make_vec(ID, 1, backend=backend, kwargs=kwargs, max_episode_steps=limit)
    obs = env.reset(0)
    wrong = int((obs["observation"] != obs["desired_goal"]).argmax())
    other = (wrong + 1) % obs["observation"].shape[1]  # this one alone does not reach the goal
    lengths = [env.step(np.array([other])).truncated[0] for _ in range(expected)]
    assert lengths == [False] * (expected - 1) + [True]


def test_goals_are_drawn_and_never_reached_at_the_start():
    env = BitFlipVector(500, n_bits=2)
    obs, _ = env.reset(seed=0)
    bits, goals = obs["observation"], obs["desired_goal"]
    assert (bits != goals).any(1).all()
    assert len(np.unique(np.concatenate([bits, goals], 1), axis=0)) == 4 * 3
    assert env.observation_space.contains(obs)


def test_reward_and_end_are_computed_for_any_goals():
    achieved = np.array([[[0, 0], [0, 1]], [[1, 0], [1, 1]]], np.float32)
    desired = np.array([[0, 0], [1, 1]], np.float32)
    for env in (BitFlip(2), BitFlipVector(7, 2)):
        reward = env.compute_reward(achieved, desired, {})
        assert reward.tolist() == [[0, -1], [-1, 0]]
        assert reward.dtype.kind == "f"
        terminated = env.compute_terminated(achieved, desired, {})
        assert terminated.tolist() == [[True, False], [False, True]]
        assert env.compute_reward(achieved[0, 0], desired[1], {}) == -1


def test_one_by_one_and_as_a_vector_it_is_the_same():
    vector = BitFlipVector(6, n_bits=4)
    first, _ = vector.reset(seed=0)
    singles = [BitFlip(n_bits=4) for _ in range(6)]
    for i, env in enumerate(singles):
        env.reset()
        put(env, first["observation"][i], first["desired_goal"][i])
    reached = np.zeros(6, bool)
    for actions in np.random.default_rng(0).integers(4, size=(4, 6)):
        obs, rew, terminated, truncated, info = vector.step(actions)
        steps = [env.step(action) for env, action in zip(singles, actions, strict=True)]
        for key, part in obs.items():
            np.testing.assert_array_equal(part, [step[0][key] for step in steps])
        for i, column in enumerate((rew, terminated, truncated), 1):
            assert column.tolist() == [step[i] for step in steps]
        assert info["is_success"].tolist() == [step[4]["is_success"] for step in steps]
        reached |= terminated
    assert truncated.all()
    assert 0 < reached.sum() < 6


def test_the_same_seed_draws_the_same_in_both():
    env, vector = BitFlip(), BitFlipVector(1)
    for seed in (3, None, None):
        single, many = env.reset(seed=seed)[0], vector.reset(seed=seed)[0]
        for key, part in single.items():
            np.testing.assert_array_equal(part, many[key][0])


@pytest.mark.parametrize("backend", ["native", "base"])
def test_every_row_is_a_true_transition(backend):
    env = make_vec(ID, 8, backend=backend, kwargs={"n_bits": 3})
    assert (backend == "native") == isinstance(getattr(env, "env", None), BitFlipVector)
    obs = env.reset(0)
    lengths = np.zeros(8, int)
    n_reached = 0
    for actions in np.random.default_rng(0).integers(3, size=(60, 8)):
        step = env.step(actions)
        assert step.dummy is None
        lengths += 1
        flipped = obs["observation"] != step.obs_next["observation"]
        np.testing.assert_array_equal(flipped, np.eye(3, dtype=bool)[actions])
        np.testing.assert_array_equal(obs["desired_goal"], step.obs_next["desired_goal"])
        reached = (step.obs_next["achieved_goal"] == step.obs_next["desired_goal"]).all(1)
        np.testing.assert_array_equal(step.rew, reached - 1)
        np.testing.assert_array_equal(step.terminated, reached)
        np.testing.assert_array_equal(step.info["is_success"], reached)
        np.testing.assert_array_equal(step.truncated, lengths == 3)
        lengths[step.terminated | step.truncated] = 0
        obs = step.obs
        assert (obs["observation"] != obs["desired_goal"]).any(1).all()
        n_reached += reached.sum()
    assert n_reached > 20


def test_a_seed_decides_all_episodes():
    def drawn(env, seed):
        first = env.reset(seed)
        later = [env.step(np.full(4, t % 15)).obs for t in range(30)]
        return np.array([obs["desired_goal"] for obs in (first, *later)])

    env = make_vec(ID, 4)
    first = drawn(env, 1)
    np.testing.assert_array_equal(drawn(env, 1), first)
    assert not np.array_equal(drawn(env, 2), first)


def test_no_bits_are_refused():
    with pytest.raises(ValueError, match="n_bits is 0"):
        BitFlip(n_bits=0)
