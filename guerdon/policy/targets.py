"""What off-policy policies read, and the part of their targets that needs no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from guerdon import ops
from guerdon.data.batch import Batch, from_leaves

if TYPE_CHECKING:
    from guerdon.policy.base import Policy


def with_returns(policy: Policy, batch: Batch) -> Batch:
    """Transitions as tensors, with ``returns`` and ``discount``.

    The target of a row is ``returns + discount * value(obs_next)``. Segments [n, B] become rows
    [B]: the first observation and action, the rewards until the end of the segment, and the last
    next observation.
    """
    gamma = policy.config.gamma
    if batch.rew.ndim == 1:
        rows = {
            "obs": policy.observation(batch.obs),
            "act": policy.tensor(batch.act),
            "obs_next": policy.observation(batch.obs_next),
            "returns": policy.tensor(_float32(batch.rew)),
            "discount": policy.tensor(_discount(batch.terminated, gamma)),
        }
    else:
        returns, discount, last = ops.multistep_return(
            _float32(batch.rew),
            _discount(batch.terminated, gamma),
            batch.mask,
        )
        rows = {
            "obs": policy.observation(batch.obs[0]),
            "act": policy.tensor(batch.act[0]),
            "obs_next": policy.observation(batch.obs_next[last, np.arange(len(last))]),
            "returns": policy.tensor(returns),
            "discount": policy.tensor(discount),
        }
    if "weight" in batch:
        rows["weight"] = policy.tensor(batch.weight)
    return from_leaves(rows)


def _float32(values: Any) -> Any:
    if isinstance(values, torch.Tensor):
        return values.float()
    return values.astype(np.float32, copy=False)


def _discount(terminated: Any, gamma: float) -> Any:
    if isinstance(terminated, torch.Tensor):
        return gamma * (~terminated).float()
    return np.where(terminated, np.float32(0), np.float32(gamma))
