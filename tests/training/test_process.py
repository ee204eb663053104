"""Settings of the process."""

import ctypes
from unittest.mock import Mock

import pytest

from guerdon.training import process


@pytest.fixture
def libc(monkeypatch):
    for name in process._MALLOC_OPTIONS:
        monkeypatch.delenv(name, raising=False)
    found = Mock(mallopt=Mock(return_value=1))
    monkeypatch.setattr(ctypes, "CDLL", Mock(return_value=found))
    return found


def test_freed_memory_is_kept(libc):
    process.keep_freed_memory()
    assert [call.args for call in libc.mallopt.call_args_list] == [(-3, 32 << 20), (-1, 256 << 20)]


def test_it_is_kept_by_the_real_library():
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        pytest.skip("not glibc")
    assert libc.mallopt(process._TRIM_THRESHOLD, 256 << 20) == 1


@pytest.mark.parametrize("name", process._MALLOC_OPTIONS)
def test_options_of_the_user_stay(name, libc, monkeypatch):
    monkeypatch.setenv(name, "1")
    process.keep_freed_memory()
    libc.mallopt.assert_not_called()


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_other_systems_are_left_alone(system, libc, monkeypatch):
    monkeypatch.setattr(process.sys, "platform", system)
    process.keep_freed_memory()
    libc.mallopt.assert_not_called()


def test_a_library_without_the_option_is_left_alone(libc):
    del libc.mallopt
    process.keep_freed_memory()
