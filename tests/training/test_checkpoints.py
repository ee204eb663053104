"""Checkpoints are whole or not there, whatever happens to the process or to the disk."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from guerdon.data import PrioritizedReplayBuffer, serializer
from guerdon.data.serializer import DamagedError
from guerdon.training.checkpoints import (
    checkpoint_steps,
    drop_later,
    load_checkpoint,
    save_checkpoint,
)


def make_state(step):
    """A state in which everything can be told from the step."""
    return {
        "policy": {"weight": torch.full((50, 4), float(step)), "bias": torch.tensor(step)},
        "reward": {"scale": np.full(3, step, dtype="f2")},
        "counters": {"step": step, "returns": [step, None, float("inf")]},
    }


def is_state(state, step):
    return (
        state["policy"]["weight"].tolist() == [[step] * 4] * 50
        and state["policy"]["bias"].item() == step
        and state["reward"]["scale"].tolist() == [step] * 3
        and state["counters"] == {"step": step, "returns": [step, None, float("inf")]}
    )


def save(root, *steps, keep=10, mark=None):
    for step in steps:
        path = save_checkpoint(root, step, make_state(step), keep=keep, mark=mark)
    return path


def loaded_step(root, which="latest"):
    state, step = load_checkpoint(root, which)
    assert is_state(state, step)
    return step


def names(root):
    return sorted(path.name for path in root.iterdir())


# --- saving and loading


def test_a_checkpoint_is_a_folder_of_safetensors_and_json(tmp_path):
    path = save(tmp_path / "checkpoints", 7)
    assert path == tmp_path / "checkpoints" / "step_7"
    assert names(path) == [
        "manifest.json",
        "policy.safetensors",
        "reward.safetensors",
        "state.json",
    ]
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["torch"] == torch.__version__
    assert manifest["files"]["state.json"]["size"] == (path / "state.json").stat().st_size
    assert names(tmp_path / "checkpoints") == ["latest", "step_7"]


def test_the_latest_the_best_a_step_and_a_folder_can_be_loaded(tmp_path):
    save(tmp_path, 5)
    save(tmp_path, 10, mark="best")
    save(tmp_path, 15)
    assert checkpoint_steps(tmp_path) == [5, 10, 15]
    assert loaded_step(tmp_path) == 15
    assert loaded_step(tmp_path, "best") == 10
    assert loaded_step(tmp_path, 5) == 5
    assert loaded_step(tmp_path / "step_10") == 10
    assert loaded_step(str(tmp_path / "best")) == 10


def test_parts_may_have_any_name(tmp_path):
    state = {
        name: {"x": torch.tensor(1)} for name in ("../up", "a/b", "ü", "", ".", "state", "CON")
    }
    save_checkpoint(tmp_path / "root", 1, state, keep=1)
    assert names(tmp_path) == ["root"]
    assert load_checkpoint(tmp_path / "root")[0] == state


def test_a_part_must_be_named_by_a_string(tmp_path):
    with pytest.raises(TypeError, match="need strings as names, not 3"):
        save_checkpoint(tmp_path, 1, {3: 1}, keep=1)
    assert names(tmp_path) == []


def test_a_replay_buffer_goes_on_from_a_checkpoint(tmp_path):
    def make():
        return PrioritizedReplayBuffer(20, n_envs=2, alpha=0.6, beta=0.4, seed=3)

    buffer, numbers = make(), np.arange(2)
    for step in range(13):
        buffer.add(
            obs=numbers + step,
            act=numbers,
            rew=numbers / 2,
            terminated=numbers == step % 5,
            truncated=numbers < 0,
            obs_next=numbers + step + 1,
            info={"name": np.array(["a", None], dtype=object)},
        )
    save_checkpoint(tmp_path, 13, {"buffer": buffer.training_state()}, keep=1)
    other = make()
    other.load_training_state(load_checkpoint(tmp_path)[0]["buffer"])
    for _ in range(3):
        (batch, indices), (batch_2, indices_2) = buffer.sample(8), other.sample(8)
        assert indices.tolist() == indices_2.tolist()
        assert batch.obs_next.tolist() == batch_2.obs_next.tolist()
        assert batch.info.name.tolist() == batch_2.info.name.tolist()


def test_a_large_array_is_not_copied_to_be_saved_and_once_to_be_loaded(tmp_path):
    script = f"""
import resource, sys
from pathlib import Path
import numpy as np
from guerdon.training.checkpoints import load_checkpoint, save_checkpoint
root, peak = Path({str(tmp_path)!r}), lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
save_checkpoint(root, 0, {{"small": np.ones(3)}}, keep=1)
load_checkpoint(root)
array = np.ones(200 << 17)
start = peak()
save_checkpoint(root, 1, {{"buffer": {{"arrays": {{("obs",): array}}}}}}, keep=1)
assert peak() - start < 40 << 10, peak() - start
del array
back = load_checkpoint(root)[0]["buffer"]["arrays"]["obs",]
assert back.nbytes == 200 << 20 and back[-1] == 1
assert peak() - start < 240 << 10, peak() - start  # itself, and the file it was mapped from
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# --- what stays


def test_the_newest_and_the_best_stay(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2, mark="best")
    save(tmp_path, 3, 4, 5, keep=2)
    assert checkpoint_steps(tmp_path) == [2, 4, 5]
    save(tmp_path, 6, keep=2, mark="best")
    assert checkpoint_steps(tmp_path) == [5, 6]
    assert names(tmp_path) == ["best", "latest", "step_5", "step_6"]


def test_a_run_that_went_back_drops_what_lay_ahead_but_for_the_best(tmp_path):
    save(tmp_path, 10, 20, 30)
    save(tmp_path, 40, mark="best")
    save(tmp_path, 15, keep=2)
    assert checkpoint_steps(tmp_path) == [10, 15, 40]
    assert loaded_step(tmp_path) == 15


def test_without_a_readable_best_nothing_is_removed(tmp_path):
    save(tmp_path, 1, mark="best")
    (tmp_path / "best").write_text("step_9")
    save(tmp_path, 2, 3, keep=1)
    assert checkpoint_steps(tmp_path) == [1, 2, 3]


def test_the_same_step_can_be_saved_twice(tmp_path):
    save_checkpoint(tmp_path, 3, {"counters": "old"}, keep=1)
    save(tmp_path, 3, keep=1, mark="best")
    assert loaded_step(tmp_path) == loaded_step(tmp_path, "best") == 3
    assert names(tmp_path) == ["best", "latest", "step_3"]


def test_what_killed_processes_left_is_removed_by_the_next_save(tmp_path):
    (tmp_path / ".step_3.0123abcd.tmp").mkdir()
    (tmp_path / ".step_3.0123abcd.tmp" / "state.json").write_text("{")
    (tmp_path / ".latest.0123abcd.tmp").write_text("st")
    save(tmp_path, 4)
    assert names(tmp_path) == ["latest", "step_4"]


@pytest.mark.parametrize(("step", "keep"), [(-1, 1), (1, 0)])
def test_negative_steps_and_keeping_nothing_are_refused(tmp_path, step, keep):
    with pytest.raises(ValueError, match="keep must be at least 1 and step at least 0"):
        save_checkpoint(tmp_path, step, {}, keep=keep)


# --- damage


def test_a_flipped_bit_in_any_byte_is_detected(tmp_path):
    root = tmp_path / "root"
    save_checkpoint(root, 1, {"old": torch.tensor(1)}, keep=2)
    save_checkpoint(root, 3, {"policy": {"x": torch.tensor([5, 6])}, "n": 2}, keep=2)
    for path in sorted(root.glob("step_3/*")):
        whole = path.read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            with pytest.warns(UserWarning, match=f"{path.name} is (damaged|not valid JSON)"):
                assert load_checkpoint(root)[1] == 1
        path.write_bytes(whole)
    assert load_checkpoint(root)[1] == 3


@pytest.mark.parametrize("name", ["latest", "best"])
def test_a_flipped_bit_in_a_pointer_is_detected(tmp_path, name):
    save(tmp_path, 1, 2, 3, 4, 5, mark="best")
    pointer = tmp_path / name
    whole = pointer.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            pointer.write_bytes(damaged)
            with pytest.warns(UserWarning, match=f"{name} is damaged; the newest is used"):
                assert loaded_step(tmp_path, name) == 5


@pytest.mark.parametrize(
    "name", ["manifest.json", "state.json", "policy.safetensors", "reward.safetensors"]
)
def test_missing_and_cut_files_are_detected(tmp_path, name):
    save(tmp_path, 1, 2)
    path = tmp_path / "step_2" / name
    for content in (path.read_bytes()[:-1], b""):
        path.write_bytes(content)
        with pytest.warns(
            UserWarning, match=f"{name} is (damaged|not valid).*the checkpoint before it is used"
        ):
            assert loaded_step(tmp_path) == 1
    path.unlink()
    with pytest.warns(UserWarning, match=f"{name} is missing"):
        assert loaded_step(tmp_path) == 1


def test_the_newest_good_one_before_is_used(tmp_path):
    save(tmp_path, 1, 2, 3, 4)
    for step in (2, 3):
        (tmp_path / f"step_{step}" / "state.json").write_text("{}")
    with (
        pytest.warns(UserWarning, match=r"step_3.state\.json is damaged"),
        pytest.warns(UserWarning, match=r"step_2.state\.json is damaged"),
    ):
        assert loaded_step(tmp_path, 3) == 1
    assert loaded_step(tmp_path) == 4


def test_when_none_is_whole_the_error_says_so(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / "step_1" / "state.json").unlink()
    with (
        pytest.warns(UserWarning, match=r"step_1.state\.json is missing"),
        pytest.raises(ValueError, match=r"up to step 1 .* is intact \(there are step_1, step_2\)"),
    ):
        load_checkpoint(tmp_path, 1)


def test_a_pointer_to_a_folder_that_was_removed_gives_the_one_before(tmp_path):
    save(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "step_2")
    with pytest.warns(UserWarning, match="latest names step_2, which is not there"):
        assert loaded_step(tmp_path) == 1


def test_a_strict_reader_takes_no_other_than_the_one_asked_for(tmp_path):
    save(tmp_path, 1, 2, mark="scheduled")
    (tmp_path / "step_2" / "state.json").unlink()
    with pytest.raises(DamagedError, match=r"step_2.state.json is missing"):
        load_checkpoint(tmp_path, "scheduled", strict=True)
    shutil.rmtree(tmp_path / "step_2")
    with pytest.raises(DamagedError, match="scheduled names step_2, which is not there"):
        load_checkpoint(tmp_path, "scheduled", strict=True)
    (tmp_path / "scheduled").write_text("step_1")
    with pytest.raises(DamagedError, match="scheduled is damaged"):
        load_checkpoint(tmp_path, "scheduled", strict=True)


def test_later_checkpoints_are_dropped(tmp_path):
    save(tmp_path, 1, 2, mark="scheduled")
    save(tmp_path, 3, 4)
    drop_later(tmp_path, 2)
    assert checkpoint_steps(tmp_path) == [1, 2]
    assert loaded_step(tmp_path) == 2
    (tmp_path / "scheduled").unlink()
    drop_later(tmp_path, -1)
    assert names(tmp_path) == []


def test_what_is_not_there_is_a_clear_error(tmp_path):
    for empty in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match="there is no checkpoint of a run in"):
            load_checkpoint(empty)
    save(tmp_path, 1)
    with pytest.raises(FileNotFoundError, match=r"is marked .best."):
        load_checkpoint(tmp_path, "best")
    with pytest.raises(FileNotFoundError, match=r"no step_2 in .*, only step_1"):
        load_checkpoint(tmp_path, 2)
    with pytest.raises(ValueError, match="'best', 'scheduled' or a step, not 'newest'"):
        load_checkpoint(tmp_path, "newest")


def rewrite_manifest(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sha256"]
    (folder / "manifest.json").write_bytes(serializer.manifest_text(manifest | changes))


def test_a_newer_format_is_an_error_and_nothing_older_is_used(tmp_path):
    save(tmp_path, 1, 2)
    rewrite_manifest(tmp_path / "step_2", version=2, guerdon="9.9")
    with pytest.raises(ValueError, match=r"format 2 .* reads up to 1: .* guerdon 9\.9, upgrade"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "a\\b", "C:x", ""])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, name):
    save(tmp_path, 1)
    rewrite_manifest(tmp_path / "step_1", files={name: {"sha256": "", "size": 0}})
    with pytest.raises(ValueError, match="names a file outside of its folder"):
        load_checkpoint(tmp_path)


# --- failing saves


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    save(tmp_path, 1, 2)
    before = names(tmp_path)
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"step_3: No space left on device; earlier") as caught:
        save(tmp_path, 3, keep=1)
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == before
    assert loaded_step(tmp_path) == 2
    save(tmp_path, 3, keep=1)
    assert checkpoint_steps(tmp_path) == [3]


def test_a_file_over_the_limit_of_its_size_leaves_the_checkpoint_before(tmp_path):
    save(tmp_path, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(OSError, match="step_2: File too large"):
            save_checkpoint(tmp_path, 2, {"buffer": np.zeros(1 << 20)}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["latest", "step_1"]
    assert loaded_step(tmp_path) == 1


def test_a_state_that_cannot_be_held_leaves_nothing(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(TypeError, match=r"'odd\.x' is object"):
        save_checkpoint(tmp_path, 2, {"policy": torch.zeros(3), "odd": {"x": object()}}, keep=1)
    assert names(tmp_path) == ["latest", "step_1"]


def test_a_replacement_that_fails_puts_the_old_one_back(tmp_path, monkeypatch):
    save(tmp_path, 1)
    real = Path.rename

    def rename(path, target):
        if path.name.endswith(".tmp"):
            raise KeyboardInterrupt
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 1, {"new": 1}, keep=1)
    assert names(tmp_path) == ["latest", "step_1"]
    assert loaded_step(tmp_path) == 1


# One process that has imported everything makes children, which are killed.
KILLER = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
sys.path.insert(0, {here!r})
from test_checkpoints import *

root = Path({root!r})

def child(work):
    process = os.fork()
    if process == 0:
        try:
            work()
        finally:
            os._exit(1)
    return process

def check(done):
    state, step = load_checkpoint(root)
    assert is_state(state, step), step
    assert step >= done, (step, done)
    return step
"""


def run_killer(tmp_path, script):
    source = KILLER.format(here=str(Path(__file__).parent), root=str(tmp_path / "root")) + script
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_kill_before_any_operation_on_files_leaves_a_complete_checkpoint(tmp_path):
    out = run_killer(
        tmp_path,
        """
EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}

def work(step, last):
    left = [last]
    def hook(event, arguments):
        if event in EVENTS:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    save(root, step, keep=2, mark="best" if step % 2 == 0 else None)
    os._exit(0)

save(root, 1, 2, keep=2, mark="best")
killed = 0
for again in (False, True):  # a new step, and one that is there already
    for last in range(200):
        before = check(0)
        step = before if again else before + 1
        status = os.waitpid(child(lambda: work(step, last)), 0)[1]
        check(before)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        killed += 1
    else:
        raise AssertionError("never came to the end")
save(root, 500, keep=1, mark="best")
assert names(root) == ["best", "latest", "step_500"], names(root)
print(killed)
""",
    )
    assert int(out[0]) > 30


def test_kills_at_random_moments_leave_a_complete_checkpoint(tmp_path):
    out = run_killer(
        tmp_path,
        """
def work(first):
    for step in range(first, first + 10_000):
        save(root, step, keep=2, mark="best" if step % 3 == 0 else None)

start = time.monotonic()
save(root, 1, 2, 3, 4, keep=2)
seconds = time.monotonic() - start
random, done = np.random.default_rng(0), 4
for _ in range(15):
    before = (root / "latest").read_text()
    process = child(lambda: work(done + 1))
    while (root / "latest").read_text() == before:  # however busy the machine is
        assert os.waitpid(process, os.WNOHANG) == (0, 0)
        time.sleep(0.001)
    time.sleep(random.uniform(0, seconds))
    os.kill(process, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
    done = check(done)
print(done)
""",
    )
    assert int(out[0]) > 15
