"""``guerdon reward collect`` on a real run, and runs that keep pictures while they learn."""

import json
import re
import shutil
import signal
import time

import numpy as np
import pytest

from guerdon.cli.rewards import trajectories_in_words
from guerdon.data.frames import Trajectory, load_frames, read_trajectory, write_trajectory
from guerdon.training import replay
from guerdon.training.checkpoints import checkpoint_steps
from tests.cli.tiny import BUDGET, guerdon, start, train
from tests.collect.showing import Showing
from tests.processes import Program

KINDS = ("positive", "negative")
LEARNED = (  # some of Reach: later checkpoints mostly succeed
    "env.n_envs=64",
    "collect.n_step=2048",
    "learn.batch_size=256",
    "run.max_steps=12288",
    "run.checkpoint_every=4096",
    "eval.every=12288",
    "eval.episodes=4",
)


def folders(root):
    return [f"reward.data_collection.{kind}_dir={root / kind}" for kind in KINDS]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that kept pictures, where it put them, and what it said."""
    root = tmp_path_factory.mktemp("reach")
    keep = ["reward.collect_data=true", *folders(root)]
    return root / "run", root, train(root / "run", *LEARNED, *keep, source="reach_ppo")


@pytest.fixture
def run(trained):
    return trained[0]


def numbers(root):
    """How many files there are, positive and negative."""
    return tuple(len(list((root / kind).iterdir())) for kind in KINDS)


def collected(run, out, *arguments):
    """What was said, in one line."""
    result = guerdon("reward", "collect", run, "--out", out, *arguments)
    assert result.exit_code == 0, result.output
    (line,) = result.output.splitlines()
    return line


def refused(*arguments):
    result = guerdon(*arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    return " ".join(result.output.split())


# --- of a run that has ended


def test_both_folders_are_filled_and_the_next_command_is_said(run, tmp_path):
    said = collected(run, tmp_path, "--positive", 6, "--negative", 4, "--noise", "0,1")
    assert numbers(tmp_path) == (6, 4)
    positive, negative = (tmp_path / kind for kind in KINDS)
    assert re.fullmatch(
        rf"6 positive and 4 negative trajectories are in {positive} and {negative} \(10 new, of "
        rf"\d+ episodes\); next: guerdon reward fit reach_classifier "
        rf"reward.data.positive_dir={positive} reward.data.negative_dir={negative} "
        rf"'train=\"{run} reward.collect_data=false run.dir=null\"'",
        said,
    )
    frames = load_frames(positive, negative, ["base_camera"])
    assert frames.images["base_camera"].shape == (500, 3, 64, 64)
    succeeded = frames.labels.reshape(10, 50).any(1)
    assert succeeded.tolist() == frames.from_positive.tolist() == [True] * 6 + [False] * 4


def test_it_goes_on_from_what_is_there(run, tmp_path):
    limits = ("--positive", 3, "--negative", 0)
    collected(run, tmp_path, *limits)
    before = (tmp_path / "positive" / "000000.npz").read_bytes()
    assert "3 positive and 0 negative" in collected(run, tmp_path, *limits)
    assert "(0 new, of 0 episodes)" in collected(run, tmp_path, *limits)
    assert "(2 new, of " in collected(run, tmp_path, "--positive", 5, "--negative", 0)
    assert numbers(tmp_path) == (5, 0)
    assert (tmp_path / "positive" / "000000.npz").read_bytes() == before


def test_going_on_plays_other_episodes(run, tmp_path):
    for _ in range(3):
        collected(run, tmp_path, "--episodes", 4, "--noise", 0.5)
    frames = load_frames(*(tmp_path / kind for kind in KINDS), ["base_camera"])
    assert len(frames.from_positive) == 12
    assert frames.copies == 0


def test_pictures_are_resized_and_the_next_command_says_to_what(run, tmp_path):
    said = collected(run, tmp_path, "--episodes", 8, "--image-size", "3,16,24", "--noise", "0,1")
    frames = load_frames(*(tmp_path / kind for kind in KINDS), ["base_camera"])
    assert frames.images["base_camera"].shape[1:] == (3, 16, 24)
    assert said.endswith(" 'reward.model.image_size=[3,16,24]'")


def test_the_size_is_that_of_a_file_which_can_be_read(tmp_path):
    data = {f"{kind}_dir": str(tmp_path / kind) for kind in KINDS} | {"image_keys": ["eye"]}
    (tmp_path / "positive").mkdir()
    (tmp_path / "positive" / "000000.npz").touch()
    for cameras in (["hand"], ["hand", "eye"]):
        images = {key: np.zeros((1, 1, 8 + len(key), 9), np.uint8) for key in cameras}
        write_trajectory(tmp_path / "positive", Trajectory(images, np.ones(1, np.float32), True))
    said = trajectories_in_words("other", data, 3, 0)
    assert said.endswith("'reward.model.image_keys=[eye]' 'reward.model.image_size=[1,11,9]'")


def test_episodes_are_those_of_each_policy(run, tmp_path):
    first, *_ = checkpoint_steps(run / "checkpoints")
    arguments = ("--episodes", 5, "--noise", "0,0.5", "--checkpoint", f"{first},best")
    assert "(20 new, of 20 episodes)" in collected(run, tmp_path, *arguments)
    assert sum(numbers(tmp_path)) == 20


def test_better_policies_and_less_noise_succeed_more(run, tmp_path):
    first, *_ = checkpoint_steps(run / "checkpoints")
    for name, arguments in {
        "best": (),
        "first": ("--checkpoint", first),
        "random": ("--noise", 1),
    }.items():
        collected(run, tmp_path / name, "--episodes", 30, *arguments)
    best, early, random = (numbers(tmp_path / name)[0] for name in ("best", "first", "random"))
    assert best > early > random


def test_the_seed_decides_what_is_seen(run, tmp_path):
    def hashed(seed):
        out = tmp_path / f"{seed}{len(list(tmp_path.iterdir()))}"
        collected(run, out, "--seed", seed, "--episodes", 8, "--noise", 0.5)
        return load_frames(out / "positive", out / "negative", ["base_camera"]).hash

    assert hashed(1) == hashed(1)
    assert hashed(1) != hashed(2)


def test_the_documents_files_are_written_on_request(run, tmp_path):
    collected(run, tmp_path, "--episodes", 1, "--format", "npy")
    (file,) = tmp_path.glob("*/000000.npy")
    assert read_trajectory(file).images["base_camera"].shape == (50, 3, 64, 64)


def test_what_never_comes_is_not_waited_for(run, tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "PATIENCE", 20)
    said = collected(run, tmp_path, "--positive", 2)
    assert "the last of which brought nothing new: try other policies with --noise" in said


def test_without_a_success_there_is_nothing_to_fit(run, tmp_path):
    said = collected(run, tmp_path, "--positive", 0, "--negative", 2, "--noise", 1)
    assert said.startswith("0 positive and 2 negative trajectories")
    assert said.endswith("a classifier has to be shown successes: collect until there are some")


def test_the_next_command_names_what_it_needs():
    data = {"positive_dir": "a b/p", "negative_dir": "n", "image_keys": ["left", "right"]}
    said = trajectories_in_words("pickcube_ppo", data, 1_200, 3)
    assert said == (
        "1,200 positive and 3 negative trajectories are in 'a b/p' and n; next: guerdon reward fit "
        "reward.data.positive_dir='a b/p' reward.data.negative_dir=n "
        "reward.save_dir=reward_models/pickcube_ppo_classifier "
        "'reward.model.image_keys=[left,right]'"
    )
    said = trajectories_in_words("reach_ppo", data, 1, 1, words=["reach_ppo"])
    assert "next: guerdon reward fit reach_classifier reward" in said
    assert "train=" not in said
    said = trajectories_in_words("reach_ppo", data, 1, 1, words=["reach_ppo", "env.n_envs=2"])
    assert "'train=\"reach_ppo env.n_envs=2\"'" in said


def test_ctrl_c_keeps_what_was_played(run, tmp_path):
    limits = ("--positive", 100_000, "--negative", 100_000)
    with start("reward", "collect", run, "--out", tmp_path, *limits) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/*.npz")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    assert process.returncode == 130, output + errors
    positive, negative = numbers(tmp_path)
    assert output.startswith(f"{positive} positive and {negative} negative trajectories are in")


class Silent(Showing):
    """Does not say what is a success."""

    def step(self, action):
        *seen, _ = super().step(action)
        return *seen, {}


def test_mistakes_are_sentences(run, tmp_path):
    def said(run, *arguments):
        return refused("reward", "collect", run, "--out", tmp_path / "out", *arguments)

    assert "'bas_camera', which in observations of 'guerdon/Reach-v0' is missing: did you " in (
        said(run, "--image-keys", "base_camera,bas_camera")
    )
    assert "'state', which in observations of 'guerdon/Reach-v0' is Box(-2.0, 2.0, (6,)" in (
        said(run, "--image-keys", "state")
    )
    assert "name each camera once" in said(run, "--image-keys", "base_camera,base_camera")
    for size in ("64,64", "3,0,64", "3x64x64"):
        assert f"height and width, as in 3,64,64, not {size!r}" in said(run, "--image-size", size)
    assert "probabilities between 0 and 1" in said(run, "--noise", 2)
    assert "not 'beast'" in said(run, "--checkpoint", "best,beast")
    assert "is not a run directory" in said(tmp_path)
    train(tmp_path / "blind")
    assert "observations of 'CartPole-v1' are no image" in said(tmp_path / "blind")
    assert not (tmp_path / "out").exists()


def test_an_environment_that_tells_no_success_is_named(tmp_path):
    env = (f"env.id={__name__}:Silent", "env.backend=base", "policy=ppo")
    keys = ("policy.model.keys=[state]", f"run.dir={tmp_path / 'run'}")
    assert guerdon("train", *env, *BUDGET, *keys).exit_code == 0
    said = refused("reward", "collect", tmp_path / "run", "--out", tmp_path / "out")
    assert "info has no 'success' for some steps, only nothing: every step has to report" in said


# --- while a policy learns


def test_a_run_that_keeps_pictures_says_how_many_there_are(trained):
    run, root, result = trained
    found = json.loads((run / "summary.json").read_text())["trajectories"]
    positive, negative = numbers(root)
    assert found == {"positive": positive, "negative": negative}
    assert (
        positive + negative == 3 * 64
    )  # each checkpoint, after 64 steps of 64 environments, breaks off
    assert positive > 1 < negative
    data = [root / kind for kind in KINDS]
    (words,) = re.findall(r"'(train=\"reach_ppo [^']*\")'$", result.output, re.MULTILINE)
    assert "env.n_envs=64" in words
    assert "reward." not in words
    assert "run.dir" not in words
    assert result.output.splitlines()[-1] == (
        f"{positive} positive and {negative} negative trajectories are in {data[0]} and {data[1]}; "
        f"next: guerdon reward fit reach_classifier reward.data.positive_dir={data[0]} "
        f"reward.data.negative_dir={data[1]} '{words}'"
    )


def test_a_run_in_which_no_episode_ended_says_why(tmp_path):
    keep = ("reward.collect_data=true", *folders(tmp_path), "run.max_steps=64")
    said = train(tmp_path / "run", *keep, source="reach_ppo").output.splitlines()[-1]
    assert said.startswith("0 positive and 0 negative trajectories are in ")
    assert said.endswith(
        "no episode ended; checkpoints truncate them, so let more steps be "
        "between these ('run.checkpoint_every')"
    )


@pytest.mark.parametrize(
    ("source", "options", "sentence"),
    [
        ("cartpole_ppo", (), "observations of 'CartPole-v1' are no image"),
        ("reach_ppo", ("image_keys=[base_camra]",), "did you mean 'base_camera'?"),
        ("reach_ppo", ("image_keys=[state]",), "no image: choose from base_camera"),
        (
            "reach_ppo",
            ("image_size=[1,64,64]",),
            "images of 1 channels, but those of 'base_camera'",
        ),
    ],
)
def test_cameras_that_are_not_there_are_refused_before_anything_is_made(
    source, options, sentence, tmp_path
):
    changes = [f"reward.data_collection.{option}" for option in options]
    said = refused(
        "train", source, "reward.collect_data=true", *changes, *folders(tmp_path),
        f"run.dir={tmp_path / 'run'}",
    )  # fmt: skip
    assert sentence in said
    assert list(tmp_path.iterdir()) == []


SMALL_FILES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))"


def test_a_full_disk_ends_a_run_with_a_sentence_and_it_can_be_resumed(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    *_, last = checkpoint_steps(run / "checkpoints")
    more = ["run.max_steps=16_384", *folders(tmp_path), "reward.data_collection.format=npy"]
    resume = ["train", "--resume", str(tmp_path / "run"), *more]
    code = f"{SMALL_FILES}; from guerdon.cli import main; main()"
    with Program("-c", code, *resume) as process:
        _, errors = process.communicate()
    assert process.returncode == 2, errors
    (said,) = errors.splitlines()
    assert said.startswith("Error: a trajectory could not be written (File too large): 0 positive")
    assert numbers(tmp_path) == (0, 0)
    result = guerdon(*resume, "reward.data_collection.format=npz")
    assert result.exit_code == 0, result.output
    assert f"resumed at step {last}" in result.output
    assert sum(numbers(tmp_path)) == 64
