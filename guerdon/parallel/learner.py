"""The loop of a run in a worker, which is restarted from its last checkpoint if it dies."""

import logging
import os
import queue
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import PlacementGroup

from guerdon.collect import ShardedEnv
from guerdon.config import GuerdonConfig
from guerdon.config.files import Files
from guerdon.parallel.ranks import RankError
from guerdon.parallel.runtime import RayRuntime
from guerdon.parallel.workers import Failures, Worker, cause_of, reason_of, restart
from guerdon.training.callback import Callback
from guerdon.training.display import Display, ForwardedDisplay, Mode, WorkerRow
from guerdon.training.process import interrupts
from guerdon.training.replay import final_parts
from guerdon.training.run import Result, Run, Summary, display_of, train
from guerdon.training.run_folder import RunFolder, WarningHandler

_POLL = 0.5  # seconds that a learner waits for something to tell
Event = tuple[Any, ...]
"""Name of a method, and its arguments."""


@dataclass
class Reached:
    """How far a run has come, as its coordinator knows."""

    folder: Path | None = None
    """The run folder, from the first start on."""
    step: int = 0
    """Newest step."""
    steps_lost: int | None = None
    """Steps that were lost by restarts, from the first start on."""
    reason: str = ""
    """Why the learner was restarted."""
    rows: Sequence[WorkerRow] = ()
    """What other workers do."""


class Learner:
    """The host of a run: `run` in one thread of a worker, and `poll` in another.

    Args:
        group: Resources of all workers of the run.
        files: Files that were shipped to workers.
        folder: Working directory of the process that started the run.
    """

    def __init__(self, group: PlacementGroup, files: Files, folder: str) -> None:
        with suppress(OSError):  # another node may not have it
            os.chdir(folder)
        self._group, self._files = group, files
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._asked = threading.Event()
        self.asked = self._asked.is_set
        self.display = ForwardedDisplay(self._tell)

    def run(self, reached: Reached, given: Sequence[Any], options: dict[str, Any]) -> Summary:
        """Train, and return the summary; see `guerdon.training.run.train`."""
        self._reached = reached
        warnings.showwarning = lambda message, *_, **__: self._tell("warn", str(message))
        return train(*given, **options, display="none", host=self).summary

    def poll(self, asked: bool, seconds: float) -> list[Event]:
        """Return what is new.

        Args:
            asked: Whether the user has asked the run to stop.
            seconds: How long to wait for something new.
        """
        if asked:
            self._asked.set()
        events = []
        with suppress(queue.Empty):
            events.append(self._events.get(timeout=seconds))
            while True:
                events.append(self._events.get_nowait())
        return [*events, ("rows", self.display.rows())]

    def runtime(self, config: GuerdonConfig) -> RayRuntime:
        """See `Host`."""
        return RayRuntime(config, self._group, self._files, _Start(self._reached, self._tell))

    def _tell(self, *event: Any) -> None:
        self._events.put(event)


class _Start(Callback):
    """Counts what a restart has lost, and tells how far the run has come."""

    def __init__(self, reached: Reached, tell: Callable[..., None]) -> None:
        self._reached, self._tell = reached, tell

    def on_start(self, run: Run) -> None:
        """See `Callback`."""
        known, env, step = self._reached, run.parts.env, run.monitor.step
        assert isinstance(env, ShardedEnv)
        shards: Any = env.shards
        before = shards.steps_lost or 0
        lost = max(known.step - step, 0)
        shards.steps_lost = (before if known.steps_lost is None else known.steps_lost) + lost
        if known.reason:
            run.say(f"the learner was restarted ({known.reason}), and {lost:,} steps are lost")
        self._tell("start", run.path.resolve(), step, shards.steps_lost)


def train_in_worker(
    config: GuerdonConfig, display: Mode, given: Sequence[Any], **options: Any
) -> Result:
    """Train with the loop in a worker, and show here what it does.

    Args:
        config: Config of the run.
        display: See `guerdon.training.run.train`.
        given: Positional arguments of `guerdon.training.run.train`.
        **options: Its other arguments.
    """
    with ExitStack() as stack:
        runtime = stack.enter_context(RayRuntime(config))
        shown = display_of(config, display)
        stack.callback(shown.close)
        warned, logger = WarningHandler(shown.text), logging.getLogger("guerdon")
        logger.addHandler(warned)
        stack.callback(logger.removeHandler, warned)
        asked = stack.enter_context(interrupts(shown.interrupt))
        worker, reached = runtime.learner(Learner), Reached()
        shown.watch(lambda: [worker.row(), *reached.rows])
        runtime.restarts.changed = lambda: shown.progress(reached.step)
        held = options["resume"] is None and _holds_run(config)
        while True:
            try:
                summary = _shown(
                    worker, reached, shown, asked, given, options, config.runtime.timeout
                )
                break
            except Failures as error:
                if isinstance(error, RayTaskError) and not isinstance(error.cause, RankError):
                    # As in a run in this process.
                    raise cause_of(error) from error
                reached.reason, reached.rows = reason_of(error), ()
                if not held and reached.folder is None and _holds_run(config):
                    reached.folder = Path(str(config.run.dir))
                restart(worker, error)
    folder = Path(summary["run_dir"])
    objects = (options[name] for name in ("env_setting", "model", "policy_fn"))
    return Result(*final_parts(folder, *objects), summary, folder)


def _holds_run(config: GuerdonConfig) -> bool:
    return config.run.dir is not None and RunFolder(config.run.dir).holds_run()


def _shown(
    worker: Worker,
    reached: Reached,
    shown: Display,
    asked: Callable[[], bool],
    given: Sequence[Any],
    options: dict[str, Any],
    timeout: float,
) -> Summary:
    """Start a run or resume it, and show what the learner tells; return the summary."""
    if reached.folder is not None:
        given, options = (None,), {**options, "resume": reached.folder, "exact": False}
        options["from_reward"] = None
    running, ended = worker.send("run", replace(reached), given, options), False
    while not ended:
        ended = bool(ray.wait([running], timeout=0)[0])
        told = worker.call("poll", asked(), 0.0 if ended else _POLL, timeout=timeout)
        for name, *arguments in told:
            if name in ("log", "progress"):
                reached.step = max(arguments[0], reached.step)
            if name == "start":
                reached.folder, reached.step, reached.steps_lost = arguments
            elif name == "warn":
                warnings.warn(str(arguments[0]), stacklevel=2)
            elif name == "rows":
                reached.rows = arguments[0]
            else:
                getattr(shown, name)(*arguments)
        shown.progress(reached.step)
    summary: Summary = ray.get(running)
    return summary
