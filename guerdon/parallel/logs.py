"""Log files of the workers of a run, in ``log/<role>/``."""

import io
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guerdon.collect.shards import ShardRollout
from guerdon.data.files import open_plain
from guerdon.training.callback import Callback

ROLES = ("collector", "learner", "reward", "evaluator", "coordinator")
_METRICS = {"train": "learner", "buffer": "learner", "eval": "evaluator", "reward": "reward"}
"""Roles of metrics by the first part of their names; the others are the coordinator's."""


def worker_logger(role: str, number: int | None = None) -> logging.Logger:
    """Return the logger of a role, or of one worker of it."""
    logger = logging.getLogger(f"guerdon.parallel.{role}")
    return logger if number is None else logger.getChild(str(number))


class LogFile(logging.FileHandler):
    """Appends records with their times to a file of a run; links are not followed."""

    def __init__(self, path: Path, delay: bool = False) -> None:
        super().__init__(path, delay=delay)
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def _open(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(open_plain(self.baseFilename, "ab"), encoding="utf-8")


@contextmanager
def files(folder: Path, workers: Iterable[Any]) -> Iterator[None]:
    """Write what the loggers of roles and workers get to files.

    Args:
        folder: The run folder.
        workers: The workers.
    """
    loggers = {folder / "log" / w.role / f"{w.number}.txt": w.log for w in workers}
    for role in ROLES:
        (folder / "log" / role).mkdir(parents=True, exist_ok=True)
        if role != "collector":
            loggers[folder / "log" / role / f"{role}.txt"] = worker_logger(role)
    whole = logging.getLogger("guerdon.parallel")
    added = []
    for path, logger in loggers.items():
        handler = LogFile(path, delay=True)
        logger.addHandler(handler)
        added.append((logger, handler))
    before = whole.level
    whole.setLevel(logging.INFO)
    try:
        yield
    finally:
        whole.setLevel(before)
        for logger, handler in added:
            logger.removeHandler(handler)
            handler.close()


class Journal:
    """The rollouts that were learned from, by ``<collector>.<start>.<number>``, each once.

    A collector that is restarted counts from 1 again. Rollouts are listed in the coordinator's log.
    """

    def __init__(self) -> None:
        self.accepted: dict[str, int] = {}
        """Number of the newest accepted rollout of each start of a collector."""

    def add(self, collector: int, start: int, rollout: ShardRollout) -> None:
        """Record a rollout; raise an error if it was recorded before."""
        source = f"{collector}.{start}"
        if rollout.number <= self.accepted.get(source, 0):
            raise RuntimeError(f"rollout {source}.{rollout.number} has come twice")
        self.accepted[source] = rollout.number
        worker_logger("coordinator").info(
            "rollout %s.%d: %d steps with weights %d",
            source, rollout.number, rollout.collected.n_step, rollout.version,
        )  # fmt: skip


class RoleLogs(Callback):
    """Writes the metrics of a run to the logs of the roles that they are of."""

    def on_log(self, run: Any, metrics: dict[str, float]) -> None:
        """See `Callback`."""
        parts: dict[str, list[str]] = {}
        for name, value in metrics.items():
            role = _METRICS.get(name.partition("/")[0], "coordinator")
            parts.setdefault(role, []).append(f"{name}={value:.5g}")
        for role, texts in parts.items():
            worker_logger(role).info("step %d  %s", run.progress.env_steps, "  ".join(texts))
