"""Files of buffers: nothing in them reaches compiled code unchecked, and damage is detected."""

import gc
import json
import os
import shutil
import signal

import numpy as np
import pytest

from guerdon.data import PrioritizedReplayBuffer, ReplayBuffer
from guerdon.data.serializer import manifest_text, read_tree, write_tree
from guerdon.limits import DamagedError
from tests.data.test_storage import in_a_child
from tests.security.attacks import outcome
from tests.security.kinds import OPTIONS, filled, rows, used
from tests.security.mutations import forge, fresh_copy

KINDS = {kind.__name__: kind for kind in (ReplayBuffer, PrioritizedReplayBuffer)}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


# --- saved buffers, with right checksums


def forged(kind, folder, change):
    """Save a buffer whose arrays and description were changed."""
    filled(kind).save(folder)
    state = read_tree(folder, "buffer")
    change(state)
    write_tree(folder, state, "buffer")
    return folder


def put(name, index, value):
    def change(state):
        state["arrays"]["book", name][index] = value

    return change


def replace(path, function):
    def change(state):
        state["arrays"][path] = function(state["arrays"][path])

    return change


def set_meta(key, value):
    def change(state):
        state["meta"][key] = value

    return change


def set_option(key, value):
    def change(state):
        state["meta"]["options"][key] = value

    return change


def grow(state):
    """Make it a buffer of more rows than the tree of priorities has leaves."""
    for name in ("flags", "final"):
        state["arrays"]["book", name] = np.tile(state["arrays"]["book", name], 100)


CHANGES = {
    "next observation after the table": put("final", 3, 10**6),
    "next observation before the table": put("final", 3, -7),
    "two rows with one next observation": put("final", slice(None), 9),
    "negative counter": put("written", 0, -5),
    "huge counter": put("written", 0, 2**62),
    "rows that were not written": put("written", 0, 3),
    "unknown flags": put("flags", 3, 200),
    "flags of another size": replace(("book", "flags"), lambda array: array[:-4]),
    "flags of another dtype": replace(("book", "flags"), lambda array: array.astype("i8")),
    "more rows": grow,
    "no flags": lambda state: state["arrays"].pop(("book", "flags")),
    "fewer counters": replace(("book", "written"), lambda array: array[:1]),
    "a column of another size": replace(("columns", "rew"), lambda array: array[:, :2]),
    "a column of one environment": replace(("columns", "rew"), lambda array: array[:1]),
    "a short table": replace(("finals", "obs_next", "a"), lambda array: array[:3]),
    "a table of another shape": replace(("finals", "obs_next", "a"), lambda array: array[:, :1]),
    "no rewards": lambda state: state["arrays"].pop(("columns", "rew")),
    "another size": set_option("size", 10**15),
    "no environment": set_option("n_envs", 0),
    "another kind of option": set_option("n_envs", "2"),
    "an unknown option": set_option("evil", 1),
    "a fraction of a frame": set_option("stack_num", 2.5),
    "an infinite exponent": set_option("alpha", float("inf")),
    "flags of rewards": replace(("columns", "rew"), lambda array: array != 0),
    "a dictionary of rewards": lambda state: state["arrays"].update(
        {("columns", "rew", "a"): state["arrays"].pop(("columns", "rew"))}
    ),
    "no options": set_meta("options", None),
    "no generator": set_meta("generator", {"bit_generator": "PCG64"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_saved_buffers(kind, change, tmp_path):
    folder = forged(kind, tmp_path / "buffer", CHANGES[change])
    said = outcome(lambda: used(kind.load(folder)))
    assert said.startswith(f"{folder} is damaged: "), said


PRIORITIES = {
    "NaN": put("priorities", 3, np.nan),
    "negative": put("priorities", 3, -1.0),
    "infinite": put("priorities", 3, np.inf),
    "more": replace(("book", "priorities"), lambda array: np.tile(array, 10**4)),
    "fewer": replace(("book", "priorities"), lambda array: array[:2]),
    "integers": replace(("book", "priorities"), lambda array: array.astype(int)),
    "NaN as the largest": set_meta("largest", float("nan")),
    "text as the largest": set_meta("largest", "x"),
    "beta": set_meta("beta", -1.0),
}


@pytest.mark.parametrize("change", PRIORITIES)
def test_saved_priorities(change, tmp_path):
    folder = forged(PrioritizedReplayBuffer, tmp_path / "buffer", PRIORITIES[change])
    said = outcome(lambda: used(PrioritizedReplayBuffer.load(folder)))
    assert said.startswith(f"{folder} is damaged: "), said


def test_a_state_that_is_refused_changes_nothing(kind):
    buffer, other = filled(kind), filled(kind)
    state = other.training_state()
    state["arrays"]["book", "final"][3] = 10**6
    before = buffer[:]
    with pytest.raises(DamagedError, match="its next observations are not where it says"):
        buffer.load_training_state(state)
    assert buffer[:] == before
    used(buffer)


# --- folders of memory-mapped arrays


@pytest.fixture
def closed(kind, tmp_path):
    """A folder whose buffer was deleted."""
    buffer = filled(kind, f"disk:{tmp_path / 'closed'}")
    held = buffer.sample(0)[0]
    del buffer
    gc.collect()
    return tmp_path / "closed", held


@pytest.fixture
def killed(kind, tmp_path):
    """A folder of a process that did not end."""
    buffer = filled(kind, f"disk:{tmp_path / 'open'}")
    shutil.copytree(tmp_path / "open", tmp_path / "killed")
    return tmp_path / "killed", buffer.sample(0)[0]


def opened(kind, folder):
    return kind(**OPTIONS, storage=f"disk:{folder}")


def meta(folder):
    return json.loads((folder / "meta.json").read_text())


def test_closed_folders_have_checksums(kind, closed):
    folder, held = closed
    assert meta(folder)["files"].keys() == {path.name for path in folder.glob("*.bin")}
    again = opened(kind, folder)
    assert again.sample(0)[0] == held
    assert "files" not in meta(folder)  # until it is closed, too
    used(again)
    newest = again.sample(0)[0]
    del again
    gc.collect()
    assert opened(kind, folder).sample(0)[0] == newest


def test_any_change_of_a_closed_folder_is_detected(kind, closed, tmp_path):
    folder, _ = closed
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 1):
            for changed in (
                whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
                whole[:at],
                whole[:at] + b"\0" + whole[at:],
            ):
                fresh_copy(folder, tmp_path / "case")
                (tmp_path / "case" / path.name).write_bytes(changed)
                with pytest.raises(DamagedError, match=f"{path.name} is (damaged|not valid JSON)"):
                    opened(kind, tmp_path / "case")
        fresh_copy(folder, tmp_path / "case")
        (tmp_path / "case" / path.name).unlink()
        with pytest.raises(ValueError, match=r"is missing|has no buffer"):
            opened(kind, tmp_path / "case")


NUMBERS = {
    "final": ("i4", [10**6, -7, 2**31 - 1]),
    "written": ("i8", [-5, 2**62, 3, 2**63 - 1]),
    "flags": ("u1", [200, 64]),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_indices_in_folders(kind, name, ended, request, tmp_path):
    """With right checksums, too: that makes no difference to the compiled code."""
    folder, _ = request.getfixturevalue(ended)
    dtype, numbers = NUMBERS[name]
    for number in numbers:
        for at in (0, 1):
            fresh_copy(folder, tmp_path / "case")
            array = np.memmap(tmp_path / "case" / f"{name}.bin", dtype, "r+")
            array[at] = number
            array.flush()
            forge(tmp_path / "case")
            said = outcome(lambda: used(opened(kind, tmp_path / "case")))
            assert said.startswith(f"{tmp_path / 'case'} is damaged: "), (number, said)


def test_a_row_that_is_marked_but_not_counted_is_dropped(tmp_path):
    """Compiled code may do one before the other, and the process be killed in between."""
    buffer = ReplayBuffer(8, storage=f"disk:{tmp_path / 'open'}")
    for step in range(3):
        buffer.add(obs=step, act=0, rew=0.0, done=False, obs_next=step + 1)
    shutil.copytree(tmp_path / "open", tmp_path / "killed")
    np.memmap(tmp_path / "killed" / "written.bin", "i8", "r+")[0] = 2
    again = ReplayBuffer(8, storage=f"disk:{tmp_path / 'killed'}")
    assert again[:].obs.tolist() == [0, 1]


@pytest.mark.parametrize("change", ["shorter", "longer", "missing", "pipe"])
@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_files_of_another_size(kind, change, ended, request, tmp_path):
    folder, _ = request.getfixturevalue(ended)
    for path in sorted(folder.glob("*.bin")):
        fresh_copy(folder, tmp_path / "case")
        file, size = tmp_path / "case" / path.name, path.stat().st_size
        if change in ("shorter", "longer"):
            os.truncate(file, size // 2 if change == "shorter" else size + 64)
        else:
            file.unlink()
        if change == "pipe":
            os.mkfifo(file)
        forge(tmp_path / "case")
        said = outcome(lambda: used(opened(kind, tmp_path / "case")))
        grown = "obs_next" in path.name and change == "longer"  # such a table may grow
        renewed = path.name == "tree.bin" and change in ("shorter", "missing")  # all are equal then
        if said == "read":
            assert grown or renewed, path.name
        else:
            assert str(tmp_path / "case") in said


@pytest.mark.parametrize("number", [np.nan, -1.0, np.inf])
def test_priorities_in_folders(number, tmp_path):
    buffer = filled(PrioritizedReplayBuffer, f"disk:{tmp_path / 'open'}")
    shutil.copytree(tmp_path / "open", tmp_path / "killed")
    del buffer
    np.memmap(tmp_path / "killed" / "tree.bin", "f8", "r+")[-32] = number
    said = outcome(lambda: used(opened(PrioritizedReplayBuffer, tmp_path / "killed")))
    assert said == f"{tmp_path / 'killed'} is damaged: its priorities are not all 0 or more"


@pytest.mark.parametrize(
    "change",
    [
        {"kind": 3},
        {"options": 3},
        {"leaves": 3},
        {"leaves": [{"path": ["obs"]}]},
        {"leaves": [{"path": ["obs"], "dtype": "O", "shape": []}]},
        {"leaves": [{"path": ["obs"], "dtype": "f4", "shape": [-1]}]},
        {"leaves": [{"path": ["obs"], "dtype": "f4", "shape": [2**62]}]},
        {"leaves": [{"path": [], "dtype": "f4", "shape": []}]},
        {"leaves": []},
        {"files": {"x": 3}},
        {"files": {"../../x": {"sha256": "", "size": 3}}},
    ],
    ids=str,
)
def test_descriptions_in_folders(kind, killed, change):
    folder, _ = killed
    content = {key: value for key, value in meta(folder).items() if key != "sha256"}
    (folder / "meta.json").write_bytes(manifest_text(content | change))
    said = outcome(lambda: used(opened(kind, folder)))
    assert str(folder) in said or (said == "read" and change == {"leaves": []})


def test_a_description_without_a_checksum_is_of_an_earlier_version(kind, killed):
    folder, held = killed
    old = {key: meta(folder)[key] for key in ("kind", "options", "leaves")}
    (folder / "meta.json").write_text(json.dumps(old))
    assert opened(kind, folder).sample(0)[0] == held
    (folder / "meta.json").write_text(json.dumps({**old, "session": "x"}))
    with pytest.raises(DamagedError, match=r"meta\.json is damaged: its checksum is wrong"):
        opened(kind, folder)


def test_who_opened_a_folder_last_closes_it(kind, closed):
    folder, _ = closed
    first, second = opened(kind, folder), opened(kind, folder)
    del first
    gc.collect()
    assert "files" not in meta(folder)
    second.add(rows(50))
    del second
    gc.collect()
    assert "files" in meta(folder)
    opened(kind, folder)


def test_a_fork_closes_nothing(kind, closed):
    folder, _ = closed
    buffers = [opened(kind, folder)]
    child = in_a_child(lambda: (buffers.clear(), gc.collect(), os._exit(7)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert "files" not in meta(folder)
    buffers[0].add(rows(50))


def test_a_process_that_is_killed_leaves_an_open_folder(kind, closed):
    folder, _ = closed

    def run():
        buffer = opened(kind, folder)
        buffer.add(rows(50))
        os.kill(os.getpid(), signal.SIGKILL)

    child = in_a_child(run)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert "files" not in meta(folder)
    again = opened(kind, folder)
    assert again.written.tolist() == [21, 21]


# --- rows that are given to compiled code


def test_rows_outside_of_a_buffer():
    buffer = ReplayBuffer(**OPTIONS)
    for step in range(5):
        buffer.add(rows(step))
    for row in (-1, 24, 10**9, -(10**9)):
        with pytest.raises(IndexError):
            buffer.read(np.array([row]), ("obs",))
        with pytest.raises(IndexError, match="a row is not in the buffer"):
            buffer.segments(np.array([row]), 3)
