"""nerveX's optimizers and conversions of data."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

# --- optimizers

_KINDS = ("value", "norm", "momentum", "momentum_norm")
_MEAN = "mean_squared_gradient"  # in the optimizer's state


class _Limits:
    """Clips gradients, or sets all of a step to 0 (``ignore``), if they exceed a bound.

    The bound of every entry is `value` (``value``), or `coef` times the root of the running mean of
    squared gradients (``momentum``, after `timestep` steps). With ``norm`` and ``momentum_norm`` it
    bounds the norm: of all gradients, or of those of a parameter group.

    Args:
        optimizer: The optimizer whose steps it changes.
        rate: Decay rate of squared gradients.
        corrected: Whether their mean is corrected for its start at 0.
        options: ``grad_clip_type`` (``clip_value``, ...) with ``clip_value``, ``clip_coef``,
            ``clip_norm_type`` and ``clip_momentum_timestep``; and the same with ``ignore``.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rate: float,
        corrected: bool,
        options: dict[str, Any],
    ) -> None:
        self._rate, self._corrected = rate, corrected
        self._ways: list[tuple[bool, str, Any, float, float, int]] = []
        self._new: dict[Tensor, Tensor] = {}
        for way in ("clip", "ignore"):
            kind, value = options.pop(f"grad_{way}_type", None), options.pop(f"{way}_value", None)
            coef, norm = options.pop(f"{way}_coef", 5.0), options.pop(f"{way}_norm_type", 2.0)
            start = options.pop(f"{way}_momentum_timestep", 100)
            known = [f"{way}_{each}" for each in _KINDS]
            if kind not in (None, *known):
                raise ValueError(f"unknown grad_{way}_type {kind!r}: use one of {', '.join(known)}")
            if kind in known[:2] and value is None:
                raise ValueError(f"grad_{way}_type={kind!r} needs {way}_value")
            if kind is not None:
                name = kind.removeprefix(f"{way}_")
                self._ways.append((way == "clip", name, value, coef, norm, start))
        if options:
            raise TypeError(f"unknown option {next(iter(options))!r} of an optimizer")
        if self._ways:
            optimizer.register_step_pre_hook(self.before)
            optimizer.register_step_post_hook(self.after)

    @torch.no_grad()
    def before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Limit the gradients."""
        groups = [[p for p in g["params"] if p.grad is not None] for g in optimizer.param_groups]
        every = [p for group in groups for p in group]
        moving = any("momentum" in kind for _, kind, *_ in self._ways)
        roots, steps = self._roots(optimizer, every) if moving else ({}, 0)
        for clip, kind, value, coef, norm_type, start in self._ways:
            if "momentum" in kind and steps < start:
                continue
            for part in filter(None, groups if kind == "momentum_norm" else [every]):
                bounds = [coef * roots[p] if "momentum" in kind else value for p in part]
                gradients = [p.grad for p in part]
                if "norm" in kind:
                    bound = _norm(bounds, norm_type) if "momentum" in kind else value
                    size = _norm(gradients, norm_type)
                    if not size <= bound:
                        for gradient in gradients:
                            gradient.mul_(bound / size) if clip else gradient.zero_()
                elif clip:
                    for gradient, bound in zip(gradients, bounds, strict=True):
                        gradient.clamp_(-bound, bound)
                elif not all((g.abs() <= b).all() for g, b in zip(gradients, bounds, strict=True)):
                    for gradient in gradients:
                        gradient.zero_()

    def _roots(
        self, optimizer: torch.optim.Optimizer, parameters: list[Tensor]
    ) -> tuple[dict[Tensor, Tensor], int]:
        """Update the running means; return their roots, and the number of earlier steps."""
        roots, steps = {}, 0
        for p in parameters:
            state = optimizer.state[p]
            steps = int(state.get("step", 0))
            # Before its first step, an optimizer takes a state that is not empty for its own.
            mean = state[_MEAN] if steps else self._new.setdefault(p, torch.zeros_like(p))
            assert p.grad is not None
            mean.mul_(self._rate).addcmul_(p.grad, p.grad, value=1 - self._rate)
            roots[p] = mean.sqrt()
            if self._corrected:
                roots[p] /= (1 - self._rate ** (steps + 1)) ** 0.5
        return roots, steps

    def after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Save the running means of a first step."""
        for p, mean in self._new.items():
            optimizer.state[p][_MEAN] = mean
        self._new = {}


def _norm(tensors: Iterable[Tensor], norm_type: float) -> Tensor:
    flat = torch.cat([each.flatten() for each in tensors])
    norm: Tensor = torch.linalg.vector_norm(flat, norm_type)
    return norm


class Adam(torch.optim.Adam):
    """Adam, or AdamW, that clips or ignores gradients.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay rates of the moments.
        eps: Term added to the denominator.
        weight_decay: L2 penalty; decoupled with ``adamw``.
        amsgrad: Whether to use AMSGrad.
        optim_type: ``adam`` or ``adamw``.
        **options: ``grad_clip_type`` and so on; see `_Limits`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        optim_type: Literal["adam", "adamw"] = "adam",
        **options: Any,
    ) -> None:
        if optim_type not in ("adam", "adamw"):
            raise ValueError(f"unknown optim_type {optim_type!r}: use 'adam' or 'adamw'")
        decoupled = optim_type == "adamw"
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, decoupled_weight_decay=decoupled
        )
        _Limits(self, betas[1], True, options)


class RMSprop(torch.optim.RMSprop):
    """RMSprop that clips or ignores gradients.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        alpha: Decay rate of squared gradients.
        eps: Term added to the denominator.
        weight_decay: L2 penalty.
        momentum: Momentum.
        centered: Whether gradients are normalised by their variance.
        **options: ``grad_clip_type`` and so on; see `_Limits`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(params, lr, alpha, eps, weight_decay, momentum, centered)
        _Limits(self, alpha, False, options)


# --- data


def to_tensor(item: Any, dtype: torch.dtype | None = None) -> Any:
    """Convert arrays and numbers in nested data to tensors; bool, str and None stay."""
    return _converted(item, lambda leaf: torch.as_tensor(leaf, dtype=dtype))


def to_ndarray(item: Any, dtype: Any = None) -> Any:
    """Convert tensors and numbers in nested data to arrays; bool, str and None stay."""

    def array(leaf: Any) -> np.ndarray:
        return np.asarray(leaf.numpy(force=True) if isinstance(leaf, Tensor) else leaf, dtype)

    return _converted(item, array)


def to_device(item: Any, device: str | torch.device) -> Any:
    """Move the tensors of nested data to a device."""
    return _converted(item, lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf)


def _converted(item: Any, convert: Any) -> Any:
    if isinstance(item, Mapping):
        return {key: _converted(value, convert) for key, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(_converted(value, convert) for value in item))
    if isinstance(item, list | tuple):
        return type(item)(_converted(value, convert) for value in item)
    return item if item is None or isinstance(item, bool | np.bool_ | str) else convert(item)
