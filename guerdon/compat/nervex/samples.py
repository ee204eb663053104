"""From arrays [T, B, ...] to rows one can hold in a hand, and from samples back to arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np

Transition = dict[str, Any]
Process = Callable[[Any, Any, "Timestep"], Transition]


class Timestep(NamedTuple):
    """What came of a step."""

    obs: Any
    """The observation after it."""
    reward: Any
    """What it is worth to the learner."""
    done: Any
    """Whether the episode terminated with it."""
    info: dict[str, Any]


def trajectories(
    table: Mapping[str, Any], mask: np.ndarray, cut: np.ndarray, process: Process
) -> Iterator[tuple[int, deque[Transition]]]:
    """Unbroken pieces of episodes, each with the column it comes from.

    Args:
        table: ``obs, next_obs, reward, done, output``: tensors [T, B, ...], or mappings of them.
        mask: [T, B]: False where there is no transition.
        cut: [T, B]: True where a piece ends.
        process: Makes a transition of an observation, an output and a `Timestep`.
    """
    names = ("obs", "next_obs", "reward", "done", "output")
    obs, next_obs, reward, done, output = (unstack(table[name]) for name in names)
    for b in range(mask.shape[1]):
        cache: deque[Transition] = deque()
        for t in range(mask.shape[0]):
            if mask[t, b]:
                step = Timestep(next_obs[t][b], reward[t][b], done[t][b], {})
                cache.append(process(obs[t][b], output[t][b], step))
            if cut[t, b] and cache:
                yield b, cache
                cache = deque()
        if cache:
            yield b, cache


def all_samples(
    cache: deque[Transition], get: Callable[[deque[Transition]], list[Any] | None]
) -> Iterator[Any]:
    """What a function makes of a trajectory, called until it takes no more from it."""
    before = len(cache) + 1
    while 0 < len(cache) < before:
        before = len(cache)
        yield from get(cache) or []


class Watched(Mapping[str, Any]):
    """A mapping that remembers the keys that were read."""

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


def unstack(tree: Any) -> list[Any]:
    """Tensors [T, B, ...] as lists of lists of what is in their rows; a mapping gives mappings."""
    if isinstance(tree, Tensor):
        return [row.unbind() for row in tree.unbind()]
    parts = {key: unstack(value) for key, value in tree.items()}
    first = next(iter(parts.values()))
    return [
        [{key: part[t][b] for key, part in parts.items()} for b in range(len(first[t]))]
        for t in range(len(first))
    ]


def collate(samples: list[Any], name: str = "sample") -> Any:
    """Samples as one: dictionaries of tensors [B, ...]; lists of them become [T, B, ...].

    Args:
        samples: All of one form: numbers, arrays, tensors, mappings or lists; or all None.
        name: What they are called in errors.
    """
    first = samples[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return torch.stack(samples)
    if isinstance(first, Mapping):
        return {key: collate([each[key] for each in samples], str(key)) for key in first}
    if isinstance(first, list | tuple):
        return stack([collate(list(each), name) for each in zip(*samples, strict=True)])
    try:
        return torch.stack([torch.as_tensor(each) for each in samples])
    except (TypeError, RuntimeError) as error:
        kind = type(first).__name__
        raise TypeError(f"the samples' {name!r} cannot become a tensor: it is a {kind}") from error


def stack(trees: list[Any]) -> Any:
    """Tensors, or mappings of them, one after the other along a new first axis."""
    if isinstance(trees[0], Mapping):
        return {key: stack([tree[key] for tree in trees]) for key in trees[0]}
    return None if trees[0] is None else torch.stack(trees)


def row(tree: Any, index: int) -> Any:
    """One row of tensors, or of mappings of them."""
    if isinstance(tree, Mapping):
        return {key: row(value, index) for key, value in tree.items()}
    return tree[index]
