"""n-step returns of sampled transitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from guerdon import ops
from guerdon.data.batch import Batch, from_leaves
from guerdon.policy.advantages import index_rows

if TYPE_CHECKING:
    from guerdon.policy.base import Policy


def with_returns(policy: Policy, batch: Batch) -> Batch:
    """Sampled transitions as rows, with ``returns`` and ``discount``.

    The target of a row is ``returns + discount * value(obs_next)``. Segments [n, B] become rows
    [B]: the first observation and action, the n-step return, and the last next observation.
    """
    obs, obs_next = policy.observation(batch.obs), policy.observation(batch.obs_next)
    discount = policy.config.gamma * ~batch.terminated
    rows = {"obs": obs, "act": batch.act, "obs_next": obs_next}
    rew = batch.rew.float()  # users may have stored integers
    rows |= {"returns": rew, "discount": discount}
    if rew.ndim == 2:
        returns, discounts, last = ops.multistep_return(rew, discount, batch.mask)
        columns = torch.arange(len(last), device=last.device)
        rows = {
            "obs": index_rows(obs, 0),
            "act": batch.act[0],
            "obs_next": index_rows(obs_next, (last, columns)),
            "returns": returns,
            "discount": discounts,
        }
    if "weight" in batch:
        rows["weight"] = batch.weight
    return from_leaves(rows)
