"""Reads damaged files of every kind: `make fuzz`, or ``python -m tests.security.fuzz``.

Every file has to be read with the right data, or refused in one sentence, within ten seconds and
two gigabytes. Workers read the files, so that a crash, a hang or a lack of memory is seen from
outside; the files and the damage of every failure are kept.
"""

import argparse
import contextlib
import importlib
import math
import multiprocessing
import os
import random
import resource
import secrets
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from guerdon.cli.errors import sentence_of
from tests.security import mutations

CPU_SECONDS, WALL_SECONDS = 10.0, 300.0  # of one file; waiting takes no CPU, and machines are busy
MEMORY = 2 << 30  # beyond what the imports take
BATCH = 50  # files of one kind in a row
KINDS = "tests.security.kinds"


def main(arguments: list[str] | None = None) -> int:
    """Run the fuzzer; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=None, help="random by default")
    parser.add_argument("--out", type=Path, default=Path("fuzz_failures"))
    parser.add_argument("--kinds", nargs="*", help="all by default")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # a fork has not the threads of this process, and would wait for them
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    begun = time.monotonic()
    counts, failures = fuzz(options.files, options.workers, seed, options.out, options.kinds)
    show(counts, failures, seed, time.monotonic() - begun)
    return 1 if failures else 0


def show(counts: dict[str, Counter[str]], failures: list[str], seed: int, seconds: float) -> None:
    """Print a table of the outcomes, and the failures."""
    write = sys.stdout.write
    write(f"{'kind':24}{'files':>8}{'read':>8}{'refused':>9}{'failed':>8}\n")
    total: Counter[str] = Counter()
    for kind, found in counts.items():
        total += found
        write(f"{kind:24}{_row(found)}\n")
    write(f"{'all':24}{_row(total)}\n")
    write(f"seed {seed}, {seconds:.0f} s\n")
    for failure in failures:
        write(f"FAILED (seed {seed}): {failure}\n")


def _row(found: Counter[str]) -> str:
    numbers = found.total(), found["read"], found["refused"], found["failed"]
    return "".join(f"{each:>{width}}" for each, width in zip(numbers, (8, 8, 9, 8), strict=True))


def fuzz(
    files: int,
    workers: int,
    seed: int,
    out: Path,
    names: list[str] | None = None,
    module: str = KINDS,
    seconds: float = CPU_SECONDS,
) -> tuple[dict[str, Counter[str]], list[str]]:
    """Read damaged files.

    Args:
        files: Number of files.
        workers: Number of processes.
        seed: Random seed.
        out: Folder for the files of failures.
        names: Kinds of files; all by default.
        module: Module with the kinds.
        seconds: CPU time that reading a file may take.

    Returns:
        The number of files of each kind by outcome, and the failures.
    """
    kinds = importlib.import_module(module).KINDS
    chosen = names or list(kinds)
    shares = sum(kinds[name].share for name in chosen)
    counts: dict[str, Counter[str]] = {name: Counter() for name in chosen}
    tasks = []
    for name in chosen:
        number = math.ceil(files * kinds[name].share / shares)
        tasks += [(name, min(BATCH, number - start)) for start in range(0, number, BATCH)]
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        good = Path(temporary) / "good"
        for name in chosen:
            (good / name).mkdir(parents=True)
            kinds[name].make(good / name)
        numbered = iter(enumerate(tasks))
        folders = [Path(temporary) / f"worker{i}" for i in range(workers)]
        pool = [Worker(folder, good, out, module, seconds) for folder in folders]
        pool = [worker for worker in pool if worker.start(numbered, seed)]
        while pool:
            time.sleep(0.02)
            for worker in [worker for worker in pool if worker.ended()]:
                counts[worker.kind] += worker.counts
                failures += worker.failures
                if not worker.start(numbered, seed):
                    worker.stop()
                    pool.remove(worker)
    return counts, failures


class Worker:
    """A process that reads files of one kind after another, and is replaced if it dies."""

    def __init__(self, folder: Path, good: Path, out: Path, module: str, seconds: float) -> None:
        self.folder, self.good, self.out = folder, good, out
        self.module, self.seconds = module, seconds
        self.process: Any = None

    def start(self, tasks: Any, seed: int) -> bool:
        """Begin with the next task; return whether there is one."""
        task = next(tasks, None)
        if task is None:
            return False
        number, (self.kind, files) = task
        if self.process is None:
            context = multiprocessing.get_context("fork")  # which has imported everything
            self.pipe, other = context.Pipe()
            given = other, self.folder, self.good, self.module
            self.process = context.Process(target=work, args=given)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of threads, which are idle
                self.process.start()
            other.close()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.case: Any = None
        self.limits = float("inf"), time.monotonic() + WALL_SECONDS
        self.pipe.send((self.kind, files, seed * 100_003 + number))
        return True

    def ended(self) -> bool:
        """Whether the task has ended, in whatever way."""
        try:
            while self.pipe.poll():
                what, detail = self.pipe.recv()
                if what == "end":
                    return True
                if what == "case":
                    self.case = detail
                    self.limits = self._cpu() + self.seconds, time.monotonic() + WALL_SECONDS
                else:
                    self.counts[what] += 1
                if what == "failed":
                    self._keep(detail)
        except EOFError:
            self.process.join()
            return self._lost(f"the process died with exit code {self.process.exitcode}")
        if self._cpu() > self.limits[0]:
            return self._lost(f"reading took more than {self.seconds:g} s")
        if time.monotonic() > self.limits[1]:
            return self._lost(f"reading did not end within {WALL_SECONDS:g} s")
        return False

    def _cpu(self) -> float:
        """Seconds of CPU that the process has used."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def _lost(self, why: str) -> bool:
        self.counts["failed"] += 1
        self._keep(why)
        self.stop()
        return True

    def _keep(self, why: str) -> None:
        """Keep the damaged files, as they were before they were read."""
        kept = self.out / f"{self.kind.replace(' ', '_')}-{secrets.token_hex(4)}"
        kept.mkdir(parents=True)
        mutations.fresh_copy(self.good / self.kind, kept / "files")
        if self.case is not None:
            mutations.apply(kept / "files", self.case)
        (kept / "why.txt").write_text(f"{self.case}\n\n{why}\n")
        self.failures.append(f"{self.kind}: {why.strip().splitlines()[-1]} (files in {kept})")

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None


# --- in the worker


def work(pipe: Any, folder: Path, good: Path, module: str) -> None:
    """Read damaged files until the pipe is closed."""
    kinds = importlib.import_module(module).KINDS
    warnings.simplefilter("ignore")
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    with contextlib.suppress(EOFError):
        while True:
            name, files, seed = pipe.recv()
            read_many(pipe, folder / "case", good / name, kinds[name], files, seed)
            pipe.send(("end", None))


def read_many(pipe: Any, case: Path, good: Path, kind: Any, files: int, seed: int) -> None:
    """Read damaged files of one kind, and send each outcome."""
    mutations.fresh_copy(good, case)
    right = mutations.fingerprint(kind.read(case))

    rng = random.Random(seed)

    @hypothesis.seed(seed)
    @settings(
        max_examples=files, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(st.lists(mutations.VALUES, min_size=4, max_size=4))
    def read_one(values: list[Any]) -> None:
        mutation = mutations.mutation(rng, values)
        mutations.fresh_copy(good, case)
        forged = mutations.apply(case, mutation)
        pipe.send(("case", mutation))
        try:
            found = mutations.fingerprint(kind.read(case))
        except Exception as error:
            sentence = sentence_of(error) or (isinstance(error, OSError) and str(error))
            pipe.send(("refused", None) if sentence else ("failed", traceback.format_exc()))
        else:
            damaged = kind.checked and not forged and found != right
            pipe.send(("failed", "damaged data was read") if damaged else ("read", None))

    read_one()


if __name__ == "__main__":
    sys.exit(main())
