"""Films: real MP4 files of real environments, read back frame by frame."""

import re
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from guerdon.config.schema import EnvConfig
from guerdon.extras import MissingExtraError
from guerdon.training.video import Film, make_filmed_env

ffmpeg = pytest.importorskip("imageio_ffmpeg")


class Colours(gymnasium.Env):
    """Episodes of four steps; the picture gets brighter with each."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    shape = (48, 64, 3)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, _):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 4, False, {}

    def render(self):
        return np.full(self.shape, 50 * self.steps, np.uint8)


class OddColours(Colours):
    shape = (33, 47, 3)


class NoPicture(Colours):
    def render(self):
        return None


class Unable(Colours):
    def render(self):
        raise OSError("no screen")


class Blind(Colours):
    def __init__(self):
        pass


def path_of(cls):
    return f"{cls.__module__}:{cls.__name__}"


def read(path):
    """The size and rate of a film, and its frames."""
    command = [ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    found = re.search(r"Video: h264.*?, (\d+)x(\d+).*?, ([\d.]+) fps", done.stderr.decode())
    width, height, rate = int(found[1]), int(found[2]), float(found[3])
    return (width, height), rate, np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


def play(env, steps):
    env.reset(seed=0)
    for _ in range(steps):
        *_, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            env.reset()


def test_the_first_episode_is_filmed_from_its_first_picture_to_its_last(tmp_path):
    film = Film(Colours("rgb_array"), tmp_path / "a.mp4")
    play(film, 10)
    film.close()
    size, rate, frames = read(tmp_path / "a.mp4")
    assert size == (64, 48)
    assert rate == 20
    assert np.allclose(frames.mean((1, 2, 3)), [0, 50, 100, 150, 200], atol=3)


def test_a_film_is_there_only_when_its_episode_has_ended(tmp_path):
    film = Film(Colours("rgb_array"), tmp_path / "a.mp4")
    play(film, 3)
    assert not film.finished
    assert not (tmp_path / "a.mp4").exists()
    play(film, 3)  # a reset in the middle: the film starts anew, too
    film.step(0)
    assert film.finished
    assert len(read(tmp_path / "a.mp4")[2]) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_half_an_episode_leaves_nothing(tmp_path):
    film = Film(Colours("rgb_array"), tmp_path / "a.mp4")
    play(film, 2)
    film.close()
    assert list(tmp_path.iterdir()) == []


def test_skipped_frames_make_the_film_slower(tmp_path):
    film = Film(Colours("rgb_array"), tmp_path / "a.mp4", frame_skip=4)
    play(film, 4)
    assert read(tmp_path / "a.mp4")[1] == 5


def test_pictures_of_an_odd_size_can_be_filmed(tmp_path):
    film = Film(OddColours("rgb_array"), tmp_path / "a.mp4")
    play(film, 4)
    size, _, frames = read(tmp_path / "a.mp4")
    assert np.abs(np.subtract(size, (47, 33))).max() <= 1
    assert len(frames) == 5


# --- environments of a config


def test_the_first_environments_film_their_first_episode(tmp_path):
    config = EnvConfig(id=path_of(Colours), n_envs=3, backend="subprocess")
    env, films = make_filmed_env(config, tmp_path / "videos", n_films=2)
    with env:
        env.reset(seed=0)
        for _ in range(9):
            env.step(np.zeros(3, int))
    names = [tmp_path / "videos" / f"episode_{number}.mp4" for number in (1, 2)]
    assert [film.path for film in films] == names == sorted((tmp_path / "videos").iterdir())
    assert all(len(read(name)[2]) == 5 for name in names)


def test_cartpole_is_filmed(tmp_path):
    pytest.importorskip("pygame")
    env, (film,) = make_filmed_env(EnvConfig(id="CartPole-v1", n_envs=1), tmp_path)
    with env:
        env.reset(seed=0)
        steps = 0
        while not film.finished:
            env.step(np.zeros(1, int))
            steps += 1
    size, rate, frames = read(film.path)
    assert (size, rate) == ((600, 400), 50)
    assert len(frames) == steps + 1
    assert frames[0].std() > 5  # a cart and a pole, not an empty picture
    assert np.abs(frames[0].astype(int) - frames[-1]).max() > 100


def test_wrappers_of_the_config_are_kept(tmp_path):
    limit = f"{__name__}:two_steps"
    config = EnvConfig(id=path_of(Colours), n_envs=1, wrappers=[limit])
    env, (film,) = make_filmed_env(config, tmp_path)
    with env:
        env.reset(seed=0)
        env.step(np.zeros(1, int))
        env.step(np.zeros(1, int))
    assert len(read(film.path)[2]) == 3


def two_steps(env):
    return gymnasium.wrappers.TimeLimit(env, 2)


# --- what cannot be filmed


@pytest.mark.parametrize(
    ("cls", "sentence"),
    [
        (NoPicture, "NoPicture cannot be filmed: it renders no images"),
        (Unable, "Unable cannot be filmed, its rendering fails: OSError: no screen"),
        (Blind, "Blind cannot be filmed: it takes no render_mode"),
    ],
)
def test_an_environment_without_pictures_is_named(cls, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        make_filmed_env(EnvConfig(id=path_of(cls), n_envs=1), tmp_path)[0].reset()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["imageio_ffmpeg", "pygame"])
def test_a_missing_package_is_named_with_its_extra(module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"--editable \S+\[video\]"):
        make_filmed_env(EnvConfig(id="CartPole-v1", n_envs=1), tmp_path)[0].reset()
