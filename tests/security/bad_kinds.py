"""Kinds of files that are read wrongly, each in another way."""

import os
from pathlib import Path

import numpy as np

from tests.security.mutations import Kind

GOOD = b"0123456789" * 9


def make(folder: Path) -> None:
    (folder / "a").write_bytes(GOOD)


def is_good(folder: Path) -> bool:
    return (folder / "a").is_file() and (folder / "a").read_bytes() == GOOD


def crash(folder: Path) -> None:
    if not is_good(folder):
        os.abort()


def hang(folder: Path) -> None:
    while not is_good(folder):
        pass


def allocate(folder: Path) -> None:
    np.ones(1 if is_good(folder) else 1 << 30)


def misread(folder: Path) -> bool:
    return is_good(folder)


def fail(folder: Path) -> None:
    {True: 0}[is_good(folder)]


def refuse(folder: Path) -> None:
    if not is_good(folder):
        raise FileNotFoundError(2, "is damaged", str(folder))


FAILING = {
    "crash": Kind(make, crash),
    "hang": Kind(make, hang),
    "allocate": Kind(make, allocate),
    "misread": Kind(make, misread, checked=True),
    "fail": Kind(make, fail),
}
KINDS = {**FAILING, "refuse": Kind(make, refuse, checked=True)}
