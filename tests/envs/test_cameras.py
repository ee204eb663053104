"""Images beside states."""

import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from guerdon.envs import UnusableEnvironmentError, make_vec
from guerdon.envs.cameras import ImageObservation

WRAPPER = "guerdon.envs.cameras:ImageObservation"


class Lamp(gymnasium.Env):
    """Gets brighter by 10 with each step, and is as it should be at 20, 30 and 40."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - Gymnasium's
    observation_space = spaces.Dict(
        {
            "achieved_goal": spaces.Box(0, 255, (1,), np.float64),
            "desired_goal": spaces.Box(0, 255, (2,), np.float64),
            "observation": spaces.Box(0, 255, (1,), np.float64),
        }
    )
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode="rgb_array"):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.light = 0
        return self.observed(), {}

    def observed(self):
        light = np.array([self.light / 10])
        return {
            "achieved_goal": light + 100,
            "desired_goal": np.array([2, 4]),
            "observation": light,
        }

    def step(self, action):  # noqa: ARG002
        self.light += 10
        info = {"is_success": np.float32(20 <= self.light <= 40)}
        return self.observed(), 0.0, False, self.light == 60, info

    def render(self):
        return np.full((8, 8, 3), self.light, np.uint8) if self.render_mode else None


# --- observations


class Seen(Lamp):
    """Observes images: one, or one beside a number."""

    def __init__(self, render_mode="rgb_array", number=False):
        super().__init__(render_mode)
        self.number = number
        image = spaces.Box(0, 255, (8, 8, 3), np.uint8)
        self.observation_space = image
        if number:
            self.observation_space = spaces.Dict(eye=image, light=spaces.Box(0, 255, (1,)))

    def observed(self):
        image = np.full((8, 8, 3), self.light, np.uint8)
        return {"eye": image, "light": np.float32([self.light])} if self.number else image


def test_pixels_are_no_part_of_a_state():
    env = ImageObservation(Seen(), camera_size=4)
    assert list(env.observation_space) == ["base_camera"]
    assert env.observation_space.contains(env.reset()[0])
    assert (env.step(0)[0]["base_camera"] == 10).all()
    env = ImageObservation(Seen(number=True), camera_size=4)
    assert env.observation_space["state"].shape == (1,)
    assert env.step(env.reset() and 0)[0]["state"].tolist() == [10]
    with pytest.raises(UnusableEnvironmentError, match="observes only images, no state: set obs=i"):
        ImageObservation(Seen(), "state")


class Striped(Lamp):
    """Shows stripes, always in one array."""

    picture = np.zeros((2, 4, 3), np.uint8)

    def render(self):
        self.picture[:] = [[[0, 10, 20]], [[self.light, 30, 40]]]
        self.picture[:, 2:] += 2
        return self.picture


@pytest.mark.parametrize(
    ("size", "pixels"), [(1, [[[1, 21, 31]]]), (2, [[[0, 10, 20], [2, 12, 22]],
                                                  [[0, 30, 40], [2, 32, 42]]])]
)  # fmt: skip
def test_a_picture_is_resized_with_its_colours(size, pixels):
    seen, _ = ImageObservation(Striped(), obs="image", camera_size=size).reset()
    assert seen.tolist() == pixels
    assert seen.flags.c_contiguous


class Square(Lamp):
    """Is lit, always in one array."""

    picture = np.zeros((2, 2, 3), np.uint8)

    def render(self):
        self.picture[:] = self.light
        return self.picture


def test_a_picture_stays_when_the_next_is_painted_over_it():
    env = ImageObservation(Square(), obs="image", camera_size=2)
    before, _ = env.reset()
    after = env.step(0)[0]
    assert (before[0, 0, 0], after[0, 0, 0]) == (0, 10)


def test_both_are_observed():
    env = ImageObservation(Lamp(), camera_size=4)
    assert env.observation_space == spaces.Dict(
        [
            ("state", spaces.Box(-np.inf, np.inf, (3,), np.float32)),
            ("base_camera", spaces.Box(0, 255, (4, 4, 3), np.uint8)),
        ]
    )
    first, _ = env.reset(seed=0)
    assert first["state"].tolist() == [0, 2, 4]  # what is observed, then the goal
    assert (first["base_camera"] == 0).all()
    obs = env.step(0)[0]
    assert obs in env.observation_space
    assert obs["state"].tolist() == [1, 2, 4]
    assert (obs["base_camera"] == 10).all()


def test_one_alone_is_no_dictionary():
    states = ImageObservation(Lamp(render_mode=None), obs="state")
    assert states.observation_space.shape == (3,)
    assert states.reset()[0].tolist() == [0, 2, 4]
    images = ImageObservation(Lamp(), obs="image")
    assert images.observation_space.shape == (64, 64, 3)
    images.reset()
    assert (images.step(0)[0] == 10).all()


def test_success_is_told_of_each_step_and_of_the_episode():
    env = ImageObservation(Lamp())
    for _ in range(2):  # the second episode begins without the success of the first
        env.reset()
        infos = [env.step(0)[-1] for _ in range(6)]
        assert [info["success"] for info in infos] == [False, True, True, True, False, False]
        assert [info["success_once"] for info in infos] == [False] + [True] * 5
        assert all(type(info["success"]) is bool for info in infos)


def test_what_knows_no_success_tells_none():
    with make_vec("CartPole-v1", 1, render_mode="rgb_array", wrappers=[WRAPPER]) as env:
        assert env.reset(0)["state"].shape == (1, 4)
        assert env.step(np.array([0])).info == {}


@pytest.mark.parametrize("backend", ["auto", "subprocess"])
def test_the_picture_of_an_end_shows_the_end(backend):
    arguments = {"backend": backend, "wrappers": [WRAPPER], "max_episode_steps": 2}
    with make_vec("tests.envs.test_cameras:Lamp", 1, **arguments) as env:
        env.reset(0)
        env.step(np.zeros(1, int))
        step = env.step(np.zeros(1, int))
    assert step.truncated.all()
    assert (step.obs_next["base_camera"] == 20).all()
    assert step.info["success"].tolist() == [True]
    assert (step.obs["base_camera"] == 0).all()


# --- what is refused


class Counting(Lamp):
    """Observes as many numbers as it likes."""

    observation_space = spaces.Sequence(spaces.Discrete(5))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ImageObservation(Lamp(render_mode=None)), "a NoneType, .*render_mode=rgb_array"),
        (lambda: ImageObservation(Counting()), r"a fixed size, but .* Sequence\("),
        (lambda: ImageObservation(Lamp(), obs="rgb"), "obs is 'rgb', .* one of state, image, both"),
        (
            lambda: ImageObservation(Lamp(), camera_size=0),
            "camera_size is 0, but has to be 1 or more",
        ),
    ],
)
def test_what_cannot_be_pictured_is_refused(make, sentence):
    with pytest.raises(UnusableEnvironmentError, match=sentence):
        make()


# --- Gymnasium-Robotics


@pytest.fixture
def _robotics():
    pytest.importorskip("gymnasium_robotics", reason="guerdon[robotics] is not installed")


@pytest.fixture
def _drawn(_robotics):
    code = "import mujoco; mujoco.GLContext(8, 8).make_current()"
    environment = {"MUJOCO_GL": "egl", **os.environ}
    if subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    ).returncode:
        pytest.skip("MuJoCo cannot draw here: apt-get install libegl1 libopengl0 libgl1-mesa-dri")


@pytest.mark.usefixtures("_robotics")
def test_goals_stay_goals_unless_more_is_asked_for():
    with make_vec("FetchReach-v4", 2) as env:
        obs = env.reset(0)
        assert {key: part.shape for key, part in obs.items()} == {
            "achieved_goal": (2, 3),
            "desired_goal": (2, 3),
            "observation": (2, 10),
        }
        paid = env.example().unwrapped.compute_reward(obs["desired_goal"], obs["desired_goal"], {})
        assert paid.tolist() == [0, 0]


@pytest.mark.usefixtures("_robotics")
def test_a_robot_that_reaches_its_goal_succeeds():
    with make_vec("FetchReach-v4", 1, kwargs={"obs": "state"}) as env:
        state = env.reset(0)
        succeeded = []
        for _ in range(50):
            way = state[:, 10:] - state[:, :3]
            step = env.step(np.append(10 * way.clip(-0.1, 0.1), [[0]], 1).astype(np.float32))
            state = step.obs
            succeeded.append(step.info["success"].item())
            assert (step.rew == (0 if succeeded[-1] else -1)).all()
    assert not succeeded[0]
    assert succeeded[-1]
    assert step.truncated.all()


@pytest.mark.usefixtures("_drawn")
def test_a_robot_is_seen_to_move():
    with make_vec("FetchReach-v4", 1, kwargs={"obs": "both", "camera_size": 32}) as env:
        first = env.reset(0)
        for _ in range(10):
            step = env.step(np.array([[1, 1, 1, 0]], np.float32))
    assert first["state"].shape == (1, 13)
    assert first["base_camera"].shape == (1, 32, 32, 3)
    assert first["base_camera"].std() > 20
    changed = (first["base_camera"] != step.obs["base_camera"]).any(-1)
    assert 0.01 < changed.mean() < 0.5  # the robot, and not the room


# A viewer that could not be made complains once more when it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("_robotics")
def test_a_machine_that_cannot_draw_says_what_it_needs(monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.setenv("MUJOCO_GL", "none of these")
    with pytest.raises(UnusableEnvironmentError, match=r"cannot be rendered.*egl.*libgl1-mesa-dri"):
        make_vec("FetchReach-v4", 1, kwargs={"obs": "both"})


@pytest.mark.usefixtures("_robotics")
def test_an_argument_that_a_robot_does_not_take_is_told_in_a_sentence():
    with pytest.raises(
        UnusableEnvironmentError, match="'FetchReach-v4' has no argument 'camera_siz'"
    ):
        make_vec("FetchReach-v4", 1, kwargs={"camera_siz": 3})
