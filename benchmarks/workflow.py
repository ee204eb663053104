"""Speed of the three stages: the tabletop, collecting, fitting, and training on a classifier.

A fit is compared with a plain one, which reads a whole trajectory for each frame; see
`workflow_plain.py`. Rounds are interleaved, in rotating order, on one thread.

    python benchmarks/workflow.py            # about five minutes, then the page
    python benchmarks/workflow.py --quick    # half a minute; the page goes to the terminal
    python benchmarks/workflow.py --page     # only writes the page anew
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import numpy as np
import report
import torch
from workflow_data import CAMERA, FORMATS, SIDES, bytes_of, check_data, folders_of, make_data
from workflow_page import BUSY, page
from workflow_plain import plain_fit, plain_loader

from guerdon.config import compose
from guerdon.data.frames import load_frames
from guerdon.envs import make_vec
from guerdon.training.fit import fit, read_frames
from guerdon.training.fit_files import compose_fit, load_classifier
from guerdon.training.fit_steps import BalancedBatches, Inputs, all_logits
from guerdon.training.monitor import Budget, Monitor
from guerdon.training.parts import make_parts
from guerdon.training.reward_files import restore_reward
from guerdon.training.trainers import run_trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from guerdon.data.frames import Frames
    from guerdon.training.fit_files import FitConfig

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "workflow.json"
PAGE = ROOT / "docs" / "benchmarks_workflow.md"
TABLES = ("guerdon/Reach-v0", "guerdon/Push-v0", "guerdon/ReachLoophole-v0")
N_ENVS = 64
BATCH = 32
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Size:
    """Sizes of the measurements."""

    rounds: int = 5
    """Rounds of everything except fits."""
    fit_rounds: int = 3
    table_steps: int = 500
    """Steps of all environments together, per round."""
    trajectories: int = 200
    """Trajectories of 50 frames, to load and to fit."""
    epochs: int = 1
    """Epochs of a fit; one has about 200 steps."""
    iterations: int = 10
    """Environment steps of reach_ppo."""


QUICK = Size(rounds=2, fit_rounds=1, table_steps=50, trajectories=40, iterations=2)


def main() -> None:
    """Measure, and write the results and the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="rough figures, which are not kept")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page(json.loads(RESULTS.read_text())))
        return
    load = report.load()
    torch.set_num_threads(1)
    result = {"machine": report.machine([], load), **measured(QUICK if options.quick else Size())}
    if options.quick:
        print(page(result))
    else:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
        PAGE.write_text(page(result))
    if load > BUSY:
        _say(f"The machine was busy before this began ({load:.1f} processes a core): run it again.")


def measured(size: Size) -> dict[str, Any]:
    """Return all measurements."""
    with tempfile.TemporaryDirectory(prefix="guerdon_bench_") as name:
        folder = Path(name)
        _say("the tabletop")
        tabletop = interleaved(
            {table: partial(table_frames, table, size.table_steps) for table in TABLES}, size.rounds
        )
        make_data(folder, size.trajectories)
        n_frames = check_data(folder)
        _say("loading")
        loading = interleaved(
            {
                "plain": partial(plain_loading, folder),
                **{kind: partial(own_loading, folder, kind) for kind in FORMATS},
            },
            size.rounds,
        )
        _say("fits")
        fits, steps = measured_fits(folder, size)
        _say("learning")
        runs = measured_runs(folder, size)
        return {
            "settings": {
                **asdict(size),
                "n_envs": N_ENVS,
                "batch_size": BATCH,
                "frames": n_frames,
                "steps": steps,
                "run_steps": size.iterations * compose("reach_ppo").collect.n_step,
            },
            "tabletop": tabletop,
            "loading": loading,
            "fit": fits,
            "runs": runs,
            "bytes": {kind: bytes_of(folder / kind) for kind in FORMATS},
        }


def interleaved(measures: dict[str, Callable[[int], T]], rounds: int) -> dict[str, list[T]]:
    """Return the results of interleaved rounds; the order rotates.

    Args:
        measures: Called with the number of the round.
        rounds: How many.
    """
    found: dict[str, list[T]] = {name: [] for name in measures}
    names = list(measures)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(measures[name](turn))
        _say(f"  round {turn + 1} of {rounds}")
    return found


# --- the tabletop


def table_frames(table: str, steps: int, seed: int) -> float:
    """Return frames per second, with states, images and resets."""
    with closing(make_vec(table, N_ENVS)) as env:
        env.reset(seed)
        actions = np.random.default_rng(seed).uniform(-1, 1, (50, N_ENVS, 2)).astype(np.float32)
        for action in actions:
            env.step(action)
        start = time.perf_counter()
        for step in range(steps):
            env.step(actions[step % len(actions)])
        return steps * N_ENVS / (time.perf_counter() - start)


# --- loading


def plain_loading(folder: Path, seed: int) -> dict[str, float]:
    """Return seconds of the plain loop for its index, and for one epoch."""
    start = time.perf_counter()
    loader = _plain_loader(folder, seed)
    read = time.perf_counter()
    for _ in loader:
        pass
    return {"reading": read - start, "batches": time.perf_counter() - read}


def _plain_loader(folder: Path, seed: int) -> Any:
    return plain_loader([folder / "npy" / side for side in SIDES], CAMERA, BATCH, seed)


def own_loading(folder: Path, kind: str, seed: int) -> dict[str, float]:
    """Return seconds of guerdon to read the files, and for as many batches."""
    start = time.perf_counter()
    frames = load_frames(**folders_of(folder, kind), image_keys=[CAMERA])
    reading = time.perf_counter() - start
    return {"reading": reading, "batches": take_batches(frames, -(-len(frames) // BATCH), seed)}


def take_batches(frames: Frames, number: int, seed: int) -> float:
    """Seconds for so many batches as the fit takes them, and in floats, as the plain side's are."""
    start = time.perf_counter()
    pictures = Inputs(frames, "cpu", augment=False)
    generator = torch.Generator().manual_seed(seed)
    batches = BalancedBatches(np.arange(len(frames)), frames.labels, BATCH, generator)
    for _ in range(number):
        rows, _labels = next(batches)
        pictures.take(rows)[CAMERA].to(torch.float32).div_(255)
    return time.perf_counter() - start


# --- fits


def measured_fits(folder: Path, size: Size) -> tuple[dict[str, list[dict[str, float]]], int]:
    """Both sides' fits, of the same number of steps; and that number.

    The last of guerdon's classifiers stays in ``folder / "classifier"``.
    """
    steps = fit(_fit_config(folder, "npz", size, augment=False), display="none")["steps"]
    own = {
        "npz": partial(own_fit, folder, size, "npz", False),
        "npy": partial(own_fit, folder, size, "npy", False),
        "augmented": partial(own_fit, folder, size, "npz", True),
    }
    config = _fit_config(folder, "npz", size, augment=False).reward.model

    def plain(seed: int) -> dict[str, float]:
        loader_of = partial(_plain_loader, folder, seed)
        return plain_fit(loader_of, config, steps, LEARNING_RATE, seed)

    return interleaved({"plain": plain, **own}, size.fit_rounds), steps


def own_fit(folder: Path, size: Size, kind: str, augment: bool, seed: int) -> dict[str, float]:
    """Seconds of guerdon's fit in all; of loading; and of validating, which the plain one has not.

    The latter, and the batches of the former, are done once more to be timed.
    """
    config = _fit_config(folder, kind, size, augment, seed)
    start = time.perf_counter()
    frames = read_frames(config)
    read = time.perf_counter()
    fitted = fit(config, overwrite=True, display="none", frames=frames)
    end = time.perf_counter()
    loading = read - start + take_batches(frames, fitted["steps"], seed)
    again = time.perf_counter()
    data, generator = config.reward.data, np.random.default_rng(seed)
    members, _ = load_classifier(fitted["save_dir"])
    source = Inputs(frames, "cpu", augment=False)
    for rows in frames.split(generator, data.test_share, data.validation_share)[1:]:
        all_logits(members, source, rows)
    validating = time.perf_counter() - again
    return {"seconds": end - start, "loading": loading, "validating": validating}


def _fit_config(folder: Path, kind: str, size: Size, augment: bool, seed: int = 0) -> FitConfig:
    return compose_fit(
        "reach_classifier",
        [
            *(f"reward.data.{key}={path}" for key, path in folders_of(folder, kind).items()),
            "reward.model.width=16",
            f"reward.global_batch_size={BATCH}",
            f"reward.optim.lr={LEARNING_RATE}",
            f"reward.num_epochs={size.epochs}",
            f"reward.data.augment={augment}",
            "reward.data.max_frames=null",
            "reward.data.synthetic_failures=false",  # which the plain one has not
            "reward.data.check_labels=false",
            "reward.lr_sched.type=constant",
            "reward.lr_sched.warmup_steps=0",
            "reward.save_interval=1_000_000",  # once, at the end
            f"reward.save_dir={folder / 'classifier'}",
            f"seed={seed}",
        ],
    )


# --- learning


def measured_runs(folder: Path, size: Size) -> dict[str, list[float]]:
    """Return steps per second of reach_ppo, with and without collecting or scoring."""
    picked = folder / "picked"

    def collecting(kind: str) -> list[str]:
        folders = folders_of(picked, kind).items()
        return [
            "reward.collect_data=true",
            *(f"reward.data_collection.{key}={path}" for key, path in folders),
            *(f"reward.data_collection.max_{side}_trajectories=null" for side in SIDES),
            f"reward.data_collection.format={kind}",
        ]

    scoring = [
        "reward=classifier",
        f"reward.checkpoint_path={folder / 'classifier'}",
        "reward.min_precision=0",
        "reward.min_recall=0",
    ]
    settings = {
        "env": [],
        **{kind: collecting(kind) for kind in FORMATS},
        "classifier": scoring,
    }

    def run(overrides: list[str], iterations: int, seed: int) -> float:
        speed = steps_a_second(overrides, iterations, seed)
        shutil.rmtree(picked, ignore_errors=True)
        return speed

    for overrides in settings.values():  # compiles, and sees to what is done but once
        run(overrides, 1, 0)
    return interleaved(
        {name: partial(run, each, size.iterations) for name, each in settings.items()}, size.rounds
    )


def steps_a_second(overrides: list[str], iterations: int, seed: int) -> float:
    """Of a run without evaluations, until all that it collects is on the disk."""
    config = compose("reach_ppo", [*overrides, f"seed={seed}"])
    n_step = config.collect.n_step
    assert n_step is not None
    with closing(make_parts(config)) as parts:
        if config.reward.checkpoint_path is not None:
            restore_reward(parts.reward, config.reward)
        if config.reward.collect_data:
            parts.keep_images(config.reward.data_collection)
        start = time.perf_counter()
        monitor = Monitor(Budget(max_steps=iterations * n_step))
        run_trainer(parts, config, monitor)
        if parts.images is not None:
            parts.images.flush()
        return monitor.progress.env_steps / (time.perf_counter() - start)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
