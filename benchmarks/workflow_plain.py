"""A plain fit: a `Dataset` that reads a whole trajectory for each frame."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from guerdon.nn.classifier import BinaryRewardClassifier
from guerdon.nn.init import seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from guerdon.nn.classifier import ClassifierConfig

Sample = tuple[torch.Tensor, torch.Tensor]


class PlainFrames(Dataset[Sample]):
    """Single frames and their labels, of folders of ``.npy`` files.

    Args:
        folders: Of positive and of negative trajectories.
        camera: Whose images.
    """

    def __init__(self, folders: list[Path], camera: str) -> None:
        self.camera = camera
        self.index: list[tuple[Path, int, float]] = []
        for folder in folders:
            for path in sorted(folder.glob("*.npy")):
                labels = _load(path)["labels"]
                self.index += [(path, frame, float(label)) for frame, label in enumerate(labels)]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: int) -> Sample:
        path, frame, label = self.index[number]
        images = _load(path)["images"][self.camera]
        return torch.from_numpy(images[frame]), torch.tensor(label)


def _load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = np.load(path, allow_pickle=True).item()  # files of our own
    return content


def plain_loader(
    folders: list[Path], camera: str, batch_size: int, seed: int
) -> DataLoader[Sample]:
    """Return batches in a new order in every epoch, loaded in this process."""
    return DataLoader(
        PlainFrames(folders, camera),
        batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
    )


def plain_fit(
    loader_of: Callable[[], Iterable[Sample]],
    config: ClassifierConfig,
    steps: int,
    learning_rate: float,
    seed: int,
) -> dict[str, float]:
    """Fit a classifier for a number of steps.

    Args:
        loader_of: Makes the batches of an epoch; its time counts as loading.
        config: The classifier.
        steps: Gradient steps.
        learning_rate: Learning rate of AdamW.
        seed: Random seed of the initial weights.

    Returns:
        Seconds in all, and those of loading.
    """
    start = time.perf_counter()
    batches = _without_end(loader_of())
    loading = time.perf_counter() - start
    with seeded(seed):
        model = BinaryRewardClassifier(config)
        optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
        for _ in range(steps):
            asked = time.perf_counter()
            images, labels = next(batches)
            loading += time.perf_counter() - asked
            logits = model({config.image_keys[0]: images})
            loss = functional.binary_cross_entropy_with_logits(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return {"seconds": time.perf_counter() - start, "loading": loading}


def _without_end(loader: Iterable[Sample]) -> Iterator[Sample]:
    while True:
        yield from loader
