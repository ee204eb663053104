"""Storages, and that nothing half written is ever read, whatever stops a write."""

import contextlib
import errno
import os
import pickle
import re
import shutil
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import guerdon.data
from guerdon.data import Batch, PrioritizedReplayBuffer, ReplayBuffer, kernels

HOME = str(Path(guerdon.data.__file__).parent)


def transition(step, n_envs, nested=False, broken=False, width=2):
    """A step of environments of which everything can be told from the action."""
    numbers = step * n_envs + np.arange(n_envs)
    terminated, truncated, after = outcome(numbers, n_envs, broken)

    def observation(values):
        frames = np.repeat(values[:, None], width, axis=1).astype("f4")
        return {"a": frames, "b": {"c": values}} if nested else frames

    return {
        "obs": observation(numbers),
        "act": numbers,
        "rew": numbers / 2,
        "terminated": terminated,
        "truncated": truncated,
        "obs_next": observation(after),
    }


def outcome(numbers, n_envs, broken):
    """The ends, and what is observed next; broken episodes have no end, and are not continued."""
    terminated, truncated = numbers % 5 == 4, numbers % 7 == 6
    last = terminated | truncated | breaks(numbers, broken)
    return terminated, truncated, np.where(last, -numbers, numbers + n_envs)


def breaks(numbers, broken):
    return broken & (numbers % 3 == 1)


def add(buffer, step, broken=False, **fields):
    """Adds a step, as `transition` makes it, and cuts the episodes that break off with it."""
    n = buffer.n_envs
    buffer.add(transition(step, n, broken=broken, **fields), range(n))
    cut = np.flatnonzero(breaks(step * n + np.arange(n), broken))
    if len(cut):
        buffer.cut(cut)


def check_truth(buffer, broken=False):
    """Checks that every row is one that was given and follows the row that it followed.

    Returns:
        The step that all environments have written last, or -1.
    """
    n, index = buffer.n_envs, buffer.stored_rows()
    assert len(buffer) == len(index)
    if not len(index):
        return -1
    batch = buffer[index]
    numbers = batch.act
    terminated, truncated, after = outcome(numbers, n, broken)
    np.testing.assert_array_equal(batch.rew, numbers / 2)
    np.testing.assert_array_equal(batch.terminated, terminated)
    np.testing.assert_array_equal(batch.truncated, truncated)
    for obs, expected in ((batch.obs, numbers), (batch.obs_next, after)):
        for leaf in (obs.a, obs.b.c) if isinstance(obs, Batch) else (obs,):
            rows = leaf.reshape(len(leaf), -1)
            np.testing.assert_array_equal(rows, np.repeat(expected[:, None], rows.shape[1], axis=1))
    for step, neighbours in ((n, buffer.next(index)), (-n, buffer.prev(index))):
        moved = neighbours != index
        np.testing.assert_array_equal(buffer[neighbours].act[moved], numbers[moved] + step)
    by_env = [np.sort(numbers[index // buffer.capacity == env]) for env in range(n)]
    for env, mine in enumerate(by_env):
        assert mine.tolist() == list(range(mine[0], mine[-1] + 1, n))
        assert mine[0] % n == env
    return min(mine[-1] for mine in by_env) // n


@pytest.mark.parametrize(
    "special",
    [
        lambda buffer, fields: buffer.add(fields, [0, 1]),
        lambda buffer, fields: buffer.add(Batch(fields)),
        lambda buffer, fields: buffer.add(Batch(fields)[[1, 0]], [1, 0]),
        lambda buffer, fields: [buffer.add(Batch(fields)[[env]], [env]) for env in (1, 0)],
        lambda buffer, fields: buffer.add({**fields, "act": fields["act"].tolist()}),
        lambda buffer, fields: buffer.add({**fields, "done": fields["obs_next"][:, 0] <= 0}),
    ],
)  # fmt: skip
def test_plain_steps_and_special_ones_mix(special):
    for start in range(13):
        buffer = ReplayBuffer(10, n_envs=2)
        for step in range(start):
            buffer.add(**transition(step, 2))
        special(buffer, transition(start, 2))
        for step in range(start + 1, start + 4):
            buffer.add(**transition(step, 2))
        assert check_truth(buffer) == start + 3


@pytest.mark.parametrize(
    "look",
    [
        len,
        repr,
        lambda buffer: buffer.obs_next,
        lambda buffer: buffer.sample(3),
        lambda buffer: buffer.unfinished_index(),
        lambda buffer: buffer.training_state(),
    ],
)
def test_looking_at_a_buffer_changes_nothing(look):
    looked_at, other = ReplayBuffer(10, n_envs=2), ReplayBuffer(10, n_envs=2)
    for step in range(25):
        rows = [buffer.add(**transition(step, 2)) for buffer in (looked_at, other)]
        np.testing.assert_equal(rows[0], rows[1])
        look(looked_at)
    assert repr(looked_at) == repr(other)
    assert check_truth(looked_at) == 24


# --- interruptions


class Interrupting(np.ndarray):
    """A column that lets so many writes pass, over all columns, before it is interrupted."""

    left = 10**9

    def __setitem__(self, index, value):
        if Interrupting.left == 0:
            raise KeyboardInterrupt
        Interrupting.left -= 1
        super().__setitem__(index, value)


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("writes", range(7))
def test_an_interrupt_between_the_fields(n_envs, writes, monkeypatch):
    for start in range(3, 12):
        buffer = ReplayBuffer(3 * n_envs, n_envs=n_envs)
        for step in range(start):
            add(buffer, step, nested=True)
        for table in (buffer._columns, buffer._finals):
            table.update({path: column.view(Interrupting) for path, column in table.items()})
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(Interrupting, "left", writes)
            add(buffer, start, nested=True)
        newest = check_truth(buffer)
        assert newest == start - (writes < 6)  # act, rew, two leaves here and two next
        assert len(buffer) == 3 * n_envs - (writes < 6) * n_envs  # what was to be overwritten
        for step in range(newest + 1, newest + 4):
            add(buffer, step, nested=True)
        assert check_truth(buffer) == newest + 3
        assert len(buffer) == 3 * n_envs


def at_every_line(do, call):
    """Calls a function, and before each line of the package that it runs, another one."""

    def local(_frame, event, _argument):
        if event == "line":
            do()
        return local

    def start(frame, _event, _argument):
        return local if frame.f_code.co_filename.startswith(HOME) else None

    before = sys.gettrace()
    sys.settrace(start)
    try:
        call()
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("nested", [False, True])
def test_an_interrupt_at_any_line(kind, nested):
    """The row is there or it is not; at most those that it overwrites are lost with it."""
    options = {"nested": nested, "broken": True}
    for start in (0, 3, 4, 6, 8):
        line, stopped = 0, True
        while stopped:
            line += 1
            buffer = kind(6, n_envs=2)
            for step in range(start):
                add(buffer, step, **options)
            lines = iter(range(1, line))

            def interrupt(lines=lines):
                if next(lines, None) is None:
                    raise KeyboardInterrupt

            stopped = False
            try:
                at_every_line(interrupt, lambda b=buffer, s=start: add(b, s, **options))
            except KeyboardInterrupt:
                stopped = True
            cut_broken(buffer)
            newest = check_truth(buffer, broken=True)
            assert newest in (start - 1, start)
            assert len(buffer) >= min(2 * start, 4)
            if len(buffer):
                assert set(buffer.sample(50)[1]) <= set(buffer.stored_rows())
            if kind is PrioritizedReplayBuffer:
                assert buffer.priorities[buffer.stored_rows()].all()
            for step in range(newest + 1, newest + 4):
                add(buffer, step, **options)
            assert check_truth(buffer, broken=True) == newest + 3


def cut_broken(buffer):
    """Cuts what an interrupt of `add` left uncut, as its caller would."""
    rows = buffer.newest()
    if len(rows):
        buffer.cut(rows[breaks(buffer[rows].act, True)] // buffer.capacity)


# --- files of a process that is killed


CASES = {
    "one leaf": (ReplayBuffer, {"size": 7}, {"broken": True}),
    "many environments": (ReplayBuffer, {"size": 300, "n_envs": 30}, {}),
    "several leaves": (ReplayBuffer, {"size": 12, "n_envs": 3}, {"nested": True}),
    "large rows": (ReplayBuffer, {"size": 20, "n_envs": 2}, {"width": 20_000}),
    "priorities": (PrioritizedReplayBuffer, {"size": 16, "n_envs": 2}, {"broken": True}),
}


def add_forever(make, fields, progress):
    """What the child does: continues where the files end, and counts the steps that are in."""
    buffer = make()
    step = check_truth(buffer, fields.get("broken", False)) + 1
    while True:
        add(buffer, step, **fields)
        progress[0] = step
        step += 1


def in_a_child(function, *arguments):
    """Runs a function that never returns in another process, and returns its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child has one thread and needs no more
        child = os.fork()
    if child:
        return child
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("case", CASES)
def test_a_process_that_is_killed(case, tmp_path):
    kind, options, fields = CASES[case]
    n_envs, broken = options.get("n_envs", 1), fields.get("broken", False)
    slots = options["size"] // n_envs
    generator = np.random.default_rng(0)
    progress = np.memmap(tmp_path / "progress", np.int64, "w+", shape=1)
    progress[0] = newest = -1

    def make():
        return kind(**options, storage=f"disk:{tmp_path / 'buffer'}")

    for step in range(2):
        add(make(), step, **fields)  # compiles what is needed
    for _ in range(12):
        child = in_a_child(add_forever, make, fields, progress)
        while progress[0] <= newest:
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        buffer = make()
        newest = check_truth(buffer, broken)
        assert progress[0] <= newest <= progress[0] + 1
        # of each environment, the row that was being written is lost with the one in its place
        assert len(buffer) >= min(newest, slots - 1) * n_envs
        assert set(buffer.sample(99)[1]) <= set(buffer.stored_rows())
        assert len(buffer.unfinished_index()) <= len(buffer)
        progress[0] = newest


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.filterwarnings("ignore:overflow")  # where compiled code only wraps around
@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"broken": True}, range(1, 7)),
        ({"nested": True}, range(2, 5)),
        pytest.param(
            {"nested": True, "broken": True},
            range(4, 5),
        ),
    ],
)
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_kill_at_any_line(kind, fields, steps, tmp_path, monkeypatch):
    """Whenever the files change, they hold a good buffer; compiled loops are run as Python."""
    for name, value in list(vars(kernels).items()):
        if hasattr(value, "py_func"):
            monkeypatch.setattr(kernels, name, value.py_func)
    options = {"n_envs": 2, "size": 6}
    seen = {}
    lowest = annotated = 0

    def look():
        nonlocal seen, lowest
        files = files_in(tmp_path / "buffer")
        if files != seen:
            seen = files
            (tmp_path / "copy").mkdir()
            for name, content in files.items():
                (tmp_path / "copy" / name).write_bytes(content)
            again = kind(**options, storage=f"disk:{tmp_path / 'copy'}")
            newest = check_truth(again, fields.get("broken", False))
            if "annotations" in again.field_names():  # then rows without them are dropped
                assert again[:].annotations.note.tolist() == again[:].act.tolist()
                assert newest <= step
                assert len(again) >= min(annotated, 2) * 2
            else:
                assert lowest <= newest <= step
                assert len(again) >= min(newest, 2) * 2
                lowest = newest
            shutil.rmtree(tmp_path / "copy")

    def add_and_annotate():
        nonlocal annotated
        add(buffer, step, **fields)
        rows = buffer.newest()
        buffer.annotate(rows, {"note": buffer[rows].act})
        annotated += 1

    buffer = kind(**options, storage=f"disk:{tmp_path / 'buffer'}")
    for step in range(steps.stop):
        if step in steps:
            at_every_line(look, add_and_annotate)
        else:
            add(buffer, step, **fields)


@pytest.mark.parametrize("fields", [{"nested": True}, {"width": 7}])
def test_a_kill_while_a_state_is_loaded(tmp_path, fields):
    """At any line, a folder holds the old buffer, an empty one, or the new one."""
    other = ReplayBuffer(6, n_envs=2)
    for step in range(5):
        add(other, step, **fields)
    buffer = ReplayBuffer(6, n_envs=2, storage=f"disk:{tmp_path / 'buffer'}")
    for step in range(4):
        add(buffer, step, width=3)
    seen, sizes = {}, set()

    def look():
        nonlocal seen
        files = files_in(tmp_path / "buffer")
        if files != seen:
            seen = files
            shutil.copytree(tmp_path / "buffer", tmp_path / "copy")
            again = ReplayBuffer(6, n_envs=2, storage=f"disk:{tmp_path / 'copy'}")
            sizes.add(len(again))
            check_truth(again)
            repr(again)  # reads all of it
            shutil.rmtree(tmp_path / "copy")

    at_every_line(look, lambda: buffer.load_training_state(other.training_state()))
    assert sizes == {0, 6}
    assert check_truth(ReplayBuffer(6, n_envs=2, storage=f"disk:{tmp_path / 'buffer'}")) == 4


# --- folders


def test_a_folder_holds_the_buffer(tmp_path):
    storage = f"disk:{tmp_path / 'deep' / 'folder'}"
    buffer = ReplayBuffer(12, n_envs=2, stack_num=2, storage=storage)
    for step in range(9):
        buffer.add(**transition(step, 2, nested=True))
    again = ReplayBuffer(12, n_envs=2, stack_num=2, storage=storage)
    assert repr(again) == repr(buffer)
    assert again.sample(0)[0] == buffer.sample(0)[0]
    rows = again.add(**transition(9, 2, nested=True))
    assert again.prev(rows).tolist() == rows.tolist()  # the episodes were cut
    assert len(again) == 12


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("size", 8),
        ("n_envs", 3),
        ("stack_num", 2),
        ("ignore_obs_next", True),
        ("save_only_last_obs", True),
        ("sample_avail", True),
    ],
)
def test_a_folder_is_opened_with_the_options_it_was_made_with(tmp_path, option, value):
    options = {"size": 6, "n_envs": 2}
    buffer = ReplayBuffer(**options, storage=f"disk:{tmp_path}")
    buffer.add(**transition(0, 2))
    held = buffer.options()[option]
    message = re.escape(f"the buffer in {tmp_path} was made with {option}={held!r}, not {value!r}")
    before = files_in(tmp_path)
    with pytest.raises(ValueError, match=message):
        ReplayBuffer(**{**options, option: value}, storage=f"disk:{tmp_path}")
    assert files_in(tmp_path) == before
    with pytest.raises(ValueError, match="is a ReplayBuffer, not a PrioritizedReplayBuffer"):
        PrioritizedReplayBuffer(**options, storage=f"disk:{tmp_path}")


def test_a_folder_of_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and has no buffer: choose a new folder"):
        ReplayBuffer(6, storage=f"disk:{tmp_path}")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_killed_process_left_of_its_first_moment_is_no_hindrance(tmp_path):
    (tmp_path / ".meta.json.0a1b2c3d.tmp").write_text("{")
    ReplayBuffer(6, n_envs=2, storage=f"disk:{tmp_path}").add(**transition(0, 2))
    assert len(ReplayBuffer(6, n_envs=2, storage=f"disk:{tmp_path}")) == 2


def test_keys_of_info_that_came_later_are_there_after_reopening(tmp_path):
    def make():
        return ReplayBuffer(8, n_envs=2, storage=f"disk:{tmp_path}")

    make().add(**transition(0, 2))
    make().add(**transition(1, 2), info={"lives": np.array([3, 4])})
    make().add(**transition(2, 2), info={"deep": {"score": np.array([1.5, 2.5])}})
    buffer = make()
    assert buffer.info.lives.tolist() == [[0, 3, 0, 0], [0, 4, 0, 0]]
    nan = np.nan
    np.testing.assert_array_equal(buffer[:].info.deep.score, [nan, nan, 1.5, nan, nan, 2.5])
    assert check_truth(buffer) == 2


def test_annotations_are_there_after_reopening(tmp_path):
    def make():
        return ReplayBuffer(8, n_envs=2, storage=f"disk:{tmp_path}")

    buffer = make()
    for step in range(3):
        buffer.add(**transition(step, 2))
    buffer.annotate(buffer.stored_rows(), {"deep": {"note": buffer[:].act * 2}})
    again = make()
    assert again[:].annotations.deep.note.tolist() == (again[:].act * 2).tolist()
    rows = again.add(**transition(3, 2))
    again.annotate(rows, {"deep": {"note": np.array([12, 14])}})
    assert make()[:].annotations.deep.note.tolist() == (again[:].act * 2).tolist()
    again.load_training_state(buffer.training_state())
    assert make()[:].annotations.deep.note.tolist() == (buffer[:].act * 2).tolist()


def test_fields_named_like_the_bookkeeping(tmp_path):
    """Or like one another, with a dot in a key."""
    names = ("written", "flags", "final", "book", "meta", "rows.written", "a/b")
    extra = {name: np.full(2, i) for i, name in enumerate(names)}
    extra["info"] = {"a.b": np.array([1, 2]), "a": {"b": np.array([3, 4])}, "ü": np.ones(2)}
    buffer = ReplayBuffer(100, 2, storage=f"disk:{tmp_path}")
    for step in range(300):
        buffer.add({**transition(step, 2), **extra})
    again = ReplayBuffer(100, 2, storage=f"disk:{tmp_path}")
    assert check_truth(again) == check_truth(buffer) == 299
    for i, name in enumerate(names):
        assert (again[:][name] == i).all()
    assert again[0].info.to_dict() == {"a.b": 1, "a": {"b": 3}, "ü": 1.0}


def test_only_done_is_remembered(tmp_path):
    buffer = ReplayBuffer(6, storage=f"disk:{tmp_path}")
    buffer.add(obs=0, act=0, rew=0, done=True, obs_next=1)
    again = ReplayBuffer(6, storage=f"disk:{tmp_path}")
    assert repr(again) == repr(buffer)
    assert "done: " in repr(again)


def test_the_table_of_final_observations_grows_in_its_files(tmp_path):
    buffer = ReplayBuffer(400, 2, storage=f"disk:{tmp_path}")
    for step in range(150):
        add(buffer, step, nested=True, broken=True)
    again = ReplayBuffer(400, 2, storage=f"disk:{tmp_path}")
    assert check_truth(again, broken=True) == 149
    for step in range(150, 600):
        add(again, step, nested=True, broken=True)
    assert check_truth(ReplayBuffer(400, 2, storage=f"disk:{tmp_path}"), broken=True) == 599


def test_a_process_that_was_killed_while_that_table_grew(tmp_path):
    """Its leaves grow one after the other; here the last of them did not come to it."""
    buffer = ReplayBuffer(400, 2, storage=f"disk:{tmp_path}")
    for step in range(150):
        add(buffer, step, nested=True, broken=True)
    file = tmp_path / "rows.obs_next.b.c.bin"
    size = file.stat().st_size
    buffer._make_room_for_finals(int(buffer._free[0]) + 1)
    assert file.stat().st_size > size
    os.truncate(file, size)  # the buffer is not deleted, which would close the folder
    again = ReplayBuffer(400, 2, storage=f"disk:{tmp_path}")
    assert check_truth(again, broken=True) == 149
    for step in range(150, 600):
        add(again, step, nested=True, broken=True)
    assert check_truth(again, broken=True) == 599


def test_priorities_are_in_the_files_too(tmp_path):
    buffer = PrioritizedReplayBuffer(12, n_envs=2, storage=f"disk:{tmp_path}")
    for step in range(8):
        buffer.add(**transition(step, 2))
    buffer.discard([3])
    buffer.update_weight([0, 1], [5.0, 0.1])
    again = PrioritizedReplayBuffer(12, n_envs=2, storage=f"disk:{tmp_path}")
    assert np.flatnonzero(again.priorities).tolist() == again.stored_rows().tolist()
    assert again.priorities.tolist() == buffer.priorities.tolist()
    assert again._tree[1] == pytest.approx(again.priorities.sum())
    assert 3 not in again.sample(200)[1]


def test_a_buffer_is_loaded_into_a_folder_that_holds_another(tmp_path):
    storage = f"disk:{tmp_path / 'folder'}"
    buffer = ReplayBuffer(6, n_envs=2, storage=storage)
    for step in range(5):
        buffer.add(**transition(step, 2, nested=True), extra=np.zeros((2, 9)))
    other = ReplayBuffer(6, n_envs=2)
    for step in range(4):
        other.add(**transition(step, 2))
    buffer.load_training_state(other.training_state())
    for held in (buffer, ReplayBuffer(6, n_envs=2, storage=storage)):
        assert repr(held) == repr(other)
        assert check_truth(held) == 3


def test_emptied_files_are_filled_again(tmp_path):
    buffer = ReplayBuffer(6, n_envs=2, storage=f"disk:{tmp_path}")
    for step in range(5):
        buffer.add(**transition(step, 2))
    buffer.reset()
    again = ReplayBuffer(6, n_envs=2, storage=f"disk:{tmp_path}")
    assert len(again) == 0
    again.add(**transition(0, 2))
    assert check_truth(ReplayBuffer(6, n_envs=2, storage=f"disk:{tmp_path}")) == 0


@pytest.fixture
def full_disk(monkeypatch):
    """A function that lets that many more files be made or grown before the disk is full."""

    def fill(files):
        def reserve(file, start, size):
            nonlocal files
            files -= 1
            if files < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            os.ftruncate(file, max(start + size, os.fstat(file).st_size))

        monkeypatch.setattr(os, "posix_fallocate", reserve)

    return fill


MESSAGE = "no space for .* GiB in .*: free some space, or make the buffer smaller"


def test_a_full_disk_is_known_when_a_buffer_is_made(tmp_path, full_disk):
    full_disk(0)
    with pytest.raises(OSError, match=MESSAGE) as caught:
        ReplayBuffer(10**6, storage=f"disk:{tmp_path}")
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("files", range(8))
def test_a_full_disk_with_the_first_step(tmp_path, full_disk, files):
    buffer = ReplayBuffer(6, n_envs=2, storage=f"disk:{tmp_path}")
    full_disk(files)
    try:
        buffer.add(**transition(0, 2, nested=True))
    except OSError as error:
        assert re.search(MESSAGE, str(error))  # noqa: PT017 - where there is room, there is none
        assert repr(buffer) == "ReplayBuffer()"
        full_disk(99)
        buffer.add(**transition(0, 2, nested=True))
    assert check_truth(ReplayBuffer(6, n_envs=2, storage=f"disk:{tmp_path}")) == 0


@pytest.mark.parametrize("files", range(2))
def test_a_full_disk_while_the_table_of_final_observations_grows(tmp_path, full_disk, files):
    buffer = ReplayBuffer(400, 2, storage=f"disk:{tmp_path}")
    step = 0
    while buffer._free[0] >= 2:
        add(buffer, step, nested=True, broken=True)
        step += 1
    before = repr(buffer)
    full_disk(files)
    with pytest.raises(OSError, match=MESSAGE):
        add(buffer, step, nested=True, broken=True)
    assert repr(buffer) == before
    full_disk(99)
    for later in range(step, step + 44):
        add(buffer, later, nested=True, broken=True)
    assert check_truth(buffer, broken=True) == step + 43
    again = ReplayBuffer(400, 2, storage=f"disk:{tmp_path}")
    assert check_truth(again, broken=True) == step + 43


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux")
def test_files_do_not_take_memory(tmp_path):
    """Pages of files can be dropped at any time; what counts is memory that has no file."""

    def memory():
        return int(re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])

    images = np.zeros((8, 84, 84, 4), np.uint8)
    buffer = ReplayBuffer(4096, n_envs=8, storage=f"disk:{tmp_path}")
    zeros, no = np.zeros(8), np.zeros(8, bool)
    for step in range(512):
        if step == 2:  # now all is compiled
            before = memory()
        buffer.add(obs=images, act=zeros, rew=zeros, terminated=no, truncated=no, obs_next=images)
        batch, _ = buffer.sample(8)
    assert batch.obs.shape == (8, 84, 84, 4)
    assert buffer.nbytes > 110 << 20
    assert memory() - before < 30 << 10


# --- tensors


@pytest.mark.parametrize("storage", ["cpu", torch.device("cpu")])
def test_tensors_on_a_device(storage):
    buffer = ReplayBuffer(12, n_envs=2, stack_num=2, storage=storage)
    for step in range(9):
        buffer.add(**transition(step, 2, nested=True), info={"x": torch.ones(2, dtype=torch.int16)})
    for batch in (buffer[:], buffer.sample(5)[0], buffer.sample(5, length=3)[0]):
        batch.apply(lambda leaf: isinstance(leaf, torch.Tensor) or pytest.fail(f"{type(leaf)}"))
    row = buffer[0]
    assert (row.obs.a.dtype, row.obs.b.c.dtype, row.rew.dtype) == (
        torch.float32, torch.int64, torch.float64
    )  # fmt: skip
    assert (row.done.dtype, row.info.x.dtype) == (torch.bool, torch.int16)
    assert buffer.obs.a.device == torch.device("cpu")
    assert buffer.obs.a.shape == (2, 6, 2)
    assert isinstance(buffer.sample(5)[1], np.ndarray)


def test_tensors_hold_the_truth():
    buffer = ReplayBuffer(12, n_envs=2, storage="cpu")
    plain = ReplayBuffer(12, n_envs=2)
    for step in range(20):
        for each in (buffer, plain):
            add(each, step, nested=True, broken=True)
        assert buffer[:].to_numpy() == plain[:]
        assert buffer.unfinished_index().tolist() == plain.unfinished_index().tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
def test_rewards_of_any_dtype_on_a_device(dtype):
    buffer = ReplayBuffer(4, storage="cpu")
    for i in range(3):
        rew = torch.tensor(2, dtype=dtype)
        buffer.add(obs=i, act=i, rew=rew, done=i == 2, obs_next=i + 1)
    assert buffer.rew.dtype == (dtype if dtype.is_floating_point else torch.float64)
    assert buffer[:].rew.tolist() == [2.0] * 3


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_buffer_moves_between_storages(kind, tmp_path):
    buffer = kind(12, n_envs=2, seed=1, storage="cpu")
    for step in range(9):
        add(buffer, step, nested=True, broken=True)
    expected = buffer[:].to_numpy()
    for number, storage in enumerate(["memory", f"disk:{tmp_path / 'folder'}", "cpu", "memory"]):
        buffer.save(tmp_path / f"saved_{number}")
        buffer = kind.load(tmp_path / f"saved_{number}", storage=storage)
        assert buffer[:].to_numpy() == expected
        assert isinstance(buffer.act, torch.Tensor if storage == "cpu" else np.ndarray)
    assert check_truth(buffer, broken=True) == 8
    again = pickle.loads(pickle.dumps(buffer))
    assert again.sample(9)[1].tolist() == buffer.sample(9)[1].tolist()


def test_a_storage_of_ones_own():
    class Counting(guerdon.data.storage.MemoryStorage):
        made = 0

        def array(self, name, shape, dtype):
            self.made += 1
            return super().array(name, shape, dtype)

    storage = Counting()
    buffer = ReplayBuffer(6, n_envs=2, storage=storage)
    buffer.add(**transition(0, 2))
    assert storage.made == 4  # obs, act, rew, obs_next
