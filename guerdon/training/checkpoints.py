"""Checkpoints: the whole state of a run, written completely or not at all, and checked when read.

A checkpoint is a folder ``step_N`` with one safetensors file for each part of the state, the rest
of the state in ``state.json``, and ``manifest.json``, which names every file with its checksum.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import warnings
import zlib
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import safetensors
import torch

import guerdon
from guerdon.data.files import atomic_file, sync_folder
from guerdon.training.state_files import decode_part, encode_part

FORMAT = "guerdon checkpoint"
VERSION = 1
MARKS = ("best", "scheduled")

_MANIFEST, _STATE = "manifest.json", "state.json"
_STEP = re.compile(r"step_(0|[1-9][0-9]*)")
_CHUNK = 1 << 22


def save_checkpoint(
    root: str | Path, step: int, state: dict[str, Any], *, keep: int, mark: str | None = None
) -> Path:
    """Write one checkpoint, then remove old ones.

    The folder gets its name only when everything in it is on the disk; a save that fails changes
    nothing. One process at a time may save to a root. The file ``latest`` names the newest
    checkpoint, and further marks name others. They are text: symbolic links need special rights on
    some systems, and many tools that copy or pack a folder would turn each into a second copy.

    Args:
        root: The folder of all checkpoints of a run; made when it is missing.
        step: How far the run is. A checkpoint of the same step is replaced.
        state: Its keys name the parts. Below them: dictionaries, lists, tuples, tensors, numpy
            arrays and numbers, and what JSON holds. Tensors are written from any device.
        keep: Number of checkpoints to keep: the newest ones up to `step`; marked ones are kept
            besides. Those after `step` are removed: the run was resumed from an earlier one.
        mark: ``best`` or ``scheduled``: a file of that name names this checkpoint from now on.

    Returns:
        The folder of the checkpoint.
    """
    if keep < 1 or step < 0:
        raise ValueError(f"keep must be at least 1 and step at least 0, not {keep} and {step}")
    root = Path(root)
    final = root / f"step_{step}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _tidy(root)
        temporary = _temporary_name(final)
        try:
            _write(temporary, step, state)
            _put_in_place(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if mark is not None:  # first: a process killed in between resumes from the one before
            _write_pointer(root, mark, final.name)
        _write_pointer(root, "latest", final.name)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            error.errno or errno.EIO,
            f"cannot save the checkpoint {final}: {reason}; those saved before are untouched",
        ) from error
    _prune(root, step, keep)
    return final


def load_checkpoint(
    path: str | Path,
    which: str | int = "latest",
    parts: Collection[str] | None = None,
) -> tuple[dict[str, Any], int]:
    """Reads a checkpoint; tensors come to the CPU.

    One that is damaged is passed over with a warning, and the newest good one before it is used.

    Args:
        path: The folder of all checkpoints; or one of them, or a file such as ``latest`` that
            names one, and then `which` does not matter.
        which: The one to read: ``latest``, ``best``, ``scheduled``, or that of a step.
        parts: The keys of the state to read; all by default.

    Returns:
        The state, and the step it was saved at.
    """
    root = path = Path(path)
    if match := _STEP.fullmatch(path.name):
        root, which = path.parent, int(match[1])
    elif path.is_file():
        root, which = path.parent, path.name
    steps = checkpoint_steps(root)
    if not steps:
        raise FileNotFoundError(f"there is no checkpoint in {root}")
    wanted = which if isinstance(which, int) else _pointed_step(root, which, steps)
    if isinstance(which, int) and which not in steps:
        raise FileNotFoundError(f"there is no step_{which} in {root}, only {_listed(steps)}")
    for step in reversed([step for step in steps if step <= wanted]):
        try:
            return _read(_folder(root, step), parts)
        except _DamagedError as error:
            warnings.warn(f"{error}; the checkpoint before it is used", stacklevel=2)
    raise ValueError(
        f"no checkpoint up to step {wanted} in {root} is whole (there are {_listed(steps)}): "
        "name another step, or start a new run"
    )


def checkpoint_steps(root: str | Path) -> list[int]:
    """The steps of all checkpoints in a folder, in order."""
    root = Path(root)
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    plain = (name.removeprefix(".").removesuffix(".replaced") for name in names)
    return sorted({int(match[1]) for name in plain if (match := _STEP.fullmatch(name))})


class _DamagedError(Exception):
    """A checkpoint is not what was written."""


# --- folders


def _put_in_place(temporary: Path, final: Path) -> None:
    """Gives a complete folder its name; a killed process leaves the old one, at least aside."""
    aside = _aside(final)
    try:
        if final.exists():
            final.rename(aside)
        temporary.rename(final)
    except BaseException:
        if aside.exists() and not final.exists():
            aside.rename(final)
        raise
    sync_folder(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.replaced")


def _folder(root: Path, step: int) -> Path:
    folder = root / f"step_{step}"
    return folder if folder.exists() else _aside(folder)


def _temporary_name(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")


def _tidy(root: Path) -> None:
    """Clears away what killed processes left."""
    for aside in root.glob(".step_*.replaced"):
        final = root / aside.name.removeprefix(".").removesuffix(".replaced")
        if final.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(final)
    for leftover in root.glob(".*.tmp"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def _prune(root: Path, step: int, keep: int) -> None:
    marks = [mark for mark in MARKS if (root / mark).exists()]
    marked = {_read_pointer(root, mark) for mark in marks}
    if None in marked:
        return  # it is not known which one must stay
    steps = checkpoint_steps(root)
    kept = {*[number for number in steps if number <= step][-keep:], *marked}
    for number in steps:
        if number not in kept:
            folder = root / f"step_{number}"
            doomed = _temporary_name(folder)  # never half a checkpoint under a good name
            with suppress(OSError):  # the next save tries again
                folder.rename(doomed)
                shutil.rmtree(doomed)


def _write_pointer(root: Path, name: str, target: str) -> None:
    with atomic_file(root / name) as file:
        file.write(_pointer_text(target).encode())


def _read_pointer(root: Path, name: str) -> int | None:
    """The step that a pointer names, or None when there is none or it is damaged."""
    try:
        text = (root / name).read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    match = _STEP.fullmatch(text.partition("\n")[0])
    return int(match[1]) if match and text == _pointer_text(match[0]) else None


def _pointer_text(target: str) -> str:
    return f"{target}\ncrc32 {zlib.crc32(target.encode()):08x}\n"


def _pointed_step(root: Path, name: str, steps: list[int]) -> int:
    if name not in ("latest", *MARKS):
        raise ValueError(f"a checkpoint is 'latest', 'best', 'scheduled' or a step, not {name!r}")
    step = _read_pointer(root, name)
    if step is None:
        if (root / name).exists():
            warnings.warn(f"{root / name} is damaged; the newest is used", stacklevel=3)
        elif name in MARKS:
            raise FileNotFoundError(f"no checkpoint in {root} is marked {name!r}: use the latest")
        return steps[-1]
    if step not in steps:
        warnings.warn(
            f"{root / name} names step_{step}, which is not there; the one before it is used",
            stacklevel=3,
        )
    return step


def _listed(steps: list[int]) -> str:
    return ", ".join(f"step_{step}" for step in steps)


# --- files


def _write(folder: Path, step: int, state: dict[str, Any]) -> None:
    folder.mkdir()
    files, parts = {}, {}
    for key, part in state.items():
        if type(key) is not str:
            raise TypeError(f"the parts of a checkpoint are named by strings, not by {key!r}")
        parts[key], pieces = encode_part(key, part)
        if pieces:
            name = _part_file(key)
            files[name] = _write_file(folder / name, pieces)
    text = json.dumps({"step": step, "state": parts}, allow_nan=False)
    files[_STATE] = _write_file(folder / _STATE, [text.encode()])
    versions = {"guerdon": guerdon.__version__, "torch": torch.__version__, "numpy": np.__version__}
    manifest = {"format": FORMAT, "version": VERSION, "step": step, **versions, "files": files}
    _write_file(folder / _MANIFEST, [_manifest_text(manifest)])
    sync_folder(folder)


def _read(folder: Path, parts: Collection[str] | None) -> tuple[dict[str, Any], int]:
    try:
        files = _read_manifest(folder)["files"]
        _check_file(folder, _STATE, files[_STATE])
        content = json.loads((folder / _STATE).read_bytes())
        state = {}
        for key, part in content["state"].items():
            if parts is not None and key not in parts:
                continue
            name = _part_file(key)
            if name in files:
                _check_file(folder, name, files[name])
            state[key] = decode_part(part, folder / name if name in files else None)
        return state, content["step"]
    except OSError as error:
        raise _DamagedError(f"{error.filename or folder}: {error.strerror or error}") from error
    except (
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,
        safetensors.SafetensorError,
    ) as error:
        raise _DamagedError(f"{folder} cannot be read: {error!r}") from error


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    if not path.exists():
        raise _DamagedError(f"{path} is missing")
    data = path.read_bytes()
    try:
        manifest = json.loads(data)
        whole = _manifest_text({k: v for k, v in manifest.items() if k != "sha256"}) == data
    except (ValueError, AttributeError):
        whole = False
    if not whole:
        raise _DamagedError(f"{path} is damaged")
    if manifest["format"] != FORMAT:
        raise ValueError(f"{folder} is not a checkpoint of guerdon")
    if manifest["version"] > VERSION:
        raise ValueError(
            f"{folder} has format {manifest['version']} and this guerdon reads up to {VERSION}: "
            f"it was written by guerdon {manifest['guerdon']}, upgrade to that"
        )
    for name in manifest["files"]:
        if name in ("", ".", "..") or any(mark in name for mark in "/\\:\0"):
            raise ValueError(f"{path} names a file outside of its folder: {name!r}; do not use it")
    return dict(manifest)


def _manifest_text(manifest: dict[str, Any]) -> bytes:
    """The manifest in the one way it is written, with its own checksum."""
    digest = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    return json.dumps({**manifest, "sha256": digest}, indent=1).encode()


def _check_file(folder: Path, name: str, entry: dict[str, Any]) -> None:
    path = folder / name
    if not path.is_file():
        raise _DamagedError(f"{path} is missing")
    size = path.stat().st_size
    if size != entry["size"]:
        raise _DamagedError(f"{path} is damaged: it has {size} bytes instead of {entry['size']}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
            raise _DamagedError(f"{path} is damaged: its checksum is wrong")


def _write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Writes a file to the disk, and returns what the manifest says about it."""
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for piece in pieces:
            for start in range(0, len(piece), _CHUNK):  # hashed while it is still in the cache
                chunk = piece[start : start + _CHUNK]
                file.write(chunk)
                digest.update(chunk)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"sha256": digest.hexdigest(), "size": size}


def _part_file(key: str) -> str:
    return f"{quote(key, safe='')}.safetensors"
