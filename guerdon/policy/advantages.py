"""Advantages of rollouts, n-step returns of sampled transitions, and minibatches."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from guerdon import ops
from guerdon.data.batch import Batch, from_leaves
from guerdon.policy.actions import Actions
from guerdon.policy.base import Policy

CHUNK = 2048  # rows per forward pass, so that the features of images fit into memory


class Values(NamedTuple):
    """Values of a rollout [T, B]."""

    now: Tensor
    after: Tensor
    """Of the next observation; 0 where it is not needed."""
    rows: Tensor | None
    """Flat indices of the transitions; None if all rows are transitions."""


@torch.no_grad()
def with_values(
    policy: Policy,
    model: Any,
    actions: Actions,
    batch: Batch,
    columns: Mapping[str, Tensor] | None = None,
) -> tuple[Batch, Values]:
    """Return the transitions of a rollout as rows, with ``value``, and all values.

    The value of a next observation is the value of the next row; the critic evaluates next
    observations only where a row is the last of its episode and did not terminate.

    Args:
        policy: Policy, for its options.
        model: Actor-critic.
        actions: Action distributions.
        batch: A rollout [T, B, ...], with the reward resolved.
        columns: Further arrays [T, B, ...] to return as rows.
    """
    obs, obs_next = (flat_rows(policy.observation(batch[key])) for key in ("obs", "obs_next"))
    act, more = actions.taken(batch).flatten(0, 1), flat_rows(dict(columns or {}))
    rows = valid_rows(batch.mask)
    if rows is not None:
        obs, act, more = (index_rows(part, rows) for part in (obs, act, more))
    critic = branch(model, "critic")
    parts = [slice(start, start + CHUNK) for start in range(0, len(act), CHUNK)]
    value = torch.cat([critic(index_rows(obs, part))["value"] for part in parts])

    values_now = scatter_rows(value, rows, batch.mask)
    values_next = torch.zeros_like(values_now)
    values_next[:-1] = values_now[1:]
    ends = (batch.cut & ~batch.terminated & batch.mask).flatten().nonzero().squeeze(-1)
    if len(ends):
        values_next.view(-1)[ends] = critic(index_rows(obs_next, ends))["value"]
    found = from_leaves({"value": value, "obs": obs, "act": act, **more})
    return found, Values(values_now, values_next, rows)


def with_advantages(
    policy: Policy,
    model: Any,
    actions: Actions,
    batch: Batch,
    columns: Mapping[str, Tensor] | None = None,
) -> Batch:
    """Return the rows of `with_values`, with ``advantage`` (GAE) and ``returns``."""
    found, values = with_values(policy, model, actions, batch, columns)
    advantage = ops.generalized_advantage(
        batch.rew.float(),  # users may have stored integers
        values.now,
        values.after,
        policy.config.gamma * (~batch.terminated).float(),
        batch.cut,
        policy.config.gae_lambda,
        batch.mask,
    ).flatten()
    if values.rows is not None:
        advantage = advantage[values.rows]
    found.update(advantage=advantage, returns=advantage + found.value)
    return found


def with_returns(policy: Policy, batch: Batch) -> Batch:
    """Return sampled transitions as rows, with ``returns`` and ``discount``.

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


def valid_rows(mask: Tensor) -> Tensor | None:
    """Return the flat indices of transitions; None if all rows are transitions."""
    return None if bool(mask.all()) else mask.flatten().nonzero().squeeze(-1)


def scatter_rows(values: Tensor, rows: Tensor | None, mask: Tensor) -> Tensor:
    """Scatter values of the valid rows to [T, B]; 0 elsewhere."""
    if rows is None:
        return values.view(mask.shape)
    full = values.new_zeros(mask.numel())
    full[rows] = values
    return full.view(mask.shape)


def minibatches(
    batch: Batch, batch_size: int, generator: torch.Generator
) -> Iterator[dict[str, Any]]:
    """Shuffle the rows of a batch and split them into minibatches of nearly equal size.

    A remainder is spread over the minibatches: a small last one would give a noisy step.
    """
    n_rows = len(batch.advantage)
    order = torch.randperm(n_rows, generator=generator, device=generator.device)
    shuffled = {key: index_rows(leaf, order) for key, leaf in batch.items()}
    bounds = np.linspace(0, n_rows, max(1, round(n_rows / batch_size)) + 1).round().astype(int)
    for start, end in itertools.pairwise(bounds):
        yield {key: index_rows(leaf, slice(start, end)) for key, leaf in shuffled.items()}


def branch(model: Any, name: str) -> Any:
    """Return the method ``actor`` or ``critic`` of a model; the model itself if it has none."""
    return getattr(model, name, model)


def flat_rows(obs: Any) -> Any:
    """Reshape observations [T, B, ...] to [T * B, ...]."""
    if isinstance(obs, dict):
        return {key: flat_rows(value) for key, value in obs.items()}
    return obs.flatten(0, 1)


def index_rows(obs: Any, rows: Any) -> Any:
    """Index rows of observations."""
    if isinstance(obs, dict | Batch):
        return {key: index_rows(value, rows) for key, value in obs.items()}
    # Several times as fast as obs[rows].
    return obs.index_select(0, rows) if isinstance(rows, Tensor) else obs[rows]
