"""The run directory: its files, its lock, and the `Recorder` that writes metrics to it."""

import hashlib
import itertools
import json
import logging
import math
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

import guerdon
from guerdon.config import sources
from guerdon.config.errors import as_path
from guerdon.data.files import atomic_file, check_plain, naming, open_plain
from guerdon.extras import require
from guerdon.limits import read_lines, read_text
from guerdon.training.display import Display, WorkerRow
from guerdon.training.metric_files import AppendedFile, TensorBoardFile

FORMAT = 1
"""Format of the files of a run that have none of their own, in ``run.json``."""
_held: set[Path] = set()  # a POSIX lock keeps other processes out, but not this one


class RunFolder:
    """Paths of a run. `create` starts a run, `reopen` resumes one.

    Both lock the folder until `close` or the end of ``with``; a process that dies frees its lock.
    Inside the folder no links are followed; the folder itself may be reached through one.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = as_path(path)
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"  # one JSON object for each `Recorder.log`
        self.log = self.path / "log.txt"  # messages
        self.summary = self.path / "summary.json"  # result of the run
        self.info = self.path / "run.json"  # command, versions and machine of each start
        self.journal = self.path / "outputs.jsonl"  # what it writes outside the folder
        self.lock = self.path / ".lock"
        self.tensorboard = self.path / "tb"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"  # weights of the best policy
        self.reward = self.path / "reward"  # the reward on its own
        self.videos = self.path / "videos"
        self.data = self.path / sources.DATA  # copies of demonstrations and preferences
        self.alarms = self.path / "alarms"  # transitions to look at
        self.roles = self.path / "log"  # logs of the workers of a parallel run
        self.served = self.path / "serve.txt"  # log of its served reward
        for own in [each for each in vars(self).values() if each != self.path]:
            for each in (own, *own.rglob("*")):
                check_plain(each)
        self._lock: tuple[Any, Path] | None = None

    @classmethod
    def create(
        cls,
        path: str | Path,
        config_text: str,
        prepare: Callable[[Path], object] = lambda _: None,
    ) -> Self:
        """Start a run in a folder that holds none.

        Args:
            path: The folder; created if missing.
            config_text: Text of the config. It is written last: then there is a run to resume.
            prepare: Called with the folder before that.
        """
        folder = cls(path)
        folder.path.mkdir(parents=True, exist_ok=True)
        with naming(folder.path), folder._locked():
            if folder.holds_run():
                raise FileExistsError(
                    f"{folder.path} already holds a run: resume it with `--resume {folder.path}`, "
                    "or name another folder"
                )
            for sub in (folder.tensorboard, folder.checkpoints, folder.reward, folder.videos):
                sub.mkdir(exist_ok=True)
            folder.metrics.touch()
            folder.log.touch()
            write_json(folder.info, {"format": FORMAT, "starts": [_start()], "saved": []})
            prepare(folder.path)
            folder.write_config(config_text)
        return folder

    @classmethod
    def reopen(cls, path: str | Path) -> Self:
        """Open the folder of a run to resume it; see `write_config`."""
        folder = cls(path)
        folder.existing_config()
        with naming(folder.path), folder._locked():
            write_json(folder.info, {**folder._info(), "starts": [*folder.starts(), _start()]})
        return folder

    def existing_config(self) -> Path:
        """Return the path of the config; raise an error if this is not a run directory."""
        if not self.config.is_file():
            raise FileNotFoundError(
                f"{self.path} is not a run directory: it has no config.yaml (runs are in "
                "runs/NAME/TIME-SEED, or where run.dir put them)"
            )
        version = self._info().get("format", FORMAT)
        if not isinstance(version, int) or version > FORMAT:
            raise ValueError(
                f"{self.path} has format {version} and this guerdon reads up to {FORMAT}: upgrade "
                "guerdon"
            )
        return self.config

    def holds_run(self) -> bool:
        """Whether a run was started here; not if it was killed before its config was written."""
        return self.config.exists() or (self.metrics.exists() and self.metrics.stat().st_size > 0)

    def starts(self) -> list[dict[str, Any]]:
        """Return the command, versions and machine of each start of the run, oldest first."""
        starts = self._info().get("starts")
        found = starts if isinstance(starts, list) else []
        return [start for start in found if isinstance(start, dict)]

    @property
    def saved(self) -> list[str] | None:
        """Names of checkpoints that the run has had: ``latest``, ``scheduled``; None if unknown."""
        saved = self._info().get("saved")
        return [str(name) for name in saved] if isinstance(saved, list) else None

    @saved.setter
    def saved(self, names: Collection[str]) -> None:
        if sorted(names) != self.saved:
            write_json(self.info, {**self._info(), "saved": sorted(names)})

    def has_trained(self) -> bool:
        """Whether the run has left more than its start."""
        files = (self.metrics, self.summary, self.journal)
        folders = (self.checkpoints, self.best, self.reward)
        return any(each.exists() and each.stat().st_size for each in files) or any(
            each.is_dir() and any(each.iterdir()) for each in folders
        )

    def _info(self) -> dict[str, Any]:
        return read_json(self.info) or {}

    def write_config(self, text: str) -> None:
        """Write the config, and remove the summary of an earlier end."""
        with atomic_file(self.config) as file:
            file.write(text.encode())
        self.summary.unlink(missing_ok=True)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``; numbers that are not finite become null."""
        write_json(self.summary, {key: finite(value) for key, value in summary.items()})

    def remove(self, others: Collection[Path] = (), keep: bool = False) -> None:
        """Remove the run.

        Args:
            others: Files and folders in it that are not of the run.
            keep: Whether to keep the folder itself.
        """
        for path in set(self.path.iterdir()).difference(others):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not keep:
            self.path.rmdir()

    def close(self) -> None:
        """Release the lock."""
        if self._lock:
            file, path = self._lock
            self._lock = None
            _held.discard(path)
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder; an error releases it.

        A POSIX lock is not inherited by a fork, so that workers that outlive a killed run do not
        keep it. It is lost when the process closes the file once, however often it was opened.
        """
        path = self.lock.resolve()
        if path in _held:
            raise RuntimeError(f"{self.path} is being written by this process already")
        file = open_plain(self.lock, "a+b")
        try:
            if os.name == "posix":
                import fcntl

                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            owner = file.read(200).decode(errors="replace").strip() or "another process"
            file.close()
            raise RuntimeError(
                f"{self.path} is being written by {owner}: wait until it ends, or name another "
                "folder"
            ) from error
        self._lock = file, path
        _held.add(path)
        try:
            if os.fstat(file.fileno()).st_nlink == 1:  # else it is another file, too
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                file.flush()
            yield
        except BaseException:
            self.close()
            raise


def make_folder(name: str, seed: int | str, root: str | Path = "runs") -> Path:
    """Make the folder of a run that names none: ``runs/<name>/<time>-<seed>``.

    Of runs that start in the same second, each gets its own, with a number at the end.
    """
    safe = re.sub(r"[^\w.-]+", "_", name).strip(".").encode()[:200].decode(errors="ignore") or "run"
    first = path = Path(root) / safe / f"{datetime.now():%Y%m%d-%H%M%S}-{seed}"
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(2):
        try:
            path.mkdir()
            break
        except FileExistsError:
            path = first.with_name(f"{first.name}-{number}")
    return path


def _start() -> dict[str, Any]:
    failed, git_hash = subprocess.getstatusoutput("git rev-parse HEAD")
    # The name of a GPU that is not in use is not asked for: that would initialize it.
    n_gpus = torch.cuda.device_count() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    cpu = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "working_folder": str(Path.cwd()),
        "git": None if failed else git_hash,
        "guerdon": guerdon.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "system": platform.platform(),
        "cpu": cpu[1] if cpu else platform.processor() or platform.machine(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(n_gpus)],
    }


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    with atomic_file(path) as file:
        file.write(json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON file with an object; None if there is none, with a warning if it is damaged."""
    if not path.exists():
        return None
    try:
        content = json.loads(read_text(path), parse_constant=int)  # refuses NaN, which is no JSON
        if isinstance(content, dict):
            return content
        reason: object = f"it holds a {type(content).__name__}, not an object"
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
    warnings.warn(f"{path} is damaged and is ignored: {reason}", stacklevel=2)
    return None


def finite(value: Any) -> Any:
    """Return a number for JSON: None if it is not finite."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Recorder:
    """Writes metrics to ``metrics.jsonl``, to TensorBoard, to a display, and to Weights & Biases.

    Every line is written when `log` returns, so that a killed process loses at most the line it was
    writing. A resumed run keeps the lines up to its checkpoint: log metrics of a checkpoint's step
    before saving it. If a file cannot be written, a warning says so once. Warnings that guerdon
    logs, such as of restarted environments, are in ``log.txt``, too.

    Args:
        folder: The folder of the run.
        display: Shows the metrics; closed with the recorder.
        resume_step: Step of the checkpoint that the run resumes from; None for a new run.
        wandb: Name of the run for Weights & Biases; None to leave them out.
    """

    def __init__(
        self,
        folder: RunFolder,
        display: Display,
        *,
        resume_step: int | None = None,
        wandb: str | None = None,
    ) -> None:
        self._display = display
        self._log = AppendedFile(folder.log, self.warn)
        before = 0.0
        if resume_step is not None:
            before, damaged = _rewind(folder.metrics, resume_step)
            if damaged:
                self.warn(f"{folder.metrics} has {damaged} damaged lines, which were removed")
        self._start = time.monotonic() - before
        self._metrics = AppendedFile(folder.metrics, self.warn)
        self._folder, self._purge = folder, None if resume_step is None else resume_step + 1
        self._wandb: Any = None if wandb is None else _start_wandb(folder, wandb)
        self._handler = WarningHandler(self.text)
        logging.getLogger("guerdon").addHandler(self._handler)

    @cached_property
    def _tensorboard(self) -> TensorBoardFile:
        """The writer, which is slow to import: made for the first metrics."""
        return TensorBoardFile(self._folder.tensorboard, self._purge, self.warn)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of a step.

        Args:
            step: Environment steps taken.
            metrics: Numbers, or arrays or tensors of one number, by name. Those that are not finite
                become null in ``metrics.jsonl``.
        """
        values = {name: _number(name, value) for name, value in metrics.items()}
        line = {"step": step, "time": round(time.monotonic() - self._start, 3)}
        if not line.keys().isdisjoint(values):
            raise ValueError("no metric can be called 'step' or 'time': every line has these")
        line |= {name: finite(value) for name, value in values.items()}
        self._metrics.append(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._tensorboard.log(step, values)
        if self._wandb is not None:
            self._wandb.log({"step": step, **values})
        self._display.log(step, values)

    def progress(self, step: int) -> None:
        """Update the display between two calls of `log`; cheap."""
        self._display.progress(step)

    def watch(self, rows: Callable[[], Sequence[WorkerRow]]) -> None:
        """Show what the workers of the run do."""
        self._display.watch(rows)

    def interrupt(self) -> None:
        """Show that the user has asked the run to stop; may be called by a signal handler."""
        self._display.interrupt()

    def text(self, line: str) -> None:
        """Add a line to ``log.txt``, with the time of day, and show it."""
        self._log_line(line)
        self._display.text(line)

    def warn(self, sentence: str) -> None:
        """Warn, also where there is no display, and add the warning to ``log.txt``."""
        self._log_line(f"Warning: {sentence}")
        warnings.warn(sentence, stacklevel=2)

    def _log_line(self, line: str) -> None:
        text = f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}\n"
        self._log.append(text.encode(errors="backslashreplace"))

    def sync(self) -> None:
        """Flush all metrics to the disk, before a checkpoint that comes after them."""
        self._metrics.sync()

    def close(self) -> None:
        """Close the files and the display; may be called again."""
        logging.getLogger("guerdon").removeHandler(self._handler)
        for each in (self._display, self._metrics, self._log):
            each.close()
        if "_tensorboard" in vars(self):
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WarningHandler(logging.Handler):
    """Passes warnings of guerdon's loggers on."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self._tell(f"Warning: {record.getMessage()}")


def _start_wandb(folder: RunFolder, name: str) -> Any:
    """Start a run of Weights & Biases, or continue it when the run is resumed."""
    wandb: Any = require("wandb", "wandb")
    check_plain(folder.path / "wandb")
    try:
        started = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "guerdon"),
            id=hashlib.sha256(json.dumps(folder.starts()[0]).encode()).hexdigest()[:16],
            resume="allow",
            name=name,
            dir=folder.path,
            config=sources.read(folder.path),
            settings=wandb.Settings(console="off"),  # which would disturb the display
        )
    except wandb.errors.Error as error:
        raise ValueError(
            f"'run.wandb' is true, but Weights & Biases does not start ({error}): run `wandb "
            f"login`, or set WANDB_MODE=offline, and continue with --resume {folder.path}"
        ) from error
    started.define_metric("*", step_metric="step")
    return started


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        if value.ndim and value.shape != (1,):
            raise ValueError(f"metric {name!r} has shape {tuple(value.shape)}, not one number")
        value = value.item()
    if not isinstance(value, int | float):
        raise TypeError(f"metric {name!r} is a {type(value).__name__}, not a number")
    return int(value) if isinstance(value, bool) else value


def _rewind(path: Path, step: int) -> tuple[float, int]:
    """Drop lines after a step and damaged ones.

    Returns:
        The time of the last line that stays, and the number of damaged lines, without the last one,
        which a killed run may not have finished.
    """
    last, damaged = 0.0, 0
    path.touch()
    check_plain(path)
    with atomic_file(path) as new:
        for line in read_lines(path):
            try:
                content = json.loads(line)
                seconds, keep = float(content["time"]), content["step"] <= step
                if not math.isfinite(seconds):
                    raise ValueError
            except (ValueError, KeyError, TypeError, RecursionError):
                damaged += line.endswith(b"\n")
                continue
            if keep and line.endswith(b"\n"):
                new.write(line)
                last = seconds
    return last, damaged
