"""Pieces of a self-contained HTML page: charts as SVG, tables, images, videos; no JavaScript."""

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template

import numpy as np

from guerdon.extras import require
from guerdon.lab.curves import Curve

Sections = list[tuple[str, str]]
"""Titles and HTML; a section without HTML is left out."""
EMBEDDED = 20_000_000  # bytes of a video that becomes part of the page; larger ones are linked
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480, 260, 52, 458, 10, 216  # of a chart
_POINTS = 600  # of a line; more would not be visible


class Svg(str):
    """A drawing, which is not escaped."""

    __slots__ = ()


def document(title: str, body: str) -> str:
    """Return a whole page."""
    template = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    return template.substitute(title=html.escape(title), body=body)


def render(sections: Sections, level: int = 2) -> str:
    """Return sections under headings of a level."""
    return "".join(
        f"<h{level}>{html.escape(title)}</h{level}>{body}" if title else body
        for title, body in sections
        if body
    )


def paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{html.escape(text)}</p>" if text else ""


def cards(numbers: Iterable[tuple[str, str]]) -> str:
    """Return numbers with their names below."""
    each = "".join(
        f"<div><b>{html.escape(value)}</b>{html.escape(name)}</div>" for name, value in numbers
    )
    return f'<div class="cards">{each}</div>'


def warning_list(warnings: Sequence[str]) -> str:
    """Return a list of warnings; nothing if there is none."""
    each = "".join(f"<li>{html.escape(text[:1].upper() + text[1:])}.</li>" for text in warnings)
    return f'<ul class="warnings">{each}</ul>' if each else ""


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return a table; cells are text, or `Svg`."""
    lines = []
    for kind, row in [("th", head)] * bool(head) + [("td", row) for row in rows]:
        cells = (cell if isinstance(cell, Svg) else html.escape(cell) for cell in row)
        lines.append(f"<tr>{''.join(f'<{kind}>{cell}</{kind}>' for cell in cells)}</tr>")
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>' if lines else ""


def metrics_table(metrics: Mapping[str, Curve], prefix: str) -> str:
    """Return the first, last, lowest and highest values of the metrics with a prefix."""
    rows = [
        (
            name.removeprefix(prefix),
            _sparkline(curve),
            *map(number, (*curve.values[[0, -1]], curve.values.min(), curve.values.max())),
        )
        for name, curve in metrics.items()
        if name.startswith(prefix) and len(curve.values)
    ]
    return table(rows, ("metric", "", "first", "last", "lowest", "highest")) if rows else ""


def details(title: str, text: str) -> str:
    """Return a long text, collapsed."""
    text = html.escape(text)
    return f"<details><summary>{html.escape(title)}</summary><pre>{text}</pre></details>"


def images(
    title: str, frames: Sequence[Mapping[str, np.ndarray]], captions: Sequence[str] = (),
    wrong: Sequence[bool] = (),
) -> str:  # fmt: skip
    """Return frames with captions.

    Args:
        title: Title of the row.
        frames: For each, uint8 [C, H, W] by camera.
        captions: A caption each.
        wrong: Which of them get a red border.
    """
    each = []
    for place, frame in enumerate(frames):
        codes = [base64.b64encode(png(image)).decode() for image in frame.values()]
        caption = html.escape(captions[place] if captions else "")
        mark = ' class="wrong"' if wrong and wrong[place] else ""
        shown = (f'<img alt="{caption}" src="data:image/png;base64,{code}">' for code in codes)
        each.append(f"<figure{mark}>{''.join(shown)}<figcaption>{caption}</figcaption></figure>")
    found = f"<h4>{html.escape(title)}</h4>"
    return f'{found}<div class="frames">{"".join(each)}</div>' if each else ""


def png(image: np.ndarray) -> bytes:
    """Encode an image uint8 [C, H, W] as PNG; without three channels, the first is grey."""
    out = io.BytesIO()
    pixels = np.moveaxis(image[:3], 0, -1) if len(image) >= 3 else image[0]
    require("PIL.Image", "lab").fromarray(np.ascontiguousarray(pixels)).save(out, "png")
    return out.getvalue()


def video(path: Path) -> str:
    """Return an MP4 file as a player."""
    source = path.resolve().as_uri()
    if path.stat().st_size <= EMBEDDED:
        source = f"data:video/mp4;base64,{base64.b64encode(path.read_bytes()).decode()}"
    name = html.escape(path.stem.replace("_", " "))
    player = f'<video controls muted loop src="{html.escape(source)}"></video>'
    return f"<figure>{player}<figcaption>{name}</figcaption></figure>"


def number(value: float) -> str:
    """Return a number in few characters: 1,234 and 12.3 and 0.0123."""
    if not np.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


# --- charts


def chart(
    title: str,
    lines: Mapping[str, Curve],
    below: str = "environment steps",
    limits: tuple[float, float] | None = None,
) -> str:
    """Return lines over one axis; nothing if all of them are empty.

    Args:
        title: Title.
        lines: Curves by their names in the legend.
        below: Name of the horizontal axis.
        limits: Ends of the vertical axis; by default those of the values.
    """
    lines = {name: curve for name, curve in lines.items() if len(curve.steps)}
    if not lines:
        return ""
    x_axis = _axis(np.concatenate([curve.steps for curve in lines.values()]))
    values = np.concatenate([curve.values for curve in lines.values()])
    y_axis = _axis(np.array(limits) if limits else values)
    ticks, legend, drawn = [], [], []
    for value in _ticks(*x_axis):
        x = _at(value, x_axis, _LEFT, _RIGHT)
        ticks.append(f'<text class="x" x="{x:.1f}" y="{_BOTTOM + 18}">{_short(value)}</text>')
    for value in _ticks(*y_axis):
        y = _at(value, y_axis, _BOTTOM, _TOP)
        ticks.append(f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}"/>')
        ticks.append(f'<text class="y" x="{_LEFT - 8}" y="{y + 4:.1f}">{_short(value)}</text>')
    for place, (name, curve) in enumerate(lines.items()):
        x, y = _at(curve.steps, x_axis, _LEFT, _RIGHT), _at(curve.values, y_axis, _BOTTOM, _TOP)
        drawn.append(f'<g class="c{place}">{_line(x, y)}</g>')
        legend.append(f'<span class="c{place}"><i></i>{html.escape(name)}</span>')
    ticks.append(
        f'<text class="x" x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 6}">{html.escape(below)}</text>'
    )
    return (
        f'<figure class="chart"><figcaption><b>{html.escape(title)}</b> {"".join(legend)}'
        f'</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(ticks)}{"".join(reversed(drawn))}</svg></figure>'
    )


def charts(found: Iterable[str]) -> str:
    """Return charts or videos side by side; nothing if there is none."""
    each = "".join(found)
    return f'<div class="charts">{each}</div>' if each else ""


def _sparkline(curve: Curve) -> Svg:
    x_axis, y_axis = _axis(curve.steps), _axis(curve.values)
    x, y = _at(curve.steps, x_axis, 2, 98), _at(curve.values, y_axis, 18, 2)
    return Svg(f'<svg class="spark c0" viewBox="0 0 100 20">{_line(x, y)}</svg>')


def _line(x: np.ndarray, y: np.ndarray) -> str:
    rows = np.unique(np.linspace(0, len(x) - 1, min(len(x), _POINTS)).astype(int))
    points = [f"{x[row]:.1f},{y[row]:.1f}" for row in rows]
    if len(points) == 1:
        return f'<circle cx="{x[0]:.1f}" cy="{y[0]:.1f}" r="5"/>'
    return f'<polyline points="{" ".join(points)}"/>'


def _axis(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of an axis."""
    low, high = float(values.min()), float(values.max())
    size = max(abs(low), abs(high))
    if high - low > max(1e-12 * size, 1e-100):
        return low, high
    wider = 0.5 * size if size > 1e-100 else 0.5
    return low - wider, high + wider


def _at(value: np.ndarray, axis: tuple[float, float], first: float, last: float) -> np.ndarray:
    """Map values of an axis to pixels."""
    low, high = axis
    place: np.ndarray = first + (value - low) / (high - low) * (last - first)
    return place


def _ticks(low: float, high: float) -> np.ndarray:
    """Return about five round numbers between two."""
    power = 10.0 ** np.floor(np.log10((high - low) / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if (high - low) / (power * factor) <= 5)
    ticks: np.ndarray = step * np.arange(int(np.ceil(low / step - 1e-9)), high / step + 1e-9)
    return ticks


def _short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:.4g}"
