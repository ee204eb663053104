"""Converts arrays [T, B, ...] to transitions as dictionaries."""

from collections import UserDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from guerdon.compat.nervex.gym_adapter import BaseEnvTimestep

Transition = dict[str, Any]
Process = Callable[[Any, Any, BaseEnvTimestep], Transition]


def trajectories(
    table: Mapping[str, Any], mask: np.ndarray, cut: np.ndarray, process: Process
) -> Iterator[tuple[int, deque[Transition]]]:
    """Yield uninterrupted parts of episodes, each with its column.

    `table` has ``obs, next_obs, reward, done, output``: tensors [T, B, ...], or mappings of them.
    `mask` [T, B] is False for rows without a transition, `cut` True where a part ends.
    """
    steps = [row(table, t) for t in range(len(mask))]
    for b in range(mask.shape[1]):
        cache: deque[Transition] = deque()
        for t, step in enumerate(steps):
            if mask[t, b]:
                at = row(step, b)
                result = BaseEnvTimestep(at["next_obs"], at["reward"], at["done"], {})
                cache.append(process(at["obs"], at["output"], result))
            if cut[t, b] and cache:
                yield b, cache
                cache = deque()
        if cache:
            yield b, cache


class Watched(UserDict[str, Any]):
    """A mapping that records which keys are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.data[key]


def stack(trees: list[Any]) -> Any:
    """Stack tensors, or mappings of them, along a new first axis; others stay a list."""
    if isinstance(trees[0], Mapping):
        return {key: stack([tree[key] for tree in trees]) for key in trees[0]}
    return torch.stack(trees) if isinstance(trees[0], torch.Tensor) else trees


def row(tree: Any, index: int) -> Any:
    """Return one row of tensors, or of mappings of them."""
    if isinstance(tree, Mapping):
        return {key: row(value, index) for key, value in tree.items()}
    return tree[index]
