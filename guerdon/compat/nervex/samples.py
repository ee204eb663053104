"""Converts arrays [T, B, ...] to transitions as dictionaries."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

Transition = dict[str, Any]
Process = Callable[[Any, Any, "Timestep"], Transition]


class Timestep(NamedTuple):
    """Result of an environment step."""

    obs: Any
    """Next observation."""
    reward: Any
    """Resolved reward."""
    done: Any
    """Whether the episode terminated."""
    info: dict[str, Any]


def trajectories(
    table: Mapping[str, Any], mask: np.ndarray, cut: np.ndarray, process: Process
) -> Iterator[tuple[int, deque[Transition]]]:
    """Yield uninterrupted parts of episodes, each with its column.

    Args:
        table: ``obs, next_obs, reward, done, output``: tensors [T, B, ...], or mappings of them.
        mask: [T, B]: False for rows without a transition.
        cut: [T, B]: True where a part ends.
        process: Makes a transition from an observation, an output and a `Timestep`.
    """
    steps = [row(table, t) for t in range(len(mask))]
    for b in range(mask.shape[1]):
        cache: deque[Transition] = deque()
        for t, step in enumerate(steps):
            if mask[t, b]:
                at = row(step, b)
                result = Timestep(at["next_obs"], at["reward"], at["done"], {})
                cache.append(process(at["obs"], at["output"], result))
            if cut[t, b] and cache:
                yield b, cache
                cache = deque()
        if cache:
            yield b, cache


class Watched(Mapping[str, Any]):
    """A mapping that records which keys are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def stack(trees: list[Any]) -> Any:
    """Stack tensors, or mappings of them, along a new first axis."""
    if isinstance(trees[0], Mapping):
        return {key: stack([tree[key] for tree in trees]) for key in trees[0]}
    return None if trees[0] is None else torch.stack(trees)


def row(tree: Any, index: int) -> Any:
    """Return one row of tensors, or of mappings of them."""
    if isinstance(tree, Mapping):
        return {key: row(value, index) for key, value in tree.items()}
    return tree[index]
