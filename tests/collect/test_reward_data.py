"""Frames and labels on disk belong together, whatever resets environments and whatever fails."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.collect import Collector, reward_data
from guerdon.config import ConfigError
from guerdon.config.schema import DataCollectionConfig
from guerdon.config.validation import validated
from guerdon.data.frames import read_trajectory, write_trajectory
from guerdon.envs import VectorEnv, make_vec
from tests.collect.filling import collector_into, fill, noise
from tests.collect.showing import Showing, shows_success
from tests.envs.walking import Pattern
from tests.processes import Program

MIXED = [
    Pattern((3, 5, 1), (False, True)),
    Pattern((1,), (False,)),
    Pattern((7, 2), (True, False)),
]


def saved(folder):
    """All trajectories, and whether each is in the positive folder."""
    return [
        (read_trajectory(path), path.parent.name == "positive")
        for path in sorted(Path(folder).glob("*/*"))
    ]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def output(*marks, **more):
    """Frames [rows, 2, 2, 3] of one color each."""
    images = np.stack([np.full((2, 2, 3), mark, np.uint8) for mark in marks])
    return {"obs": {"base_camera": images}, **more}


def told(*success, **more):
    return {"success": np.array(success), **more}


def colors(trajectory):
    return trajectory.images["base_camera"][:, 0, 0, 0].tolist()


# --- the label belongs to the frame


def check_true(folder, patterns):
    """Holds files against the environments; which episodes they are."""
    found = []
    for trajectory, in_positive in saved(folder):
        images = trajectory.images["base_camera"]
        assert images.shape[1:] == (3, 4, 5)
        number, episode = images[0, :2, 0, 0].tolist()
        steps = list(range(1, patterns[number].length(episode) + 1))
        success = [shows_success(number, episode, step) for step in steps]
        assert images[:, :, 0, 0].tolist() == [[number, episode, step] for step in steps]
        assert (images[:, 0, 0, 1] == 255).tolist() == success
        assert trajectory.labels.tolist() == success
        assert trajectory.success_once == in_positive == any(success)
        found.append((number, episode))
    return sorted(found)


def in_mode(mode, patterns):
    makers = [partial(Showing, number=i, **p.kwargs()) for i, p in enumerate(patterns)]
    return VectorEnv(SyncVectorEnv(makers, autoreset_mode=mode))


def on_backend(backend, patterns, own=(), **options):
    own_settings = [{"number": i, **p.kwargs()} for i, p in enumerate(patterns)]
    for setting, more in zip(own_settings, own, strict=False):
        setting |= more
    make = "tests.collect.showing:Showing"
    return make_vec(make, len(patterns), backend=backend, settings=own_settings, **options)


def collect_into(folder, env, n_step):
    with collector_into(folder, env.n_envs) as data:
        collected = Collector(None, env, watch=data.watch).collect(n_step=n_step, random=True)
    env.close()
    return collected


PATTERNS = st.lists(
    st.builds(
        Pattern,
        lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
        truncates=st.lists(st.booleans(), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30)
@given(st.sampled_from([*AutoresetMode, "base"]), PATTERNS, st.integers(1, 40))
def test_labels_belong_to_their_frames_in_every_autoreset_mode(kind, patterns, n_step):
    env = on_backend(kind, patterns) if kind == "base" else in_mode(kind, patterns)
    with tempfile.TemporaryDirectory() as folder:
        collected = collect_into(folder, env, n_step)
        episodes = check_true(folder, patterns)
    assert len(set(episodes)) == len(episodes) == collected.n_episode


@pytest.mark.parametrize("backend", ["subprocess", "async_subprocess"])
def test_labels_belong_to_their_frames_in_processes(tmp_path, backend):
    collected = collect_into(tmp_path, on_backend(backend, MIXED, timeout=20), 60)
    episodes = check_true(tmp_path, MIXED)
    assert len(set(episodes)) == len(episodes) == collected.n_episode >= 20


def test_whole_episodes_alone_are_kept_of_a_share(tmp_path):
    env = in_mode(AutoresetMode.NEXT_STEP, MIXED)
    with collector_into(tmp_path, 3) as data:
        collector = Collector(None, env, watch=data.watch)
        collector.collect(n_episode=7, random=True)
        data.flush()
        assert check_true(tmp_path, MIXED) == [
            *((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1))
        ]
        collector.collect(n_step=5, random=True)
        collector.break_off()
        data.break_off()
        collector.collect(n_step=30, random=True)
    check_true(tmp_path, MIXED)


def test_the_episode_of_a_restarted_environment_is_dropped(tmp_path):
    long = [Pattern((6,), (False,))] * 2
    env = on_backend("subprocess", long, [{"fails_at": 4, "failure": "kill"}, {}], timeout=20)
    with collector_into(tmp_path, 2) as data:
        collector = Collector(None, env, watch=data.watch)
        collector.collect(n_step=22, random=True)
    env.close()
    assert {number for number, _ in check_true(tmp_path, long)} == {1}


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_gymnasiums_own_output_is_taken_as_it_is(tmp_path, n_envs, by_hand):
    patterns = MIXED[:n_envs]
    env = in_mode(AutoresetMode.SAME_STEP, patterns).env
    env.reset(seed=0)
    number = 0
    with collector_into(tmp_path, n_envs) as data:
        for _ in range(15):
            obs, _, terminated, truncated, info = env.step(np.zeros(n_envs, int))
            env_output = {"obs": obs} | ({"final_obs": info.get("final_obs")} if by_hand else {})
            data.add_env_output(env_output, info, terminated | truncated)
            number += int((terminated | truncated).sum())
    env.close()
    assert len(check_true(tmp_path, patterns)) == number


def test_final_frames_may_come_as_arrays_and_tell_of_everybody(tmp_path):
    """As ManiSkill does: after a reset, the info of all rows is in final_info alone."""
    new = torch.zeros(2, 2, 2, 3, dtype=torch.uint8)
    final = {"base_camera": torch.stack([new[0] + 4, new[1] + 6])}
    info = {"final_info": {"success": torch.tensor([True, False])}, "elapsed_steps": 0}
    with collector_into(tmp_path, 2) as data:
        data.add_env_output(output(1, 2), told(False, False), False)
        env_output = {"obs": {"base_camera": new}, "final_obs": final}
        data.add_env_output(env_output, info, torch.tensor([True, False]))
        data.add_env_output({"obs": final}, told(0.0, 0.25), np.array([False, True]))
    found = {tuple(colors(t)): (t.labels.tolist(), positive) for t, positive in saved(tmp_path)}
    assert found == {(1, 4): ([0, 1], True), (2, 0, 6): ([0, 0, 0.25], False)}


def test_labels_of_an_old_episode_are_not_put_on_frames_of_a_new_one(tmp_path):
    info = {"success": np.zeros(1), "final_info": {"success": np.ones(1)}}
    with collector_into(tmp_path, 1) as data:
        data.add_env_output(output(1), info, False)  # nothing has ended
        with pytest.raises(ValueError, match="there is no 'final_obs'"):
            data.add_env_output(output(2), info, True)


@pytest.mark.parametrize(
    ("labels", "once", "positive"),
    [((0, 0.4), False, False), ((0, 0.5), False, True), ((0, 0), True, True)],
)
def test_a_trajectory_is_positive_by_the_documents_rule(tmp_path, labels, once, positive):
    with collector_into(tmp_path, 1) as data:
        for label, last in zip(labels, (False, True), strict=True):
            data.add_env_output(output(1), told(label, success_once=np.array([once])), last)
    ((trajectory, in_positive),) = saved(tmp_path)
    assert in_positive is trajectory.success_once is positive


@pytest.mark.parametrize("name", ["success", "success_once", "is_last_step"])
def test_values_of_ended_rows_alone_are_refused(tmp_path, name):
    few = {name: np.array([True])}
    info = {"success": np.zeros(2), **few}
    with (
        collector_into(tmp_path, 2) as data,
        pytest.raises(ValueError, match=rf"'{name}' has the shape \(1,\) for 2 rows"),
    ):
        data.add_env_output(output(1, 2), info, few.get("is_last_step", False))


def test_success_once_is_remembered_for_its_own_environment(tmp_path):
    with collector_into(tmp_path, 3) as data:
        data.add_env_output(output(1, 2, 3), told(1, 0, 0), False)
        data.add_env_output(
            output(11, 12, 13), told(0, 0, 0, success_once=np.array([0, 1, 0])), False
        )
        data.add_env_output(
            output(23, 21, env_ids=np.array([2, 0])), told(0, 0), np.array([True, True])
        )
        data.add_env_output(output(22, env_ids=[1]), told(0), True)
    found = {tuple(colors(t)): (t.labels.tolist(), once) for t, once in saved(tmp_path)}
    assert found == {
        (1, 11, 21): ([1, 0, 0], True),
        (2, 12, 22): ([0, 0, 0], True),
        (3, 13, 23): ([0, 0, 0], False),
    }


def test_dummies_and_empty_buffers_leave_no_trace(tmp_path):
    with collector_into(tmp_path, 2) as data:
        data.add_env_output(output(1, 2, dummy=np.array([True, False])), told(1, 0), True)
        data.add_env_output(output(3, 4, dummy=[True, True]), {}, True)
        data.save_trajectory(0)
        data.add_env_output(output(5, 6), told(0, 0), False)
        data.save_trajectory(1)
        data.add_env_output(output(7, 8), told(0, 0), False)
        data.break_off([0])
    assert sorted(map(colors, (t for t, _ in saved(tmp_path)))) == [[2], [6]]


def test_a_frame_is_copied(tmp_path):
    once = output(1)
    with collector_into(tmp_path) as data:
        data.add_env_output(once, told(0), False)
        once["obs"]["base_camera"][:] = 9
        data.add_env_output(once, told(0), True)
        once["obs"]["base_camera"][:] = 8
    assert [colors(t) for t, _ in saved(tmp_path)] == [[1, 9]]


# --- images


def test_frames_come_in_any_layout_and_number(tmp_path):
    frames = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(1, 2, 5, 3)
    shapes = [
        frames,
        torch.from_numpy(frames),
        frames.transpose(0, 3, 1, 2),
        frames / 255,
        torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255,
    ]
    with collector_into(tmp_path) as data:
        for images in shapes:
            data.add_env_output({"obs": {"base_camera": images}}, told(0), True)
    assert len(saved(tmp_path)) == 5
    for trajectory, _ in saved(tmp_path):
        np.testing.assert_array_equal(
            trajectory.images["base_camera"], frames.transpose(0, 3, 1, 2)
        )


def test_frames_of_another_size_are_resized(tmp_path):
    frames = np.array([[0, 10, 100, 200], [20, 30, 100, 200]], np.uint8)[None, :, :, None]
    with collector_into(tmp_path, 1, image_size=[1, 1, 2]) as data:
        data.add_env_output({"obs": {"base_camera": frames}}, told(0), False)
        data.add_env_output({"obs": {"base_camera": frames + 1}}, told(0), True)
        with pytest.raises(ValueError, match=r"shape \(2, 2, 3\): .* of 1 channels"):
            data.add_env_output(output(1), told(0), True)
    ((trajectory, _),) = saved(tmp_path)
    assert trajectory.images["base_camera"].tolist() == [[[[15, 150]]], [[[16, 151]]]]


def test_one_image_is_that_of_the_only_camera(tmp_path):
    seen = [output(*marks)["obs"]["base_camera"] for marks in ((1, 2), (3, 4), (5, 6))]
    with collector_into(tmp_path, n_envs=2) as data:
        data.add_env_output({"obs": seen[0]}, told(0, 0), False)
        data.add_env_output({"obs": seen[1]}, told(0, 0), np.array([True, False]))
        final = [None, seen[0][1]]
        data.add_env_output({"obs": seen[2], "final_obs": final}, told(0, 0), True)
    assert [colors(each) for each, _ in saved(tmp_path)] == [[1, 3], [5], [2, 4, 2]]
    with (
        collector_into(tmp_path, image_keys=["left", "right"]) as data,
        pytest.raises(ValueError, match=r"no keys; name cameras in 'reward\.data_collection.im"),
    ):
        data.add_env_output({"obs": seen[0][:1]}, told(0), True)


@pytest.mark.parametrize(
    ("obs", "info", "message"),
    [
        ({"hand": 1, "state": 2}, told(0), "no camera 'base_camera': there are 'hand', 'state'; "),
        (np.zeros(3), told(0), r"frames of 'base_camera' have the shape \(\): they have to be"),
        ({"base_camera": np.zeros((1, 4, 4), np.uint8)}, told(0), r"shape \(4, 4\): they have"),
        ({"base_camera": np.zeros((1, 9, 9, 2), np.uint8)}, told(0), "of 1, 3 or 4 channels"),
        ({"base_camera": np.full((1, 4, 4, 3), 2.0)}, told(0), r"not in \[0, 1\]: give them as"),
        (output(1, 2)["obs"], told(0), "2 images of 'base_camera' for 1 rows"),
        (output(1)["obs"], {"step": 1}, "has no 'success' for some steps, only step: every step"),
        (output(1)["obs"], told(1, _success=[False]), "has no 'success' for some steps"),
        (output(1)["obs"], told(2), r"'success' of the environment's info is not always in"),
        (output(1)["obs"], told(np.nan), "has no 'success' for some steps"),
        (output(1)["obs"], told(0, success_once=[]), r"'success_once' has the shape \(0,\) for 1"),
    ],
)
def test_what_is_no_labelled_frame_is_named(tmp_path, obs, info, message):
    with collector_into(tmp_path) as data, pytest.raises(ValueError, match=message):
        data.add_env_output({"obs": obs}, info, True)
    assert saved(tmp_path) == []


def test_success_frame_goes_before_success(tmp_path):
    with collector_into(tmp_path) as data:
        data.add_env_output(output(1), {"success": [1], "success_frame": [0.25]}, True)
    assert [t.labels.tolist() for t, _ in saved(tmp_path)] == [[0.25]]


# --- folders


def episodes(data, *success):
    for one in success:
        data.add_env_output(output(1), told(one), True)


def test_limits_count_what_earlier_runs_left(tmp_path):
    limits = {"max_positive_trajectories": 3, "max_negative_trajectories": 2}
    with collector_into(tmp_path, **limits) as data:
        episodes(data, 1, 1, 0)
        data.flush()
        assert (data.counts, data.full) == ((2, 1), False)
    with collector_into(tmp_path, **limits) as data:
        assert data.counts == (2, 1)
        episodes(data, 1, 1, 1)
        assert not data.full
        episodes(data, 0)
        assert data.full
        data.add_env_output({"obs": "nobody looks"}, {}, False)
        episodes(data, 0, 1)
    assert names(tmp_path / "positive") == ["000000.npz", "000001.npz", "000002.npz"]
    assert names(tmp_path / "negative") == ["000000.npz", "000001.npz"]


def test_what_others_write_meanwhile_counts_too(tmp_path):
    limits = {"max_positive_trajectories": 2, "max_negative_trajectories": 0}
    with collector_into(tmp_path, **limits) as data, collector_into(tmp_path, **limits) as other:
        episodes(other, 1, 1)
        other.flush()
        assert not data.full
        episodes(data, 1)
        data.flush()
        assert data.full
    assert len(saved(tmp_path)) == 2


def test_without_limits_it_is_never_full(tmp_path):
    limits = {"max_positive_trajectories": None, "max_negative_trajectories": None}
    with collector_into(tmp_path, 1, **limits) as data:
        episodes(data, *[1, 0] * 5)
        assert not data.full
    assert data.counts == (5, 5)


def test_the_documents_files_are_written_on_request(tmp_path):
    with collector_into(tmp_path, 1, format="npy") as data:
        episodes(data, 1)
    found = np.load(tmp_path / "positive" / "000000.npy", allow_pickle=True).item()
    assert found["images"]["base_camera"].shape == (1, 3, 2, 2)
    assert found["labels"].tolist() == [1.0]


def test_half_written_files_of_old_are_removed_at_the_start(tmp_path):
    stale = tmp_path / "positive" / ".half.tmp"
    stale.parent.mkdir()
    stale.touch()
    os.utime(stale, (0, 0))
    collector_into(tmp_path).close()
    assert names(tmp_path / "positive") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"negative_dir": "./p/", "positive_dir": "p"}, "both 'p': give two folders"),
        ({"image_keys": []}, "'reward.data_collection.image_keys'"),
        ({"image_keys": ["a", "a"]}, "name each camera once"),
        ({"image_size": [3, 0, 2]}, "'reward.data_collection.image_size.1' is 0"),
        ({"format": "npq"}, "'reward.data_collection.format' is 'npq'"),
        ({"max_positive_trajectories": -1}, "max_positive_trajectories' is -1"),
        ({"positve_dir": "x"}, "did you mean 'positive_dir'"),
    ],
)
def test_a_wrong_config_is_one_sentence(options, message):
    with pytest.raises(ConfigError, match=message):
        validated(DataCollectionConfig, options, "reward.data_collection")


# --- in the background


def test_a_slow_disk_holds_up_and_drops_nothing(tmp_path, monkeypatch):
    go_on = threading.Event()

    def slow(*args, **options):
        go_on.wait(20)
        return write_trajectory(*args, **options)

    monkeypatch.setattr(reward_data, "write_trajectory", slow)
    done = []
    with collector_into(tmp_path) as data:
        feeder = threading.Thread(
            target=lambda: [done.append(episodes(data, 0)) for _ in range(40)]
        )
        feeder.start()
        deadline = time.monotonic() + 20
        while len(done) < 17 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert len(done) == 17  # one is being written, 16 wait
        go_on.set()
        feeder.join()
    assert data.counts == (0, 40)


def check_safe(folder, error, n_safe):
    """Every file is whole, none is hidden, and the error tells of all of them."""
    trajectories = saved(folder)
    assert len(trajectories) == n_safe > 0
    assert f"{n_safe} positive and 0 negative ones are safe in {folder / 'positive'}" in error
    assert "free space or choose other folders ('reward.data_collection.positive_dir'" in error
    assert all(name[0] != "." for name in names(folder / "positive"))


def test_a_full_disk_stops_collection_and_keeps_what_is_there(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        data = collector_into(tmp_path)
        with pytest.raises(OSError, match=r"could not be written \(No space left on device\)"):
            fill(data, 100)
        data.close()  # told once is enough
        with pytest.raises(OSError, match="No space left on device") as caught:
            data.add_env_output(noise(np.random.default_rng(0)), told(1), False)
        check_safe(tmp_path, str(caught.value), data.counts[0])
        next((tmp_path / "positive").iterdir()).unlink()  # room for one
        with collector_into(tmp_path) as again:
            fill(again, 1)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


LIMITED = """
import resource, signal, sys
from tests.collect.filling import collector_into, fill
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
data = collector_into(sys.argv[1])
fill(data, 3)
data.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
fill(data, 1)
try:
    data.close()
except OSError as error:
    print(error)
data.close()
"""


def test_a_file_that_cannot_grow_is_told_at_the_end(tmp_path):
    with Program("-c", LIMITED, tmp_path) as process:
        error = process.stdout.read()
    assert process.returncode == 0
    assert "could not be written (File too large)" in error
    assert "1 newer ones are lost" in error
    check_safe(tmp_path, error, 3)


def test_another_error_of_the_thread_comes_to_the_caller(tmp_path):
    data = collector_into(tmp_path)
    data.add_env_output(output(1), told(0), False)
    wide = {"obs": {"base_camera": np.zeros((1, 2, 9, 3), np.uint8)}}
    data.add_env_output(wide, told(0), True)
    with pytest.raises(ValueError, match="same shape"):
        data.close()


def test_nothing_is_added_after_the_end(tmp_path):
    data = collector_into(tmp_path)
    data.close()
    data.close()
    with pytest.raises(ValueError, match="is closed: make a new one"):
        episodes(data, 0)
    with pytest.raises(ValueError, match="n_envs is 0"):
        collector_into(tmp_path, 0)


UNCLOSED = """
import sys
from tests.collect.filling import collector_into, fill
data = collector_into(sys.argv[1])
print(flush=True)
fill(data, int(sys.argv[2]))
"""


def test_a_program_that_forgets_to_close_loses_nothing(tmp_path):
    with Program("-c", UNCLOSED, tmp_path, 10) as process:
        process.communicate()
    assert process.returncode == 0
    assert len(saved(tmp_path)) == 10


def test_a_killed_program_leaves_whole_trajectories(tmp_path):
    with Program("-c", UNCLOSED, tmp_path, 100_000) as process:
        process.stdout.readline()
        deadline = time.monotonic() + 30
        while len(list(tmp_path.glob("*/*.npz"))) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    files = list(tmp_path.glob("*/[0-9]*"))
    assert len(files) >= 5
    assert all(len(read_trajectory(path)) == 2 for path in files)
    with collector_into(tmp_path) as data:
        assert data.counts == (len(files), 0)
        fill(data, 1)
    assert data.counts == (len(files) + 1, 0)
