"""Checks of shapes, and the weighted or masked mean."""

from collections.abc import Mapping

import numpy as np
import torch


def same_shape(rank: int | None = None, /, **arrays: np.ndarray | torch.Tensor | None) -> None:
    """Raise an error unless all arrays have the same shape.

    A [B] beside a [B, 1] would broadcast to [B, B], and the loss would be silently wrong.

    Args:
        rank: Required number of axes; None for any.
        **arrays: Arrays by name, for the message. None is skipped.

    Raises:
        ValueError: If the shapes differ, or the rank does.
    """
    shape = None
    for array in arrays.values():
        if array is None:
            continue
        if shape is None:
            shape = array.shape
        elif array.shape != shape:
            raise ValueError(f"These must have the same shape: {_shapes(arrays)}.")
    if rank is not None and shape is not None and len(shape) != rank:
        raise ValueError(f"These must have {rank} axes: {_shapes(arrays)}.")


def rows_of(table: torch.Tensor, **rows: torch.Tensor | None) -> None:
    """Raise an error unless `table` has the shape of all `rows` and one more axis.

    Args:
        table: [..., N], for example logits.
        **rows: [...], for example actions, by name for the message. None is skipped.

    Raises:
        ValueError: If the shapes do not match.
    """
    shape = table.shape[:-1]
    for row in rows.values():
        if row is not None and row.shape != shape:
            raise ValueError(
                f"Next to a table of shape {tuple(table.shape)} these must have "
                f"shape {tuple(shape)}: {_shapes(rows)}."
            )


def weighted_mean(
    x: torch.Tensor, weight: torch.Tensor | None = None, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the mean over the rows of a batch, 0-dim.

    Args:
        x: Tensor of any shape.
        weight: Multiplies each row and does not normalise the mean (importance weights of a
            prioritized buffer). Same shape.
        mask: False for rows to leave out. Same shape. The mean of no rows is 0.
    """
    same_shape(x=x, weight=weight, mask=mask)
    if weight is not None:
        x = x * weight
    if mask is None:
        return x.mean()
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


def _shapes(arrays: Mapping[str, np.ndarray | torch.Tensor | None]) -> str:
    return ", ".join(f"{name} {tuple(a.shape)}" for name, a in arrays.items() if a is not None)
