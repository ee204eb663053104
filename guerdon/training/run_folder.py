"""The run directory: its files, its lock, and the `Recorder` that writes metrics to it."""

import hashlib
import json
import math
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

import guerdon
from guerdon.config import sources
from guerdon.data.files import atomic_file, check_plain, open_plain
from guerdon.extras import require
from guerdon.training.display import Display

_held: set[Path] = set()  # a POSIX lock keeps other processes out, but not this one


class RunFolder:
    """Paths of a run. `create` starts a run, `reopen` resumes one.

    Both lock the folder until `close` or the end of ``with``; a process that dies frees its lock.
    Inside the folder no links are followed; the folder itself may be reached through one.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
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
        for own in [each for each in vars(self).values() if each != self.path]:
            for each in (own, *own.rglob("*")):
                check_plain(each)
        self._lock: tuple[Any, Path] | None = None

    @classmethod
    def create(cls, path: str | Path, config_text: str) -> Self:
        """Start a run in a folder that holds none, with the text of its config."""
        folder = cls(path)
        folder.path.mkdir(parents=True, exist_ok=True)
        with folder._locked():
            if folder.holds_run():
                raise FileExistsError(
                    f"{folder.path} already holds a run: resume it with `--resume {folder.path}`, "
                    "or name another folder"
                )
            for sub in (folder.tensorboard, folder.checkpoints, folder.reward, folder.videos):
                sub.mkdir(exist_ok=True)
            folder.metrics.touch()
            folder.log.touch()
            write_json(folder.info, {"starts": [_start()]})
            folder.write_config(config_text)
        return folder

    @classmethod
    def reopen(cls, path: str | Path) -> Self:
        """Open the folder of a run to resume it; see `write_config`."""
        folder = cls(path)
        folder.existing_config()
        with folder._locked():
            write_json(folder.info, {**folder._info(), "starts": [*folder.starts(), _start()]})
        return folder

    def existing_config(self) -> Path:
        """Return the path of the config; raise an error if this is not a run directory."""
        if not self.config.is_file():
            raise FileNotFoundError(
                f"{self.path} is not a run directory: it has no config.yaml (runs are in "
                "runs/NAME/TIME-SEED, or where run.dir put them)"
            )
        return self.config

    def holds_run(self) -> bool:
        """Whether a run was started here; not if it was killed before its config was written."""
        return self.config.exists() or (self.metrics.exists() and self.metrics.stat().st_size > 0)

    def starts(self) -> list[dict[str, Any]]:
        """Return the command, versions and machine of each start of the run, oldest first."""
        return list(self._info().get("starts", []))

    @property
    def saved(self) -> list[str]:
        """Names of checkpoints that the run has had: ``latest``, ``scheduled``."""
        return list(self._info().get("saved", []))

    @saved.setter
    def saved(self, names: Collection[str]) -> None:
        if sorted(names) != self.saved:
            write_json(self.info, {**self._info(), "saved": sorted(names)})

    def _info(self) -> dict[str, Any]:
        return dict(json.loads(self.info.read_bytes())) if self.info.exists() else {}

    def write_config(self, text: str) -> None:
        """Write the config, and remove the summary of an earlier end."""
        with atomic_file(self.config) as file:
            file.write(text.encode())
        self.summary.unlink(missing_ok=True)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``; numbers that are not finite become null."""
        write_json(self.summary, {key: finite(value) for key, value in summary.items()})

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


def default_path(name: str, seed: int | str, root: str | Path = "runs") -> Path:
    """Return the folder of a run that names none: ``runs/<name>/<time>-<seed>``."""
    safe = re.sub(r"[^\w.-]+", "_", name).strip(".") or "run"
    first = path = Path(root) / safe / f"{datetime.now():%Y%m%d-%H%M%S}-{seed}"
    number = 1
    while path.exists():  # another run of this second
        number += 1
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
    """Write a JSON file as a whole."""
    with atomic_file(path) as file:
        file.write(json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")


def finite(value: Any) -> Any:
    """Return a number for JSON: None if it is not finite."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Recorder:
    """Writes metrics to ``metrics.jsonl``, to TensorBoard, to a display, and to Weights & Biases.

    Every line is written when `log` returns, so that a killed process loses at most the line it was
    writing. A resumed run keeps the lines up to its checkpoint: log metrics of a checkpoint's step
    before saving it.

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
        before = 0.0 if resume_step is None else _rewind(folder.metrics, resume_step)
        self._start = time.monotonic() - before
        self._metrics = open_plain(folder.metrics, "ab")
        self._log = open_plain(folder.log, "ab")
        self._folder, self._purge = folder, None if resume_step is None else resume_step + 1
        self._wandb: Any = None if wandb is None else _start_wandb(folder, wandb)

    @cached_property
    def _tensorboard(self) -> Any:
        """The writer, which is slow to import: made for the first metrics."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(self._folder.tensorboard, purge_step=self._purge, flush_secs=10)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record metrics of one moment.

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
        self._metrics.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._metrics.flush()
        for name, value in values.items():
            self._tensorboard.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log({"step": step, **values})
        self._display.log(step, values)

    def progress(self, step: int) -> None:
        """Update the display between two calls of `log`; cheap."""
        self._display.progress(step)

    def interrupt(self) -> None:
        """Show that the user has asked the run to stop; may be called by a signal handler."""
        self._display.interrupt()

    def text(self, line: str) -> None:
        """Add a line to ``log.txt``, with the time of day, and show it."""
        self._log.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}\n".encode())
        self._log.flush()
        self._display.text(line)

    def sync(self) -> None:
        """Flush all metrics to the disk, before a checkpoint that comes after them."""
        os.fsync(self._metrics.fileno())
        if "_tensorboard" in vars(self):
            self._tensorboard.flush()

    def close(self) -> None:
        """Close the files and the display; may be called again."""
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


def _start_wandb(folder: RunFolder, name: str) -> Any:
    """Start a run of Weights & Biases, or continue it when the run is resumed."""
    wandb: Any = require("wandb", "wandb")
    try:
        started = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "guerdon"),
            id=hashlib.sha256(json.dumps(folder.starts()[0]).encode()).hexdigest()[:16],
            resume="allow",
            name=name,
            dir=folder.path,
            config=sources.read(folder.config),
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


def _rewind(path: Path, step: int) -> float:
    """Drop lines after a step and torn ones; return the time of the last that stays."""
    last = 0.0
    with open_plain(path, "rb") as old, atomic_file(path) as new:
        for line in old:
            try:
                content = json.loads(line)
                keep = content["step"] <= step and line.endswith(b"\n")
            except (ValueError, KeyError, TypeError):
                continue
            if keep:
                new.write(line)
                last = content["time"]
    return last
