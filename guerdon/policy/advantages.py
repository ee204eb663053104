"""What actor-critic policies compute of a rollout before they learn from it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from guerdon import ops
from guerdon.data.batch import Batch, from_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from guerdon.policy.actions import Actions
    from guerdon.policy.base import Policy

CHUNK = 4096  # rows a pass, so that images fit into memory


@torch.no_grad()
def with_advantages(
    policy: Policy, model: Any, actions: Actions, batch: Batch, buffer: Any, indices: np.ndarray
) -> Batch:
    """The real rows of a rollout, with ``log_prob``, ``value``, ``advantage`` and ``returns``.

    Log-probabilities and values are those of the policy as it is. Values of next observations are
    those of the following rows; only where none follows, and the episode did not terminate, the
    next observation itself is looked at. Rows that are no data are never looked at.

    Args:
        policy: Whose options and device are used.
        model: Computes both halves when called, and may compute one half as ``critic``.
        actions: What the model's output means.
        batch: A rollout [T, B, ...], with the reward resolved.
        buffer: Where it comes from.
        indices: Its rows there, [T, B].
    """
    mask, cut, terminated = (np.asarray(x) for x in (batch.mask, batch.cut, batch.terminated))
    obs = flat_rows(policy.observation(batch.obs))
    act = policy.tensor(actions.taken(batch)).flatten(0, 1)
    real = None
    if not mask.all():
        real = torch.from_numpy(np.flatnonzero(mask)).to(policy.device)
        obs, act = index_rows(obs, real), act[real]
    log_probs, values = [], []
    for start in range(0, len(act), CHUNK):
        part = slice(start, start + CHUNK)
        output = model(index_rows(obs, part))
        log_probs.append(actions.log_prob_entropy(output, act[part])[0])
        values.append(output["value"])
    log_prob, value = (x[0] if len(x) == 1 else torch.cat(x) for x in (log_probs, values))

    values_now = np.zeros(mask.shape, np.float32)
    values_now[mask] = numbers(value)
    values_next = np.zeros_like(values_now)
    values_next[:-1] = values_now[1:]
    bootstraps = cut & ~terminated & mask
    if bootstraps.any():
        ends = policy.observation(buffer.get(indices[bootstraps], "obs_next"))
        values_next[bootstraps] = numbers(half(model, "critic")(ends)["value"])
    advantage = ops.generalized_advantage(
        rew=numbers(batch.rew),
        value=values_now,
        value_next=values_next,
        discount=np.where(terminated, np.float32(0), np.float32(policy.config.gamma)),
        cut=cut,
        gae_lambda=policy.config.gae_lambda,
        mask=mask,
    )
    flat = policy.tensor(advantage).flatten()
    if real is not None:
        flat = flat[real]
    rows = {"log_prob": log_prob, "value": value, "advantage": flat, "returns": flat + value}
    return from_leaves(rows | {"obs": obs, "act": act})


def minibatches(
    batch: Batch, batch_size: int, generator: torch.Generator
) -> Iterator[dict[str, Any]]:
    """The rows of a batch in random order, in pieces of about one size.

    A remainder is spread over the pieces: a last one of a few rows would be a step in a direction
    of its own.
    """
    n_rows = len(batch.advantage)
    order = torch.randperm(n_rows, generator=generator, device=generator.device)
    shuffled = {key: index_rows(leaf, order) for key, leaf in batch.items()}
    bounds = np.linspace(0, n_rows, max(1, round(n_rows / batch_size)) + 1).round().astype(int)
    for start, end in itertools.pairwise(bounds):
        yield {key: index_rows(leaf, slice(start, end)) for key, leaf in shuffled.items()}


def half(model: Any, name: str) -> Any:
    """What computes one half of an actor-critic: the model itself, where it has no such method."""
    return getattr(model, name, model)


def flat_rows(obs: Any) -> Any:
    """Observations [T, B, ...] as [T * B, ...]."""
    if isinstance(obs, dict):
        return {key: flat_rows(value) for key, value in obs.items()}
    return obs.flatten(0, 1)


def index_rows(obs: Any, rows: Any) -> Any:
    """Some rows of observations: a slice, or row numbers."""
    if isinstance(obs, dict | Batch):
        return {key: index_rows(value, rows) for key, value in obs.items()}
    # Several times as fast as obs[rows] for row numbers.
    return obs[rows] if isinstance(rows, slice) else obs.index_select(0, rows)


def numbers(values: Any) -> np.ndarray:
    """Arrays or tensors as arrays, in single precision."""
    if isinstance(values, Tensor):
        values = values.numpy(force=True)
    return np.asarray(values, np.float32)
