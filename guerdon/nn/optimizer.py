"""Adam with gradient clipping, from a loss to a step in one call."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Optimizer:
    """Adam, or AdamW with weight decay, with gradient clipping.

    The parameters become views of one vector (see `as_vector`): move a module to its device before,
    and never replace its ``.data`` after. `load_state_dict` of a module copies in place, and is
    fine.

    Args:
        parameters: What to train; those without ``requires_grad`` are left out.
        learning_rate: Learning rate; can be set later.
        max_grad_norm: Maximum norm for gradient clipping, or None.
        betas: Adam's decay rates of the moments.
        eps: Term added to Adam's denominator.
        weight_decay: Decoupled weight decay.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        *,
        max_grad_norm: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.max_grad_norm = max_grad_norm
        self._vector = as_vector([p for p in parameters if p.requires_grad])
        self._adam = torch.optim.AdamW(
            [self._vector], learning_rate, betas, eps, weight_decay, fused=True
        )

    @property
    def learning_rate(self) -> float:
        """Learning rate."""
        return self._adam.param_groups[0]["lr"]  # type: ignore[no-any-return]

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._adam.param_groups[0]["lr"] = value

    def step(self, loss: Tensor) -> Tensor | None:
        """Take a step down the gradient of a loss.

        Returns:
            The norm of the gradient before clipping; None without clipping.
        """
        grad, norm = self._vector.grad, None
        assert grad is not None
        grad.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.max_grad_norm is not None:
            norm = nn.utils.clip_grad_norm_(self._vector, self.max_grad_norm)
        self._adam.step()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Copies of Adam's moments and step count."""
        return {key: value.clone() for key, value in self._adam.state[self._vector].items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned; the learning rate stays as it is."""
        n_values = state["exp_avg"].numel() if state else self._vector.numel()
        if n_values != self._vector.numel():
            raise ValueError(
                f"the optimizer's state is for {n_values:,} parameters, "
                f"but there are {self._vector.numel():,}: the model is not the same"
            )
        self._adam.state[self._vector] = {
            key: value.to(self._vector.device, copy=True) for key, value in state.items()
        }


def as_vector(parameters: list[nn.Parameter]) -> nn.Parameter:
    """Make parameters and their gradients views of one vector each, and return the vector."""
    if not parameters:
        raise ValueError("there are no parameters to train")
    first = parameters[0]
    if any(p.dtype != first.dtype or p.device != first.device for p in parameters):
        raise ValueError("parameters of one optimizer need one dtype and one device")
    vector = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
    vector.grad = torch.zeros_like(vector)
    sizes = [p.numel() for p in parameters]
    values, grads = torch.split(vector.data, sizes), torch.split(vector.grad, sizes)
    for p, value, grad in zip(parameters, values, grads, strict=True):
        p.data, p.grad = value.view_as(p), grad.view_as(p)
    return vector
