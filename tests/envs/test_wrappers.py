"""Time limits, frame stacks, and observations in parts."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from guerdon.envs import Counting, make_vec
from tests.envs.looking import Parted


def test_a_time_limit_truncates():
    env = make_vec(lambda: Counting(lengths=[9]), 1, max_episode_steps=2)
    env.reset()
    steps = [env.step(np.array([0])) for _ in range(2)]
    assert [step.terminated.tolist() for step in steps] == [[False], [False]]
    assert [step.truncated.tolist() for step in steps] == [[False], [True]]


def test_frames_are_stacked_oldest_first_from_zeros():
    env = make_vec(lambda: Counting(number=7), 1, frame_stack=3)
    assert env.reset()[0].tolist() == [[0, 0, 0], [0, 0, 0], [7, 0, 0]]
    assert env.step(np.array([0])).obs[0].tolist() == [[0, 0, 0], [7, 0, 0], [7, 0, 1]]
    assert env.observation_space.shape == (3, 3)


def test_stacks_begin_anew_with_an_episode_and_end_truly():
    for backend in ("base", "subprocess"):
        with make_vec(
            "guerdon/Counting-v0", 1, backend=backend, frame_stack=2, kwargs={"lengths": [2]}
        ) as env:
            env.reset(0)
            env.step(np.array([0]))
            step = env.step(np.array([0]))
        assert step.obs_next[0].tolist() == [[0, 0, 1], [0, 0, 2]]
        assert step.obs[0].tolist() == [[0, 0, 0], [0, 1, 0]]


def test_wrappers_are_applied_from_the_inside_out():
    env = make_vec(
        "Pendulum-v1",
        1,
        wrappers=[
            lambda env: gymnasium.wrappers.TransformReward(env, lambda _: 3.0),
            lambda env: gymnasium.wrappers.TransformReward(env, lambda reward: reward + 1),
        ],
    )
    env.reset(0)
    assert env.step(np.zeros((1, 1), np.float32)).rew.tolist() == [4.0]


@pytest.mark.parametrize("backend", ["base", "subprocess"])
def test_tuples_in_observations_become_dictionaries(backend):
    with make_vec(Parted, 2, backend=backend) as env:
        assert env.observation_space == spaces.Dict(
            {
                "0": spaces.Discrete(100),
                "1": spaces.Dict({"a": spaces.Dict({"0": spaces.Box(-1, 1, (2,), np.float32)})}),
            }
        )
        obs = env.reset(0)
        assert obs["0"].tolist() == [0, 0]
        step = env.step(np.zeros(2, np.int64))
    assert step.obs_next["0"].tolist() == [1, 1]
    assert step.obs_next["1"]["a"]["0"].tolist() == [[0.5, 0.5]] * 2


def test_parts_keep_their_order():
    many = spaces.Tuple([spaces.Discrete(2)] * 11)
    env = gymnasium.wrappers.TransformObservation(Counting(), lambda _: (1,) * 11, many)
    assert list(make_vec(lambda: env).observation_space) == [str(i) for i in range(11)]


def test_an_environment_without_tuples_stays_as_it_is():
    env = Counting()
    assert make_vec(lambda: env).example() is env
