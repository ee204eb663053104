import os
import stat

import pytest

from guerdon.data.files import atomic_file, atomic_folder, set_aside


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_atomic_file_appears_whole(tmp_path):
    path = tmp_path / "file"
    with atomic_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_atomic_file_leaves_the_old_file_when_writing_fails(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail():
        with atomic_file(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_atomic_file_has_ordinary_permissions(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    with atomic_file(tmp_path / "atomic"):
        pass
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_atomic_file_names_a_missing_folder(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"),
        atomic_file(tmp_path / "nowhere" / "file"),
    ):
        pass


def write_folder(path, text, error=None):
    with atomic_folder(path) as folder:
        (folder / "file").write_text(text)
        if error:
            raise error


def make_device(path):
    """Makes a device like /dev/full; only root may."""
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 7))


@pytest.mark.parametrize("make", [os.mkfifo, make_device])
def test_atomic_file_does_not_replace_a_device(make, tmp_path):
    try:
        make(tmp_path / "a")
    except PermissionError:
        pytest.skip("only root may make a device")
    before = (tmp_path / "a").stat().st_mode
    with pytest.raises(OSError, match="not a regular file"), atomic_file(tmp_path / "a") as file:
        file.write(b"text")
    assert (tmp_path / "a").stat().st_mode == before
    assert [*tmp_path.iterdir()] == [tmp_path / "a"]


def test_atomic_folder_replaces_a_folder_as_a_whole(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "older").write_text("")
    write_folder(path, "new")
    assert names(tmp_path) == ["folder"]
    assert names(path) == ["file"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_atomic_folder_leaves_the_old_folder_when_writing_fails(tmp_path, error):
    path = tmp_path / "folder"
    write_folder(path, "old")
    with pytest.raises(error):
        write_folder(path, "new", error)
    assert (path / "file").read_text() == "old"
    assert names(tmp_path) == ["folder"]


def test_atomic_folder_restores_what_a_killed_process_had_set_aside(tmp_path):
    path = tmp_path / "folder"
    write_folder(path, "old")
    path.rename(set_aside(path))
    with pytest.raises(RuntimeError):
        write_folder(path, "new", RuntimeError)
    assert (path / "file").read_text() == "old"
    assert names(tmp_path) == ["folder"]
