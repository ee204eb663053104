"""Rows of nested data, as in transitions."""

from collections import UserDict
from collections.abc import Mapping
from typing import Any

import torch

Transition = dict[str, Any]


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
