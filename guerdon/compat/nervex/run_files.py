"""The files that a serial run of nerveX leaves in the current folder; nothing reads them."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from guerdon.policy import Policy

_LOGS = {
    "actor": ("collect_logger.txt", ("rollout/", "time/")),
    "learner": ("learner_logger.txt", ("train/", "reward/")),
    "evaluator": ("evaluator_logger.txt", ("eval/",)),
    "buffer/armor_buffer": ("armor_logger.txt", ("buffer/",)),
}
"""Folders below ``log``, their text files, and the metrics in them."""
_TENSORBOARD = {
    "learner": "learner_tb_logger",
    "evaluator": "evaluator_tb_logger",
    "buffer/armor_buffer": "armor_tb_logger",
}


class RunFiles:
    """A callback of `guerdon.train` that writes ``ckptBaseLearner*`` and ``log``.

    ``iteration_N.pth.tar`` has the weights after N updates, of each best evaluation so far.

    Args:
        folder: Folder to write to.
    """

    def __init__(self, folder: str | Path = ".") -> None:
        self.log = Path(folder) / "log"
        self.checkpoints = Path(folder) / f"ckptBaseLearner{os.getpid()}"
        self._best = float("-inf")
        self._writer = cache(self._make_writer)

    def __call__(self, step: int, metrics: Mapping[str, float], policy: Policy) -> None:
        """Write metrics, and weights if an evaluation was the best so far."""
        moved = {"buffer/pushed": step, "buffer/sampled_batches": policy.updates}
        for name, (file, prefixes) in _LOGS.items():
            found = {
                key: each for key, each in {**metrics, **moved}.items() if key.startswith(prefixes)
            }
            if found:
                self._write(name, file, step, found)
        value = metrics.get("eval/mean_reward")
        if value is not None and value > self._best:
            self._best = value
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            weights = {name: each.detach().cpu() for name, each in policy.state_dict().items()}
            torch.save({"model": weights}, self.checkpoints / f"iteration_{policy.updates}.pth.tar")

    def _write(self, name: str, file: str, step: int, metrics: Mapping[str, float]) -> None:
        folder = self.log / name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / file).open("a") as text:
            numbers = (f"{key}={value:.6g}" for key, value in metrics.items())
            text.write(f"step={step} {' '.join(numbers)}\n")
        if name in _TENSORBOARD:
            writer = self._writer(folder / _TENSORBOARD[name])
            for key, value in metrics.items():
                writer.add_scalar(key, value, step)
            writer.flush()

    @staticmethod
    def _make_writer(folder: Path) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        return SummaryWriter(folder, flush_secs=10)
