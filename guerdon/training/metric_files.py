"""Files of a run that grow: whole records are appended, and the run survives their failures."""

import io
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from guerdon.data.files import unshared

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_FLAGS |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)  # not on every system


class AppendedFile:
    """A file to which each record is appended whole or not at all.

    If the disk is full, or the file cannot be opened, records are lost: metrics are worth less than
    the run that they are of. `tell` is called once, and the next record is tried again.

    Args:
        path: The file, made with its folder if it is missing. Links are not followed.
        tell: Called with a sentence at the first failure.
    """

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self._path, self._tell = path, tell
        self._file: int | None = None
        self._failed = False

    def append(self, record: bytes) -> None:
        """Append a record; it is handed to the system when this returns."""
        try:
            if self._file is None:
                self._path.parent.mkdir(exist_ok=True)
                self._file = unshared(os.open(self._path, _FLAGS, 0o644), self._path)
            end = os.fstat(self._file).st_size
            try:
                while record:
                    record = record[os.write(self._file, record) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._file, end)
                raise
        except OSError as error:
            if not self._failed:
                self._failed = True
                reason = error.strerror or error
                self._tell(f"{self._path} cannot be written: {reason}; the run continues")

    def sync(self) -> None:
        """Write what was appended to the disk."""
        if self._file is not None:
            with suppress(OSError):
                os.fsync(self._file)

    def close(self) -> None:
        """Close the file; `append` opens it again."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None


class TensorBoardFile:
    """Metrics for TensorBoard, written without the thread of its own writer.

    An exception in that thread would be printed with a traceback, and raised again by every later
    call.

    Args:
        folder: Folder of the file.
        purge: Step from which TensorBoard ignores older files, of a resumed run.
        tell: See `AppendedFile`.
    """

    def __init__(self, folder: Path, purge: int | None, tell: Callable[[str], None]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._record_writer = RecordWriter
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        self._file = AppendedFile(folder / name, tell)
        self._add(file_version="brain.Event:2")
        if purge is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._add(step=purge, session_log=start)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add metrics of one moment."""
        value = self._summary.Value
        values = [value(tag=name, simple_value=number) for name, number in metrics.items()]
        self._add(step=step, summary=self._summary(value=values))

    def _add(self, **content: Any) -> None:
        record = io.BytesIO()
        event = self._event(wall_time=time.time(), **content)
        self._record_writer(record).write(event.SerializeToString())
        self._file.append(record.getvalue())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
