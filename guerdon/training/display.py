"""Display of a run: a live panel on a terminal, lines in a pipe, or nothing."""

import atexit
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, TextIO

import numpy as np

Mode = Literal["auto", "live", "lines", "none"]
WorkerRow = tuple[str, str, int, int]
"""Name of a worker, what it does, how often it was restarted, and the version of its weights."""

RUN = {
    "return": "rollout/ep_rew_mean",
    "eval": "eval/mean_reward",
    "learned": "reward/eval_return",
    "best": "eval/best_mean_reward",
    "success": "eval/success_rate",
    "predicted success": "reward/success_rate",
    "true success at prediction": "eval/success_at_prediction",
}
"""Metrics that are shown of a run, by their names in the display. Beside predicted success, true
success is that of the same frames, not of the last ones."""
_REFRESH_SECONDS = 0.25
_ASKED = "stopping after this iteration; press Ctrl-C again to stop at once"
_STDERR = 2
_BLOCKS = "▁▂▃▄▅▆▇█"
_ECHO = 4  # columns that a terminal needs to show ^C twice on the last line of the panel


def make_display(
    total_steps: int | None,
    stream: TextIO,
    mode: Mode = "auto",
    *,
    title: str = "",
    shown: Mapping[str, str] = RUN,
) -> "Display":
    """Make a display.

    Args:
        total_steps: Steps of the whole run, if known.
        stream: Output, for example `sys.stdout`.
        mode: ``live`` redraws a panel, ``lines`` writes a line for each call of `log`, ``none``
            shows nothing, and ``auto`` is ``live`` on a terminal and else ``lines``.
        title: Title of the panel.
        shown: Metrics that are shown, by their names in the display.
    """
    if mode == "auto":
        terminal = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        mode = "live" if terminal else "lines"
    if mode == "live":
        return LiveDisplay(total_steps, stream, shown, title)
    if mode in ("lines", "none"):
        return Display(total_steps, stream if mode == "lines" else None, shown)
    raise ValueError(f"a display is 'auto', 'live', 'lines' or 'none', not {mode!r}")


class _Lasting:
    """A stream that loses its text when its reader has left or its terminal is closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


class Display:
    """A line for each call of `log`: ``steps 12,000  return 143.2  fps 8,400  left 0:00:42``.

    Arguments are those of `make_display`; without a stream, nothing is shown.
    """

    def __init__(
        self,
        total_steps: int | None = None,
        stream: TextIO | None = None,
        shown: Mapping[str, str] = RUN,
    ) -> None:
        self._stream: Any = None if stream is None else _Lasting(stream)
        self._total, self._shown = total_steps, shown
        self._step = 0
        self._metrics: dict[str, float] = {}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show new metrics."""
        self._update(step, metrics)
        parts = {"steps": f"{step:,}", **self._texts()}
        parts.pop("best", None)
        self.text("  ".join(f"{name} {text}" for name, text in parts.items()))

    def progress(self, step: int) -> None:
        """Show the number of steps, if that is cheap."""

    def watch(self, rows: Callable[[], Sequence[WorkerRow]]) -> None:
        """Show what workers do, if that is cheap."""

    def text(self, line: str) -> None:
        """Show a message."""
        if self._stream is None:
            return
        encoding = self._stream.encoding or "utf-8"
        if not encoding.lower().startswith("utf"):
            line = line.replace("±", "+-").encode(encoding, "replace").decode(encoding)
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def interrupt(self) -> None:
        """Show that the user has asked the run to stop; may be called by a signal handler."""
        with suppress(OSError):  # not sys.stderr, which a signal may find in the middle of a line
            os.write(_STDERR, f"{_ASKED}\n".encode())

    def close(self) -> None:
        """Restore the terminal; may be called again."""

    def _update(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = step
        self._metrics |= metrics

    def _texts(self) -> dict[str, str]:
        """Return the newest results, the speed and the time left."""
        known, texts = self._metrics, dict[str, str]()
        for name, key in self._shown.items():
            value = known.get(key)
            if value is None or (name == "success" and RUN["true success at prediction"] in known):
                continue
            if "success" in key:
                texts |= {} if math.isnan(value) else {name: f"{value:.0%}"}
                continue
            form = ".1f" if abs(value) >= 10 else ".3f" if self._shown is RUN else ".4f"
            texts[name] = format(value, form)
            if name == "eval" and "eval/std_reward" in known:
                texts[name] += f"±{known['eval/std_reward']:{form}}"
        fps = known.get("time/fps")
        if fps is not None:
            texts["fps" if self._shown is RUN else "steps/s"] = f"{fps:,.0f}"
            if self._total and fps > 0:
                left = max(self._total - self._step, 0) / fps
                texts["left"] = str(timedelta(seconds=round(left)))
        return texts


class ForwardedDisplay(Display):
    """Shows nothing, but passes everything on to the process that started the run.

    Args:
        tell: Called with the name of a method and its arguments.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        super().__init__()
        self._tell = tell
        self.rows: Callable[[], Sequence[WorkerRow]] = tuple

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Display`."""
        self._step = step
        self._tell("log", step, metrics)

    def progress(self, step: int) -> None:
        """See `Display`."""
        if step != self._step:
            self._step = step
            self._tell("progress", step)

    def text(self, line: str) -> None:
        """See `Display`."""
        self._tell("text", line)

    def watch(self, rows: Callable[[], Sequence[WorkerRow]]) -> None:
        """See `Display`."""
        self.rows = rows


class LiveDisplay(Display):
    """A panel that is redrawn in place, at most four times a second and without a thread."""

    def __init__(
        self, total_steps: int | None, stream: TextIO, shown: Mapping[str, str], title: str
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(total_steps, stream, shown)
        self._title, self._asked = title, False
        self._curve: list[float] = []  # of the first metric that is shown
        self._workers: Callable[[], Sequence[WorkerRow]] = tuple
        self._console = Console(file=self._stream, force_terminal=True)
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
        self._update(step, metrics)
        value = metrics.get(next(iter(self._shown.values())), math.nan)
        self._curve += [value] if math.isfinite(value) else []
        now = time.monotonic()
        if now >= self._next_draw:
            self._next_draw = now + _REFRESH_SECONDS
            self._live.refresh()

    def progress(self, step: int) -> None:
        """Move the bar when it is time."""
        self.log(step, {})

    def watch(self, rows: Callable[[], Sequence[WorkerRow]]) -> None:
        """Show what workers do whenever the panel is drawn."""
        self._workers = rows

    def text(self, line: str) -> None:
        """Write a message above the panel."""
        self._console.print(line, markup=False, highlight=False, emoji=False)

    def interrupt(self) -> None:
        """Show at the next draw that the run will stop."""
        self._asked = True

    def close(self) -> None:
        """Draw the last state, and restore the terminal."""
        self._asked = False
        atexit.unregister(self.close)
        self._live.stop()

    def _render(self) -> Any:
        from rich.columns import Columns
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Column, Table
        from rich.text import Text

        step, total = self._step, self._total
        bar = Table.grid(Column(no_wrap=True), Column(ratio=1), padding=(0, 2), expand=True)
        bar.add_row(
            f"steps {step:,} / {total:,}" if total else f"steps {step:,}",
            ProgressBar(total, min(step, total)) if total else "",
        )
        words = Text()
        for name, value in self._texts().items():
            words.append(f"{name} ", style="dim").append(value, style="bold").append("   ")
        parts: list[Any] = [bar, words]
        if len(self._curve) > 1:
            ends = f"{min(self._curve):.4g} to {max(self._curve):.4g}"
            name = f"{next(iter(self._shown))} "
            parts.append(Text.assemble((name, "dim"), (sparkline(self._curve), "cyan"), f" {ends}"))
        if self._asked:
            parts.append(Text(_ASKED, style="bold"))
        for group in ("reward/", "train/"):
            cells = [
                Text.assemble((f"{name.removeprefix(group)} ", "dim"), f"{value:.4g}")
                for name, value in self._metrics.items()
                if name.startswith(group)
            ]
            if cells:
                parts.append(Columns(cells, equal=True, title=group.strip("/")))
        cells = []
        for name, state, restarts, version in self._workers():
            style = {"idle": "", "restarting": "bold red"}.get(state, "green")
            more = f" v{version}" * bool(version) + f" {restarts} restarts" * bool(restarts)
            cells.append(Text.assemble((f"{name} ", "dim"), (state, style), more))
        if cells:
            parts.append(Columns(cells, equal=True, title="workers"))
        width = max(self._console.width - _ECHO, 20)
        title = Text(self._title) if self._title else None  # names may look like markup
        return Panel(Group(*parts), title=title, title_align="left", width=width)


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Return a small curve of block characters; each is a mean if there are more values."""
    cells = [part.mean() for part in np.array_split(values, min(width, len(values)))]
    low, high = min(cells), max(cells)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0
    return "".join(_BLOCKS[round((cell - low) * scale)] for cell in cells)
