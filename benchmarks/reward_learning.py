"""Train on learned rewards, and write docs/reward_results.md from the results.

The rows are in `reward_rows.py`. Returns are the environment's.

    python benchmarks/reward_learning.py            # what is missing, then the page
    python benchmarks/reward_learning.py --jobs 16 --rows cartpole_fixed,pendulum --minutes 9
    python benchmarks/reward_learning.py --report   # the page alone
    python benchmarks/reward_learning.py --smoke    # every row for a moment, without a page
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from reward_rows import SECTIONS
from trials import ROOT, RUNS, Row, run_missing

RESULTS = ROOT / "benchmarks" / "results" / "rewards"
MOMENT = ("run.max_updates=2", "eval.episodes=2", "eval.n_envs=2")


def chosen(names: str | None) -> list[Row]:
    """Return the rows whose names begin with one of these; all by default."""
    starts = tuple(names.split(",")) if names else ("",)
    rows = {row: None for section in SECTIONS for row in section.rows}
    found = [row for row in rows if row.name.startswith(starts)]
    if not found:
        raise SystemExit(f"no row is named {names}")
    return found


def brief(row: Row) -> Row:
    """Return a row that is trained for a moment."""
    source = row.reward_of and brief(row.reward_of)
    return replace(row, seeds=1, overrides=(*row.overrides, *MOMENT), reward_of=source)


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", help="beginnings of names of rows, with commas; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--minutes", type=float, help="stop after this time; default: never")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--report", action="store_true", help="only write the page")
    parser.add_argument("--no-report", action="store_true", help="only run")
    parser.add_argument("--smoke", action="store_true", help="run one seed for two updates")
    options = parser.parse_args()
    rows = chosen(options.rows)
    if options.smoke:
        folder = RUNS / "smoke"
        failed = run_missing([brief(row) for row in rows], folder, options.jobs, options.minutes)
        raise SystemExit(f"{len(failed)} rows failed: {', '.join(failed)}" if failed else 0)
    if not options.report:
        run_missing(rows, options.results, options.jobs, options.minutes)
    if not options.no_report:
        from reward_report import write_report

        write_report(SECTIONS, options.results, ROOT / "docs")


if __name__ == "__main__":
    main()
