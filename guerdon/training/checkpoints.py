"""Checkpoints: the state of a run, written atomically, verified when read, and rotated."""

import errno
import re
import warnings
import zlib
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from guerdon.data.files import atomic_file, check_plain, remove_folder, remove_temporary, restore
from guerdon.data.serializer import DamagedError, read_tree, write_tree
from guerdon.limits import read_text, reading

MARKS = ("best", "scheduled")

_KIND = "checkpoint"
_STEP = re.compile(r"step_(0|[1-9][0-9]*)")


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
    check_plain(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        _tidy(root)
        write_tree(final, state, _KIND)
        # `latest` last: a process killed in between resumes from the one before.
        for name in ("latest",) if mark is None else (mark, "latest"):
            _write_pointer(root, name, step)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            error.errno or errno.EIO,
            f"cannot save the checkpoint {final}: {reason}; earlier checkpoints are intact",
        ) from error
    _prune(root, step, keep)
    return final


def load_checkpoint(
    path: str | Path,
    which: str | int = "latest",
    parts: Collection[str] | None = None,
    *,
    strict: bool = False,
) -> tuple[dict[str, Any], int]:
    """Read a checkpoint; tensors come to the CPU.

    One that is damaged is passed over with a warning, and the newest good one before it is used.

    Args:
        path: The folder of all checkpoints; or one of them, or a file such as ``latest`` that
            names one, and then `which` does not matter.
        which: The one to read: ``latest``, ``best``, ``scheduled``, or that of a step.
        parts: The keys of the state to read; all by default.
        strict: Whether it is an error if another one would have to be read.

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
        raise FileNotFoundError(f"there is no checkpoint of a run in {root}")
    listed = ", ".join(f"step_{step}" for step in steps)
    if isinstance(which, int) and which not in steps:
        raise FileNotFoundError(f"there is no step_{which} in {root}, only {listed}")
    wanted = which if isinstance(which, int) else _pointed_step(root, which, steps, strict)
    for step in reversed([step for step in steps if step <= wanted]):
        try:
            return read_tree(root / f"step_{step}", _KIND, parts), step
        except DamagedError as error:
            _fall_back(str(error), "the checkpoint before it is used", strict)
    raise ValueError(
        f"no checkpoint up to step {wanted} in {root} is intact (there are {listed}): "
        "name another step, or start a new run"
    )


def load_weights(
    run_dir: str | Path, which: str | int | None = None
) -> tuple[dict[str, Tensor], int]:
    """Read the weights of the policy of a run; its code is not needed.

    Args:
        run_dir: Directory of the run.
        which: ``best``, ``latest`` or a step; by default ``best`` if there is one.

    Returns:
        The weights by name, and the step they were saved at.
    """
    best, all_of_it = Path(run_dir) / "best", Path(run_dir) / "checkpoints"
    for folder in (best, all_of_it):
        check_plain(folder)
    evaluated = bool(checkpoint_steps(best))
    if which is None:
        which = "best" if evaluated else "latest"
    if which == "best" and not evaluated:
        raise FileNotFoundError(
            f"{run_dir} has no best policy, since it was not evaluated: use the latest one"
        )
    folder, given = (best, "latest") if which == "best" else (all_of_it, which)
    state, step = load_checkpoint(folder, given, parts=("policy", "weights"))
    with reading(folder):
        weights = dict(state["weights"] if which == "best" else state["policy"]["module"])
        if not all(isinstance(x, Tensor) and bool(x.isfinite().all()) for x in weights.values()):
            raise ValueError("it has something else in the place of weights")
    return weights, step


def drop_later(root: str | Path, step: int) -> None:
    """Make the checkpoint of a step the newest one: `latest` names it, later ones are removed.

    Args:
        root: The folder of all checkpoints.
        step: The step; -1 removes all.
    """
    root = Path(root)
    if step < 0:
        (root / "latest").unlink(missing_ok=True)
    else:
        _write_pointer(root, "latest", step)  # first, so that it never names a removed one
    _prune(root, step, keep=len(checkpoint_steps(root)))


def checkpoint_steps(root: str | Path) -> list[int]:
    """Return the steps of all checkpoints in a folder, in order."""
    root = Path(root)
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    plain = (name.removeprefix(".").removesuffix(".replaced") for name in names)
    return sorted({int(match[1]) for name in plain if (match := _STEP.fullmatch(name))})


def _tidy(root: Path) -> None:
    """Remove temporary files of killed processes."""
    for aside in root.glob(".step_*.replaced"):
        restore(root / aside.name.removeprefix(".").removesuffix(".replaced"))
    remove_temporary(root)


def _prune(root: Path, step: int, keep: int) -> None:
    marked = {_read_pointer(root, mark) for mark in MARKS if (root / mark).exists()}
    if None in marked:
        return  # `latest` is damaged, so it is unknown which to keep
    steps = checkpoint_steps(root)
    kept = {*[number for number in steps if number <= step][-keep:], *marked}
    for number in steps:
        if number not in kept:
            with suppress(OSError):  # the next save tries again
                remove_folder(root / f"step_{number}")


def _write_pointer(root: Path, name: str, step: int) -> None:
    with atomic_file(root / name) as file:
        file.write(_pointer_text(f"step_{step}").encode())


def _pointer_text(target: str) -> str:
    return f"{target}\ncrc32 {zlib.crc32(target.encode()):08x}\n"


def _read_pointer(root: Path, name: str) -> int | None:
    """Return the step that a pointer names; None if there is none or it is damaged."""
    try:
        text = read_text(root / name)
    except (OSError, DamagedError):
        return None
    match = _STEP.fullmatch(text.partition("\n")[0])
    return int(match[1]) if match and text == _pointer_text(match[0]) else None


def _pointed_step(root: Path, name: str, steps: list[int], strict: bool) -> int:
    if name not in ("latest", *MARKS):
        raise ValueError(f"a checkpoint is 'latest', 'best', 'scheduled' or a step, not {name!r}")
    step = _read_pointer(root, name)
    if step is None:
        if (root / name).exists():
            _fall_back(f"{root / name} is damaged", "the newest is used", strict)
        elif name in MARKS:
            raise FileNotFoundError(f"no checkpoint in {root} is marked {name!r}: use the latest")
        return steps[-1]
    if step not in steps:
        problem = f"{root / name} names step_{step}, which is not there"
        _fall_back(problem, "the one before it is used", strict)
    return step


def _fall_back(problem: str, instead: str, strict: bool) -> None:
    if strict:
        raise DamagedError(problem)
    warnings.warn(f"{problem}; {instead}", stacklevel=4)
