"""The folder of a run: what lies where, who writes it, and how it ended."""

import json
import math
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

import guerdon
from guerdon.data.files import atomic_file

SUMMARY_KEYS = (
    "env_steps",
    "updates",
    "wall_seconds",
    "fps",
    "eval_return_mean",
    "eval_return_std",
    "best_eval_return_mean",
    "stop_reason",
    "seed",
)

_held: set[Path] = set()  # a system's lock keeps other processes out, but not this one


class RunFolder:
    """The paths of a run. `create` starts a run in it, `reopen` goes on with one.

    Both lock the folder until `close`; the lock of a process that died is free. Used as a context
    manager, the folder is closed at the end.

    Attributes:
        path: The folder.
        config: The config as it was started with, YAML.
        metrics: One JSON object for each call of `Recorder.log`.
        log: What happened, in words.
        summary: How the run ended, JSON.
        info: The command, versions and machine of each start, JSON.
        tensorboard: Event files.
        checkpoints: See `guerdon.training.checkpoints`.
        best: Weights of the best policy.
        reward: What the reward model leaves.
        videos: Recorded episodes.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.log = self.path / "log.txt"
        self.summary = self.path / "summary.json"
        self.info = self.path / "run.json"
        self.tensorboard = self.path / "tb"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.reward = self.path / "reward"
        self.videos = self.path / "videos"
        self._lock: _Lock | None = None

    @classmethod
    def create(
        cls, path: str | Path, config_text: str, command: Sequence[str] | None = None
    ) -> Self:
        """Starts a new run in a folder that holds none yet.

        Args:
            path: The folder; made when it is missing.
            config_text: The whole config, for `config.yaml`.
            command: The words of the command that started the run; this process's own by default.
        """
        folder = cls(path)
        folder.path.mkdir(parents=True, exist_ok=True)
        folder._acquire()
        try:
            if folder.holds_run():
                raise FileExistsError(
                    f"{folder.path} already holds a run: go on with it by `--resume {folder.path}`,"
                    " or name another folder"
                )
            for sub in (folder.tensorboard, folder.checkpoints, folder.reward, folder.videos):
                sub.mkdir(exist_ok=True)
            folder.metrics.touch()
            folder.log.touch()
            folder._write_info([_start(command)])
            folder._write_config(config_text)
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def reopen(
        cls,
        path: str | Path,
        command: Sequence[str] | None = None,
    ) -> Self:
        """Opens the folder of a run, to go on with it; see `go_on`.

        Args:
            path: The folder.
            command: The words of the command that goes on; this process's own by default.
        """
        folder = cls(path)
        if not folder.config.is_file():
            raise FileNotFoundError(f"{folder.path} holds no run to resume: it has no config.yaml")
        folder._acquire()
        try:
            folder._write_info([*folder.starts(), _start(command)])
        except BaseException:
            folder.close()
            raise
        return folder

    def go_on(self, config_text: str) -> None:
        """Makes a config that of the run from here on; it no longer has ended."""
        self._write_config(config_text)
        self.summary.unlink(missing_ok=True)

    def holds_run(self) -> bool:
        """Whether a run was started here; one that was killed before its config was is none."""
        return self.config.exists() or (self.metrics.exists() and self.metrics.stat().st_size > 0)

    def starts(self) -> list[dict[str, Any]]:
        """The command, versions and machine of each start of the run, oldest first."""
        if not self.info.exists():
            return []
        return list(json.loads(self.info.read_bytes())["starts"])

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json`; what is not finite becomes null.

        Args:
            summary: Has all of `SUMMARY_KEYS`; may have more.
        """
        missing = [key for key in SUMMARY_KEYS if key not in summary]
        if missing:
            raise ValueError(f"a summary needs {', '.join(missing)}")
        ordered = {key: summary[key] for key in (*SUMMARY_KEYS, *summary)}
        _write_json(self.summary, {key: finite(value) for key, value in ordered.items()})

    def read_summary(self) -> dict[str, Any]:
        """What `write_summary` wrote."""
        if not self.summary.exists():
            raise FileNotFoundError(f"{self.summary} is missing: the run has not ended")
        return dict(json.loads(self.summary.read_bytes()))

    def close(self) -> None:
        """Lets others write to the folder."""
        if self._lock:
            self._lock.release()
            self._lock = None

    def _acquire(self) -> None:
        self._lock = _Lock(self.path.resolve() / ".lock")

    def _write_config(self, text: str) -> None:
        with atomic_file(self.config) as file:
            file.write(text.encode())

    def _write_info(self, starts: list[dict[str, Any]]) -> None:
        _write_json(self.info, {"starts": starts})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def default_path(name: str, seed: int, root: str | Path = "runs") -> Path:
    """Where a run goes that names no folder: ``runs/<name>/<time>-<seed>``."""
    safe = re.sub(r"[^\w.-]+", "_", name).strip(".") or "run"
    first = path = Path(root) / safe / f"{datetime.now():%Y%m%d-%H%M%S}-{seed}"
    number = 1
    while path.exists():  # another run of this very second
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def finite(value: Any) -> Any:
    """A number for JSON, which has no word for those that are not finite: None."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Lock:
    """A lock that belongs to this process and ends with it.

    It is of POSIX's kind: a child made by fork does not inherit it, so that workers which outlive
    a killed run do not keep the folder locked. Such a lock is lost when the process closes the
    file once, however often it was opened; so the file stays open, and nobody else opens it.
    """

    def __init__(self, path: Path) -> None:
        if path in _held:
            raise RuntimeError(f"{path.parent} is being written by this process already")
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._acquire()
        except BaseException:
            os.close(self._file)
            raise
        _held.add(path)

    def _acquire(self) -> None:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                owner = os.read(self._file, 200).decode(errors="replace").strip() or "another one"
                raise RuntimeError(
                    f"{self._path.parent} is being written by {owner}: "
                    "wait until it ends, or name another folder"
                ) from error
        os.truncate(self._file, 0)
        os.write(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def release(self) -> None:
        _held.discard(self._path)
        os.close(self._file)


def _start(command: Sequence[str] | None) -> dict[str, Any]:
    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv if command is None else command),
        "working_folder": str(Path.cwd()),
        "git": _git_hash(),
        "guerdon": guerdon.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": _gpu_names(),
    }


def _git_hash() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _gpu_names() -> list[str]:
    """The GPUs, if one is in use: to ask for the name of an idle one would start it up."""
    number = torch.cuda.device_count() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
    return [torch.cuda.get_device_name(i) for i in range(number)]


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    match = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return match[1] if match else platform.machine()


def _write_json(path: Path, content: Any) -> None:
    with atomic_file(path) as file:
        file.write(json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
