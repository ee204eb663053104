"""Risk measures for IQN: https://arxiv.org/abs/1806.06923, section 3.1.

A beta function distorts the fractions tau in [0, 1] at which quantiles are drawn, so that the mean
of these quantiles is a risk-sensitive value.
"""

from collections.abc import Callable

import torch


def uniform(tau: torch.Tensor) -> torch.Tensor:
    """No distortion: the mean."""
    return tau


def cpw(tau: torch.Tensor, eta: float = 0.71) -> torch.Tensor:
    """Cumulative prospect theory: rare outcomes weigh more; 0.71 describes people best."""
    risen: torch.Tensor = tau**eta
    return risen / (risen + (1 - tau) ** eta) ** (1 / eta)


def cvar(tau: torch.Tensor, eta: float = 0.71) -> torch.Tensor:
    """Conditional value at risk: the mean of the worst share `eta`, in (0, 1]."""
    return eta * tau


def wang(tau: torch.Tensor, eta: float = -0.75) -> torch.Tensor:
    """Shifts tau by `eta` on the scale of a standard normal; averse to risk where negative."""
    distorted: torch.Tensor = torch.special.ndtr(torch.special.ndtri(tau) + eta)
    return distorted


def power(tau: torch.Tensor, eta: float = -2.0) -> torch.Tensor:
    """A power of tau; averse to risk where `eta` is negative, seeking it where positive."""
    exponent = 1 / (1 + abs(eta))
    return tau**exponent if eta >= 0 else 1 - (1 - tau) ** exponent


beta_function_map: dict[str, Callable[..., torch.Tensor]] = {
    "uniform": uniform,
    "CPW": cpw,
    "CVaR": cvar,
    "Wang": wang,
    "Pow": power,
}
"""The beta functions by their names in the paper."""
