"""nerveX's log files."""

import logging
from collections.abc import Mapping
from pathlib import Path

from guerdon.training.metric_files import AppendedFile, TensorBoardFile

_log = logging.getLogger(__name__)


class LogFiles:
    """Metrics in ``NAME_logger.txt`` and, for TensorBoard, in ``NAME_tb_logger``."""

    def __init__(self, folder: str | Path, name: str, tensorboard: bool = True) -> None:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self._text = AppendedFile(path / f"{name}_logger.txt", _log.warning)
        board = path / f"{name}_tb_logger"
        self._board = TensorBoardFile(board, None, _log.warning) if tensorboard else None

    def write(self, head: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write a line that begins with `head`, and the same metrics for TensorBoard."""
        numbers = " ".join(f"{name}={value:.6g}" for name, value in metrics.items())
        self._text.append(f"{head}: {numbers}\n".encode())
        if self._board is not None:
            self._board.log(step, metrics)

    def close(self) -> None:
        """Close the files; `write` opens them again."""
        self._text.close()
        if self._board is not None:
            self._board.close()
