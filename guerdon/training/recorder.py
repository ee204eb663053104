"""Metrics of a run on their way to its files and to the screen."""

import json
import time
from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from guerdon.data.files import atomic_file
from guerdon.training.display import Display
from guerdon.training.run_folder import RunFolder, finite


class Recorder:
    """Writes metrics to `metrics.jsonl`, to TensorBoard and to a display.

    Every line of metrics is with the system when `log` returns, so that a killed process loses at
    most the line it was writing. A run that is resumed keeps the lines up to its checkpoint: log
    what belongs to a checkpoint's step before saving it.

    Args:
        folder: The folder of the run.
        display: Shows the metrics; closed with the recorder.
        resume_step: The step of the checkpoint from which the run goes on; None for a new run.
    """

    def __init__(
        self, folder: RunFolder, display: Display, *, resume_step: int | None = None
    ) -> None:
        self._display = display
        before = 0.0 if resume_step is None else _rewind(folder.metrics, resume_step)
        self._start = time.monotonic() - before
        self._metrics = folder.metrics.open("ab")
        self._log = folder.log.open("ab")
        self._tensorboard = _EventWriter(folder.tensorboard, resume_step)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Records metrics of one moment.

        Args:
            step: How many environment steps were taken.
            metrics: Numbers, or arrays or tensors of one number, by name. What is not finite
                becomes null in `metrics.jsonl`.
        """
        values = {name: _number(name, value) for name, value in metrics.items()}
        line = {"step": step, "time": round(time.monotonic() - self._start, 3)}
        if not line.keys().isdisjoint(values):
            raise ValueError("no metric can be called 'step' or 'time': every line has these")
        line |= {name: finite(value) for name, value in values.items()}
        self._metrics.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._metrics.flush()
        self._tensorboard.write(step, values)
        self._display.log(step, values)

    def progress(self, step: int) -> None:
        """Moves the display on between two calls of `log`; cheap."""
        self._display.progress(step)

    def text(self, line: str) -> None:
        """Adds a line to `log.txt`, with the time of day, and shows it."""
        self._log.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}\n".encode())
        self._log.flush()
        self._display.text(line)

    def close(self) -> None:
        """Closes the files and the display; may be called again."""
        self._display.close()
        self._tensorboard.close()
        self._metrics.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _EventWriter:
    """TensorBoard's own writer: all metrics of a moment are one event."""

    def __init__(self, folder: Path, resume_step: int | None) -> None:
        # Imported here, since it takes 0.15 s; and not torch's, which writes an event per scalar.
        self._events = import_module("tensorboard.compat.proto.event_pb2")
        self._summaries = import_module("tensorboard.compat.proto.summary_pb2")
        writer = import_module("tensorboard.summary.writer.event_file_writer")
        self._writer = writer.EventFileWriter(str(folder), flush_secs=10)
        if resume_step is not None:  # TensorBoard then hides what an earlier file has from here on
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._add(self._events.Event(step=resume_step + 1, session_log=start))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        value = self._summaries.Summary.Value
        scalars = [value(tag=name, simple_value=number) for name, number in values.items()]
        self._add(self._events.Event(step=step, summary=self._summaries.Summary(value=scalars)))

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._writer.add_event(event)

    def close(self) -> None:
        self._writer.close()


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        if value.ndim and value.shape != (1,):
            raise ValueError(f"metric {name!r} has shape {tuple(value.shape)}, not one number")
        value = value.item()
    if not isinstance(value, int | float):
        raise TypeError(f"metric {name!r} is a {type(value).__name__}, not a number")
    return int(value) if isinstance(value, bool) else value


def _rewind(path: Path, step: int) -> float:
    """Drops the lines after a step, and torn ones; returns the time of the last that stays."""
    last = 0.0
    with path.open("rb") as old, atomic_file(path) as new:
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
