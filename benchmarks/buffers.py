"""guerdon's buffers and `Batch` compared with Tianshou, cpprb, Stable-Baselines3 and TorchRL.

`make bench` installs all of them and runs this. Every row is equal work: the same number of
environments, fields, capacity and batch size, episodes that end, and rows that are checked to be
transitions of what was added. See `peers/` for how each system is used, `rows.py` for the rows.
"""

from __future__ import annotations

import argparse
import functools
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import peers
import report
import torch
from check import check
from report import MEMORY, OWN, TIME, Result
from rows import MEMORY_ROWS, ROWS, Workbench
from timing import measure_memory, measure_time

if TYPE_CHECKING:
    from peers import System
    from rows import MemoryRow, Row

_RESULTS = Path(__file__).parent / "results" / "buffers.json"


def main() -> int:
    """Check, measure and report; return the exit code."""
    options = _options()
    load = report.load()
    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002  some of the systems draw from it
    torch.manual_seed(0)
    systems, notes = peers.load(options.only)
    for note in notes:
        _say(note)
    if not _check(systems):
        return 1
    if options.check:
        return 0
    results = _measure(systems, options)
    facts = report.machine(systems, load)
    report.to_terminal(results, systems, facts)
    if load > 0.5:
        _say(f"The machine was busy before this began ({load:.1f} processes a core): run it again.")
    if path := options.out or (None if options.partial else _RESULTS):
        settings = {"rounds": options.rounds, "block_seconds": options.seconds}
        settings |= {"vectors": options.vectors, "frames": options.frames}
        _write(path, report.to_json(results, systems, facts, settings))
    if options.markdown:
        _write(options.markdown, report.to_markdown(results, systems, facts))
    behind = [f"{row.first} is first in {row.title!r}" for row in results if row.first != OWN]
    if options.assert_first:
        for line in behind:
            _say(line)
        return 1 if behind or notes else 0  # nothing is proven beside a system that is left out
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flag = parser.add_argument
    flag("--quick", action="store_true", help="seconds instead of minutes; figures are rough")
    flag("--check", action="store_true", help="only check that all systems do the same work")
    flag("--only", type=_names(peers.NAMES), default=list(peers.NAMES), help="systems, by commas")
    flag("--rows", type=_names(), default=[], help="rows, by commas: keys or beginnings of them")
    flag("--out", type=Path, help=f"where figures go, as JSON; for a full run {_RESULTS}")
    flag("--markdown", type=Path, help="also write the table as Markdown to this file")
    flag("--assert-first", action="store_true", help="fail unless guerdon is first in every row")
    options = parser.parse_args()
    keys = [row.key for row in (*ROWS, *MEMORY_ROWS)]
    for start in options.rows:
        if not any(key.startswith(start) for key in keys):
            parser.error(f"no row is named {start!r}; there are: {', '.join(keys)}")
    options.partial = options.quick or options.rows or set(options.only) != set(peers.NAMES)
    options.rounds, options.seconds = (5, 0.005) if options.quick else (41, 0.02)
    options.vectors, options.frames = (8_000, 2_000) if options.quick else (100_000, 20_000)
    return options


def _names(allowed: tuple[str, ...] = ()) -> Any:
    def names(text: str) -> list[str]:
        values = [name.strip().lower() for name in text.split(",") if name.strip()]
        for value in values:
            if allowed and value not in allowed:
                raise argparse.ArgumentTypeError(f"{value!r} is none of {', '.join(allowed)}")
        return values

    return names


def _check(systems: list[System]) -> bool:
    """Return whether all checks pass."""
    good = True
    for system in systems:
        done: list[str] = []
        try:
            done.extend(check(system))
            _say(f"{system.name}: right are {', '.join(done)}")
        except AssertionError as error:
            good = False
            _say(f"{system.name}: wrong after {', '.join(done) or 'nothing'}: {error}")
    return good


def _measure(systems: list[System], options: argparse.Namespace) -> list[Result]:
    def wanted(row: Row | MemoryRow) -> bool:
        return not options.rows or any(row.key.startswith(start) for start in options.rows)

    bench = Workbench(options.vectors, options.frames)
    results = [_time(row, systems, bench, options) for row in filter(wanted, ROWS)]
    results += [_bytes(row, systems, options.frames) for row in filter(wanted, MEMORY_ROWS)]
    return [result for result in results if result.measures]


def _time(row: Row, systems: list[System], bench: Workbench, options: argparse.Namespace) -> Result:
    _say(f"measuring {row.title}")
    runs, missing = {}, {}
    for system in systems:
        try:
            runs[system.name] = row.build(system, bench)
        except peers.MissingError as error:
            missing[system.name] = str(error)
    measures = measure_time(runs, options.rounds, options.seconds)
    del runs
    gc.collect()  # frames take gigabytes
    return Result(row.key, row.title, TIME, measures, missing)


def _bytes(row: MemoryRow, systems: list[System], size: int) -> Result:
    _say(f"measuring {row.title}")
    measures, missing = {}, {}
    for system in systems:
        build = functools.partial(row.build, system)
        try:
            measures[system.name] = measure_memory(build, row.stream(), size)
        except peers.MissingError as error:
            missing[system.name] = str(error)
    return Result(row.key, row.title, MEMORY, measures, missing)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    _say(f"written: {path}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
