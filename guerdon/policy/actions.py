"""Action distributions of actor-critic policies, for Discrete and Box spaces."""

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from guerdon import ops
from guerdon.data.batch import Batch, from_leaves

Output = dict[str, Tensor]


class CategoricalActions:
    """For Discrete spaces; the actor computes ``logit``."""

    fields: tuple[str, ...] = ("act",)
    """Fields that `taken` reads."""
    outputs: tuple[str, ...] = ("logit",)
    """Outputs of the actor that `log_prob_entropy` reads."""

    def __init__(self, space: spaces.Discrete) -> None:
        self.start = int(space.start)

    def sample(self, output: Output, generator: torch.Generator) -> Batch:
        """Sample actions, as the output of a policy."""
        numbers = ops.categorical_sample(output["logit"], generator).numpy(force=True)
        return from_leaves({"act": numbers + self.start if self.start else numbers})

    def mode(self, output: Output) -> Tensor:
        """Return the most likely actions."""
        return ops.categorical_mode(output["logit"]) + self.start

    def taken(self, batch: Batch) -> Any:
        """Return the zero-based actions of stored transitions, for `log_prob_entropy`."""
        return self._from_zero(batch.act)

    def _from_zero(self, act: Any) -> Any:
        return act - self.start if self.start else act

    def log_prob(self, output: Output, act: Tensor) -> Tensor:
        """Return log-probabilities of environment actions."""
        return self.log_prob_entropy(output, self._from_zero(act))[0]

    def log_prob_entropy(self, output: Output, act: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies."""
        return ops.categorical_log_prob_entropy(output["logit"], act)


class GaussianActions:
    """For Box spaces; the actor computes ``mu`` and ``log_std``.

    ``act`` is the sampled action clipped to the bounds; the action before clipping, whose density
    is known, is stored as ``policy.raw``.
    """

    fields: tuple[str, ...] = ("act", "policy")
    outputs: tuple[str, ...] = ("mu", "log_std")

    def __init__(self, space: spaces.Box) -> None:
        self.low, self.high, self.dtype = space.low, space.high, space.dtype
        self.n_dims = len(space.shape)

    def sample(self, output: Output, generator: torch.Generator) -> Batch:
        """Sample actions, as the output of a policy."""
        raw = ops.gaussian_sample(output["mu"], output["log_std"], generator)
        numbers = raw.numpy(force=True)
        act = np.clip(numbers, self.low, self.high).astype(self.dtype, copy=False)
        return from_leaves({"act": act, "policy": from_leaves({"raw": numbers})})

    def mode(self, output: Output) -> Tensor:
        """Return the most likely actions."""
        low, high = (torch.as_tensor(x, device=output["mu"].device) for x in (self.low, self.high))
        return output["mu"].clamp(low, high).to(low.dtype)

    def taken(self, batch: Batch) -> Any:
        """Return the actions of stored transitions before clipping, for `log_prob_entropy`."""
        return batch.policy.raw

    def log_prob(self, output: Output, act: Tensor) -> Tensor:
        """Return log-likelihoods of clipped actions."""
        mu, log_std, act = self._flat(output["mu"], output["log_std"], act.float())
        low, high = (torch.as_tensor(bound).to(mu).flatten() for bound in (self.low, self.high))
        return ops.clipped_gaussian_log_prob(mu, log_std, act, low, high)

    def log_prob_entropy(self, output: Output, act: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies."""
        mu, log_std, act = self._flat(output["mu"], output["log_std"], act)
        return ops.gaussian_log_prob(mu, log_std, act), ops.gaussian_entropy(log_std)

    def _flat(self, *parts: Tensor) -> list[Tensor]:
        return [part.flatten(-self.n_dims) for part in parts]


Actions = CategoricalActions | GaussianActions
"""Action distributions over one action space."""


def make_actions(space: Space[Any], policy: str) -> Actions:
    """Make the action distributions of a space.

    Args:
        space: Action space of one environment.
        policy: Name of the policy, for the error message.
    """
    if isinstance(space, spaces.Discrete):
        return CategoricalActions(space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and space.shape:
        return GaussianActions(space)
    raise ValueError(f"{policy} supports Discrete and real-valued Box action spaces, not {space}")
