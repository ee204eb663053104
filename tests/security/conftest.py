"""Disks that are full, or cannot be written."""

import subprocess

import pytest


def mount(*arguments) -> bool:
    command = ["mount", *map(str, arguments)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:  # not on every system
        return False


class Disk:
    """A small disk in memory, which needs the rights to mount it."""

    def __init__(self, path):
        self.path = path
        path.mkdir()
        if not mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", path):
            pytest.skip("disks cannot be mounted here")

    def set(self, option):
        """Set a mount option: ``size=64k``, ``ro``."""
        assert mount("-o", f"remount,{option}", self.path)

    def fill(self):
        """Use up all space."""
        self.set("size=4k")


@pytest.fixture
def disk(tmp_path):
    found = Disk(tmp_path / "disk")
    yield found
    subprocess.run(["umount", "-l", str(found.path)], check=True)


@pytest.fixture
def full(disk):
    """A folder on a full disk."""
    disk.fill()
    (disk.path / "filled").write_bytes(b"x" * 4096)
    return disk.path


@pytest.fixture
def read_only(disk):
    """A folder on a disk that cannot be written, not even by root."""
    disk.set("ro")
    return disk.path


@pytest.fixture
def file(tmp_path):
    """A file in the place of a folder."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file"


@pytest.fixture
def long(tmp_path):
    """A folder whose name is longer than file systems allow."""
    return tmp_path / ("x" * 300)
