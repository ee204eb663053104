"""`Callback`: code of the user's own in the training loop."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from guerdon.training.run import Run

Function = Callable[[int, dict[str, float], Any], Any]
"""Called with the step, the metrics and the policy whenever metrics are logged."""


class Callback:
    """Base class: every method does nothing. Any of them may call ``run.stop()``."""

    def on_start(self, run: "Run") -> None:
        """Handle the start of a new or resumed run."""

    def on_iteration(self, run: "Run") -> None:
        """Handle the start of an iteration: collecting, then updates."""

    def on_update_start(self, run: "Run") -> None:
        """Handle the start of an update of the policy."""

    def on_update_end(self, run: "Run", metrics: Mapping[str, Any]) -> None:
        """Handle the end of an update, with its metrics: numbers or scalar tensors."""

    def on_evaluation(self, run: "Run") -> None:
        """Handle the start of an evaluation; `on_log` gets its metrics."""

    def on_best(self, run: "Run") -> None:
        """Handle an evaluation with the highest return so far; the weights are saved."""

    def on_log(self, run: "Run", metrics: dict[str, float]) -> None:
        """Handle metrics that are logged."""

    def on_checkpoint(self, run: "Run", path: Path) -> None:
        """Handle a checkpoint that was saved."""

    def on_end(self, run: "Run", summary: Mapping[str, Any]) -> None:
        """Handle the end of the run, unless it failed."""


class FunctionCallback(Callback):
    """Calls a function whenever metrics are logged; the run stops if it returns False."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def on_log(self, run: "Run", metrics: dict[str, float]) -> None:
        """See `Callback`."""
        answer = self.function(run.monitor.step, metrics, run.policy)
        if isinstance(answer, bool | np.bool_) and not answer:
            run.stop()


def as_callback(given: Any) -> Callback:
    """Return a callback for a `Callback`, a subclass of it, or a function."""
    if isinstance(given, type) and issubclass(given, Callback):
        return given()
    if not isinstance(given, Callback) and not callable(given):
        raise TypeError(f"the callback is {given!r:.100}: give a Callback or a function")
    return given if isinstance(given, Callback) else FunctionCallback(given)
