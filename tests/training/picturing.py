"""Small pictures in which a square turns from red to green where the task succeeds."""

import numpy as np

from guerdon.data.frames import Frames, Trajectory, write_trajectory
from guerdon.training.fit_files import compose_fit

SIZE = 32
LENGTH = 6


def episodes(number, generator, cameras=("base_camera",)):
    """Images by camera [number, LENGTH, 3, SIZE, SIZE], and labels [number, LENGTH].

    Two of three episodes succeed, and then show it in the last two frames.
    """
    labels = np.zeros((number, LENGTH), bool)
    labels[np.arange(number) % 3 > 0, -2:] = True
    pictures = {}
    for key in cameras:
        shown = generator.integers(60, 120, (number, LENGTH, 3, SIZE, SIZE), np.uint8)
        for episode in range(number):
            row, column = generator.integers(4, SIZE - 12, 2)
            for step in range(LENGTH):
                square = shown[episode, step, :, row : row + 8, column : column + 8]
                square[:] = 40
                square[1 if labels[episode, step] else 0] = 220
        pictures[key] = shown
    return pictures, labels


def frames(number=60, seed=0, labels=None, cameras=("base_camera",)):
    """All of them in memory, with other labels if there are any."""
    generator = np.random.default_rng(seed)
    pictures, true = episodes(number, generator, cameras)
    said = true.ravel() if labels is None else labels(true.ravel(), generator)
    images = {key: shown.reshape(-1, *shown.shape[2:]) for key, shown in pictures.items()}
    numbers = np.repeat(np.arange(number), LENGTH)
    return Frames(images, said, numbers, said.reshape(number, LENGTH).any(1))


def write(root, number=60, seed=0):
    """The same as files, in the folders ``positive`` and ``negative``."""
    pictures, labels = episodes(number, np.random.default_rng(seed))
    for name in ("positive", "negative"):
        (root / name).mkdir(parents=True)
    for shown, said in zip(pictures["base_camera"], labels, strict=True):
        folder = root / ("positive" if said.any() else "negative")
        write_trajectory(
            folder, Trajectory({"base_camera": shown}, said.astype(np.float32), bool(said.any()))
        )


def sections(save_dir, **changes):
    """The options of a fit of seconds."""
    return {
        "model": {"image_size": [3, SIZE, SIZE], "width": 4, "hidden_dim": 16,
                  "num_spatial_blocks": 2},
        "optim": {"lr": 3e-3},
        "lr_sched": {"type": "constant", "warmup_steps": 0},
        "data": {"check_labels": False},
        "global_batch_size": 16,
        "num_epochs": 8,
        "log_interval": 10,
        "save_interval": 20,
        "save_dir": str(save_dir),
        **changes,
    }  # fmt: skip


def config(save_dir, *overrides, **changes):
    """A fit of seconds."""
    return compose_fit({"reward": sections(save_dir, **changes)}, overrides)
