"""The files that a serial run of nerveX leaves in the current folder; no run reads them."""

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from guerdon.policy import Policy
from guerdon.training.metric_files import AppendedFile, TensorBoardFile

_log = logging.getLogger(__name__)
_LOGS = {
    "actor": ("collect", ("rollout/", "time/")),
    "learner": ("learner", ("train/", "reward/")),
    "evaluator": ("evaluator", ("eval/",)),
    "buffer/armor_buffer": ("armor", ("buffer/",)),
}
"""Folders below ``log``: the name of their files, and the metrics in them."""


class LogFiles:
    """Metrics in ``NAME_logger.txt`` and, for TensorBoard, in ``NAME_tb_logger``.

    Args:
        folder: Folder of both.
        name: Their name.
        tensorboard: Whether to write the second.
    """

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


def save_weights(folder: Path, model: nn.Module, iteration: int) -> None:
    """Write ``iteration_N.pth.tar`` with the weights after N updates."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: each.detach().cpu() for name, each in model.state_dict().items()}
    torch.save(
        {"model": weights, "last_iter": iteration}, folder / f"iteration_{iteration}.pth.tar"
    )


class RunFiles:
    """A callback of `guerdon.train` that writes ``ckptBaseLearner*`` and ``log``.

    The first has the weights of each best evaluation so far.

    Args:
        folder: Folder to write to.
    """

    def __init__(self, folder: str | Path = ".") -> None:
        self.log = Path(folder) / "log"
        self.checkpoints = Path(folder) / f"ckptBaseLearner{id(self)}"
        self._best = float("-inf")
        self._files = cache(self._make_files)

    def __call__(self, step: int, metrics: Mapping[str, float], policy: Policy) -> None:
        """Write metrics, and weights if an evaluation was the best so far."""
        moved = {"buffer/pushed": step, "buffer/sampled_batches": policy.updates}
        for folder, (_, prefixes) in _LOGS.items():
            every: dict[str, Any] = {**metrics, **moved}
            found = {key: each for key, each in every.items() if key.startswith(prefixes)}
            if found:
                self._files(folder).write(f"step {step}", step, found)
        value = metrics.get("eval/mean_reward")
        if value is not None and value > self._best:
            self._best = value
            save_weights(self.checkpoints, policy, policy.updates)

    def _make_files(self, folder: str) -> LogFiles:
        return LogFiles(self.log / folder, _LOGS[folder][0], tensorboard=folder != "actor")
