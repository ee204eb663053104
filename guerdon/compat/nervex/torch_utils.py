"""nerveX's optimizers and conversions of data."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.data.leaves import to_numpy

# --- optimizers


class _Limited(torch.optim.Optimizer):
    """Base of optimizers that clip gradients, or ignore a step (gradients of 0), by a bound.

    ``grad_clip_type`` is ``clip_value``, which bounds every entry, or ``clip_norm``, the norm of
    all; ``clip_value`` is the bound. The same with ``ignore``.
    """

    def __init__(self, params: Any, *args: Any, **options: Any) -> None:
        limits = {}
        for way in ("clip", "ignore"):
            names = (f"grad_{way}_type", f"{way}_value", f"{way}_norm_type")
            limits[way] = [options.pop(name, None) for name in names]
        super().__init__(params, *args, **options)
        for way, (kind, bound, norm) in limits.items():
            known = (f"{way}_value", f"{way}_norm")
            if kind not in (None, *known):
                raise ValueError(f"unknown grad_{way}_type {kind!r}: use one of {', '.join(known)}")
            if kind is not None and bound is None:
                raise ValueError(f"grad_{way}_type={kind!r} needs {way}_value")
            if kind is not None:
                order = float(norm or 2.0) if "norm" in kind else None
                limit = _clip if way == "clip" else _ignore
                self.register_step_pre_hook(partial(limit, order, bound))


def _clip(norm: float | None, bound: float, optimizer: torch.optim.Optimizer, *_: Any) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if norm is None:
        nn.utils.clip_grad_value_(parameters, bound)
    else:
        nn.utils.clip_grad_norm_(parameters, bound, norm)


def _ignore(norm: float | None, bound: float, optimizer: torch.optim.Optimizer, *_: Any) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad.flatten() for p in parameters if p.grad is not None]
    order = torch.inf if norm is None else norm
    if gradients and not torch.linalg.vector_norm(torch.cat(gradients), order) <= bound:
        optimizer.zero_grad(set_to_none=False)  # also of NaN


class Adam(_Limited, torch.optim.Adam):
    """`torch.optim.Adam`, or ``adamw``, that clips or ignores gradients; see `_Limited`."""

    def __init__(
        self, *args: Any, optim_type: Literal["adam", "adamw"] = "adam", **options: Any
    ) -> None:
        if optim_type not in ("adam", "adamw"):
            raise ValueError(f"unknown optim_type {optim_type!r}: use 'adam' or 'adamw'")
        super().__init__(*args, decoupled_weight_decay=optim_type == "adamw", **options)


class RMSprop(_Limited, torch.optim.RMSprop):
    """`torch.optim.RMSprop` that clips or ignores gradients; see `_Limited`."""


# --- data


def to_tensor(item: Any, dtype: torch.dtype | None = None) -> Any:
    """Convert arrays and numbers in nested data to tensors; bool, str and None stay."""
    return _converted(item, lambda leaf: torch.as_tensor(leaf, dtype=dtype))


def to_ndarray(item: Any, dtype: Any = None) -> Any:
    """Convert tensors and numbers in nested data to arrays; bool, str and None stay."""
    return _converted(item, lambda leaf: np.asarray(to_numpy(leaf), dtype))


def to_device(item: Any, device: str | torch.device) -> Any:
    """Move the tensors of nested data to a device."""
    return map_tensors(lambda leaf: leaf.to(device), item)


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Call a function with every tensor of nested data."""
    return _converted(tree, lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf)


def _converted(item: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(item, Mapping):
        return {key: _converted(value, convert) for key, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(_converted(value, convert) for value in item))
    if isinstance(item, list | tuple):
        return type(item)(_converted(value, convert) for value in item)
    return item if item is None or isinstance(item, bool | np.bool_ | str) else convert(item)


def stack(trees: list[Any]) -> Any:
    """Stack tensors, or mappings of them, along a new first axis; others stay a list."""
    if isinstance(trees[0], Mapping):
        return {key: stack([tree[key] for tree in trees]) for key in trees[0]}
    return torch.stack(trees) if isinstance(trees[0], Tensor) else trees


def row(tree: Any, index: int) -> Any:
    """Return one row of tensors, or of mappings of them."""
    if isinstance(tree, Mapping):
        return {key: row(value, index) for key, value in tree.items()}
    return tree[index]
