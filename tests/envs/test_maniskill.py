"""ManiSkill's tasks as any others. These need mani_skill and a Vulkan device: `make test-slow`."""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from guerdon.envs import UnknownEnvironmentError, UnusableEnvironmentError, make_vec

slow = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("mani_skill") is None, reason="guerdon[maniskill] is missing"),
    pytest.mark.usefixtures("_vulkan"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of ManiSkill's many packages
]
HAND = {"control_mode": "pd_ee_delta_pos"}


@pytest.fixture(scope="module")
def _vulkan():
    from guerdon.envs.maniskill import render_device

    try:
        render_device()
    except UnusableEnvironmentError as error:
        pytest.skip(str(error))


def push(state):
    """Goes behind the cube, and pushes it into the goal and beyond."""
    hand, goal, cube = state[18:21], state[25:28], state[28:31]
    behind = abs(hand[1] - cube[1]) < 0.02 and hand[2] < 0.06 and hand[0] < cube[0]
    target = [goal[0] + 0.05 if behind else cube[0] - 0.1, cube[1], 0.02]
    return np.append(((target - hand) * 10).clip(-1, 1), -1).astype(np.float32)


def pushed(env, seed, steps=50):
    """The steps of an episode, until it ends."""
    state = env.reset(seed)
    taken = []
    for _ in range(steps):
        taken.append(env.step(np.stack([push(row) for row in state])))
        state = taken[-1].obs
        if (taken[-1].terminated | taken[-1].truncated).any():
            break
    return taken


@pytest.mark.parametrize("env_id", ["PushCube-v1", "PickCube-v1"])
def test_without_the_package_the_extra_is_named(env_id, monkeypatch):
    monkeypatch.setitem(sys.modules, "mani_skill", None)  # as if it were not installed
    with pytest.raises(UnknownEnvironmentError, match=r"--editable \S+\[maniskill\]"):
        make_vec(env_id, 1)


class TestStates:
    pytestmark = slow

    def test_success_ends_no_episode(self):
        with make_vec("PushCube-v1", 2, kwargs=HAND) as env:
            assert env.observation_space.shape == (35,)
            assert env.action_space.shape == (4,)
            taken = pushed(env, 0)
        succeeded = np.array([step.info["success"] for step in taken])
        once = np.array([step.info["success_once"] for step in taken])
        assert len(taken) == 50
        assert taken[-1].truncated.all()
        assert not any(step.terminated.any() for step in taken)
        assert succeeded.any(0).all()
        assert not succeeded[0].any()
        assert (once & ~succeeded).any()  # the cube was pushed through the goal
        np.testing.assert_array_equal(once, np.logical_or.accumulate(succeeded))
        rewards = np.array([step.rew for step in taken])
        assert rewards[succeeded].min() > rewards[~succeeded].max()

    def test_success_ends_episodes_on_request(self):
        with make_vec("PushCube-v1", 1, kwargs={**HAND, "terminate": True}) as env:
            last = pushed(env, 0)[-1]
            assert last.terminated.all()
            assert last.info["success"].all()
            assert not env.step(np.zeros((1, 4), np.float32)).info["success_once"].any()

    def test_steps_in_inference_mode_and_resets_outside_of_it(self):
        """As a collector does."""
        with make_vec("PushCube-v1", 1, kwargs=HAND) as env:
            env.reset(0)
            with torch.inference_mode():
                env.step(np.ones((1, 4), np.float32))
            state = env.reset(0)
            assert state.tolist() == env.reset(0).tolist()

    def test_rewards_can_be_sparse(self):
        with make_vec("PushCube-v1", 1, kwargs={**HAND, "reward_mode": "sparse"}) as env:
            taken = pushed(env, 1, 20)
        paid = [step.rew.item() for step in taken]
        assert paid == [float(step.info["success"].item()) for step in taken]
        assert max(paid) == 1

    def test_episodes_are_drawn_by_the_seed(self):
        with make_vec("PickCube-v1", 2, max_episode_steps=1) as env:
            firsts = []
            for seed in (1, 1, 2):
                env.reset(seed)
                firsts.append(env.step(np.zeros((2, 8), np.float32)).obs)  # of second episodes
        np.testing.assert_array_equal(firsts[0], firsts[1])
        assert not np.array_equal(firsts[0], firsts[2])
        assert not np.array_equal(firsts[0][0], firsts[0][1])

    @pytest.mark.parametrize(
        ("kwargs", "sentence"),
        [
            ({"obs": "rgb"}, "obs is 'rgb'"),
            ({"obs_mode": "rgb"}, "use obs instead of obs_mode"),
            ({"control_mod": "x"}, "has no argument 'control_mod': did you mean 'control_mode'"),
            ({"control_mode": "x"}, "'PushCube-v1' cannot be made.*pd_ee_delta_pos"),
            ({"reward_mode": "x"}, "'PushCube-v1' cannot be made.*Unsupported reward mode: x"),
        ],
    )
    def test_what_does_not_fit_is_told_in_a_sentence(self, kwargs, sentence):
        with pytest.raises(UnusableEnvironmentError, match=sentence):
            make_vec("PushCube-v1", 1, kwargs=kwargs)

    def test_files_that_a_task_needs_are_named(self, monkeypatch):
        from mani_skill.utils import assets

        monkeypatch.setattr(assets.DATA_SOURCES["ycb"], "target_path", "not here")
        with pytest.raises(UnusableEnvironmentError, match="download_asset ycb"):
            make_vec("mani_skill.envs:PickSingleYCB-v1", 1)

    def test_a_machine_without_vulkan_says_what_it_needs(self):
        code = "from guerdon.envs import make_vec; make_vec('PushCube-v1', 1)"
        done = subprocess.run(  # SAPIEN looks for devices only once
            [sys.executable, "-c", code],
            env={**os.environ, "VK_ICD_FILENAMES": "/nowhere.json"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "UnusableEnvironmentError: there is no Vulkan device" in done.stderr
        assert "Debian's chromium-common" in done.stderr


class TestPictures:
    """All in one test: on a CPU, the first picture of a process takes a minute."""

    pytestmark = slow

    def test_a_push_can_be_seen(self):
        with make_vec("PushCube-v1", 1, kwargs={**HAND, "obs": "both"}) as env:
            assert list(env.observation_space) == ["state", "base_camera"]
            first = env.reset(0)
            step = None
            for _ in range(6):
                state = (first if step is None else step.obs)["state"][0]
                step = env.step(push(state)[None])
        picture = first["base_camera"]
        assert picture.shape == (1, 64, 64, 3)
        assert picture.dtype == np.uint8
        assert picture.std() > 20
        assert step.info["success"].all()
        # The cube, which is blue, was beside the goal, and covers it now.
        changed = (np.abs(step.obs["base_camera"].astype(int) - picture) > 30).any(-1)
        assert 0.01 < changed.mean() < 0.5
        with make_vec("PickCube-v1", 1, kwargs={"obs": "image", "camera_size": 32}) as env:
            assert env.observation_space.shape == (32, 32, 3)
            assert env.reset(0).std() > 20
