"""Trajectories for `workflow.py`: the same ones in both formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from workflow_plain import PlainFrames

from guerdon.collect.reward_data import RewardDataCollector
from guerdon.config.schema import DataCollectionConfig
from guerdon.data.frames import load_frames
from guerdon.envs import make_vec

if TYPE_CHECKING:
    from pathlib import Path

CAMERA = "base_camera"
SIDES = ("positive", "negative")
FORMATS: tuple[Literal["npy", "npz"], ...] = ("npy", "npz")


def make_data(folder: Path, trajectories: int) -> None:
    """Write the same trajectories in both formats; half reach the goal, half are random."""
    n_envs = min(trajectories, 50)
    collectors = [
        RewardDataCollector(DataCollectionConfig(**folders_of(folder, kind), format=kind), n_envs)
        for kind in FORMATS
    ]
    generator = np.random.default_rng(0)
    with make_vec("guerdon/Reach-v0", n_envs) as env:
        obs = env.reset(0)
        ended = 0
        while ended < trajectories:
            act = generator.uniform(-1, 1, (n_envs, 2))
            way = obs["state"][:, -2:]
            act[::2] = 0.5 * act[::2] + np.clip(5 * way[::2], -1, 1)
            step = env.step(act.astype(np.float32))
            for collector in collectors:
                collector.watch({}, step, step.dummy)
            obs = step.obs
            ended += int((step.terminated | step.truncated).sum())
    for collector in collectors:
        collector.close()


def folders_of(folder: Path, kind: str) -> dict[str, Any]:
    """Return the folders of a format, by config key."""
    return {f"{side}_dir": str(folder / kind / side) for side in SIDES}


def check_data(folder: Path) -> int:
    """Check that all formats have the same frames; return their number."""
    read = {kind: load_frames(**folders_of(folder, kind), image_keys=[CAMERA]) for kind in FORMATS}
    assert read["npy"].hash == read["npz"].hash
    frames, plain = read["npy"], PlainFrames([folder / "npy" / side for side in SIDES], CAMERA)
    assert len(plain) == len(frames)
    for number in np.random.default_rng(0).integers(len(plain), size=20):
        image, label = plain[int(number)]
        assert np.array_equal(np.rint(image.numpy() * 255), frames.images[CAMERA][number])
        assert bool(label) == frames.labels[number]
    return len(frames)


def bytes_of(folder: Path) -> float:
    """Return the mean size of a file."""
    return float(np.mean([path.stat().st_size for path in folder.rglob("*.np?")]))
