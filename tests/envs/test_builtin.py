"""The environments that come with guerdon."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from guerdon.envs import Counting, Identity, Target


@pytest.mark.parametrize(
    "name", ["BitFlip", "CartPoleFixed", "Counting", "DeepSea", "Identity", "Target"]
)
def test_they_are_registered_and_keep_gymnasiums_rules(name):
    env = gymnasium.make(f"guerdon/{name}-v0")
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", ".*(render|bound|infinity|action space|spec)", UserWarning
        )
        check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)


def test_counting_numbers_steps_and_episodes():
    env = Counting(number=5, lengths=[2, 1], truncates=[False, False, True])
    rows = []
    for _ in range(4):
        rows.append(env.reset()[0].tolist())
        done = False
        while not done:
            obs, rew, terminated, truncated, info = env.step(0)
            assert rew == info["step"] == obs[2]
            done = terminated or truncated
            rows.append([*obs.tolist(), terminated, truncated])
    assert rows == [
        [5, 0, 0],
        [5, 0, 1, False, False],
        [5, 0, 2, True, False],
        [5, 1, 0],
        [5, 1, 1, True, False],
        [5, 2, 0],
        [5, 2, 1, False, False],
        [5, 2, 2, False, True],
        [5, 3, 0],
        [5, 3, 1, True, False],
    ]


def test_counting_fails_when_told_to():
    env = Counting(lengths=[1], fails_at=3)
    for _ in range(2):
        env.reset()
        env.step(0)
    env.reset()
    with pytest.raises(RuntimeError, match="fails at step 3"):
        env.step(0)
    with pytest.raises(ValueError, match="1 step or more"):
        Counting(lengths=[3, 0])


def test_identity_pays_for_repeating_what_it_shows():
    env = Identity(n_actions=5, length=4)
    obs, _ = env.reset(seed=0)
    shown = []
    for t in range(4):
        shown.append(int(obs.argmax()))
        assert obs.sum() == 1
        action = shown[-1] if t % 2 else (shown[-1] + 1) % 5
        obs, rew, terminated, truncated, _ = env.step(action)
        assert rew == t % 2
        assert (terminated, truncated) == (False, t == 3)
    assert len(set(shown)) > 1


def test_target_pays_for_being_near():
    env = Target(size=2, length=3)
    obs, _ = env.reset(seed=0)
    assert env.step(obs)[1] == 0
    assert env.step(env._target + np.float32([0.5, -1]))[1] == pytest.approx(-1.25)
    assert env.step(obs)[2:4] == (False, True)
