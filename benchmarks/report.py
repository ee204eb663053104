"""Results: on the terminal, as JSON, as Markdown."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from peers import System
    from timing import Measure

OWN = "guerdon"
TIME, MEMORY = "µs a call", "bytes a transition"


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    key: str
    title: str
    unit: str
    measures: dict[str, Measure]
    missing: dict[str, str] = field(default_factory=dict)
    """Why a system is not in this line."""

    def ratio(self, name: str) -> float | None:
        """Return how many times as much as guerdon a system needs, if both were measured."""
        if OWN not in self.measures or name not in self.measures:
            return None
        return self.measures[name].median / self.measures[OWN].median

    @property
    def first(self) -> str:
        """The system that needs least time or memory."""
        return min(self.measures, key=lambda name: self.measures[name].median)

    def cell(self, name: str) -> str:
        """A median, and its ratio to guerdon's."""
        if name not in self.measures:
            return "-"
        value = self.measures[name].median
        text = f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
        ratio = None if name == OWN else self.ratio(name)
        return text if ratio is None else f"{text} ({ratio:.{1 if ratio >= 1.95 else 2}f}x)"


def load() -> float:
    """Return the load average per core."""
    return os.getloadavg()[0] / cores() if hasattr(os, "getloadavg") else 0.0


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine(systems: list[System], load_before: float) -> dict[str, Any]:
    """Return the machine and the versions of packages."""
    names = ["numpy", "torch", "numba", "gymnasium"]
    names += [package for system in systems for package in system.packages]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": cores(),
        "load_before": round(load_before, 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in names},
    }


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _line(facts: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    cores = f"{facts['cores']} cores, one thread"
    return f"{facts['date'][:10]}; {facts['cpu']}, {cores}; Python {facts['python']}, {packages}"


def to_terminal(results: list[Result], systems: list[System], facts: dict[str, Any]) -> None:
    """Prints the table."""
    table = Table(
        title="µs a call, or bytes a transition (and times guerdon's)", title_justify="left"
    )
    table.add_column("")
    for system in systems:
        table.add_column(system.name, justify="right")
    unit = results[0].unit if results else TIME
    for result in results:
        if result.unit != unit:
            table.add_section()
            unit = result.unit
        cells = []
        for system in systems:
            cell = result.cell(system.name)
            cells.append(f"[bold]{cell}[/bold]" if system.name == result.first else cell)
        table.add_row(result.title, *cells)
    # Where the output goes to a file, lines are as long as they have to be.
    console = Console() if Console().is_terminal else Console(width=150)
    console.print(table)
    console.print(_line(facts), soft_wrap=True, highlight=False)


def to_json(
    results: list[Result], systems: list[System], facts: dict[str, Any], settings: dict[str, Any]
) -> str:
    """All figures."""
    rows = [
        {
            "key": result.key,
            "title": result.title,
            "unit": result.unit,
            "first": result.first,
            "measures": {name: asdict(value) for name, value in result.measures.items()},
            "ratios": {name: result.ratio(name) for name in result.measures},
            "missing": result.missing,
        }
        for result in results
        if result.measures
    ]
    usage = {system.name: system.usage for system in systems}
    data = {"machine": facts, "settings": settings, "rows": rows, "usage": usage}
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


_HEAD = """# Benchmarks

```bash
make bench
```

installs the other libraries into a virtual environment of their own, checks that all of them do the
same work (they have to return the transitions that were added), measures them in alternation in one
run, and writes `benchmarks/results/buffers.json` and this page. Data, sizes and batch sizes are in
`benchmarks/`; the best of each row is bold.
"""


def to_markdown(results: list[Result], systems: list[System], facts: dict[str, Any]) -> str:
    """The table, what it was made with, and how each system was used."""
    names = [system.name for system in systems]
    lines = [_HEAD, f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for result in results:
        cells = [result.cell(name) for name in names]
        cells = [f"**{c}**" if n == result.first else c for n, c in zip(names, cells, strict=True)]
        unit = ", bytes a transition" if result.unit == MEMORY else ", µs"
        lines.append(f"| {result.title}{unit} | {' | '.join(cells)} |")
    lines += ["", f"Medians; in brackets, the ratio to guerdon's. {_line(facts)}.", ""]
    for system in systems:
        lines += [f"- {system.name}, {key}: {text}." for key, text in system.usage.items()]
    return "\n".join(lines).rstrip() + "\n"
