"""Nested batches as flat tables of leaves, and back."""

from collections.abc import Iterator, Mapping
from typing import Any

from guerdon.data.batch import Batch

Path = tuple[str, ...]


def flatten(data: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf of a batch or nested mapping with its path; an empty sub-batch is a leaf too."""
    if isinstance(data, Batch | Mapping) and (data or not path):
        for key, value in data.items():
            yield from flatten(value, (*path, key))
    else:
        yield path, data


def unflatten(leaves: Mapping[Path, Any]) -> Batch:
    """The batch that `flatten` took apart."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        node = tree
        for depth, key in enumerate(path[:-1], 1):
            node = node.setdefault(key, {})
            if type(node) is not dict or path[:depth] in leaves:
                raise ValueError(f"{'.'.join(path[:depth])!r} is a leaf, and {path} lies below it")
        if not path or path[-1] in node:
            raise ValueError(f"the leaf {'.'.join(path)!r} would take the place of others below it")
        node[path[-1]] = leaf
    return Batch(tree)
