"""Display of a run: a live panel on a terminal, lines in a pipe, or nothing."""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

Mode = Literal["auto", "live", "lines", "none"]

_REFRESH_SECONDS = 0.25


def make_display(
    status: Status, stream: TextIO, mode: Mode = "auto", *, title: str = ""
) -> Display:
    """Make a display.

    Args:
        status: Status of the run to show.
        stream: Output, for example `sys.stdout`.
        mode: ``live`` redraws a panel, ``lines`` writes a line for each call of `log`, ``none``
            shows nothing, and ``auto`` is ``live`` on a terminal and else ``lines``.
        title: Title of the panel.
    """
    if mode == "auto":
        terminal = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        mode = "live" if terminal else "lines"
    if mode == "live":
        return LiveDisplay(status, stream, title)
    if mode in ("lines", "none"):
        return Display(status, stream if mode == "lines" else None)
    raise ValueError(f"a display is 'auto', 'live', 'lines' or 'none', not {mode!r}")


class Status:
    """The newest metrics of a run.

    Args:
        total_steps: Environment steps of the whole run, if known.
    """

    unit = "fps"

    def __init__(self, total_steps: int | None) -> None:
        self.total_steps = total_steps
        self.step = 0
        self.metrics: dict[str, float] = {}
        self._best = -math.inf

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in new metrics."""
        self.step = step
        self.metrics.update(metrics)
        if metrics.get("eval/mean_reward", -math.inf) > self._best:  # not if NaN
            self._best = metrics["eval/mean_reward"]
        self._best = metrics.get("eval/best_mean_reward", self._best)

    def results(self) -> dict[str, str]:
        """Return the newest returns and success rates as text."""
        known = {**self.metrics, "best": self._best}
        if not math.isfinite(self._best):
            del known["best"]
        shown = {}
        for name, key in (
            ("return", "rollout/ep_rew_mean"),
            ("eval", "eval/mean_reward"),
            ("best", "best"),
        ):
            if key in known:
                form = ".1f" if abs(known[key]) >= 10 else ".3f"
                shown[name] = format(known[key], form)
                if name == "eval" and "eval/std_reward" in known:
                    shown[name] += f"±{known['eval/std_reward']:{form}}"
        for name, key in (
            ("success", "eval/success_rate"),
            ("predicted success", "reward/success_rate"),
        ):
            if not math.isnan(known.get(key, math.nan)):
                shown[name] = f"{known[key]:.0%}"
        return shown

    def speed(self) -> dict[str, str]:
        """Return speed and time left as text."""
        fps = self.metrics.get("time/fps")
        if fps is None:
            return {}
        shown = {self.unit: f"{fps:,.0f}"}
        if self.total_steps and fps > 0:
            left = max(self.total_steps - self.step, 0) / fps
            shown["left"] = str(timedelta(seconds=round(left)))
        return shown


class Display:
    """A line for each call of `log`: ``steps 12,000  return 143.2  fps 8,400  left 0:00:42``.

    Args:
        status: Status of the run to show.
        stream: Output; None shows nothing.
    """

    def __init__(self, status: Status, stream: TextIO | None = None) -> None:
        self._status = status
        self._stream = stream

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show new metrics."""
        status = self._status
        status.update(step, metrics)
        parts = {"steps": f"{step:,}", **status.results(), **status.speed()}
        parts.pop("best", None)
        self.text("  ".join(f"{name} {text}" for name, text in parts.items()))

    def progress(self, step: int) -> None:
        """Show the number of steps, if that is cheap."""

    def text(self, line: str) -> None:
        """Show a message."""
        if self._stream is None:
            return
        encoding = self._stream.encoding or "utf-8"
        if not encoding.lower().startswith("utf"):
            line = line.replace("±", "+-").encode(encoding, "replace").decode(encoding)
        try:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        except BrokenPipeError:  # the reader has left; the run continues
            self._stream = None

    def close(self) -> None:
        """Restore the terminal; may be called again."""


class LiveDisplay(Display):
    """A panel that is redrawn in place, at most four times a second and without a thread."""

    def __init__(self, status: Status, stream: TextIO, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(status, stream)
        self._title = title
        self._console = Console(file=stream, force_terminal=True)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            get_renderable=self._render,
            # What others write to the terminal must not go through the panel.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._next_draw = 0.0
        atexit.register(self.close)  # a hidden cursor would outlive the process
        self._live.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in new metrics, and draw them when it is time."""
        self._status.update(step, metrics)
        now = time.monotonic()
        if now >= self._next_draw:
            self._next_draw = now + _REFRESH_SECONDS
            self._live.refresh()

    def progress(self, step: int) -> None:
        """Move the bar when it is time."""
        self.log(step, {})

    def text(self, line: str) -> None:
        """Write a message above the panel."""
        self._console.print(line, markup=False, highlight=False)

    def close(self) -> None:
        """Draw the last state, and restore the terminal."""
        atexit.unregister(self.close)
        self._live.stop()

    def _render(self) -> Any:
        from rich.columns import Columns
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Column, Table
        from rich.text import Text

        step, total = self._status.step, self._status.total_steps
        bar = Table.grid(Column(no_wrap=True), Column(ratio=1), padding=(0, 2), expand=True)
        bar.add_row(
            f"steps {step:,} / {total:,}" if total else f"steps {step:,}",
            ProgressBar(total, min(step, total)) if total else "",
        )
        words = Text()
        for name, value in {**self._status.results(), **self._status.speed()}.items():
            words.append(f"{name} ", style="dim").append(value, style="bold").append("   ")
        parts: list[Any] = [bar, words]
        for group in ("reward/", "train/"):
            cells = [
                Text.assemble((f"{name.removeprefix(group)} ", "dim"), f"{value:.4g}")
                for name, value in self._status.metrics.items()
                if name.startswith(group)
            ]
            if cells:
                parts.append(Columns(cells, equal=True, title=group.strip("/")))
        return Panel(Group(*parts), title=self._title or None, title_align="left")
