"""One way for every gradient: backward, reduce, clip, step.

Parameters are laid into one vector and their gradients into another, so that zeroing, clipping,
Adam and (over several processes) the all-reduce are one operation each. For networks of the usual
size that is several times faster than going parameter by parameter.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Optimizer:
    """Adam on one flat vector of parameters.

    The parameters become views of the vector: move a module to its device before, and never replace
    its ``.data`` after. `load_state_dict` of a module copies in place, and is fine.

    Args:
        parameters: What is trained; those without ``requires_grad`` are left out.
        learning_rate: The step size; can be set later.
        max_grad_norm: Gradients with a larger norm are scaled down to it.
        betas: Of Adam.
        eps: Of Adam.
        weight_decay: Decoupled, as in AdamW.
        alone: Whether its losses reach no parameters but these; then none have to be kept out.
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
        alone: bool = False,
    ) -> None:
        self.learning_rate = learning_rate
        self.max_grad_norm = max_grad_norm
        self.reduce: Callable[[Tensor], None] | None = None
        """Called with the whole gradient before it is used: the place for an all-reduce."""
        own = [p for p in parameters if p.requires_grad]
        self._inputs = None if alone else own
        self._flat, self._grad = _flatten(own)
        self._mean = torch.zeros_like(self._flat)
        self._square = torch.zeros_like(self._flat)
        self._steps = torch.zeros((), dtype=torch.float32, device=self._flat.device)
        self._options: dict[str, Any] = {
            "beta1": betas[0],
            "beta2": betas[1],
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": False,
            "maximize": False,
        }
        self._adam = torch._fused_adamw_ if weight_decay else torch._fused_adam_

    def step(self, loss: Tensor) -> Tensor | None:
        """Goes one step down the gradient of a loss; of nobody else's parameters.

        Returns:
            The gradient's norm before clipping, where gradients are clipped.
        """
        self._grad.zero_()
        loss.backward(inputs=self._inputs)  # type: ignore[no-untyped-call]
        return self.apply()

    @torch.no_grad()
    def apply(self) -> Tensor | None:
        """Takes the step for gradients that are already in the parameters' ``.grad``."""
        grad, norm, divisor = self._grad, None, None
        if self.reduce is not None:
            self.reduce(grad)
        if self.max_grad_norm is not None:
            norm = torch.linalg.vector_norm(grad)
            divisor = (norm / self.max_grad_norm).clamp_(min=1.0)
        self._steps.add_(1.0)
        self._adam(
            [self._flat], [grad], [self._mean], [self._square], [], [self._steps],
            lr=self.learning_rate, grad_scale=divisor, **self._options,
        )  # fmt: skip
        return norm

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on: copies."""
        return {
            "mean": self._mean.clone(),
            "square": self._square.clone(),
            "steps": self._steps.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken, with the learning rate that it has itself."""
        if state["mean"].shape != self._mean.shape:
            raise ValueError(
                f"the optimizer's state is for {state['mean'].numel():,} parameters, "
                f"but there are {self._mean.numel():,}: the model is not the same"
            )
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
        self._steps.copy_(state["steps"])


def _flatten(parameters: list[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """Makes parameters and their gradients views of one vector each."""
    if not parameters:
        raise ValueError("there are no parameters to train")
    first = parameters[0]
    if any(p.dtype != first.dtype or p.device != first.device for p in parameters):
        raise ValueError("parameters of one optimizer need one dtype and one device")
    number = sum(p.numel() for p in parameters)
    flat = torch.empty(number, dtype=first.dtype, device=first.device)
    grad = torch.zeros_like(flat)
    start = 0
    for p in parameters:
        end = start + p.numel()
        view = flat[start:end].view(p.shape)
        view.copy_(p.detach())
        p.data = view
        p.grad = grad[start:end].view(p.shape)
        start = end
    return flat, grad
