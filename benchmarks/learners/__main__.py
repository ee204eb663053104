"""One measurement in a process of its own: libraries in one process would disturb each other."""

from __future__ import annotations

import argparse
import importlib.metadata
import json

import torch

import learners
from learners.rows import ROWS, measure


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m learners")
    parser.add_argument("learner", choices=learners.NAMES)
    parser.add_argument("row", nargs="?", choices=[row.key for row in ROWS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--limit-steps", type=int, default=500_000)
    parser.add_argument("--limit-seconds", type=float, default=300.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    learner = learners.load(options.learner)
    if options.row is None:
        versions = {name: importlib.metadata.version(name) for name in learner.packages}
        result = {"name": learner.name, "packages": versions, "usage": learner.usage}
    else:
        row = next(row for row in ROWS if row.key == options.row)
        limit = (options.limit_steps, options.limit_seconds)
        try:
            result = measure(row, learner, options.seed, options.seconds, limit)
        except learners.MissingError as error:
            result = {"missing": str(error)}
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
