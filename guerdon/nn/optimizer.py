"""Adam with gradient clipping.

A step is one call of the kernel of ``torch.optim.AdamW(fused=True)``, over one vector of all
parameters. With ``torch.optim.AdamW`` itself and ``clip_grad_norm_``, training `dqn` on CartPole
runs at 0.79 of this speed (95 % interval 0.76 to 0.82, CPU time of ten pairs of runs).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Optimizer:
    """Adam, or AdamW with weight decay, with gradient clipping.

    Parameters become views of one vector: move a module to its device first, and do not replace its
    ``.data`` afterwards. A module's `load_state_dict` copies in place and works.

    Args:
        parameters: Parameters to train; those without ``requires_grad`` are ignored.
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
        self.learning_rate = learning_rate
        self.average: Callable[[Tensor], object] | None = None
        """Averages the gradient over processes that learn together."""
        self.max_grad_norm = max_grad_norm
        self._vector, self._grad = _as_vectors([p for p in parameters if p.requires_grad])
        self._state = {
            "exp_avg": torch.zeros_like(self._vector),
            "exp_avg_sq": torch.zeros_like(self._vector),
            "step": torch.zeros((), device=self._vector.device),
        }
        self._options: dict[str, Any] = {
            "beta1": betas[0],
            "beta2": betas[1],
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": False,
            "maximize": False,
        }

    def step(self, loss: Tensor) -> Tensor | None:
        """Take a gradient step.

        Returns:
            The norm of the gradient before clipping; None without clipping.
        """
        self._grad.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.average is not None:
            self.average(self._grad)
        norm = divisor = None
        with torch.no_grad():
            if self.max_grad_norm is not None:
                norm = torch.linalg.vector_norm(self._grad)
                divisor = (norm / self.max_grad_norm).clamp_(min=1.0)
            mean, square, step = self._state.values()
            step.add_(1.0)
            torch._fused_adamw_(
                [self._vector], [self._grad], [mean], [square], [], [step],
                lr=self.learning_rate, grad_scale=divisor, **self._options,
            )  # fmt: skip
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return copies of Adam's moments and step count."""
        return {name: value.clone() for name, value in self._state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`; the learning rate is unchanged."""
        if state["exp_avg"].shape != self._vector.shape:
            raise ValueError(
                f"the optimizer's state is for {state['exp_avg'].numel():,} parameters, "
                f"but there are {self._vector.numel():,}: the model differs"
            )
        if state["exp_avg_sq"].shape != self._vector.shape or bool((state["exp_avg_sq"] < 0).any()):
            raise ValueError("the optimizer's state has mean squares that are none")
        for name, value in self._state.items():
            value.copy_(state[name])


def _as_vectors(parameters: list[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """Make parameters and gradients views of one vector each; return the vectors."""
    if not parameters:
        raise ValueError("there are no parameters to train")
    first = parameters[0]
    if any(p.dtype != first.dtype or p.device != first.device for p in parameters):
        raise ValueError("parameters of one optimizer need one dtype and one device")
    vector = torch.cat([p.detach().flatten() for p in parameters])
    grad = torch.zeros_like(vector)
    sizes = [p.numel() for p in parameters]
    views = zip(parameters, torch.split(vector, sizes), torch.split(grad, sizes), strict=True)
    for p, values, gradients in views:
        p.data, p.grad = values.view_as(p), gradients.view_as(p)
    return vector, grad
