"""Compose every config file of a checkout of nerveX or DI-engine, and write what does not.

    python benchmarks/foreign_configs.py CHECKOUT

Files that name ``main_config`` or ``create_config`` are tried, each in a process of its own with a
time limit, since they are Python code. ``results/foreign_configs_NAME.json`` gets the commit, the
files that compose, with the environment and policy that they are here, and the reason for each that
does not.
"""

import argparse
import json
import multiprocessing
import subprocess
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from guerdon.compat.keys import Report
from guerdon.entry import compose

FORK = multiprocessing.get_context("fork")  # guerdon is imported once
Found = dict[str, Any]
RESULTS = Path(__file__).parent / "results"
LIMIT = 60
NAMED = ("main_config", "create_config")


def compose_one(file: Path, sender: Connection) -> None:
    """Send what a file composes to, or why it does not."""
    report = Report()
    warnings.simplefilter("ignore")
    try:
        config = compose(file, report=report)
    except Exception as error:  # of the file, which is code
        own = isinstance(error, ValueError)
        sender.send({"reason": str(error) if own else f"{type(error).__name__}: {error}"})
        return
    found: Found = {"env": config.env.id, "policy": config.policy["type"]}
    if [*config.reward.terms] != ["env"]:
        found["reward"] = "+".join(config.reward.terms)
    sender.send(found | {"translated": len(report.taken), "ignored": len(report.dropped)})


def try_file(file: Path) -> Found:
    """Return what a file composes to, or ``reason``."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=compose_one, args=(file, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(LIMIT):
            return {"reason": f"it takes longer than {LIMIT} seconds"}
        found: Found = receiver.recv()
        return found
    except EOFError:
        return {"reason": f"it ends the process with code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout, or ``unknown``."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def is_config(path: Path) -> bool:
    """Return whether a file looks like a config: by its name and what it defines."""
    if "config" not in path.stem or path.stem.startswith("test_"):
        return False
    return any(f"\n{name} = " in path.read_text(errors="ignore") for name in NAMED)


def main() -> None:
    """Try all files, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="folder of the project")
    parser.add_argument("--name", help="name of the result file; default: the folder's")
    parser.add_argument("--commit", help="commit, if the folder is no checkout of git")
    given = parser.parse_args()
    root = given.checkout.resolve()
    files = sorted(path for path in root.rglob("*.py") if is_config(path))
    composed, refused = {}, {}
    for file in files:
        found, name = try_file(file), file.relative_to(root).as_posix()
        if "reason" in found:
            refused[name] = str(found["reason"]).replace(f"{file}", name).replace(f"{root}/", "")
        else:
            composed[name] = found
        print(f"{'refused' if 'reason' in found else 'composes'}  {name}", flush=True)
    result = {
        "commit": given.commit or commit_of(root),
        "files": len(files),
        "composes": composed,
        "does_not": refused,
    }
    path = RESULTS / f"foreign_configs_{given.name or root.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(composed)} of {len(files)} compose; wrote {path}")


if __name__ == "__main__":
    main()
