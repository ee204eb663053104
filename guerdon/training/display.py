"""What a run shows: a live panel on a terminal, lines in a pipe, or nothing."""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

Mode = Literal["auto", "live", "lines", "none"]

_REFRESH_SECONDS = 0.25


class Display:
    """Shows nothing; the base of those that do."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows new metrics."""

    def progress(self, step: int) -> None:
        """Shows how far the run is, where that is cheap."""

    def text(self, line: str) -> None:
        """Shows a message."""

    def close(self) -> None:
        """Leaves the terminal as it was; may be called again."""


def make_display(
    status: Status, stream: TextIO, mode: Mode = "auto", *, title: str = ""
) -> Display:
    """Makes the display that suits a stream.

    Args:
        status: What it keeps and shows.
        stream: Where to show it, for example `sys.stdout`.
        mode: ``live`` redraws a panel, ``lines`` writes a line for each call of `log`, ``none``
            shows nothing, and ``auto`` is ``live`` on a terminal and else ``lines``.
        title: What the panel calls the run: its preset, environment and policy.
    """
    if mode == "auto":
        terminal = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        mode = "live" if terminal else "lines"
    if mode == "live":
        return LiveDisplay(status, stream, title)
    if mode == "lines":
        return LineDisplay(status, stream)
    if mode == "none":
        return Display()
    raise ValueError(f"a display is 'auto', 'live', 'lines' or 'none', not {mode!r}")


class Status:
    """What is known of a run: its newest metrics, its speed, and the time left.

    Args:
        total_steps: Environment steps of the whole run, if known.
    """

    def __init__(self, total_steps: int | None) -> None:
        self.total_steps = total_steps
        self.step = 0
        self.metrics: dict[str, float] = {}
        self.best: float | None = None
        self._first: tuple[int, float] | None = None

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes in what happened."""
        self.step = step
        if self._first is None:  # a resumed run starts in the middle
            self._first = step, time.monotonic()
        self.metrics.update(metrics)
        result = metrics.get("eval/mean_reward", math.nan)
        if not math.isnan(result) and (self.best is None or result > self.best):
            self.best = result
        self.best = metrics.get("eval/best_mean_reward", self.best)

    @property
    def fps(self) -> float | None:
        """Environment steps per second: as the run says, or else as seen from here."""
        if "time/fps" in self.metrics:
            return self.metrics["time/fps"]
        step, start = self._first or (self.step, time.monotonic())
        seconds = time.monotonic() - start
        return (self.step - step) / seconds if self.step > step and seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the last step at this speed."""
        fps = self.fps
        if not self.total_steps or fps is None or not fps > 0:
            return None
        return max(self.total_steps - self.step, 0) / fps

    def results(self) -> dict[str, str]:
        """The newest returns, as text."""
        mean, std = self.metrics.get("eval/mean_reward"), self.metrics.get("eval/std_reward")
        shown = {
            "return": _result(self.metrics.get("rollout/ep_rew_mean")),
            "eval": _result(mean)
            + (f"±{_result(std, like=mean)}" if mean is not None and std is not None else ""),
            "best": _result(self.best),
            "success": _share(self.metrics.get("eval/success_rate")),
            "the model says": _share(self.metrics.get("reward/success_rate")),
        }
        return {name: text for name, text in shown.items() if text}

    def speed(self) -> dict[str, str]:
        """Speed and time left, as text."""
        fps, left = self.fps, self.seconds_left
        shown = {"fps": "" if fps is None else f"{fps:,.0f}", "left": _duration(left)}
        return {name: text for name, text in shown.items() if text}


class LineDisplay(Display):
    """A line for each call of `log`: ``steps 12,000  return 143.2  fps 8,400  left 0:42``."""

    def __init__(self, status: Status, stream: TextIO) -> None:
        self._status = status
        self._stream: TextIO | None = stream

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes a line."""
        status = self._status
        status.update(step, metrics)
        parts = {"steps": f"{step:,}", **status.results(), **status.speed()}
        parts.pop("best", None)
        self.text("  ".join(f"{name} {text}" for name, text in parts.items()))

    def text(self, line: str) -> None:
        """Writes a message."""
        if self._stream is None:
            return
        encoding = self._stream.encoding or "utf-8"
        line = line.replace("±", "+-") if not _can_encode("±", encoding) else line
        try:
            self._stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
            self._stream.flush()
        except BrokenPipeError:  # whoever read along has left; the run goes on
            self._stream = None


class LiveDisplay(Display):
    """A panel that is redrawn in place, at most four times a second and without a thread."""

    def __init__(self, status: Status, stream: TextIO, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._status = status
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
        """Takes in new metrics, and draws them when it is time."""
        self._status.update(step, metrics)
        self._draw()

    def progress(self, step: int) -> None:
        """Moves the bar when it is time."""
        self._status.update(step, {})
        self._draw()

    def text(self, line: str) -> None:
        """Writes a message above the panel."""
        self._console.print(line, markup=False, highlight=False)

    def close(self) -> None:
        """Draws the last state, and gives the terminal back."""
        atexit.unregister(self.close)
        self._live.stop()

    def _draw(self) -> None:
        now = time.monotonic()
        if now >= self._next_draw:
            self._next_draw = now + _REFRESH_SECONDS
            self._live.refresh()

    def _render(self) -> Any:
        from rich.console import Group
        from rich.panel import Panel

        status = self._status
        parts: list[Any] = [_bar(status), _words({**status.results(), **status.speed()})]
        for group in ("reward", "train"):
            chosen = {
                name.removeprefix(f"{group}/"): f"{value:.4g}"
                for name, value in status.metrics.items()
                if name.startswith(f"{group}/")
            }
            if chosen:
                parts.append(_table(group, chosen, columns=max(1, self._console.width // 36)))
        return Panel(Group(*parts), title=self._title or None, title_align="left")


def _bar(status: Status) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    if not status.total_steps:
        row.add_row(Text(f"steps {status.step:,}"))
        return row
    done = f"steps {status.step:,} / {status.total_steps:,}"
    row.add_row(Text(done), ProgressBar(status.total_steps, min(status.step, status.total_steps)))
    return row


def _words(parts: Mapping[str, str]) -> Any:
    from rich.text import Text

    text = Text()
    for name, value in parts.items():
        text.append(f"{name} ", style="dim").append(value, style="bold").append("   ")
    return text


def _table(heading: str, values: Mapping[str, str], columns: int) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=heading, title_justify="left", box=None, show_header=False, pad_edge=False)
    cells = [
        cell for name, value in values.items() for cell in (Text(name, style="dim"), Text(value))
    ]
    width = 2 * min(columns, len(values))
    for start in range(0, len(cells), width):
        table.add_row(*cells[start : start + width])
    return table


def _result(value: float | None, like: float | None = None) -> str:
    """A return, with more digits where returns are small; a spread takes after its mean."""
    if value is None:
        return ""
    return f"{value:.1f}" if abs(value if like is None else like) >= 10 else f"{value:.3f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _share(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.0%}"


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
