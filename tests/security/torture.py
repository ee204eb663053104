"""Stops runs at random moments, resumes them, and compares them with runs that never stopped.

``make torture``, or ``python -m tests.security.torture --runs 72``. All runs of a kind have the
same config; the seed of a run decides when and how it is stopped:

- `kill`: by SIGKILL alone, then resumed plainly;
- `exact`: by any signal, then resumed with ``--exact``;
- `plain`: by any signal, then resumed plainly.

The first two have to end bit for bit like the run that never stopped, with everything that they
have written. The last one must not lose any work, and what it has written has to be consistent.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from tests.processes import Program
from tests.training.running import config_of, leaves, metrics_of, same, state_of
from tests.training.test_noise_law import (
    CLASSIFIER,
    REWARDS,
    TRAINED,
    fill_paths,
    make_config,
    write_classifier,
    write_expert_files,
)

# In a group of its own, so that a signal reaches all its processes, as Ctrl-C in a terminal does.
# Without the end of the interpreter, which takes longer than a run.
GUERDON = """
import os, sys
os.setpgrp()
from guerdon.cli import main
try:
    sys.stdout.write("begun\\n")
    sys.stdout.flush()
    main()
except SystemExit as end:
    sys.stdout.flush()
    os._exit(end.code or 0)
except KeyboardInterrupt:  # before or after the command
    os._exit(130)
"""
SECONDS = 120  # after which a process counts as hung
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WAYS = ("kill", "exact", "exact", "plain")
OUTPUTS = ("positive", "run/negative", "records")

PACE = {"dir": "run", "max_steps": 256, "checkpoint_every": 48, "log_every": 16}
PREFERENCE = {
    **TRAINED,
    "comparisons": 40,
    "rounds": 5,
    "train_every": 24,
    "segment_length": 4,
    "teacher": {"type": "skipping"},
    "record_path": "records/preferences.jsonl",
}
REFIT = {
    "min_precision": 0.0,
    "min_recall": 0.0,
    "threshold": 0.1,
    "train_every": 24,
    "update_per_collect": 2,
    "batch_size": 4,
}
IMAGES = {
    "image_keys": ["camera"],
    "positive_dir": "positive",
    "negative_dir": "run/negative",
    "max_positive_trajectories": 14,  # reached late
    "max_negative_trajectories": 100,  # never reached
}
FRAMES = {"terms": {"env": {}}, "collect_data": True, "data_collection": IMAGES}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo_normalized", {"policy": {"anneal": True}}),
    "ppo_subprocess": ("ppo", {"env": {"backend": "subprocess"}}),
    "dqn": ("dqn_prioritized_3_step", {"policy": {"anneal": True}}),
    "sac": ("sac", {}),
    "gail": ("ppo", REWARDS["gail_normalized"]),
    "trex_pretrained": ("sac", {**REWARDS["trex"], "pretrain": True}),
    "rnd": ("ppo", REWARDS["rnd"]),
    "pwil": ("dqn_prioritized", REWARDS["pwil"]),
    "preference": ("sac", {"terms": {"preference": PREFERENCE}}),
    "classifier": (
        "ppo_continuous",
        {"terms": {"classifier": REFIT}, "checkpoint_path": CLASSIFIER, "cotrain": True},
    ),
    "frames": ("ppo", FRAMES),
    "frames_npy": ("dqn", {**FRAMES, "data_collection": {**IMAGES, "format": "npy"}}),
}
"""A case of `running` with changes; or a policy and a section ``reward``, of `test_noise_law`."""


class Torture:
    """Runs below a folder.

    Args:
        root: The folder.
        say: Called with a line for each run.
    """

    def __init__(self, root: Path, say: Callable[[str], Any] = lambda _: None) -> None:
        self.root, self.say = root.resolve(), say
        self.stops = 0  # that have hit a run
        self._seconds: dict[str, float] = {}

    def prepare(self, kind: str) -> None:
        """Makes the files that a kind reads, and the run that never stops."""
        if kind not in self._seconds:
            folder, start = self.folder(kind, "whole"), time.monotonic()
            run_to_end(folder)
            self._seconds[kind] = time.monotonic() - start

    def stop_and_compare(
        self, kind: str, seed: int, way: str | None = None, most: int = 4
    ) -> list[str]:
        """Stops a run at random moments, and resumes it; returns what is wrong at the end."""
        way = way or WAYS[seed % len(WAYS)]
        generator = np.random.default_rng([seed, zlib.crc32(kind.encode())])
        whole, folder = self.root / kind / "whole", self.folder(kind, f"{seed}-{way}")
        stops = []
        for _ in range(int(generator.integers(1, 1 + most))):
            told, code = self._stop(folder, kind, way, generator)
            stops.append(told)
            if code == 0:
                break
            self.stops += 1
        run_to_end(folder, exact=way == "exact")
        found = inconsistencies(folder) if way == "plain" else differences(whole, folder)
        self.say(f"{kind} {seed}, {way}: {', '.join(stops)}: {found or 'the same'}")
        return found

    def _stop(
        self, folder: Path, kind: str, way: str, generator: np.random.Generator
    ) -> tuple[str, int]:
        """Starts or resumes a run, and stops it at a random moment; says how, and its exit code."""
        run, whole = folder / "run", self.root / kind / "whole" / "run"
        number = int(generator.choice(SIGNALS[: 1 if way == "kill" else None]))
        written = [
            name for name in ("checkpoints", "best", "reward") if any((whole / name).iterdir())
        ]
        moment = str(generator.choice(["seconds", "seconds", "lines", "config", *written]))
        after = {
            "seconds": generator.uniform(0, self._seconds[kind]),
            "lines": generator.integers(1, 1 + count(whole, "lines", set())),
            "config": 1,  # when the run has just begun
        }.get(moment, generator.integers(1, 2 if moment == "best" else 5))
        before, resumed, seen = stopped_at(run), len(resumed_at(run)), set[str]()
        begun = time.monotonic()
        with start(folder, exact=way == "exact") as program:
            while not program.ended:
                passed = time.monotonic() - begun
                if (passed if moment == "seconds" else count(run, moment, seen)) >= after:
                    break
                time.sleep(0.0005)
            send(program, number)
            if twice := number != signal.SIGKILL and generator.random() < 0.25:
                time.sleep(generator.uniform(0, 0.05))
                send(program, number)
            said = communicate(program)
        name, code = signal.Signals(number).name, program.returncode
        told = f"{name}{' twice' * twice} after {after:.3g} {moment} ({code})"
        assert code in (0, 130, -number), (folder, told, said)
        assert "Traceback" not in said, (folder, told, said)
        now = resumed_at(run)[resumed:]
        if way == "plain" and before is not None and now:
            assert now == [before], (folder, told, f"resumed at {now}, not at {before}")
        return told, code

    def folder(self, kind: str, name: str) -> Path:
        """Makes the folder of a run, with its config."""
        folder = self.root / kind / name
        folder.mkdir(parents=True)
        policy, more = KINDS[kind]
        if "terms" not in more:
            config = config_of(policy, Path("run"), **more)
        else:
            camera = "classifier" in more["terms"] or "collect_data" in more
            paths = self._files(policy in ("sac", "ppo_continuous"), camera)
            config = make_config(policy, fill_paths(more, paths), "run", camera=camera)
        config["run"] |= PACE
        OmegaConf.save(OmegaConf.create({**config, "seed": 3}), folder / "config.yaml")
        return folder

    def _files(self, continuous: bool, camera: bool) -> dict[str, str]:
        """The files that rewards learn from, made once."""
        folder = self.root / "files" / ("images" if camera else f"continuous_{continuous}")
        if not folder.exists():
            folder.mkdir(parents=True)
            written = write_classifier(folder) if camera else write_expert_files(folder, continuous)
            (folder / "paths.json").write_text(json.dumps(written))
        return dict(json.loads((folder / "paths.json").read_text()))


# --- processes


def start(folder: Path, exact: bool = False) -> Program:
    """Starts a run, or resumes it."""
    begun = (folder / "run" / "config.yaml").exists()
    arguments = ["--resume", "run", *["--exact"] * exact] if begun else ["config.yaml"]
    program = Program("-c", GUERDON, "train", *arguments, "--display", "none", cwd=folder)
    assert program.stdout.readline() == "begun\n"
    return program


def run_to_end(folder: Path, exact: bool = False) -> None:
    with start(folder, exact) as program:
        said = communicate(program)
    assert program.returncode == 0, (program.returncode, folder, said)


def communicate(program: Program) -> str:
    """Waits for the end of a program; all that it wrote."""
    watchdog = threading.Timer(SECONDS, program.send_signal, [signal.SIGKILL])
    watchdog.start()
    said = "".join(program.communicate())
    hung = watchdog.finished.is_set()
    watchdog.cancel()
    assert not hung, f"it hangs: {said}"
    return said


def send(program: Program, number: int) -> None:
    """Sends a signal to all processes of a program; a kill to the first alone."""
    with contextlib.suppress(ProcessLookupError):  # not yet a group
        if number != signal.SIGKILL and not program.ended:
            os.killpg(program.pid, number)
            return
    program.send_signal(number)


def count(run: Path, what: str, seen: set[str]) -> int:
    """The number of lines of metrics, or of the temporary names in a folder that were seen."""
    if what == "config":
        return int((run / "config.yaml").exists())
    if what == "lines":
        file = run / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0
    seen.update(path.name for path in (run / what).glob(".*.tmp"))
    return len(seen)


def stopped_at(run: Path) -> int | None:
    """The step of a run that could save when it was stopped."""
    file = run / "summary.json"
    return json.loads(file.read_text())["env_steps"] if file.exists() else None


def resumed_at(run: Path) -> list[int]:
    """The steps at which a run was resumed."""
    text = (run / "log.txt").read_text() if (run / "log.txt").exists() else ""
    return [int(step) for step in re.findall(r"resumed at step (\d+)\n", text)]


# --- comparisons


def differences(one: Path, other: Path) -> list[str]:
    """In what two runs with one config differ, but for the clock."""
    first, second = facts(one), facts(other)
    for step in checkpoint_steps(other / "run" / "checkpoints"):
        if f"step {step}" not in first:  # it was about to be removed; the next save does that
            second.pop(f"step {step}")
    return [name for name in first | second if not alike(first.get(name), second.get(name))]


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def relative(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The leaves of a state, with paths of data relative to the folder of the run."""
    root = f"{folder.resolve()}/"
    return {
        path: value.removeprefix(root) if isinstance(value, str) else value
        for path, value in state.items()
    }


def facts(folder: Path) -> dict[str, Any]:
    """Everything that a run has written but its log."""
    run = folder / "run"
    found: dict[str, Any] = {
        f"step {step}": relative(state_of(run, step), folder)
        for step in checkpoint_steps(run / "checkpoints")
    }
    for name in ("best", "reward"):
        steps = checkpoint_steps(run / name)
        found[name] = relative(leaves(load_checkpoint(run / name)[0]), folder) if steps else {}
        found[f"{name} steps"] = steps
    for path in sorted([*run.glob("*/latest"), *run.glob("*/scheduled")]):
        found[str(path.relative_to(run))] = path.read_text()
    found["metrics"] = repr(metrics_of(run))  # where nan is nan
    summary = json.loads((run / "summary.json").read_text())
    found["summary"] = {name: summary[name] for name in summary.keys() - {"wall_seconds", "fps"}}
    events = EventAccumulator(str(run / "tb"), size_guidance={"scalars": 0}).Reload()
    for tag in events.Tags()["scalars"]:
        if not tag.startswith("time/"):
            found[f"tb {tag}"] = repr([(event.step, event.value) for event in events.Scalars(tag)])
    for path in (path for name in OUTPUTS for path in (folder / name).rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".jsonl":
            lines = map(json.loads, path.read_text().splitlines())
            found[name] = [{**line, "time": ""} for line in lines]
        elif path.is_file() and not path.name.endswith(".tmp"):  # which a kill has left
            found[name] = path.read_bytes()
    return found


def inconsistencies(folder: Path) -> list[str]:
    """What a run has written that does not belong to its last checkpoint."""
    run, found = folder / "run", []
    (*_, last) = checkpoint_steps(run / "checkpoints")
    if (steps := checkpoint_steps(run / "reward")) not in ([], [last]):
        found.append(f"the reward is of {steps}, not of {last}")
    logged = [line["step"] for line in metrics_of(run)]
    if logged != sorted(logged) or logged[-1] != last:
        found.append(f"metrics of the steps {logged}")
    asked = state_of(run, last).get("/reward/terms/preference/asked", 0)
    records = folder / "records" / "preferences.jsonl"
    pairs = [json.loads(line)["pair"] for line in records.read_text().splitlines()] if asked else []
    segments = [path.name for path in (folder / "records").glob("*_segments/[!.]*")]
    if len({*pairs}) != asked or sorted(pairs) != sorted(segments):
        found.append(f"{len(pairs)} lines and {len(segments)} segments of {asked} pairs")
    names = ("positive", "negative")
    number = [len(list(folder.glob(f"**/{name}/*.np?"))) for name in names]
    summary = json.loads((run / "summary.json").read_text())
    told = summary.get("trajectories", dict.fromkeys(names, 0))
    limits = [IMAGES[f"max_{name}_trajectories"] for name in names]
    if number != [told[name] for name in names] or np.greater(number, limits).any():
        found.append(f"{number} trajectories, not {told}")
    return found


# --- the program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=72)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="the first")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    root, begun = Path(tempfile.mkdtemp(prefix="guerdon-torture-")), time.monotonic()
    torture = Torture(root, lambda line: sys.stdout.write(f"{line}\n"))
    torture.say(f"{options.runs} runs in {root}, first seed {options.seed}")
    os.environ["XDG_STATE_HOME"] = str(root / "state")  # no records in the user's home
    kinds = itertools.islice(itertools.cycle(options.kinds), options.runs)
    runs = [(kind, options.seed + i // len(options.kinds)) for i, kind in enumerate(kinds)]
    for kind in dict.fromkeys(kind for kind, _ in runs):
        torture.prepare(kind)

    def is_wrong(run: tuple[str, int]) -> bool:
        try:
            return bool(torture.stop_and_compare(*run))
        except Exception as error:
            torture.say(f"{run[0]} {run[1]}: {type(error).__name__}: {error}")
            return True

    with ThreadPoolExecutor(options.jobs) as pool:
        wrong = list(itertools.compress(runs, pool.map(is_wrong, runs)))
    seconds = time.monotonic() - begun
    torture.say(f"{len(runs)} runs, {torture.stops} stops, {seconds:.0f} s, {len(wrong)} failed")
    for kind, seed in wrong:
        again = f"python -m tests.security.torture --runs 1 --kinds {kind} --seed {seed}"
        torture.say(f"FAILED {root}/{kind}/{seed}-* beside {root}/{kind}/whole; repeat: {again}")
    if wrong:
        sys.exit(1)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
